"""`optimize --quantize`: static int8 in standard ONNX, its data, and the layers that stay fp32."""

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
from tracea_onnx.rewrite import static_int8
from tracea_onnx.verify.integer_drift import samples


def _model(opset: int = 17, outlier: float = 1.0) -> onnx.ModelProto:
    """Two convolutions, with normalisation and a residual sum, and a dense layer. outlier: of one
    channel of the first one's results, which shares its scale with all others.
    """
    rng = np.random.default_rng(0)
    gain = np.ones(8, np.float32)
    gain[3] = outlier
    stored = {
        "w1": rng.standard_normal((8, 3, 3, 3)) / 5 * gain[:, None, None, None],
        "w2": rng.standard_normal((8, 8, 3, 3)) / 8 / gain[:, None, None],
        "one": np.ones(8), "zero": np.zeros(8), "dense": rng.standard_normal((8, 5)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "one", "zero", "zero", "one"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2"], ["s"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "dense"], ["y"], "dense"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 3, 9, 11])],
        [helper.make_tensor_value_info("y", 1, ["n", 5])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _data(count: int = 6) -> Any:
    return np.random.default_rng(1).standard_normal((count, 3, 9, 11)).astype(np.float32)


def _run(model: onnx.ModelProto, x: Any, *, optimise: bool = False) -> Any:
    options = ort.SessionOptions()
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


@pytest.mark.parametrize("calibration", ["percentile", "minmax"])
@pytest.mark.parametrize("opset", [11, 17])
def test_a_static_model_and_its_drift(calibration: str, opset: int) -> None:
    x = _data()
    model = _model(opset)
    made = tracea_onnx.optimize(model, quantise={"x": x}, calibration=calibration, backend="cpu")
    found = made.report.quantised
    assert found is not None and found.samples == 6 and not found.kept
    assert {"first", "second", "dense"} <= {*found.nodes}
    kinds = [n.op_type for n in made.model.graph.node]
    assert "QuantizeLinear" in kinds and "BatchNormalization" not in kinds
    scales = {t.name: t.dims for t in made.model.graph.initializer}
    assert [8] in [[*d] for d in scales.values()], "weights have a scale for each channel"
    want, got = (
        np.concatenate([_run(m, x[k : k + 1]) for k in range(6)]) for m in (model, made.model)
    )
    drift = float(np.sqrt(np.mean((want - got) ** 2) / np.mean(want**2)))
    assert 0 < drift < 0.1 and found.drift == {"y": pytest.approx(drift, rel=1e-3)}
    assert made.report.verify is not None and made.report.verify.ok
    assert _run(made.model, x, optimise=True).shape == got.shape


def test_the_worst_layer_stays_wide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Channels beside one of large values have few steps; `explain` says so of the file."""
    model, x = _model(outlier=2000.0), _data(2)
    made = tracea_onnx.optimize(model, quantise={"x": x}, backend="cpu")
    found = made.report.quantised
    assert found is not None and "second" in found.kept and "second" not in found.nodes
    assert found.drift["y"] <= 0.1 < found.kept["second"] and "first" in found.nodes
    assert any("second stays fp32: in 8 bits its error was" in line for line in found.text())
    blind = tracea_onnx.optimize(model, quantise={"x": x}, backend="cpu", verify=False).report
    assert blind.quantised is not None and "second" in blind.quantised.nodes
    wider = tracea_onnx.optimize(model, quantise={"x": x}, backend="cpu", drift=5.0).report
    assert wider.quantised is not None and not wider.quantised.kept
    onnx.save(made.model, tmp_path / "m.onnx")
    assert main(["explain", str(tmp_path / "m.onnx")]) == 0
    assert "note: second stays fp32" in capsys.readouterr().err


def test_samples() -> None:
    """Rows of a first axis that is a symbol, or one axis more."""
    model = _model()
    assert [s["x"].shape for s in samples(model, {"x": _data(3)})] == [(1, 3, 9, 11)] * 3
    batches = _data(6).reshape(2, 3, 3, 9, 11)
    assert [s["x"].shape for s in samples(model, {"x": batches})] == [(3, 3, 9, 11)] * 2
    fixed = _model()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    assert [s["x"].shape for s in samples(fixed, {"x": _data(3)})] == [(3, 3, 9, 11)]


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        ({}, {}, "the calibration data have no 'x'"),
        ({"x": _data(), "z": _data()}, {}, "have 'z', which is no input"),
        ({"x": _data().astype(np.float64)}, {}, "have 'x' as float64; the model reads float32"),
        ({"x": _data()[:, :2]}, {}, r"of shape \[6, 2, 9, 11\]; the model reads \[n, 3, 9, 11\]"),
        ({"x": _data()[:0]}, {}, "have 0 samples"),
        ({"x": _data()}, {"calibration": "median"}, "calibration 'median' is unknown"),
        ({"x": _data()}, {"precision": "fp16"}, "a model is quantised in one way"),
        ({"x": _data()}, {"drift": 0.0}, r"a drift of 0\.0"),
    ],
)
def test_what_is_refused(data: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tracea_onnx.optimize(_model(), quantise=data, backend="cpu", **options)


def _gemm(added: Any, transposed: int = 0, *, beta: float = 1.0) -> onnx.ModelProto:
    weight = np.random.default_rng(3).standard_normal((7, 5) if transposed else (5, 7))
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=transposed, beta=beta),
            helper.make_node("Relu", ["h"], ["y"]),
        ], "g", [helper.make_tensor_value_info("x", 1, [3, 5])],
        [helper.make_tensor_value_info("y", 1, [3, 7])],
        [numpy_helper.from_array(np.asarray(v, np.float32), n)
         for n, v in (("w", weight), ("b", added))],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 1), (1, 7), (3, 1), (3, 7)])
def test_what_a_gemm_adds(shape: tuple[int, ...], transposed: int) -> None:
    """The tool takes only a number for each column."""
    added = np.random.default_rng(4).standard_normal(shape)
    model = _gemm(added, transposed, beta=0.5)
    x = np.random.default_rng(5).standard_normal((4, 3, 5)).astype(np.float32)
    made = tracea_onnx.optimize(model, quantise={"x": x}, calibration="minmax", backend="cpu")
    found = made.report.quantised
    assert found is not None and any("Gemm" in n for n in found.nodes) and not found.kept
    assert 0 < found.drift["y"] < 0.03


@pytest.mark.parametrize("calibration", ["percentile", "entropy"])
def test_the_first_sample_says_nothing_of_the_others(calibration: str) -> None:
    """Bins of a range that is found first would be too many for the next ones."""
    x = _data(4) * np.array([1e-30, 1e-6, 1, 0.5], np.float32)[:, None, None, None]
    made = tracea_onnx.optimize(
        _model(), quantise={"x": x}, calibration=calibration, backend="cpu", verify=False
    ).model
    want, got = (_run(m, x[2:3]) for m in (_model(), made))
    assert np.sqrt(np.mean((want - got) ** 2) / np.mean(want**2)) < 0.2


def _endless() -> onnx.ModelProto:
    """A product, and a Loop of 2^62 trips."""
    model = _gemm(np.zeros(7))
    body = onnx.parser.parse_graph("b (int64 k, bool c, float[3, 7] s) => (bool d, float[3, 7] t)"
                                   " { d = Identity (c) t = Relu (s) }")  # fmt: skip
    model.graph.node[-1].CopyFrom(helper.make_node("Loop", ["n", "", "h"], ["y"], body=body))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1 << 62), "n"))
    return model


def test_what_the_tool_cannot_do_is_one_line() -> None:
    x = np.ones((3, 5), np.float32)
    for model, given, says in (
        (_gemm(np.zeros(7)), x * 1e30, r"each layer of the model has numbers beyond 1e\+06"),
        (_gemm(np.full(7, np.nan)), x, "each layer of the model has numbers beyond"),
        (_endless(), x, "runs longer than 0.2 s on sample 0"),
    ):
        with pytest.raises(UsageError, match=says):
            tracea_onnx.optimize(model, quantise={"x": given}, backend="cpu", time_limit=0.2)
    model = _gemm(np.zeros(7))
    model.graph.input[0].type.optional_type.elem_type.tensor_type.elem_type = 1
    with pytest.raises(UsageError, match="input 'x' is no tensor of a known type"):
        samples(model, {"x": x})
    says = "ONNX Runtime's tool cannot quantise the model: scale issue"
    with pytest.raises(UsageError, match=says), static_int8._working():
        raise AssertionError("scale issue")


def test_a_model_without_products() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UsageError, match="no convolution or matrix multiplication"):
        tracea_onnx.optimize(model, quantise={"x": np.ones(3, np.float32)}, backend="cpu")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With weights in a file of their own."""
    file = tmp_path / "m.onnx"
    onnx.save(_model(), file, save_as_external_data=True, size_threshold=0)
    np.savez(tmp_path / "data.npz", x=_data())
    args = ["optimize", str(file), "--quantize", str(tmp_path / "data.npz"), "--json"]
    assert main([*args, "--backend", "cpu", "--calibration", "minmax"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["quantised"]["calibration"] == "minmax"
    assert "int8: " in printed.err and "(minmax of 6 samples)" in printed.err
    assert _run(onnx.load(tmp_path / "m.tracea.onnx"), _data()).shape == (6, 5)
