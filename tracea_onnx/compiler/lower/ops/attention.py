"""Attention from strided operands: the head split, the transposes and the packed projections cost
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracea_onnx.compiler.lower.axes import around, broadcast_strides
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.ops.quantise import define
from tracea_onnx.compiler.lower.passes import quantised
from tracea_onnx.compiler.lower.value import Dims, Quantised, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.match.masks import SWALLOWS, stored_fill
from tracea_onnx.match.spec_table import MASKS, AttentionSpec, MaskSpec, RopeSpec
from tracea_onnx.match.strided_view import LAYOUTS, source_rank, strides
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support.data_classes import dataclass

#: Layouts with one axis per letter.
_AXES = frozenset({"bhsd", "bshd", "bhds", "sbhd", "hsd", "hds"})


@dataclass(frozen=True)
class Heads:
    """One operand as [batch, sequence, head, dim]: pointer, strides in elements, and dims."""

    ref: Ref
    b: DimLike
    s: DimLike
    h: DimLike
    batch: DimLike
    seq: DimLike
    heads: int
    dim: int


def _static(d: DimLike, what: str) -> int:
    if not isinstance(d, int):
        raise Unsupported(f"the {what} of the attention is symbolic; the kernels need a constant")
    return d


def heads_of(ctx: Lowering, v: Value, spec: Mapping[str, Any], heads: int) -> Heads:
    """`v` in the layout `spec` describes (docs/spec.md), as strided heads."""
    ctx.require(v, "attention")
    layout, index = str(spec["layout"]), int(spec.get("index", 0))
    if "hh" in layout and v.rank == len(layout):
        b, one, two, *rest = v.shape
        both = ctx.define(f"{v.name}\0heads", v.dtype, (b, D.mul(one, two), *rest))
        both.view = View(ctx.plain(v), contiguous(both.shape))
        v, layout = both, layout.replace("hh", "h")
    wanted = len(layout) if layout in _AXES else source_rank(layout)
    if v.rank != wanted:
        raise Unsupported(f"'{v.name}' has rank {v.rank}, which layout {layout} does not describe")
    if layout in _AXES:  # one axis per letter: any strided view will do
        view = ctx.strided(v)
        size: dict[str, DimLike] = {"b": 1, "h": heads, "s": 1, "d": 1}
        stride: dict[str, DimLike] = {"b": 0, "h": 0, "s": 0, "d": 1}
        for k, c in enumerate(layout):
            size[c], stride[c] = v.shape[k], view.strides[k]
        ref = view.ref
    else:
        rows = ctx.strided(v)
        ref = rows.ref
        size, stride, offset = strides(layout, v.shape, heads, index)
        parts = int("".join(c for c in layout if c.isdigit()) or 1)
        ctx.same(
            D.mul(D.product(list(size.values())), parts),
            v.elements,
            f"the elements of the heads of '{v.name}' and its own",
        )
        if layout[:2] in ("bs", "sb") and v.rank == 3 and rows.strides[2] == 1:
            # a slice of a wider projection is read in place
            stride |= {c: rows.strides[k] for k, c in enumerate(layout[:2])}
        else:
            ref = ctx.plain(v)
        ref = ref.at(D.mul(offset, v.dtype.size))
    if stride["d"] != 1 and size["d"] != 1:
        # the kernel reads rows of `dim`: bring the operand to [b, h, s, d]
        moved = ctx.define(v.name + "\0bhsd", v.dtype, tuple(size[c] for c in "bhsd"))
        moved.view = View(ref, tuple(stride[c] for c in "bhsd"))
        ref = ctx.plain(moved)
        stride = dict(zip("bhsd", contiguous(moved.shape), strict=True))
    return Heads(
        ref,
        stride["b"],
        stride["s"],
        stride["h"],
        size["b"],
        size["s"],
        _static(size["h"], "head count"),
        _static(size["d"], "head size"),
    )


def cache_name(op: Op, k: int) -> str:
    """The new cache of keys (0) or values (1): a result of the operator, which may be left out."""
    return (*op.outputs, "", "")[1 + k] or f"{op.outputs[0]}\0cache{k}"


def appended(ctx: Lowering, op: Op, past: str, new: Heads, k: int, dtype: DType) -> Value:
    """Keys (k = 0) or values (1) behind those of a cache [batch, heads, past, size], which may be
    absent.
    """
    old = ctx.optional(past)
    held: DimLike = 0
    if old is not None:
        if old.rank != 4 or old.dtype != dtype:
            raise Unsupported(f"the cache of {op.kind} has rank {old.rank}; it must be 4")
        held = old.shape[2]
        for axis, size in ((0, new.batch), (1, new.heads), (3, new.dim)):
            ctx.same(old.shape[axis], size, f"axis {axis} of the cache of {op.kind} '{op.label}'")
    shape = (new.batch, new.heads, held + new.seq, new.dim)
    out = ctx.define(cache_name(op, k), dtype, shape)
    ref, strides = ctx.new_plain(out), contiguous(out.shape)
    if old is not None:
        ctx.copy(ctx.strided(old), View(ref, strides), old.shape, dtype, whole=False)
    behind = View(ref.at(D.mul(held, new.dim * dtype.size)), strides)
    source = View(new.ref, (new.b, new.h, new.s, 1))
    ctx.copy(source, behind, (new.batch, new.heads, new.seq, new.dim), dtype, whole=False)
    return out


@dataclass(frozen=True)
class Cached:
    """Keys of a cache: row b of the batch has lens[b] + add, and its queries are the last ones.
    clamp: where there are fewer keys than queries, those are the first ones. window: how many keys
    a query sees, 0 for all. sink: of each head a score more, without a value; smooth: such a score
    of 0.
    """

    lens: Value
    add: int
    clamp: bool
    window: int = 0
    smooth: bool = False
    sink: Value | None = None


def attention(ctx: Lowering, op: Op, cached: Cached | None = None) -> None:
    """softmax(mask(scale * q k^T)) v."""
    spec, source = AttentionSpec.of(op.attrs), ctx.value(op.role("q"))
    q = heads_of(ctx, source, spec.q, spec.num_heads)
    heads = spec.num_heads or q.heads
    k = heads_of(ctx, ctx.value(op.role("k")), spec.k, spec.kv_heads or heads)
    kv_heads = spec.kv_heads or k.heads
    v = heads_of(ctx, ctx.value(op.role("v")), spec.v, kv_heads)
    if factors := op.role("head_scale"):
        q = _times_factors(ctx, q, ctx.value(factors), source.dtype, op)
    if (
        (q.heads, k.heads, v.heads, q.dim) != (heads, kv_heads, kv_heads, k.dim)
        or kv_heads == 0
        or heads % kv_heads
    ):
        raise Unsupported(
            f"the heads (number x size) do not agree: queries {q.heads}x{q.dim},"
            f" keys {k.heads}x{k.dim}, values {v.heads}x{v.dim}"
        )
    for one, two, what in (
        (q.batch, k.batch, "batches"),
        (q.batch, v.batch, "batches"),
        (k.seq, v.seq, "numbers of keys and values"),
    ):
        ctx.same(one, two, f"the {what} of attention '{op.label}'")
    ints: dict[str, DimLike] = {
        "B": q.batch, "H": heads, "KVH": kv_heads, "S": q.seq, "T": k.seq, "D": q.dim, "DV": v.dim,
        "q_b": q.b, "q_s": q.s, "q_h": q.h,
        "k_b": k.b, "k_s": k.s, "k_h": k.h, "v_b": v.b, "v_s": v.s, "v_h": v.h,
        "causal": int(spec.causal),
        "nan_to_zero": 2 if spec.nan_to_zero == "masked" else int(spec.nan_to_zero),
    }  # fmt: skip
    if spec.causal:
        ints["past"] = (k.seq - q.seq) if spec.past == "kv" else int(spec.past or 0)
    operands: dict[str, Ref | None] = {"q": q.ref, "k": k.ref, "v": v.ref}
    floats = {"scale": spec.scale, "softcap": spec.softcap or 0.0}
    scores: Dims = (q.batch, heads, q.seq, k.seq)
    kind, mask, fill = _mask(ctx, op, spec, source.dtype, q.batch)
    if mask is not None:
        if mask.rank > 4:
            raise Unsupported(f"the mask has rank {mask.rank}; the kernel takes at most 4")
        view = ctx.strided(mask)
        m_b, m_h, m_q, m_k = broadcast_strides(ctx.plan, view, mask.shape, scores)
        operands["mask"] = view.ref
        ints |= {"m_b": m_b, "m_h": m_h, "m_q": m_q, "m_k": m_k, "mask_kind": kind}
        floats["fill"] = fill
    if cached is not None:
        _keys_there(ctx, cached, heads, operands, ints)
    layout = str(spec.out["layout"])
    parts: Dims = ()  # of heads that lie in two axes
    if layout == "bhhsd":
        if not str(spec.q["layout"]).startswith("bhh"):
            raise Unsupported("the result of an attention has heads in two axes, its queries one")
        layout, parts = "bhsd", source.shape[1:3]
    merged = "b" not in layout  # its first axis holds the heads of every row of the batch
    size: dict[str, DimLike] = {
        "b": q.batch,
        "h": D.mul(q.batch, heads) if merged else heads,
        "s": q.seq,
        "d": v.dim,
        "x": heads * v.dim,
    }
    if layout not in LAYOUTS or not set(layout) <= set(size):
        raise Unsupported(f"no kernel writes the result of an attention in layout {layout}")
    shape = tuple(size[c] for c in layout)
    if parts:
        shape = (shape[0], *parts, *shape[2:])
    out = ctx.define(op.outputs[0], source.dtype, shape)
    # Kernels write the elements of a head side by side; where they lie apart, the result is read as
    # a view of those.
    heads_last = layout == "bhsd" and not parts and _heads_join(ctx, out.name)
    transposed = heads_last or layout in ("bxs", "bhds", "hds")
    own = layout if not transposed else "bhsd" if merged else "bshd"
    made = (
        ctx.define(out.name + "\0rows", out.dtype, tuple({**size, "h": heads}[c] for c in own))
        if transposed
        else out
    )
    _, stride, _ = strides(own, made.shape if not parts else tuple(size[c] for c in own), heads)
    if merged:
        stride["b"] = D.mul(stride["h"], heads)
    if stride["d"] != 1 and v.dim != 1:
        raise Unsupported(f"no kernel writes the result of an attention in layout {layout}")
    ints |= {"y_b": stride["b"], "y_s": stride["s"], "y_h": stride["h"]}
    steps = tuple({**stride, "x": 1}[c] for c in layout) if transposed else None
    if _quantised(ctx, out, made.shape, steps, (operands, ints, floats)):
        return
    dst = ctx.new_plain(made)
    ctx.plan.launch("attention", operands, {"y": dst}, ints, floats, dtype=out.dtype)
    if steps is not None:
        out.view = View(dst, steps)


def _heads_join(ctx: Lowering, name: str) -> bool:
    """Whether what alone reads the quantised result, dequantised again, brings the rows of all
    heads together.
    """
    op = ctx.sole.get(name)
    able = "attention_quantised" in ctx.target.families
    if not able or op is None or op.kind not in quantised.QUANTIZE:
        return False
    while op is not None and op.kind in quantised.QUANTIZE | quantised.DEQUANTIZE:
        op = ctx.sole.get(op.outputs[0])
    return op is not None and op.kind == "Transpose" and op.attr("perm") == [0, 2, 1, 3]


def _quantised(
    ctx: Lowering,
    out: Value,
    rows: Dims,
    steps: Dims | None,
    given: tuple[Mapping[str, Ref | None], Mapping[str, DimLike], Mapping[str, float]],
) -> bool:
    """Attention with the QuantizeLinear that alone reads its result, if need be reshaped, to 8 bits
    by known numbers, in one launch; the result lies nowhere but in integers then. False where there
    is none. rows: dims as the kernel writes them; steps: strides of the result over these, None
    where it has the same dims; given: operands and parameters of the launch.
    """
    by = quantised.quantiser_of_moved(ctx, out.name)
    if by is None or "attention_quantised" not in ctx.target.families:
        return False
    found = quantised.numbered(ctx, by, out)
    if found is None:
        return False
    made, scale, zero = found
    name, (operands, ints, floats) = quantised.integers_of(out.name), given
    integers = ctx.define(name, made.dtype, out.shape)
    written = integers if steps is None else ctx.define(f"{name}\0rows", made.dtype, rows)
    dst = ctx.new_plain(written)
    if steps is not None:
        integers.view = View(dst, steps)
    ctx.plan.launch(
        "attention_quantised",
        operands,
        {"y": dst},
        {**ints, "q_dtype": int(made.dtype), "q_zero": zero},
        {**floats, "q_scale": scale},
        dtype=out.dtype,
    )
    define(ctx, out.name, Quantised(integers, made.scale, made.zero, out.dtype))
    return True


def _keys_there(
    ctx: Lowering,
    cached: Cached,
    heads: int,
    operands: dict[str, Ref | None],
    ints: dict[str, DimLike],
) -> None:
    operands["lens"] = ctx.plain(cached.lens)
    ints |= {
        "lens_dtype": int(cached.lens.dtype), "lens_add": cached.add, "clamp": int(cached.clamp),
        "window": cached.window, "smooth": int(cached.smooth),
    }  # fmt: skip
    if cached.sink is not None:
        ctx.require(cached.sink, "the sink")
        ctx.same(cached.sink.elements, heads, "the sinks of attention and its heads")
        operands["sink"] = ctx.plain(cached.sink)


def _times_factors(ctx: Lowering, q: Heads, factors: Value, dtype: DType, op: Op) -> Heads:
    """Queries times a factor for each head, which is what scores are multiplied by."""
    shape: Dims = (q.batch, q.seq, q.heads, q.dim)
    rows = ctx.define(f"{op.outputs[0]}\0queries", dtype, shape)
    rows.view = View(q.ref, (q.b, q.s, q.h, 1))
    each = ctx.define(f"{op.outputs[0]}\0factors", dtype, (q.heads, 1))
    each.view = View(ctx.plain(factors), (1, 0))
    name = f"{op.outputs[0]}\0scaled"
    lower_expression(ctx, Expr(2, (Instr("mul", (0, 1)),), 2), [rows, each], name, dtype)
    b, s, h, _ = contiguous(shape)
    return Heads(ctx.plain(ctx.value(name)), b, s, h, q.batch, q.seq, q.heads, q.dim)


_MASK_KINDS = {"none": 0, "add": 1, "bool": 2, "drop": 3}


def _mask(
    ctx: Lowering, op: Op, spec: AttentionSpec, dtype: DType, batch: DimLike
) -> tuple[int, Value | None, float]:
    """Kind, operand and fill of the mask. Several become one: additive ones are summed; a boolean
    one before or after an additive one writes its fill into the sum, which is the same as masking
    the scores when the fill swallows them (-inf, or beyond any score).
    """
    masks = [
        (m, _MASK_KINDS[m.kind], ctx.value(op.role(role)))
        for m, role in zip(spec.masks(), MASKS, strict=True)
        if op.role(role)
    ]
    arranged = [
        _arranged(ctx, _typed(ctx, v, k, dtype, m), op, m, spec.num_heads, batch)
        for m, k, v in masks
    ]
    if not masks:
        return 0, None, 0.0
    if len(masks) == 1:
        return masks[0][1], arranged[0], masks[0][0].fill
    # What the first mask adds to a score, then what both add; a fill is added where it swallows the
    # score, as writing it would.
    code: list[Instr] = []

    def emit(ins: Instr) -> int:
        code.append(ins)
        return len(masks) - 1 + len(code)

    total = 0
    for k, (which, at) in enumerate((kind, m.fill) for m, kind, _ in masks):
        if which == 1:
            total = emit(Instr("add", (total, k))) if k else k
            continue
        if at > SWALLOWS:
            raise Unsupported(
                f"one of {len(masks)} masks writes {at:g}; beside others it must be {SWALLOWS:g}"
                " or less"
            )
        kept = total if k else emit(Instr("const", (), 0.0))
        low = emit(Instr("const", (), stored_fill(at, dtype)))
        total = emit(Instr("where", (k, kept, low) if which == 2 else (k, low, kept)))
    expr = Expr(len(masks), tuple(code), total)
    # all layers may have the same ones
    name = "\0".join([*(v.name for v in arranged), str(expr.to_json())])
    if name not in ctx.values:
        lower_expression(ctx, expr, arranged, name, dtype)
    return 1, ctx.value(name), 0.0


def _typed(ctx: Lowering, mask: Value, kind: int, dtype: DType, spec: MaskSpec) -> Value:
    if kind == 1 and mask.dtype != dtype:
        raise Unsupported(
            f"an additive mask has type {mask.dtype.name}, and the queries {dtype.name}"
        )
    if kind != 1 and mask.dtype not in (DType.BOOL, DType.U8):
        raise Unsupported(f"a boolean mask has type {mask.dtype.name}, not BOOL or U8")
    if kind == 1 and spec.scale != 1.0:
        scaled = f"{mask.name}\0times{spec.scale!r}"
        lower_expression(
            ctx,
            Expr(1, (Instr("const", (), spec.scale), Instr("mul", (0, 1))), 2),
            [mask],
            scaled,
            dtype,
        )
        return ctx.value(scaled)
    return mask


def _arranged(
    ctx: Lowering, mask: Value, op: Op, spec: MaskSpec, heads: int, batch: DimLike
) -> Value:
    """The mask with the axes [batch, heads, queries, keys], as its attributes say how it lies."""
    period, view = spec.period, ctx.strided(mask)
    if spec.merged:  # [batch * heads, queries, keys]
        if not heads:
            raise Unsupported(
                "the mask merges batch and heads, and the number of heads is not known"
            )
        ctx.multiple(mask.shape[0], heads, f"the first axis of mask '{mask.name}'")
        out = ctx.define(
            f"{mask.name}\0heads",
            mask.dtype,
            (D.floordiv(mask.shape[0], heads), heads, *mask.shape[1:]),
        )
        out.view = View(view.ref, (D.mul(view.strides[0], heads), *view.strides))
        return out
    if not period:
        return mask
    ctx.multiple(batch, period, f"the batch of attention '{op.label}', of {period} windows,")
    if mask.shape[-4] != period:
        raise Unsupported(f"the mask holds {mask.shape[-4]} windows, and its period is {period}")
    # [windows, heads, queries, keys]: row b of the batch meets window b mod windows
    shape = mask.shape[-4:]
    moved = ctx.define(f"{mask.name}\0windows", mask.dtype, (D.floordiv(batch, period), *shape))
    moved.view = View(view.ref, (0, *view.strides[-4:]))
    out = ctx.define(f"{mask.name}\0repeated", mask.dtype, (batch, *shape[1:]))
    out.view = View(ctx.plain(moved), contiguous(out.shape))
    return out


def _rows(ctx: Lowering, table: Value, pos: Value) -> Value:
    """The rows of a table [places, width] at each position of `pos` [b, s]."""
    name = f"{pos.name}\0rows of {table.name}"
    if name in ctx.values:  # all layers share them
        return ctx.value(name)
    if pos.dtype not in (DType.I64, DType.I32):
        raise Unsupported(f"position ids have type {pos.dtype.name}; the kernel reads I64 and I32")
    if table.rank != 2:
        raise Unsupported(f"a rotary table has rank {table.rank}; rows by position need rank 2")
    out = ctx.define(name, table.dtype, (*pos.shape, table.shape[1]))
    ints = {"elem": table.dtype.size, "count": pos.elements, "idx_dtype": int(pos.dtype)}
    ctx.run("gather", {"x": table, "idx": pos}, out, ints | around(table.shape, 0))
    return out


def _halves(ctx: Lowering, table: Value, half: int) -> Value:
    """Rows (a0, b0, a1, b1, ...) as (a0, a1, ..., b0, b1, ...), the order the kernel reads full
    rows in.
    """
    view = ctx.strided(table)
    moved = ctx.define(f"{table.name}\0halves", table.dtype, (*table.shape[:-1], 2, half))
    moved.view = View(view.ref, (*view.strides[:-1], view.strides[-1], D.mul(2, view.strides[-1])))
    out = ctx.define(f"{table.name}\0full", table.dtype, table.shape)
    out.view = View(ctx.plain(moved), contiguous(table.shape))
    return out


def require_even_part(rot: int, dim: int) -> None:
    """Refuse a rotary embedding that turns no pairs of the elements of a head."""
    if not 0 < rot <= dim or rot % 2:
        raise Unsupported(
            f"the rotary embedding rotates {rot} of {dim} elements; an even part is required"
        )


def turns(
    ctx: Lowering, tables: tuple[str, str], pos: Value | None, tokens: Dims, rot: int, dtype: DType
) -> tuple[Ref, Ref, dict[str, DimLike]]:
    """Rotary tables [places, rot / 2], or their rows for tokens [batch, sequence] at these
    positions, and how `rope_cache` reads them.
    """
    cos, sin = map(ctx.value, tables)
    if cos.shape != sin.shape or {cos.dtype, sin.dtype} != {dtype} or cos.shape[-1] != rot // 2:
        raise Unsupported(
            "the rotary tables need one constant width, equal shapes and the type of their operand"
        )
    if pos is None:
        steps: dict[str, DimLike] = {"c_s": rot // 2, "places": cos.shape[0]}
        return ctx.plain(cos), ctx.plain(sin), steps
    rows = _rows(ctx, cos, pos)
    c, s = ctx.plain(rows), ctx.plain(_rows(ctx, sin, pos))
    aligned = (*tokens, rot // 2)
    c_b, c_s, _ = broadcast_strides(ctx.plan, View(c, contiguous(rows.shape)), rows.shape, aligned)
    return c, s, {"c_b": c_b, "c_s": c_s}


def rope(ctx: Lowering, op: Op) -> None:
    """Rotary embedding of [b, h, s, d] or [b, s, h, d]; cos/sin rows broadcast over heads."""
    x, spec = ctx.value(op.role("x")), RopeSpec.of(op.attrs)
    layout = spec.layout
    if x.rank != (3 if layout == "bsx" else 4):
        raise Unsupported(
            f"the operand of the rotary embedding has rank {x.rank}, and its layout is {layout}"
        )
    cos, sin = ctx.value(op.role("cos")), ctx.value(op.role("sin"))
    if (
        x.rank == cos.rank == 4
        and cos.shape[1] == cos.shape[2] == 1
        and not isinstance(x.shape[1 if layout == "bhsd" else 2], int)
    ):
        # a row of the tables serves both axes: the one of known size may be that of the heads
        layout = "bshd" if layout == "bhsd" else "bhsd"
    h = heads_of(ctx, x, {"layout": layout}, spec.num_heads or 0)
    ctx.require(x, "rotary embedding")
    rot = spec.rot or h.dim
    require_even_part(rot, h.dim)
    if op.role("pos"):
        cos, sin = (_rows(ctx, t, ctx.value(op.role("pos"))) for t in (cos, sin))
    known = cos.rank > 0 and isinstance(cos.shape[-1], int)
    if cos.shape != sin.shape or cos.dtype != x.dtype or not known:
        raise Unsupported(
            "the rotary tables need one constant width, equal shapes and the type of their operand"
        )
    assert isinstance(cos.shape[-1], int)
    full = cos.shape[-1] == rot
    if not full and cos.shape[-1] != rot // 2:
        raise Unsupported(
            f"the rotary tables have {cos.shape[-1]} columns for {rot} rotated elements"
        )
    if full and spec.interleaved:
        cos, sin = (_halves(ctx, t, rot // 2) for t in (cos, sin))
    head_axis = 1 if layout == "bhsd" else 2
    aligned: Dims = (
        (h.batch, 1, h.seq, cos.shape[-1]) if head_axis == 1 else (h.batch, h.seq, 1, cos.shape[-1])
    )
    if cos.rank < 4:
        aligned = (h.batch, h.seq, cos.shape[-1])
    c, s = ctx.plain(cos), ctx.plain(sin)
    strides = broadcast_strides(ctx.plan, View(c, contiguous(cos.shape)), cos.shape, aligned)
    c_b, c_s = (
        (strides[0], strides[2 if head_axis == 1 else 1])
        if cos.rank == 4
        else (strides[0], strides[1])
    )
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    dst = ctx.new_plain(out)
    st = contiguous(x.shape)
    y_b, y_h, y_s = (
        (st[0], h.dim, st[1])
        if layout == "bsx"
        else (st[0], st[1], st[2])
        if head_axis == 1
        else (st[0], st[2], st[1])
    )
    ctx.plan.launch(
        "rope",
        {"x": h.ref, "cos": c, "sin": s},
        {"y": dst},
        {"B": h.batch, "S": h.seq, "H": h.heads, "D": h.dim, "rot": rot, "x_b": h.b, "x_s": h.s,
         "x_h": h.h, "y_b": y_b, "y_s": y_s, "y_h": y_h,
         "c_b": c_b, "c_s": c_s, "interleaved": int(spec.interleaved), "full": int(full)},
        dtype=x.dtype,
    )  # fmt: skip


OPS = {":attention": attention, ":rope": rope}
