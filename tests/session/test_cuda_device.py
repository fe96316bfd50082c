"""The provider on a real GPU: the cases of benchmarks/cuda_smoke.py. Skipped where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tracea_onnx import doctor, nvrtc

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ROOT / "benchmarks" / "cuda_smoke.py"


@pytest.mark.cuda
def test_smoke() -> None:
    if not doctor.cuda_devices():
        pytest.skip("no CUDA device")
    if nvrtc.load() is None:
        pytest.skip("no NVRTC")
    done = subprocess.run([sys.executable, str(SMOKE), "--no-build"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
