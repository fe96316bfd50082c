"""Every anchor that stayed unfused has a reason, many a remedy; what would leave the provider is
named.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.decoders import greedy_search
from tests.host.pipeline_models import Array, leaving, normal, parse
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.explain import explanation
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match import rule_set


def account(model: ModelProto, **options: object) -> explanation.ExplainReport:
    return explanation.explain(model, backend="cpu", **options)  # type: ignore[arg-type]


def left(model: ModelProto, op: str, **options: object) -> explanation.Explanation:
    return next(e for e in account(model, **options).anchors if e.op == op and not e.fused_by)


# --- a reason for everything ----------------------------------------------------------------------
_UNARY = ("Relu", "Sigmoid", "Erf", "Softplus", "Identity", "Neg", "Exp", "Elu")


def random_model(seed: int) -> ModelProto:
    """A graph of 20 to 40 nodes over [2, 8, 6, 6] values in which chains are begun, broken, shared
    and exposed at random.
    """
    rng = np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    weights: dict[str, Array] = {}
    values = ["x0", "x1"]

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = rng.standard_normal(shape).astype(np.float32)
        return name

    def pick() -> str:
        return str(values[-1] if rng.random() < 0.6 else values[rng.integers(len(values))])

    for k in range(int(rng.integers(20, 41))):
        out, kind = f"v{k}", int(rng.integers(9))
        if kind == 0:
            nodes.append(
                helper.make_node("Conv", [pick(), weight(8, 8, 3, 3)], [out], pads=[1, 1, 1, 1])
            )
        elif kind == 1:
            nodes.append(
                helper.make_node(
                    "MatMul", [pick(), weight(6, 6) if rng.random() < 0.5 else pick()], [out]
                )
            )
        elif kind == 2:
            nodes.append(
                helper.make_node("Softmax", [pick()], [out], axis=int(rng.integers(-1, 4)))
            )
        elif kind == 3:
            nodes.append(helper.make_node("LayerNormalization", [pick(), weight(6)], [out]))
        elif kind == 4:
            names = [weight(8), weight(8), weight(8), f"w{len(weights)}"]
            weights[names[3]] = rng.random(8).astype(np.float32) + 0.5
            nodes.append(helper.make_node("BatchNormalization", [pick(), *names], [out]))
        elif kind == 5:
            nodes.append(helper.make_node("Transpose", [pick()], [out], perm=[0, 1, 3, 2]))
        elif kind == 6:
            nodes.append(helper.make_node(("Add", "Mul")[k % 2], [pick(), pick()], [out]))
        else:
            nodes.append(helper.make_node(_UNARY[rng.integers(len(_UNARY))], [pick()], [out]))
        values.append(out)
    shape: list[str | int | None] = ["batch", 8, 6, 6]
    exposed = sorted({values[-1], *(v for v in values[2:] if rng.random() < 0.1)})
    graph = helper.make_graph(
        nodes,
        f"random{seed}",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x in ("x0", "x1")],
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, shape) for v in exposed],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_HEAVY = {"Conv", "MatMul", "Softmax", "LayerNormalization", "BatchNormalization"}


@pytest.mark.parametrize("seed", range(40))
def test_every_unfused_anchor_of_generated_models_has_a_reason(seed: int) -> None:
    found = account(random_model(seed))
    told = {e.anchor: e for e in found.anchors if not e.fused_by}
    for n in found.model.graph.node:
        if n.op_type in _HEAVY or n.op_type in {op for r in rule_set.rules() for op in r.anchors}:
            e = told.pop(n.name)
            assert e.refusals and all(r.reason and r.node is not None for r in e.refusals)
            assert n.op_type not in _HEAVY or not e.light
    assert not told  # nothing is explained that is not there
    calls = [n for n in found.model.graph.node if n.domain == DOMAIN]
    assert len(calls) == sum(1 for e in found.anchors if e.fused_by)


def test_anchors_inside_the_users_functions_are_explained() -> None:
    m = parse(
        "g (float[2, 8] x) => (float[2, 8] y) { a = mine.F (x, w)  y = Relu (a) }"
        '<domain: "mine", opset_import: ["" : 17]> F (x, w) => (y) { '
        "[inside] p = MatMul (x, w)  y = Transpose <perm = [0, 1]> (p) }",
        extra=', "mine" : 1',
        w=normal(8, 8),
    )
    assert any("inside" in e.anchor for e in account(m).anchors)


def test_an_operator_without_a_rule_is_named() -> None:
    m = parse(
        "g (float[4, 2, 3] x) => (float[4, 1, 2, 5] y) { y = LSTM <hidden_size = 5> (x, w, r) }",
        w=normal(1, 20, 3),
        r=normal(1, 20, 5),
    )
    assert left(m, "LSTM").refusals[0].reason == "no rule starts at LSTM"


# --- what would help ------------------------------------------------------------------------------
def attention(extra: str = "", outputs: str = "", opset: int = 17, scale: str = "s") -> ModelProto:
    text = f"""
    g (float[2, 4, 8, 16] q, float[2, 4, 16, 8] k, float[2, 4, 8, 16] v{extra}) => (float[2, 4, 8,
        16] y{outputs})
    {{ a = MatMul (q, k)  b = Mul (a, {scale})  p = Softmax <axis = -1> (b)  y = MatMul (p, v) }}
    """
    model = parse(text, opset=opset)
    model.graph.initializer.extend(
        [] if extra else [numpy_helper.from_array(np.array(0.25, np.float32), "s")]
    )
    return model


def conv_bn(attributes: str = "", extra: str = "", outputs: str = "z") -> ModelProto:
    text = f"""
    g (float[1, 3, 8, 8] x{extra}) => (float[1, 4, 8, 8] y)
    {{ a = Conv <pads = [1, 1, 1, 1]> (x, w)  {outputs} = BatchNormalization {attributes} (a,
        gamma, beta, mean, var)  y = Relu (z) }}
    """
    model = parse(
        text,
        w=normal(4, 3, 3, 3),
        var=np.ones(4, np.float32),
        beta=np.zeros(4, np.float32),
        mean=np.zeros(4, np.float32),
    )
    model.graph.initializer.extend(
        [] if extra else [numpy_helper.from_array(np.ones(4, np.float32), "gamma")]
    )
    return model


def test_the_exporter_wrote_the_scale_as_a_graph_input() -> None:
    e = left(attention(", float scale", scale="scale"), "Softmax")
    assert "not a constant scalar" in e.refusals[0].reason and e.refusals[0].rule == "attention"
    assert (
        e.fix == "the exporter wrote 'scale' as a graph input: re-export with it as a constant "
        "(export_params=True)"
    )
    said = account(attention(", float scale", scale="scale"))
    assert any("fix: the exporter wrote 'scale'" in line for line in explanation.text(said))
    nearest = next(a for a in said.to_json()["anchors"] if a["op"] == "Softmax")["nearest"]
    assert (nearest["node"], nearest["code"]) == ("Mul_b", "factor")


def test_probabilities_that_are_returned() -> None:
    e = left(attention(outputs=", float[2, 4, 8, 8] p"), "Softmax")
    assert (
        "graph output" in e.refusals[0].reason
        and "'p' is an output of the model" in e.fix
        and "output_attentions=False" in e.fix
    )


def test_batch_statistics() -> None:
    e = left(conv_bn("<training_mode = 1>", outputs="z, m, v"), "BatchNormalization")
    assert "training" in e.refusals[0].reason and "model.eval()" in e.fix


def test_weights_that_callers_may_give() -> None:
    m = conv_bn(extra=", float[4] gamma")
    assert "wrote 'gamma' as a graph input" in left(m, "BatchNormalization").fix
    m.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "gamma"))
    kept = left(m, "BatchNormalization", keep_initializer_inputs=True)
    assert "leave out --keep-initializer-inputs" in kept.fix
    assert all(e.fused_by for e in account(m).anchors if e.op in ("Conv", "BatchNormalization"))


def test_where_types_are_lost() -> None:
    text = "g (float[2, 8] x) => (float[2, 8] y) {{ a = {} (x)  b = MatMul (a, w)  y = Relu (b) }}"
    e = left(
        parse(text.format("com.microsoft.Unheard"), extra=', "com.microsoft" : 1', w=normal(8, 8)),
        "MatMul",
    )
    assert (
        "not known" in e.refusals[0].reason and "lost at com.microsoft.Unheard 'Unheard_a'" in e.fix
    )


def test_a_file_that_was_optimised_before() -> None:
    m = parse(
        "g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { "
        'y = com.microsoft.FusedConv <activation = "Relu", pads = [1, 1, 1, 1]> (x, w) }',
        extra=', "com.microsoft" : 1',
        w=normal(4, 3, 3, 3),
    )
    assert (
        left(m, "com.microsoft.FusedConv").fix
        == "the file was optimized for ONNX Runtime before: optimize the exporter's own file"
    )


def test_old_operator_sets() -> None:
    text = """
    g (float[2, 4, 6] x) => (float[2, 4, 6] y)
    { y = GroupNormalization <num_groups = 2> (x, scale, bias) }
    """
    e = left(parse(text, opset=18, scale=normal(2), bias=normal(2)), "GroupNormalization")
    assert e.fix == "re-export with opset 21 or later"
    e = left(
        parse(
            "g (float[2, 4, 6] x) => (float[2, 4, 6] y) { y = Softmax <axis = 1> (x) }", opset=11
        ),
        "Softmax",
    )
    assert e.fix == "re-export with opset 13 or later"


def test_quantised_operators_need_no_remedy() -> None:
    m = parse(
        """
        g (uint8[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
        { a = DequantizeLinear (x, s, z)  w = DequantizeLinear (q, s, z)  b = Conv <pads = [1, 1,
            1, 1]> (a, w)  y = Relu (b) }
        """,
        s=np.float32(0.1),
        z=np.uint8(128),
        q=np.full((4, 3, 3, 3), 130, np.uint8),
    )
    e = left(m, "Conv")
    assert "quantized" in e.refusals[0].reason and not e.fix


# --- the provider ---------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_every_node_that_would_leave_the_provider_is_named(backend: str) -> None:
    found = explanation.explain(leaving(), backend=backend, provider=True).coverage
    assert found is not None and (found.backend, found.total) == (backend, 3)
    assert {n.op: n.reason for n in found.leaving} == {
        "RandomUniformLike": "no kernel computes RandomUniformLike",
        "com.microsoft.Unheard": "no kernel computes com.microsoft.Unheard",
    }
    assert found.to_json()["leaving"][0].keys() == {"node", "op", "reason"}


def test_the_gpu_backend_is_the_one_that_sessions_compile_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[plan_writer.Writer] = []
    honest = partition_compiler.compile_graph

    def compile_graph(
        graph: Graph, backend: plan_writer.Writer, **more: bool
    ) -> partition_compiler.Compiled:
        asked.append(backend)
        return honest(graph, backend, **more)

    monkeypatch.setattr(partition_compiler, "compile_graph", compile_graph)
    explanation.explain(leaving(), backend="cuda", provider=True)
    session = plan_writer.writer_of({"backend": "cuda", "arch": "90"})
    assert session.target.folds_norms and session.target.group_packing
    assert [b.target for b in asked] == [session.target]


def test_running_sums_of_positions_stay_on_the_provider() -> None:
    m = parse(
        """
        g (int64[b, s] ids) => (float[b, s, 8] y)
        {
          e = Equal (ids, pad)  n = Not (e)  m = Cast <to = 6> (n)  c = CumSum (m, axis)
              p = Mul (c, m)  q = Cast <to = 7> (p)  r = Add (q, pad)
          z = Gather (table, r)  y = MatMul (z, w)
        }
        """,
        pad=np.int64(1),
        axis=np.int32(1),
        table=normal(64, 8),
        w=normal(8, 8),
    )
    for b in ("cpu", "cuda"):
        coverage = explanation.explain(m, backend=b, provider=True).coverage
        assert coverage is not None and not coverage.leaving


@pytest.mark.parametrize(("axes", "takes"), [("", True), (", scan_output_axes = [1]", False)])
def test_control_flow_runs_on_a_device_that_makes_its_results(axes: str, takes: bool) -> None:
    m = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3, 3] x, bool c, float[5, 3, 3] rows) => (float[3, 3] y, float[r, s, t] each)
        {{
          y, each = Scan <num_scan_inputs = 1{axes}, body = b (float[3, 3] a, float[3, 3] r)
              => (float[3, 3] w, float[3, 3] t) {{ t = MatMul (a, r)  w = If (c) <
                then_branch = p () => (float[3, 3] u) {{ u = MatMul (t, r) }},
                else_branch = q () => (float[3, 3] o) {{ o = MatMul (r, t) }}> }}> (x, rows)
        }}
        """
    )
    for backend in ("cpu", "cuda"):
        found = explanation.explain(m, backend=backend, provider=True).coverage
        assert found is not None
        left = {n.op for n in found.leaving if "bodies" in n.reason}
        on_device = set() if takes else {"Scan"}
        assert left == (on_device if backend == "cuda" else {"If", "Scan"})


def test_a_decoder_that_onnx_runtime_searches_leaves_the_gpu() -> None:
    found = explanation.explain(greedy_search(), backend="cuda", provider=True).coverage
    assert found is not None and found.partitions == 0 and len(found.leaving) == found.total
    assert {n.reason for n in found.leaving if not n.op.endswith("GreedySearch")} == {
        "GreedySearch reads the results of its body on the host"
    }


def test_light_nodes_alone_stay_with_the_runtime() -> None:
    m = parse("g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { y = Relu (x) }")
    (n,) = explanation.explain(m, backend="cpu", provider=True).coverage.leaving  # type: ignore[union-attr]
    assert "light" in n.reason


def test_the_checker_accepts_the_generated_models() -> None:
    onnx.checker.check_model(random_model(0), full_check=True)
