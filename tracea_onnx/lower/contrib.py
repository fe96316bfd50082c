"""Operators of com.microsoft that ONNX Runtime's transformer optimizer leaves behind: embeddings with their norm, attention with its projections."""

from __future__ import annotations

import math
from typing import Any

from tracea_onnx.dims import DimLike
from tracea_onnx.expr import Expr, Instr
from tracea_onnx.lower.attention import attention as attention_of
from tracea_onnx.lower.context import Lowering
from tracea_onnx.lower.copies import range_
from tracea_onnx.lower.linear import product
from tracea_onnx.lower.movement import gather
from tracea_onnx.lower.norm import layernorm
from tracea_onnx.lower.op import Op
from tracea_onnx.lower.pointwise import lower_expression
from tracea_onnx.lower.value import Unsupported, Value, View
from tracea_onnx.ops import DType


def _counted(ctx: Lowering, name: str, n: DimLike) -> Value:
    """0, 1, ... n - 1."""
    bounds = [f"{name}{k}" for k in range(3)]
    for bound, value in zip(bounds, (0, n, 1), strict=True):
        ctx.define(bound, DType.I64, ()).ints = (value,)
    range_(ctx, Op("Range", name, tuple(bounds), (name,), {}, ()))
    return ctx.value(name)


def embedding(ctx: Lowering, op: Op) -> None:
    """EmbedLayerNormalization: norm(word[ids] + position[0, 1, ...] + segment[segments]); the number of valid tokens of each row; the sum."""
    ids, segments, word, position, segment, gamma, beta, mask, places = (op.input(k) for k in range(9))
    first = f"{op.outputs[0]}\0word"
    gather(ctx, Op("Gather", op.label, (word, ids), (first,), {"axis": 0}, op.nodes))
    x = ctx.value(first)
    if segments:
        second, both = f"{first}\0segment", f"{first}\0both"
        gather(ctx, Op("Gather", op.label, (segment, segments), (second,), {"axis": 0}, op.nodes))
        lower_expression(ctx, Expr(2, (Instr("add", (0, 1)),), 2), [x, ctx.value(second)], both, x.dtype)
        x = ctx.value(both)
    at = places or _counted(ctx, f"{first}\0places", x.shape[1]).name
    placed = f"{first}\0placed"
    gather(ctx, Op("Gather", op.label, (position, at), (placed,), {"axis": 0}, op.nodes))
    roles = {r: n for r, n in (("x", x.name), ("res", placed), ("gamma", gamma), ("beta", beta)) if n}
    attrs = {"axis": -1, "eps": float(op.attr("epsilon", 1e-12))}
    outputs = (op.outputs[0], *(o for o in op.outputs[2:3] if o))
    layernorm(ctx, Op(":layernorm", op.label, tuple(roles.values()), outputs, attrs, op.nodes, tuple(roles), op.opset, roles))
    if len(op.outputs) > 1 and op.outputs[1]:
        if not mask:
            raise Unsupported("an EmbedLayerNormalization that counts the tokens of a mask it does not have")
        m = ctx.value(mask)
        out = ctx.define(op.outputs[1], m.dtype, m.shape[:1])
        ints: dict[str, DimLike] = {"kind": 0, "outer": m.shape[0], "n": m.shape[1], "inner": 1, "dtype": int(m.dtype)}
        ctx.plan.launch("reduce", {"x": ctx.plain(m)}, {"y": ctx.new_plain(out)}, ints, dtype=DType.F32)


def _hidden(ctx: Lowering, op: Op, name: str, rows: DimLike, keys: DimLike, dtype: DType) -> str:
    """What a mask of keys (1: seen) [batch, keys] or [batch, queries, keys], or of how many keys of each row are valid [batch], adds to scores."""
    mask, fill = ctx.value(name), float(op.attr("mask_filter_value", -10000.0))
    low = max(fill, -65504.0) if dtype == DType.F16 and math.isfinite(fill) else fill
    made = f"{name}\0hides{low!r}\0{dtype.name}"
    if made in ctx.values:  # all layers share it
        return made
    if mask.dtype not in (DType.I32, DType.I64, DType.BOOL) or not 1 <= mask.rank <= 3:
        raise Unsupported(f"{op.kind} with a mask of rank {mask.rank} and type {mask.dtype.name}")
    view = ctx.strided(mask)
    shape, strides = {
        1: ((*mask.shape, 1, 1, 1), (*view.strides, 0, 0, 0)),
        2: ((mask.shape[0], 1, 1, *mask.shape[1:]), (view.strides[0], 0, 0, *view.strides[1:])),
        3: ((mask.shape[0], 1, *mask.shape[1:]), (view.strides[0], 0, *view.strides[1:])),
    }[mask.rank]
    seen = ctx.define(f"{made}\0four", mask.dtype, shape)
    seen.view = View(view.ref, strides)
    constants = (Instr("const", (), 0.0), Instr("const", (), low))
    if mask.rank == 1:
        if not ctx.plan.require(mask.shape[0], rows):  # ONNX Runtime also takes begins and ends in one
            raise Unsupported(f"{op.kind} with a mask that may hold more than a length of each row")
        lower_expression(ctx, Expr(2, (*constants, Instr("lt", (0, 1)), Instr("where", (4, 2, 3))), 5), [_counted(ctx, f"{made}\0at", keys), seen], made, dtype)
    else:
        lower_expression(ctx, Expr(1, (*constants, Instr("where", (0, 1, 2))), 3), [seen], made, dtype)
    return made


def attention(ctx: Lowering, op: Op) -> None:
    """Attention of com.microsoft: softmax(q k^T * scale + mask) v of the heads of (q, k, v) = x w + b, side by side again."""
    x, w, heads = ctx.value(op.input(0)), ctx.value(op.input(1)), int(op.attr("num_heads", 0))
    more = [what for k, what in ((4, "a cache"), (6, "a cache")) if op.input(k)] + ["a cache as output"] * any(op.outputs[1:])
    more += [a for a in ("do_rotary", "qkv_hidden_sizes") if op.attr(a)]
    width = w.shape[-1]
    if more or not isinstance(width, int) or not heads or width % (3 * heads):
        raise Unsupported(f"{op.kind} with {' and '.join(more) or 'projections of unknown widths'}")
    if op.input(3) and op.input(5):
        raise Unsupported(f"{op.kind} with a mask and a bias of the scores")
    qkv = product(ctx, x, w, ctx.value(op.input(2)) if op.input(2) else None, False, f"{op.outputs[0]}\0qkv")
    view, size = ctx.strided(qkv), width // 3
    roles: dict[str, str] = {}
    for k, role in enumerate("qkv"):
        part = ctx.define(f"{qkv.name}\0{role}", x.dtype, (*x.shape[:-1], size))
        part.view = View(view.ref.at(k * size * x.dtype.size), view.strides)
        roles[role] = part.name
    attrs: dict[str, Any] = {role: {"layout": "bsx"} for role in ("q", "k", "v", "out")}
    attrs |= {"num_heads": heads, "kv_heads": heads, "scale": float(op.attr("scale") or (size // heads) ** -0.5), "causal": bool(op.attr("unidirectional", 0))}
    if op.input(3) or op.input(5):
        roles["mask"] = op.input(5) or _hidden(ctx, op, op.input(3), x.shape[0], x.shape[1], x.dtype)
        attrs |= {"mask_kind": "add"}
    attention_of(ctx, Op(":attention", op.label, tuple(roles.values()), op.outputs[:1], attrs, op.nodes, tuple(roles), op.opset, roles))


OPS = {"com.microsoft.Attention": attention, "com.microsoft.EmbedLayerNormalization": embedding}
