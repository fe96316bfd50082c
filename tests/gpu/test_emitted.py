"""Every case has kernels, which no GPU is needed to see."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.gpu.cases import conv, gemm, norms
from tests.support.cuda import driver
from tests.support.cuda import runner as R
from tests.support.cuda.trials import drawn, listed, symbolic
from tracea_onnx.codegen.kernel_request import Request

Named = Iterator[tuple[str, Request]]


def _torch_cases() -> Named:
    for module in (gemm, norms, conv):
        yield from ((name, r) for name, r, _ in module.check_cases())


def _trials() -> Named:
    for trial in (*listed.trials(), *drawn.trials(33, 7)):
        yield from ((trial.name, r) for r in (*trial.requests, *trial.extra))


def _symbolic() -> Named:
    for trial in drawn.trials(33, 8):
        for several in (False, True):
            made = symbolic.of_trial(trial, several)
            assert made is not None, trial.name
            assert all(isinstance(size, int) for size in made[1].values())
            yield from ((trial.name, r) for r in made[0])


@pytest.mark.parametrize("cases", [_torch_cases, _trials, _symbolic])
def test_every_case_has_kernels(cases: Callable[[], Named]) -> None:
    with driver.assumed(90, 132):
        wrong = []
        for name, request in cases():
            try:
                if not R.kernels(request):
                    wrong.append(f"{name}: none")
            except Exception as e:
                wrong.append(f"{name}: {type(e).__name__}: {e}")
        assert not wrong
