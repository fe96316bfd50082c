"""The launcher on a GPU: Plans, sessions, and what happens when something goes wrong.

Each case has a process of its own: a process loads one driver, and some cases lose their context.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import plan_cases, robust_cases, session_cases
from tests.gpu.gpu import Gpu
from tests.gpu.run_case import SKIPPED
from tests.support.cuda import shim

pytestmark = pytest.mark.cuda

ROOT = Path(__file__).resolve().parents[2]


def case_cases(config: pytest.Config) -> list[Any]:
    return [
        pytest.param(
            (module.__name__.rpartition(".")[2], name),
            id=name,
            marks=[pytest.mark.alone] if name in robust_cases.ALONE else [],
        )
        for module in (plan_cases, session_cases, robust_cases)
        for name in module.CASES
    ]


@pytest.fixture(scope="module")
def shimmed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which calls of the driver can be made to fail; empty: there is none."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return {}
    try:
        return shim.build(tmp_path_factory.mktemp("shim"))
    except (OSError, subprocess.CalledProcessError, StopIteration):
        return {}


def test_case(gpu: Gpu, case: tuple[str, str], request: pytest.FixtureRequest) -> None:
    module, name = case
    if gpu.only_compile:
        pytest.skip("runs sessions")
    environment = dict(os.environ)
    if name in robust_cases.SHIMMED:
        shimmed = request.getfixturevalue("shimmed")
        if not shimmed:
            pytest.skip("the driver's stand-in cannot be built here")
        environment |= shimmed
    if name == robust_cases.no_visible_gpu_is_one_line.__name__:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.run_case", module, name],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if SKIPPED in done.stdout:
        pytest.skip(done.stdout.partition(SKIPPED)[2].strip())
