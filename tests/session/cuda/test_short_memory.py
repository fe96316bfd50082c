"""Memory that runs out at any of the provider's allocations, and faults in Python's callbacks, end
in an exception, never in the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpp import compiler
from tests.fake import driver
from tests.host.pipeline_models import normal
from tests.session.provider.test_faults import fails, small
from tracea_onnx import provider
from tracea_onnx.compiler import compile_requests

SOURCE = Path(driver.__file__).with_name("memory.cc")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or "LD_PRELOAD" in os.environ:
        pytest.skip("allocations are made to fail by a library that is preloaded")
    path = tmp_path_factory.mktemp("memory") / "memory.so"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    done = subprocess.run(
        [*compiler(), *flags, "-o", str(path), str(SOURCE), "-ldl"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "step"), [("cpu", 23), ("cuda", 101)])
def test_allocations_that_fail_are_one_line(
    kind: str, step: int, shim: Path, tmp_path: Path
) -> None:
    folder = driver.build(tmp_path)
    done = driver.run(
        folder,
        ["-m", "tests.session.cuda.memory_cases", kind, str(tmp_path / "cache"), str(step)],
        preload=str(shim),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["made"] > 500 and counts["refused"] > 5


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError(), AssertionError("no")], ids=lambda e: type(e).__name__
)
def test_faults_of_the_compiler_callback_cost_the_graph(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compile_requests, "compile_request", fails(error))
    session = provider.create_session(small(), {"claim": "all", "cache_dir": str(tmp_path)})
    assert not provider.assigned_nodes(session)
    assert session.run(None, {"x": normal(5, 64)})[0].shape == (5, 32)
