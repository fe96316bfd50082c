"""What the logger `tracea_onnx` says, and who hears it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.host.pipeline_models import leaving, small_cnn
from tracea_onnx import optimize
from tracea_onnx.support.artifact_cache import Cache


def test_files_rules_and_results_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onnx.save(small_cnn(), str(tmp_path / "m.onnx"))
    with caplog.at_level(logging.INFO, "tracea_onnx"):
        optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx", backend="cpu")
    said = [r.getMessage() for r in caplog.records]
    assert said[0] == f"read {tmp_path / 'm.onnx'}: 8 nodes"
    assert any(line.startswith("rules applied: conv 2") for line in said)
    assert any(line.startswith("verification passed") for line in said)
    assert f"wrote {tmp_path / 'o.onnx'}" in said
    assert {r.name for r in caplog.records} == {"tracea_onnx"}


def test_steps_are_logged_for_debugging(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.DEBUG, "tracea_onnx"):
        optimize(leaving(), backend="cpu", verify=False, dry_run=True)
        Cache(tmp_path / "c").put("a key", b"data")
        Cache(tmp_path / "c").get("a key")
        Cache(tmp_path / "c").get("another")
    said = [r.getMessage() for r in caplog.records]
    assert any(line.startswith("conv fused Conv_a, Relu_y: ") for line in said)
    assert f"cache: a key is in {tmp_path / 'c'}" in said
    assert f"cache: another is not in {tmp_path / 'c'}" in said


def program(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_nobody_who_does_not_listen_pays_for_it() -> None:
    done = program("import tracea_onnx, sys; print('logging' in sys.modules)")
    assert (done.stdout.strip(), done.stderr) == ("False", "")


_OPTIMIZE = "import sys; from tracea_onnx import optimize; optimize(sys.argv[1], backend='cpu')"


def test_the_environment_prints_messages(tmp_path: Path) -> None:
    m = small_cnn()
    m.graph.node[0].name = "a\x1b[31m\nerror: forged"
    onnx.save(m, str(tmp_path / "m.onnx"))
    done = program(_OPTIMIZE, str(tmp_path / "m.onnx"), TRACEA_LOG="info")
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("tracea-onnx: info: ") for line in lines)
    done = program(_OPTIMIZE, str(tmp_path / "m.onnx"), TRACEA_LOG="verbose")
    assert r"tracea-onnx: verbose: conv fused a\x1b[31m\nerror: forged, " in done.stderr
    assert "\x1b" not in done.stderr and "\nerror:" not in done.stderr
    assert program(_OPTIMIZE, str(tmp_path / "m.onnx"), TRACEA_LOG="off").stderr == ""


def test_a_level_that_does_not_exist_is_one_line() -> None:
    done = program("import tracea_onnx", TRACEA_LOG="loud")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "TRACEA_LOG='loud' is not one of: verbose, info, warning, error, off" in line
