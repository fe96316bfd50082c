"""Nodes that ONNX Runtime lets through and that make no sense: each is left alone, for a reason,
and nothing fails inside.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from tests.host.pipeline_models import parse
from tracea_onnx.canonicalize import canonical_form, constant_ifs, identities, sink_transposes
from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
from tracea_onnx.errors import ModelError, TraceaError
from tracea_onnx.explain import contents, explanation, html_page, layout
from tracea_onnx.ir import dims, edit, op_traits, operator_versions
from tracea_onnx.ir.activations import evaluate
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match import find, masks, rope, strided_view
from tracea_onnx.model_io import function_calls, model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.plan.builder import read_pack
from tracea_onnx.rewrite import fused_calls, single_nodes
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.verify import input_sizes, input_values, verification

_F, _I = TensorProto.FLOAT, TensorProto.INT64


def model_of(
    node: NodeProto, given: dict[str, tuple[int, ...]], opset: int = 23, **constants: Any
) -> ModelProto:
    inputs = [helper.make_tensor_value_info(k, _F, d) for k, d in given.items()]
    stored = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_empty_tensor_value_info("y")], stored
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def _twice(name: str, value: Any) -> NodeProto:
    node = helper.make_node("Transpose", ["x"], ["y"], **{name: value})
    node.attribute.append(node.attribute[0])
    return node


def reason(model: ModelProto) -> str:
    """Why the provider does not run the model's one node; a defect would be an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        [(_, why)] = partition_compiler.compile_graph(
            Graph(model), plan_writer.writer_of({}), everything=True
        ).refused
    return why


#: An axis that is named twice, from the front and from the end: an operator, its inputs behind the
#: first, what they hold, its attributes, and what is said of it.
_AXIS_TWICE: list[tuple[str, list[str], dict[str, Any], dict[str, Any], str]] = [
    *(
        (op, ["a"], {"a": [3, -1]}, {}, f"{op} has an axis twice")
        for op in ("ReduceMean", "ReduceSum", "ReduceMax", "Squeeze")
    ),
    ("Unsqueeze", ["a"], {"a": [5, -1]}, {}, "Unsqueeze has an axis twice"),
    ("Slice", ["s", "e", "a"], {"s": [0, 0], "e": [9, 9], "a": [3, -1]}, {}, "has an axis twice"),
    ("Pad", ["p", "", "a"], {"p": [1, 1, 1, 1], "a": [3, -1]}, {}, "Pad has an axis twice"),
    ("CenterCropPad", ["s"], {"s": [2, 2]}, {"axes": [3, -1]}, "CenterCropPad has an axis twice"),
    ("MeanVarianceNormalization", [], {}, {"axes": [3, -1]}, "has an axis twice"),
    ("Resize", ["", "", "s"], {"s": [2, 2]}, {"axes": [3, -1]}, "Resize has axes"),
]
_QKV = {"q": (3, 32, 160), "k": (3, 32, 80), "v": (3, 32, 80)}
_HEADS: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 1}


@pytest.mark.parametrize(
    ("node", "given", "constants", "why"),
    [
        (
            helper.make_node("Attention", ["q", "k", "v"], ["y"], **_HEADS),
            _QKV | {"k": (3, 32, 40, 2)},
            {},
            "'k' has rank 4, which layout bsx does not describe",
        ),
        (
            helper.make_node("Attention", ["q", "k", "v"], ["y"], **_HEADS),
            _QKV | {"v": (3, 1, 32, 80)},
            {},
            "'v' has rank 4, which layout bsx does not describe",
        ),
        (
            helper.make_node("Attention", ["q", "k", "v"], ["y"], q_num_heads=-2, kv_num_heads=1),
            _QKV,
            {},
            "has operands of rank 3, and no number of heads",
        ),
        (
            helper.make_node(
                "Attention", ["q", "k", "v"], ["y"], q_num_heads=200, kv_num_heads=200
            ),
            _QKV,
            {},
            "the head size of Attention 'y' is unknown",
        ),
        *(
            (helper.make_node("Reshape", ["x", "s"], ["y"]), {"x": (2, 3)}, {"s": s}, why)
            for s, why in (
                ([-2, -3], "Reshape is given dim 0 as -2, which is no size"),
                ([-1, 6, -1], "Reshape is given two dims as -1, and neither follows"),
            )
        ),
        (helper.make_node("Softmax", ["x"], ["y"], axis=4), {"x": (2, 3)}, {}, "axis 4"),
        (
            helper.make_node("LayerNormalization", ["x", "w"], ["y"], axis=-3),
            {"x": (2, 3), "w": (3,)},
            {},
            "axis -3",
        ),
        (helper.make_node("ArgMax", ["x"], ["y"], axis=2), {"x": (2, 3)}, {}, "axis 2"),
        (helper.make_node("ArgMax", ["x"], ["y"], axis=1), {"x": (2, 0)}, {}, "less than 1"),
        (helper.make_node("ReduceMax", ["x", "a"], ["y"]), {"x": (2, 3)}, {"a": [5]}, "axis 5"),
        (
            helper.make_node("ReduceMax", ["x", "a"], ["y"], keepdims=-8),
            {"x": (2, 3)},
            {"a": [0]},
            "keepdims -8, which is neither 0 nor 1",
        ),
        (
            helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1 << 53, **_HEADS),
            _QKV,
            {},
            "neither 0 nor 1",
        ),
        (helper.make_node("Relu", ["x"], ["y"]), {"x": (1,) * 65}, {}, "not known"),
        (
            helper.make_node("Erf", ["x", "z"], ["y"]),
            {"x": (2, 3), "z": (3,)},
            {},
            "Erf has 2 inputs",
        ),
        (helper.make_node("Where", ["x"], ["y"]), {"x": (2, 3)}, {}, "Where has 1 inputs"),
        *(
            (
                helper.make_node(op, ["x"], ["y"], blocksize=1),
                {"x": (2,) * rank},
                {},
                f"of rank {rank}",
            )
            for op, rank in (("SpaceToDepth", 3), ("DepthToSpace", 5))
        ),
        (
            helper.make_node("ScatterND", ["x", "i", "u"], ["y"]),
            {"x": (2, 3), "u": (2, 3)},
            {"i": 1},
            "tuples of None",
        ),
        (
            helper.make_node("OneHot", ["i", "d", "v"], ["y"]),
            {},
            {"i": [0], "d": [7], "v": [1]},
            "the values of OneHot 'y' and what it takes differ: 1 and 2",
        ),
        (helper.make_node("GatherND", ["x", "i"], ["y"]), {"x": (2, 3)}, {"i": 1}, "single index"),
        *(
            (helper.make_node("MatMul", n, ["y"]), {"x": (2, 3), "z": ()}, {}, "of a scalar")
            for n in (["x", "z"], ["z", "x"])
        ),
        (
            helper.make_node("Concat", ["x", "z"], ["y"], axis=1),
            {"x": (2, 3), "z": (2,)},
            {},
            "ranks 2, 1",
        ),
        *(
            (
                helper.make_node("Einsum", ["x", "z"], ["y"], equation=e),
                {"x": (2, 3), "z": (3, 4)},
                {},
                why,
            )
            for e, why in (
                ("", "is for 1 tensors, not 2"),
                ("i,jk->ik", "is not for tensors of rank [2, 2]"),
                ("ij,j...kl->ikl", "is not for tensors of rank [2, 2]"),
                ("ij,jk->iz", "makes an axis that no tensor has"),
            )
        ),
        (
            helper.make_node("Einsum", ["x", "z"], ["y"], equation="ij,jk->ik"),
            {"x": (2, 3), "z": ()},
            {},
            "is not for tensors of rank [2, 0]",
        ),
        (
            helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0]),
            {"x": (2, 3)},
            {},
            "perm [0, 0]",
        ),
        *(
            (helper.make_node(op, ["x", *names], ["y"], **more), {"x": (1, 1, 4, 4)}, given, why)
            for op, names, given, more, why in _AXIS_TWICE
        ),
        (
            helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"]),
            {"x": (2, 3)},
            {"s": [0], "e": [2], "a": [1], "t": [0]},
            "step of 0",
        ),
        (
            helper.make_node("Slice", ["x", "s", "e"], ["y"]),
            {"x": (2, 3)},
            {"s": 0, "e": 2},
            "'s' of Slice has rank 0",
        ),
        (
            helper.make_node("Slice", ["x", "s", "e", "a"], ["y"]),
            {"x": (2, 3)},
            {"s": [0], "e": [2], "a": 1},
            "'a' of Slice has rank 0",
        ),
        (
            helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"]),
            {"x": (2, 3)},
            {"s": [0], "e": [2], "a": [1], "t": [[1]]},
            "'t' of Slice has rank 2",
        ),
        (
            helper.make_node("Tile", ["x", "s"], ["y"]),
            {"x": (2, 3)},
            {"s": [[1, 2]]},
            "'s' of Tile has rank 2",
        ),
        (
            helper.make_node("Split", ["x", "s"], ["y"]),
            {"x": (2, 3)},
            {"s": [1, 1]},
            "1 outputs and 2 sizes",
        ),
        (
            helper.make_node("Resize", ["x", "", "s"], ["y"], nearest_mode="up"),
            {"x": (1, 1, 2, 2), "s": (4,)},
            {},
            "nearest_mode 'up'",
        ),
        (
            helper.make_node("Cast", ["x"], ["y"], to=1 << 62),
            {"x": (2, 3)},
            {},
            "which is no element type",
        ),
        (helper.make_node("Cast", ["x"], ["y"], to=99), {"x": (2, 3)}, {}, "no element type"),
        (helper.make_node("Cast", ["x"], ["y"], to=0), {"x": (2, 3)}, {}, "no element type"),
        (
            helper.make_node("Transpose", ["x"], ["y"], perm=1),
            {"x": (2, 3)},
            {},
            "Transpose has perm as INT, which must be INTS",
        ),
        (
            helper.make_node("Gelu", ["x"], ["y"], approximate=[0.5]),
            {"x": (2, 3)},
            {},
            "Gelu has approximate as FLOATS, which must be STRING",
        ),
        (
            helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=1),
            {"x": (2, 3)},
            {},
            "QuickGelu has alpha as INT, which must be FLOAT",
        ),
        (_twice("perm", [1, 0]), {"x": (2, 3)}, {}, "has the attribute 'perm' twice"),
        (helper.make_node("Concat", ["x"], ["y"]), {"x": (2, 3)}, {}, "lacks the attribute 'axis'"),
        (helper.make_node("Add", ["x", ""], ["y"]), {"x": (2, 3)}, {}, "lacks an input"),
        (helper.make_node("Max", ["x", ""], ["y"]), {"x": (2, 3)}, {}, "lacks an input"),
        (helper.make_node("Relu", ["x"], [""]), {"x": (2, 3)}, {}, "has no name"),
        (
            helper.make_node("Slice", ["x", "a", "b"], ["y"], axes=1.5),
            {"x": (2, 3)},
            {"a": [0], "b": [2]},
            "has the attribute 'axes', which is not of opset 23",
        ),
        (
            helper.make_node(
                "ConstantOfShape",
                ["s"],
                ["y"],
                value=TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[b"a"]),
            ),
            {},
            {"s": [2]},
            "element type 8",
        ),
        (
            helper.make_node("Einsum", ["x", "w"], ["y"], equation="ka,kbcd->abdc"),
            {"x": (3, 2), "w": (3, 1 << 16, 1 << 16, 2)},
            {},
            "too large to be read as one",
        ),
        *(
            (
                helper.make_node(
                    "Attention", ["x", "w"], ["y"], domain="com.microsoft", num_heads=heads
                ),
                {"x": x, "w": w},
                {},
                why,
            )
            for heads, x, w, why in (
                (-1, (1, 2, 8), (8, 24), "projections of unknown widths"),
                (2, (1, 2, 8), (24,), "has rank 1, not 2"),
                (2, (), (8, 24), "has rank 0, not 3"),
                (2, (1, 2, 8), (8, 0), "heads of size 0"),
            )
        ),
        (
            helper.make_node(
                "MultiHeadAttention", [*"qkv"], ["y"], domain="com.microsoft", num_heads=2
            ),
            dict.fromkeys("qkv", (1, 2, 0)),
            {},
            "heads of size 0",
        ),
        (
            helper.make_node(
                "EmbedLayerNormalization",
                ["i", "", "w", "p", "", "g", "b"],
                ["y"],
                domain="com.microsoft",
            ),
            {"w": (8,), "p": (4, 8), "g": (8,), "b": (8,)},
            {"i": [[1, 2]]},
            "'w' of com.microsoft.EmbedLayerNormalization has rank 1, not 2",
        ),
        (
            helper.make_node("RotaryEmbedding", ["x", "c", "c"], ["y"]),
            {"x": (1, 2, 3, 4), "c": ()},
            {},
            "the rotary tables need one constant width",
        ),
        (
            helper.make_node("Concat", ["x", "x"], ["y"], axis=1 << 40),
            {"x": (2, 3)},
            {},
            "of which ONNX Runtime takes 32 bits",
        ),
        (
            helper.make_node("InstanceNormalization", ["x", "w", "w"], ["y"]),
            {"x": (4,), "w": (4,)},
            {},
            "has rank 1, without a channel axis",
        ),
        (
            helper.make_node("BatchNormalization", ["x", "w", "w", "w", "w"], ["y"]),
            {"x": (4,), "w": (4,)},
            {},
            "has rank 1, without a channel axis",
        ),
        (
            helper.make_node("GlobalAveragePool", ["x"], ["y"]),
            {"x": (4,)},
            {},
            "has rank 1, without a channel axis",
        ),
        (
            helper.make_node("GatherElements", ["x", "i"], ["y"]),
            {"x": (2, 3)},
            {"i": [0]},
            "indices of rank 1 for a tensor of rank 2",
        ),
    ],
    ids=lambda v: f"{v.op_type}" if isinstance(v, NodeProto) else "",
)
def test_a_node_that_makes_no_sense_is_refused(
    node: NodeProto, given: dict[str, tuple[int, ...]], constants: dict[str, Any], why: str
) -> None:
    assert why in reason(model_of(node, given, **constants))


def test_a_request_for_a_backend_that_there_is_not_compiles_nothing() -> None:
    m = model_of(helper.make_node("Relu", ["x"], ["y"]), {"x": (2, 3)})
    m.metadata_props.add(key="backend", value="cp")
    with pytest.raises(TraceaError, match="the backend 'cp'"):
        compile_requests.compile_request(m.SerializeToString())


def test_an_operand_too_many_is_not_written_to() -> None:
    """numpy takes it for where the result goes: what activations are recognised by would be other
    numbers from then on.
    """
    at = np.array([0.5, -2.0])
    with pytest.raises(ValueError, match="malformed pointwise expression"):
        evaluate(Expr(2, (Instr("erf", (0, 1)),), 2), [np.zeros(2), at])
    assert at.tolist() == [0.5, -2.0]


def test_a_dim_that_is_gathered_where_there_is_none() -> None:
    m = parse(
        "g (float[N, 3] x) => (int64[1] y) { s = Shape (x) y = Gather <axis = 0> (s, k) }",
        k=np.array([5], np.int64),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        refused = partition_compiler.compile_graph(
            Graph(m), plan_writer.writer_of({}), everything=True
        ).refused
    assert any("reads at 5 is 2, less than 6" in why for _, why in refused)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Squeeze", ["x", "a"], ["y"]),
        helper.make_node("Unsqueeze", ["x", "b"], ["y"]),
        helper.make_node("Gather", ["x", "a"], ["y"], axis=0),
        helper.make_node("Split", ["x"], ["y", "z"], axis=3),
        helper.make_node("Slice", ["x", "a", "a", "b"], ["y"]),
    ],
    ids=lambda n: str(n.op_type),
)
def test_shapes_of_axes_that_are_not_there_are_not_known(node: NodeProto) -> None:
    graph = Graph(model_of(node, {"x": ()}, a=[0], b=[7]))
    assert shapes(graph).dims("y") is None


def test_nodes_in_a_circle_are_one_line() -> None:
    m = parse("g (float[2] x) => (float[2] y) { a = Add (x, b) b = Relu (a) y = Sin (b) }")
    with pytest.raises(ModelError, match="in a circle"):
        partition_compiler.compile_graph(Graph(m), plan_writer.writer_of({}), everything=True)


def test_a_negative_dim_of_a_request_is_of_unknown_size() -> None:
    m = model_of(helper.make_node("Relu", ["x"], ["y"]), {"x": (-2, 3)})
    assert reason(m)


# --- names and attributes -------------------------------------------------------------------------
def _renamed(new: bytes) -> ModelProto:
    m = parse("g (float[2, 3] nnnnn) => (float[2, 3] y) { y = Relu (nnnnn) }")
    m.metadata_props.add(key="claim", value="all")
    out = ModelProto()
    out.ParseFromString(m.SerializeToString().replace(b"nnnnn", new))
    return out


@pytest.mark.parametrize("name", [b"a\xffbcd", b"a\0bcd", b"\0\0\0\0\0"])
def test_a_name_that_is_no_text_is_refused_and_not_compiled(name: bytes) -> None:
    with pytest.raises(ModelError, match="not valid text"):
        model_file.load(_renamed(name))
    assert (
        read_pack(compile_requests.compile_request(_renamed(name).SerializeToString()))[0][
            "entries"
        ]
        == []
    )


def test_an_operator_set_of_a_function_that_is_no_text_is_refused() -> None:
    m = parse("g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    body = [helper.make_node("Relu", ["a"], ["b"])]
    m.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("nnnnn", 1)])
    )
    damaged = ModelProto.FromString(m.SerializeToString().replace(b"nnnnn", b"a\xffbcd"))
    with pytest.raises(ModelError, match="not valid text"):
        model_file.load(damaged)


def test_a_producer_that_is_no_text_matters_to_nothing() -> None:
    m = parse("g (float[2, 3] x) => (float[2, 3] y) { t = Relu (x) y = Sin (t) }")
    m.producer_name = m.graph.doc_string = "nnnnn"
    damaged = ModelProto.FromString(m.SerializeToString().replace(b"nnnnn", b"caf\xe9s"))
    assert optimizer.optimize(damaged, backend="cpu").report.verify


def test_properties_of_a_request_that_are_no_text_are_none() -> None:
    m = _renamed(b"xxxxx")
    m.metadata_props.add(key="nnnnn", value="v")
    damaged = ModelProto()
    damaged.ParseFromString(m.SerializeToString().replace(b"nnnnn", b"\xff\xfe\xff\xfe\xff"))
    assert partition_compiler.properties(damaged) == {"claim": "all"}


def test_one_operator_set_has_one_version() -> None:
    m = parse("g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    m.opset_import.append(helper.make_opsetid("ai.onnx", m.opset_import[0].version))
    assert model_file.load(m)
    m.opset_import.append(helper.make_opsetid("ai.onnx", 2))
    with pytest.raises(ModelError, match=r"in versions \d+ and 2"):
        model_file.load(m)


def _refers(nodes: GraphProto | FunctionProto) -> None:
    nodes.node[0].attribute.append(
        AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    )


def test_an_attribute_of_a_function_is_taken_in_functions_alone() -> None:
    m = parse("g (float[2, 3] x) => (float[2, 3] y) { y = LeakyRelu (x) }")
    f = helper.make_function(
        "local",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("LeakyRelu", ["a"], ["b"])],
        [helper.make_opsetid("", 17)],
        ["slope"],
    )
    _refers(f)
    m.functions.append(f)
    assert not edit.unreadable(m)
    _refers(m.graph)
    with pytest.raises(ModelError, match="takes an attribute from a function"):
        model_file.load(m)


def test_a_function_called_like_an_operator_is_not_what_runs() -> None:
    """ONNX Runtime runs the operator."""
    m = parse("g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    m.functions.append(
        helper.make_function(
            "",
            "Relu",
            ["a"],
            ["b"],
            [helper.make_node("Sqrt", ["a"], ["b"])],
            [helper.make_opsetid("", 17)],
        )
    )
    assert function_calls.expand(m, []) == [] and m.graph.node[0].op_type == "Relu"


def test_a_branch_of_fewer_results_than_its_node_is_not_spliced() -> None:
    branch = "() => (float[2] a) { a = Relu (x) }"
    m = parse(
        f"g (float[2] x) => (float[2] y) {{ y, z = If (c) <then_branch = t {branch}, else_branch "
        f"= e {branch}> }}",
        c=np.array(True),
    )
    assert constant_ifs.fold_constant_ifs(Graph(m), edit.Names(m), {}) == 0


def test_sizes_are_found_where_one_name_is_every_size() -> None:
    """What is left to decide may have no symbol that is still open."""
    q = "r = Reshape <allowzero = 1> (m, s) t = Transpose <perm = [0, 2, 1, 3]> (r)"
    k = "p = Reshape <allowzero = 1> (m, s) c = Transpose <perm = [0, 2, 3, 1]> (p)"
    m = parse(
        f"g (float[n, n, n] a) => (float[k, l, o, p] y) {{ "
        f"m = MatMul (a, w) {q} {k} y = MatMul (t, c) }}",
        s=np.array([-1, 6, 2, 8]), w=np.zeros((16, 16), np.float32),
    )  # fmt: skip
    assert next(iter(input_values.generate(m)))["a"].shape == (16, 16, 16)


def test_shape_values_beyond_64_bits_are_not_folded() -> None:
    m = parse(f"g (float[{1 << 40}, {1 << 40}] x) => (int64 y) {{ s = Size (x) y = Add (s, s) }}")
    assert [n.op_type for n in optimizer.optimize(m, verify=False).model.graph.node] == [
        "Size",
        "Add",
    ]


def test_a_float_constant_among_integers_is_refused_with_a_reason() -> None:
    """Types that no model could have: a request claims them where inference was misled."""
    m = parse(
        "g (bool[3] c, int64[3] x) => (int64[3] y) { y = Where (c, x, low) }",
        low=np.float32(-3.4028234663852886e38),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        [(_, why)] = partition_compiler.compile_graph(
            Graph(m), plan_writer.writer_of({}), everything=True
        ).refused
    assert "no program computes" in why


def test_an_error_of_onnx_runtime_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Its Python wrapper prints an error whose text is no UTF-8 over several lines and tries once
    more, unless it is told not to.
    """
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=b"\xc8\xff")
    x, y = (
        helper.make_tensor_value_info(n, t, [1])
        for n, t in (("x", TensorProto.STRING), ("y", TensorProto.BOOL))
    )
    m = helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    assert not verification.loads(model_file.Source(m))
    assert "EP Error" not in capfd.readouterr().out


def test_dims_and_types_that_a_file_makes_up_are_shown_as_they_are() -> None:
    sides = ", ".join([str(1 << 40)] * 30)
    nodes = "a = Sigmoid (x) b = Mul (a, x) f = Flatten (b) r = Relu (f) y = Reshape (r, s)"
    m = parse(
        f"g (float[{sides}] x) => (float[{sides}] y) {{ {nodes} }}", s=np.array([1 << 40] * 30)
    )
    m.graph.value_info.append(helper.make_tensor_value_info("f", _F, None))
    assert [f.rule for f in optimizer.optimize(m, verify=False).report.fused] == ["pointwise"]
    assert explanation.explain(m, provider=True).coverage is not None
    m.graph.output[0].type.tensor_type.elem_type = 120
    assert contents.inspect(model_file.Source(m))["outputs"][0]["type"] == "type 120"


def test_a_view_of_another_rank_than_a_request_claims_is_none() -> None:
    given, made = (
        helper.make_tensor_value_info(n, _F, d) for n, d in (("x", (2, 3, 4)), ("y", (2, 3)))
    )
    for op in ("Expand", "Unsqueeze"):
        stored = numpy_helper.from_array(np.array([1], np.int64), "s")
        m = helper.make_model(
            helper.make_graph(
                [helper.make_node(op, ["x", "s"], ["y"])], "g", [given], [made], [stored]
            ),
            ir_version=10,
        )
        graph = Graph(m)
        assert (
            strided_view._move(
                shapes(graph),
                [[strided_view.Factor(d)] for d in (2, 3, 4)],
                strided_view.Step(graph.nodes[0], "x", "y"),
            )
            is None
        )


@pytest.mark.parametrize("perm", [[0, 1], [0, 1, 2], [2, 0], [1]])
def test_a_permutation_of_other_axes_than_there_are_is_no_view(perm: list[int]) -> None:
    given, made = (
        helper.make_tensor_value_info(n, _F, d) for n, d in (("x", (2, 3)), ("y", (3, 2)))
    )
    node = helper.make_node("Transpose", ["x"], ["y"], perm=perm)
    graph = Graph(helper.make_model(helper.make_graph([node], "g", [given], [made])))
    step = strided_view.Step(graph.nodes[0], "x", "y")
    view = [[strided_view.Factor(d)] for d in (2, 3)]
    moved = strided_view._move(shapes(graph), view, step)
    assert (moved is None) == (sorted(perm) != [0, 1])


def test_a_split_into_another_rank_than_a_request_claims_is_no_view() -> None:
    given, whole, less = (
        helper.make_tensor_value_info(n, _F, d)
        for n, d in (("x", (2, 4)), ("y", (2, 2)), ("z", (2,)))
    )
    node = helper.make_node("Split", ["x"], ["y", "z"], axis=1, num_outputs=2)
    graph = Graph(helper.make_model(helper.make_graph([node], "g", [given], [whole, less])))
    for target in ("y", "z"):
        step = strided_view.Step(graph.nodes[0], "x", target)
        view = [[strided_view.Factor(d)] for d in (2, 4)]
        assert strided_view._move(shapes(graph), view, step) is None


def test_what_the_checker_says_of_functions_is_said_of_the_original() -> None:
    """Before IR version 8 it does not look at functions; a model with fused ops has a later one."""
    m = parse(
        "g (float[2, 3] x) => (float[2, 3] y) { a = local.F (x) b = Sigmoid (a) y = Mul (a, b) }"
    )
    body = [helper.make_node("Shape", ["a"], ["s"]), helper.make_node("Relu", ["a"], ["b"])]
    m.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("", 14)])
    )
    m.opset_import[0].version = 25
    m.opset_import.append(helper.make_opsetid("local", 1))
    m.ir_version = 7
    found = optimizer.optimize(m, verify=False)
    assert any("checker" in n for n in found.report.notes)


def test_a_request_whose_nodes_are_out_of_order_compiles_nothing() -> None:
    """Rules rely on the order that ONNX asks for; a graph of ONNX Runtime has it."""
    m = parse(
        "g (float[2, 16] x) => (float[2, 8] y) { t = MatMul (x, w) y = Add (t, b) }",
        w=np.ones((16, 8), np.float32),
        b=np.ones(8, np.float32),
    )
    for n in m.graph.node:
        n.doc_string = n.op_type
    m.metadata_props.add(key="claim", value="all")
    assert read_pack(compile_requests.compile_request(m.SerializeToString()))[0]["entries"]
    m.graph.node.reverse()
    assert not read_pack(compile_requests.compile_request(m.SerializeToString()))[0]["entries"]


def test_a_request_that_defines_a_value_twice_compiles_nothing() -> None:
    """A reader of its own result would be followed in a circle."""
    m = parse("g (float[2, 16] x) => (float[2, 16] y) { t = Relu (x) y = Relu (t) }")
    m.metadata_props.add(key="claim", value="all")
    assert read_pack(compile_requests.compile_request(m.SerializeToString()))[0]["entries"]
    m.graph.node[1].output[0] = "t"
    assert not read_pack(compile_requests.compile_request(m.SerializeToString()))[0]["entries"]


def test_dims_that_onnx_runtime_takes_without_optimizations_alone_are_the_models_fault() -> None:
    """A rotary embedding, one of whose slices is of another axis than its claimed dims say."""
    stored = {"zero": 0, "four": 4, "three": 3, "end": np.iinfo(np.int64).max, "two": 2, "one": 1}
    nodes = [
        helper.make_node("Slice", ["a", "zero", "four", "three", "one"], ["low"]),
        helper.make_node("Slice", ["a", "four", "end", "one"], ["high"]),
        helper.make_node("Mul", ["low", "b"], ["plain"]),
        helper.make_node("Slice", ["low", "two", "end", "three", "one"], ["right"]),
        helper.make_node("Neg", ["right"], ["minus"]),
        helper.make_node("Slice", ["low", "zero", "two", "three", "one"], ["left"]),
        helper.make_node("Concat", ["minus", "left"], ["turned"], axis=-1),
        helper.make_node("Mul", ["turned", "c"], ["part"]),
        helper.make_node("Add", ["plain", "part"], ["sum"]),
        helper.make_node("Concat", ["sum", "high"], ["y"], axis=-1),
    ]
    given = [
        helper.make_tensor_value_info(n, _F, d)
        for n, d in (("a", [2, 2, 6, 8]), ("b", [2, 1, 6, 4]), ("c", [2, 1, 6, 4]))
    ]
    graph = helper.make_graph(
        nodes, "g", given, [helper.make_tensor_value_info("y", _F, [2, 2, 6, 8])],
        [numpy_helper.from_array(np.array([v], np.int64), k) for k, v in stored.items()],
        value_info=[helper.make_tensor_value_info("high", _F, [2, 2, 6, 4])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(ModelError, match="claims"):
        optimizer.optimize(model)


@pytest.mark.parametrize("kind", [0, 7])
def test_a_cast_to_what_is_no_float_belongs_to_no_norm(kind: int) -> None:
    """Its result claims to be one."""
    m = parse(
        "g (float16[2, 8] x) => (float16[2, 8] y) { a = Cast <to = 1> (x) b = Mul (a, a) "
        "v = ReduceMean <axes = [-1]> (b) w = Add (v, e) r = Sqrt (w) i = Reciprocal (r) "
        "c = Mul (a, i) d = Cast <to = 10> (c) y = Mul (g, d) }",
        e=np.float32(1e-5), g=np.ones(8, np.float16),
    )  # fmt: skip
    onnx_inference.infer(m, {})
    assert [f.rule for f in find.find(Graph(m), ["rmsnorm"])[0]] == ["rmsnorm"]
    m.graph.node[0].attribute[0].i = kind
    found, _ = find.find(Graph(m), ["rmsnorm"])
    assert all(n.op != "Cast" for match in found for n in match.nodes)


def test_the_attributes_of_runtime_operators_have_kinds() -> None:
    own = (n for op, names in op_traits.READ.items() if "." in op for n in names)
    assert set(own) <= operator_versions._CONTRIB_KINDS.keys()


def test_an_operator_set_with_another_cast_stays_fp32() -> None:
    m = parse("g (float[2, 3] x) => (float[2, 4] y) { y = MatMul (x, w) }", opset=5,
              w=np.ones((3, 4), np.float32))  # fmt: skip
    narrow = optimizer.optimize(m, precision="fp16", verify=False).report.precision
    assert narrow is not None and not narrow.nodes
    assert "too old for fp16" in next(iter(narrow.kept.values()))


def test_a_transpose_that_permutes_no_axes_sinks_nowhere() -> None:
    m = parse(
        "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { a = Transpose <perm = [0, 2, 2]> (x) "
        "b = Concat <axis = 5> (a, a) y = Transpose <perm = [0, 2, 2]> (b) }"
    )
    before = m.graph.node[:]
    assert sink_transposes.sink(Graph(m), {"y"}, edit.Names(m)) == 0 and m.graph.node[:] == before
    m = parse(
        "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { a = Transpose <perm = [0, 2, 1]> (x) "
        "b = Concat <axis = 5> (a, a) c = Pad (b, p) y = Transpose <perm = [0, 2, 1]> (c) }",
        p=np.array([0, 1], np.int64),
    )
    assert sink_transposes.sink(Graph(m), {"y"}, edit.Names(m)) == 0


def test_a_slice_of_fewer_axes_than_ends_stays() -> None:
    m = parse(
        "g (float[2, 3] x) => (float[2, 3] y) { a = Slice (x, s, e, b) y = Relu (a) }",
        s=np.zeros(2, np.int64), e=np.full(2, 1 << 40), b=np.zeros(1, np.int64),
    )  # fmt: skip
    assert identities.remove_no_ops(Graph(m), {"y"}) == 0


def test_an_identity_without_a_name_replaces_no_absent_operand() -> None:
    m = parse("g (float[2] x, float[2] z) => (float[2] y) { a = Identity (z) y = Clip (x, , h) }",
              h=np.float32(1.0))  # fmt: skip
    m.graph.node[0].output[0] = ""
    assert identities.remove_no_ops(Graph(m), {"y"}) == 0
    assert [*m.graph.node[1].input] == ["x", "", "h"]


def test_a_node_without_results_in_a_circle_is_one_line() -> None:
    m = parse("g (float[2] x) => (float[2] y) { a = Add (x, b) b = Relu (a) y = Sin (b) }")
    m.graph.node.insert(0, helper.make_node("Relu", ["b"], []))
    with pytest.raises(ModelError, match="cycle through node '' "):
        edit.sort_nodes(m.graph, "the graph")


def test_a_constant_that_makes_nothing_stays() -> None:
    m = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    m.graph.node.insert(0, helper.make_node("Constant", [], [], value_int=1))
    assert len(canonical_form.canonicalise(m).graph.node) >= 1


def test_a_branch_with_a_sparse_constant_is_not_spliced() -> None:
    branch = "() => (float[2] a) { a = Relu (x) }"
    m = parse(
        f"g (float[2] x) => (float[2] y) {{ y = If (c) <then_branch = t {branch}, else_branch "
        f"= e {branch}> }}",
        c=np.array(True),
    )
    m.graph.node[0].attribute[0].g.sparse_initializer.add().values.name = "s"
    assert constant_ifs.fold_constant_ifs(Graph(m), edit.Names(m), {}) == 0


def test_a_spec_without_a_number_is_not_written() -> None:
    m = parse("g (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = Gemm (x, w) }", opset=13)
    m.graph.node[0].attribute.append(helper.make_attribute("alpha", float("inf")))
    onnx_inference.infer(m, {})
    single_nodes.outline(m, None)
    assert [n.op_type for n in m.graph.node] == ["Gemm"]


@pytest.mark.parametrize("text", [r'["\ud800"]', r'["a\u0000"]'])
def test_names_that_no_model_can_hold_are_damage(text: str) -> None:
    with pytest.raises(ModelError, match="lists no nodes"):
        fused_calls.read_nodes(text)


def test_a_power_that_is_no_number_is_not_known() -> None:
    m = parse(
        "g (float x) => (float y) { a = Pow (b, h) y = Mul (x, a) }",
        b=np.float32(-8.0), h=np.float32(0.5),
    )  # fmt: skip
    assert shapes(Graph(m)).content("a") is None


_RESULTS = (np.zeros((2, 3)), [np.zeros(2), np.zeros(3)], None, [{"a": 1}])


@pytest.mark.parametrize("given", _RESULTS)
@pytest.mark.parametrize("wanted", _RESULTS)
def test_results_of_any_kinds_are_compared(wanted: Any, given: Any) -> None:
    found = verification._compare("y", wanted, given, verification.Bounds(None, 0.0, 1, 0.0))
    assert found.ok == (wanted is given)


def test_a_value_that_its_own_maker_reads_is_drawn_once() -> None:
    branch = "() => (float[2] a) { y = Relu (x) a = Relu (y) }"
    m = parse(
        f"g (float[2] x, bool c) => (float[2] y) {{ y = If (c) <then_branch = t {branch}, "
        f"else_branch = e {branch}> }}"
    )
    for a in m.graph.node[0].attribute:
        a.g.node[0].output[0] = "z"  # so that the body reads what the If makes
    account = explanation.explain(parse("g (float[2] x) => (float[2] y) { y = Relu (x) }"))
    _, edges = html_page._boxes(Graph(m), account, {})
    assert ("# 0", "# 0") not in edges


def _faultless(model: ModelProto) -> partition_compiler.Compiled:
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        return partition_compiler.compile_graph(
            Graph(model), plan_writer.writer_of({}), everything=True
        )


def test_a_one_hot_of_any_depth_has_a_plan() -> None:
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"])
    assert not _faultless(model_of(node, {}, i=[0], d=[1 << 40], v=[0, 1])).refused


def test_a_grid_of_another_rank_than_its_image_is_refused() -> None:
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode="linear")
    m = model_of(node, {"x": (1, 1, 4, 4), "g": (2, 2, 2)})
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        writer = plan_writer.writer(backends.get("cuda"))
        [(_, why)] = partition_compiler.compile_graph(Graph(m), writer, everything=True).refused
    assert "a grid of rank 3" in why


def test_a_concat_of_the_first_operator_set_has_a_default_axis() -> None:
    m = parse("g (float[2, 3] x) => (float[2, 6] y) { y = Concat (x, x) }", opset=3)
    assert shapes(Graph(m)).dims("y") == (2, 6) and not _faultless(m).refused


def test_a_norm_of_the_first_operator_set_has_a_power_that_is_a_number() -> None:
    m = parse("g (float[1, 2, 4] x) => (float[1, 2, 2] y) { y = LpPool (x) }", opset=1)
    m.graph.node[0].attribute.extend(
        [helper.make_attribute("p", float("nan")), helper.make_attribute("kernel_shape", [2])]
    )
    [(_, why)] = _faultless(m).refused
    assert "p nan" in why


def test_a_split_of_sizes_into_more_than_there_are() -> None:
    m = parse(
        "g (float[n, m, k] x) => (int64[2] y) { s = Shape (x) a, b = Split (s, p) "
        "y = Concat <axis = 0> (b, o) }",
        p=np.array([2, 2], np.int64), o=np.array([1], np.int64),
    )  # fmt: skip
    assert any("parts of Split" in why for _, why in _faultless(m).refused)


def test_sizes_that_their_type_does_not_hold_are_not_followed() -> None:
    big = np.full(9, 1 << 40)
    m = parse("g (float[n] x) => (int32[9] y) { y = Cast <to = 6> (b) }", b=big)
    onnx_inference.infer(m, {})
    _faultless(m)


def test_a_result_of_a_type_without_kernels() -> None:
    """A request claims it where inference was misled."""
    m = parse("g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    m.graph.output[0].type.tensor_type.elem_type = 99
    [(_, why)] = _faultless(m).refused
    assert "element type 99" in why


def test_a_view_of_a_value_that_claims_another_rank_is_none() -> None:
    m = parse(
        "g (float[2, 3] x) => (float[3] y) { a = Reshape (x, s) y = Gather <axis = 1> (a, k) }",
        s=np.array([6], np.int64), k=np.array(0),
    )  # fmt: skip
    m.graph.value_info.append(helper.make_tensor_value_info("a", _F, [2, 3]))
    g = Graph(m)
    steps = strided_view.chain(g, shapes(g), "y")
    assert len(steps) == 2
    assert strided_view.follow(shapes(g), strided_view.start((2, 3)), reversed(steps)) is None


@pytest.mark.parametrize("given", [[2, 3, 0], [-2, -3], [2, 3, -1]])
def test_a_reshape_into_what_is_no_size_is_no_view(given: list[int]) -> None:
    """Whatever dims a file claims that it has."""
    m = parse("g (float[2, 3] x) => (float[2, 3, 1] y) { y = Reshape (x, s) }", s=np.array(given))
    g = Graph(m)
    steps = strided_view.chain(g, shapes(g), "y")
    moved = strided_view.follow(shapes(g), strided_view.start((2, 3)), steps)
    assert (moved is not None) == (given == [2, 3, -1])


_MANY = 1200


def _many_parts() -> ModelProto:
    names = [f"x{k}" for k in range(_MANY)]
    given = [helper.make_tensor_value_info(n, _F, [f"n{k}", 4]) for k, n in enumerate(names)]
    nodes = [
        helper.make_node("Concat", names, ["a"], axis=0),
        helper.make_node("Reshape", ["a", "s"], ["y"]),
    ]
    return _whole(nodes, given, s=np.array([-1, 2]))


def _many_axes() -> ModelProto:
    given = [helper.make_tensor_value_info("x", _F, [f"n{k}" for k in range(_MANY)])]
    return _whole([helper.make_node("Flatten", ["x"], ["y"])], given)


def _tower() -> ModelProto:
    """Sizes that shapes share, over and over: 3 to the power of the height if nothing was."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    for k in range(_MANY // 4):
        nodes += [
            helper.make_node("Add", [f"s{k}", "one"], [f"a{k}"]),
            helper.make_node("Mul", [f"a{k}", f"s{k}"], [f"m{k}"]),
            helper.make_node("Max", [f"m{k}", f"a{k}"], [f"b{k}"]),
            helper.make_node("Min", [f"b{k}", f"m{k}"], [f"s{k + 1}"]),
        ]
    nodes += [
        helper.make_node("ConstantOfShape", [f"s{_MANY // 4}"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", _F, ["p", "q"])]
    return _whole(nodes, given, one=np.array([1]))


def _whole(nodes: list[NodeProto], given: list[Any], **constants: Any) -> ModelProto:
    stored = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    made = [helper.make_tensor_value_info("y", _F, None)]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("make", [_many_parts, _many_axes, _tower])
def test_sizes_of_very_many_others_are_not_followed(make: Callable[[], ModelProto]) -> None:
    model = make()
    assert optimizer.optimize(model, verify=False).model.graph.node
    _faultless(model)
    assert all(shape for shape, _ in input_sizes.shapes(model, model.graph.input, {}, {}))


def test_what_divides_a_tower_of_sizes_is_known_at_once() -> None:
    d: dims.DimLike = dims.symbol("n")
    for _ in range(200):
        d = dims.select(dims.less(d, 7), dims.maximum(dims.mul(d, 2), d), dims.add(d, 4))
    assert dims.factor(d) == 1 and dims.multiple_of(dims.mul(d, 8)) == 8


def _triangle(text: str, **constants: Any) -> masks.BandMask | None:
    m = parse(f"g (int64[1] i, float[n, m] x) => (float[n, m] y) {{ {text} }}", **constants)
    onnx_inference.infer(m, {})
    g = Graph(m)
    return masks.triangle(g, shapes(g), "y")


@pytest.mark.parametrize(
    "text",
    [
        "a = Range (z, l, o) b = Unsqueeze (a, d) y = LessOrEqual (a, b)",  # of floats
        "y = Max (v)",
        "y = ConstantOfShape <value = float[0] {}> (i)",
        "y = Trilu (v, e)",
    ],
)
def test_masks_of_odd_operands_are_none(text: str) -> None:
    found = _triangle(
        text,
        z=np.float32(0.0),
        l=np.float32(4.0),
        o=np.float32(1.0),
        d=np.array([1]),
        v=np.ones((2, 2), np.float32),
        e=np.zeros(0, np.int64),
    )
    assert found is None or found.uniform


def test_a_mask_of_a_tower_is_read_once() -> None:
    steps = " ".join(f"s{k + 1} = Add (s{k}, s{k})" for k in range(14))
    assert _triangle(f"s0 = Relu (x) {steps} y = Mul (s14, s14)") is None


def test_an_operand_that_the_match_makes_itself_is_refused() -> None:
    """Of one row, a step of a norm has the dims of a weight."""
    m = parse(
        "g (float[8] x) => (float[8] y) { b = Mul (x, x) v = ReduceMean <axes = [0]> (b) "
        "w = Add (v, e) r = Sqrt (w) c = Div (x, r) y = Mul (c, b) }",
        e=np.float32(1e-5),
    )
    onnx_inference.infer(m, {})
    assert not find.find(Graph(m), ["rmsnorm"])[0] or all(
        "b" not in match.inputs for match in find.find(Graph(m), ["rmsnorm"])[0]
    )


def test_attention_of_no_heads_is_refused() -> None:
    m = model_of(
        helper.make_node("Attention", ["q", "k", "v"], ["y"]),
        {"q": (1, 2, 3, 4), "k": (1, 0, 3, 4), "v": (1, 0, 3, 4)},
    )
    assert not find.find(Graph(m), ["attention_op"])[0]
    m = model_of(
        helper.make_node("MultiHeadAttention", [*"qkv"], ["y"], domain="com.microsoft",
                         num_heads=-1, scale=1.0),
        dict.fromkeys("qkv", (1, 2, 4)),
    )  # fmt: skip
    matches, refusals = find.find(Graph(m), ["attention_op"])
    assert not matches and "no number of heads" in refusals[0].reason


def test_halves_without_an_axis_are_none() -> None:
    m = parse("g (float[4] x) => (float[4] y) { a, b = Split (x) y = Concat <axis = 0> (b, a) }")
    for name in ("a", "b"):
        m.graph.value_info.append(helper.make_tensor_value_info(name, _F, ()))
    g = Graph(m)
    assert rope.halves(g, "a", "b") is None and rope.stacked(g, g.nodes[1]) is None


def test_what_reads_a_result_of_attention_may_make_nothing() -> None:
    m = model_of(
        helper.make_node("Attention", ["q", "k", "v"], ["y"]), dict.fromkeys("qkv", (1, 2, 3, 4))
    )
    m.graph.node.append(helper.make_node("Relu", ["y"], []))
    del m.graph.output[:]
    m.graph.output.append(helper.make_empty_tensor_value_info("q"))
    find.find(Graph(m), ["attention_op"])


@pytest.mark.parametrize(
    ("node", "given", "opset", "why"),
    [
        (
            helper.make_node("Crop", ["x"], ["y"], border=[1, 1]),
            {"x": (1, 2, 4, 4)},
            1,
            "Crop takes no borders",
        ),
        (
            helper.make_node("Crop", ["x"], ["y"], border=[0, 0, 0, 0], scale=[2]),
            {"x": (1, 2, 4, 4)},
            1,
            "Crop takes no borders",
        ),
        (
            helper.make_node("Col2Im", ["x", "i", "b"], ["y"], strides=[2, 2]),
            {"x": (2, 4)},
            18,
            "Col2Im has a tensor of rank 2",
        ),
        (
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], output_shape=[8]),
            {"x": (1, 4, 4, 4), "w": (4, 4, 2, 2)},
            11,
            "",
        ),
    ],
    ids=lambda v: f"{v.op_type}" if isinstance(v, NodeProto) else "",
)
def test_operators_that_the_provider_learnt_later(
    node: NodeProto, given: dict[str, tuple[int, ...]], opset: int, why: str
) -> None:
    m = model_of(node, given, opset, i=[4, 4], b=[2, 2])
    if "w" in given:
        del m.graph.input[1]
        m.graph.initializer.append(numpy_helper.from_array(np.ones(given["w"], np.float32), "w"))
    assert why in reason(m)


def test_a_node_that_reads_very_many_is_drawn_with_straight_edges() -> None:
    boxes = [f"# {k}" for k in range(800)]
    edges = [(a, b) for a, b in pairwise(boxes)] + [(b, boxes[-1]) for b in boxes[:-2]]
    assert len(layout.layout(boxes, edges, []).curves) == len(edges)


class _Counted(set[str]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


def test_names_that_are_all_alike_are_numbered_in_no_time() -> None:
    taken = _Counted()
    made = [edit.unique("n", taken) for _ in range(1000)]
    assert made == ["n", *(f"n_{k}" for k in range(1, 1000))] and taken.asked < 30_000


@pytest.mark.parametrize("text", ["2-5", "0*n-4", "n-1", "0-1+n"])
def test_a_dim_that_is_less_than_another_is_compared_when_that_is_known(text: str) -> None:
    given = [helper.make_tensor_value_info("x", _F, [text, "n"])]
    m = _whole([helper.make_node("Relu", ["x"], ["y"])], given)
    found = _faultless(m)
    assert len(found.entries) == 1 and not found.refused
