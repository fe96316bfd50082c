"""ONNX's Attention as a single node, which no rule fuses with anything, on the provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tracea_onnx
from tracea_onnx import provider
from tracea_onnx.compiler import compile_requests
from tracea_onnx.plan.builder import read_pack

CASES: dict[str, tuple[int, dict[str, Any], str]] = {
    "heads": (4, {}, ""), "causal": (4, {"is_causal": 1}, ""), "scaled": (4, {"scale": 0.5}, ""),
    "added": (4, {}, "float"), "hidden": (4, {}, "bool"),
    "flat": (3, {"q_num_heads": 4, "kv_num_heads": 2}, "bool"),
    "capped": (4, {"softcap": 2.0}, "bool"),
    "capped, causal": (4, {"softcap": 0.5, "is_causal": 1}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_as_onnx_runtime(case: str) -> None:
    rank, attrs, mask = CASES[case]
    rng = np.random.default_rng(0)
    heads, kv, size, queries, keys = (
        4,
        2 if rank == 3 else 4,
        8,
        5,
        5 if "is_causal" in attrs else 7,
    )
    shapes = {
        n: (2, c, s, size) if rank == 4 else (2, s, c * size)
        for n, c, s in (("q", heads, queries), ("k", kv, keys), ("v", kv, keys))
    }
    data: dict[str, Any] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if mask:
        data["m"] = (
            rng.random((2, 1, queries, keys)) > 0.3
            if mask == "bool"
            else rng.standard_normal((queries, keys)).astype(np.float32)
        )
    given = [
        helper.make_tensor_value_info(
            n,
            helper.np_dtype_to_tensor_dtype(a.dtype),
            ["b" if a.ndim > 2 else a.shape[0], *a.shape[1:]],
        )
        for n, a in data.items()
    ]
    node = helper.make_node("Attention", [*data], ["y"], **attrs)
    graph = helper.make_graph(
        [node], "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11
    ).SerializeToString()
    if "softcap" in attrs:  # ONNX Runtime 1.24 and the reference of onnx 1.21 cap behind the mask
        want: Any = [capped(attrs, **data)]
    else:
        want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)
    session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    assert all(
        p.ep_name == provider.PROVIDER_NAME for p in session.get_provider_graph_assignment_info()
    )
    np.testing.assert_allclose(session.run(None, data)[0], want[0], rtol=1e-4, atol=1e-5)


def capped(attrs: dict[str, Any], q: Any, k: Any, v: Any, m: Any = True) -> Any:
    """softmax(mask(softcap * tanh(q k^T / sqrt(d) / softcap))) v in float64, the mask and the
    causal one writing -inf.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = attrs["softcap"] * np.tanh(scores / attrs["softcap"])
    seen = np.tri(*scores.shape[-2:]) > 0 if attrs.get("is_causal") else np.True_
    scores = np.where(seen & m, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).astype(np.float32)


def test_a_single_query_with_heads_in_the_batch() -> None:
    """As torch.nn.MultiheadAttention pools tokens: the result's first axis holds the heads of every
    row of the batch.
    """
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Reshape", ["q", "one"], ["q3"]),
        helper.make_node("Transpose", ["q3"], ["qt"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["k", "seven"], ["k3"]),
        helper.make_node("Transpose", ["k3"], ["kt"], perm=[1, 2, 0]),
        helper.make_node("Reshape", ["v", "seven"], ["v3"]),
        helper.make_node("Transpose", ["v3"], ["vt"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["qt", "kt"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "vt"], ["o"]),
        helper.make_node("Transpose", ["o"], ["ot"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["ot", "flat"], ["y"]),
    ]  # fmt: skip
    stored = [
        numpy_helper.from_array(np.array(v), n)
        for n, v in (("one", [1, -1, 8]), ("seven", [7, -1, 8]), ("flat", [-1, 32]))
    ]
    given = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [t, "b", 32])
        for n, t in (("q", 1), ("k", 7), ("v", 7))
    ]
    graph = helper.make_graph(
        nodes, "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    data = {
        n: rng.standard_normal((t, 3, 32)).astype(np.float32)
        for n, t in (("q", 1), ("k", 7), ("v", 7))
    }
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)
    with compile_requests.recording() as packs:
        session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    assert [
        launch["k"] for e in read_pack(packs[-1])[0]["entries"] for launch in e["plan"]["run"]
    ].count("attention") == 1
    np.testing.assert_allclose(session.run(None, data)[0], want[0], rtol=1e-4, atol=1e-5)


def _of_unknown_heads() -> tuple[dict[str, Any], list[Any]]:
    """Random operands q, k and v of an Attention, and inputs of a graph for them without a known
    size.
    """
    rng = np.random.default_rng(0)
    data = {
        n: rng.standard_normal((2, s, 12)).astype(np.float32)
        for n, s in (("q", 5), ("k", 7), ("v", 7))
    }
    return data, [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n}{k}" for k in range(3)])
        for n in data
    ]


def test_heads_of_unknown_size() -> None:
    """ONNX infers 0 for the last axis of a result whose head size it does not know: what reads the
    result has the sizes of the run.
    """
    data, given = _of_unknown_heads()
    nodes = [
        helper.make_node("Attention", [*data], ["a"], q_num_heads=2, kv_num_heads=2),
        helper.make_node("Transpose", ["a"], ["y"], perm=[2, 0, 1]),
    ]
    graph = helper.make_graph(
        nodes, "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11
    ).SerializeToString()
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)[0]
    session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    assert "Transpose" in provider.assigned_nodes(session)
    got = session.run(None, data)[0]
    assert got.shape == (12, 2, 5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_heads_of_unknown_size_that_a_body_makes() -> None:
    """The 0 comes out of a Loop of a version that no rule reads, and goes into the partition."""
    data, given = _of_unknown_heads()
    going, on = (helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("going", "on"))
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Attention", [*data], ["a"], q_num_heads=2, kv_num_heads=2),
        ],
        "body",
        [helper.make_tensor_value_info("turn", TensorProto.INT64, []), going],
        [on, helper.make_tensor_value_info("a", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Loop", ["turns", ""], ["all"], body=body),
        helper.make_node("Tanh", ["all"], ["y"]),
    ]
    turns = [numpy_helper.from_array(np.array(3), "turns")]
    graph = helper.make_graph(
        nodes, "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], turns
    )
    opsets = [helper.make_opsetid("", 23)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)[0]
    session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    assert "Tanh" in provider.assigned_nodes(session)
    got = session.run(None, data)[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_heads_of_unknown_size_that_a_body_reads() -> None:
    """The provider sees the body alone: the 0 comes with a value that the body captures."""
    data, given = _of_unknown_heads()
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)
    ends = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("going", "on")]
    nodes = [
        helper.make_node("Identity", ["going"], ["on"]), helper.make_node("Sin", ["a"], ["s"]),
        helper.make_node("Reshape", ["s", "flat"], ["rows"]),
    ]  # fmt: skip
    body = helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info("turn", TensorProto.INT64, []), ends[0]],
        [ends[1], rows],
    )
    nodes = [
        helper.make_node("Attention", [*data], ["a"], q_num_heads=2, kv_num_heads=2),
        helper.make_node("Loop", ["turns", ""], ["all"], body=body),
        helper.make_node("Tanh", ["all"], ["y"]),
    ]  # fmt: skip
    constants = [
        numpy_helper.from_array(np.array(v, np.int64), n)
        for n, v in {"flat": [-1], "turns": 3}.items()
    ]
    graph = helper.make_graph(
        nodes, "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11
    ).SerializeToString()
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)[0]
    session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    assert "Sin" in provider.assigned_nodes(session)
    got = session.run(None, data)[0]
    assert got.shape == (3, 120)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", [["y"], ["y", "a"]], ids=["inner", "output"])
@pytest.mark.parametrize("known", [(), ("q", "k")], ids=["no sizes", "sizes of q and k"])
def test_what_reads_heads_of_unknown_size_keeps_its_nodes(
    outputs: list[str], known: tuple[str, ...]
) -> None:
    """Nothing is simplified by sizes that follow from that 0: a Slice of a value of no elements, it
    seemed, is not a Slice of all of them. Where the Attention's own result is an output, its type
    is what the output declares, and the 0 shows only in what follows.
    """
    data, given = _of_unknown_heads()
    given = [
        helper.make_tensor_value_info(v.name, TensorProto.FLOAT, data[v.name].shape)
        if v.name in known
        else v
        for v in given
    ]
    stored = {"flat": [-1], "begin": [0], "end": [30], "axis": [0], "shape": [5, 6]}
    nodes = [
        helper.make_node("Attention", [*data], ["a"], q_num_heads=2, kv_num_heads=2),
        helper.make_node("Reshape", ["a", "flat"], ["b"]),
        helper.make_node("Slice", ["b", "begin", "end", "axis"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["y"]),
    ]  # fmt: skip
    constants = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in stored.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        given,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, data
    )[0]
    better = tracea_onnx.optimize(model, verify=False).model
    assert "Slice" in [n.op_type for n in better.graph.node]
    np.testing.assert_allclose(
        ort.InferenceSession(better.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, data
        )[0],
        want,
        rtol=1e-4,
        atol=1e-5,
    )
    session = provider.create_session(
        better.SerializeToString(), {"backend": "cpu", "claim": "all"}
    )
    assert "Slice" in provider.assigned_nodes(session)
    np.testing.assert_allclose(session.run(None, data)[0], want, rtol=1e-4, atol=1e-5)


def test_what_reads_heads_of_unknown_size_out_of_a_body_keeps_its_nodes() -> None:
    rng = np.random.default_rng(0)
    data = {
        n: rng.standard_normal((2, s, 12)).astype(np.float32)
        for n, s in (("q", 5), ("k", 7), ("v", 7))
    }
    given = [
        helper.make_tensor_value_info(
            n, TensorProto.FLOAT, [2, 5, 12] if n == "q" else [f"{n}{k}" for k in range(3)]
        )
        for n in data
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("going", "on")]
    nodes = [
        helper.make_node("Identity", ["going"], ["on"]),
        helper.make_node("Attention", [*data], ["a"], q_num_heads=2, kv_num_heads=2),
    ]
    made = helper.make_tensor_value_info("a", TensorProto.FLOAT, None)
    body = helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info("turn", TensorProto.INT64, []), ends[0]],
        [ends[1], made],
    )
    stored = {
        "turns": 2,
        "last": -1,
        "flat": [-1],
        "begin": [0],
        "end": [30],
        "axis": [0],
        "shape": [5, 6],
    }
    nodes = [
        helper.make_node("Loop", ["turns", ""], ["all"], body=body),
        helper.make_node("Gather", ["all", "last"], ["g"], axis=0),
        helper.make_node("Reshape", ["g", "flat"], ["b"]),
        helper.make_node("Slice", ["b", "begin", "end", "axis"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["y"]),
    ]  # fmt: skip
    constants = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in stored.items()]
    graph = helper.make_graph(
        nodes, "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, data
    )[0]
    better = tracea_onnx.optimize(model, verify=False).model
    np.testing.assert_allclose(
        ort.InferenceSession(better.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, data
        )[0],
        want,
        rtol=1e-4,
        atol=1e-5,
    )
