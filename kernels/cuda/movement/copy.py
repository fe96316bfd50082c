"""CUDA kernels for data movement: strided copies and transpositions, fills, layout changes."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.compiler.lower.axes import merge_dims
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor
from tracea_onnx.plan.kernel_families import COPIES

from ..common.launch import WORDS, about, blocks, known, overlapped, parameters, reciprocal, static
from ..common.prelude import C_TYPES, prelude
from ..common.templates import template
from . import transpose

#: Images of at most this many channels change layout a pixel at a time.
_NARROW = 16
#: Where a row has as many elements, a warp keeps to it if they do not follow each other, and a lane
#: takes at most so many of so many bytes at a time.
_LONG, _LANES = 64, {1: 16, 2: 8, 4: 4, 8: 4}
#: Up to as many elements a copy takes no longer than its launch and a few loads that wait for each
#: other: a thread has up to _SINGLE single elements, and half of the device room for the next
#: kernel's blocks.
_SMALL, _SINGLE = 1 << 19, 4
#: The same where rows of the target are not rows of the source, so that what a block reads together
#: lies far apart.
_SCATTERED = 1 << 15
#: Up to as many elements of one of several copies a thread has a single one, where rows have
#: _SHORT_ROW elements or more, or fewer.
_LONG_ROWS, _SHORT_ROWS, _SHORT_ROW = 1 << 18, 1 << 19, 128
#: Parts that lie side by side in rows: the words that they are made of, how many of these a thread
#: has at most, by their size, and up to how many of short ones are no pieces of 16 bytes.
_WORDS = WORDS | {16: "Words"}
_EACH = {1: 4, 2: 4, 4: 4, 8: 4, 16: 2}
_FEW = {1: 1 << 19, 2: 1 << 16, 4: 1 << 16}


def _head(lane: int = 4) -> str:
    limits = f"constexpr int LONG = {_LONG}, SINGLE = {_SINGLE}, LANE_WORDS = {lane};\nconstexpr u32 SMALL = {_SMALL};\n"
    return (
        prelude(DType.F32)
        + template(
            "common/base", "common/vector_io", "movement/transpose", "movement/transpose_tiled"
        )
        + limits
        + template("movement/copy")
    )


def _grid(units: DimLike, request: Request) -> tuple[DimLike, DimLike, DimLike]:
    return (blocks(units, 256, request.sms * 32), 1, 1)


def _spread(units: DimLike, request: Request, each: int) -> tuple[DimLike, DimLike, DimLike]:
    """A wave of threads, or as many as have `each` units."""
    return (blocks(units, 256, D.maximum(request.sms * 8, D.ceildiv(units, 256 * each))), 1, 1)


def _pieces(n: DimLike, elem: int) -> DimLike:
    """How many aligned pieces of 16 bytes hold n elements, wherever they start."""
    return D.add(D.ceildiv(n, 16 // elem), 1)


def _is_small(total: DimLike) -> DimLike:
    return D.less(total, _SMALL + 1)


def _lane_words(row: DimLike, elem: int) -> int:
    """How many elements of a long row a lane takes at a time: as many as leave few lanes idle."""
    most, n = _LANES[elem], known(row)
    return most if not n or n < _LONG else -(-n // (32 * -(-n // (32 * most))))


def _units(
    n: Sequence[DimLike], xs: Sequence[DimLike], ys: Sequence[DimLike], elem: int
) -> DimLike:
    """Threads for `copy_strided` where there is much to copy."""
    total, rows = D.product(n), D.product(n[:-1])
    if known(ys[-1]) != 1:
        return total
    run = all(a == D.mul(m, b) for a, m, b in zip(ys, n[1:], ys[1:], strict=False))
    wide = _pieces(total, elem) if run else D.mul(rows, _pieces(n[-1], elem))
    if known(xs[-1]) not in (0, 1):
        wide = D.select(
            D.less(n[-1], _LONG),
            D.ceildiv(total, _SINGLE),
            D.mul(rows, D.mul(D.ceildiv(n[-1], 32 * _lane_words(n[-1], elem)), 32)),
        )
    elif elem == 8:
        wide = D.ceildiv(total, _SINGLE)
    return D.mul(wide, D.minimum(total, 1))


def strided_copy(
    request: Request,
    elem: int,
    shape: Sequence[DimLike],
    xs: Sequence[DimLike],
    ys: Sequence[DimLike],
) -> list[Kernel]:
    """y[sum i_d * ys_d] = x[sum i_d * xs_d] for elements of `elem` bytes."""
    rows = merge_dims(shape, [xs, ys]) or [(1, [1, 1])]
    n, xs, ys = [r[0] for r in rows], [r[1][0] for r in rows], [r[1][1] for r in rows]
    rank, word, wide = len(rows), WORDS[elem], 16 // elem
    few, turned = known(_is_small(D.product(n))), transpose.turned_dims(n, xs, ys)
    if few and known(D.less(D.product(n), _SCATTERED + 1)):
        turned = None
    tiled = (
        transpose.short_lines(elem, n, xs, ys, turned, request.sms)
        if known(D.less(_SCATTERED, D.product(n)))
        else None
    )
    pers: list[DimLike] = []
    if tiled is not None:
        body = f"  {tiled.call};"
        grid: tuple[DimLike, DimLike, DimLike] = (tiled.blocks, 1, 1)
    elif turned is None:
        arrays = "".join(
            f"  const {c} {a}[{rank}] = {{{', '.join(f'{a}{k}' for k in range(rank))}}};\n"
            for c, a in (("int", "n"), ("i64", "xs"), ("i64", "ys"))
        )
        if rank > 1:
            pers = [
                *map(reciprocal, n[1:]),
                reciprocal(D.floordiv(n[-1], wide)),
                reciprocal(D.floordiv(n[-1], max(4 // elem, 1))),
            ]
        arrays += f"  const u32 pers[{rank}] = {{{', '.join(['0', *(f'per{k}' for k in range(rank - 1))])}}};\n"
        body = f"{arrays}  copy_strided<{word}, {rank}, {-1 if few is None else few}>(x, y, n, xs, ys, pers, {f'per{rank - 1}, per{rank}' if pers else '0, 0'});"
        even = (
            all(factor(s) % wide == 0 for s in (*xs[:-1], *ys[:-1], *(n[-1:] if rank > 1 else ())))
            and known(xs[-1]) == known(ys[-1]) == 1
        )
        way = None if even and rank > 1 and request.unaligned else _way(elem, rows)
        if way:
            body = f"{arrays}  {way};"
        if even and not request.unaligned:
            grid = _spread(D.ceildiv(D.product(n), wide), request, 4 if rank == 1 else 2)
            inner, per = (
                (f"u32(n[{rank - 1}]) / {wide}", f"per{rank - 1}") if rank > 1 else ("0", "0")
            )
            if known(D.less(D.product(n), 1 << 31)):
                body = f"{arrays}  copy_wide<{4 if rank == 1 else 2}, 16>(x, y, product_of(n) / {wide}, n, {inner}, pers, {per}, xs, ys);"
        elif way and "copy_pieces" in way:
            grid = (
                D.ceildiv(
                    D.add(_ahead(D.product(n), elem), D.mul(D.add(D.product(n[:-1]), 1), wide)), 256
                ),
                1,
                1,
            )
        elif rank == 1 and known(xs[-1]) == known(ys[-1]) == 1:
            grid = _spread(D.mul(_pieces(n[0], elem), D.minimum(n[0], 1)), request, 2)
        else:
            grid = (
                D.select(
                    _is_small(D.product(n)),
                    blocks(D.product(n), 256, request.sms * 4),
                    _grid(_units(n, xs, ys, elem), request)[0],
                ),
                1,
                1,
            )
    else:
        call, count = transpose.whole_tiles(elem, n, turned, request.sms)
        body, grid = f"  {call};", (count, 1, 1)
    signature = ", ".join(
        [f"int n{k}" for k in range(rank)]
        + [f"i64 {s}{k}" for s in ("xs", "ys") for k in range(rank)]
        + [f"u32 per{k}" for k in range(len(pers))]
    )
    source = f"""{_head(_lane_words(n[-1], elem) if turned is None else _LANES[elem])}
extern "C" __global__ void __launch_bounds__(256) copy(const {word}* x, {word}* y, {signature}) {{
  next_may_start();
{body}
  wait_for_previous();
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("x"),
        Pointer("y"),
        *map(Int32, n),
        *map(Int64, xs),
        *map(Int64, ys),
        *map(Int32, pers),
    )
    return [Kernel(source, "copy", grid, 256, args, pdl=overlapped(request))]


def _ahead(total: DimLike, elem: int) -> DimLike:
    """`ahead` of copy.cuh."""
    return D.mul(D.ceildiv(_pieces(total, elem), 256), 256)


def _way(elem: int, rows: Sequence[tuple[DimLike, Sequence[DimLike]]]) -> str | None:
    """The one of its ways to move elements that `copy_strided` would take, where that is known and
    elements are no 16 bytes.
    """
    n, xs, ys = [r[0] for r in rows], [r[1][0] for r in rows], [r[1][1] for r in rows]
    few, last, x, y, word = (
        known(_is_small(D.product(n))),
        known(n[-1]),
        known(xs[-1]),
        known(ys[-1]),
        WORDS[elem],
    )
    rank, all_, places = len(n), "product_of(n)", "n, pers, xs, ys"
    run = all(a == D.mul(m, b) for a, m, b in zip(ys, n[1:], ys[1:], strict=False)) and y == 1
    if (
        few is None
        or last is None
        or x is None
        or y is None
        or not known(D.less(D.product(n), 1 << 31))
    ):
        return None
    if rank == 1 and x == y == 1:
        return f"copy_run(x, y, {all_})"
    if few:
        return None
    if last >= _LONG and (y != 1 or x not in (0, 1)):
        return f"copy_lanes<{word}, {rank}>(x, y, {all_}, {places})"
    if y == 1 and (elem == 8 or x not in (0, 1)):
        form = f"{_SINGLE}, {elem}{', true' * (run and x == 1)}"
        return f"copy_wide<{form}>(x, y, {all_}, n, n[{rank - 1}], pers, pers[{rank - 1}], xs, ys)"
    short = run and x == 1 and last * elem < 32
    if run and x == 1 and not short:
        return f"copy_pieces<{word}, {rank}>(x, y, {all_}, {places})"
    if short and elem < 4 and all(factor(s) * elem % 4 == 0 for s in (*xs[:-1], last)):
        whole = f"copy_wide<{_SINGLE}, 4, true>(x, y, {all_} / {4 // elem}, n, n[{rank - 1}] / {4 // elem}, pers, per{rank}, xs, ys)"
        return f"if (aligned(x, 4) && aligned(y, 4)) {whole};\n  else copy_flat<{word}, {rank}>(x, y, {all_}, n, pers, xs)"
    if run:
        return f"copy_flat<{word}, {rank}>(x, y, {all_}, n, pers, xs)"
    return f"copy_rows<{word}, {rank}>(x, y, {all_}, {places})" if y == 1 else None


def copy(request: Request) -> list[Kernel]:
    i = parameters(request)
    shape, xs, ys = ([i[f"{p}{k}"] for k in range(6)] for p in "nxy")
    return strided_copy(request, static(i["elem"], "element size"), shape, xs, ys)


def copies(request: Request) -> list[Kernel]:
    i = parameters(request)
    elem = static(i["elem"], "element size")
    word, wide = WORDS[elem], 16 // elem
    parts = [k for k in range(COPIES) if f"x{k}" in request.operands]
    fields = (
        "n0",
        "n1",
        "n2",
        "single",
        "units",
        "per_n1",
        "per",
        "x0",
        "x1",
        "x2",
        "y0",
        "y1",
        "at",
    )
    ends: list[DimLike] = [0]
    values: list[dict[str, DimLike]] = []
    for k in parts:
        v = {n: i[f"p{k}_{n}"] for n in fields if n[0] in "nxya"}
        total, even = (
            D.product([v["n0"], v["n1"], v["n2"]]),
            known(v["x2"]) == 1 and all(factor(v[n]) % wide == 0 for n in ("n2", "y0", "y1", "at")),
        )
        v["single"] = (
            0
            if even
            else D.less(total, D.select(D.less(v["n2"], _SHORT_ROW), _SHORT_ROWS, _LONG_ROWS) + 1)
        )
        v["units"] = D.select(v["single"], v["n2"], _pieces(v["n2"], elem))
        v["per"], v["per_n1"] = reciprocal(v["units"]), reciprocal(v["n1"])
        values.append(v)
        units = D.mul(D.product([v["n0"], v["n1"], v["units"]]), D.minimum(v["n2"], 1))
        ends.append(D.add(ends[-1], D.ceildiv(units, 256)))
    beside, use = _beside(request, values)
    if use == 1:
        return beside
    others = beside if use != 0 else []
    ends[-1] = D.mul(ends[-1], D.sub(1, use))
    choice, first = "", "0"
    for k in parts:
        arguments = ", ".join(f"p{k}_{n}" for n in fields[:-1])
        condition, other = (f"if (blockIdx.x < end{k}) ", "  else ") if k != parts[-1] else ("", "")
        choice += (
            f"{condition}part = {{x{k}, y + p{k}_at, blockIdx.x - {first}, {arguments}}};\n{other}"
        )
        first = f"end{k}"
    ints, longs = fields[:7], fields[7:]
    signature = [f"const {word}* x{k}" for k in parts]
    signature += [f"{'int' if n in ints else 'i64'} p{k}_{n}" for k in parts for n in fields] + [
        f"u32 end{k}" for k in parts
    ]
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) copies({word}* y, {", ".join(signature)}) {{
  next_may_start();
  Part<{word}> part;
  {choice}  copy_part(part);
  wait_for_previous();
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("y"), *(Pointer(f"x{k}") for k in parts), *((Int64 if n in longs else Int32)(v[n]) for v in values for n in fields), *map(Int32, ends[1:]),
    )  # fmt: skip
    return [*others, Kernel(source, "copies", (ends[-1], 1, 1), 256, args, pdl=overlapped(request))]


def _beside(request: Request, values: Sequence[dict[str, DimLike]]) -> tuple[list[Kernel], DimLike]:
    """One run of rows that hold a row of each part, if that is what they are, and whether (0 or 1)
    there are not too many elements for it.
    """
    elem, rows, ends = (
        static(parameters(request)["elem"], "element size"),
        values[0]["n1"],
        list[DimLike](),
    )
    for v in values:
        if (
            known(v["n0"]) != 1
            or v["n1"] != rows
            or v["at"] != (ends[-1] if ends else 0)
            or known(v["x2"]) != 1
        ):
            return [], 0
        ends.append(D.add(v["at"], v["n2"]))
    if any(v["y1"] != ends[-1] for v in values):
        return [], 0
    # words of so many elements, whole ones of every part
    sizes = [factor(v[k]) for v in values for k in ("n2", "x1")]
    held = (
        1
        if request.unaligned
        else next(n for n in (16, 8, 4, 2, 1) if n * elem <= 16 and all(s % n == 0 for s in sizes))
    )
    size, ends = elem * held, [D.floordiv(d, held) for d in ends]
    word, wide, width, count = _WORDS[size], 16 // size, ends[-1], range(len(values))
    total = D.mul(rows, width)
    use, most = D.less(total, 1 << 31), _EACH[size]
    each = max(min(-(-about(total, most * request.sms * 256) // (request.sms * 256)), most), 1)
    pieces = _ahead(total, size)
    if (
        size in _FEW
        and known(D.less(total, _FEW[size] + 1)) != 1
        and known(D.less(width, 2 * wide * len(values))) == 0
    ):
        call, units = (
            "copy_beside_pieces",
            D.add(pieces, D.mul(D.add(D.mul(rows, len(values)), 1), wide)),
        )
    else:
        call, units = f"copy_beside<{each}>", D.ceildiv(total, each)
    signature = ", ".join(
        [f"const {word}* x{k}" for k in count]
        + [f"i64 pitch{k}" for k in count]
        + [f"int end{k}" for k in count]
    )
    filled = ", ".join(
        f"{{{', '.join(f'{name}{k}' for k in count)}}}" for name in ("x", "pitch", "end")
    )
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) copies({word}* y, {signature}, u32 total, u32 per) {{
  next_may_start();
  {call}(Beside<{word}, {len(values)}>{{{filled}}}, y, total, per);
  wait_for_previous();
}}
"""
    pointers = [Pointer(f"x{k}") for k in range(COPIES) if f"x{k}" in request.operands]
    pitches = [Int64(D.floordiv(v["x1"], held)) for v in values]
    args: tuple[Argument, ...] = (
        Pointer("y"),
        *pointers,
        *pitches,
        *map(Int32, [*ends, total, reciprocal(width)]),
    )
    grid = D.product([D.ceildiv(units, 256), use, D.minimum(total, 1)])
    return [Kernel(source, "copies", (grid, 1, 1), 256, args, pdl=overlapped(request))], use


def copy_nhwc(request: Request) -> list[Kernel]:
    i = parameters(request)
    shape = [i["N"], i["H"], i["W"], i["C"]]
    xs, ys = ([i[f"{p}_ns"], i[f"{p}_rs"], i[f"{p}_cs"], 1] for p in ("x", "y"))
    return strided_copy(request, request.dtype.size, shape, xs, ys)


def fill(request: Request) -> list[Kernel]:
    elem, count = static(parameters(request)["elem"], "element size"), parameters(request)["count"]
    word = WORDS[elem]
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) fill_kernel({word}* y, i64 count, i64 value) {{ after_previous(); fill<{word}>(y, count, value); }}
"""
    return [
        Kernel(
            source,
            "fill_kernel",
            _grid(count, request),
            256,
            (Pointer("y"), Int64(count), Int64(parameters(request)["value"])),
            pdl=overlapped(request),
        )
    ]


def store_ints(request: Request) -> list[Kernel]:
    count = static(parameters(request)["count"], "element count")
    dtype = DType(static(parameters(request)["dtype"], "element type"))
    source = f"""{_head()}
extern "C" __global__ void store_ints({C_TYPES[dtype]}* y, {", ".join(f"i64 v{k}" for k in range(count))}) {{
  after_previous();
  if (threadIdx.x == 0) {{ {" ".join(f"y[{k}] = v{k};" for k in range(count))} }}
}}
"""
    if count == 0:
        return []
    return [
        Kernel(
            source,
            "store_ints",
            (1, 1, 1),
            32,
            (Pointer("y"), *(Int64(parameters(request)[f"v{k}"]) for k in range(count))),
            pdl=overlapped(request),
        )
    ]


def range_(request: Request) -> list[Kernel]:
    dtype, count = (
        DType(static(parameters(request)["dtype"], "element type")),
        parameters(request)["count"],
    )
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) range({C_TYPES[dtype]}* y, i64 count, i64 start, i64 delta) {{
  after_previous();
  for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < count; k += i64(gridDim.x) * blockDim.x) y[k] = {C_TYPES[dtype]}(start + k * delta);
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("y"),
        Int64(count),
        Int64(parameters(request)["start"]),
        Int64(parameters(request)["delta"]),
    )
    return [Kernel(source, "range", _grid(count, request), 256, args, pdl=overlapped(request))]


def _change_layout(request: Request, to_nhwc: bool) -> list[Kernel]:
    i, side = parameters(request), "y" if to_nhwc else "x"
    word, flag = WORDS[request.dtype.size], "true" if to_nhwc else "false"
    channels, plane = known(i["C"]), D.mul(i["H"], i["W"])
    if (channels is None or channels > _NARROW) and known(
        _is_small(D.product([i["N"], i["C"], plane]))
    ) == 1:
        planar = {"N": D.mul(i["C"], plane), "C": plane, "H": i["W"], "W": 1}
        packed = {"N": i[f"{side}_ns"], "C": 1, "H": i[f"{side}_rs"], "W": i[f"{side}_cs"]}
        order, (source_, target) = (
            ("NHWC", (planar, packed)) if to_nhwc else ("NCHW", (packed, planar))
        )
        return strided_copy(
            request,
            request.dtype.size,
            [i[d] for d in order],
            [source_[d] for d in order],
            [target[d] for d in order],
        )
    if channels is not None and channels <= _NARROW:
        body, grid = (
            f"change_narrow<{flag}, {channels}>(x, y, Image{{C, H, W, cs, rs, ns}}, N);",
            _grid(D.mul(i["N"], plane), request),
        )
        if channels == 0:
            return []
    else:
        body = f"change_layout<{flag}>(x, y, Image{{C, H, W, cs, rs, ns}});"
        grid = (D.product([i["N"], D.ceildiv(plane, 64), D.ceildiv(i["C"], 64)]), 1, 1)
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) layout(const {word}* x, {word}* y, int N, int C, int H, int W, int cs, i64 rs, i64 ns) {{
  next_may_start();
  {body}
  wait_for_previous();
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("x"), Pointer("y"), *(Int32(i[k]) for k in ("N", "C", "H", "W")), Int32(i[f"{side}_cs"]), Int64(i[f"{side}_rs"]), Int64(i[f"{side}_ns"]),
    )  # fmt: skip
    return [Kernel(source, "layout", grid, 256, args, pdl=overlapped(request))]


def nchw_to_nhwc(request: Request) -> list[Kernel]:
    return _change_layout(request, to_nhwc=True)


def nhwc_to_nchw(request: Request) -> list[Kernel]:
    return _change_layout(request, to_nhwc=False)


def zero_border(request: Request) -> list[Kernel]:
    i, word = parameters(request), WORDS[request.dtype.size]
    names = ("N", "H", "W", "PT", "PL", "PB", "PR")
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) border({word}* y, {", ".join(f"int {n}" for n in names)}, int cs, i64 rs, i64 ns) {{
  after_previous();
  zero_border<{word}>(y, {", ".join(names)}, cs, rs, ns);
}}
"""
    total = D.product([i["N"], i["H"] + i["PT"] + i["PB"], i["W"] + i["PL"] + i["PR"], i["y_cs"]])
    args: tuple[Argument, ...] = (
        Pointer("y"),
        *(Int32(i[n]) for n in names),
        Int32(i["y_cs"]),
        Int64(i["y_rs"]),
        Int64(i["y_ns"]),
    )
    return [Kernel(source, "border", _grid(total, request), 256, args, pdl=overlapped(request))]


FAMILIES = {
    "copy": copy, "copies": copies, "copy_nhwc": copy_nhwc, "fill": fill, "store_ints": store_ints, "range": range_,
    "nchw_to_nhwc": nchw_to_nhwc, "nhwc_to_nchw": nhwc_to_nchw, "zero_border": zero_border,
}  # fmt: skip
