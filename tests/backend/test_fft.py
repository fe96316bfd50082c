"""The CPU kernel of Fourier transforms against `numpy.fft` in float64, on every instruction set of
this machine. Outputs are filled with NaN before each run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.fourier import COMPLEX, OF_REAL, TO_REAL, Fourier, all_kinds
from tracea_onnx.errors import TraceaError
from tracea_onnx.plan import fourier_tables
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

#: 1, 2, primes with a butterfly and without, products of small primes, frames of audio.
LENGTHS = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 26, 31, 32, 33, 60, 64, 77, 97, 100, 121,
    128, 143, 169, 200, 202, 240, 256, 321, 343, 400, 480, 502, 512, 625, 800, 882, 1000, 1009,
    1024, 1331, 2048, 4096,
)  # fmt: skip


def _stored(a: Any) -> Any:
    out = aligned(a.shape, a.dtype)
    out[...] = a
    return out


def _check(case: Fourier, isa: str, threads: int = 1) -> None:
    given = case.draw(np.random.default_rng(case.length))
    want = case.want(given)
    y = aligned(want.shape)
    y.fill(np.nan)
    operands = {k: _stored(v) for k, v in given.items()} | {
        "tables": _stored(case.tables()),
        "y": y,
    }
    run_kernel("fft", operands, case.ints(), case.floats(), isa=isa, threads=threads)
    np.testing.assert_allclose(y, want, rtol=0, atol=case.bound(want), err_msg=str(case))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length: int, isa: str) -> None:
    for case in all_kinds(length):
        _check(case, isa)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("length", [16, 35, 74, 96, 200, 512])
def test_batches_and_axes(length: int, isa: str) -> None:
    """Other numbers of signals than lanes take; signals that are columns; threads."""
    for batch, threads in (((1, 1), 1), ((2, 5), 1), ((5, 7), 3), ((1, 37), 2)):
        for columns in (False, True):
            for case in all_kinds(length, batch=batch, columns=columns):
                _check(case, isa, threads)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("length", [12, 25, 74, 400, 512])
def test_parts_of_signals_and_of_results(length: int, isa: str) -> None:
    """Short signals are followed by zeros, whatever lies behind them."""
    for terms in (1, length // 3, length - 1):
        for columns in (False, True):
            for kind, inverse in ((COMPLEX, False), (OF_REAL, False), (TO_REAL, True)):
                _check(Fourier(length, kind, inverse, terms=terms, columns=columns), isa)
    for bins in (1, length // 2, length - 1):
        _check(Fourier(length, COMPLEX, bins=bins), isa)
        _check(Fourier(length, OF_REAL, bins=bins), isa)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("length", "step"), [(400, 160), (512, 128), (97, 40), (31, 31), (48, 7)])
def test_frames(length: int, step: int, isa: str) -> None:
    """Overlapping frames under a window."""
    for kind in (OF_REAL, COMPLEX):
        case = Fourier(length, kind, batch=(2, 19), bins=length // 2 + 1, window=True, step=step)
        _check(case, isa, 2)


@pytest.mark.parametrize("isa", isas())
def test_neighbours_do_not_meet(isa: str) -> None:
    """A signal of NaN leaves others as they are, also where they share vectors."""
    case = Fourier(48, OF_REAL, batch=(1, 5), bins=25)
    given = case.draw(np.random.default_rng(0))
    given["x"][0, 2] = np.nan
    want, y = case.want(given), aligned((1, 5, 25, 2))
    operands = {"x": _stored(given["x"]), "tables": _stored(case.tables()), "y": y}
    run_kernel("fft", operands, case.ints(), case.floats(), isa=isa)
    assert np.isnan(y[0, 2]).all()
    others = [0, 1, 3, 4]
    np.testing.assert_allclose(y[0, others], want[0, others], rtol=0, atol=1e-4)


@pytest.mark.parametrize("isa", isas())
def test_launches_that_make_no_transform(isa: str) -> None:
    """No signals are no work; radices, tables and sizes that do not belong together are an error
    and touch nothing.
    """
    case = Fourier(64)
    given = case.draw(np.random.default_rng(0))
    operands = {"x": _stored(given["x"]), "tables": _stored(case.tables()), "y": aligned(9999)}
    assert kernel_tasks("fft", operands, case.ints() | {"M": 0}, isa=isa) == 0
    for wrong in (
        {"radix1": 8}, {"radix0": 6}, {"C": 10}, {"T": 65}, {"K": 65}, {"N": 66},
        {"kind": TO_REAL, "K": 63}, {f"radix{k}": 16 for k in range(8)},
    ):  # fmt: skip
        with pytest.raises(TraceaError, match="bad data"):
            run_kernel("fft", operands, case.ints() | wrong, case.floats(), isa=isa)
        assert not operands["y"].any()


def test_passes() -> None:
    for n in (*range(1, 300), 1024, 1331, 4096, 1 << 16, 3 * 5**6):
        found = fourier_tables.radices(n)
        smooth = n
        for p in (2, 3, 5, 7, 11, 13):
            while smooth % p == 0:
                smooth //= p
        assert (found is not None) == (smooth == 1), n
        assert found is None or math.prod(found) == n
        longer = fourier_tables.chirped(n)
        assert longer >= 2 * n - 1 and fourier_tables.radices(longer) is not None
