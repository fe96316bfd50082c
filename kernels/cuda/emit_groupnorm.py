"""CUDA kernels for GroupNorm and InstanceNorm, plain and channels-last."""

from __future__ import annotations

from tracea_onnx import dims as D
from tracea_onnx.cuda import Argument, Float32, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.cuda_source import known, overlapped, parameters, static, template, vector_width
from tracea_onnx.cuda_text import activation_source, prelude
from tracea_onnx.dims import DimLike


def _head(request: Request) -> str:
    act = static(parameters(request)["act"], "activation")
    return prelude(request.dtype) + activation_source(act) + template("base", "groupnorm")


def _threads(elements: DimLike, v: int) -> int:
    """Threads of a block for a group of this many elements."""
    n = known(elements)
    wanted = 512 if n is None else n // (4 * v)
    return next((t for t in (32, 64, 128, 256, 512) if t >= wanted), 512)


def _weights(request: Request) -> tuple[list[str], dict[str, str]]:
    present: list[str] = [o for o in ("x", "gamma", "beta", "y") if o in request.operands]
    return present, {o: o if o in present else "nullptr" for o in ("x", "gamma", "beta", "y")}


def _floats(request: Request) -> tuple[Argument, ...]:
    return tuple(Float32(request.floats.get(k, 0.0)) for k in ("eps", "p0", "p1"))


def groupnorm(request: Request) -> list[Kernel]:
    i = parameters(request)
    c, g = static(i["C"], "channel count"), static(i["G"], "group count")
    v = vector_width(request.dtype, i["inner"])
    threads = _threads(D.mul(i["inner"], c // g), v)
    present, place = _weights(request)
    call = f"({place['x']}, {place['gamma']}, {place['beta']}, y, C, G, inner, eps, p0, p1)"
    source = f"""{_head(request)}
extern "C" __global__ void __launch_bounds__({threads}) groupnorm({", ".join(f"{'' if o == 'y' else 'const '}T* {o}" for o in present)},
    int C, int G, int inner, float eps, float p0, float p1) {{
  after_previous();
  if (aligned(x, {v} * sizeof(T)) && aligned(y, {v} * sizeof(T))) group_plain<{v}, {threads}>{call};
  else group_plain<1, {threads}>{call};
}}
"""
    args = (*(Pointer(o) for o in present), Int32(c), Int32(g), Int32(i["inner"]), *_floats(request))
    return [Kernel(source, "groupnorm", (D.select(D.equal(i["inner"], 0), 0, D.mul(i["B"], g)), 1, 1), threads, args, pdl=overlapped(request))]


def groupnorm_nhwc(request: Request) -> list[Kernel]:
    i = parameters(request)
    c, g = static(i["C"], "channel count"), static(i["G"], "group count")
    pitches = [i[f"{s}_{p}"] for s in ("x", "y") for p in ("cs", "rs", "ns")]
    v = vector_width(request.dtype, c // g, *(p for p in pitches if known(p) is not None))
    threads = _threads(D.product([i["H"], i["W"], c // g]), v)
    present, place = _weights(request)
    call = f"({place['x']}, {place['gamma']}, {place['beta']}, y, C, G, H, Plane{{W, x_cs, x_rs, x_ns}}, Plane{{W, y_cs, y_rs, y_ns}}, eps, p0, p1)"
    source = f"""{_head(request)}
extern "C" __global__ void __launch_bounds__({threads}) groupnorm({", ".join(f"{'' if o == 'y' else 'const '}T* {o}" for o in present)},
    int C, int G, int H, int W, int x_cs, i64 x_rs, i64 x_ns, int y_cs, i64 y_rs, i64 y_ns, float eps, float p0, float p1) {{
  after_previous();
  const bool whole = aligned(x, {v} * sizeof(T)) && aligned(y, {v} * sizeof(T));
  if (whole && ((x_cs | x_rs | x_ns | y_cs | y_rs | y_ns) & {v - 1}) == 0) group_nhwc<{v}, {threads}>{call};
  else group_nhwc<1, {threads}>{call};
}}
"""
    side = [(Int32(i[f"{s}_cs"]), Int64(i[f"{s}_rs"]), Int64(i[f"{s}_ns"])) for s in ("x", "y")]
    args: tuple[Argument, ...] = (*(Pointer(o) for o in present), Int32(c), Int32(g), Int32(i["H"]), Int32(i["W"]), *side[0], *side[1], *_floats(request))
    empty = D.equal(D.mul(i["H"], i["W"]), 0)
    return [Kernel(source, "groupnorm", (D.select(empty, 0, D.mul(i["N"], g)), 1, 1), threads, args, pdl=overlapped(request))]


FAMILIES = {"groupnorm": groupnorm, "groupnorm_nhwc": groupnorm_nhwc}
