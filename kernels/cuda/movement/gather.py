"""Gathers of rows and of elements."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import FaultWord, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor

from ..common.epilogue import Parameter
from ..common.instantiate import instance, ints, invoke, pointer, unsigned
from ..common.launch import WORDS, blocks, known, parameters, reciprocal, size_hint, static
from ..common.prelude import C_TYPES

#: Most elements of misaligned rows without 16-byte pieces.
_SMALL = 1 << 19
#: Most words of a row per thread and iteration; most words of a row that single threads copy in a
#: loop.
_WORDS, _LEAST = 6, 32
#: Loads of a thread in flight for rows of one element.
_ROWS = 8
#: Rows of single elements (no larger word divides them) that neighbouring lanes copy: (least
#: elements of a row, most elements in all) by element size. From _LONG elements on a row has more
#: lanes; elements per lane and iteration.
_ODD = {1: (64, 1 << 21), 2: (64, 1 << 19), 4: (64, 1 << 30), 8: (16, 1 << 30)}
_LONG, _ODD_EACH = 64, 4
#: Least threads per row for ROUND of gather.cuh, where more rows are gathered than x has.
_ROUND = 2048
#: (CTAs per SM with two elements per thread, multiple): from so many CTAs on, a thread has
#: `multiple` times two elements.
_AGAIN = ((64, 4), (8, 2))


#: First arguments of the templates.
_GIVEN = "x, idx, y, outer, n, inner, count, "


def _gather(
    request: Request,
    symbol: str,
    sizes: list[Parameter],
    grid: tuple[DimLike, DimLike, DimLike],
    body: str,
) -> list[Kernel]:
    i = parameters(request)
    word = WORDS[static(i["elem"], "element size")]
    index = C_TYPES[DType(static(i["idx_dtype"], "index type"))]
    given = [
        pointer(f"const {word}", "x"),
        pointer(f"const {index}", "idx"),
        pointer(word, "y"),
        *ints({k: i[k] for k in ("outer", "n", "inner", "count")}),
        *sizes,
        ("u32*", "fault", FaultWord()),
    ]
    return [
        instance(
            request,
            symbol,
            "movement/gather",
            given,
            grid,
            256,
            f"pdl_launch_dependents();\n  {body}\n  pdl_wait();",
            dtype=DType.F32,
            before=f"constexpr u32 SMALL = {_SMALL};\n",
        )
    ]


def _lanes(words: int, total: DimLike, sms: int) -> tuple[int, int, int]:
    """(words per lane and iteration, lanes of a row, iterations) for rows of `words` words."""
    lanes = next((n for n in (1, 2, 4, 8, 16) if n >= words), 32)
    most = max(min(-(-size_hint(total, _WORDS * sms * 8 * 256) // (sms * 8 * 256)), _WORDS), 1)
    parts = -(-words // (lanes * most))
    return -(-words // (lanes * parts)), lanes, parts


def _odd_lanes(row: int, elem: int) -> tuple[int, int, int]:
    """The same for rows of single elements."""
    lanes = 32 if row >= _LONG and elem > 1 else 16
    parts = -(-row // (lanes * _ODD_EACH))
    return -(-row // (lanes * parts)), lanes, parts


def _across(count: int | None) -> int:
    """Threads of a CTA along j, such that few idle."""
    return (
        64
        if count is None
        else min(
            (256, 128, 64, 32, 16, 8, 4, 2, 1),
            key=lambda n: (-(-count // n) * n * (1 + 16 / n), -n),
        )
    )


def gather(request: Request) -> list[Kernel]:
    i = parameters(request)
    elem, inner = static(i["elem"], "element size"), i["inner"]
    word, index = WORDS[elem], C_TYPES[DType(static(i["idx_dtype"], "index type"))]
    width = next(
        w
        for w in (16, 4, elem)
        if w >= elem
        and (w == elem or (factor(inner) * elem % w == 0 and not {"x", "y"} & request.unaligned))
    )
    total, wide = D.product([i["outer"], i["count"], inner]), 16 // elem
    rows, words = D.mul(i["outer"], i["count"]), known(D.floordiv(inner, width // elem))
    pers: list[DimLike]
    wave = request.sms * 8 * 256
    if known(inner) == 1 and known(i["outer"]) != 1:
        across = _across(known(i["count"]))
        tiles, rounds = D.ceildiv(i["count"], across), D.ceildiv(i["outer"], 256 // across)
        # half of an SM's threads: the next kernel has room, and all CTAs run in one wave
        parts = D.minimum(
            rounds,
            D.maximum(D.floordiv(request.sms * 4, D.maximum(tiles, 1)), D.ceildiv(rounds, _ROWS)),
        )
        most = known(D.ceildiv(rounds, D.maximum(parts, 1))) or _ROWS
        body, pers = (
            invoke(
                "gather_axis", (across, min(most, _ROWS), word), "x, idx, y, outer, n, count, fault"
            ),
            [],
        )
        grid: tuple[DimLike, DimLike, DimLike] = (D.mul(tiles, parts), 1, 1)
    elif (
        width == elem
        and (known(inner) or 0) >= _ODD[elem][0]
        and known(D.less(total, _ODD[elem][1]))
    ):
        each, lanes, parts = _odd_lanes(static(inner, "row"), elem)
        body, pers = (
            invoke("gather_lanes", (elem, each, lanes, parts, False, word), _GIVEN + "per0, fault"),
            [],
        )
        grid = (D.ceildiv(D.mul(rows, parts * lanes), 256), 1, 1)
    elif (
        width > elem
        and words
        and (words > _LEAST or known(D.less(D.mul(rows, words), wave + 1)) == 1)
    ):
        each, lanes, parts = _lanes(words, D.floordiv(total, width // elem), request.sms)
        turn = parts * lanes >= _ROUND and known(D.less(i["n"], i["count"])) == 1
        body, pers = (
            invoke("gather_lanes", (width, each, lanes, parts, turn, word), _GIVEN + "per0, fault"),
            [],
        )
        grid = (
            D.mul(rows, -(-parts * lanes // 256))
            if turn
            else D.ceildiv(D.mul(rows, parts * lanes), 256),
            1,
            1,
        )
    elif width > elem:  # one wave of threads, a word per iteration
        body, pers = (
            invoke("gather_words", (width, word), _GIVEN + "per0, per1, fault"),
            [D.floordiv(inner, width // elem)],
        )
        grid = (blocks(D.floordiv(total, width // elem), 256, request.sms * 8), 1, 1)
    else:  # 16-byte pieces where rows are long enough and many
        body = invoke("gather", (word, index), _GIVEN + "per0, per1, per2, per3, fault")
        pers = [inner, D.floordiv(inner, max(4 // elem, 1)), D.floordiv(inner, wide)]
        few = D.select(D.less(inner, wide), 1, D.less(total, _SMALL + 1)) if elem < 8 else 1
        spread = blocks(total, 256, D.maximum(request.sms * 8, D.ceildiv(total, 1024)))
        grid = (
            D.select(few, spread, blocks(D.add(D.ceildiv(total, wide), 1), 256, request.sms * 32)),
            1,
            1,
        )
    sizes = unsigned({f"per{k}": reciprocal(d) for k, d in enumerate((*pers, i["count"]))})
    return _gather(request, "gather_kernel", sizes, grid, body)


def _side_by_side(total: DimLike, sms: int) -> tuple[int, int]:
    """(consecutive elements of a vector, vectors) per thread."""
    count = size_hint(total, -1)
    if count < 0:
        return 2, 2
    return (
        (1, 1)
        if count < sms * 384
        else (2, next((times for least, times in _AGAIN if count >= sms * 512 * least), 1))
    )


def gather_elements(request: Request) -> list[Kernel]:
    i = parameters(request)
    total, all_ = (D.product([i["outer"], i[k], i["inner"]]) for k in ("count", "n"))
    few = all(known(D.less(d, 1 << 31)) == 1 for d in (total, all_))
    wide, each = _side_by_side(total, request.sms)
    if {"idx", "y"} & request.unaligned:
        wide, each = 1, wide * each
    call = invoke("gather_elements", (wide, each, few), _GIVEN + "per, per_count, fault")
    sizes = unsigned({"per": reciprocal(i["inner"]), "per_count": reciprocal(i["count"])})
    grid = (D.ceildiv(total, 256 * wide * each), 1, 1)
    return _gather(request, "gather_elements_kernel", sizes, grid, call)


FAMILIES = {"gather": gather, "gather_elements": gather_elements}
