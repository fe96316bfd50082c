"""`--precision fp16|bf16`: what becomes narrow, what stays fp32, and that plain ONNX Runtime runs
the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.host.pipeline_models import copy, normal, parse, run, small_cnn
from tracea_onnx.ir import narrow_floats
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import fusion_loop, optimizer
from tracea_onnx.pipeline.fusion_loop import FusionOptions
from tracea_onnx.pipeline.report import Report
from tracea_onnx.support import discovery
from tracea_onnx.verify import narrow_errors, verification

FORMATS = [narrow_floats.FP16, narrow_floats.BF16]


def narrowed(
    model: ModelProto, kind: narrow_floats.FloatFormat, **options: object
) -> optimizer.OptimizeResult:
    return optimizer.optimize(model, precision=kind.name, backend="cpu", **options)  # type: ignore[arg-type]


def weights(model: ModelProto) -> dict[str, int]:
    return {t.name: t.data_type for t in model.graph.initializer}


def types(model: ModelProto, names: Sequence[str]) -> list[int]:
    known = {
        v.name: v.type.tensor_type.elem_type
        for v in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    return [known[n] for n in names]


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.name)
def test_products_are_narrow_and_the_interface_is_not(kind: narrow_floats.FloatFormat) -> None:
    result = narrowed(small_cnn(), kind)
    model, feeds = result.model, {"image": normal(2, 3, 8, 8)}
    assert [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)] == [
        TensorProto.FLOAT
    ] * 2
    assert set(weights(model).values()) == {kind.type}
    expected, got = run(small_cnn(), feeds)[0], run(model, feeds)[0]
    gap = float(np.abs(got - expected).max() / np.abs(expected).max())
    assert 0 < gap < 4 * kind.eps
    assert result.report.precision is not None and set(result.report.precision.to_json()) == {
        "type",
        "nodes",
        "kept",
        "clamped",
    }
    assert {"Conv_a/Conv", "Conv_c/Conv"} <= set(result.report.precision.nodes)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.name)
def test_a_second_time_changes_nothing(kind: narrow_floats.FloatFormat) -> None:
    once = model_file.serialize(narrowed(small_cnn(), kind).model)
    again = onnx.load_from_string(once)
    assert model_file.serialize(narrowed(again, kind).model) == once
    assert (
        model_file.serialize(optimizer.optimize(onnx.load_from_string(once), backend="cpu").model)
        == once
    )


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.name)
def test_a_transformer_with_additive_mask(kind: narrow_floats.FloatFormat) -> None:
    """Rows with hardly anything left to attend to must not turn to NaN where -3.4e38 is beyond the
    range.
    """
    model = discovery.module("models", "bert_base").build(
        batch=2, seq=9, dynamic=False, layers=1, hidden=32, heads=2, inner=64, vocab=50, positions=9
    )
    result = narrowed(model, kind)
    assert result.report.verify is not None and result.report.verify.ok
    feeds = {i.name: np.ones((2, 9), np.int64) for i in model.graph.input}
    mask = next(name for name in feeds if "mask" in name)
    feeds[mask][:, 1:] = 0
    for expected, got in zip(run(model, feeds), run(result.model, feeds), strict=True):
        assert (
            np.isfinite(got).all()
            and np.abs(got - expected).max() < 64 * kind.eps * np.abs(expected).max()
        )


def test_steep_and_reducing_operators_stay_fp32() -> None:
    text = (
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w) b = Exp (a) s = ReduceSum (b, "
        "one) y = Div (b, s) }"
    )
    result = narrowed(
        parse(text, w=normal(4, 4), one=np.array([1])),
        narrow_floats.FP16,
        skip=["softmax", "pointwise", "gemm"],
    )
    assert (
        types(result.model, ["b", "s"]) == [TensorProto.FLOAT] * 2
        and weights(result.model)["w/fp16"] == TensorProto.FLOAT16
    )


def test_a_fused_op_that_ends_in_a_steep_operator_stays_fp32() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w) b = Exp (a) y = MatMul (b, w) }"
    found = narrowed(parse(text, w=normal(4, 4)), narrow_floats.FP16).report.precision
    assert (
        found is not None
        and found.kept
        == {
            "MatMul_a/Gemm": "the result of Exp may leave the range of fp16 or lose its digits "
            "there"
        }
        and len(found.nodes) == 1
    )


def test_constants_beyond_the_range_keep_their_node_fp32_and_weights_are_clamped() -> None:
    text = (
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w) b = Transpose (a) c = "
        "Transpose (b) y = Add (c, big) }"
    )
    w = normal(4, 4)
    w[0, 0] = 1e6
    result = narrowed(
        parse(text, w=w, big=np.full(4, 7e4, np.float32)),
        narrow_floats.FP16,
        verify=False,
        skip=["gemm"],
    )
    found = result.report.precision
    assert (
        found is not None
        and found.clamped == ["w"]
        and weights(result.model)["big"] == TensorProto.FLOAT
    )
    assert not narrowed(
        parse(text, w=w, big=np.full(4, 7e4, np.float32)), narrow_floats.BF16, verify=False
    ).report.precision.clamped  # type: ignore[union-attr]


def test_a_node_that_overflows_stays_fp32_alone() -> None:
    text = (
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w) b = MatMul (a, up) c = MatMul "
        "(b, down) y = MatMul (c, w) }"
    )
    model = parse(
        text,
        w=normal(4, 4),
        up=np.diag(np.full(4, 5e4, np.float32)),
        down=np.diag(np.full(4, 2e-5, np.float32)),
    )
    result = narrowed(model, narrow_floats.FP16)
    found = result.report.precision
    assert found is not None and result.report.verify is not None and result.report.verify.ok
    assert (
        len(found.nodes) >= 2
        and len(found.kept) in (1, 2)
        and any("stay fp32" in n for n in result.report.notes)
    )
    assert narrowed(model, narrow_floats.BF16).report.precision.kept == {}  # type: ignore[union-attr]


def test_bf16_of_an_old_operator_set_says_so() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }"
    found = narrowed(parse(text, opset=12, w=normal(4, 4)), narrow_floats.BF16).report.precision
    assert (
        found is not None
        and not found.nodes
        and found.kept
        == {
            "MatMul_y/Gemm": "operator set 12 is too old for bf16: re-export with opset 13 or later"
        }
    )


def test_plain_onnx_runs_bf16_since_every_body_is_fp32_between_casts() -> None:
    model = narrowed(small_cnn(), narrow_floats.BF16).model
    bodies = [f for f in model.functions if f.domain == DOMAIN]
    assert bodies and all({"Cast"} <= {n.op_type for n in f.node} for f in bodies)


def test_lone_norms_and_products_stay_in_bf16() -> None:
    text = (
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w) b = LayerNormalization (a, s, "
        "z) c = Transpose (b) d = Transpose (c) y = MatMul (d, w) }"
    )
    result = narrowed(
        parse(text, w=normal(4, 4), s=normal(4, seed=1), z=normal(4, seed=2)), narrow_floats.BF16
    )
    assert [n.op_type.split("_")[0] for n in result.model.graph.node] == [
        "Cast",
        "Gemm",
        "LayerNorm",
        "Transpose",
        "Transpose",
        "Gemm",
        "Cast",
    ]
    assert result.report.verify is not None and result.report.verify.ok


def test_quantised_products_stay_as_they_are() -> None:
    text = """
    g (float[2,4] x) => (float[2,4] y) {
      q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) e = DequantizeLinear (w8, s, z)
          a = MatMul (d, e) r = QuantizeLinear (a, s, z)
      b = DequantizeLinear (r, s, z) y = Relu (b)
    }
    """
    model = parse(
        text, s=np.float32(0.05), z=np.int8(0), w8=np.arange(16, dtype=np.int8).reshape(4, 4)
    )
    result = narrowed(model, narrow_floats.FP16)
    found = result.report.precision
    assert (
        found is not None
        and not found.nodes
        and found.kept == {"MatMul_a": "it is a quantised operator, which runs faster as it is"}
    )
    assert "Cast" not in {n.op_type for n in result.model.graph.node}


def test_double_graphs_stay_as_they_are() -> None:
    text = "g (double[2,4] x) => (double[2,4] y) { y = MatMul (x, w) }"
    result = narrowed(parse(text, w=normal(4, 4).astype(np.float64)), narrow_floats.FP16)
    assert (
        result.report.precision is not None
        and not result.report.precision.nodes
        and set(weights(result.model).values()) == {TensorProto.DOUBLE}
    )


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.name)
def test_weights_are_rounded_alike_in_parts(
    kind: narrow_floats.FloatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite stays finite, what is not zero stays so, signs and NaN stay."""
    edges = [0.0, -0.0, 1e-30, -1e-30, 7e4, -3e38, np.inf, -np.inf, np.nan, 65519, 65504, 1 / 3]
    value = np.array([*edges, *normal(30)], np.float32).reshape(2, -1)
    whole = kind.convert(value)
    monkeypatch.setattr(narrow_floats, "_PART", 4)
    np.testing.assert_array_equal(kind.convert(value), whole)
    dtype = helper.tensor_dtype_to_np_dtype(kind.type)
    back = whole.view(dtype).astype(np.float32)
    finite = np.isfinite(value)
    np.testing.assert_array_equal(np.isfinite(back), finite)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(value))
    np.testing.assert_array_equal(back == 0, value == 0)
    np.testing.assert_array_equal(
        np.signbit(back[~np.isnan(back)]), np.signbit(value[~np.isnan(value)])
    )
    usual = finite & (np.abs(value) < 6e4) & (np.abs(value) > 1e-3)
    given = value[usual]
    assert np.all(np.abs(back[usual] - given) <= kind.eps / 2 * np.abs(given))
    assert kind.beyond(value) == (kind is narrow_floats.FP16) and not kind.beyond(value[finite] * 0)


def chain(scales: Sequence[float]) -> ModelProto:
    """Products by well-conditioned matrices, each followed by one that divides by its scale."""
    text = "g (float[8,16] v0) => (float[8,16] y) {"
    weights: dict[str, Any] = {}
    for k, scale in enumerate(scales):
        text += f" [up{k}] a{k} = MatMul (v{k}, u{k}) [down{k}] v{k + 1} = MatMul (a{k}, d{k})"
        turn, _ = np.linalg.qr(normal(16, 16, seed=k))
        weights[f"u{k}"] = (turn * scale).astype(np.float32)
        weights[f"d{k}"] = (turn.T / scale).astype(np.float32)
    return parse(f"{text} y = Neg (v{len(scales)}) }}", **weights)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each comparison with the original."""
    calls: list[int] = []
    judge = verification.judge

    def counted(*args: Any) -> verification.Verification:
        calls.append(1)
        return judge(*args)

    monkeypatch.setattr(verification, "judge", counted)
    return calls


def test_one_run_finds_all_nodes_beyond_the_range(judged: list[int]) -> None:
    result = narrowed(chain([1, 6e4, 1, 1, 6e4, 1, 6e4, 1]), narrow_floats.FP16)
    found = result.report.precision
    assert found is not None and result.report.verify is not None and result.report.verify.ok
    assert {name.split("/")[0] for name in found.kept} == {
        f"{which}{k}" for which in ("up", "down") for k in (1, 4, 6)
    }
    assert "6 of 16 nodes stay fp32" in " ".join(result.report.notes)
    assert len(judged) == 2


def test_where_every_node_loses_a_little_the_fewest_that_help_stay_fp32(judged: list[int]) -> None:
    model = chain([1] * 12)
    free = narrowed(model, narrow_floats.FP16).report
    assert free.verify is not None and len(judged) == 1
    loss = free.verify.outputs[0].max_rel
    result = narrowed(model, narrow_floats.FP16, rtol=loss / 2).report
    assert result.verify is not None and result.verify.ok and len(judged) <= 2 + optimizer._TRIALS
    assert result.precision is not None and 0 < len(result.precision.kept) < 24
    assert 0 < result.verify.outputs[0].max_rel <= loss / 2


def test_a_node_alone_is_blamed_for_what_it_loses() -> None:
    """Each node reads what fp32 nodes make: an infinite value before it is not its fault, unless it
    must read it.
    """
    source = model_file.Source(chain([1, 6e4, 1]))
    report = Report("", 21, "cpu", 0)
    original = model_file.Source(copy(source.model))
    fusion_loop.transform(source, FusionOptions("cpu", precision="fp16", beside=True), report)
    assert report.precision is not None
    reference = verification.measure(original, kind=narrow_floats.FP16)
    errors = narrow_errors.measure(reference, source, report.precision.copies)
    assert len(errors) == 6
    infinite = {name.split("/")[0] for name, e in errors.items() if np.isinf(e)}
    assert infinite == {"up1", "down1"}
    assert all(0 < e < 2 * narrow_floats.FP16.eps for e in errors.values() if np.isfinite(e))
    # what stands beside the model does not change it
    fed = {"v0": normal(8, 16, seed=99)}
    np.testing.assert_array_equal(run(source.model, fed)[0], run(original.model, fed)[0])


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.name)
@pytest.mark.parametrize("tail", ["Relu", ""])
def test_a_norm_of_a_batch_keeps_its_statistics(kind: narrow_floats.FloatFormat, tail: str) -> None:
    """Before a convolution: variances beyond the narrow range must not be clamped, and the image is
    read and written narrow.
    """
    after = (
        f"n = BatchNormalization(a, scale, bias, mean, var) r = {tail}(n)"
        if tail
        else "r = BatchNormalization(a, scale, bias, mean, var)"
    )
    model = parse(
        f"agraph (float[n,4,5,5] x) => (float[n,4,5,5] y) {{ "
        f"c = Conv(x, w) a = Concat<axis = 1>(c, c) {after} y = Conv(r, v) }}",
        w=normal(4, 4, 1, 1), v=normal(4, 8, 1, 1), scale=normal(8), bias=normal(8),
        mean=300 * normal(8), var=np.linspace(1e5, 1e6, 8, dtype=np.float32),
    )  # fmt: skip
    result = narrowed(model, kind)
    kept = {t.name: t.data_type for t in result.model.graph.initializer}
    assert all(kept[n] == TensorProto.FLOAT for n in ("scale", "bias", "mean", "var") if n in kept)
    casts = [
        n
        for n in result.model.graph.node
        if n.op_type == "Cast" and n.input[0] != "x" and n.output[0] != "y"
    ]
    assert not casts or (kind is narrow_floats.BF16 and not tail)
    feeds = {"x": normal(2, 4, 5, 5)}
    expected, got = run(model, feeds)[0], run(result.model, feeds)[0]
    assert float(np.abs(got - expected).max() / np.abs(expected).max()) < 8 * kind.eps


def test_a_norm_spelled_out_loads_in_onnx_runtime() -> None:
    """From opset 17 on its own fusion would take the Cast before one spelled with Pow away."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 8)),
        "two": 2.0,
        "eps": 1e-5,
        "g": rng.standard_normal(8),
        "b": rng.standard_normal(8),
    }
    spelled = [
        ("MatMul", "x w", "h"), ("ReduceMean", "h", "m"), ("Sub", "h m", "d"),
        ("Pow", "d two", "p"), ("ReduceMean", "p", "v"), ("Add", "v eps", "e"),
        ("Sqrt", "e", "s"), ("Div", "d s", "q"), ("Mul", "g q", "t"), ("Add", "t b", "n"),
        ("MatMul", "n w", "y"),
    ]  # fmt: skip
    nodes = [helper.make_node(op, i.split(), [o], name=o) for op, i, o in spelled]
    for n in nodes:
        if n.op_type == "ReduceMean":
            n.attribute.append(helper.make_attribute("axes", [-1]))
    given, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy")
    stored = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [given], [result], stored),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    found = optimizer.optimize(model, backend="cuda", precision="fp16", verify=False)
    assert any(f.name.startswith("LayerNorm") for f in found.model.functions)
    x = rng.standard_normal((3, 8)).astype(np.float32)
    got, want = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0]
        for m in (found.model, model)
    )
    np.testing.assert_allclose(got, want, atol=0.05)


def test_a_body_and_the_graph_around_it_make_different_names() -> None:
    """Both narrow the value that the body captures, and a body may not define what the graph around
    it does.
    """
    m = parse(
        """g (float[4, 8] x, bool c) => (float[4, 8] y) {
            a = MatMul (x, w)
            b = MatMul (a, w)
            z = If (c) <then_branch = t () => (float[4, 8] p) { p = MatMul (a, w) },
                else_branch = e () => (float[4, 8] q) { q = MatMul (b, w) }>
            y = Add (z, b)
        }""",
        w=normal(8, 8),
    )
    result = narrowed(m, narrow_floats.FP16, verify=False).model
    onnx.checker.check_model(result)
    feeds = {"x": normal(4, 8), "c": np.array(True)}
    np.testing.assert_allclose(run(result, feeds)[0], run(m, feeds)[0], rtol=2e-2, atol=2e-1)
