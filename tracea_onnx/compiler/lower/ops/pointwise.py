"""Pointwise expressions: symbolic on shape arithmetic, channels-last when their operands are, plain
with broadcasting otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracea_onnx.compiler.lower.context import Lowering, element_type
from tracea_onnx.compiler.lower.epilogue import program_of
from tracea_onnx.compiler.lower.epilogue_kinds import (
    CHANNEL,
    CHANNEL_F32,
    FULL,
    SCALAR,
    operand_kind,
)
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.passes import byte_images, pointwise_stages, quantised, summed_rows
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value
from tracea_onnx.ir.abi import I64_OPCODES, INTEGERS, KERNEL_FLOATS, DType
from tracea_onnx.ir.activations import unrounded
from tracea_onnx.ir.expr import Expr, Instr, substituted
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.pointwise_ops import POINTWISE, Code
from tracea_onnx.ir.refusals import Refuse
from tracea_onnx.match.spec_table import PointwiseSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.shapes.operands import broadcast

_IMAGE_INPUTS, _PLAIN_INPUTS = 4, 6


def pointwise(ctx: Lowering, op: Op) -> None:
    """A fused chain (`expr` over its inputs) or one ONNX pointwise node."""
    expr, names = expression_of(ctx, op)
    values = [ctx.value(n) for n in names]
    name = op.outputs[0]
    dtype = ctx.held(element_type(name, ctx.graph.dtype(name) or int(values[0].dtype)))
    out = Value(op.outputs[0], dtype, broadcast(ctx, *(v.shape for v in values)))
    kind = (
        ""
        if out.name in ctx.unread
        else "sum"
        if out.name in ctx.deferrable
        and summed_rows.is_sum(expr)
        and summed_rows.fits(ctx, out, values)
        else None
    )
    if kind is not None:
        ctx.values[out.name] = out
        ctx.defer(out, kind, values, lambda: lower_expression(ctx, expr, values, out.name, dtype))
        return
    lower_expression(ctx, expr, values, op.outputs[0], dtype)


def expression_of(ctx: Lowering, op: Op) -> tuple[Expr, list[str]]:
    """The expression of a pointwise op, and its operands."""
    if op.fused:
        return PointwiseSpec.of(op.attrs).expr, list(op.inputs)
    found = node_expression(ctx.graph, op.nodes[0])
    if found is None:
        raise Unsupported(f"no kernel computes {op.kind} with these attributes")
    return found


def node_expression(graph: Graph, node: Node) -> tuple[Expr, list[str]] | None:
    """One ONNX pointwise node as an expression and its tensor operands; None for a form the
    expression language cannot say.
    """
    code = Code()
    ids: list[int] = []
    ranks = [graph.rank(name) or 0 for name in node.inputs if name and graph.scalar(name) is None]
    for name in node.inputs:
        if name:
            value = graph.scalar(name)
            if value is not None and (graph.rank(name) or 0) > max(ranks, default=0):
                value = None  # it gives the result its rank
            exact = (
                value is not None
                and math.isfinite(value)
                and (graph.dtype(name) in (1, 10, 16) or abs(value) < 2**24)
            )
            ids.append(code.const(value) if exact and value is not None else code.operand(name))
    if not code.operands:
        return None
    try:
        return code.finish(POINTWISE[node.op](code, graph, node, ids)), code.operands
    except Refuse:
        return None


def cast(ctx: Lowering, op: Op) -> None:
    """Cast: part of the pointwise kernel that reads it where one does, else a launch."""
    x = ctx.value(op.input(0))
    name, same = op.outputs[0], Expr(1, (), 0)
    to = element_type(name, int(op.attr("to")))
    lies = ctx.held(to)
    if lies != to and not ctx.is_held(x) and name not in ctx.rounded_later:
        lower_expression(ctx, same, [x], f"{name}\0{to.name}", to)
        x = ctx.value(f"{name}\0{to.name}")
    if lies == x.dtype:
        ctx.forward(x, name)
        return
    lower_expression(ctx, same, [x], name, lies)


def lower_expression(
    ctx: Lowering, expr: Expr, inputs: Sequence[Value], name: str, dtype: DType
) -> None:
    """name = expr(inputs) with ONNX broadcasting."""
    given = expr
    expr, inputs, name, dtype = quantised.fused(ctx, expr, inputs, name, dtype, _PLAIN_INPUTS)
    # what is quantised has the bits that ONNX says
    exact = expr is not given or any(i.op == "round" for i in expr.code)
    expr, inputs = _each_once(expr, inputs)
    shape = broadcast(ctx, *(v.shape for v in inputs))
    kinds_in, kind_out = {v.dtype for v in inputs}, dtype
    # f32 holds what one of them becomes of the other
    converts = not expr.code and kinds_in | {kind_out} == {DType.F32, DType.F64}
    if not converts and not (kinds_in | {kind_out}) <= INTEGERS | KERNEL_FLOATS:
        raise Unsupported(
            f"no kernel computes on {', '.join(sorted(k.name for k in kinds_in | {kind_out}))}"
        )
    narrow = (kinds_in | {kind_out}) & (KERNEL_FLOATS - ctx.target.types)
    if narrow and expr.code:
        raise Unsupported(
            f"the {ctx.plan.backend} kernels convert {', '.join(sorted(k.name for k in narrow))},"
            " and do not compute on it"
        )
    whole = _unclipped(expr)
    integer = (
        kinds_in <= INTEGERS
        and kind_out in INTEGERS
        and all(i.op in I64_OPCODES for i in whole.code)
    )
    if not integer and kinds_in & {DType.I64, DType.I32} and kind_out in INTEGERS - {DType.BOOL}:
        raise Unsupported(
            "floating-point arithmetic does not hold 32-bit and 64-bit integers exactly"
        )
    expr = whole if integer else unrounded(expr, dtype)
    if not integer and _image(ctx, expr, inputs, name, dtype, shape, exact):
        return
    _plain(ctx, expr, inputs, name, dtype, shape, integer, exact)


def _each_once(expr: Expr, inputs: Sequence[Value]) -> tuple[Expr, Sequence[Value]]:
    """The expression with one input for an operand that is given several times, as a launch has."""
    values = list({id(v): v for v in inputs}.values())
    if len(values) == len(inputs):
        return expr, inputs
    place = {id(v): k for k, v in enumerate(values)}
    parts = [(Expr(1, (), 0), [place[id(v)]]) for v in inputs]
    return substituted(expr, parts, len(values)), values


def _unclipped(expr: Expr) -> Expr:
    """Without `clip`, which integers do not have: min(max(a, b), c)."""
    place = list(range(expr.n_in))
    code: list[Instr] = []
    for ins in expr.code:
        args = tuple(place[a] for a in ins.args)
        if ins.op == "clip":
            code.append(Instr("max", args[:2]))
            args = (expr.n_in + len(code) - 1, args[2])
        code.append(Instr("min" if ins.op == "clip" else ins.op, args, ins.imm))
        place.append(expr.n_in + len(code) - 1)
    return Expr(expr.n_in, tuple(code), place[expr.out])


def _image(
    ctx: Lowering,
    expr: Expr,
    inputs: Sequence[Value],
    name: str,
    dtype: DType,
    shape: Dims,
    exact: bool,
) -> bool:
    """Channels-last, when some operand already is and the rest can follow."""
    if len(shape) not in (3, 4) or len(inputs) > _IMAGE_INPUTS or dtype not in ctx.target.types:
        return False
    if not any(v.nhwc is not None and v.view is None for v in inputs):
        return False
    kinds = [_image_kind(v, shape, dtype) for v in inputs]
    if any(k is None for k in kinds) or FULL not in kinds or not isinstance(shape[1], int):
        return False
    out = ctx.define(name, dtype, shape)
    operands: dict[str, Ref | None] = {}
    ints = out.nchw()
    for k, (v, kind) in enumerate(zip(inputs, kinds, strict=True)):
        assert kind is not None
        ints[f"x{k}_kind"] = kind
        if kind == FULL:
            src = ctx.nhwc(v)
            operands[f"x{k}"] = src.ref
            ints |= src.pitches(f"x{k}")
        else:
            operands[f"x{k}"] = ctx.plain(v)
            ints[f"x{k}_ns"] = (
                shape[1] if kind != SCALAR and v.rank == len(shape) and v.shape[0] != 1 else 0
            )
    dst = ctx.new_nhwc(out)
    ints |= dst.pitches("y")
    ctx.plan.launch(
        "pointwise_nhwc",
        operands,
        {"y": dst.ref},
        ints,
        None,
        program_of(expr, type="f32", joins=not exact, named=not exact),
        whole=False,
        dtype=dtype,
    )
    return True


def _image_kind(v: Value, shape: Dims, dtype: DType) -> int | None:
    """FULL, SCALAR, or CHANNEL ([C, 1, 1], [1, C, 1, 1] or a per-image gate [N, C, 1, 1]), which
    may be f32 whatever the rest is.
    """
    kind = operand_kind(v, shape, 1)
    if kind not in (FULL, SCALAR, CHANNEL):
        gate = (
            v.rank == len(shape) and v.shape[:2] == shape[:2] and all(d == 1 for d in v.shape[2:])
        )
        kind = CHANNEL if gate else None
    if v.dtype != dtype:
        return CHANNEL_F32 if kind == CHANNEL and v.dtype == DType.F32 else None
    return kind


def _plain(
    ctx: Lowering,
    expr: Expr,
    inputs: Sequence[Value],
    name: str,
    dtype: DType,
    shape: Dims,
    integer: bool,
    exact: bool,
) -> None:
    if len(inputs) > _PLAIN_INPUTS:
        raise Unsupported(
            f"the expression reads {len(inputs)} tensors; the kernel takes {_PLAIN_INPUTS}"
        )
    program = program_of(expr, type="i64" if integer else "f32", joins=not exact, named=not exact)
    if byte_images.keeps(inputs, dtype) and not ctx.is_given_storage(name):
        images = [byte_images.channels_last(ctx, v, len(shape)) for v in inputs]
        if _fits(ctx, images, byte_images.last(shape)):
            made = Value(f"{name}\0last", dtype, byte_images.last(shape))
            pointwise_stages.launch(ctx, images, made, program)
            assert made.view is not None
            byte_images.lay(ctx, ctx.define(name, dtype, shape), made.view.ref)
            return
    out = Value(name, dtype, shape)
    read = _within_limits(ctx, inputs, shape)
    if pointwise_stages.should_defer(ctx, out, read):
        pointwise_stages.defer(ctx, out, pointwise_stages.Stage(program, dtype, tuple(read)))
        return
    pointwise_stages.launch(ctx, read, ctx.define(name, dtype, shape), program)


def _within_limits(
    ctx: Lowering, inputs: Sequence[Value], shape: Dims
) -> list[Value | pointwise_stages.Stage]:
    """The inputs, those that were left to their readers as stages as far as one launch reads what
    these do.
    """
    read = [pointwise_stages.stage_of(v) for v in inputs]
    while any(isinstance(x, pointwise_stages.Stage) for x in read) and not _fits(ctx, read, shape):
        widest = max(
            (k for k, x in enumerate(read) if isinstance(x, pointwise_stages.Stage)),
            key=lambda k: len(pointwise_stages.leaves([read[k]])),
        )
        ctx.materialize(inputs[widest])
        read = [pointwise_stages.stage_of(v) for v in inputs]
    if not _fits(ctx, read, shape):
        raise Unsupported("the broadcast needs more than 6 separate dims")
    return read


def _fits(ctx: Lowering, inputs: Sequence[Value | pointwise_stages.Stage], shape: Dims) -> bool:
    leaves = pointwise_stages.leaves(inputs)
    return len(leaves) <= _PLAIN_INPUTS and len(pointwise_stages.rows_of(ctx, leaves, shape)) <= 6


OPS = {
    **dict.fromkeys((op for op in POINTWISE if op != "Identity"), pointwise),
    ":pointwise": pointwise,
    "Cast": cast,
}
