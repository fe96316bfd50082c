"""The provider on a real GPU: the cases of tests/gpu/launcher_cases.py, and random stacks of layers.

Skipped where there is none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tracea_onnx.doctor import diagnosis
from tracea_onnx.runtime import nvrtc

ROOT = Path(__file__).resolve().parents[2]


_STACKS = (
    "-m",
    "tools.fuzz.operator_fuzz",
    "--backend",
    "cuda",
    "--kinds",
    "stack",
    "--count",
    "40",
)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "command", [("tests/gpu/launcher_cases.py", "--no-build"), _STACKS], ids=["smoke", "stacks"]
)
def test_on_the_device(command: tuple[str, ...]) -> None:
    if not diagnosis.cuda_devices():
        pytest.skip("no CUDA device")
    if nvrtc.load() is None:
        pytest.skip("no NVRTC")
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
