"""Products of bfloat16: which there are, and what lies in this type between them; no kernel runs
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser

from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.compiler.plan_writer import writer_of
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.kernel_families import FAMILIES

F32, BF16 = int(TensorProto.FLOAT), int(TensorProto.BFLOAT16)
#: What a session says of a machine with AMX, and of one without instructions for bfloat16.
AMX = {"backend": "cpu", "isa": "avx512", "int8": "avx512amx", "bf16_isa": "avx512amx"}
AVX2 = {"backend": "cpu", "isa": "avx2", "int8": "avx2", "bf16_isa": "avx2"}


def compiled(
    body: str, sizes: str, weights: Mapping[str, tuple[int, ...]], properties: dict[str, str]
) -> Any:
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n g {sizes} {{ {body} }}'
    )
    for name, shape in weights.items():
        value = np.zeros(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    graph = Graph(onnx.shape_inference.infer_shapes(model))
    return compile_graph(graph, writer_of(properties), everything=True)


def launches(found: Any) -> list[tuple[str, dict[str, int]]]:
    """Families with the types that a launch has as parameters."""
    out = []
    for _, plan, _ in found.entries:
        for record in plan["run"]:
            names = FAMILIES[record["k"]].ints
            ints = {
                n: plan["exprs"][e][1] for n, e in zip(names, record["i"], strict=False)
                if n.endswith("_dtype")
            }  # fmt: skip
            out.append((record["k"], ints))
    return out


def types(x: int, r: int, y: int) -> dict[str, int]:
    return {"x_dtype": x, "r_dtype": r, "y_dtype": y}


BLOCK = (
    "a = Conv<pads = [1, 1, 1, 1]>(x, k) b = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(b, l)"
    " d = Relu(c) e = Conv(d, m) f = Add(e, b) y = Relu(f)"
)
SIZES = "(float[n,32,9,9] x) => (float[n,64,9,9] y)"
WEIGHTS = {"k": (64, 32, 3, 3), "l": (96, 64, 3, 3), "m": (64, 96, 1, 1)}


def test_what_only_products_read_lies_in_bfloat16() -> None:
    found = compiled(BLOCK, SIZES, WEIGHTS, AMX | {"bf16": "1"})
    convs = [types for family, types in launches(found) if family == "conv2d_bf16"]
    # the first result is read as an image and as the residual
    assert convs == [types(F32, F32, BF16), types(BF16, F32, BF16), types(BF16, BF16, F32)]
    assert not found.refused


@pytest.mark.parametrize("properties", [AMX, AVX2 | {"bf16": "1"}], ids=["as asked", "no machine"])
def test_without_the_option_or_the_instructions_products_are_of_f32(
    properties: dict[str, str],
) -> None:
    found = compiled(BLOCK, SIZES, WEIGHTS, properties)
    assert not [family for family, _ in launches(found) if "bf16" in family]


def test_another_reader_keeps_f32() -> None:
    body = BLOCK.replace("y = Relu(f)", "g = Sigmoid(b) h = Mul(f, g) y = Relu(h)")
    found = compiled(body, SIZES, WEIGHTS, AMX | {"bf16": "1"})
    convs = [types for family, types in launches(found) if family == "conv2d_bf16"]
    assert [t["y_dtype"] for t in convs] == [F32, BF16, F32]
    assert [t["x_dtype"] for t in convs] == [F32, F32, BF16] and not found.refused


def test_small_and_depthwise_products_stay() -> None:
    body = "a = Conv(x, k) b = Conv<group = 32>(a, l) y = Conv(b, m)"
    weights = {"k": (32, 3, 3, 3), "l": (32, 1, 3, 3), "m": (8, 32, 1, 1)}
    found = compiled(body, "(float[n,3,9,9] x) => (float[n,8,5,5] y)", weights, AMX | {"bf16": "1"})
    families = [family for family, _ in launches(found) if "conv" in family]
    assert families == ["conv2d", "conv2d_dw", "conv2d"]


def test_winograd_stays_where_its_products_are_cheaper() -> None:
    body, sizes = (
        "y = Conv<pads = [1, 1, 1, 1]>(x, k)",
        "(float[2,64,56,56] x) => (float[2,64,56,56] y)",
    )
    one = dict(AMX, bf16="1")
    for isa, family in (("avx512amx", "conv2d_bf16"), ("avx512bf16", "conv2d_wino")):
        found = compiled(body, sizes, {"k": (64, 64, 3, 3)}, one | {"bf16_isa": isa})
        assert family in [f for f, _ in launches(found)]


def test_rows_of_a_linear_layer() -> None:
    body = "a = MatMul(x, k) b = Add(a, c) d = Relu(b) y = MatMul(d, l)"
    weights = {"k": (64, 96), "c": (96,), "l": (96, 40)}
    sizes = "(float[n,5,64] x) => (float[n,5,40] y)"
    found = compiled(body, sizes, weights, AMX | {"bf16": "1"})
    assert launches(found) == [
        ("gemm_bf16", types(F32, F32, BF16)), ("gemm_bf16", types(BF16, F32, F32)),
    ]  # fmt: skip


def test_an_epilogue_that_cannot_read_bfloat16() -> None:
    """A program reads its operands as f32: what it adds is converted before."""
    body = BLOCK.replace("f = Add(e, b)", "s = Sigmoid(e) f = Mul(s, b)")
    found = compiled(body, SIZES, WEIGHTS, AMX | {"bf16": "1"})
    assert not found.refused
    convs = [t for family, t in launches(found) if family == "conv2d_bf16"]
    assert [t["y_dtype"] for t in convs] == [F32, BF16, F32]
