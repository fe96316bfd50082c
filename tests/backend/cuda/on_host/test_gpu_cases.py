"""A few of the cases that GPUs are checked with, run on the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backend.cuda.on_host.launched import worst_error
from tests.gpu.cases import int8
from tests.support.cuda.case import Case

#: Bytes of a case that is small.
_SMALL = 1 << 15


@pytest.mark.parametrize(
    "cases",
    [
        int8.products,
        int8.convolutions,
        int8.window_rows,
        int8.pooling,
        int8.pooled_rows,
        int8.images,
        int8.means,
    ],
)
def test_as_float64(cases: Callable[[np.random.Generator], Iterator[Case]], tmp_path: Path) -> None:
    small = (
        c
        for c in cases(np.random.default_rng(7))
        if sum(a.nbytes for a in c.operands.values()) < _SMALL
    )
    for c in itertools.islice(small, 0, 16, 8):
        assert worst_error(c, tmp_path) <= 1, c.name
