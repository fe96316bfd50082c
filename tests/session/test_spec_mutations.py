"""With `specs=trust` a changed spec costs at most its node: every case of `spec_mutations` ends in
a result of the right shape or in one line.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import tracea_onnx
from tests.session.test_models import small

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["demo", "bert_base", "gpt2", "unet", "mobilenet_v3"])
def test_no_changed_spec_crashes_or_hangs(name: str, tmp_path: Path) -> None:
    onnx.save(
        tracea_onnx.optimize(small(name), backend="cpu", verify=False).model,
        str(tmp_path / f"{name}.onnx"),
    )
    command = [
        sys.executable,
        "-m",
        "tests.session.spec_mutations",
        str(tmp_path / f"{name}.onnx"),
        "0",
        "80",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok (refused)" in done.stdout and "ok (ran)" in done.stdout
