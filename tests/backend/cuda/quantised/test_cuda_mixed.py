"""Models in fp16 around products of 8 bits, on CUDA: which launches they become; nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.golden.record import gpu, sources_for_cubins
from tests.session.test_models import feeds, small
from tests.support.quantised_models import quantise
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import PlanBuilder

_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
#: A launch: its family, parameters and outputs.
Launch = tuple[str, Mapping[str, Any], set[str]]
Arrays = dict[str, np.ndarray[Any, Any]]


def launches(model: ModelProto) -> list[Launch]:
    """Those of the one Plan of the whole model."""
    made: dict[PlanBuilder, list[Launch]] = {}
    launch = PlanBuilder.launch

    def noted(self: PlanBuilder, family: str, *given: Any, **more: Any) -> None:
        launch(self, family, *given, **more)
        written = {k for k, v in given[1].items() if v is not None}
        made.setdefault(self, []).append((family, given[2], written))

    given = Graph(onnx.shape_inference.infer_shapes(model))
    with sources_for_cubins(), mock.patch.object(PlanBuilder, "launch", noted):
        found = compile_graph(given, gpu(90, 132), everything=True)
    assert not found.refused and len(found.entries) == 1
    return [*made.values()][-1]


def test_a_transformer_layer_has_few_launches() -> None:
    """Queries, keys and values are one product; norms and attention quantise what products read."""
    model = small("bert_base")
    fed = [feeds(model, 2, 9, seed) for seed in range(2)]
    made = launches(
        quantise(model, "mixed", fed, op_types_to_quantize=["Gemm", "MatMul"], per_channel=True)
    )
    layers = sum(n.op_type == "Softmax" for n in model.graph.node)
    counts = Counter(family for family, _, _ in made)
    assert counts["gemm_int8"] == 4 * layers + 1 and "gemm" not in counts  # and the pooler
    assert counts["layernorm_quantised"] + counts["layernorm"] == 2 * layers
    assert counts["attention_quantised"] == layers
    types = Counter(ints["y_dtype"] for family, ints, _ in made if family == "gemm_int8")
    assert types == {DType.F16: 3 * layers + 1, DType.U8: layers}
    # the tool lets residuals be read from what it quantised for products
    residuals = [ints for _, ints, _ in made if ints.get("res_mode") and "r_dtype" in ints]
    assert [i["r_dtype"] for i in residuals] == [DType.U8] * (2 * layers)


def test_an_image_of_16_bits_is_quantised_as_the_first_layer_reads_it() -> None:
    model = small("resnet50")
    made = launches(quantise(model, "mixed", [feeds(model, 2, 9, 0)]))
    assert {family for family, _, _ in made} >= {"quantise_image", "conv_pool_int8"}


def test_a_residual_of_16_bits_is_read_by_the_product() -> None:
    body = "a = DequantizeLinear(x, s) w = DequantizeLinear(k, s) m = MatMul(a, w) y = Add(m, r)"
    stored: Arrays = {"s": np.array(0.05, np.float16), "k": np.ones((24, 16), np.int8)}
    made = launches(parsed("(int8[n,24] x, float16[n,16] r) => (float16[n,16] y)", body, **stored))
    [(ints, _)] = [(i, o) for family, i, o in made if family == "gemm_int8"]
    assert (ints["y_dtype"], ints["r_dtype"], ints["res_mode"]) == (DType.F16, DType.F16, 1)


def parsed(interface: str, body: str, **stored: np.ndarray[Any, Any]) -> ModelProto:
    model: ModelProto = parser.parse_model(f"{_HEAD} g {interface} {{ {body} }}")
    for name, value in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def _norm(readers: str, outputs: str, scale: float = 0.05) -> list[Launch]:
    body = f"a = LayerNormalization(x, gain) q = QuantizeLinear(a, s, z) {readers}"
    numbers: Arrays = {"s": np.array(scale, np.float16), "z": np.array(120, np.uint8)}
    gain = np.ones(24, np.float16)
    return launches(parsed(f"(float16[n,24] x) => ({outputs})", body, gain=gain, **numbers))


@pytest.mark.parametrize("alone", [True, False])
def test_a_norm_that_is_quantised_is_stored_where_something_else_reads_it(alone: bool) -> None:
    more = ("", "") if alone else ("b = Relu(a)", ", float16[n,24] b")
    made = _norm(f"y = Identity(q) {more[0]}", f"uint8[n,24] y{more[1]}")
    outputs = [o for family, _, o in made if family == "layernorm_quantised"]
    assert outputs == [{"q"} if alone else {"q", "y"}]


@pytest.mark.parametrize("scale", [-0.05, 0.0])
def test_a_norm_is_not_quantised_by_a_scale_that_is_no_positive_number(scale: float) -> None:
    made = _norm("y = Identity(q)", "uint8[n,24] y", scale)
    assert [family for family, _, _ in made] == ["layernorm", "pointwise"]


def test_numbers_are_not_divided_in_a_narrower_type() -> None:
    """As operator sets from 23 on say of scales that are narrower."""
    model = parsed(
        "(float[n,24] x) => (uint8[n,24] y)",
        "y = QuantizeLinear(x, s)",
        s=np.array([0.05], np.float16),
    )
    model.opset_import[0].version = 23
    with sources_for_cubins():
        found = compile_graph(Graph(model), gpu(90, 132), everything=True)
    [(_, why)] = found.refused
    assert "divides F32 in F16" in why


@pytest.mark.parametrize("trans", [0, 1])
def test_products_of_one_matrix_share_a_launch_whatever_their_scales(trans: int) -> None:
    """One scale for a weight, one for each of its columns; a bias or none. In a session a node of
    its own dequantises the matrix for each product, just before it.
    """
    split, body = "Reshape(m{k}, dims)", ""
    for k, (scale, bias) in enumerate((("s", ", b"), ("each", ""), ("each", ", b"))):
        body += f" a{k} = DequantizeLinear(x, s, z)"
        axis = "" if scale == "s" else f"<axis = {1 - trans}>"
        body += f" w{k} = DequantizeLinear{axis}(k{k}, {scale})"
        body += f" m{k} = Gemm<transB = {trans}>(a{k}, w{k}{bias})"
        body += f" r{k} = {split.format(k=k)} t{k} = Transpose<perm = [1, 0, 2]>(r{k})"
    body += " u = Transpose<perm = [0, 2, 1]>(t1) v = MatMul(t0, u) p = Softmax(v)"
    body += " y = MatMul(p, t2)"
    stored: Arrays = {
        "s": np.array(0.05, np.float16), "z": np.array(120, np.uint8),
        "dims": np.array([-1, 2, 16]), "each": np.ones(32, np.float16),
        "b": np.ones(32, np.float16),
    }  # fmt: skip
    stored |= {f"k{k}": np.ones((32, 24) if trans else (24, 32), np.int8) for k in range(3)}
    made = launches(parsed("(uint8[n,24] x) => (float16[2,n,16] y)", body, **stored))
    products = [ints for family, ints, _ in made if family == "gemm_int8"]
    assert [(p["N"], p["w_scales"], p["y_dtype"]) for p in products] == [(96, 96, DType.F16)]


@pytest.mark.parametrize("turned", [True, False])
def test_attention_quantises_whether_its_axes_are_exchanged_behind_it_or_before(
    turned: bool,
) -> None:
    """As ONNX Runtime moves QuantizeLinear to the front, or as exporters leave it."""
    body = "u = Transpose<perm = [0, 1, 3, 2]>(k) c = MatMul(q, u) p = Softmax(c)"
    body += " a = MatMul(p, v) "
    before = "b = QuantizeLinear(a, s, z) d = DequantizeLinear(b, s, z) "
    turn = "e = Transpose<perm = [0, 2, 1, 3]>({}) f = Reshape(e, dims)"
    body += (before + turn.format("d")) if turned else turn.format("a")
    body += " g = QuantizeLinear(f, s, z) h = DequantizeLinear(g, s, z) y = Relu(h)"
    stored: Arrays = {"s": np.array(0.05, np.float16), "z": np.array(120, np.uint8),
                      "dims": np.array([0, 0, 128])}  # fmt: skip
    given = ", ".join(f"float16[n,2,m,64] {x}" for x in "qkv")
    made = launches(parsed(f"({given}) => (float16[n,m,128] y)", body, **stored))
    assert [family for family, _, _ in made] == ["attention_quantised", "pointwise"]
    ints = made[0][1]
    assert (ints["y_s"], ints["y_h"]) == (128, 64)
