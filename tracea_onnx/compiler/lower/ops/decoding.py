"""Attention with a key/value cache that has room for more rows than it holds (GroupQueryAttention,
Attention with past). A tensor has the number of valid rows of each batch entry.

The cache is one tensor that the new keys and values are written into. Where a run gives the memory
of the old cache for the new one, nothing else moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op, of_roles
from tracea_onnx.compiler.lower.ops.attention import (
    Cached,
    appended,
    cache_name,
    heads_of,
    require_even_part,
    rope,
    turns,
)
from tracea_onnx.compiler.lower.ops.attention import attention as attention_of
from tracea_onnx.compiler.lower.ops.contrib import counted
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.refusals import Refuse
from tracea_onnx.match.masks import Mask
from tracea_onnx.match.operator_specs import attention as attention_spec
from tracea_onnx.match.spec_table import AttentionSpec, RopeSpec
from tracea_onnx.shapes.operators import grouped_heads, result


def grouped(ctx: Lowering, op: Op) -> None:
    """GroupQueryAttention: queries, keys and values [batch, sequence, heads * size], in one operand
    or three; rotary embedding; keys and values behind those of the cache; causal attention.
    """
    _refuse(ctx, op)
    heads, kv_heads, size = grouped_heads(ctx, op)
    lens = ctx.value(op.input(5))
    if lens.dtype != DType.I32:
        raise Unsupported(f"the lengths of {op.kind} have type {lens.dtype.name}, not I32")
    q, k, v = _projections(ctx, op, (heads, kv_heads, kv_heads), size)
    batch, seq = q.shape[:2]
    ctx.same(lens.elements, batch, f"the lengths of {op.kind} '{op.label}' and its rows")
    total = _total(ctx, op)
    if op.attr("do_rotary", 0) and "rope_cache" in ctx.target.families:
        q, caches = _in_one_launch(ctx, op, (q, k, v), lens)
    else:
        if op.attr("do_rotary", 0):
            pos = ctx.value(op.input(9)) if op.input(9) else _positions(ctx, lens, batch, seq)
            q, k = (_rotated(ctx, op, x, pos, n) for x, n in ((q, heads), (k, kv_heads)))
        caches = _written(ctx, op, (k, v), kv_heads, lens, seq)
    kept: list[str] = []
    for cache in caches:
        seen = ctx.define(f"{cache.name}\0seen", cache.dtype, (*cache.shape[:2], total, size))
        seen.view = View(ctx.plain(cache), contiguous(cache.shape))
        kept.append(seen.name)
    window = int(op.attr("local_window_size", -1))
    smooth, sink = op.attr("smooth_softmax", 0) == 1, ctx.optional(op.input(11))
    roles = {"q": q.name, "k": kept[0], "v": kept[1]}
    if op.input(10):
        roles["mask"] = op.input(10)
    spec = AttentionSpec(
        q={"layout": "bsx"},
        k={"layout": "bhsd"},
        v={"layout": "bhsd"},
        out={"layout": "bsx"},
        num_heads=heads,
        kv_heads=kv_heads,
        scale=float(op.attr("scale") or size**-0.5),
        softcap=float(op.attr("softcap") or 0.0) or None,
        causal=bool(op.attr("causal", 1)),
        mask_kind="add" if op.input(10) else "none",
    )
    attention_of(
        ctx,
        of_roles(spec, roles, op.outputs[:1], op.nodes, op.label),
        Cached(lens, 1, clamp=True, window=max(window, 0), smooth=smooth, sink=sink),
    )


def _refuse(ctx: Lowering, op: Op) -> None:
    """Raises Unsupported for variants without a kernel."""
    ctx.available("cache_write", op.kind)
    more = ["scales of a quantised cache"] * any(op.inputs[12:])
    more += ["a result of its scores"] * (any(op.outputs[3:]) or bool(op.attr("qk_output", 0)))
    more += ["a cache of the size of a window"] * bool(op.attr("sliding_window_cache", 0))
    more += ["a window of no keys"] * (op.attr("local_window_size", -1) == 0)
    more += ["a quantised cache"] * any(
        op.attr(f"{which}_quant_type", "NONE") != "NONE" for which in "kv"
    )
    more += ["one cache of two"] * (bool(op.input(3)) != bool(op.input(4)))
    if more:
        raise Unsupported(f"no kernel computes {op.kind} with {' and '.join(more)}")
    if not op.input(5) or not op.input(6):
        raise Unsupported(f"{op.kind} '{op.label}' is given no lengths")


def _projections(
    ctx: Lowering, op: Op, heads: Sequence[int], size: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values, as views where one operand holds all."""
    first = ctx.value(op.input(0))
    if op.input(1):
        q, k, v = (ctx.value(n) for n in op.inputs[:3])
        for x, count in zip((q, k, v), heads, strict=True):
            if x.rank != 3 or x.dtype != first.dtype:
                raise Unsupported(f"'{x.name}' of {op.kind} has rank {x.rank}; it must be 3")
            ctx.same(x.shape[2], count * size, f"the width of '{x.name}' and of its heads")
        return q, k, v
    view, at = ctx.strided(first), 0
    parts: list[Value] = []
    for role, count in zip("qkv", heads, strict=True):
        shape = (*first.shape[:2], count * size)
        parts.append(ctx.define(f"{op.outputs[0]}\0{role}", first.dtype, shape))
        at_bytes = D.mul(at * first.dtype.size, view.strides[2])
        parts[-1].view = View(view.ref.at(at_bytes), view.strides)
        at += count * size
    return parts[0], parts[1], parts[2]


def _positions(ctx: Lowering, lens: Value, batch: DimLike, seq: DimLike) -> Value:
    """Positions of a run's tokens in their sequences: max(length - sequence, 0) + 0, 1, ..."""
    name = f"{lens.name}\0positions{seq}"
    if name in ctx.values:  # all layers share them
        return ctx.value(name)
    ends = ctx.define(f"{name}\0ends", lens.dtype, (batch, 1))
    ends.view = View(ctx.plain(lens), (1, 1))
    start = ctx.define(f"{name}\0start", DType.I64, ())
    start.ints = (D.sub(1, seq),)
    code = (
        Instr("add", (0, 2)),
        Instr("const", (), 0.0),
        Instr("max", (3, 4)),
        Instr("add", (5, 1)),
    )
    counts = counted(ctx, f"{name}\0counts", seq)
    lower_expression(ctx, Expr(3, code, 6), [ends, counts, start], name, DType.I64)
    return ctx.value(name)


def _tables(ctx: Lowering, op: Op) -> tuple[str, str, int]:
    """The rotary tables, and how many elements they turn."""
    cos, sin = op.input(7), op.input(8)
    if not cos or not sin or ctx.value(cos).rank != 2:
        raise Unsupported(f"{op.kind} '{op.label}' has no tables of rank 2 to rotate by")
    half = ctx.value(cos).shape[1]
    if not isinstance(half, int):
        raise Unsupported(f"the width of the rotary tables of {op.kind} is not known")
    return cos, sin, 2 * half


def _rotated(ctx: Lowering, op: Op, x: Value, pos: Value, heads: int) -> Value:
    cos, sin, rot = _tables(ctx, op)
    spec = RopeSpec(
        layout="bsx", interleaved=bool(op.attr("rotary_interleaved", 0)), rot=rot, num_heads=heads
    )
    name = f"{op.outputs[0]}\0rotated {x.name}"
    roles = {"x": x.name, "cos": cos, "sin": sin, "pos": pos.name}
    rope(ctx, of_roles(spec, roles, (name,), op.nodes, op.label))
    return ctx.value(name)


def _total(ctx: Lowering, op: Op) -> DimLike:
    """The most keys that a row of the batch has."""
    found = ctx.content(op.input(6))
    if found is None or found.size != 1:
        raise Unsupported(
            f"'{op.input(6)}', the total length that {op.kind} is given, does not follow from the"
            " shapes of the model's inputs"
        )
    total: DimLike = found.reshape(-1)[0]
    return total


def _past(ctx: Lowering, op: Op, which: int, dtype: DType) -> Value | None:
    past = ctx.optional(op.input(3 + which))
    if past is not None and past.dtype != dtype:
        raise Unsupported(f"the cache of {op.kind} has type {past.dtype.name}, not {dtype.name}")
    return past


def _written(
    ctx: Lowering, op: Op, given: Sequence[Value], heads: int, at: Value, seq: DimLike
) -> list[Value]:
    """The caches with new keys and values in them, the last of which is in row `at`."""
    caches: list[Value] = []
    for which, x in enumerate(given):
        new, past = heads_of(ctx, x, {"layout": "bsx"}, heads), _past(ctx, op, which, x.dtype)
        dims = result(ctx, op, 1 + which)
        caches.append(ctx.define(cache_name(op, which), x.dtype, dims))
        ctx.run(
            "cache_write",
            {"past": past, "x": new.ref, "at": at},
            caches[-1],
            {
                "elem": x.dtype.size, "B": new.batch, "H": new.heads, "S": new.seq,
                "P": 0 if past is None else past.shape[2], "T": dims[2], "D": new.dim,
                "x_b": new.b, "x_s": new.s, "x_h": new.h,
                "at_dtype": int(at.dtype), "at_add": D.sub(1, seq),
            },
            whole=False,
        )  # fmt: skip
    return caches


def _in_one_launch(
    ctx: Lowering, op: Op, given: tuple[Value, Value, Value], at: Value
) -> tuple[Value, list[Value]]:
    """Rotated queries, and the caches with rotated keys and with values in them."""
    cos, sin, rot = _tables(ctx, op)
    heads, kv_heads, size = grouped_heads(ctx, op)
    q, k, v = (
        heads_of(ctx, x, {"layout": "bsx"}, n)
        for x, n in zip(given, (heads, kv_heads, kv_heads), strict=True)
    )
    dtype = given[0].dtype
    ctx.require(given[0], "rotary embedding")
    require_even_part(rot, size)
    pos = ctx.value(op.input(9)) if op.input(9) else None
    cosines, sines, turning = turns(ctx, (cos, sin), pos, (q.batch, q.seq), rot, dtype)
    pasts = [_past(ctx, op, which, dtype) for which in range(2)]
    dims = [result(ctx, op, 1 + which) for which in range(2)]
    out = ctx.define(f"{op.outputs[0]}\0rotated {given[0].name}", dtype, given[0].shape)
    caches = [ctx.define(cache_name(op, which), dtype, dims[which]) for which in range(2)]
    operands = {"q": q.ref, "k": k.ref, "v": v.ref, "cos": cosines, "sin": sines}
    old = {n: ctx.plain(p) if p else None for n, p in zip(("past_k", "past_v"), pasts, strict=True)}
    held = [0 if p is None else p.shape[2] for p in pasts]
    for a, b in (held, [d[2] for d in dims]):
        ctx.same(a, b, f"the lengths of the caches of {op.kind} '{op.label}'")
    steps = {f"{n}_{a}": getattr(x, a) for n, x in (("q", q), ("k", k), ("v", v)) for a in "bsh"}
    ctx.plan.launch(
        "rope_cache",
        {**operands, **old, "at": ctx.plain(at)},
        dict(zip(("y", "keys", "values"), map(ctx.new_plain, (out, *caches)), strict=True)),
        {
            "B": q.batch, "S": q.seq, "H": heads, "KVH": kv_heads, "P": held[0], "T": dims[0][2],
            "D": size, "rot": rot, **steps, **turning,
            "interleaved": int(bool(op.attr("rotary_interleaved", 0))),
            "at_dtype": int(at.dtype), "at_add": D.sub(1, q.seq),
        },
        whole=False,
        dtype=dtype,
    )  # fmt: skip
    return out, caches


def cached(ctx: Lowering, op: Op) -> None:
    """Attention with a cache: keys and values behind those of the past; or as many of them as a
    tensor says, in a cache that others write.
    """
    if not any(op.inputs[4:]) and not any(op.outputs[1:]):
        raise Unsupported(op.why)
    mask = ctx.optional(op.input(3))
    masks = [Mask(mask.name, "bool" if mask.dtype == DType.BOOL else "add")] if mask else []
    try:
        spec = attention_spec(ctx.graph, op.nodes[0], masks)
    except Refuse as why:
        raise Unsupported(str(why)) from None
    more = ["a result of its scores"] * any(op.outputs[3:])
    more += ["one cache of two"] * (bool(op.input(4)) != bool(op.input(5)))
    more += ["lengths and a past"] * bool(op.input(6) and op.input(4))
    if more:
        raise Unsupported(f"no kernel computes {op.kind} with {' and '.join(more)}")
    roles = dict(zip("qkv", op.inputs, strict=False)) | ({"mask": op.input(3)} if mask else {})
    if op.input(6):
        lens = ctx.value(op.input(6))
        if spec.causal:
            raise Unsupported(f"{op.kind} is causal, with lengths that say where its queries are")
        if lens.dtype != DType.I64 or any(op.outputs[1:]):
            raise Unsupported(f"the lengths of {op.kind} have type {lens.dtype.name}, not I64")
        batch = ctx.value(op.input(0)).shape[0]
        ctx.same(lens.elements, batch, f"the lengths of {op.kind} '{op.label}' and its rows")
        ctx.available("cache_write", op.kind)
        kept = Cached(lens, 0, clamp=False)
        attention_of(ctx, of_roles(spec, roles, op.outputs[:1], op.nodes, op.label), kept)
        return
    heads = spec.kv_heads or _axis(ctx, op, 1)
    seq = ctx.value(op.input(0)).shape[1 if spec.num_heads else 2]
    for k, role in enumerate("kv"):
        x = ctx.value(op.input(1 + k))
        new = heads_of(ctx, x, spec.k, heads)
        if spec.causal:  # the queries are those of the new keys
            ctx.same(new.seq, seq, f"the numbers of new keys and of queries of '{op.label}'")
        roles[role] = appended(ctx, op, op.input(4 + k), new, k, x.dtype).name
    spec = replace(
        spec, k={"layout": "bhsd"}, v={"layout": "bhsd"}, past="kv" if spec.causal else None
    )
    attention_of(ctx, of_roles(spec, roles, op.outputs[:1], op.nodes, op.label))


def _axis(ctx: Lowering, op: Op, k: int) -> int:
    """The heads of keys of rank 4."""
    shape = ctx.value(op.input(k)).shape
    if len(shape) != 4 or not isinstance(shape[1], int):
        raise Unsupported(f"the heads of '{op.input(k)}' of {op.kind} are not known")
    return shape[1]


OPS = {"Attention": cached, "com.microsoft.GroupQueryAttention": grouped}
