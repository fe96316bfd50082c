"""Hand-made models and plans for the provider tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import OPCODES
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.plan.builder import PlanBuilder, Ref

F32 = 1
Entries = list[tuple[list[str], dict[str, Any], list[bytes]]]
Install = Callable[[Callable[[Graph], Entries]], None]


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    constants: dict[str, Any] | None = None,
) -> bytes:
    sources, results = (
        [h.make_tensor_value_info(n, T.FLOAT, d) for n, d in v.items()] for v in (inputs, outputs)
    )
    initializers = [nh.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = h.make_graph(nodes, "g", sources, results, initializers)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString()  # type: ignore[no-any-return]


def key(node: Node) -> str:
    return str(node.proto.doc_string)


def elementwise(
    b: PlanBuilder, x: list[Ref], y: Ref, dims: list[D.DimLike], code: list[list[Any]], regs: int
) -> None:
    """A pointwise launch over whole [rows, columns] tensors."""
    ints: dict[str, D.DimLike] = {
        "n0": 1,
        "n1": 1,
        "n2": 1,
        "n3": 1,
        "n4": dims[0],
        "n5": dims[1],
        "y_dtype": F32,
    }
    for k in range(len(x)):
        ints |= {f"x{k}_4": dims[1], f"x{k}_5": 1, f"x{k}_dtype": F32}
    program = {"type": 0, "n_in": len(x), "regs": regs, "out": regs - 1, "code": code}
    b.launch("pointwise", {f"x{k}": r for k, r in enumerate(x)}, {"y": y}, ints, program=program)


MUL, ADD, RELU, SIGMOID = (OPCODES.index(n) for n in ("mul", "add", "relu", "sigmoid"))


def chain_plan(name: str = "chain", columns: int = 5) -> dict[str, Any]:
    """t = x * x (an arena buffer), u = relu(t + x) and y = u * u: u is an output that is also read
    inside.
    """
    b = PlanBuilder(name, "cpu")
    x = b.add_input("x", F32, 2)
    b.define_symbol("n", 0, 0)
    b.check(0, 1, columns)
    dims: list[D.DimLike] = [D.symbol("n"), columns]
    u, y = b.add_output("u"), b.add_output("y")
    t = b.arena(4 * D.product(dims))
    elementwise(b, [x], t, dims, [[MUL, 1, 0, 0, 0, 0.0]], 2)
    elementwise(b, [t, x], u, dims, [[ADD, 2, 0, 1, 0, 0.0], [RELU, 3, 2, 0, 0, 0.0]], 4)
    elementwise(b, [u], y, dims, [[MUL, 1, 0, 0, 0, 0.0]], 2)
    b.finish_output("u", F32, dims)
    b.finish_output("y", F32, dims)
    return b.to_json()


def chain_model(columns: int = 5) -> bytes:
    nodes = [
        h.make_node("Mul", ["x", "x"], ["t"]),
        h.make_node("Add", ["t", "x"], ["s"]),
        h.make_node("Relu", ["s"], ["u"]),
        h.make_node("Mul", ["u", "u"], ["y"]),
    ]
    return model(nodes, {"x": ["n", columns]}, {"u": ["n", columns], "y": ["n", columns]})


def chain_reference(x: np.ndarray) -> list[np.ndarray]:
    u = np.maximum(x.astype(np.float64) ** 2 + x, 0)
    return [u, u * u]


def whole_graph(plan: dict[str, Any]) -> Callable[[Graph], Entries]:
    return lambda g: [([key(n) for n in g.nodes], plan, [])]


def check_chain(session: Any, rows: int, seed: int = 0) -> None:
    x = np.random.default_rng(seed + rows).standard_normal((rows, 5)).astype(np.float32)
    for got, want in zip(session.run(None, {"x": x}), chain_reference(x), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
