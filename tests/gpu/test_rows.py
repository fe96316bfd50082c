"""Softmax, norms, reductions, running sums, rotary embeddings, Fourier transforms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.cases import fourier, rows
from tests.gpu.gpu import Gpu, Maker, makers

pytestmark = pytest.mark.cuda


def maker_cases(config: pytest.Config) -> list[Any]:
    return makers(rows, fourier)


def test_against_float64(gpu: Gpu, maker: Maker) -> None:
    gpu.maker(maker)
