"""Products of one-hot rows by weights: looked up, as ONNX Runtime computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.session.test_few_launches import FEW, run
from tracea_onnx.compiler import plan_writer

_DEPTH, _COLUMNS = 11, 20
#: Of both ends, beyond them, and from behind.
_INDICES = np.array([[0, 10, -1, -11, 3], [11, -12, 2**31 - 1, -(2**31), 5]])
Nodes = list[tuple[str, str, str, dict[str, Any]]]

PLAIN: Nodes = [("MatMul", "h w", "y", {})]
CASES: dict[str, tuple[Nodes, bool]] = {
    "product": (PLAIN, True),
    "bias and activation": (
        [("MatMul", "h w", "p", {}), ("Add", "p b", "q", {}), ("Tanh", "q", "y", {})],
        True,
    ),
    "flat": (
        [
            ("Reshape", "h flat", "f", {}),
            ("MatMul", "f w", "p", {}),
            ("Reshape", "p back", "q", {}),
            ("Add", "q b", "y", {}),
        ],
        True,
    ),
    "residual": (
        [("MatMul", "h w", "p", {}), ("Add", "p r", "q", {}), ("Relu", "q", "y", {})],
        True,
    ),
    "Gemm": (
        [("Reshape", "h flat", "f", {}), ("Gemm", "f wt b", "y", {"transB": 1, "beta": 0.5})],
        True,
    ),
    "scaled": ([("Reshape", "h flat", "f", {}), ("Gemm", "f w", "y", {"alpha": 2.0})], False),
    "read twice": ([("MatMul", "h w", "p", {}), ("ReduceSum", "h", "s", {"keepdims": 0}),
                    ("Add", "p s", "y", {})], False),
}  # fmt: skip


def _model(nodes: Nodes, kind: npt.DTypeLike, values: list[float], axis: int = -1) -> ModelProto:
    g = np.random.default_rng(3)
    stored = {
        "depth": np.array(_DEPTH, kind),
        "values": np.array(values, np.float32),
        "w": g.standard_normal((_DEPTH, _COLUMNS)).astype(np.float32),
        "wt": g.standard_normal((_COLUMNS, _DEPTH)).astype(np.float32),
        "b": g.standard_normal(_COLUMNS).astype(np.float32),
        "r": g.standard_normal((2, 5, _COLUMNS)).astype(np.float32),
        "flat": np.array([-1, _DEPTH]),
        "back": np.array([-1, 5, _COLUMNS]),
    }
    every: Nodes = [("OneHot", "i depth values", "h", {"axis": axis}), *nodes]
    read = {name for _, names, _, _ in every for name in names.split()}
    i = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [helper.make_node(op, n.split(), [out], **more) for op, n, out, more in every],
        "g",
        [helper.make_tensor_value_info("i", i, ["n", 5])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(v, k) for k, v in stored.items() if k in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _compared(
    model: ModelProto, i: npt.NDArray[Any], backend: plan_writer.Writer,
    monkeypatch: pytest.MonkeyPatch, cache: Path,
) -> list[str]:  # fmt: skip
    plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = plain.run(None, {"i": i})
    (got,), launches = run(model, {"i": i}, backend, monkeypatch, cache)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    return launches


@pytest.mark.parametrize("backend", [plan_writer.writer_of({}), FEW])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_looked_up(
    name: str, kind: type[np.generic], backend: plan_writer.Writer,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    nodes, found = CASES[name]
    model = _model(nodes, kind, [0, 1])
    launches = _compared(model, _INDICES.astype(kind), backend, monkeypatch, tmp_path)
    assert ("gather" in launches, "gemm" in launches) == (found, not found)
    assert ("one_hot" in launches) == (name in ("scaled", "read twice"))


@pytest.mark.parametrize(("values", "axis"), [([0, 2], -1), ([1, 0], -1), ([0, 1], 1)])
def test_other_values_and_axes_are_multiplied(
    values: list[float], axis: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nodes = PLAIN if axis < 0 else [("Transpose", "h", "t", {"perm": [0, 2, 1]}),
                                    ("MatMul", "t w", "y", {})]  # fmt: skip
    model = _model(nodes, np.int64, values, axis)
    writer = plan_writer.writer_of({})
    launches = _compared(model, _INDICES, writer, monkeypatch, tmp_path)
    assert "one_hot" in launches and "gather" not in launches
