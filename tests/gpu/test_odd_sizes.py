"""Operators of odd sizes against PyTorch in float64: listed, drawn, and with symbolic sizes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.gpu import Gpu, trials
from tests.support.cuda.trials import drawn, listed, symbolic
from tests.support.cuda.trials.trial import Trial

pytestmark = pytest.mark.cuda


def _drawn(config: pytest.Config) -> tuple[int, int]:
    """How many shapes to draw, and the seed."""
    options: tuple[Any, Any] = (config.getoption("--drawn"), config.getoption("--seed"))
    return options


def trial_cases(config: pytest.Config) -> list[Any]:
    return trials([*listed.trials(), *drawn.trials(*_drawn(config))], config)


def test_against_float64(gpu: Gpu, trial: Trial) -> None:
    gpu.trial(trial)


def case_cases(config: pytest.Config) -> list[Any]:
    """The first axis alone, and others as well."""
    count, seed = _drawn(config)
    found = []
    for trial in drawn.trials(count, seed + 1):
        for several in (False, True):
            made = symbolic.of_trial(trial, several)
            if made is not None:
                name = f"{trial.name}{' several' * several}".replace(" ", "_")
                found.append(pytest.param((trial, *made), id=name))
    return found


def test_symbolic_sizes(gpu: Gpu, case: tuple[Trial, list[Any], dict[str, int]]) -> None:
    gpu.trial(*case)
