"""Regions of images, moved windows, determinants."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.cases import regions
from tests.gpu.gpu import Gpu, Maker, makers

pytestmark = pytest.mark.cuda


def maker_cases(config: pytest.Config) -> list[Any]:
    return makers(regions)


def test_against_float64(gpu: Gpu, maker: Maker) -> None:
    gpu.maker(maker)
