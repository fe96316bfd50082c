"""CUDA kernels for GroupNorm and InstanceNorm, plain and channels-last."""

from __future__ import annotations

from collections.abc import Callable

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import Dim, DimLike, factor

from ..common import axis_layout
from ..common.launch import known, overlapped, parameters, static, vector_width
from ..common.prelude import activation_source, prelude
from ..common.templates import template


def _head(request: Request) -> str:
    act = static(parameters(request)["act"], "activation")
    return (
        prelude(request.dtype)
        + activation_source(act)
        + template("common/base", "common/ragged_rows", "common/cluster", "norm/groupnorm")
    )


def _threads(elements: DimLike, v: int) -> int:
    """Threads of a block for a group of this many elements."""
    n = known(elements)
    wanted = 512 if n is None else n // (4 * v)
    return next((t for t in (32, 64, 128, 256, 512) if t >= wanted), 512)


#: Bytes of a plain group that a thread keeps in registers.
_KEPT = 128
#: Vectors of a thread (0: it reads a group again) and threads for plain groups of unknown size, the
#: first that hold one in registers; in clusters.
_SOME, _SOME_OF_CLUSTERS = ((2, 256), (4, 512), (8, 1024), (0, 512)), ((8, 512), (0, 512))


def _shares(request: Request, groups: DimLike, elements: DimLike) -> list[tuple[int, DimLike]]:
    """Blocks of a cluster for each group, and whether they are for the sizes of a run; more than
    one choice where the groups are not known.
    """
    share, many = axis_layout.clusters(request, groups, elements, factor(groups))
    found: list[tuple[int, DimLike]] = [(1, axis_layout.negated(many)), (share, many)]
    if share > 2 and isinstance(groups, Dim) and known(elements) is None:
        half, more = axis_layout.clusters(request, groups, elements, 2 * factor(groups))
        if half < share:
            more = D.mul(more, axis_layout.negated(many))
            found = [
                (1, D.product([axis_layout.negated(many), axis_layout.negated(more)])),
                (share, many),
                (half, more),
            ]
    return [(blocks, use) for blocks, use in found if use != 0]


def _kernels(
    request: Request,
    source: Callable[[int, int], str],
    groups: DimLike,
    elements: DimLike,
    v: int,
    args: tuple[Argument, ...],
) -> list[Kernel]:
    """`source` for so many threads and blocks a group: one block, or a cluster where that leaves
    most of the device idle.
    """
    threads, empty = _threads(elements, v), D.equal(elements, 0)
    shapes = [
        (threads if blocks == 1 else 512, blocks, use)
        for blocks, use in _shares(request, groups, elements)
    ]
    return [
        Kernel(source(t, b), "groupnorm", (D.select(empty, 0, D.mul(D.mul(groups, b), use)), 1, 1), t, args, cluster=b, pdl=overlapped(request))
        for t, b, use in shapes
    ]  # fmt: skip


def _weights(request: Request) -> tuple[list[str], dict[str, str]]:
    present: list[str] = [o for o in ("x", "gamma", "beta", "y") if o in request.operands]
    return present, {o: o if o in present else "nullptr" for o in ("x", "gamma", "beta", "y")}


def _floats(request: Request) -> tuple[Argument, ...]:
    return tuple(Float32(request.floats.get(k, 0.0)) for k in ("eps", "p0", "p1"))


def _plain_shapes(
    request: Request, groups: DimLike, elements: DimLike
) -> list[tuple[int, int, int, DimLike]]:
    """(vectors, threads, blocks, use) of the kernels that share plain groups: a block or a cluster
    for each.
    """
    v, n = 16 // request.dtype.size, known(elements)
    if n is None:
        shapes = list[tuple[int, int, int, DimLike]]()
        for blocks, rest in _shares(request, groups, elements):
            for k, t in _SOME if blocks == 1 else _SOME_OF_CLUSTERS:
                fits = axis_layout.up_to(elements, k * v * t * blocks) if k else 1
                shapes.append((k, t, blocks, D.mul(fits, rest)))
                rest = D.mul(axis_layout.negated(fits), rest)
        return shapes
    share, many = axis_layout.clusters(request, groups, elements, factor(groups))
    threads = next((t for t in (32, 64, 128, 256, 512) if 2 * t * v >= n), 1024)
    if share == 2 and n * request.dtype.size <= _KEPT * threads:
        share, many = 1, 0  # the exchange costs what the second block saves
    shapes = []
    for t, b, use in ((threads, 1, axis_layout.negated(many)), (512, share, many)):
        k = max(-(-n // (t * b * v)), 1)
        shapes.append((k if k * 16 <= _KEPT else 0, t, b, use))
    return shapes


def groupnorm(request: Request) -> list[Kernel]:
    i = parameters(request)
    c, g = static(i["C"], "channel count"), static(i["G"], "group count")
    v = 16 // request.dtype.size
    present, place = _weights(request)
    groups, elements = D.mul(i["B"], g), D.mul(i["inner"], c // g)
    args = (
        *(Pointer(o) for o in present),
        Int32(c),
        Int32(g),
        Int32(i["inner"]),
        *_floats(request),
    )
    kernels = []
    for k, threads, blocks, use in _plain_shapes(request, groups, elements):
        source = f"""{_head(request)}
extern "C" __global__ void __launch_bounds__({threads}) groupnorm({", ".join(f"{'' if o == 'y' else 'const '}T* {o}" for o in present)},
    int C, int G, int inner, float eps, float p0, float p1) {{
  after_previous();
  group_plain<{v}, {k}, {threads}, {blocks}>({place["x"]}, {place["gamma"]}, {place["beta"]}, y, C, G, inner, eps, p0, p1);
}}
"""
        grid = D.select(D.equal(elements, 0), 0, D.mul(D.mul(groups, blocks), use))
        if use != 0:
            kernels.append(
                Kernel(
                    source,
                    "groupnorm",
                    (grid, 1, 1),
                    threads,
                    args,
                    cluster=blocks,
                    pdl=overlapped(request),
                )
            )
    return kernels


def groupnorm_nhwc(request: Request) -> list[Kernel]:
    i = parameters(request)
    c, g = static(i["C"], "channel count"), static(i["G"], "group count")
    pitches = [i[f"{s}_{p}"] for s in ("x", "y") for p in ("cs", "rs", "ns")]
    v = vector_width(request.dtype, c // g, *(p for p in pitches if known(p) is not None))
    present, place = _weights(request)
    call = f"({place['x']}, {place['gamma']}, {place['beta']}, y, C, G, H, Plane{{W, x_cs, x_rs, x_ns}}, Plane{{W, y_cs, y_rs, y_ns}}, eps, p0, p1)"

    def source(threads: int, blocks: int) -> str:
        return f"""{_head(request)}
extern "C" __global__ void __launch_bounds__({threads}) groupnorm({", ".join(f"{'' if o == 'y' else 'const '}T* {o}" for o in present)},
    int C, int G, int H, int W, int x_cs, i64 x_rs, i64 x_ns, int y_cs, i64 y_rs, i64 y_ns, float eps, float p0, float p1) {{
  after_previous();
  const bool whole = aligned(x, {v} * sizeof(T)) && aligned(y, {v} * sizeof(T));
  if (whole && ((x_cs | x_rs | x_ns | y_cs | y_rs | y_ns) & {v - 1}) == 0) group_nhwc<{v}, {threads}, {blocks}>{call};
  else group_nhwc<1, {threads}, {blocks}>{call};
}}
"""

    side = [(Int32(i[f"{s}_cs"]), Int64(i[f"{s}_rs"]), Int64(i[f"{s}_ns"])) for s in ("x", "y")]
    args: tuple[Argument, ...] = (
        *(Pointer(o) for o in present),
        Int32(c),
        Int32(g),
        Int32(i["H"]),
        Int32(i["W"]),
        *side[0],
        *side[1],
        *_floats(request),
    )
    return _kernels(request, source, D.mul(i["N"], g), D.product([i["H"], i["W"], c // g]), v, args)


FAMILIES = {"groupnorm": groupnorm, "groupnorm_nhwc": groupnorm_nhwc}
