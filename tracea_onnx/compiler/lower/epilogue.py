"""What follows a compute kernel: the fused epilogue of a convolution or GEMM, or a
pointwise kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.epilogue_kinds import FULL, operand_kind
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.activations import unrounded
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.expr_program import classify_activation, classify_epilogue, compile_program
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support.data_classes import dataclass


def program_of(
    expr: Expr, *, type: Literal["f32", "i64"], joins: bool, named: bool = True
) -> dict[str, Any]:
    """As `compile_program`. Raises Unsupported where it refuses: a constant of an exporter's (-inf,
    1e38) or an operation on bits in the wrong type, or too many registers.
    """
    try:
        return compile_program(expr, type=type, joins=joins, named=named)
    except ValueError as e:
        raise Unsupported(f"no program computes the pointwise expression: {e}") from None


@dataclass
class Epilogue:
    """Parameters of a conv/gemm launch beyond bias: built-in activation and residual, or a program
    with operands.
    """

    ints: dict[str, DimLike] = field(default_factory=dict)
    floats: dict[str, float] = field(default_factory=dict)
    operands: dict[str, Ref | None] = field(default_factory=dict)
    residual: Value | None = None
    # program operands read like the output
    full: list[tuple[int, Value]] = field(default_factory=list)
    program: dict[str, Any] | None = None


def plan_epilogue(
    ctx: Lowering,
    expr: Expr | None,
    extras: Sequence[Value],
    dtype: DType,
    out: Dims,
    channel_axis: int,
    *,
    joins: bool = True,
    residual: DType | None = None,
) -> Epilogue | None:
    """The fused form of `expr`, or None when it needs a pointwise kernel of its own. joins: as of
    `expr_program.simplify`. residual: another type that a residual may have.
    """
    if expr is None:
        return Epilogue()
    expr = unrounded(expr, dtype)
    if any(v.dtype not in (dtype, residual) for v in extras) or len(extras) > 4:
        return None
    kinds = [operand_kind(v, out, channel_axis) for v in extras]
    if any(k is None for k in kinds):
        return None
    known = classify_epilogue(expr)
    if known is not None and known.act in ACTIVATIONS:
        epi = Epilogue({"act": ACTIVATIONS.index(known.act)}, {"p0": known.p0, "p1": known.p1})
        if known.residual is None:
            return epi
        r = known.residual - 1
        if kinds[r] == FULL:
            epi.residual = extras[r]
            epi.ints["res_mode"] = known.res_mode
            return epi
    if any(v.dtype != dtype for v in extras):
        return None
    epi = Epilogue(program=program_of(expr, type="f32", joins=joins))
    for k, (v, kind) in enumerate(zip(extras, kinds, strict=True)):
        assert kind is not None
        epi.ints[f"o{k}_kind"] = kind
        if kind == FULL:
            epi.full.append((k, v))
        else:
            epi.operands[f"o{k}"] = ctx.plain(v)
    return epi


def activation_only(expr: Expr | None, dtype: DType = DType.F32) -> tuple[int, float, float]:
    """(act, p0, p1) of a one-input expression; Unsupported when it is not a built-in activation."""
    if expr is None:
        return 0, 0.0, 0.0
    known = classify_activation(unrounded(expr, dtype))
    if known is None:
        raise Unsupported("the activation is not built into the kernel")
    act, p0, p1 = known
    return ACTIVATIONS.index(act), p0, p1
