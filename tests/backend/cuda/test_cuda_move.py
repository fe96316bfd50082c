"""CUDA data movement: every kernel compiles without a GPU; the emitters see transpositions, and
empty work launches nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import pytest

from tests.backend.cuda.cuda_requests import compile_kernels, request, running
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
ARCHITECTURES = (80, 89, 90)


def _copy(
    elem: int,
    shape: Sequence[DimLike],
    xs: Sequence[DimLike],
    ys: Sequence[DimLike],
    arch: int = 90,
) -> Request:
    ints: dict[str, DimLike] = {"elem": elem}
    for name, values, fill in (("n", shape, 1), ("x", xs, 0), ("y", ys, 0)):
        ints |= {f"{name}{k}": v for k, v in enumerate([*[fill] * (6 - len(values)), *values])}
    return request("copy", DType.F32, ints, operands="xy", arch=arch)


def _copies(elem: int, parts: Sequence[dict[str, DimLike]], arch: int = 90) -> Request:
    ints: dict[str, DimLike] = {
        "elem": elem,
        **{f"p{k}_{name}": v for k, part in enumerate(parts) for name, v in part.items()},
    }
    return request(
        "copies", DType.F32, ints, operands=[*(f"x{k}" for k in range(len(parts))), "y"], arch=arch
    )


def _beside(rows: DimLike, *widths: DimLike) -> list[dict[str, DimLike]]:
    """Matrices of such widths side by side."""
    parts: list[dict[str, DimLike]] = []
    at: DimLike = 0
    for w in widths:
        parts.append({"n0": 1, "n1": rows, "n2": w, "x1": w, "x2": 1, "at": at})
        at = at + w
    return [p | {"y1": at} for p in parts]


def _image(family: str, dtype: DType, c: int, arch: int) -> Request:
    sides = {"nchw_to_nhwc": "y", "nhwc_to_nchw": "x", "copy_nhwc": "xy"}[family]
    pitches = {
        f"{s}_{p}": v for s in sides for p, v in (("cs", 128), ("rs", 128 * 6), ("ns", 128 * 30))
    }
    return request(
        family, dtype, {"N": 2, "C": c, "H": 5, "W": 6, **pitches}, operands="xy", arch=arch
    )


def cases() -> Iterator[tuple[str, Request]]:
    for elem, arch in ((1, 80), (2, 89), (4, 90), (8, 80)):
        yield f"run {elem}", _copy(elem, [1009], [1], [1], arch)
        yield f"transpose {elem}", _copy(elem, [300, 100, 70], [7000, 1, 100], [7000, 70, 1], arch)
        yield (
            f"six dims {elem}",
            _copy(
                elem, [2, 3, 4, 5, 6, 7], [1, 2, 6, 24, 120, 720], [2520, 840, 210, 42, 7, 1], arch
            ),
        )
        yield f"slice {elem}", _copy(elem, [20, 33], [101, 1], [33, 1], arch)
        yield f"copies {elem}", _copies(elem, _beside(21, 17, symbol("n"), 53), arch)
        yield (
            f"fill {elem}",
            request(
                "fill",
                DType.F32,
                {"elem": elem, "count": 100, "value": -1},
                operands="y",
                arch=arch,
            ),
        )
        for index in (DType.I64, DType.I32):
            ints = {
                "elem": elem,
                "outer": 2,
                "n": 30,
                "inner": 64,
                "count": 5,
                "idx_dtype": int(index),
            }
            for family in ("gather", "gather_elements"):
                yield (
                    f"{family} {elem} by {index.name}",
                    request(family, DType.F32, ints, operands=("x", "idx", "y"), arch=arch),
                )
    for (dtype, arch), c in ((p, c) for p in ((DType.F32, 80), (DType.F16, 90)) for c in (3, 100)):
        for family in ("nchw_to_nhwc", "nhwc_to_nchw", "copy_nhwc"):
            yield f"{family} {dtype.name} {c}", _image(family, dtype, c, arch)
    border = {
        "N": 2,
        "H": 3,
        "W": 4,
        "PT": 1,
        "PL": 1,
        "PB": 1,
        "PR": 1,
        "y_cs": 8,
        "y_rs": 48,
        "y_ns": 240,
    }
    yield "zero_border", request("zero_border", DType.F16, border, operands="y", arch=89)
    for mode, elem, last in (
        (0, 1, (5, 5, 0)),
        (1, 2, (16, 16, 0)),
        (2, 4, (symbol("m"), symbol("n"), symbol("p"))),
        (3, 8, (7, 12, 2)),
    ):
        # elements of x, of y, of y before those of x, strides
        rows = [(2, 2, 0, 99, 999), (9, 11, 1, 16, 16), (*last, 1, 1)]
        sizes = {
            f"{c}{k + 2}": d
            for k, row in enumerate(rows)
            for c, d in zip("mnpxy", row, strict=True)
        }
        unused: dict[str, DimLike] = {f"{c}{k}": int(c in "mn") for c in "mnpxy" for k in (0, 1)}
        yield (
            f"pad {mode}",
            request(
                "pad",
                DType.F32,
                {"elem": elem, "mode": mode, "value": -1, **unused, **sizes},
                operands="xy",
                arch=80,
            ),
        )
    for dtype in (DType.I64, DType.I32, DType.F32):
        yield (
            f"range {dtype.name}",
            request(
                "range",
                DType.F32,
                {"count": 9, "start": 1, "delta": 2, "dtype": int(dtype)},
                operands="y",
                arch=89,
            ),
        )
    stored: dict[str, DimLike] = {"count": 2, "dtype": int(DType.I64), "v0": symbol("n"), "v1": 3}
    yield "store_ints", request("store_ints", DType.F32, stored, operands="y", arch=80)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", [pytest.param(r, id=f"{n} sm_{r.arch}") for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


def test_a_transposition_goes_through_tiles() -> None:
    (k,) = cuda.emit(_copy(2, [400, 100, 70], [7000, 1, 100], [7000, 70, 1]))
    assert (
        "copy_transposed<u16, 32, 128>(x, y, Side<1>{{n2}, {xs2}}, Side<1>{{n1}, {ys1}}" in k.source
        and k.grid[0] == 400 * 3 * 1
    )
    n, m = symbol("n"), symbol("m")
    (k,) = cuda.emit(_copy(2, [n, m], [1, n], [m, 1]))
    assert (
        "copy_transposed<u16, 64, 64>(x, y, Side<1>{{n1}" in k.source
        and evaluate(k.grid[0], {"n": 65, "m": 64}) == 2
    )


def _permuted(elem: int, shape: Sequence[int], order: Sequence[int]) -> Kernel:
    strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    n = [shape[k] for k in order]
    k: Kernel
    (k,) = cuda.emit(
        _copy(elem, n, [strides[d] for d in order], [math.prod(n[k + 1 :]) for k in range(len(n))])
    )
    return k


def test_short_lines_are_turned_several_matrices_at_a_time() -> None:
    for elem, shape, order, form, blocks in (
        (2, (27, 26, 11, 24, 16), (1, 0, 2, 4, 3), "5, 24, 16, 1", 1545),
        (4, (79, 34, 11, 8), (1, 0, 3, 2), "11, 11, 8, 1", 245),
        (4, (88, 26, 120, 3), (1, 2, 0, 3), "1, 18, 18, 3", 5 * 174),
        (8, (35, 6, 57, 27, 45), (1, 3, 2, 0, 4), "1, 6, 7, 45", 6 * 57 * 6 * 4),
        (2, (24, 6, 24, 4, 13, 16), (3, 0, 2, 4, 5, 1), "1, 6, 208, 1", 24 * 24 * 4),
    ):  # fmt: skip
        k = _permuted(elem, shape, order)
        assert f"copy_tiles<u{8 * elem}, {form}>" in k.source and k.grid[0] == blocks
    # long rows, few elements
    for k in (
        _permuted(2, (267, 128, 59), (1, 0, 2)),
        _permuted(4, (24, 15, 115), (1, 0, 2)),
        _permuted(4, (64, 24, 3, 14), (1, 0, 3, 2)),
    ):
        assert "copy_tiles" not in k.source.split('extern "C"')[1]


@pytest.mark.parametrize("shape", [(400_000, 3), (3, 400_000), (150, 150)])
def test_narrow_and_small_transpositions_do_not(shape: tuple[int, int]) -> None:
    (k,) = cuda.emit(_copy(4, list(shape), [1, shape[0]], [shape[1], 1]))
    assert not {"copy_transposed", "copy_tiles"} & set(
        re.findall(r"\w+", k.source.split('extern "C"')[1])
    )


@pytest.mark.parametrize(
    ("elem", "shape", "form"),
    [
        (4, (1, 2048, 2048), (64, 64)), (8, (1, 509, 509), (32, 32)),
        (1, (1, 24, 419_328), (128, 32)), (1, (920, 55, 47), (64, 64)),
        (4, (280, 16, 264), (128, 16)),
    ],
)  # fmt: skip
def test_few_elements_leave_tiles_empty(
    elem: int, shape: tuple[int, int, int], form: tuple[int, int]
) -> None:
    count, width, height = shape
    (k,) = cuda.emit(_copy(elem, shape, [width * height, 1, width], [width * height, height, 1]))
    assert f"copy_transposed<u{8 * elem}, {form[0]}, {form[1]}>" in k.source and k.grid[
        0
    ] == count * -(-height // form[0]) * -(-width // form[1])


def test_short_dims_that_follow_each_other_make_a_tile() -> None:
    xs = [17 * 13 * 11 * 28, 13 * 11 * 28, 11 * 28, 28, 1]  # of 19 x 17 x 13 x 11 x 28
    order = [4, 3, 0, 1, 2]
    n = [(19, 17, 13, 11, 28)[k] for k in order]
    (k,) = cuda.emit(
        _copy(2, n, [xs[j] for j in order], [11 * 19 * 17 * 13, 19 * 17 * 13, 17 * 13, 13, 1])
    )
    assert "(x, y, Side<1>{{n2}" in k.source and "Side<2>{{n0, n1}" in k.source


def test_a_small_change_of_layout_is_a_copy() -> None:
    sizes: dict[str, DimLike] = {
        "N": symbol("n"),
        "C": 131,
        "H": 29,
        "W": 31,
        "y_cs": 132,
        "y_rs": 132 * 31,
        "y_ns": 132 * 31 * 29,
    }
    for n, name in ((1, "copy"), (5, "layout")):
        for size in (n, symbol("n")):
            (k,) = running(
                cuda.emit(request("nchw_to_nhwc", DType.F32, sizes | {"N": size}, operands="xy")),
                n=n,
            )
            assert k.symbol == name


@pytest.mark.parametrize(
    ("elem", "xs", "ys", "pieces"),
    [
        # one run of 16-byte pieces, and elements where two rows share one
        (2, [70, 1], [61, 1], -(-(9000 * 61 // 8 + 2) // 256) * 256 + 9001 * 8),
        (2, [70, 1], [70, 1], 9000 * 9),  # runs of 9 pieces
        (8, [1, 0], [122, 2], 9000 * 61),  # elements
    ],
)
def test_a_thread_makes_16_bytes_of_a_run_or_a_few_elements(
    elem: int, xs: list[DimLike], ys: list[DimLike], pieces: int
) -> None:
    n = symbol("n")
    kernels = cuda.emit(_copy(elem, [n, 61], xs, ys))
    assert not running(kernels, n=0)
    for m, blocks in ((1, 1), (9, 3), (8000, 132 * 4), (9000, -(-pieces // 256))):
        (k,) = running(kernels, n=m)
        assert evaluate(k.grid[0], {"n": m}) == blocks


def test_whole_vectors_of_a_row() -> None:
    n = symbol("n")
    kernels = cuda.emit(_copy(2, [n, 64], [192, 1], [64, 1]))
    assert not running(kernels, n=0)
    assert [
        [evaluate(k.grid[0], {"n": m}) for k in running(kernels, n=m)] for m in (1, 1000, 1 << 18)
    ] == [[1], [32], [(1 << 18) * 8 // 512]]


def test_a_warp_keeps_to_a_long_row_of_steps() -> None:
    (k,) = cuda.emit(_copy(4, [2000, 500], [1001, 2], [500, 1]))
    assert k.grid[0] == 2000 * 4 * 32 // 256


def _gather(inner: int, count: DimLike, rows: int = 0) -> Kernel:
    ints: dict[str, DimLike] = {
        "elem": 2,
        "outer": 1,
        "n": 9,
        "inner": inner,
        "count": count,
        "idx_dtype": 7,
    }
    k: Kernel
    (k,) = running(
        cuda.emit(request("gather", DType.F32, ints, operands=("x", "idx", "y"))), n=rows
    )
    return k


def test_a_gathered_row_is_taken_in_the_widest_words() -> None:
    for inner, count, form in (
        (768, 64, "16, 1, 32, 3"), (768, 8192, "16, 3, 32, 1"), (768, symbol("n"), "16, 3, 32, 1"),
        (48, 9, "16, 1, 8, 1"),
        (770, 64, "4, 1, 32, 13"), (770, 4093, "4, 5, 32, 3"),
    ):  # fmt: skip
        k, (lanes, parts) = _gather(inner, count, 8192), map(int, form.split(", ")[2:])
        assert f"gather_lanes<{form}, false, u16>" in k.source and evaluate(
            k.grid[0], {"n": 8192}
        ) == -(-evaluate(count, {"n": 8192}) * lanes * parts // 256)
    k = _gather(771, 64)
    assert "gather_lanes<2, 4, 32, 7, false, u16>" in k.source and k.grid[0] == 64 * 7 * 32 // 256
    assert evaluate(_gather(61, 64).grid[0], {}) == -(-64 * 61 // 256)


def test_long_gathered_rows_are_taken_a_piece_of_each_after_the_other() -> None:
    k = _gather(881_664, 40)
    assert "gather_lanes<16, 6, 32, 574, true, u16>" in k.source and k.grid[0] == 40 * 72
    assert ", false, u16>" in _gather(881_664, 9).source


def test_gathered_rows_of_odd_lengths_are_read_by_lanes() -> None:
    for elem, inner, form, blocks in (
        (8, 29, "8, 2, 16, 1", 2466 * 48 // 16),
        (4, 829, "4, 4, 32, 7", 2466 * 48 * 7 // 8),
    ):
        ints = {"elem": elem, "outer": 48, "n": 99, "inner": inner, "count": 2466, "idx_dtype": 7}
        (k,) = cuda.emit(request("gather", DType.F32, ints, operands=("x", "idx", "y")))
        assert f"gather_lanes<{form}, false, u{8 * elem}>" in k.source and k.grid[0] == blocks


def test_short_gathered_rows_are_a_wave_of_words() -> None:
    for count in (100_003, symbol("n")):
        k = _gather(64, count, 100_003)
        assert (
            "gather_words<16, u16>" in k.source and evaluate(k.grid[0], {"n": 100_003}) == 132 * 8
        )


def test_gathered_columns_have_the_threads_that_they_need() -> None:
    for outer, n, count, form, blocks in (
        (4584, 48, 1, "1, 1", 18),
        (4350, 10, 128, "128, 5", 528),
        (53_015, 565, 47, "64, 8", 1657),
        (0, 5, 7, "8, 8", 0),
    ):
        ints = {"elem": 4, "outer": outer, "n": n, "inner": 1, "count": count, "idx_dtype": 7}
        (k,) = cuda.emit(request("gather", DType.F32, ints, operands=("x", "idx", "y")))
        assert f"gather_axis<{form}, u32>" in k.source and k.grid[0] == blocks


def test_threads_gather_more_elements_where_there_are_many() -> None:
    for outer, form, blocks in (
        (1, "1, 1", 77),
        (24, "2, 1", 920),
        (71, "2, 2", 1360),
        (710, "2, 4", 6799),
    ):
        ints = {"elem": 4, "outer": outer, "n": 40, "inner": 185, "count": 106, "idx_dtype": 7}
        (k,) = cuda.emit(request("gather_elements", DType.F32, ints, operands=("x", "idx", "y")))
        assert f"gather_elements<{form}, true>" in k.source and k.grid[0] == blocks
    ints["n"] = 1 << 20
    (k,) = cuda.emit(
        request("gather_elements", DType.F32, ints, operands=("x", "idx", "y"), unaligned=("y",))
    )
    assert "gather_elements<1, 8, false>" in k.source


def test_odd_rows_of_a_slice_are_pieces_of_16_bytes() -> None:
    (k,) = cuda.emit(_copy(1, [27, 107, 210], [210, 27 * 210, 1], [107 * 210, 210, 1]))
    assert "copy_pieces<u8, 3>" in k.source and k.grid[0] == -(
        -(27 * 107 * 210 // 16 + 2) // 256
    ) + -(-(27 * 107 + 1) * 16 // 256)
    (k,) = cuda.emit(_copy(1, [348, 81, 24], [24, 348 * 24, 1], [81 * 24, 24, 1]))
    assert "copy_wide<4, 4, true>" in k.source


def test_many_odd_rows_are_gathered_in_pieces() -> None:
    ints = {"elem": 2, "outer": 1, "n": 9, "inner": 67, "count": 100_003, "idx_dtype": 7}
    (k,) = cuda.emit(request("gather", DType.F32, ints, operands=("x", "idx", "y")))
    assert k.grid[0] == -(-(-(-100_003 * 67 // 8) + 1) // 256)


def test_several_copies_share_a_launch() -> None:
    parts: list[dict[str, DimLike]] = [
        {"n0": 2, "n1": 5, "n2": w, "x0": 5 * w, "x1": w, "x2": 1, "y0": 999, "y1": 101, "at": at}
        for w, at in ((17, 0), (31, 17))
    ]
    (k,) = cuda.emit(_copies(2, parts))
    assert all(f"x{j}, y + p{j}_at" in k.source for j in range(2)) and k.grid[0] == 3


def test_rows_side_by_side_are_one_run() -> None:
    n = symbol("n")
    kernels = cuda.emit(_copies(2, _beside(n, 17, 31, 53)))
    assert not running(kernels, n=0)
    (beside,), (apart,) = (running(kernels, n=rows) for rows in (1021, 1 << 25))
    assert "concatenate_pieces(Concatenation<u16, 3>" in beside.source and all(
        f"x{j}, y + p{j}_at" in apart.source for j in range(3)
    )
    assert evaluate(beside.grid[0], {"n": 1021}) == -(-(1021 * 101 // 8 + 2) // 256) + -(
        -(1021 * 3 + 1) * 8 // 256
    )
    for elem, rows, widths, form, threads in (
        (2, 100_000, (64, 128), "<2>(Concatenation<Words, 2>", 100_000 * 24 // 2),
        (4, 3477, (110, 702), "<4>(Concatenation<u64, 2>", 3477 * 406 // 4),
        (2, 4, (17, 31), "<1>(Concatenation<u16, 2>", 4 * 48),
        (1, 9999, (17, 31), "<4>(Concatenation<u8, 2>", 9999 * 48 // 4),
    ):  # fmt: skip
        (k,) = cuda.emit(_copies(elem, _beside(rows, *widths)))
        assert f"concatenate{form}" in k.source and k.grid[0] == -(-threads // 256)


def test_nothing_to_do_launches_nothing() -> None:
    for r in (
        _copy(4, [3, 0, 5], [1, 2, 3], [0, 5, 1]),
        request("fill", DType.F32, {"elem": 4, "count": 0, "value": 1}, operands="y"),
        request(
            "gather",
            DType.F32,
            {"elem": 4, "outer": 1, "n": 5, "inner": 8, "count": 0, "idx_dtype": 7},
            operands=("x", "idx", "y"),
        ),
    ):
        assert all(0 in k.grid for k in cuda.emit(r))
    assert cuda.emit(request("store_ints", DType.F32, {"count": 0, "dtype": 7}, operands="y")) == []
