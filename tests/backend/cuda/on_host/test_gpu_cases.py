"""A few of the cases that GPUs are checked with, run on the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backend.cuda.on_host.launched import worst_error
from tests.gpu.cases import attention, int8, rows
from tests.support.cuda.case import Case
from tests.support.cuda.driver import assumed

#: Bytes of a case that is small.
_SMALL = 1 << 15


def _quantised_norms(rng: np.random.Generator) -> Iterator[Case]:
    return (c for c in rows.layernorm(rng) if c.family == "layernorm_quantised")


def _quantised_attention(rng: np.random.Generator) -> Iterator[Case]:
    """By warps that store whole rows, and by a launch behind the attention."""
    with assumed(90, 132):
        made = [c for c in attention.forms(rng) if c.family == "attention_quantised"]
    kinds = ("SINGLE_WG I8", "SINGLE_WG/4", "INTER_WG U8")
    return (next(c for c in made if kind in c.name) for kind in kinds)


@pytest.mark.parametrize("k", range(3))
def test_attention_that_quantises(k: int, tmp_path: Path) -> None:
    c = [*_quantised_attention(np.random.default_rng(7))][k]
    assert worst_error(c, tmp_path) <= 1, c.name


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
        _quantised_norms,
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
