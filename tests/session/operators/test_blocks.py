"""Blocks of few bits that are dequantised, in GatherBlockQuantized and DequantizeLinear: bits of
ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.nbits import Weights
from tests.support.sessions import assigned, session
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.ir.graph import Graph

_TYPES = {
    (4, False): TensorProto.UINT4, (4, True): TensorProto.INT4, (8, False): TensorProto.UINT8,
    (8, True): TensorProto.INT8,
}  # fmt: skip
_FLOATS = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}


def _tensor(name: str, kind: int, values: Any, bits: int) -> onnx.TensorProto:
    """Integers one behind the other."""
    flat = Weights.together(values.reshape(1, -1).astype(np.uint8) & ((1 << bits) - 1), bits)
    return TensorProto(name=name, dims=values.shape, data_type=kind, raw_data=flat.tobytes())


def _model(node: onnx.NodeProto, stored: list[Any], idx: int, out: int) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info("i", idx, ["a", "b"])] * bool(idx)
    graph = helper.make_graph(
        [node], "g", given, [helper.make_tensor_value_info("y", out, None)], stored
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _same_bits(model: onnx.ModelProto, fed: dict[str, Any]) -> None:
    made = session(model, provider=True, everything=True)
    assert assigned(made) == (1, 1)
    got, want = (s.run(None, fed)[0] for s in (made, session(model, optimize=False)))
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("bits", "rows", "columns", "block", "index", "real"),
    [
        (4, 37, 64, 32, np.int64, np.float32), (4, 5, 130, 16, np.int32, np.float16),
        (8, 11, 48, 16, np.int64, np.float16), (8, 3, 640, 128, np.int32, np.float32),
        (4, 1, 2, 16, np.int64, np.float32),
    ],
)  # fmt: skip
def test_rows_of_packed_bytes(
    bits: int, rows: int, columns: int, block: int, index: Any, real: Any, zeros: bool
) -> None:
    """As exporters of language models write tables."""
    rng, blocks = np.random.default_rng(columns), -(-columns // block)
    if bits * blocks % 8 and zeros and int(ort.__version__.split(".")[1]) < 31:
        pytest.skip("it read zeros as if rows of them began within bytes")
    values, low = (rng.integers(0, 1 << bits, (rows, n)) for n in (columns, blocks))
    stored = [
        numpy_helper.from_array(Weights.together(values.astype(np.uint8), bits), "w"),
        numpy_helper.from_array(rng.uniform(-1, 1, (rows, blocks)).astype(real), "s"),
    ]
    if zeros:
        stored += [numpy_helper.from_array(Weights.together(low.astype(np.uint8), bits), "z")]
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s", "z"][: 3 + zeros], ["y"], "n",
        domain="com.microsoft", bits=bits, block_size=block, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    kind = TensorProto.INT64 if index is np.int64 else TensorProto.INT32
    model = _model(node, stored, kind, _FLOATS[real])
    for count in (0, 1, 7):
        _same_bits(model, {"i": rng.integers(-rows, rows, (count, 3)).astype(index)})


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("shape", "along", "across", "block"),
    [((9, 33), 0, 1, 16), ((20, 6), 1, 0, 16), ((2, 5, 35), 1, -1, 32), ((3, 40, 4), -1, 1, 16)],
)
def test_rows_of_integers_of_four_bits(
    shape: tuple[int, ...], along: int, across: int, block: int, signed: bool
) -> None:
    rng, number = np.random.default_rng(len(shape)), -(-shape[across] // block)
    scales = [*shape]
    scales[across] = number
    kind = _TYPES[4, signed]
    stored = [
        _tensor("w", kind, rng.integers(0, 16, shape), 4),
        numpy_helper.from_array(rng.uniform(-1, 1, scales).astype(np.float32), "s"),
        _tensor("z", kind, rng.integers(0, 16, scales), 4),
    ]
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s", "z"], ["y"], "n", domain="com.microsoft",
        block_size=block, gather_axis=along, quantize_axis=across,
    )  # fmt: skip
    n = shape[along]
    _same_bits(_model(node, stored, TensorProto.INT64, 1), {"i": rng.integers(-n, n, (2, 4))})
    bare = helper.make_node("GatherBlockQuantized", ["w", "i", "s"], ["y"], "n")
    bare.domain = "com.microsoft"
    bare.attribute.extend(node.attribute)
    _same_bits(_model(bare, stored[:2], TensorProto.INT64, 1), {"i": rng.integers(-n, n, (2, 4))})


def test_rows_out_of_range_are_zeros() -> None:
    stored = [
        numpy_helper.from_array(np.full((3, 16), 200, np.uint8), "w"),
        numpy_helper.from_array(np.ones((3, 1), np.float32), "s"),
    ]
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s"], ["y"], "n", domain="com.microsoft", bits=8
    )
    made = session(_model(node, stored, TensorProto.INT64, 1), provider=True, everything=True)
    assert assigned(made) == (1, 1)
    (y,) = made.run(None, {"i": np.array([[2, -3, 3, -4, 2**40]])})
    assert y[0].max(1).tolist() == [72, 72, 0, 0, 0] and y[0].min(1).tolist() == [72, 72, 0, 0, 0]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("bits", "shape", "axis", "block", "real"),
    [
        (4, (7, 32), 1, 16, np.float32), (4, (33, 5), 0, 32, np.float16),
        (8, (3, 20, 7), 1, 8, np.float32), (8, (4, 6), -1, 3, np.float16),
        (4, (5, 3, 3), 0, 0, np.float32), (4, (9, 11), 1, 0, np.float16),
        (8, (6, 10), 0, 0, np.float16), (4, (2, 9), 1, -1, np.float32),
    ],
)  # fmt: skip
def test_a_constant(
    bits: int, shape: tuple[int, ...], axis: int, block: int, real: Any, signed: bool
) -> None:
    """In blocks, along an axis (0) or as a whole (-1), beside ONNX Runtime's own operator."""
    rng, kind = np.random.default_rng(bits), _TYPES[bits, signed]
    scales: tuple[int, ...]
    scales = (shape[axis],) if block == 0 else ()
    if block > 0:
        each = [block if k == axis % len(shape) else 1 for k in range(len(shape))]
        scales = tuple(-(-n // b) for n, b in zip(shape, each, strict=True))
    stored = [
        _tensor("w", kind, rng.integers(0, 256, shape), bits),
        numpy_helper.from_array(np.asarray(rng.uniform(-1, 1, scales), real), "s"),
        _tensor("z", kind, rng.integers(0, 256, scales), bits),
    ]
    attrs: dict[str, Any] = {"axis": axis, **({"block_size": block} if block > 0 else {})}
    node = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["y"], "n", **attrs)
    _same_bits(_model(node, stored, 0, _FLOATS[real]), {})


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_alone(bits: int) -> None:
    """A convolution, and a product whose blocks lie along its columns: no rule takes them, and no
    integers are multiplied.
    """
    rng, kind = np.random.default_rng(bits), _TYPES[bits, True]
    shapes = {"w": ((8, 3, 3, 3), (8,)), "v": ((16, 32), (16, 2))}
    stored = [_tensor(k, kind, rng.integers(0, 256, n), bits) for k, (n, _) in shapes.items()]
    stored += [
        numpy_helper.from_array(rng.uniform(0.01, 0.1, n).astype(np.float32), f"{k}s")
        for k, (_, n) in shapes.items()
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws"], ["f"], axis=0),
        helper.make_node("Conv", ["x", "f"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("DequantizeLinear", ["v", "vs"], ["g"], axis=1, block_size=16),
        helper.make_node("MatMul", ["c", "g"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 3, 4, 16])],
        [helper.make_tensor_value_info("y", 1, None)], stored,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made = session(model, provider=True)
    ours, every = assigned(made)
    assert ours == every > 1
    fed = {"x": rng.standard_normal((2, 3, 4, 16)).astype(np.float32)}
    want, got = (s.run(None, fed)[0] for s in (session(model, optimize=False), made))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize(
    ("attrs", "scales", "says"),
    [
        ({"block_size": 24}, (4, 2), "has blocks of 24 integers of 4 bits"),
        ({"block_size": 16}, (4, 1), "have another shape than [4, 2]"),
        ({"gather_axis": 1}, (4, 1), "gathers along axis 1 what is quantised along 1"),
        ({"bits": 3}, (4, 1), "has blocks of 128 integers of 3 bits"),
    ],
)
def test_what_is_refused(attrs: dict[str, Any], scales: tuple[int, ...], says: str) -> None:
    stored = [
        numpy_helper.from_array(np.zeros((4, 16), np.uint8), "w"),
        numpy_helper.from_array(np.ones(scales, np.float32), "s"),
    ]
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s"], ["y"], "n", domain="com.microsoft", **attrs
    )
    found = compile_graph(Graph(_model(node, stored, TensorProto.INT64, 1)))
    assert [says in why for _, why in found.refused] == [True], found.refused
