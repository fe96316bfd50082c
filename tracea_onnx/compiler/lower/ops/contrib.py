"""Operators of com.microsoft that ONNX Runtime's transformer optimizer leaves behind: embeddings
with their norm, attention with its projections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_onnx.compiler.lower.axes import around
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op, of_roles
from tracea_onnx.compiler.lower.ops.attention import appended, heads_of
from tracea_onnx.compiler.lower.ops.attention import attention as attention_of
from tracea_onnx.compiler.lower.ops.copies import range_
from tracea_onnx.compiler.lower.ops.gemm import matmul
from tracea_onnx.compiler.lower.ops.movement import gather
from tracea_onnx.compiler.lower.ops.norm import layernorm
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.match.masks import stored_fill
from tracea_onnx.match.spec_table import AttentionSpec, LayerNormSpec


def counted(ctx: Lowering, name: str, n: DimLike) -> Value:
    """0, 1, ... n - 1."""
    bounds = [f"{name}{k}" for k in range(3)]
    for bound, value in zip(bounds, (0, n, 1), strict=True):
        ctx.define(bound, DType.I64, ()).ints = (value,)
    range_(ctx, Op("Range", name, tuple(bounds), (name,), {}, ()))
    return ctx.value(name)


def embedding(ctx: Lowering, op: Op) -> None:
    """EmbedLayerNormalization: norm(word[ids] + position[0, 1, ...] + segment[segments]); the
    number of valid tokens of each row, 0 without a mask; the sum.
    """
    ids, segments, word, position, segment, gamma, beta, mask, places = (
        op.input(k) for k in range(9)
    )
    _ranked(ctx, op, 2, ids, segments, word, position, segment, mask, places)
    first = f"{op.outputs[0]}\0word"
    gather(ctx, Op("Gather", op.label, (word, ids), (first,), {"axis": 0}, op.nodes))
    x = ctx.value(first)
    if segments:
        second, both = f"{first}\0segment", f"{first}\0both"
        gather(ctx, Op("Gather", op.label, (segment, segments), (second,), {"axis": 0}, op.nodes))
        lower_expression(
            ctx, Expr(2, (Instr("add", (0, 1)),), 2), [x, ctx.value(second)], both, x.dtype
        )
        x = ctx.value(both)
    at = places or counted(ctx, f"{first}\0places", x.shape[1]).name
    placed = f"{first}\0placed"
    gather(ctx, Op("Gather", op.label, (position, at), (placed,), {"axis": 0}, op.nodes))
    roles = {
        r: n for r, n in (("x", x.name), ("res", placed), ("gamma", gamma), ("beta", beta)) if n
    }
    spec = LayerNormSpec(axis=-1, eps=float(op.attr("epsilon", 1e-12)))
    outputs = (op.outputs[0], *(o for o in op.outputs[2:3] if o))
    layernorm(ctx, of_roles(spec, roles, outputs, op.nodes, op.label))
    if len(op.outputs) > 1 and op.outputs[1]:
        if not mask:
            out = ctx.define(op.outputs[1], DType.I32, ctx.value(ids).shape[:1])
            ctx.run("fill", {}, out, {"elem": out.dtype.size, "count": out.elements, "value": 0})
            return
        m = ctx.value(mask)
        out = ctx.define(op.outputs[1], m.dtype, m.shape[:1])
        ints = {"kind": 0, "dtype": int(m.dtype), **around(m.shape, 1)}
        ctx.run("reduce", {"x": m}, out, ints)


def _ranked(ctx: Lowering, op: Op, rank: int, *operands: str) -> None:
    """Refuse operands of other ranks: ONNX Runtime looks at some only when it runs the node."""
    for v in (ctx.value(name) for name in operands if name):
        if v.rank != rank:
            raise Unsupported(f"'{v.name}' of {op.kind} has rank {v.rank}, not {rank}")


def _hidden(ctx: Lowering, op: Op, name: str, rows: DimLike, keys: DimLike, dtype: DType) -> str:
    """What a mask of keys (1: seen) [batch, keys] or [batch, queries, keys], or of how many keys of
    each row are valid [batch], adds to scores.
    """
    mask, fill = ctx.value(name), float(op.attr("mask_filter_value", -10000.0))
    low = stored_fill(fill, dtype)
    made = f"{name}\0hides{low!r}\0{dtype.name}"
    if made in ctx.values:  # all layers share it
        return made
    if mask.dtype not in (DType.I32, DType.I64, DType.BOOL) or not 1 <= mask.rank <= 3:
        raise Unsupported(f"the mask of {op.kind} has rank {mask.rank} and type {mask.dtype.name}")
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
        # ONNX Runtime also takes begins and ends in one
        ctx.same(mask.shape[0], rows, f"the lengths in the mask of {op.kind} and the rows")
        lower_expression(
            ctx,
            Expr(2, (*constants, Instr("lt", (0, 1)), Instr("where", (4, 2, 3))), 5),
            [counted(ctx, f"{made}\0at", keys), seen],
            made,
            dtype,
        )
    else:
        lower_expression(
            ctx, Expr(1, (*constants, Instr("where", (0, 1, 2))), 3), [seen], made, dtype
        )
    return made


def attention(ctx: Lowering, op: Op) -> None:
    """Attention of com.microsoft: softmax(q k^T * scale + mask) v of the heads of (q, k, v) = x w +
    b, side by side again; keys and values behind those of a cache, where there is one.
    """
    _ranked(ctx, op, 3, op.input(0))
    _ranked(ctx, op, 2, op.input(1))
    x, w, heads = ctx.value(op.input(0)), ctx.value(op.input(1)), int(op.attr("num_heads", 0))
    more = ["a cache in place"] * bool(op.input(6))
    more += [a for a in ("do_rotary", "qkv_hidden_sizes") if op.attr(a)]
    width = w.shape[-1]
    if more or not isinstance(width, int) or heads < 1 or width % (3 * heads):
        raise Unsupported(f"{op.kind} with {' and '.join(more) or 'projections of unknown widths'}")
    if op.input(3) and op.input(5):
        raise Unsupported(f"no kernel computes {op.kind} with both a mask and a bias of the scores")
    qkv = matmul(
        ctx, x, w, ctx.value(op.input(2)) if op.input(2) else None, False, f"{op.outputs[0]}\0qkv"
    )
    view, size = ctx.strided(qkv), width // 3
    roles: dict[str, str] = {}
    for k, role in enumerate("qkv"):
        part = ctx.define(f"{qkv.name}\0{role}", x.dtype, (*x.shape[:-1], size))
        part.view = View(view.ref.at(k * size * x.dtype.size), view.strides)
        roles[role] = part.name
    layouts, keys = dict.fromkeys("qkv", "bsx"), x.shape[1]
    if op.input(4) or any(op.outputs[1:]):
        both = _extended(ctx, op, [ctx.value(roles[r]) for r in "kv"], heads)
        keys = both[0].shape[2]
        roles |= {r: v.name for r, v in zip("kv", both, strict=True)}
        layouts |= dict.fromkeys("kv", "bhsd")
    mask = op.input(5) or (
        _hidden(ctx, op, op.input(3), x.shape[0], keys, x.dtype) if op.input(3) else ""
    )
    _attend(ctx, op, roles, layouts, heads, size // heads, mask)


def _extended(ctx: Lowering, op: Op, parts: Sequence[Value], heads: int) -> list[Value]:
    """Keys and values [batch, sequence, heads * size] behind those of the cache [2, batch, heads,
    past, size]: the parts of the new cache.
    """
    batch, seq, width = parts[0].shape
    assert isinstance(width, int)
    dtype, size = parts[0].dtype, width // heads
    past: Dims = (2, batch, heads, 0, size)
    if op.input(4):
        cache = ctx.value(op.input(4))
        if cache.rank != 5 or cache.dtype != dtype:
            raise Unsupported(f"the cache of {op.kind} has rank {cache.rank}; it must be 5")
        for k, (have, want) in enumerate(zip(cache.shape, past, strict=True)):
            if k != 3:
                ctx.same(have, want, f"axis {k} of the cache of {op.kind} '{op.label}'")
        past = (*past[:3], cache.shape[3], size)
    whole: Dims = (2, batch, heads, past[3] + seq, size)
    strides = contiguous(whole)
    name = op.outputs[1] if any(op.outputs[1:]) else f"{op.outputs[0]}\0cache"
    sources = [(ctx.strided(v), k) for k, v in enumerate(parts)]
    old = ctx.strided(ctx.value(op.input(4))) if op.input(4) else None
    out = ctx.define(name, dtype, whole)
    ref = ctx.new_plain(out)
    if old is not None:
        ctx.copy(old, View(ref, strides), past, dtype, whole=False)
    made = []
    for view, k in sources:
        first = ref.at(D.mul(D.mul(strides[0], k), dtype.size))
        b, s, d = view.strides
        source = View(view.ref, (b, D.mul(d, size), s, d))
        behind = View(first.at(D.mul(D.mul(past[3], size), dtype.size)), strides[1:])
        ctx.copy(source, behind, (batch, heads, seq, size), dtype, whole=False)
        part = ctx.define(f"{name}\0{k}", dtype, whole[1:])
        part.view = View(first, strides[1:])
        made.append(part)
    return made


def _attend(
    ctx: Lowering,
    op: Op,
    roles: Mapping[str, str],
    layouts: Mapping[str, str],
    heads: int,
    size: int,
    mask: str,
) -> None:
    """mask: what is added to scores. The result has its heads side by side."""
    if size < 1:
        raise Unsupported(f"{op.kind} has heads of size {size}")
    roles = {**roles, **({"mask": mask} if mask else {})}
    spec = AttentionSpec(
        q={"layout": layouts["q"]},
        k={"layout": layouts["k"]},
        v={"layout": layouts["v"]},
        out={"layout": "bsx"},
        num_heads=heads,
        kv_heads=heads,
        scale=float(op.attr("scale") or size**-0.5),
        causal=bool(op.attr("unidirectional", 0)),
        past="kv" if op.attr("unidirectional", 0) else None,
        mask_kind="add" if mask else "none",
    )
    attention_of(ctx, of_roles(spec, roles, op.outputs[:1], op.nodes, op.label))


def multi_head(ctx: Lowering, op: Op) -> None:
    """MultiHeadAttention of com.microsoft with what the fusion rule leaves: biases of the
    projections, masks of keys, packed keys and values, keys and values behind those of a cache.
    """
    heads = int(op.attr("num_heads", 0))
    more = ["a cache with room"] * any(op.inputs[8:])
    more += ["one cache of two"] * (bool(op.input(6)) != bool(op.input(7)))
    more += ["a result of its scores"] * any(op.outputs[3:])
    more += ["both a mask and a bias of the scores"] * bool(op.input(4) and op.input(5))
    if more:
        raise Unsupported(f"no kernel computes {op.kind} with {' and '.join(more)}")
    parts: list[Value] = []
    for v in (ctx.value(n) for n in op.inputs[:3] if n):
        parts += _unpacked(ctx, op, v, "qkv"[len(parts) :]) if v.rank == 5 else [v]
    layouts = [
        {3: "bsx", 4: "bshd" if v.name.startswith(f"{op.outputs[0]}\0") else "bhsd"}.get(v.rank, "")
        for v in parts
    ]
    width = parts[0].shape[-1] if parts else 0
    if len(parts) != 3 or not all(layouts) or heads < 1 or not isinstance(width, int):
        raise Unsupported(f"the shapes of the projections of {op.kind} are not known")
    if op.input(3):
        if layouts != ["bsx"] * 3:
            raise Unsupported(f"{op.kind} has biases for projections of rank 4; rank 3 is required")
        parts = _biased(ctx, op, parts, ctx.value(op.input(3)))
    if op.input(6) or any(op.outputs[1:]):
        for k in (1, 2):
            new = heads_of(ctx, parts[k], {"layout": layouts[k]}, heads)
            parts[k] = appended(ctx, op, op.input(5 + k), new, k - 1, parts[k].dtype)
            layouts[k] = "bhsd"
    q, keys = parts[0], parts[1].shape[2 if layouts[1] == "bhsd" else 1]
    mask = op.input(5) or (
        _hidden(ctx, op, op.input(4), q.shape[0], keys, q.dtype) if op.input(4) else ""
    )
    roles = {r: v.name for r, v in zip("qkv", parts, strict=True)}
    _attend(
        ctx,
        op,
        roles,
        dict(zip("qkv", layouts, strict=True)),
        heads,
        width // heads if q.rank == 3 else width,
        mask,
    )


def _unpacked(ctx: Lowering, op: Op, x: Value, roles: str) -> list[Value]:
    """[batch, sequence, heads, len(roles), head size]: its parts, as views."""
    if x.shape[3] != len(roles):
        raise Unsupported(
            f"{op.kind} packs {x.shape[3]} projections in one operand, not {len(roles)}"
        )
    view, made = ctx.strided(x), []
    for k, role in enumerate(roles):
        part = ctx.define(f"{op.outputs[0]}\0{role}", x.dtype, (*x.shape[:3], x.shape[4]))
        part.view = View(
            view.ref.at(D.mul(k * x.dtype.size, view.strides[3])),
            (*view.strides[:3], view.strides[4]),
        )
        made.append(part)
    return made


def _biased(ctx: Lowering, op: Op, parts: Sequence[Value], bias: Value) -> list[Value]:
    view, at = ctx.strided(bias), 0
    if bias.rank != 1:
        raise Unsupported(f"the bias of {op.kind} has rank {bias.rank}; it must be 1")
    ctx.same(
        bias.shape[0],
        sum((v.shape[-1] for v in parts), start=0),
        f"the biases and the columns of {op.kind} '{op.label}'",
    )
    made = []
    for role, v in zip("qkv", parts, strict=True):
        width = v.shape[-1]
        if not isinstance(width, int):
            raise Unsupported(f"the widths of the projections of {op.kind} are not known")
        own = ctx.define(f"{op.outputs[0]}\0bias {role}", bias.dtype, (width,))
        own.view = View(view.ref.at(at * bias.dtype.size), view.strides)
        at += width
        lower_expression(
            ctx, Expr(2, (Instr("add", (0, 1)),), 2), [v, own], f"{op.outputs[0]}\0{role}", v.dtype
        )
        made.append(ctx.value(f"{op.outputs[0]}\0{role}"))
    return made


OPS = {
    "com.microsoft.Attention": attention,
    "com.microsoft.EmbedLayerNormalization": embedding,
    "com.microsoft.MultiHeadAttention": multi_head,
}
