"""CUDA kernels over rows: LayerNorm and RMSNorm, rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Fault,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import axis_layout
from ..common.launch import blocks, known, overlapped, parameters, static, vector_width
from ..common.prelude import C_TYPES, prelude
from ..common.templates import template
from . import layernorm_short

#: Elements of a row that one thread keeps in registers.
_PER_THREAD = 32
#: A norm gives so many warps to a row of more than 96 vectors and so many elements where there are
#: at most this many rows for each multiprocessor: it is over sooner.
_WARPS, _FEW_ROWS, _FEW_LONG = 4, 2, 256
#: Threads of blocks from which on these are any number of warps; of the largest block of which a
#: multiprocessor should hold two.
_ODD, _TWO = 256, 768


def row_shape(request: Request, n: DimLike) -> tuple[int, int, int]:
    """(V, K, threads) of rows of n elements: K vectors of V elements in each thread's registers; K
    = 0 when n is symbolic or too long.
    """
    length, widest = known(n), 16 // request.dtype.size
    if length is None:
        return widest, 0, 256
    v = vector_width(request.dtype, length)
    vectors = -(-length // v)
    for threads in (32, 128, 256, 512, 1024):
        k = max(-(-vectors // threads), 1)
        if k * v <= (_PER_THREAD if threads in (32, 1024) else _PER_THREAD // 2):
            if threads >= _ODD and v > 1:  # no more warps than have something to do
                k = max(k, _PER_THREAD // 2 // v)
                threads = -(-vectors // (32 * k)) * 32
            return v, k, threads
    return v, 0, 1024


def _grid(rows: DimLike, threads: int) -> tuple[DimLike, int]:
    """Blocks and their threads: four rows a block when a warp has a row, else one."""
    return (D.ceildiv(rows, 4), 128) if threads == 32 else (rows, threads)


def layernorm(request: Request) -> list[Kernel]:
    summands = [o for o in ("x", "res", "xbias") if o in request.operands]
    place = "".join(
        f"    l.x[{k}] = {o}{'' if o == 'xbias' else ' + i64(row) * n'};\n"
        for k, o in enumerate(summands)
    )
    return _norm(
        request, parameters(request)["rows"], summands, (), place, len(summands), some=False
    )


def layernorm_sum(request: Request) -> list[Kernel]:
    i = parameters(request)
    pointers, sizes, rows = [], ["inner"], []
    for x, index in ((f"x{k}", f"i{k}") for k in range(4)):
        if x not in request.operands:
            continue
        at = f"b * {x}_o + i64(s - {x}_lo) * {x}_i"
        pointers.append(x)
        sizes += [f"{x}_{p}" for p in ("o", "i", "lo", "hi")]
        if index in request.operands:
            pointers.append(index)
            sizes += [f"{x}_n", f"{x}_ld"]
            row = f"table_row({x}, {index}, {at}, {x}_n, {x}_ld, fault)"
        else:
            row = f"{x} + {at}"
        whole = known(i[f"{x}_lo"]) == 0 and (
            i[f"{x}_hi"] is i["inner"] or i[f"{x}_hi"] == i["inner"]
        )
        rows.append(row if whole else f"s >= {x}_lo && s < {x}_hi ? {row} : nullptr")
    place = "    const int b = row / inner, s = row - b * inner;\n" + "".join(
        f"    l.x[{k}] = {r};\n" for k, r in enumerate(rows)
    )
    return _norm(
        request,
        D.mul(i["outer"], i["inner"]),
        pointers,
        sizes,
        place,
        len(rows),
        some=any("table_row" in r or "nullptr" in r for r in rows),
    )


@dataclass(frozen=True)
class _Body:
    """What a kernel over rows does: the call, with `place` and whether weights may be read early
    left open.
    """

    call: str
    block: int
    grid: DimLike
    cluster: int = 1
    each: DimLike = 1


def _norm(
    request: Request,
    rows: DimLike,
    sources: Sequence[str],
    sizes: Sequence[str],
    place: str,
    terms: int,
    *,
    some: bool,
) -> list[Kernel]:
    """`place`: statements that set the rows l.x[0..terms) of `row`, from the operands `sources` and
    the parameters `sizes`.
    """
    i = parameters(request)
    rms = bool(i["rms"])
    weights = [o for o in ("gamma", "beta") if o in request.operands and not (rms and o == "beta")]
    outputs = [o for o in ("y", "skip") if o in request.operands]
    places = {
        o: o if o in (*weights, *outputs) else "nullptr" for o in ("gamma", "beta", "y", "skip")
    }
    early = "true" if request.operands & {"gamma", "beta"} <= request.constant else "false"
    types = {
        o: f"const {C_TYPES[DType(static(i[f'{o}_dtype'], 'index type'))]}*"
        for o in sources
        if o[0] == "i"
    }
    signature = ", ".join(
        [f"{types.get(o, 'const T*')} {o}" for o in (*sources, *weights)]
        + [f"T* {o}" for o in outputs]
        + [f"{'i64' if _wide(s) else 'int'} {s}" for s in sizes]
    )
    kernels = []
    # no tests for null
    assumed = (
        f"__builtin_assume({' && '.join(present)});\n  "
        if (present := [o for o in places if o != "y" and places[o] == o])
        else ""
    )
    plus, fault = "1.f" if i["gamma_add"] else "0.f", ", u32* fault" if "fault" in place else ""
    operands = tuple(Pointer(o) for o in (*sources, *weights, *outputs))
    for body in _bodies(request, rows, _short_bodies(request, rows, sources, outputs)):
        args: tuple[Argument, ...] = (
            *operands, *((Int64 if _wide(s) else Int32)(i[s]) for s in sizes), Int32(rows), Int32(i["N"]), Int32(body.each), Float32(request.floats["eps"]),
            *([Fault()] if fault else []),
        )  # fmt: skip
        bounds = f"{body.block}{', 2' if 512 < body.block <= _TWO else ''}"
        source = f"""{prelude(request.dtype)}{template("common/base", "common/ragged_rows", "common/cluster", "norm/layernorm", "norm/layernorm_short")}
extern "C" __global__ void __launch_bounds__({bounds}) layernorm({signature}, int rows, int n, int each, float eps{fault}) {{
  {assumed}Norm<{terms}, {"true" if some else "false"}> l{{{{}}, {", ".join(places.values())}, n, {"true" if rms else "false"}, {plus}, eps}};
  const auto place = [&](auto& l, int row) {{
{place}  }};
  constexpr bool EARLY = {early};
  {body.call};
}}
"""
        kernels.append(
            Kernel(
                source,
                "layernorm",
                (body.grid, 1, 1),
                body.block,
                args,
                cluster=body.cluster,
                pdl=overlapped(request),
            )
        )
    return kernels


def _bodies(request: Request, rows: DimLike, short: Sequence[_Body]) -> list[_Body]:
    """`short`, a warp, a block or a cluster for each row."""
    n = parameters(request)["N"]
    v, k, threads = row_shape(request, n)
    few = (
        D.sub(1, D.less(request.sms * _FEW_ROWS, rows))
        if threads == 32 and k > 3 and (known(n) or 0) > _FEW_LONG
        else 0
    )
    shapes = [(k, threads, 1, D.sub(1, few))] if not short else []
    shapes.append((-(-k // _WARPS), 32 * _WARPS, 1, few))
    if k == 0:
        share, few = axis_layout.clusters(request, rows, n)
        shapes = [(0, threads, 1, D.sub(1, few)), (0, 512, share, few)]
    found = [replace(b, grid=D.mul(b.grid, D.sub(1, few))) for b in short]
    for parts, width, share, use in shapes:
        grid, block = _grid(rows, width)
        call = f"norm_rows<{v}, {parts}, {width}, {share}, {known(n) or 0}, EARLY>(l, rows, place)"
        found.append(_Body(call, block, D.product([grid, share, use]), share))
    return [b for b in found if b.grid != 0]


def _short_bodies(
    request: Request, rows: DimLike, sources: Sequence[str], outputs: Sequence[str]
) -> list[_Body]:
    """Some lanes of a warp for each row, where all are short."""
    n, found = known(parameters(request)["N"]), []
    inputs = sum((o[0] == "x" and o != "xbias") or o == "res" for o in sources)
    for s in layernorm_short.shapes(request, rows, inputs + len(outputs), len(outputs)):
        if s.each == 0:
            found.append(
                _Body(
                    f"norm_short<{s.v}, {s.k}, {s.lanes}, {s.threads}, {n}, EARLY>(l, rows, place)",
                    s.threads,
                    s.grid,
                )
            )
        else:
            rooms = f"{inputs}, {max(inputs, len(outputs))}, {axis_layout.SLABS}"
            found.append(
                _Body(
                    f"place(l, 0); norm_slabs<{s.k}, {s.lanes}, {rooms}, {s.threads}, {n}, EARLY>(l, rows, each)",
                    s.threads,
                    s.grid,
                    each=s.each,
                )
            )
    return found


def _wide(size: str) -> bool:
    """Whether a parameter counts elements of a tensor rather than rows."""
    return size.endswith(("_o", "_i", "_ld"))


def rope(request: Request) -> list[Kernel]:
    i = parameters(request)
    flags = ", ".join("true" if i[k] else "false" for k in ("interleaved", "full"))
    sizes, strides = (
        ("S", "H", "D", "rot"),
        ("x_b", "x_s", "x_h", "y_b", "y_s", "y_h", "c_b", "c_s"),
    )
    signature = ", ".join([f"int {s}" for s in sizes] + [f"i64 {s}" for s in strides])
    source = f"""{prelude(request.dtype)}{template("common/base", "common/ragged_rows", "common/cluster", "norm/layernorm")}
extern "C" __global__ void __launch_bounds__(256) rope(const T* x, const T* cosines, const T* sines, T* y, int B, {signature}) {{
  after_previous();
  rope_pairs<{flags}>(x, cosines, sines, y, B, Rope{{{", ".join(sizes + strides)}}});
}}
"""
    work = i["D"] - D.floordiv(i["rot"], 2)
    grid = (blocks(D.product([i["B"], i["S"], i["H"], work]), 256, request.sms * 8), 1, 1)
    args: tuple[Argument, ...] = (
        *(Pointer(o) for o in ("x", "cos", "sin", "y")), Int32(i["B"]), *(Int32(i[s]) for s in sizes), *(Int64(i[s]) for s in strides),
    )  # fmt: skip
    return [Kernel(source, "rope", grid, 256, args, pdl=overlapped(request))]


FAMILIES = {"layernorm": layernorm, "layernorm_sum": layernorm_sum, "rope": rope}
