"""What weights and bias of a convolution or GEMM take in: a BatchNormalization, or
factors and sums per channel (what TensorFlow leaves of one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.epilogue_kinds import CHANNEL, operand_kind
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View
from tracea_onnx.ir.abi import KERNEL_FLOATS, DType
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.match.spec_table import ConvSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Scaled:
    """Result * scale + shift per channel, and what follows that."""

    scale: Ref | None
    shift: Ref | None
    expr: Expr | None
    extras: Sequence[Value]


def batch_norm(
    ctx: Lowering, roles: Mapping[str, str], eps: float | None, channels: int
) -> tuple[Ref | None, Ref | None]:
    """(scale, shift) that fold an inference BatchNormalization into weights and bias."""
    if "bn_scale" not in roles:
        return None, None
    parts = {
        k: ctx.value(roles[f"bn_{r}"])
        for k, r in (("gamma", "scale"), ("beta", "bias"), ("mean", "mean"), ("var", "var"))
    }
    kinds = {v.dtype for v in parts.values()}
    if (
        not all(v.is_constant for v in parts.values())
        or len(kinds) > 1
        or not kinds <= ctx.target.types
    ):
        raise Unsupported(
            "the statistics of BatchNormalization are not constants of one float type"
        )
    if any(v.elements != channels for v in parts.values()):
        raise Unsupported(
            f"BatchNormalization has {channels} channels, and statistics of"
            f" {', '.join(str(v.elements) for v in parts.values())} elements"
        )
    scale, shift = ctx.plan.arena(4 * channels), ctx.plan.arena(4 * channels)
    ctx.plan.launch(
        "fold_bn",
        {k: ctx.plain(v) for k, v in parts.items()},
        {"scale": scale, "shift": shift},
        {"C": channels},
        {"eps": 1e-5 if eps is None else eps},
        dtype=kinds.pop(),
    )
    return scale, shift


def scaled(
    ctx: Lowering, op: Op, spec: ConvSpec, roles: Mapping[str, str], channels: int, out: Dims
) -> Scaled:
    """Per-channel scale and shift that a convolution with this result takes into its weights: a
    leading per-channel Mul and Add of its epilogue, if it has no BatchNormalization.

    In f16 a factor stays: weights times 1e-5 (the scale of a residual branch) would lose their
    digits.
    """
    scale, shift = batch_norm(ctx, roles, spec.bn_eps, channels)
    expr, extras = spec.expr, [ctx.value(n) for n in op.extras]
    if scale is None:
        factor: Value | None = None
        if ctx.value(roles["w"]).dtype != DType.F16:
            expr, extras, factor = _take(expr, extras, "mul", out)
        expr, extras, term = _take(expr, extras, "add", out)
        scale, shift = (
            _floats(ctx, v, channels) if v is not None else None for v in (factor, term)
        )
    return Scaled(scale, shift, expr, extras)


def _take(
    expr: Expr | None, extras: list[Value], op: str, out: Dims
) -> tuple[Expr | None, list[Value], Value | None]:
    """`expr` and its operands without the one that the result alone is multiplied by, or added to,
    before anything else reads it.
    """
    readers = [k for k, ins in enumerate(expr.code) if 0 in ins.args] if expr is not None else []
    if expr is None or len(readers) != 1 or expr.out == 0:
        return expr, extras, None
    at, ins = readers[0], expr.code[readers[0]]
    other = max(ins.args)
    alone = sum(a == other for i in expr.code for a in i.args) == 1 and expr.out != other
    if ins.op != op or sorted(ins.args) != [0, other] or not 0 < other < expr.n_in or not alone:
        return expr, extras, None
    v = extras[other - 1]
    if not v.is_constant or operand_kind(v, out, 1) != CHANNEL or v.dtype not in KERNEL_FLOATS:
        return expr, extras, None
    gone = expr.n_in + at

    def moved(i: int) -> int:
        return 0 if i == gone else i - (i > other) - (i > gone)

    rest = [extra for k, extra in enumerate(extras) if k != other - 1]
    code = tuple(
        Instr(i.op, tuple(map(moved, i.args)), i.imm) for k, i in enumerate(expr.code) if k != at
    )
    return Expr(expr.n_in - 1, code, moved(expr.out)) if code else None, rest, v


def _floats(ctx: Lowering, v: Value, channels: int) -> Ref:
    """A constant of one value per channel, in f32."""
    ref = ctx.plain(v)
    if v.dtype == DType.F32:
        return ref
    line = ctx.define(v.name + "\0line", v.dtype, (channels,))
    line.view = View(ref, (1,))
    lower_expression(ctx, Expr(1, (), 0), [line], v.name + "\0f32", DType.F32)
    return ctx.plain(ctx.value(v.name + "\0f32"))
