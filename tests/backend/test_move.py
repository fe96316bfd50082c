"""`copy`, `fill`, `store_ints` and `gather` against numpy; everything around the written elements
must stay as it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime.native_library import isas, kernel_tasks, run_kernel

Array = npt.NDArray[Any]
ISAS = isas()
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _root(x: Array) -> Array:
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def _copy(x: Array, y: Array, isa: str, threads: int = 1) -> None:
    """y[...] = x[...] for views of any strides."""
    pad = 6 - x.ndim
    ints = {"elem": x.itemsize}
    for d in range(6):
        ints[f"n{d}"] = x.shape[d - pad] if d >= pad else 1
        ints[f"x{d}"] = x.strides[d - pad] // x.itemsize if d >= pad else 0
        ints[f"y{d}"] = y.strides[d - pad] // y.itemsize if d >= pad else 0
    operands = {
        n: (_root(v), (v.ctypes.data - _root(v).ctypes.data) // v.itemsize)
        for n, v in (("x", x), ("y", y))
    }
    assert kernel_tasks("copy", operands, ints, isa=isa, threads=threads) <= threads
    run_kernel("copy", operands, ints, isa=isa, threads=threads)


def _random(seed: int, shape: tuple[int, ...], elem: int) -> Array:
    return np.random.default_rng(seed).integers(0, 2 ** (8 * elem - 1), shape, UNSIGNED[elem])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("elem", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((2, 17, 33), (0, 2, 1)),
        ((1, 64, 16, 16), (0, 2, 3, 1)),
        ((2, 9, 7, 3), (0, 3, 1, 2)),
        ((130, 67), (1, 0)),
        ((3, 5, 7, 2, 4, 3), (5, 3, 1, 0, 2, 4)),
        ((1, 1), (1, 0)),
        ((16, 16), (1, 0)),
        ((15, 17), (1, 0)),
        ((4, 3), (1, 0)),
        ((3, 4), (1, 0)),
        ((0, 5), (1, 0)),
        ((257,), (0,)),
        ((2, 2), (1, 0)),
        ((1, 200), (1, 0)),
    ],
)
@pytest.mark.parametrize("threads", [1, 5])
def test_transposes(
    shape: tuple[int, ...], axes: tuple[int, ...], elem: int, isa: str, threads: int
) -> None:
    x = _random(1, shape, elem)
    expected = x.transpose(axes)
    y = np.full(expected.size + 5, 0xA5, UNSIGNED[elem])
    _copy(expected, y[: expected.size].reshape(expected.shape), isa, threads)
    np.testing.assert_array_equal(y[: expected.size].reshape(expected.shape), expected)
    assert (y[expected.size :] == 0xA5).all()


@settings(max_examples=80)
@given(
    data=st.data(),
    isa=st.sampled_from(ISAS),
    elem=st.sampled_from([1, 2, 4, 8]),
    threads=st.sampled_from([1, 2, 9]),
)
def test_random_views(data: Any, isa: str, elem: int, threads: int) -> None:
    """Any permutation, slice (negative steps too) or broadcast into a slice of a larger tensor."""
    rank = data.draw(st.integers(1, 6))
    shape = tuple(data.draw(st.integers(1, 23 if rank < 4 else 6)) for _ in range(rank))
    x = _random(rank, shape, elem)
    cut = tuple(slice(None, None, data.draw(st.sampled_from([1, 1, 1, 2, -1, -3]))) for _ in shape)
    x = x[cut].transpose(data.draw(st.permutations(range(rank))))
    if data.draw(st.booleans()):
        axis = data.draw(st.integers(0, rank - 1))
        x = np.broadcast_to(np.take(x, [0], axis), x.shape)
    order = data.draw(st.permutations(range(rank)))
    base = np.full(tuple(n + 2 for n in x.shape), 0x5B, UNSIGNED[elem]).transpose(order)
    base = np.ascontiguousarray(base).transpose(np.argsort(order))
    inside = tuple(slice(1, 1 + n) for n in x.shape)
    before = base.copy()
    before[inside] = x
    _copy(x, base[inside], isa, threads)
    np.testing.assert_array_equal(base, before)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 4, 16])
def test_large_contiguous_copy_is_shared_out(isa: str, threads: int) -> None:
    x = _random(0, (1 << 20,), 4)
    y = np.zeros_like(x)
    ints = {"elem": 4, "n5": x.size, "x5": 1, "y5": 1, **{f"n{d}": 1 for d in range(5)}}
    assert kernel_tasks("copy", {"x": x, "y": y}, ints, isa=isa, threads=threads) == threads
    _copy(x, y, isa, threads)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("elem", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 17, 100003])
@pytest.mark.parametrize("threads", [1, 3])
def test_fill(elem: int, count: int, isa: str, threads: int) -> None:
    y = np.zeros(count + 2, UNSIGNED[elem])
    value = 0x1122334455667788
    run_kernel(
        "fill", {"y": y}, {"elem": elem, "count": count, "value": value}, isa=isa, threads=threads
    )
    assert (y[:count] == value % 2 ** (8 * elem)).all()
    assert (y[count:] == 0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [0, 1, 8])
@pytest.mark.parametrize(("dtype", "number"), [(np.int64, 7), (np.int32, 6)])
def test_store_ints(count: int, dtype: Any, number: int, isa: str) -> None:
    y = np.full(9, -5, dtype)
    run_kernel(
        "store_ints",
        {"y": y},
        {"count": count, "dtype": number, **{f"v{k}": k * 10**8 - 3 for k in range(8)}},
        isa=isa,
    )
    np.testing.assert_array_equal(y, [*(k * 10**8 - 3 for k in range(count)), *[-5] * (9 - count)])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("outer", "n", "inner"), [(1, 10, 64), (3, 5, 1), (2, 7, 3), (1, 100, 2), (4, 1, 17)]
)
@pytest.mark.parametrize("elem", [1, 4, 8])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("threads", [1, 4])
def test_gather(
    outer: int, n: int, inner: int, elem: int, index: Any, isa: str, threads: int
) -> None:
    x = _random(2, (outer, n, inner), elem)
    idx = np.random.default_rng(3).integers(-n, n, 29).astype(index)
    y = np.full(outer * 29 * inner + 1, 0x33, UNSIGNED[elem])
    ints = {
        "elem": elem,
        "outer": outer,
        "n": n,
        "inner": inner,
        "count": 29,
        "idx_dtype": 6 if index == np.int32 else 7,
    }
    run_kernel("gather", {"x": x, "idx": idx, "y": y}, ints, isa=isa, threads=threads)
    np.testing.assert_array_equal(y[:-1].reshape(outer, 29, inner), np.take(x, idx, 1))
    assert y[-1] == 0x33


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [5, -6, 2**40])
def test_gather_reports_an_index_out_of_range(bad: int, isa: str) -> None:
    x, y = _random(0, (1, 5, 4), 4), np.zeros((3, 4), np.uint32)
    with pytest.raises(TraceaError, match="bad data"):
        run_kernel(
            "gather",
            {"x": x, "idx": np.array([0, bad, 4]), "y": y},
            {"elem": 4, "outer": 1, "n": 5, "inner": 4, "count": 3, "idx_dtype": 7},
            isa=isa,
        )
    np.testing.assert_array_equal(y[[0, 2]], x[0, [0, 4]])
