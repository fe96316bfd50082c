"""The C++ example: compiles with the compiler at hand, and runs a model from a pack with no Python
in the process.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.cpp import compiler
from tracea_onnx import provider
from tracea_onnx.pipeline.pack import build_pack

SOURCE = Path(__file__).resolve().parents[3] / "examples" / "cpp" / "run.cc"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("cpp") / "run"
    command = [
        *compiler(),
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(program),
        str(SOURCE),
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def ort_library() -> str:
    found = sorted((Path(str(ort.__file__)).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("this onnxruntime wheel has no C library")
    return str(found[0])


def mlp() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w, b = (
        rng.standard_normal((16, 24)).astype(np.float32),
        rng.standard_normal(24).astype(np.float32),
    )
    nodes = [h.make_node("Gemm", ["x", "w", "b"], ["g"]), h.make_node("Relu", ["g"], ["y"])]
    inputs, outputs = (
        [h.make_tensor_value_info("x", T.FLOAT, ["n", 16])],
        [h.make_tensor_value_info("y", T.FLOAT, ["n", 24])],
    )
    graph = h.make_graph(
        nodes, "mlp", inputs, outputs, [nh.from_array(w, "w"), nh.from_array(b, "b")]
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


def pattern(count: int) -> np.ndarray:
    """What the example fills float inputs with."""
    return (np.arange(count) * 7919 % 1000 / 1000 - 0.5).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 3])
def test_runs_from_a_pack(example: Path, tmp_path: Path, rows: int) -> None:
    model, pack = tmp_path / "model.onnx", tmp_path / "model.pack"
    onnx.save(mlp(), model)
    pack.write_bytes(build_pack(str(model)))
    command = [
        str(example),
        ort_library(),
        provider.library_path(),
        str(model),
        str(pack),
        str(rows),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    output, statistics = done.stdout.splitlines()
    assert json.loads(statistics)["claimed_nodes"] >= 1 and json.loads(statistics)["runs"] == 1
    assert json.loads(statistics)["compile_requests"] == 0
    name, shape, total, *first = output.split()
    want = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(
        None, {"x": pattern(rows * 16).reshape(rows, 16)}
    )[0]
    assert (name, shape) == ("y", f"[{rows},24]")
    np.testing.assert_allclose(
        [float(v) for v in first], want.reshape(-1)[:8], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(float(total), want.astype(np.float64).sum(), rtol=1e-5)


def test_damaged_pack_is_one_line(example: Path, tmp_path: Path) -> None:
    model, pack = tmp_path / "model.onnx", tmp_path / "model.pack"
    onnx.save(mlp(), model)
    pack.write_bytes(build_pack(str(model))[:-1])
    done = subprocess.run(
        [str(example), ort_library(), provider.library_path(), str(model), str(pack)],
        capture_output=True,
        text=True,
        env={},
    )
    assert done.returncode == 1
    assert "truncated or damaged" in done.stderr and len(done.stderr.strip().splitlines()) == 1
