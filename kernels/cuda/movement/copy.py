"""Strided copies and transposes, concatenation, fills, changes of layout."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.compiler.lower.axes import merge_dims
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor
from tracea_onnx.plan.kernel_families import COPIES

from ..common.epilogue import Parameter
from ..common.instantiate import constexprs, instance, ints, invoke, longs, pointer, unsigned
from ..common.launch import WORDS, blocks, known, parameters, reciprocal, size_hint, static
from ..common.prelude import C_TYPES
from . import transpose

#: Most channels of an image whose layout is changed with a thread per pixel.
_NARROW = 16
#: Least elements of a long row, which warps copy if it is no run; most elements per lane in an
#: iteration, by element size.
_LONG, _LANES = 64, {1: 16, 2: 8, 4: 4, 8: 4}
#: Up to _SMALL elements, latency bounds a copy: a thread moves up to _SINGLE single elements, and
#: the grid leaves half of the device to the next kernel's CTAs.
_SMALL, _SINGLE = 1 << 19, 4
#: The same limit where rows of y are no rows of x, so that a CTA's loads are scattered.
_SCATTERED = 1 << 15
#: One of several copies: most elements with a thread each, for rows of _SHORT_ROW elements or more,
#: and for shorter ones.
_LONG_ROWS, _SHORT_ROWS, _SHORT_ROW = 1 << 18, 1 << 19, 128
#: Concatenation: word types by size; most words per thread by size; most words below 4 bytes
#: without 16-byte pieces.
_WORDS = WORDS | {16: "Words"}
_EACH = {1: 4, 2: 4, 4: 4, 8: 4, 16: 2}
_FEW = {1: 1 << 19, 2: 1 << 16, 4: 1 << 16}


def _instance(
    request: Request,
    symbol: str,
    given: list[Parameter],
    grid: DimLike | tuple[DimLike, DimLike, DimLike],
    body: str,
    *,
    lane: int = 4,
    threads: int = 256,
) -> Kernel:
    """A kernel of copy.cuh. lane: elements of a long row per lane and iteration."""
    limits = constexprs({"LONG": _LONG, "SINGLE": _SINGLE, "LANE_WORDS": lane})
    limits += f"constexpr u32 SMALL = {_SMALL};\n"
    return instance(
        request, symbol, "movement/copy", given, grid, threads, body, dtype=DType.F32, before=limits
    )


def _moving(body: str) -> str:
    """Statements of a kernel whose template waits after computing addresses."""
    return f"pdl_launch_dependents();\n{body}\n  pdl_wait();"


def _grid(units: DimLike, request: Request) -> tuple[DimLike, DimLike, DimLike]:
    return (blocks(units, 256, request.sms * 32), 1, 1)


def _spread(units: DimLike, request: Request, each: int) -> tuple[DimLike, DimLike, DimLike]:
    """A grid of one wave of threads, or of as many as have `each` units."""
    return (blocks(units, 256, D.maximum(request.sms * 8, D.ceildiv(units, 256 * each))), 1, 1)


def _pieces(n: DimLike, elem: int) -> DimLike:
    """Most 16-byte pieces that hold n elements at any alignment."""
    return D.add(D.ceildiv(n, 16 // elem), 1)


def _is_small(total: DimLike) -> DimLike:
    return D.less(total, _SMALL + 1)


def _lane_words(row: DimLike, elem: int) -> int:
    """Elements of a long row per lane and iteration, such that few lanes idle."""
    most, n = _LANES[elem], known(row)
    return most if not n or n < _LONG else -(-n // (32 * -(-n // (32 * most))))


def _units(
    n: Sequence[DimLike], xs: Sequence[DimLike], ys: Sequence[DimLike], elem: int
) -> DimLike:
    """Threads for `copy_strided` of large copies."""
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
    few, transposed = known(_is_small(D.product(n))), transpose.transposed_dims(n, xs, ys)
    if few and known(D.less(D.product(n), _SCATTERED + 1)):
        transposed = None
    tiled = (
        transpose.short_lines(elem, n, xs, ys, transposed, request.sms)
        if known(D.less(_SCATTERED, D.product(n)))
        else None
    )
    pers: list[DimLike] = []
    if tiled is not None:
        body = f"  {tiled.call};"
        grid: tuple[DimLike, DimLike, DimLike] = (tiled.blocks, 1, 1)
    elif transposed is None:
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
        listed = ", ".join(["0", *(f"per{k}" for k in range(rank - 1))])
        arrays += f"  const u32 pers[{rank}] = {{{listed}}};\n"
        forms = (word, rank, -1 if few is None else few)
        wide_pers = f"per{rank - 1}, per{rank}" if pers else "0, 0"
        body = f"{arrays}  " + invoke("copy_strided", forms, f"x, y, n, xs, ys, pers, {wide_pers}")
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
                listed = f"x, y, product_of(n) / {wide}, n, {inner}, pers, {per}, xs, ys"
                body = f"{arrays}  " + invoke("copy_wide", (4 if rank == 1 else 2, 16), listed)
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
        call, count = transpose.whole_tiles(elem, n, transposed, request.sms)
        body, grid = f"  {call};", (count, 1, 1)
    given = [pointer(f"const {word}", "x"), pointer(word, "y")]
    given += ints({f"n{k}": d for k, d in enumerate(n)})
    given += longs({f"{a}{k}": d for a, ds in (("xs", xs), ("ys", ys)) for k, d in enumerate(ds)})
    given += unsigned({f"per{k}": d for k, d in enumerate(pers)})
    lane = _lane_words(n[-1], elem) if transposed is None else _LANES[elem]
    return [_instance(request, "copy", given, grid, _moving(body), lane=lane)]


def _ahead(total: DimLike, elem: int) -> DimLike:
    """`ahead` of copy.cuh."""
    return D.mul(D.ceildiv(_pieces(total, elem), 256), 256)


def _way(elem: int, rows: Sequence[tuple[DimLike, Sequence[DimLike]]]) -> str | None:
    """The template that `copy_strided` would choose, where that is known in advance and elements
    have less than 16 bytes.
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
        each = 4 // elem
        given = f"x, y, {all_} / {each}, n, n[{rank - 1}] / {each}, pers, per{rank}, xs, ys"
        whole = invoke("copy_wide", (_SINGLE, 4, True), given)
        flat = f"copy_flat<{word}, {rank}>(x, y, {all_}, n, pers, xs)"
        return f"if (aligned(x, 4) && aligned(y, 4)) {whole}\n  else {flat}"
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
    beside, use = _concatenation(request, values)
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
    given = [pointer(word, "y"), *(pointer(f"const {word}", f"x{k}") for k in parts)]
    for k, v in zip(parts, values, strict=True):
        given += ints({f"p{k}_{n}": v[n] for n in fields[:7]})
        given += longs({f"p{k}_{n}": v[n] for n in fields[7:]})
    given += unsigned({f"end{k}": d for k, d in zip(parts, ends[1:], strict=True)})
    body = _moving(f"  Part<{word}> part;\n  {choice}  copy_part(part);")
    return [*others, _instance(request, "copies", given, ends[-1], body)]


def _concatenation(
    request: Request, values: Sequence[dict[str, DimLike]]
) -> tuple[list[Kernel], DimLike]:
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
    # elements of a word; every part consists of whole words
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
    each = max(min(-(-size_hint(total, most * request.sms * 256) // (request.sms * 256)), most), 1)
    pieces = _ahead(total, size)
    if (
        size in _FEW
        and known(D.less(total, _FEW[size] + 1)) != 1
        and known(D.less(width, 2 * wide * len(values))) == 0
    ):
        call, units = (
            "concatenate_pieces",
            D.add(pieces, D.mul(D.add(D.mul(rows, len(values)), 1), wide)),
        )
    else:
        call, units = f"concatenate<{each}>", D.ceildiv(total, each)
    filled = ", ".join(
        f"{{{', '.join(f'{name}{k}' for k in count)}}}" for name in ("x", "pitch", "end")
    )
    parts = [k for k in range(COPIES) if f"x{k}" in request.operands]
    given = [pointer(word, "y")]
    given += [pointer(f"const {word}", f"x{p}", f"x{k}") for k, p in enumerate(parts)]
    given += longs({f"pitch{k}": D.floordiv(v["x1"], held) for k, v in enumerate(values)})
    given += ints({f"end{k}": d for k, d in enumerate(ends)})
    given += unsigned({"total": total, "per": reciprocal(width)})
    body = f"  {call}(Concatenation<{word}, {len(values)}>{{{filled}}}, y, total, per);"
    grid = D.product([D.ceildiv(units, 256), use, D.minimum(total, 1)])
    return [_instance(request, "copies", given, grid, _moving(body))], use


def copy_nhwc(request: Request) -> list[Kernel]:
    i = parameters(request)
    shape = [i["N"], i["H"], i["W"], i["C"]]
    xs, ys = ([i[f"{p}_ns"], i[f"{p}_rs"], i[f"{p}_cs"], 1] for p in ("x", "y"))
    return strided_copy(request, request.dtype.size, shape, xs, ys)


def fill(request: Request) -> list[Kernel]:
    i = parameters(request)
    word = WORDS[static(i["elem"], "element size")]
    given = [pointer(word, "y"), *longs({"count": i["count"], "value": i["value"]})]
    body = f"pdl_begin();\n  fill<{word}>(y, count, value);"
    return [_instance(request, "fill_kernel", given, _grid(i["count"], request), body)]


def store_ints(request: Request) -> list[Kernel]:
    i = parameters(request)
    count = static(i["count"], "element count")
    if count == 0:
        return []
    ctype = C_TYPES[DType(static(i["dtype"], "element type"))]
    stores = " ".join(f"y[{k}] = v{k};" for k in range(count))
    given = [pointer(ctype, "y"), *longs({f"v{k}": i[f"v{k}"] for k in range(count)})]
    body = f"pdl_begin();\n  if (threadIdx.x == 0) {{ {stores} }}"
    return [_instance(request, "store_ints", given, 1, body, threads=32)]


def range_(request: Request) -> list[Kernel]:
    i = parameters(request)
    ctype = C_TYPES[DType(static(i["dtype"], "element type"))]
    given = [pointer(ctype, "y"), *longs({n: i[n] for n in ("count", "start", "delta")})]
    body = "pdl_begin();\n  count_up(y, count, start, delta);"
    return [_instance(request, "range", given, _grid(i["count"], request), body)]


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
    given = [
        pointer(f"const {word}", "x"),
        pointer(word, "y"),
        *ints({k: i[k] for k in ("N", "C", "H", "W")}),
        *_pitch(request, side),
    ]
    return [_instance(request, "layout", given, grid, _moving(f"  {body}"))]


def _pitch(request: Request, side: str) -> list[Parameter]:
    i = parameters(request)
    return [*ints({"cs": i[f"{side}_cs"]}), *longs({p: i[f"{side}_{p}"] for p in ("rs", "ns")})]


def nchw_to_nhwc(request: Request) -> list[Kernel]:
    return _change_layout(request, to_nhwc=True)


def nhwc_to_nchw(request: Request) -> list[Kernel]:
    return _change_layout(request, to_nhwc=False)


def zero_border(request: Request) -> list[Kernel]:
    i, word = parameters(request), WORDS[request.dtype.size]
    names = ("N", "H", "W", "PT", "PL", "PB", "PR")
    total = D.product([i["N"], i["H"] + i["PT"] + i["PB"], i["W"] + i["PL"] + i["PR"], i["y_cs"]])
    given = [pointer(word, "y"), *ints({n: i[n] for n in names}), *_pitch(request, "y")]
    body = f"pdl_begin();\n  zero_border<{word}>(y, {', '.join(names)}, cs, rs, ns);"
    return [_instance(request, "border", given, _grid(total, request), body)]


FAMILIES = {
    "copy": copy,
    "copies": copies,
    "copy_nhwc": copy_nhwc,
    "fill": fill,
    "store_ints": store_ints,
    "range": range_,
    "nchw_to_nhwc": nchw_to_nhwc,
    "nhwc_to_nchw": nhwc_to_nchw,
    "zero_border": zero_border,
}
