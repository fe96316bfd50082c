"""Quantised groups become few launches; no kernel runs here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tracea_onnx.compiler import plan_writer
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.kernel_families import FAMILIES

_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
_X = "uint8[n,8,9,9] x"
_SCALES = "float s = {0.05}, float t = {0.031}, uint8 z = {120}, uint8 v = {7}, float ws = {0.01}"
_CONV = "a = DequantizeLinear(x, s, z) w = DequantizeLinear(k, ws) "


def compiled(
    body: str, sizes: str, weights: Mapping[str, tuple[int, ...]], odd: float = 1.0
) -> Any:
    """odd: a scale by that name."""
    model = parser.parse_model(f"{_HEAD} g {sizes} <{_SCALES}> {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.array(odd, np.float32), "odd"))
    rng = np.random.default_rng(3)
    for name, shape in weights.items():
        kind, low = (np.int32, -999) if name == "b" else (np.int8, -128)
        value = rng.integers(low, 127, shape).astype(kind)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return compile_graph(Graph(onnx.shape_inference.infer_shapes(model)), everything=True)


def launches(found: Any) -> list[str]:
    return [r["k"] for _, plan, _ in found.entries for r in plan["run"]]


def ints(found: Any, family: str) -> dict[str, Any]:
    """Parameters of the first launch of a family, by name; only constants."""
    [(_, plan, _)] = found.entries
    record = next(r for r in plan["run"] if r["k"] == family)
    values = [plan["exprs"][e] for e in record["i"]]
    return {n: v[1] for n, v in zip(FAMILIES[family].ints, values, strict=True) if v[0] == "const"}


def test_a_convolution_with_bias_and_activation() -> None:
    body = (
        f"{_CONV} c = DequantizeLinear(b, t) d = Conv(a, w, c) e = Relu(d)"
        " y = QuantizeLinear(e, t, v)"
    )
    found = compiled(body, f"({_X}) => (uint8[n,16,7,7] y)", {"k": (16, 8, 3, 3), "b": (16,)})
    # the partition's input and output are channels-first
    assert launches(found) == ["copy", "conv2d_int8", "copy"] and not found.refused
    made = ints(found, "conv2d_int8")
    assert (made["x_dtype"], made["w_dtype"], made["y_dtype"], made["act"]) == (2, 3, 2, 1)


def test_a_residual_sum_is_part_of_the_convolution_before_it() -> None:
    body = (
        f"{_CONV} c = Conv<pads = [1, 1, 1, 1]>(a, w) d = QuantizeLinear(c, t, v)"
        " e = DequantizeLinear(d, t, v) f = Add(e, a) g = Relu(f) y = QuantizeLinear(g, s, z)"
    )
    found = compiled(body, f"({_X}) => (uint8[n,8,9,9] y)", {"k": (8, 8, 3, 3)})
    assert launches(found) == ["copy", "conv2d_int8", "copy"] and not found.refused
    made = ints(found, "conv2d_int8")
    assert (made["m_dtype"], made["r_dtype"], made["res_mode"], made["act"]) == (2, 2, 1, 1)


@pytest.mark.parametrize("scale", [-0.031, 0.0, 1e-38])
def test_a_product_is_not_quantised_by_a_scale_that_is_no_positive_number(scale: float) -> None:
    body = f"{_CONV} d = Conv(a, w) y = QuantizeLinear(d, odd, v)"
    found = compiled(body, f"({_X}) => (uint8[n,16,7,7] y)", {"k": (16, 8, 3, 3)}, odd=scale)
    assert "pointwise" in launches(found) and ints(found, "conv2d_int8")["y_dtype"] == 1


def test_a_product_is_not_quantised_by_a_scale_that_only_a_run_knows() -> None:
    """It may be negative, and the formula of ONNX then saturates at the other end."""
    body = f"{_CONV} d = Conv(a, w) y = QuantizeLinear(d, by, v)"
    found = compiled(body, f"({_X}, float by) => (uint8[n,16,7,7] y)", {"k": (16, 8, 3, 3)})
    assert "pointwise" in launches(found) and ints(found, "conv2d_int8")["y_dtype"] == 1


def test_depthwise_and_dense_in_a_row_stay_channels_last() -> None:
    body = (
        f"{_CONV} c = Conv<group = 8>(a, w) d = QuantizeLinear(c, t, v)"
        " e = DequantizeLinear(d, t, v) p = DequantizeLinear(q, ws) f = Conv(e, p)"
        " y = QuantizeLinear(f, s, z)"
    )
    weights = {"k": (8, 1, 3, 3), "q": (24, 8, 1, 1)}
    found = compiled(body, f"({_X}) => (uint8[n,24,7,7] y)", weights)
    assert launches(found) == ["copy", "conv2d_int8_dw", "conv2d_int8", "copy"]


def test_sums_are_converted_and_scaled_in_the_product() -> None:
    body = (
        "q, u, m = DynamicQuantizeLinear(x) a = MatMulInteger(q, k, m) c = Cast<to = 1>(a)"
        " d = Mul(u, ws) e = Mul(c, d) f = Add(e, h) y = Relu(f)"
    )
    model_sizes = "(float[n,8] x, float[16] h) => (float[n,16] y)"
    found = compiled(body, model_sizes, {"k": (8, 16)})
    assert launches(found) == ["ends", "quantise_dynamic", "pointwise", "gemm_int8"]
    assert ints(found, "gemm_int8")["y_dtype"] == 1


@pytest.mark.parametrize(("scales", "count"), [("float[1] u", 1), ("float[16] u", 16)])
def test_scales_and_a_bias_of_sums_are_those_of_the_product(scales: str, count: int) -> None:
    """No program is left, and none but the activation."""
    body = "a = MatMulInteger(x, k) c = Cast<to = 1>(a) e = Mul(c, u) f = Add(b, e) y = Relu(f)"
    model = parser.parse_model(
        f"{_HEAD} g (uint8[n,8] x, {scales}) => (float[n,16] y) {{ {body} }}"
    )
    for name, value in (("k", np.ones((8, 16), np.int8)), ("b", np.ones(16, np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    found = compile_graph(Graph(onnx.shape_inference.infer_shapes(model)), everything=True)
    assert launches(found) == ["gemm_int8"]
    made = ints(found, "gemm_int8")
    assert (made["w_scales"], made["act"], made["y_dtype"]) == (count, 1, 1)
    [record] = found.entries[0][1]["run"]
    given = dict(zip(FAMILIES["gemm_int8"].operands, record["b"], strict=True))
    assert record["p"] is None and given["bias?"] is not None and given["o0?"] is None


@pytest.mark.parametrize(
    ("body", "sizes", "weight"),
    [
        (
            f"{_CONV} d = Conv(a, w) y = QuantizeLinear(d, t, v)",
            f"({_X}) => (uint8[n,16,7,7] y)",
            (16, 8, 3, 3),
        ),
        (
            "a = MatMulInteger(x, k) c = Cast<to = 1>(a) y = Mul(c, ws)",
            "(uint8[n,8] x) => (float[n,16] y)",
            (8, 16),
        ),
    ],
    ids=["quantised", "sums"],
)
def test_products_run_where_they_were_measured_to_be_faster(
    body: str, sizes: str, weight: tuple[int, ...]
) -> None:
    """By the instruction set that a session has for them."""
    model = parser.parse_model(f"{_HEAD} g {sizes} <{_SCALES}> {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(weight, np.int8), "k"))
    graph = Graph(onnx.shape_inference.infer_shapes(model))
    for isa, faster in (("avx512amx", True), ("avx512vnni", False), ("", False)):
        writer = plan_writer.writer_of({"int8": isa} if isa else {})
        assert bool(compile_graph(graph, writer).entries) == faster


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            (
                "a = DequantizeLinear(x, s, z) w = DequantizeLinear(k, ws) c = ConvTranspose(a, w)"
                " y = QuantizeLinear(c, t, v)"
            ),
            "no kernel computes ConvTranspose of quantised operands in integers",
        ),
        (
            (
                "a = DequantizeLinear<axis = 1>(x, many) w = DequantizeLinear(k, ws) c = Conv(a, w)"
                " y = QuantizeLinear(c, t, v)"
            ),
            "it has a scale for each place along an axis of 'x'",
        ),
    ],
)
def test_what_is_left_is_left_whole(body: str, why: str) -> None:
    sizes = f"({_X}) => (uint8[n,p,q,r] y)"
    many = "float[8] many = {1, 2, 3, 4, 5, 6, 7, 8}"
    model = parser.parse_model(f"{_HEAD} g {sizes} <{_SCALES}, {many}> {{ {body} }}")
    weight = np.ones((8, 8, 3, 3), np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weight, "k"))
    found = compile_graph(Graph(onnx.shape_inference.infer_shapes(model)))
    assert not found.entries and len(found.refused) == 4
    assert any(why in reason for _, reason in found.refused)
    assert sum("as one integer kernel" in reason for _, reason in found.refused) == 3


def test_products_of_16_bits_are_said_to_be_such() -> None:
    """ONNX Runtime has no integer kernel for them either."""
    body = (
        "a = DequantizeLinear(x, s, wide) w = DequantizeLinear(k, ws) c = Conv(a, w)"
        " y = QuantizeLinear(c, t, wide)"
    )
    sizes = "(uint16[n,8,9,9] x) => (uint16[n,p,q,r] y)"
    model = parser.parse_model(f"{_HEAD} g {sizes} <{_SCALES}, uint16 wide = {{9}}> {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 3, 3), np.int8), "k"))
    found = compile_graph(Graph(onnx.shape_inference.infer_shapes(model)))
    reasons = [reason for _, reason in found.refused]
    assert not found.entries and len(reasons) == 4
    assert sum("which no kernel computes of integers of 16 bits" in why for why in reasons) == 3


@pytest.mark.parametrize(("options", "takes"), [({}, False), ({"backend": "cuda"}, True)])
def test_groups_are_left_to_onnx_runtime_on_the_cpu_alone(
    options: Mapping[str, str], takes: bool
) -> None:
    """Its integer kernels are the CPU's, for which operands would leave a GPU."""
    body = (
        f"{_CONV} c = Conv(a, w) d = QuantizeLinear(c, t, v) e = DequantizeLinear(d, t, v)"
        " f = MatMulInteger(d, k2) g = Cast<to = 1>(f) y = Add(g, e)"
    )
    model = parser.parse_model(f"{_HEAD} g ({_X}) => (y) <{_SCALES}> {{ {body} }}")
    for name, shape in {"k": (8, 8, 3, 3), "k2": (7, 7)}.items():
        value = np.random.default_rng(3).integers(-128, 127, shape).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    graph = Graph(onnx.shape_inference.infer_shapes(model))
    found = compile_graph(graph, plan_writer.writer_of({"int8": "avx2", **options}))
    assert len(found.refused) == (0 if takes else len(graph.nodes))
    assert bool(found.entries) == takes
