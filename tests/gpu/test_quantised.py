"""Weights of a few bits, and quantisation as pointwise programs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.cases import blocks, nbits, quantised
from tests.gpu.gpu import Gpu, Maker, makers

pytestmark = pytest.mark.cuda


def maker_cases(config: pytest.Config) -> list[Any]:
    return makers(blocks, nbits, quantised)


def test_against_float64(gpu: Gpu, maker: Maker) -> None:
    gpu.maker(maker)
