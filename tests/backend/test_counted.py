"""Kernels whose results' sizes follow from contents, on every instruction set of this machine."""

from __future__ import annotations

import numpy as np
import pytest

from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime.native_library import aligned, isas, run_kernel

_N, _GUARD = 64, 512


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", [DType.I64, DType.F32])
def test_unique_with_operands_over_each_other(isa: str, dtype: DType) -> None:
    """As a changed Plan can have them: whatever is overwritten, no place follows from it."""
    room = aligned((2 * _GUARD + _N,), np.int64)
    rng = np.random.default_rng(0)
    for names in (("x", "y"), ("x", "first"), ("x", "inverse", "counts"), ("y", "counts", "count")):
        room[:] = -1
        over = room[_GUARD : _GUARD + _N]
        over[:] = rng.integers(-(1 << 40), 1 << 40, _N)
        operands = dict.fromkeys(names, over)
        for k in ("x", "y", "first", "inverse", "counts", "count"):
            own = aligned((_N,), np.int64)
            own[:] = rng.integers(-9, 9, _N)
            operands.setdefault(k, own)
        ints = {"outer": 1, "n": _N, "inner": 1, "sorted": 1, "dtype": int(dtype)}
        run_kernel("unique", operands, ints, isa=isa)
        assert (room[:_GUARD] == -1).all() and (room[_GUARD + _N :] == -1).all()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("outer", "n", "inner"), [(0, 5, 1), (2, 5, 0), (1, 0, 1), (0, 0, 0)])
def test_unique_of_nothing(isa: str, outer: int, n: int, inner: int) -> None:
    """Slices of no elements are all equal."""
    x, count = aligned((1,), np.int64), aligned((1,), np.int64)
    made = {k: aligned((max(n, 1),), np.int64) for k in ("first", "inverse", "counts")}
    for v in made.values():
        v.fill(7)
    ints = {"outer": outer, "n": n, "inner": inner, "sorted": 1, "dtype": int(DType.I64)}
    run_kernel("unique", {"x": x, "y": x, "count": count, **made}, ints, isa=isa)
    assert count[0] == (n > 0)
    if n:
        assert made["first"][0] == 0 and made["counts"][0] == n and not made["inverse"].any()
