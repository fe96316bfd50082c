"""Rewriting, the way back, and the pipeline around them: same results, valid ONNX, nothing lost, a
fixed point.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

import tracea_onnx
from tests.host.pipeline_models import RULES, copy, normal, ops, parse, run, same_bits, small_cnn
from tracea_onnx.errors import MissingFusionError, UsageError
from tracea_onnx.explain import contents, explanation
from tracea_onnx.ir.contracts import DOMAIN, Match, Rule, Spec
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Why
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.pipeline.report import text
from tracea_onnx.rewrite import fused_calls
from tracea_onnx.rewrite.inline import inline
from tracea_onnx.support import discovery


def optimized(model: ModelProto, **kwargs: object) -> optimizer.OptimizeResult:
    return optimizer.optimize(model, rules=RULES, backend="cpu", **kwargs)  # type: ignore[arg-type]


def test_a_chain_becomes_a_call_of_a_function_with_its_body() -> None:
    m = small_cnn()
    r = optimized(m).model
    onnx.checker.check_model(r, full_check=True)
    calls = [n for n in r.graph.node if n.domain == DOMAIN]
    assert [list(n.output) for n in calls] == [["r"], ["t"]]
    bodies = {f.name: [n.op_type for n in f.node] for f in r.functions}
    assert [bodies[n.op_type] for n in calls] == [["Conv", "Relu"], ["Add", "Relu"]]
    assert fused_calls.read_spec(calls[0]) == Spec("conv", ("x", "w", "b"), {})
    assert list(calls[0].input) == ["image", "w1", "b1"]
    feeds = {"image": normal(2, 3, 8, 8)}
    assert same_bits(run(m, feeds), run(r, feeds))
    for ours, theirs in zip(
        run(m, feeds, optimise=True), run(r, feeds, optimise=True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_provenance_survives() -> None:
    m = small_cnn()
    m.graph.node[0].name, m.graph.node[1].name = "stem/conv", "stem/relu"
    m.graph.node[0].doc_string = "the stem"
    m.graph.node[0].metadata_props.add(key="namespace", value="stem")
    result = optimized(m).model
    call = result.graph.node[0]
    function = next(f for f in result.functions if f.name == call.op_type)
    assert function.doc_string.startswith("Fused by tracea-onnx from Conv, Relu;")
    known = {e.key: e.value for e in call.metadata_props}
    assert call.name == "stem/conv/Conv" and call.doc_string == "the stem"
    assert (
        known["tracea.rule"] == "conv_relu"
        and json.loads(known["tracea.nodes"]) == ["stem/conv", "stem/relu"]
        and known["namespace"] == "stem"
    )


def test_equal_bodies_share_one_function_and_different_ones_do_not() -> None:
    m = parse(
        """
        g (float[1, 2, 8, 8] x) => (float[1, 2, 4, 4] y)
        {
          a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Relu (a)
          c = Conv <pads = [1, 1, 1, 1]> (b, v)  d = Relu (c)
          e = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (d, w)  y = Relu (e)
        }
        """,
        w=normal(2, 2, 3, 3),
        v=normal(2, 2, 3, 3, seed=1),
    )
    r = optimized(m).model
    names = ops(r)
    assert len(names) == 3 and names[0] == names[1] != names[2] and len(r.functions) == 2


def test_small_constants_become_literals_and_large_ones_extra_inputs() -> None:
    def clamp(graph: Graph, node: Node) -> Match:
        chain = [node]
        while (reader := graph.sole_consumer(chain[-1].outputs[0])) is not None:
            chain.append(reader)
        return Match(
            "chain",
            node,
            tuple(chain),
            (node.inputs[0],),
            chain[-1].outputs,
            Spec("pointwise", ("x0",), {"note": "the table is in the body only"}),
        )

    rule = Rule("chain", "Chain", frozenset({"Mul"}), clamp)
    m = parse(
        "g (float[6] x) => (float[6] y) { a = Mul (x, two) b = Add (a, table) y = Max (b, low) }",
        two=np.float32(2),
        table=normal(6),
        low=np.float32(0.25),
    )
    r = optimizer.optimize(m, rules=[rule], backend="cpu").model
    (call,) = r.graph.node
    assert list(call.input) == ["x", "table"] and [t.name for t in r.graph.initializer] == ["table"]
    body = r.functions[0]
    assert [n.op_type for n in body.node] == ["Constant", "Constant", "Mul", "Add", "Max"] and list(
        body.input
    ) == ["x0", "extra.0"]
    assert same_bits(run(m, {"x": normal(6)}), run(r, {"x": normal(6)}))


def test_one_value_under_two_roles() -> None:
    m = parse("g (float[3] x) => (float[3] y) { a = Add (x, x) y = Relu (a) }")
    r = optimized(m).model
    assert list(r.graph.node[0].input) == ["x", "x"]
    assert same_bits(run(m, {"x": normal(3)}), run(r, {"x": normal(3)}))


def test_optimizing_twice_gives_the_same_bytes() -> None:
    once = optimized(small_cnn()).model
    twice = optimized(once)
    assert not twice.report.fused and model_file.serialize(twice.model) == model_file.serialize(
        once
    )
    assert model_file.serialize(optimized(small_cnn()).model) == model_file.serialize(once)


def test_a_chain_that_lost_its_neighbour_is_fused_in_the_next_round() -> None:
    """Two convolutions compete for one Relu's sum; the loser still gets what is left of its
    chain.
    """

    def grow(graph: Graph, node: Node) -> Match:
        chain = [node]
        while (reader := graph.sole_consumer(chain[-1].outputs[0])) is not None and reader.op in (
            "Neg",
            "Add",
            "Relu",
        ):
            chain.append(reader)
        made = {o for n in chain for o in n.outputs}
        outside = tuple(dict.fromkeys(i for n in chain for i in n.inputs if i and i not in made))
        return Match(
            "grow",
            node,
            tuple(chain),
            outside,
            chain[-1].outputs,
            Spec("conv", tuple(f"x{k}" for k in range(len(outside)))),
        )

    m = parse(
        "g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y) { "
        "a = Conv (x, w) b = Neg (a) c = Conv (x, v) d = Neg (c) e = Add (b, d) y = Relu (e) }",
        w=normal(1, 1, 1, 1),
        v=normal(1, 1, 1, 1, seed=1),
    )
    r = optimizer.optimize(
        m, rules=[Rule("grow", "Conv", frozenset({"Conv"}), grow)], backend="cpu"
    )
    assert [n.domain for n in r.model.graph.node] == [DOMAIN, DOMAIN]
    assert sorted(len(f.nodes) for f in r.report.fused) == [2, 4]


def test_bodies_are_rewritten_and_captures_count_as_uses() -> None:
    m = parse(
        """
        g (float[3] x, float[3] z, bool c) => (float[3] y)
        {
          a = Add (x, z)
          r = Relu (a)
          y = If (c) <then_branch = t () => (float[3] ty) { s = Add (a, r) u = Relu (s)
              ty = Neg (u) },
                      else_branch = e () => (float[3] ey) { v = Add (x, r) ey = Relu (v) }>
        }
        """
    )
    result = optimized(m)
    r = result.model
    onnx.checker.check_model(r, full_check=True)
    assert ops(r) == ["Add", "Relu", "If"]  # `a` is captured, so Add and Relu stay apart
    assert sorted(f.nodes for f in result.report.fused) == [
        ("Add_s", "Relu_u"),
        ("Add_v", "Relu_ey"),
    ]
    for c in (True, False):
        feeds = {"x": normal(3), "z": normal(3, seed=1), "c": np.array(c)}
        assert same_bits(run(m, feeds), run(r, feeds))
    assert model_file.serialize(optimized(r).model) == model_file.serialize(r)


def test_an_overridable_initializer_is_respected() -> None:
    m = parse(
        "g (float[2] x, float[2] b) => (float[2] y) { a = Add (x, b) y = Relu (a) }", b=normal(2)
    )
    kept = optimized(m, keep_initializer_inputs=True).model
    feeds = {"x": normal(2), "b": normal(2, seed=5)}
    assert same_bits(run(m, feeds), run(kept, feeds))


def test_nothing_of_the_users_is_lost() -> None:
    m = small_cnn()
    m.doc_string = "about"
    m.metadata_props.add(key="license", value="MIT")
    m.functions.append(
        onnx.helper.make_function(
            "mine",
            "Twice",
            ["a"],
            ["b"],
            [onnx.helper.make_node("Add", ["a", "a"], ["b"])],
            [onnx.helper.make_opsetid("", 17)],
        )
    )
    m.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    m.graph.value_info.append(
        onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, ["batch", 7, 8, 8])
    )
    m.graph.value_info.append(
        onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["batch", 7, 8, 8])
    )
    r = optimized(m).model
    assert (
        r.doc_string == "about"
        and r.metadata_props == m.metadata_props
        and r.functions[0] == m.functions[0]
    )
    assert list(r.graph.input) == list(m.graph.input) and list(r.graph.output) == list(
        m.graph.output
    )
    assert [v.name for v in r.graph.value_info] == ["r"]  # `a` is inside a function now


def test_inline_gives_the_nodes_and_the_bits_back() -> None:
    m = small_cnn()
    r = optimized(m).model
    plain = inline(copy(r))
    onnx.checker.check_model(plain, full_check=True)
    assert (
        ops(plain) == ops(m)
        and not plain.functions
        and all(o.domain != DOMAIN for o in plain.opset_import)
    )
    assert [n.name for n in plain.graph.node][:2] == ["Conv_a", "Relu_r"]
    feeds = {"image": normal(3, 3, 8, 8)}
    assert same_bits(run(r, feeds), run(plain, feeds))
    assert model_file.serialize(optimized(plain).model) == model_file.serialize(r)


# --- the pipeline ---------------------------------------------------------------------------------
def test_the_report_has_the_promised_keys() -> None:
    found = optimized(small_cnn()).report.to_json()
    assert {
        "model",
        "opset",
        "backend",
        "nodes_before",
        "nodes_after",
        "fused",
        "refused",
        "verify",
        "seconds",
    } <= found.keys()
    assert (found["nodes_before"], found["nodes_after"], found["opset"], found["backend"]) == (
        8,
        6,
        17,
        "cpu",
    )
    assert {"rule", "op", "nodes", "outputs", "saved_us"} <= found["fused"][0].keys() and {
        "rule",
        "anchor",
        "reason",
    } <= found["refused"][0].keys()
    assert (
        found["verify"]["ok"]
        and {"name", "max_abs", "max_rel", "rmse"} <= found["verify"]["outputs"][0].keys()
    )
    assert found["verify"]["inputs"] == {"image": [2, 3, 8, 8]}
    json.dumps(found)
    assert any("conv_relu" in line for line in text(optimized(small_cnn()).report))


def test_a_dry_run_prices_and_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    r = optimized(small_cnn(), dry_run=True, output=out)
    assert not out.exists() and all(n.domain != DOMAIN for n in r.model.graph.node)
    assert all(f.saved_us > 0 for f in r.report.fused) and len(r.report.fused) == 2


def test_only_and_skip() -> None:
    assert {f.rule for f in optimized(small_cnn(), only=["add_relu"]).report.fused} == {"add_relu"}
    assert {f.rule for f in optimized(small_cnn(), skip=["add_relu"]).report.fused} == {"conv_relu"}
    done = optimized(small_cnn(), only=["add_relu"]).model
    assert optimized(done, only=["add_relu"]).report.fused == []  # its fusions are already there
    with pytest.raises(MissingFusionError, match="'add_relu' fused nothing"):
        optimized(parse("g (float[3] x) => (float[3] y) { y = Relu (x) }"), only=["add_relu"])


def test_unknown_options_are_named() -> None:
    with pytest.raises(UsageError, match="backend 'tpu' is unknown"):
        optimizer.optimize(small_cnn(), backend="tpu")
    with pytest.raises(UsageError, match="precision 'int3' is unknown"):
        optimizer.optimize(small_cnn(), precision="int3", backend="cpu")
    with pytest.raises(UsageError, match="no rule called 'typo'"):
        optimized(small_cnn(), only=["typo"])


def test_the_package_exports_the_pipeline() -> None:
    assert (
        tracea_onnx.optimize is optimizer.optimize
        and tracea_onnx.OptimizeResult is optimizer.OptimizeResult
    )


def test_every_anchor_is_explained() -> None:
    account = explanation.explain(small_cnn(), rules=RULES, backend="cpu")
    found = {e.anchor: e for e in account.anchors}
    assert {a: e.fused_by for a, e in found.items() if a.startswith(("Conv", "Add"))} == {
        "Conv_a": "conv_relu",
        "Add_s": "add_relu",
        "Conv_c": "",
    }
    assert (
        found["Conv_a"].nodes == ("Conv_a", "Relu_r")
        and found["Conv_c"].refusals[0].because.why is Why.ALONE
    )
    assert any("Conv_c" in line for line in explanation.text(account))


def test_inspect_tells_what_is_inside() -> None:
    found = contents.inspect(model_file.Source(optimized(small_cnn()).model))
    assert (
        found["nodes"] == 6
        and found["operators"]["ai.tracea.Conv"] == 1
        and found["opsets"][DOMAIN] == 1
    )
    assert [f["rule"] for f in found["fused"]] == ["conv_relu", "add_relu"] and found["fused"][0][
        "nodes"
    ] == ["Conv_a", "Relu_r"]
    assert found["inputs"] == [{"name": "image", "type": "float", "shape": ["batch", 3, 8, 8]}]
    assert any("conv_relu" in line for line in contents.text(found, everything=True))


@pytest.mark.parametrize("name", ["demo", "minilm"])
def test_models_of_the_zoo_with_every_rule(name: str) -> None:
    model = discovery.module("models", name).build()
    r = optimizer.optimize(model, backend="cpu")
    onnx.checker.check_model(r.model, full_check=True)
    assert (
        r.report.verify is not None
        and r.report.verify.ok
        and r.report.nodes_after < r.report.nodes_before
    )
    again = optimizer.optimize(r.model, backend="cpu", verify=False)
    assert model_file.serialize(again.model) == model_file.serialize(r.model)


def test_a_result_the_runtime_would_not_load_is_made_without_folding() -> None:
    """Range over a vector of one: ONNX Runtime runs it, but refuses to load it once it sees the
    vector is constant.
    """
    m = parse(
        """
        g (int64[4] x) => (int64[N] y)
        {
          n = Size (x)
          c = Equal (n, four)
          d = If (c) <then_branch = t () => (int64[1] a) { a = Identity (one) }, else_branch = e ()
              => (int64[K] b) { b, r = Split <axis = 0> (x, parts) }>
          r = Range (zero, d, step)
          y = Add (r, step)
        }
        """,
        four=np.array(4),
        one=np.array([1]),
        zero=np.array(0),
        step=np.array(1),
        parts=np.array([1, 3]),
    )
    feeds = {"x": np.arange(4)}
    result = optimized(m)
    assert any("not folded" in n for n in result.report.notes)
    assert same_bits(run(m, feeds, optimise=True), run(result.model, feeds, optimise=True))


def test_a_result_that_the_runtime_no_longer_loads_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime 1.31 does not load DequantizeLinear, Reshape of int8 with a zero point; another
    reader of what is dequantised keeps its pass away, though nobody reads that one.
    """
    m = parse(
        """
        g (int8[6, 4] q) => (float[24] y)
        {
          d = DequantizeLinear (q, scale, zero)
          unread = QuantizeLinear (d, scale, other)
          r = Reshape (d, flat)
          y = Erf (r)
        }
        """,
        scale=np.float32(0.5),
        zero=np.int8(-103),
        other=np.uint8(81),
        flat=np.array([-1]),
    )
    # as that version does, whichever this one is
    monkeypatch.setattr(optimizer.verification, "loads", lambda s: "QuantizeLinear" in ops(s.model))
    with pytest.raises(optimizer.FailedVerification, match="loads the original but not the result"):
        optimized(m, output=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_stock_onnx_runtime_makes_the_same_graph_of_it(tmp_path: Path) -> None:
    """Inlining gives back everything ONNX Runtime optimises, so the file runs as fast without the
    provider.
    """

    def optimised_by_ort(m: ModelProto, name: str) -> list[str]:
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / name)
        options.log_severity_level = 4
        ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return sorted(ops(onnx.load(str(tmp_path / name))))

    model = discovery.module("models", "demo").build()
    result = optimizer.optimize(model, backend="cpu").model
    assert optimised_by_ort(model, "a.onnx") == optimised_by_ort(result, "b.onnx")


def test_a_function_that_is_not_ours_keeps_its_name() -> None:
    """A model may already hold a function of the name that ours would get, with another body."""
    import onnx

    import tracea_onnx
    from tracea_onnx.support import discovery

    model = discovery.module("models", "demo").build(image=33)
    ours = tracea_onnx.optimize(model, verify=False).model
    taken = onnx.ModelProto()
    taken.CopyFrom(model)
    for f in ours.functions:
        body = [onnx.helper.make_node("Identity", [f.input[0]], [o]) for o in f.output]
        opsets = [onnx.helper.make_opsetid("", 18)]
        taken.functions.append(
            onnx.helper.make_function(
                f.domain,
                f.name,
                list(f.input),
                list(f.output),
                body,
                opsets,
                attributes=list(f.attribute),
            )
        )
    taken.opset_import.append(onnx.helper.make_opsetid("ai.tracea", 1))
    taken.ir_version = max(taken.ir_version, 8)
    result = tracea_onnx.optimize(taken)
    assert result.report.verify is not None and result.report.verify.ok
    bodies = {(f.domain, f.name): [n.op_type for n in f.node] for f in result.model.functions}
    called = [
        bodies[n.domain, n.op_type] for n in result.model.graph.node if n.domain == "ai.tracea"
    ]
    assert called and all(body != ["Identity"] for body in called)


def test_numbers_that_json_does_not_have_leave_the_chain_as_it_is() -> None:
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[3, 4] x) => (float[3, 4] y) { '
        "t = Gemm (x, w)  y = Relu (t) }"
    )
    model.graph.initializer.append(weight)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("alpha", float("inf")))
    result = optimizer.optimize(model, verify=False, backend="cpu")
    assert [n.op_type for n in result.model.graph.node] == ["Gemm", "Relu"]
    assert "is infinite or not a number" in " ".join(r.reason for r in result.report.refused)


def test_a_layer_norm_of_onnx_runtime_itself_loads_from_a_body() -> None:
    """Before opset 17 it is ONNX Runtime's own operator, and in the body of a function its defaults
    must be written: else the process ends.
    """
    text = """g (float[N, 4, 5, 5] x) => (float[N, 4, 5, 5] y) {
        t = Transpose <perm = [0, 2, 3, 1]> (x)
        n = LayerNormalization <axis = -1> (t, w, b)
        y = Transpose <perm = [0, 3, 1, 2]> (n)
    }"""
    m = parse(text, opset=16, w=normal(4), b=normal(4))
    result = optimizer.optimize(m, verify=False).model
    [body] = [f for f in result.functions if f.domain == DOMAIN]
    [norm] = [n for n in body.node if n.op_type == "LayerNormalization"]
    assert "stash_type" in {a.name for a in norm.attribute}
    x = normal(2, 4, 5, 5)
    np.testing.assert_allclose(run(result, {"x": x})[0], run(m, {"x": x})[0], rtol=1e-5, atol=1e-6)
