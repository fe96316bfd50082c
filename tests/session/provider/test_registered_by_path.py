"""The provider where an application registers the library by its path alone: it finds a compiler,
or says in one line that it has none.
"""

from __future__ import annotations

import importlib
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
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

import tracea_onnx
from tests.session.provider.test_provider_cpp import example, ort_library
from tracea_onnx import provider

__all__ = ["example"]
ROOT = Path(__file__).resolve().parents[3]
#: Registers a library, and prints the devices and who runs how many nodes.
_CLIENT = """
import sys, onnxruntime as ort
first, *later = sys.argv[2:]
ort.register_execution_provider_library(first, sys.argv[1])
for name in later:
    ort.register_execution_provider_library(name, sys.argv[1])
devices = [d for d in ort.get_ep_devices() if d.ep_name == "TraceaExecutionProvider"]
host = [d for d in devices if d.device.type == ort.OrtHardwareDeviceType.CPU]
options = ort.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.add_provider_for_devices(host[:1], {})
session = ort.InferenceSession("model.onnx", options)
print(len(host), *(p.ep_name for p in session.get_provider_graph_assignment_info()))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with constants that the compiler reads (a shape), and others that it does not."""
    w = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["p"]),
        h.make_node("Reshape", ["p", "shape"], ["r"]),
        h.make_node("Softmax", ["r"], ["y"]),
    ]
    given = [
        h.make_tensor_value_info("x", T.FLOAT, ["n", 16]),
        h.make_tensor_value_info("y", T.FLOAT, ["n", 4, 6]),
    ]
    constants = [nh.from_array(w, "w"), nh.from_array(np.array([0, 4, 6]), "shape")]
    graph = h.make_graph(nodes, "g", given[:1], given[1:], constants)
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def run(program: Path, library: Path | str, model: Path, **env: str) -> Any:
    """The C++ example, without a pack."""
    return subprocess.run(
        [program, ort_library(), library, model, "", "3"], capture_output=True, text=True, env=env
    )


def claimed(done: Any) -> dict[str, int]:
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The library where nothing tells of a Python."""
    return Path(shutil.copy(provider.library_path(), tmp_path / "libprovider.so"))


@pytest.mark.parametrize("names", [["any_name"], ["TraceaExecutionProvider", "twice"]])
def test_python_compiles_in_its_own_process(model: Path, names: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, tracea_onnx.get_library_path(), *names],
        capture_output=True, text=True, cwd=model.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRACEA_PYTHON": "/nowhere"},
    )  # fmt: skip
    assert done.stdout.split() == ["1", "TraceaExecutionProvider"], done.stderr


def test_a_program_without_python_starts_one(example: Path, elsewhere: Path, model: Path) -> None:
    done = run(
        example, elsewhere, model, TRACEA_PYTHON=sys.executable, PYTHONPATH=str(ROOT),
        HOME=str(model.parent),
    )  # fmt: skip
    found = claimed(done)
    assert found["claimed_nodes"] == 3 and found["compile_requests"] == 1
    x = (np.arange(48) * 7919 % 1000 / 1000 - 0.5).astype(np.float32).reshape(3, 16)
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    name, shape, _, *first = done.stdout.splitlines()[0].split()
    assert (name, shape) == ("y", "[3,4,6]")
    np.testing.assert_allclose([float(v) for v in first], want.reshape(-1)[:8], rtol=1e-5)


def test_the_python_that_the_library_is_installed_in_compiles(
    example: Path, model: Path, tmp_path: Path
) -> None:
    package = tmp_path / "env" / "lib" / "python3.99" / "site-packages" / "tracea_onnx"
    package.mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python3.99"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    library = shutil.copy(provider.library_path(), package)
    assert claimed(run(example, library, model, HOME=str(tmp_path)))["claimed_nodes"] == 3


def test_without_a_compiler_it_says_so_in_one_line(
    example: Path, elsewhere: Path, model: Path
) -> None:
    done = run(example, elsewhere, model)
    assert claimed(done)["claimed_nodes"] == 0
    assert "since it has no compiler; give" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("python", "line"),
    [
        ("/nowhere/python3", "'/nowhere/python3' does not start: No such file or directory"),
        ("/bin/false", "'/bin/false' cannot compile: the package tracea-onnx is not installed"),
    ],
)
def test_a_python_that_cannot_compile_is_one_line(
    example: Path, elsewhere: Path, model: Path, python: str, line: str
) -> None:
    done = run(example, elsewhere, model, TRACEA_PYTHON=python)
    assert claimed(done)["claimed_nodes"] == 0
    assert line in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("package", ["tracea_onnx", "onnxruntime_ep_tracea"])
def test_the_conventional_functions(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "onnxruntime-ep-tracea")
    module = importlib.import_module(package)
    assert module.get_ep_names() == [module.get_ep_name()] == ["TraceaExecutionProvider"]
    assert Path(module.get_library_path()).is_file()
