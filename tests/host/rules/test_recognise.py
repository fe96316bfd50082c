"""Activations of 16-bit models: their constants were rounded with the rest."""

from __future__ import annotations

import numpy as np
import pytest

from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.activations import classify_activation, unrounded
from tracea_onnx.ir.expr import Expr, Instr


def _rounded(value: float, dtype: DType) -> float:
    if dtype == DType.F16:
        return float(np.float16(value))
    return float(
        (np.float32(value).view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(
            np.float32
        )
    )


def _gelu_erf(dtype: DType) -> Expr:
    """0.5 x (1 + erf(x / sqrt 2)) with the constants as the type holds them."""
    code = (
        Instr("const", (), _rounded(2**0.5, dtype)), Instr("div", (0, 1)), Instr("erf", (2,)),
        Instr("const", (), 1.0), Instr("add", (3, 4)),
        Instr("mul", (0, 5)), Instr("const", (), 0.5), Instr("mul", (6, 7)),
    )  # fmt: skip
    return Expr(1, code, 8)


def _gelu_tanh(dtype: DType) -> Expr:
    code = (
        Instr("const", (), 3.0), Instr("pow", (0, 1)),
        Instr("const", (), _rounded(0.044715, dtype)), Instr("mul", (2, 3)), Instr("add", (0, 4)),
        Instr("const", (), _rounded((2 / np.pi) ** 0.5, dtype)), Instr("mul", (5, 6)),
        Instr("tanh", (7,)), Instr("const", (), 1.0), Instr("add", (8, 9)),
        Instr("mul", (0, 10)), Instr("const", (), 0.5), Instr("mul", (11, 12)),
    )  # fmt: skip
    return Expr(1, code, 13)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize(("make", "name"), [(_gelu_erf, "gelu_erf"), (_gelu_tanh, "gelu_tanh")])
def test_gelu_of_a_16_bit_model(make: object, name: str, dtype: DType) -> None:
    assert callable(make)
    expr = make(dtype)
    found = classify_activation(unrounded(expr, dtype))
    assert classify_activation(expr) is None and found is not None and found[0] == name


def test_other_constants_and_types_stay() -> None:
    expr = _gelu_erf(DType.F16)
    assert unrounded(expr, DType.F32) == expr
    other = Expr(1, (Instr("const", (), 0.0449), Instr("mul", (0, 1))), 2)
    assert unrounded(other, DType.F16) == other
