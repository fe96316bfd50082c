"""`optimize --weights`: weights of few bits in standard ONNX, and the drift that is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tracea_onnx
from tracea_onnx.cli.main import main
from tracea_onnx.errors import UsageError
from tracea_onnx.rewrite.weight_only import rounded


def _model(opset: int = 21, outlier: float = 1.0) -> onnx.ModelProto:
    """A table, two layers in both spellings, and a small weight; in each column of the second layer
    the value that meets a zero is `outlier` times as large.
    """
    rng = np.random.default_rng(0)
    first = rng.standard_normal((64, 96)) / 8
    first[:, 3] = 0
    second = rng.standard_normal((96, 64)).astype(np.float32)
    second[3] *= outlier
    stored = {
        "table": rng.standard_normal((50, 64)), "first": first,
        "second": second.T / np.float32(10), "bias": rng.standard_normal(64),
        "little": rng.standard_normal((64, 4)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "look up"),
        helper.make_node("MatMul", ["x", "first"], ["h"], "one"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "second", "bias"], ["y"], "two", transB=1),
        helper.make_node("MatMul", ["y", "little"], ["z"], "three"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("z", 1, ["n", 4])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in stored.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _run(model: onnx.ModelProto, ids: Any) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"ids": ids})[0]


@pytest.mark.parametrize(("weights", "block"), [("int8", None), ("int8", 32), ("int4", None)])
def test_standard_operators_and_a_drift_that_a_run_shows(weights: str, block: int | None) -> None:
    model, ids = _model(), np.arange(50)
    made = tracea_onnx.optimize(
        model, weights=weights, block=block, backend="cpu", inputs={"ids": ids}
    )
    found = made.report.weights
    assert found is not None and found.nodes == ("look up", "one", "two")
    assert {n.domain for n in made.model.graph.node} <= {"", "ai.tracea"}
    kinds = {t.data_type for t in made.model.graph.initializer}
    assert (TensorProto.INT4 in kinds) == (weights == "int4") and TensorProto.INT8 in kinds
    assert found.bytes_after < found.bytes_before * (0.35 if weights == "int8" else 0.3)
    want, got = _run(model, ids), _run(made.model, ids)
    drift = float(np.sqrt(np.mean((want - got) ** 2) / np.mean(want**2)))
    assert 0 < drift < (0.02 if weights == "int8" else 0.3)
    assert found.drift == {"z": pytest.approx(drift, rel=1e-3)}
    assert made.report.verify is not None and made.report.verify.ok
    assert not found.kept or weights == "int4"


def test_the_worst_layer_keeps_its_weight() -> None:
    """Values beside an outlier that shares their scale lose most of their digits."""
    model = _model(outlier=300.0)
    found = tracea_onnx.optimize(model, weights="int8", backend="cpu").report.weights
    assert found is not None and "two" in found.kept and "two" not in found.nodes
    assert found.drift["z"] <= 0.02 < found.kept["two"]
    blind = tracea_onnx.optimize(model, weights="int8", backend="cpu", verify=False).report.weights
    assert blind is not None and "two" in blind.nodes and not blind.drift


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16])
def test_rounding(bits: int, block: int) -> None:
    w = np.random.default_rng(1).standard_normal((37, 5)).astype(np.float32)
    w[:16, 2] = 0.0
    values, scales = rounded(w, bits, block)
    least = -(1 << (bits - 1))
    assert values.min() >= least and values.max() <= -least - 1
    each = np.repeat(scales, block or 37, 0)[:37]
    # what has the largest magnitude is exact, of the other sign it may be a step away
    assert (np.abs(values * each - w) <= np.abs(each) * 1.001).all()
    assert (np.abs(values * each - w) <= np.abs(each) * 0.501).mean() > 0.9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": "int3"}, "weights 'int3' are unknown"),
        ({"weights": "int4", "block": 17}, "a block of 17 weights"),
        ({"block": 32}, "a block of weights that are kept"),
        ({"weights": "int4"}, "weights of int4 in blocks need opset 21; the model's is 17"),
        ({"weights": "int8", "block": 32}, "weights of int8 in blocks need opset 21"),
    ],
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tracea_onnx.optimize(_model(17), backend="cpu", **options)
    old = tracea_onnx.optimize(_model(17), weights="int8", backend="cpu").report.weights
    assert old is not None and len(old.nodes) == 3


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(_model(), tmp_path / "m.onnx")
    args = ["optimize", str(tmp_path / "m.onnx"), "--weights", "int8", "--backend", "cpu", "--json"]
    assert main(args) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["weights"]["nodes"] == ["look up", "one", "two"]
    assert "int8 weights: 3 nodes read them" in printed.err
