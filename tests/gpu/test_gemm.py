"""GEMM and batched GEMM: every tile, odd sizes, epilogues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.cases import gemm, small_gemms
from tests.gpu.cases.gemm import Case
from tests.gpu.gpu import Gpu, Maker, makers, torch_cases

pytestmark = pytest.mark.cuda


def case_cases(config: pytest.Config) -> list[Any]:
    return torch_cases(gemm.check_cases(), config)


def test_against_float64(gpu: Gpu, case: Case) -> None:
    gpu.torch_case(case, gemm.also(case[1]))


def maker_cases(config: pytest.Config) -> list[Any]:
    return makers(small_gemms)


def test_small(gpu: Gpu, maker: Maker) -> None:
    """Each form of each kernel, emitted for a device of few SMs."""
    gpu.maker(maker, few=True)
