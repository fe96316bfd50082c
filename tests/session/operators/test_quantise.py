"""Quantisation on the provider: bit for bit as ONNX and ONNX Runtime have it, in few launches, and
left to ONNX Runtime where it has an integer kernel for the group.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.support.sessions import assigned, session
from tools.onnx_backend_suite import Case, cases, load
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.ir.graph import Graph

RNG = np.random.default_rng(24)
_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
_SCALES = (
    "float s = {0.05}, float t = {0.031}, uint8 z = {120}, uint8 v = {7},"
    " int64[4] shape = {-1, 4, 3, 4}"
)
_NAMED = re.compile(r"test_((de)?quantizelinear(_axis|_u?int16)?|dynamicquantizelinear\w*)")


def node_tests() -> list[Case]:
    return [c for c in cases() if c.kind == "node" and _NAMED.fullmatch(c.name)]


def test_tests_of_onnx() -> None:
    """Of operator sets that every supported ONNX Runtime reads."""
    chosen = node_tests()
    assert len(chosen) >= 10
    for case in chosen:
        given, [(inputs, expected)] = load(case)
        model = onnx.ModelProto()
        model.CopyFrom(given)
        model.ir_version, model.opset_import[0].version = 10, 21
        made = session(model, provider=True, everything=True)
        ours, nodes = assigned(made)
        assert ours == nodes > 0, case.name
        fed = dict(zip((i.name for i in model.graph.input), inputs, strict=True))
        for want, got in zip(expected, made.run(None, fed), strict=True):
            assert want.dtype == got.dtype and np.array_equal(want, got), case.name


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("stored", [True, False])
def test_types_and_axes(kind: type[Any], axis: int | None, stored: bool) -> None:
    shape, limits = (3, 5, 37), np.iinfo(kind)
    size = () if axis is None else (shape[axis],)
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    x = (RNG.standard_normal(shape) * 300).astype(np.float32)
    x.flat[:6] = [np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0]
    scale = RNG.uniform(0.01, 0.5, size).astype(np.float32)
    zero = RNG.integers(limits.min, int(limits.max) + 1, size).astype(kind)
    # halves: rounded to even
    x.flat[40:80] = np.arange(40, dtype=np.float32) / 2 * scale.reshape(-1)[0]
    names = ["x"] if stored else ["x", "s", "z"]
    fed = {k: v for k, v in {"x": x, "s": scale, "z": zero}.items() if k in names}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **along),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **along),
    ]
    given = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in fed.items()
    ]
    kept = [numpy_helper.from_array(v, k) for k, v in (("s", scale), ("z", zero)) if stored]
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name=k) for k in "qy"], kept)
    _equal(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), fed
    )


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 22])
def test_operator_sets(opset: int) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
        "g (float[n,7] x) => (uint8[n,7] q, float[n,7] y, float[n,7] b)"
        " <float s = {0.05}, float t = {0.3}, int32[7] w = {1, -2, 70000, 2147483647, 0, 5, -9}>"
        " { q = QuantizeLinear(x, s) y = DequantizeLinear(q, t) c = DequantizeLinear(w, s)"
        " b = Add(y, c) }"
    )
    _equal(parser.parse_model(text), {"x": _floats(9, 7)})


def _equal(model: onnx.ModelProto, fed: dict[str, Any]) -> None:
    made = session(model, provider=True, everything=True)
    ours, all_nodes = assigned(made)
    assert ours == all_nodes > 0
    want = session(model, optimize=False).run(None, fed)
    for a, b in zip(want, made.run(None, fed), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


def _floats(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 4).astype(np.float32)


def _bytes(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def _launches(model: onnx.ModelProto, everything: bool = True) -> list[str]:
    graph = Graph(onnx.shape_inference.infer_shapes(model))
    made = compile_graph(graph, everything=everything)
    return [r["k"] for _, plan, _ in made.entries for r in plan["run"]]


_CHAINS = {
    "a residual sum": (
        "(uint8[n,5,8] a, uint8[n,5,8] b) => (uint8[n,5,8] y)",
        (
            "c = DequantizeLinear(a, s, z) d = DequantizeLinear(b, t, v) e = Add(c, d) f = Relu(e)"
            " y = QuantizeLinear(f, s, v)"
        ),
        ["pointwise"],
    ),
    "a shape and an order of axes": (
        "(uint8[n,6,8] a, uint8[1] b) => (uint8[n,4,4,3] y)",
        (
            "c = DequantizeLinear(a, s, z) d = Reshape(c, shape) e = QuantizeLinear(d, s, z)"
            " f = DequantizeLinear(e, s, z)"
            " g = Transpose<perm = [0, 1, 3, 2]>(f) y = QuantizeLinear(g, s, z)"
        ),
        ["copy"],
    ),
    "a concatenation": (
        "(uint8[n,6,8] a, uint8[n,6,8] b) => (uint8[n,12,8] y)",
        (
            "c = DequantizeLinear(a, s, z) d = DequantizeLinear(b, s, z) e = Concat<axis = 1>(c, d)"
            " y = QuantizeLinear(e, s, z)"
        ),
        ["copy", "copy"],
    ),
    "a concatenation of two scales": (
        "(uint8[n,6,8] a, uint8[n,6,8] b) => (uint8[n,12,8] y)",
        (
            "c = DequantizeLinear(a, s, z) d = DequantizeLinear(b, t, z) e = Concat<axis = 1>(c, d)"
            " y = QuantizeLinear(e, s, z)"
        ),
        None,
    ),
    "an activation whose zero point lies far off": (
        "(uint8[n,8] a, uint8[1] b) => (uint8[n,8] y)",
        "c = DequantizeLinear(a, s, z) d = Relu(c) y = QuantizeLinear(d, t, z)",
        ["pointwise"],
    ),
    "parts": (
        "(uint8[n,6,8] a, uint8[1] b) => (uint8[n,3,8] y, uint8[n,3,8] w)",
        (
            "c = DequantizeLinear(a, s, z) d, e = Split<axis = 1, num_outputs = 2>(c)"
            " y = QuantizeLinear(d, s, z) w = QuantizeLinear(e, t, z)"
        ),
        None,
    ),
    "a maximum of windows": (
        "(uint8[1,6,8,8] a, uint8[1] b) => (uint8[1,6,4,4] y)",
        (
            "c = DequantizeLinear(a, s, z) d = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)"
            " y = QuantizeLinear(d, s, z)"
        ),
        None,
    ),
    "a result that is also read as floats": (
        "(uint8[n,8] a, uint8[n,8] b) => (uint8[n,8] y, float[n,8] f)",
        (
            "c = DequantizeLinear(a, s, z) d = DequantizeLinear(b, t, v) e = Add(c, d) f = Relu(e)"
            " y = QuantizeLinear(f, s, v)"
        ),
        None,
    ),
}


@pytest.mark.parametrize("chain", _CHAINS)
def test_chains(chain: str) -> None:
    sizes, body, launches = _CHAINS[chain]
    model = parser.parse_model(f"{_HEAD} g {sizes} <{_SCALES}> {{ {body} }}")
    shapes = [[d.dim_value or 35 for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
    fed = {i.name: _bytes(*s) for i, s in zip(model.graph.input, shapes, strict=True)}
    fed["a"].flat[: min(256, fed["a"].size)] = np.arange(min(256, fed["a"].size))
    if launches is not None:
        assert _launches(model) == launches
    _equal(model, fed)


def test_scales_of_a_run() -> None:
    text = (
        f"{_HEAD} g (float[n,8] x) => (uint8[n,8] q, float s, uint8 z, float[n,8] y)"
        " { q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = Neg(d) }"
    )
    for x in (_floats(33, 8), np.abs(_floats(1, 8)), np.zeros((2, 8), np.float32)):
        _equal(parser.parse_model(text), {"x": x})


def test_a_number_that_is_its_own_zero_point() -> None:
    text = f"{_HEAD} g (uint8 q, float s) => (float y) {{ y = DequantizeLinear(q, s, q) }}"
    fed = {"q": np.array(5, np.uint8), "s": np.array(0.25, np.float32)}
    _equal(parser.parse_model(text), fed)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("QuantizeLinear<block_size = 2>(x, s2)", "a scale for each 2 elements"),
        ("QuantizeLinear(x, s, f8)", "has element type 17, which no kernel reads"),
        ("QuantizeLinear<output_dtype = 22>(x, s)", "makes element type 22 of F32"),
        ("QuantizeLinear<precision = 10>(x, s)", "divides in element type 10"),
    ],
)
def test_what_no_kernel_computes(node: str, why: str) -> None:
    text = (
        '<ir_version: 11, opset_import: ["" : 23]>\n g (float[4,8] x) => (y)'
        f" <float s = {{0.05}}, float[4,4] s2> {{ y = {node} }}"
    )
    model = parser.parse_model(text)
    model.graph.initializer.append(
        helper.make_tensor("f8", onnx.TensorProto.FLOAT8E4M3FN, [], [0.0])
    )
    graph = Graph(onnx.shape_inference.infer_shapes(model))
    [(_, reason)] = compile_graph(graph, everything=True).refused
    assert why in reason


def test_scales_of_sums() -> None:
    """One for each column, and a bias: as exact as F32 is."""
    text = (
        f"{_HEAD} g (uint8[5,37] x, float[33] u) => (y)"
        " { a = MatMulInteger(x, k) c = Cast<to = 1>(a) e = Mul(c, u) y = Add(e, b) }"
    )
    model = parser.parse_model(text)
    x, k = RNG.integers(0, 256, (5, 37), np.uint8), RNG.integers(-128, 128, (37, 33), np.int8)
    u, b = (RNG.standard_normal(33).astype(np.float32) for _ in range(2))
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in (("k", k), ("b", b)))
    made = session(model, provider=True, everything=True)
    ours, nodes = assigned(made)
    assert ours == nodes == 4
    scaled = (x.astype(np.int64) @ k.astype(np.int64)) * u.astype(np.float64)
    [got] = made.run(None, {"x": x, "u": u})
    assert (np.abs(got - (scaled + b)) <= 2.0**-23 * (np.abs(scaled) + np.abs(b))).all()


def test_zero_points_of_many_channels() -> None:
    """Of integers of 32 bits, which have none: all are 0, however many there are."""
    text = f"{_HEAD} g (int32[1100] x) => (y) {{ y = DequantizeLinear<axis = 0>(x, s, z) }}"
    model = parser.parse_model(text)
    model.graph.initializer.extend([
        numpy_helper.from_array(np.ones(1100, np.float32), "s"),
        numpy_helper.from_array(np.zeros(1100, np.int32), "z"),
    ])  # fmt: skip
    graph = Graph(onnx.shape_inference.infer_shapes(model))
    assert compile_graph(graph, everything=True).refused == []


def test_light_groups_stay_with_onnx_runtime() -> None:
    body = _CHAINS["a residual sum"][:2]
    model = parser.parse_model(f"{_HEAD} g {body[0]} <{_SCALES}> {{ {body[1]} }}")
    assert _launches(model, everything=False) == []
