"""Attention: head sizes, masks, causal, grouped heads, packed operands, caches, every kernel's
tiles.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.cases import attention, caches
from tests.gpu.gpu import Gpu, Maker, makers

pytestmark = pytest.mark.cuda


def maker_cases(config: pytest.Config) -> list[Any]:
    return makers(attention, caches)


def test_against_float64(gpu: Gpu, maker: Maker) -> None:
    gpu.maker(maker, few=maker[1] == "forms")
