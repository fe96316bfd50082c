"""Cases that GPU kernels are checked with, on the CPU's kernels, on every instruction set of this
machine: elements found by indices, dequantised blocks, running sums, the largest of rows, padding,
sampling, regions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.gpu.cases import blocks, image, indexed, move, regions, rows
from tests.support.cuda.case import Array, Case, poisoned
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime.native_library import aligned, isas, run_kernel

ISAS = isas()
MAKERS: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {
    **blocks.FAMILIES,
    **indexed.FAMILIES,
    **regions.FAMILIES,
    "argmax": rows.argmax,
    "cumsum": rows.cumsum,
    "pad": move.pads,
    "resize": image.resize,
}


def _slack(a: Array) -> Array:
    """A copy with the readable bytes behind it that every buffer of a Plan has."""
    out = aligned((a.nbytes + 256,), np.uint8)
    out[: a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    out[a.nbytes :] = 0xFF
    return out[: a.nbytes].view(a.dtype).reshape(a.shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_against_float64(maker: str, threads: int, isa: str) -> None:
    rng = np.random.default_rng(zlib.crc32(maker.encode()))
    checked = 0
    for case in MAKERS[maker](rng):
        if case.dtype != DType.F32:
            continue
        operands = {name: _slack(a) for name, a in case.operands.items()}
        buffers = {
            name: _slack(poisoned(out.count, out.dtype)) for name, out in case.outputs.items()
        }
        ints = {name: d for name, d in case.ints.items() if isinstance(d, int)}
        both = {**operands, **buffers}
        run_kernel(case.family, both, ints, case.floats, isa=isa, threads=threads)
        for name, out in case.outputs.items():
            assert out.error(buffers[name]) <= 1, f"{case.name}: {name}"
        checked += 1
    assert checked


_ALONG = {"elem": 4, "idx_dtype": 7, "axis": 4, **{f"{c}{k}": 1 for c in "nm" for k in range(5)}}
_TUPLES = {"elem": 4, "idx_dtype": 7, "k": 1, "inner": 1, "count": 3, "m0": 5, "s0": 1}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [5, -6, 2**40, -(2**62)])
@pytest.mark.parametrize(
    ("family", "ints"),
    [
        ("gather_along", {**_ALONG, "n4": 3, "m4": 5, "s4": 1}),
        ("scatter_along", {**_ALONG, "n4": 3, "m4": 5, "s4": 1}),
        ("gather_tuples", {**_TUPLES, "each": 3}),
        ("scatter_tuples", _TUPLES),
    ],
)
def test_an_index_out_of_range(family: str, ints: dict[str, int], bad: int, isa: str) -> None:
    """It is reported; what others point to is moved all the same."""
    idx, x = np.array([0, bad, -1]), np.arange(1, 6, dtype=np.float32)
    if family.startswith("gather"):
        operands, y, want = {"x": x}, np.full(3, 9, np.float32), [1, 0, 5]
    else:
        operands, y, want = {"u": x[:3].copy()}, np.full(5, 9, np.float32), [1, 9, 9, 9, 3]
    with pytest.raises(TraceaError, match="bad data"):
        run_kernel(family, {**operands, "idx": idx, "y": y}, ints, isa=isa)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 4])
def test_of_equal_indices_the_last_counts(threads: int, isa: str) -> None:
    """As in ONNX Runtime, however many threads there are."""
    rng = np.random.default_rng(0)
    u = rng.standard_normal((6, 2000, 3)).astype(np.float32)
    idx = rng.integers(0, 50, u.shape)
    y, want = np.zeros((6, 50, 3), np.float32), np.zeros((6, 50, 3), np.float32)
    for o, j, k in np.ndindex(u.shape):
        want[o, idx[o, j, k], k] = u[o, j, k]
    sizes = {"n2": 6, "n3": 2000, "n4": 3, "m2": 6, "m3": 50, "m4": 3, "s2": 150, "s3": 3, "s4": 1}
    ints = {**_ALONG, "axis": 3, **sizes}
    run_kernel("scatter_along", {"idx": idx, "u": u, "y": y}, ints, isa=isa, threads=threads)
    np.testing.assert_array_equal(y, want)
    rows_, y = rng.integers(0, 9, 400), np.zeros((9, 5003), np.float32)
    u = rng.standard_normal((400, 5003)).astype(np.float32)
    want = np.zeros_like(y)
    for j, row in enumerate(rows_):
        want[row] = u[j]
    ints = {**_TUPLES, "count": 400, "inner": 5003, "m0": 9, "s0": 5003}
    run_kernel("scatter_tuples", {"idx": rows_, "u": u, "y": y}, ints, isa=isa, threads=threads)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("isa", ISAS)
def test_not_a_number_is_the_largest(isa: str) -> None:
    x = np.array([[3, np.nan, -0.0, 0.0, np.inf, -np.inf, np.nan]], np.float32)
    for largest, want in ((1, [1, 6, 4, 0, 2, 3, 5]), (0, [5, 2, 3, 0, 4, 1, 6])):
        at = np.zeros((1, 7), np.int64)
        ints = {"outer": 1, "n": 7, "inner": 1, "k": 7, "largest": largest, "dtype": 1}
        run_kernel("topk", {"x": x, "at": at}, ints, isa=isa)
        np.testing.assert_array_equal(at[0], want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("element", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 7, 1, 9), (2, 5, 3, 4), (40, 300, 1, 501)])
def test_elements_along_an_axis(
    sizes: tuple[int, int, int, int], element: Any, index: Any, isa: str
) -> None:
    outer, n, inner, count = sizes
    rng = np.random.default_rng(n)
    x = rng.integers(0, 99, (outer, n, inner)).astype(element)
    idx = rng.integers(-n, n, (outer, count, inner)).astype(index)
    y = np.full(idx.shape, 111, x.dtype)
    ints = {
        "elem": x.itemsize, "outer": outer, "n": n, "inner": inner, "count": count,
        "idx_dtype": int(DType.I32 if index == np.int32 else DType.I64),
    }  # fmt: skip
    run_kernel("gather_elements", {"x": x, "idx": idx, "y": y}, ints, isa=isa, threads=3)
    np.testing.assert_array_equal(y, np.take_along_axis(x, idx % n, 1))
    idx[-1, -1, -1] = n
    with pytest.raises(TraceaError, match="bad data"):
        run_kernel("gather_elements", {"x": x, "idx": idx, "y": y}, ints, isa=isa, threads=3)
    want = np.take_along_axis(x, idx % n, 1)
    want[-1, -1, -1] = 0
    np.testing.assert_array_equal(y, want)
