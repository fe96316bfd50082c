"""Products by weights of a few bits, in MatMulNBits or dequantised for MatMul and Gemm, beside ONNX
Runtime and float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tracea_onnx
from tests.support.nbits import Weights, weights
from tests.support.sessions import assigned, session
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.refusals import Why
from tracea_onnx.match.find import find

_TYPES = {
    (2, False): 25, (2, True): 26, (4, False): TensorProto.UINT4, (4, True): TensorProto.INT4,
    (8, False): TensorProto.UINT8, (8, True): TensorProto.INT8,
}  # fmt: skip


def _model(
    nodes: list[onnx.NodeProto],
    stored: list[onnx.TensorProto],
    x: tuple[int | str, ...],
    **more: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_tensor_value_info("y", 1, None)],
        stored,
    )
    opsets = [
        helper.make_opsetid("", more.get("opset", 21)),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _matmul_nbits(w: Weights, bias: Any = None, groups: Any = None, **attrs: Any) -> Any:
    stored = {"w": w.blobs, "scale": w.scales, "zero": w.zeros, "groups": groups, "b": bias}
    names = [k if v is not None else "" for k, v in stored.items()]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["p"], domain="com.microsoft", K=w.k, N=w.n, bits=w.bits,
        block_size=w.block, **attrs,
    )  # fmt: skip
    return node, [numpy_helper.from_array(v, k) for k, v in stored.items() if v is not None]


def _near(y: Any, want: Any, x: Any, w: Weights) -> None:
    size = np.abs(x.astype(np.float64)) @ w.largest + 1.0
    assert y.shape == want.shape and (np.abs(y - want) <= 3e-6 * size).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed"])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_matmul_nbits(bits: int, zeros: str, rows: int) -> None:
    """With a bias, or with the nodes behind it in its epilogue."""
    w, rng = weights(bits, 96, 33, bits, 32, zeros), np.random.default_rng(rows)
    bias = rng.standard_normal(w.n).astype(np.float32)
    x = rng.standard_normal((2, rows, w.k)).astype(np.float32)
    exact = x.astype(np.float64) @ w.matrix + bias
    node, stored = _matmul_nbits(w, bias)
    node.output[0] = "y"
    model = _model([node], stored, ("b", "s", w.k))
    made = session(model, provider=True)
    assert assigned(made) == (1, 1)
    y = made.run(None, {"x": x})[0]
    _near(y, exact, x, w)
    _near(session(model, optimize=False).run(None, {"x": x})[0], exact, x, w)
    node, stored = _matmul_nbits(w, accuracy_level=4)
    chain = [
        node, helper.make_node("Add", ["p", "bias"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]), helper.make_node("Add", ["r", "r"], ["y"]),
    ]  # fmt: skip
    model = _model(chain, [*stored, numpy_helper.from_array(bias, "bias")], ("b", "s", w.k))
    made = session(model, provider=True)
    assert assigned(made) == (4, 4)
    _near(made.run(None, {"x": x})[0], 2 * np.maximum(exact, 0), x, w)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("blocks", ["blocks", "columns", "one"])
def test_dequantised_weights(transposed: bool, signed: bool, bits: int, blocks: str) -> None:
    k, n, block = 64, 33, 32 if blocks == "blocks" else 64
    w = weights(3, k, n, bits, block, "packed")
    if blocks == "one":
        w.scales[:], w.zero_values[:] = w.scales[0], w.zero_values[0]
    half, axes = (1 << (bits - 1)) * signed, (0, 1) if transposed else (1, 0)
    kind = _TYPES[bits, signed]

    def tensor(name: str, values: Any) -> onnx.TensorProto:
        flat = Weights.together((values ^ np.uint8(half)).reshape(-1), bits)
        return TensorProto(name=name, dims=values.shape, data_type=kind, raw_data=flat.tobytes())

    scales, zeros = w.scales.transpose(axes), w.zero_values.transpose(axes)
    attrs: dict[str, Any] = {"axis": 1 if transposed else 0, "block_size": block}
    if blocks != "blocks":
        scales, zeros = (
            a.reshape(-1)[: None if blocks == "columns" else 1] for a in (scales, zeros)
        )
        attrs = {"axis": 0 if transposed else 1}
    if blocks == "one":
        scales, zeros, attrs = scales.reshape(()), zeros.reshape(()), {}
    bias, rng = np.full(n, 0.5, np.float32), np.random.default_rng(1)
    stored = [
        tensor("w", w.values[:, :k].transpose(axes)), tensor("zero", zeros),
        numpy_helper.from_array(np.ascontiguousarray(scales), "scale"),
        numpy_helper.from_array(bias, "bias"),
    ]  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["d"], **attrs)]
    if transposed:
        nodes += [helper.make_node("Gemm", ["x", "d", "bias"], ["p"], transB=1)]
    else:
        nodes += [helper.make_node("MatMul", ["x", "d"], ["m"])]
        nodes += [helper.make_node("Add", ["m", "bias"], ["p"])]
    nodes += [helper.make_node("Relu", ["p"], ["y"])]
    model = _model(nodes, stored, ("rows", k))
    made = session(model, provider=True)
    ours, every = assigned(made)
    assert ours == every > 1
    for rows in (1, 20):
        x = rng.standard_normal((rows, k)).astype(np.float32)
        want = np.maximum(x.astype(np.float64) @ w.matrix + bias, 0)
        _near(made.run(None, {"x": x})[0], want, x, w)
        _near(session(model, optimize=False).run(None, {"x": x})[0], want, x, w)


@pytest.mark.parametrize(
    ("groups", "attrs", "says"),
    [
        (np.arange(64) // 32, {}, ""),
        (np.arange(64) % 2, {}, "groups that are no blocks"),
        (None, {"weight_prepacked": 1}, "weight_prepacked 1"),
        (None, {"bits": 3}, "its bits are 3, not 2, 4 or 8"),
        (None, {"bits": "four"}, "has bits as STRING, which must be INT"),
        (None, {"block_size": 24}, "its block is 24, not a multiple of 16"),
        (None, {"block_size": 0}, "has block_size 0"),
        (None, {"K": 96}, "the inner dims of 'p' differ: 64 and 96"),
        (None, {"N": 31}, "'w' of 'p' has 1056 elements of type 2, not 992"),
        (None, {"K": -64}, "has K -64"),
    ],
)
def test_what_is_refused(groups: Any, attrs: dict[str, Any], says: str) -> None:
    w = weights(1, 64, 33, 4, 32, "none")
    groups = None if groups is None else groups.astype(np.int32)
    node, stored = _matmul_nbits(w, groups=groups)
    node.name = "p"
    for name, value in attrs.items():
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])
    node.output[0] = "y"
    found = compile_graph(Graph(_model([node], stored, ("b", "s", 64))))
    assert [(n.name, says in why) for n, why in found.refused] == [("p", True)] * bool(says), (
        found.refused
    )
    assert len(found.entries) == (not says), found.refused


def test_quantised_activations_are_left_to_other_kernels() -> None:
    """Where x is dequantised, too, the product is one of integers."""
    w = numpy_helper.from_array(np.ones((32, 32), np.int8), "w")
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    zero = numpy_helper.from_array(np.array(0, np.int8), "zero")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["d"]),
        helper.make_node("MatMul", ["f", "d"], ["y"]),
    ]
    matches, refusals = find(Graph(_model(nodes, [w, scale, zero], ("b", 32))), ["gemm_nbits"])
    assert not matches and any(r.because.why == Why.QUANTIZED for r in refusals), refusals


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_what_optimize_quantises_runs_whole(form: str) -> None:
    """A table, a product in each spelling, and what is between them."""
    rng = np.random.default_rng(0)
    stored = {"table": (40, 64), "one": (64, 96), "two": (33, 96), "bias": (33,)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["t"]),
        helper.make_node("MatMul", ["t", "one"], ["m"]), helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Gemm", ["r", "two", "bias"], ["y"], transB=1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", 1, ["n", 33])],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), k)
         for k, s in stored.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    small = tracea_onnx.optimize(model, weights=form, backend="cpu", verify=False).model
    made = session(small, provider=True)
    ours, every = assigned(made)
    assert ours == every > 6
    for count in (1, 40):
        ids = rng.integers(0, 40, count)
        want = session(small, optimize=False).run(None, {"ids": ids})[0]
        got = made.run(None, {"ids": ids})[0]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
