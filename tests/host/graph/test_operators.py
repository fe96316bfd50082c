"""Operators newer than what was read, or with attributes that nothing reads, stay with ONNX
Runtime: no rule, no kernel, and a sentence that says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, defs, helper

from tests.host.pipeline_models import parse
from tools.operators import schemas
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.compiler.lower import LOWER
from tracea_onnx.ir import onnx_operators, op_traits, operator_versions
from tracea_onnx.ir.abi import OPCODES_OF
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.pointwise_ops import POINTWISE
from tracea_onnx.match import find
from tracea_onnx.match.operator_specs import OPERATORS
from tracea_onnx.pipeline import optimizer
from tracea_onnx.shapes import onnx_inference

F32 = TensorProto.FLOAT


def graph(
    op: str,
    inputs: Mapping[str, tuple[int, ...]],
    *,
    opset: int = 25,
    domain: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Graph:
    node = helper.make_node(op, [*inputs], ["y"], name="n", domain=domain, **(attrs or {}))
    given = [helper.make_tensor_value_info(n, F32, s) for n, s in inputs.items()]
    made = helper.make_tensor_value_info("y", F32, None)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    m: ModelProto = helper.make_model(
        helper.make_graph([node], "g", given, [made]), opset_imports=opsets, ir_version=12
    )
    onnx_inference.infer(m, {})
    return Graph(m)


def test_every_operator_has_one_row_of_traits() -> None:
    rows = [op for ops, *_ in op_traits._ROWS for op in ops.split()]
    rows += [*OPCODES_OF, *op_traits.COMPOSED]
    assert len(rows) == len(set(rows))
    assert not set(POINTWISE) - set(rows)
    unknown = {op for op in rows if "." not in op and op[0] != ":"} - {
        s.name for s in defs.get_all_schemas_with_history()
    }
    # ONNX Runtime's, of the default domain
    assert unknown <= {"SimplifiedLayerNormalization", "Affine", "Crop", "ImageScaler"}
    assert {op for op in op_traits.kinds(*op_traits.Trait) if op[0] == ":"} <= LOWER.keys()
    assert all(op_traits.kinds(trait) for trait in op_traits.Trait)


HEADS = {"q": (2, 4, 5, 8), "k": (2, 4, 7, 8), "v": (2, 4, 7, 8)}


@pytest.mark.parametrize("window", ["left_window_size", "right_window_size"])
def test_attention_in_a_window_is_left(window: str) -> None:
    g = graph("Attention", HEADS, attrs={window: 2})
    matches, refusals = find.find(g)
    assert not matches and any(window in r.reason for r in refusals)
    compiled = partition_compiler.compile_graph(g, everything=True)
    assert not compiled.entries and window in compiled.refused[0][1]


@pytest.mark.parametrize("window", ["left_window_size", "right_window_size"])
def test_a_window_of_everything_is_none(window: str) -> None:
    compiled = partition_compiler.compile_graph(
        graph("Attention", HEADS, attrs={window: -1}), everything=True
    )
    assert len(compiled.entries) == 1 and not compiled.refused


def test_an_attribute_of_tomorrow_is_left() -> None:
    g = graph("Relu", {"x": (2, 3)}, attrs={"slope": 0.5})
    assert "slope" in g.nodes[0].unread
    compiled = partition_compiler.compile_graph(g, everything=True)
    assert not compiled.entries and "slope" in compiled.refused[0][1]
    g = graph("Gelu", {"x": (2, 3)}, domain="com.microsoft", attrs={"exactness": 1})
    assert "exactness" in partition_compiler.compile_graph(g, everything=True).refused[0][1]


def test_an_opset_of_tomorrow_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # AveragePool changed in opset 22, Softmax did not
    monkeypatch.setattr(operator_versions, "NEWEST", 21)
    pool = graph("AveragePool", {"x": (1, 3, 8, 8)}, opset=22, attrs={"kernel_shape": [2, 2]})
    assert "newer" in pool.nodes[0].unread
    assert not graph("Softmax", {"x": (1, 3)}, opset=22).nodes[0].unread
    compiled = partition_compiler.compile_graph(pool, everything=True)
    assert not compiled.entries and "newer" in compiled.refused[0][1]


def test_an_opset_that_onnx_itself_does_not_know_is_left() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    assert "newer" in operator_versions.unread("Softmax", node, 999)


def test_a_model_that_imports_no_operator_set_is_left() -> None:
    """ONNX Runtime takes the newest one, and the oldest in a function that imports none."""
    m = parse("g (float[2, 3] x) => (y) { a = Mul (x, x) b = Add (a, x) y = Relu (b) }")
    m.opset_import[0].domain = "ai.tracea"
    assert "imports no operator set" in Graph(m).nodes[0].unread
    assert not optimizer.optimize(m, verify=False).report.fused


def test_the_table_of_operators_is_what_onnx_says() -> None:
    """`python -m tools.operators` writes it."""
    newest = json.loads(onnx_operators.TABLE.read_bytes())["opset"]
    for op, versions in schemas().items():
        for known in versions:
            if known.since <= newest:
                assert onnx_operators.schema(op, known.since) == known
    assert (
        onnx_operators.schema("Relu", 0) is onnx_operators.schema("com.microsoft.Gelu", 1) is None
    )
    assert onnx_operators.schema("Relu", 1 << 40) is None


def test_every_operator_with_a_kernel_is_in_the_table() -> None:
    kinds = {k for k in (*LOWER, *OPERATORS) if not k.startswith(":")}
    assert kinds <= op_traits.READ.keys()


def test_a_model_with_an_operator_of_tomorrow_keeps_its_results() -> None:
    """The window is honoured by whoever runs the node."""
    import onnxruntime as ort

    from tracea_onnx import provider

    given = [helper.make_tensor_value_info(n, F32, s) for n, s in HEADS.items()]
    node = helper.make_node("Attention", [*HEADS], ["y"], left_window_size=1, right_window_size=1)
    g = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", F32, None)])
    source = helper.make_model(
        g, opset_imports=[helper.make_opsetid("", 25)], ir_version=12
    ).SerializeToString()
    try:
        plain = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    except Exception:
        pytest.skip("this ONNX Runtime does not know opset 25's Attention")
    data = {
        n: np.random.default_rng(len(n)).standard_normal(s).astype(np.float32)
        for n, s in HEADS.items()
    }
    session = provider.create_session(source, {"backend": "cpu", "claim": "all"})
    np.testing.assert_allclose(
        session.run(None, data)[0], plain.run(None, data)[0], rtol=1e-4, atol=1e-5
    )
