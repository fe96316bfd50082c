"""What the provider leaves to ONNX Runtime because that is faster."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx.provider import assigned_nodes, create_session


def half_precision_rmsnorm() -> bytes:
    """x in half precision, normalised in float, multiplied by a half-precision weight."""
    constants = {
        "two": np.array(2, np.float32),
        "eps": np.array(1e-6, np.float32),
        "w": np.linspace(0.5, 1.5, 32).astype(np.float16),
    }
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Pow", ["f", "two"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["m"], axes=[-1], keepdims=1),
        helper.make_node("Add", ["m", "eps"], ["a"]), helper.make_node("Sqrt", ["a"], ["s"]),
        helper.make_node("Div", ["f", "s"], ["d"]),
        helper.make_node("Cast", ["d"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["h", "w"], ["y"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT16, [4, 32])],
        [value("y", TensorProto.FLOAT16, [4, 32])],
        stored,
    )
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ).SerializeToString()
    )


def test_pieces_of_a_chain_that_cannot_run_whole_are_left() -> None:
    source = half_precision_rmsnorm()
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float16)
    chosen, everything = create_session(source), create_session(source, {"claim": "all"})
    assert assigned_nodes(chosen) == [] and "ReduceMean" in assigned_nodes(everything)
    f = x.astype(np.float64)
    want = f / np.sqrt((f**2).mean(-1, keepdims=True) + 1e-6) * np.linspace(0.5, 1.5, 32)
    for session in (chosen, everything):
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0].astype(np.float64), want, rtol=2e-3, atol=1e-3
        )
