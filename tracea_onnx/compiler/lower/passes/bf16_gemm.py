"""Products of bfloat16 on the CPU: where the session lets products of f32 round their operands, and
of values that the model has in this type (`Target.held`). What only such products read is stored
in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.epilogue import Epilogue, plan_epilogue
from tracea_onnx.compiler.lower.op import CONVOLUTIONS, MATMUL_OPS, Op, readers
from tracea_onnx.compiler.lower.value import Dims, Value, View, contiguous
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.expr_program import classify_epilogue
from tracea_onnx.match.spec_table import ConvSpec, GemmSpec
from tracea_onnx.plan.builder import Ref

#: Multiply-adds for each element of rows and results, from which on bfloat16 takes less time: with
#: fewer, what is gathered and stored counts (Emerald Rapids: 0.8 of fp32's speed at 26, 1.1 at 27,
#: 1.9 at 32).
_FEWEST = 27.0
#: Products for each of those that Winograd's kernel multiplies.
WINOGRAD = 36 / 16


def fits(
    ctx: Lowering, x: str, w: Value, terms: int, columns: int, *, instead_of: float = 1.0
) -> bool:
    """Whether a product of x by constant weights is one of bfloat16. instead_of: how many times as
    fast as by products of f32, one for each term, it would be without.
    """
    known = ctx.values.get(x)
    kind = ctx.graph.dtype(x) or (known.dtype if known is not None else None)
    held = kind in ctx.target.held
    return (
        ctx.target.bf16 > instead_of
        and w.dtype == DType.F32
        and w.is_constant
        and terms * columns >= _FEWEST * (terms + columns)
        and ((held and ctx.is_held(w)) or (ctx.target.rounds and (held or kind == DType.F32)))
    )


def packed(
    ctx: Lowering,
    family: str,
    w: Value,
    params: Mapping[str, int],
    floats: Mapping[str, float] | None = None,
    **more: Ref | None,
) -> Ref:
    """The weights as `family` packs them; in the type that they have in the model."""
    source, dtype = ctx.as_given(w)
    return ctx.packed(family, {"w": source, **more}, {**params, "w_dtype": int(dtype)}, floats)


def widened(ctx: Lowering, v: Value) -> Value:
    """The value in f32."""
    if v.dtype != DType.BF16:
        return v
    name = f"{v.name}\0wide"
    if name not in ctx.values:
        images = v.nhwc
        at = (
            ctx.strided(v)
            if images is None
            else View(images.ref, (images.ns, 1, *((images.rs,) if v.rank == 4 else ()), images.cs))
        )
        out = ctx.define(name, DType.F32, v.shape)
        out.view = View(ctx.converted(at, v, DType.F32), contiguous(v.shape))
    return ctx.values[name]


def epilogue(
    ctx: Lowering, expr: Expr | None, extras: list[Value], shape: Dims, channel_axis: int
) -> tuple[Epilogue | None, list[Value]]:
    """As `plan_epilogue` of a product of bfloat16, and the operands that it is of."""
    epi = plan_epilogue(ctx, expr, extras, DType.F32, shape, channel_axis, residual=DType.BF16)
    if epi is None and any(v.dtype == DType.BF16 for v in extras):
        extras = [widened(ctx, v) for v in extras]
        epi = plan_epilogue(ctx, expr, extras, DType.F32, shape, channel_axis)
    return epi, extras


def types(x: Value, epi: Epilogue | None, y: Value) -> dict[str, DimLike]:
    """Parameters of a launch."""
    r = epi.residual.dtype if epi is not None and epi.residual is not None else DType.F32
    return {"x_dtype": int(x.dtype), "r_dtype": int(r), "y_dtype": int(y.dtype)}


def rounded_later(ctx: Lowering, ops: Sequence[Op], outputs: Collection[str]) -> set[str]:
    """Results of Casts to held types that products alone read, as their rows."""
    read_by = readers(ops)
    return {
        op.outputs[0]
        for op in ops
        if op.kind == "Cast"
        and op.attr("to") in ctx.target.held
        and op.outputs[0] not in outputs
        and all(
            r.kind in CONVOLUTIONS | MATMUL_OPS
            and r.role("x") == op.outputs[0]
            and r.inputs.count(op.outputs[0]) == 1
            for r in read_by.get(op.outputs[0], ())
        )
    }


# --- what is stored in bfloat16 -------------------------------------------------------------------
def stored(ctx: Lowering, ops: Sequence[Op], outputs: Collection[str]) -> set[str]:
    """Results of products of bfloat16 that nothing but others read, as rows or as the residual."""
    if ctx.target.bf16 <= WINOGRAD:
        return set()
    products = {id(op) for op in ops if _is_product(ctx, op)}
    read_by, found = readers(ops), set()
    for op in ops:
        name = op.outputs[0]
        read = read_by.get(name, ())
        mine = id(op) in products and read and name not in outputs
        if mine and all(id(r) in products and _takes(r, name) for r in read):
            found.add(name)
    return found


def _is_product(ctx: Lowering, op: Op) -> bool:
    """Whether it will be one of bfloat16, whatever else may be."""
    x, w = op.role("x"), op.role("w")
    shape = ctx.graph.shape(w) or ()
    if (
        op.kind not in (":conv", ":gemm")
        or not ctx.graph.is_const(w)
        or x in ctx.block_concats
        or not all(isinstance(d, int) for d in shape)
    ):
        return False
    sizes = [d for d in shape if isinstance(d, int)]
    if op.kind == ":conv":
        groups = max(ConvSpec.of(op.attrs).group, 1)
        if len(sizes) not in (3, 4) or (groups > 1 and sizes[1] == 1):
            return False
        terms, columns = math.prod(sizes[1:]), sizes[0] // groups
    else:
        spec = GemmSpec.of(op.attrs)
        rows = len(ctx.graph.shape(x) or ())
        if len(sizes) != 2 or spec.trans_a or rows < 2 or "bn_scale" in op.by_role:
            return False
        terms, columns = reversed(sizes) if spec.trans_b else sizes
    return fits(ctx, x, ctx.value(w), terms, columns, instead_of=WINOGRAD)


def _takes(reader: Op, name: str) -> bool:
    """Whether a product reads the value as its rows, or as the residual alone."""
    if reader.inputs.count(name) != 1:
        return False
    if reader.role("x") == name:
        return True
    expr = (ConvSpec if reader.kind == ":conv" else GemmSpec).of(reader.attrs).expr
    found = classify_epilogue(expr) if expr is not None else None
    extras = reader.extras
    return (
        found is not None
        and found.act in ACTIVATIONS
        and found.residual is not None
        and extras[found.residual - 1] == name
    )
