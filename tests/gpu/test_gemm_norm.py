"""GEMM with LayerNorm or RMSNorm of its operands' rows folded in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.cases import norms
from tests.gpu.cases.gemm import Case
from tests.gpu.gpu import Gpu, torch_cases

pytestmark = pytest.mark.cuda


def case_cases(config: pytest.Config) -> list[Any]:
    return torch_cases(norms.check_cases(), config)


def test_against_float64(gpu: Gpu, case: Case) -> None:
    gpu.torch_case(case, norms.pack(int(case[1].ints["N"]), int(case[1].ints["K"]), case[1].dtype))
