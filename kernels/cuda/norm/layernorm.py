"""LayerNorm and RMSNorm over contiguous rows, and rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import FaultWord, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common import axis_layout
from ..common.epilogue import Parameter
from ..common.instantiate import floats, instance, ints, longs, pointer
from ..common.launch import blocks, known, parameters, static, vector_width
from ..common.prelude import C_TYPES

#: Short rows (part of a warp each): most elements; most vectors per lane, and with all 32 lanes.
_LONGEST, _VECTORS, _MOST = 1024, 8, 16
#: Most elements of a short row per lane: for many rows of one tensor; else (more loads in flight).
_ELEMENTS, _FEWER = 24, 8
#: Approximate instructions per element, per step of the sum over lanes, and per row.
_ELEMENT, _STEP, _REST = 8, 4, 40
#: Threads of a CTA for short rows; from _MANY threads per SM on (launching CTAs takes time).
_THREADS, _LARGE, _MANY = 128, 256, 512
#: Short rows of odd length in 16-bit types are staged: least length, tensors, and bytes per SM.
_STAGED_ROW, _STAGED_TENSORS, _STAGED_BYTES = 16, 4, 16384
#: Most elements of a row in the registers of a thread.
_PER_THREAD = 32
#: Rows of more than 3 vectors per lane and _FEW_LONG elements get _WARPS warps where there are at
#: most _FEW_ROWS rows per SM.
_WARPS, _FEW_ROWS, _FEW_LONG = 4, 2, 256
#: From _ODD threads on, CTAs may have any number of warps. Up to _TWO threads, two CTAs fit an SM.
_ODD, _TWO = 256, 768


def row_shape(request: Request, n: DimLike) -> tuple[int, int, int]:
    """(V, K, threads) for rows of n elements: each thread has K vectors of V elements in registers;
    K = 0 where n is symbolic or too large.
    """
    length, widest = known(n), 16 // request.dtype.size
    if length is None:
        return widest, 0, 256
    v = vector_width(request.dtype, length)
    vectors = -(-length // v)
    for threads in (32, 128, 256, 512, 1024):
        k = max(-(-vectors // threads), 1)
        if k * v <= (_PER_THREAD if threads in (32, 1024) else _PER_THREAD // 2):
            if threads >= _ODD and v > 1:  # no idle warps
                k = max(k, _PER_THREAD // 2 // v)
                threads = -(-vectors // (32 * k)) * 32
            return v, k, threads
    return v, 0, 1024


def _grid(rows: DimLike, threads: int) -> tuple[DimLike, int]:
    """(CTAs, threads of a CTA): four rows per CTA where a warp has a row, else one."""
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
    """A launch over rows: `call` of a template of layernorm.cuh."""

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
    """place: statements that set the terms l.x[0..terms) of `row`, from operands `sources` and
    parameters `sizes`. some: a term may have no row.
    """
    i = parameters(request)
    rms = bool(i["rms"])
    weights = [o for o in ("gamma", "beta") if o in request.operands and not (rms and o == "beta")]
    outputs = [o for o in ("y", "skip", "q") if o in request.operands]
    places = [o if o in (*weights, *outputs) else "nullptr" for o in ("gamma", "beta", "y", "skip")]
    kind, more = "", ""
    quantised: list[Parameter] = []
    if "q" in outputs:
        dtype = C_TYPES[DType(static(i["q_dtype"], "type of integers"))]
        kind, more = f", {_cpp('y' in outputs)}, {dtype}", ", q, q_scale, q_zero"
        step = floats({"q_scale": request.floats["q_scale"]})
        quantised = [pointer(dtype, "q"), *step, *ints({"q_zero": i["q_zero"]})]
    early = _cpp(request.operands & {"gamma", "beta"} <= request.constant)
    types = {
        o: f"const {C_TYPES[DType(static(i[f'{o}_dtype'], 'index type'))]}"
        for o in sources
        if o[0] == "i"
    }
    operands = [pointer(types.get(o, "const T"), o) for o in (*sources, *weights)]
    operands += [pointer("T", o) for o in outputs if o != "q"]
    for size in sizes:  # strides in elements, or numbers of rows
        operands += (longs if size.endswith(("_o", "_i", "_ld")) else ints)({size: i[size]})
    fault: list[Parameter] = [("u32*", "fault", FaultWord())] if "fault" in place else []
    # the compiler drops tests for null
    present = [o for o in ("gamma", "beta", "skip", "q") if o in (*places, *outputs)]
    assumed = f"__builtin_assume({' && '.join(present)});\n  " if present else ""
    plus = "1.f" if i["gamma_add"] else "0.f"
    return [
        instance(
            request,
            "layernorm",
            "norm/layernorm",
            [
                *operands,
                *ints({"rows": rows, "n": i["N"], "each": body.each}),
                *floats({"eps": request.floats["eps"]}),
                *quantised,
                *fault,
            ],
            body.grid,
            body.block,
            f"{assumed}Norm<{terms}, {_cpp(some)}{kind}> l{{{{}}, {', '.join(places)}, n, "
            f"{_cpp(rms)}, {plus}, eps{more}}};\n"
            f"  const auto place = [&](auto& l, int row) {{\n{place}  }};\n"
            f"  constexpr bool EARLY = {early};\n  {body.call};",
            resident=2 if 512 < body.block <= _TWO else 0,
            cluster=body.cluster,
        )
        for body in _bodies(request, rows, _short(request, rows, sources, outputs))
    ]


def _cpp(flag: bool) -> str:
    return str(flag).lower()


def _bodies(request: Request, rows: DimLike, short: Sequence[_Body]) -> list[_Body]:
    """`short`, and launches with a warp, a CTA or a cluster per row."""
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


def _short(
    request: Request, rows: DimLike, sources: Sequence[str], outputs: Sequence[str]
) -> list[_Body]:
    """Launches for short rows: part of a warp per row, or rows staged in shared memory; none where
    rows are long or of symbolic length.
    """
    length = known(parameters(request)["N"])
    if length is None or not 0 < length <= _LONGEST:
        return []
    v, size = _width(request, length), request.dtype.size
    few = _divided(length, v, _FEWER)
    if few is None:
        return []
    inputs = sum((o[0] == "x" and o != "xbias") or o == "res" for o in sources)
    many = D.less(request.sms * _MANY, D.mul(rows, few[1]))
    staged: DimLike = 0
    many_tensors = inputs + len(outputs) >= _STAGED_TENSORS and length >= _STAGED_ROW
    if request.family == "layernorm" and v * size == 2 and many_tensors:
        staged = D.less(request.sms * _STAGED_BYTES, D.mul(rows, length * size))
    large = few if inputs > 1 else _divided(length, v, _ELEMENTS) or few
    found = []
    for (k, lanes), threads, use in (
        (few, _THREADS, axis_layout.negated(many)),
        (large, _LARGE, many),
    ):
        call = f"norm_subwarp<{v}, {k}, {lanes}, {threads}, {length}, EARLY>(l, rows, place)"
        grid = D.ceildiv(rows, threads // lanes)
        grid = D.product([grid, use, axis_layout.negated(staged)])
        found.append(_Body(call, threads, grid))
    if staged != 0:
        each, grid = axis_layout.staged_grid(request, request.dtype, rows, length)
        k, lanes = few
        rooms = f"{inputs}, {max(inputs, len(outputs))}, {axis_layout.STAGE_BYTES}"
        threads = axis_layout.STAGED_THREADS
        call = f"norm_staged<{k}, {lanes}, {rooms}, {threads}, {length}, EARLY>(l, rows, each)"
        found.append(_Body(f"place(l, 0); {call}", threads, D.mul(grid, staged), each=each))
    return [b for b in found if b.grid != 0]


def _divided(n: int, v: int, most: int) -> tuple[int, int] | None:
    """(vectors per lane, lanes) for rows of n elements with the fewest instructions; a lane has at
    most `most` elements where 32 lanes allow it.
    """
    vectors = -(-n // v)
    found = [(-(-vectors // lanes), lanes) for lanes in (1, 2, 4, 8, 16, 32)]
    fit = [
        (k, lanes)
        for k, lanes in found
        if k <= _VECTORS and k * v <= most and (lanes >= 4 or k == 1 or k * v <= 3)
    ]
    if not fit:
        return found[-1] if found[-1][0] <= _MOST else None
    return min(fit, key=lambda f: f[1] * (f[0] * v * _ELEMENT + f[1].bit_length() * _STEP + _REST))


def _width(request: Request, n: int) -> int:
    """Largest vector (in elements) to which all rows are aligned, and of which they consist."""
    i = parameters(request)
    if request.unaligned & request.operands:
        return 1
    pitches = (
        [
            i[f"x{k}_{p}"]
            for k in range(4)
            for p in (("ld",) if f"i{k}" in request.operands else ("o", "i"))
        ]
        if request.family == "layernorm_sum"
        else []
    )
    return vector_width(request.dtype, n, *(multiple_of(p) for p in pitches))


def rope(request: Request) -> list[Kernel]:
    i = parameters(request)
    sizes, strides = (
        ("S", "H", "D", "rot"),
        ("x_b", "x_s", "x_h", "y_b", "y_s", "y_h", "c_b", "c_s"),
    )
    given = [
        pointer("const T", "x"),
        pointer("const T", "cos", "cosines"),
        pointer("const T", "sin", "sines"),
        pointer("T", "y"),
        *ints({s: i[s] for s in ("B", *sizes)}),
        *longs({s: i[s] for s in strides}),
    ]
    flags = ", ".join(_cpp(bool(i[k])) for k in ("interleaved", "full"))
    rope = f"Rope{{{', '.join(sizes + strides)}}}"
    body = f"pdl_begin();\n  rope_pairs<{flags}>(x, cosines, sines, y, B, {rope});"
    work = D.product([i["B"], i["S"], i["H"], i["D"] - D.floordiv(i["rot"], 2)])
    grid = blocks(work, 256, request.sms * 8)
    return [instance(request, "rope", "norm/layernorm", given, grid, 256, body)]


FAMILIES = {
    "layernorm": layernorm,
    "layernorm_quantised": layernorm,
    "layernorm_sum": layernorm_sum,
    "rope": rope,
}
