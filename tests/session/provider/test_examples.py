"""The examples in C, Rust and Go: each is built, runs a compiled model without Python and one that
a Python compiles, and ends with one line where it cannot. (test_provider_cpp.py: C++)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.session.provider.test_provider_cpp import mlp, ort_library, pattern
from tracea_onnx import provider
from tracea_onnx.pipeline.compiled_model import compile_model

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
#: The program that builds each, and its arguments before those that name the result.
BUILDS = {
    "c": ("cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "run.c", "-ldl"),
    "rust": ("rustc", "--edition", "2021", "-D", "warnings", "main.rs"),
    "go": ("go", "build"),
}


@pytest.fixture(scope="module", params=BUILDS)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    tool, *arguments = BUILDS[request.param]
    found = shutil.which(tool)
    asked = [tool, "version" if tool == "go" else "--version"]
    if found is None or subprocess.run(asked, capture_output=True).returncode:
        pytest.skip(f"{tool} is not installed")
    command = [found, *arguments, "-o", str(folder / "run")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=EXAMPLES / request.param,
        env={**os.environ, "GOCACHE": str(folder / "cache"), "GOFLAGS": "-buildvcs=false"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(mlp(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def run(program: Path, model: Path, *more: str, **environment: str) -> Any:
    command = [str(program), ort_library(), provider.library_path(), str(model), *more]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def check(done: Any, model: Path) -> dict[str, int]:
    assert done.returncode == 0 and not done.stderr, done.stderr
    output, counters = done.stdout.splitlines()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    [want] = session.run(None, {"x": pattern(48).reshape(3, 16)})
    name, shape, *numbers = output.split()
    assert (name, shape) == ("y", "[3,24]")
    expected = [want.astype(np.float64).sum(), *want.reshape(-1)[:8]]
    np.testing.assert_allclose([float(v) for v in numbers], expected, rtol=1e-5, atol=1e-6)
    found: dict[str, int] = json.loads(counters)
    assert found["claimed_nodes"] and found["runs"] == 1
    return found


def test_a_compiled_model_runs_without_python(example: Path, model: Path, tmp_path: Path) -> None:
    compile_model(model, tmp_path / "ctx.onnx")
    assert check(run(example, tmp_path / "ctx.onnx", "", "3"), model)["compile_requests"] == 0


def test_a_model_is_compiled_by_a_python_that_the_provider_starts(
    example: Path, model: Path, tmp_path: Path
) -> None:
    environment = {
        "TRACEA_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path),
    }  # fmt: skip
    assert check(run(example, model, "", "3", **environment), model)["compile_requests"] == 1


def test_what_cannot_run_is_one_line(example: Path, tmp_path: Path) -> None:
    broken = mlp()
    broken.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    onnx.save(broken, tmp_path / "broken.onnx")
    done = run(example, tmp_path / "broken.onnx", "", "3")
    assert done.returncode == 1 and not done.stdout
    assert "broken.onnx" in done.stderr and len(done.stderr.strip().splitlines()) == 1
