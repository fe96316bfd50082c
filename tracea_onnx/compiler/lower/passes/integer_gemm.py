"""GEMMs and convolutions of 8-bit integers. The DequantizeLinear nodes of their operands, and the
QuantizeLinear that alone reads their result, are part of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from tracea_onnx.compiler.lower.context import Lowering, matrix_rows
from tracea_onnx.compiler.lower.epilogue import Epilogue, plan_epilogue
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.pointwise import expression_of, lower_expression
from tracea_onnx.compiler.lower.passes import conv_pool, quantised, sibling_gemms
from tracea_onnx.compiler.lower.passes.byte_images import BYTES, image_of, new_image
from tracea_onnx.compiler.lower.passes.quantised import Quantising
from tracea_onnx.compiler.lower.passes.window_rows import window_rows
from tracea_onnx.compiler.lower.value import Dims, Late, Nhwc, Quantised, Unsupported, Value
from tracea_onnx.compiler.lower.window import over_axes, sides
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import KERNEL_FLOATS, DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr, substituted
from tracea_onnx.ir.pointwise_ops import POINTWISE
from tracea_onnx.match.spec_table import ConvSpec, GemmSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import packed_rows
from tracea_onnx.support.data_classes import dataclass

_CAST = frozenset(("Cast",))
_POINTWISE = frozenset((*POINTWISE, ":pointwise")) - {"Cast", "Identity"}


@dataclass(frozen=True, eq=False)
class _After:
    """Operations on the sums of an integer GEMM: an expression of them (and `extras`), before which
    they may be quantised and dequantised; nothing if the type is I32. scale, bias: what the sums of
    each column are multiplied by and what is added, before the expression.
    """

    name: str
    expr: Expr | None = None
    extras: Sequence[Value] = ()
    between: Quantising | None = None
    dtype: DType = DType.F32
    scale: Value | None = None
    bias: Value | None = None


@dataclass
class _Int8Launch:
    """A launch in the making: of what, its operands and parameters so far, and what follows it."""

    op: Op
    shape: Dims
    after: _After
    operands: dict[str, Ref | None] = field(default_factory=dict)
    ints: dict[str, DimLike] = field(default_factory=dict)


def conv(ctx: Lowering, op: Op, dtype: DType = DType.F32) -> bool:
    """A convolution of a dequantised image and weight; False where these are not dequantised. Of
    type I32 it is the sums alone. Raises Unsupported where no kernel takes the integers: floats
    would be the slower.
    """
    return _lower(ctx, op, ConvSpec.of(op.attrs).expr, dtype, "conv2d_int8", _conv)


def gemm(ctx: Lowering, op: Op, dtype: DType = DType.F32) -> bool:
    """A GEMM of a dequantised matrix and a dequantised constant; as `conv`."""
    group = ctx.merges.get(op.outputs[0], ())
    if dtype == DType.F32 and group and _siblings(ctx, op, group):
        return True
    return _lower(ctx, op, GemmSpec.of(op.attrs).expr, dtype, "gemm_int8", _gemm)


def _conv(ctx: Lowering, op: Op, found: tuple[Quantised, Quantised], after: _After) -> None:
    roles, spec = op.by_role, ConvSpec.of(op.attrs)
    image, w = found[0].x, found[1].x
    if image.rank not in (3, 4) or w.rank != image.rank or not D.is_static(w.shape):
        raise _unfit(op, f"an image of rank {image.rank} and a weight of shape {list(w.shape)}")
    oc, icg, g = int(w.shape[0]), int(w.shape[1]), spec.group
    ic = image.shape[1]
    if g < 1 or not isinstance(ic, int) or ic != icg * g or oc % g:
        raise _unfit(op, f"{ic} channels in {g} groups and a weight of shape {list(w.shape)}")
    axes = over_axes(op, image, w.shape[2:])
    shape: Dims = (image.shape[0], oc, *(a.out for a in axes[4 - image.rank :]))
    depthwise = g == ic == oc and g > 1
    rows = None if depthwise else window_rows(ctx, found[0], w, axes, g)
    if rows is not None:
        w, axes, ic = rows.weight, rows.axes, int(rows.weight.shape[1])
    sizes = {"OC": oc, "KH": axes[0].kernel, "KW": axes[1].kernel, "w_dtype": int(w.dtype)}
    family = "conv2d_int8"
    if depthwise:
        family = "conv2d_int8_dw"
    else:
        sizes |= {"IC": ic, "G": g}
    src = image_of(ctx, image) if rows is None else rows.image
    packed = ctx.packed(f"pack_{family}", {"w": ctx.plain(w)}, sizes)
    made = _Int8Launch(op, shape, after, {"x": src.ref, "w": packed})
    made.ints |= {"N": image.shape[0], "IC": ic, "OC": oc, "G": g, **sides(axes)}
    made.ints |= src.pitches("x")
    _add_scales(ctx, made, *found, 0, oc)
    _add_bias(ctx, made, ctx.optional(roles.get("b")), oc)
    epi = _epilogue(ctx, after, shape, 1)
    if epi is not None:
        stored = [_residual_image(ctx, made, epi.residual)] if epi.residual is not None else []
        stored += [ctx.nhwc(v) for _, v in epi.full]
        if any(s.pitches("r") != stored[0].pitches("r") for s in stored):
            epi = None  # a program reads its full operands with one set of pitches
        elif stored:
            made.ints |= stored[0].pitches("r")
            for (k, _), s in zip(epi.full, stored, strict=False):
                made.operands[f"o{k}"] = s.ref

    def place(out: Value) -> Ref:
        to = ctx.new_nhwc(out) if out.dtype in KERNEL_FLOATS else new_image(ctx, out)
        made.ints |= to.pitches("y")
        return to.ref

    _launch(ctx, made, family, epi, place, whole=False)


def _gemm(ctx: Lowering, op: Op, found: tuple[Quantised, Quantised], after: _After) -> None:
    roles, spec = op.by_role, GemmSpec.of(op.attrs)
    x, w = found[0].x, found[1].x
    if w.rank != 2 or x.rank < 2 or not D.is_static(w.shape):
        raise _unfit(op, f"operands of ranks {x.rank} and {w.rank}")
    if spec.trans_a or spec.alpha != 1.0 or spec.beta != 1.0 or "bn_scale" in roles:
        raise _unfit(op, "factors, or a transposed first operand")
    k, n = (int(d) for d in (reversed(w.shape) if spec.trans_b else w.shape))
    ctx.same(x.shape[-1], k, f"the inner dims of {op.nodes[0].op} '{op.label}'")
    sizes = {"K": k, "N": n, "trans": int(spec.trans_b), "ldw": int(w.shape[1])}
    sizes |= {"n0": 0, "N_total": n, "w_dtype": int(w.dtype)}
    packed = ctx.packed("pack_gemm_int8", {"w": ctx.plain(w)}, sizes)
    src, ldx = matrix_rows(ctx, x)
    shape: Dims = (*x.shape[:-1], n)
    made = _Int8Launch(op, shape, after, {"x": src, "w": packed})
    made.ints |= {"M": D.product(x.shape[:-1]), "N": n, "K": k, "ldx": ldx, "ldy": n}
    _add_scales(ctx, made, *found, 0 if spec.trans_b else 1, n)
    if after.scale is not None:  # the sums have none
        made.operands["w_scale"] = ctx.plain(after.scale)
        made.ints["w_scales"] = after.scale.elements
    _add_bias(ctx, made, after.bias or ctx.optional(roles.get("b")), n)
    epi = _epilogue(ctx, after, shape, len(shape) - 1)
    if epi is not None and epi.residual is not None:
        v = _residual(ctx, made, epi.residual)
        made.operands["res"], made.ints["ldr"] = matrix_rows(ctx, v)
    for j, v in epi.full if epi is not None else ():
        made.operands[f"o{j}"], made.ints[f"o{j}_ld"] = matrix_rows(ctx, v)
    _launch(ctx, made, "gemm_int8", epi, ctx.new_plain)


def _siblings(ctx: Lowering, op: Op, group: Sequence[Op]) -> bool:
    """The GEMMs of a group, of one dequantised matrix, as one launch, by weights beside one
    another; False where they do not fit together. op: the first of them that is lowered: others
    may dequantise the same integers by nodes of their own, which come later.
    """
    own = _dequantised(ctx, op, "gemm_int8")
    if own is None:
        return False
    x, parts = own[0], list[tuple[Op, bool, Quantised]]()
    for sibling in group:
        w = ctx.value(sibling.by_role["w"]).quantised
        if w is None or not _fits_beside(ctx, sibling, x, w, own[1]):
            return False
        parts.append((sibling, bool(GemmSpec.of(sibling.attrs).trans_b), w))
    k = int(x.x.shape[-1])
    widths = [int(w.x.shape[0 if trans else 1]) for _, trans, w in parts]
    total, at = sum(widths), 0
    packed = ctx.plan.arena(packed_rows("pack_gemm_int8", K=k, N_total=total))
    scales = sibling_gemms.new_row(ctx, total)
    biased = any(part.by_role.get("b") for part in group)
    bias = sibling_gemms.new_row(ctx, total) if biased else None
    for (part, trans, w), width in zip(parts, widths, strict=True):
        sizes = {"K": k, "N": width, "trans": int(trans), "ldw": int(w.x.shape[1])}
        sizes |= {"n0": at, "N_total": total, "w_dtype": int(w.x.dtype)}
        ctx.plan.launch(
            "pack_gemm_int8", {"w": ctx.plain(w.x)}, {"packed": packed}, sizes, more=at > 0
        )
        same = w.scale.data if w.scale.elements == 1 else None
        each = (
            ctx.plain(w.scale)
            if same is None
            else ctx.plan.blob(np.full(width, same.reshape(-1)[0], np.float32))
        )
        sibling_gemms.pack_row(ctx, scales, at, each, width, DType.F32)
        if bias is not None:
            b = ctx.optional(part.by_role.get("b"))
            added, kind = (None, DType.F32) if b is None else (ctx.plain(b), b.dtype)
            sibling_gemms.pack_row(ctx, bias, at, added, width, kind)
        at += width
    src, ldx = matrix_rows(ctx, x.x)
    lead = x.x.shape[:-1]
    rows = D.product(lead)
    dst = ctx.plan.arena(D.product([rows, total, x.dtype.size]))
    operands = {"x": src, "w": packed, "w_scale": scales, "bias": bias}
    operands |= {n: ctx.plain(v) for n, v in (("x_scale", x.scale), ("x_zero", x.zero)) if v}
    ints: dict[str, DimLike] = {"M": rows, "N": total, "K": k, "ldx": ldx, "ldy": total}
    ints |= {"x_dtype": int(x.x.dtype), "w_dtype": int(parts[0][2].x.dtype)}
    ints |= {"y_dtype": int(x.dtype), "w_scales": total, "w_zeros": 1}
    ctx.plan.launch("gemm_int8", operands, {"y": dst}, ints, dtype=x.dtype)
    made = zip((part.outputs[0] for part in group), widths, strict=True)
    sibling_gemms.slices(ctx, [*made], dst, lead, x.dtype)
    return True


def _fits_beside(ctx: Lowering, op: Op, x: Quantised, w: Quantised, first: Quantised) -> bool:
    """Whether a GEMM of x by w can be part of a launch with one by the weight `first`."""
    trans, b = GemmSpec.of(op.attrs).trans_b, ctx.optional(op.by_role.get("b"))
    if w.x.rank != 2 or x.x.rank < 2 or not D.is_static(w.x.shape) or w.zero is not None:
        return False
    k, n = (int(d) for d in (reversed(w.x.shape) if trans else w.x.shape))
    alike = w.x.is_constant and w.x.dtype == first.x.dtype
    row = w.scale.elements == n and w.scale.rank == (2 if trans else 1)
    scaled = w.scale.is_constant and (row or (w.scale.elements == 1 and w.scale.data is not None))
    biased = b is None or (
        b.is_constant and b.elements == n == b.shape[-1] and b.dtype in (DType.F32, x.dtype)
    )
    sized = x.x.shape[-1] == k and n % 8 == 0 and x.dtype in ctx.target.types
    return alike and scaled and biased and sized


# --- what follows a GEMM


def _epilogue(ctx: Lowering, after: _After, shape: Dims, channel_axis: int) -> Epilogue | None:
    """As `plan_epilogue`; operands of programs are f32."""
    if after.dtype == DType.I32:
        return Epilogue()
    epi = plan_epilogue(
        ctx, after.expr, after.extras, after.dtype, shape, channel_axis, joins=False
    )
    programmed = epi is not None and epi.program is not None and after.extras
    return None if programmed and after.dtype != DType.F32 else epi


def _lower(
    ctx: Lowering,
    op: Op,
    expr: Expr | None,
    dtype: DType,
    family: str,
    make: Callable[[Lowering, Op, tuple[Quantised, Quantised], _After], None],
) -> bool:
    found = _dequantised(ctx, op, family)
    if found is None:
        return False
    if dtype == DType.F32:
        dtype = found[0].dtype
        ctx.require(ctx.value(op.by_role["x"]), f"{op.nodes[0].op} of integers")
    name = op.outputs[0]
    following = _following(ctx, name, dtype) if expr is None and op.nodes else None
    if following is None or following[-1].outputs[0] in ctx.late:
        make(ctx, op, found, _After(name, expr, [ctx.value(e) for e in op.extras], None, dtype))
        return True
    *between, last = following

    def late() -> bool:
        after = _after(ctx, name, between, last, dtype)
        if after is not None:
            if dtype == DType.I32 and family == "gemm_int8":
                after = _factored(after, found[1].x.shape[-1])
            make(ctx, op, found, after)
        return after is not None

    del ctx.sole[name]  # the GEMM does not wait again
    ctx.late[last.outputs[0]] = Late((op, *between), late)
    ctx.postponed |= {o.outputs[0] for o in between}
    return True


def _following(ctx: Lowering, name: str, dtype: DType) -> list[Op] | None:
    """What alone reads a GEMM, up to a pointwise op: its quantisation and dequantisation, or its
    conversion to floats. Without a pointwise op where what is dequantised is but a result.
    """
    chain: list[Op] = []
    for kinds in (_CAST,) if dtype == DType.I32 else (quantised.QUANTIZE, quantised.DEQUANTIZE):
        op = ctx.sole.get(name)
        if op is None or op.kind not in kinds or op.input(0) != name:
            return None
        chain.append(op)
        name = op.outputs[0]
    op = ctx.sole.get(name)
    if op is not None and op.kind in _POINTWISE:
        return [*chain, op]
    return chain if name in ctx.last and dtype != DType.I32 else None


def _after(
    ctx: Lowering, name: str, between: Sequence[Op], last: Op, dtype: DType
) -> _After | None:
    """The pointwise op and what is between it and the GEMM, of this type, as one; None where
    these differ.
    """
    found = None
    to = DType.F32 if dtype == DType.I32 else dtype
    if between[0].kind in quantised.QUANTIZE:
        product = Value(name, dtype, ())
        again = between[1] if len(between) > 1 else last
        try:
            found = quantised.quantising(ctx, between[0], product)
            scale, zero = quantised.parameters(ctx, again, product)
        except Unsupported:
            return None
        if found.dtype not in BYTES or not quantised.is_inverse(
            Quantised(Value("", found.dtype, ()), scale, zero), found.scale, found.zero, found.dtype
        ):
            return None
    elif ctx.graph.dtype(between[0].outputs[0]) != DType.F32:
        return None
    if last.kind in quantised.DEQUANTIZE:
        return _After(last.outputs[0], between=found, dtype=to)
    expr, names = expression_of(ctx, last)
    inner = between[-1].outputs[0]
    if inner not in names or ctx.graph.dtype(last.outputs[0]) not in (None, to):
        return None
    extras = [n for n in names if n != inner]
    place = [0 if n == inner else 1 + extras.index(n) for n in names]
    values = [ctx.value(n) for n in extras]
    expr = substituted(expr, [(Expr(1, (), 0), [k]) for k in place], 1 + len(extras))
    return _After(last.outputs[0], expr, values, found, to)


def _factored(after: _After, columns: DimLike) -> _After:
    """The same with what the kernel does with sums on the way, in one rounding: their product with
    a number or one for each column, then a bias that is stored.
    """
    expr, found, dropped = after.expr, dict[str, Value](), set[int]()
    assert expr is not None
    register = 0
    for op, name in (("mul", "scale"), ("add", "bias")):
        uses = [k for k, ins in enumerate(expr.code) if register in ins.args]
        if expr.out == register or len(uses) != 1 or expr.code[uses[0]].op != op:
            break
        other = sum(expr.code[uses[0]].args) - register
        v = after.extras[other - 1] if 0 < other < expr.n_in else None
        one = op == "mul" and v is not None and v.elements == 1
        if v is None or v.dtype != DType.F32 or not (one or v.shape == (columns,)):
            break
        if op == "add" and not v.is_constant:
            break
        found[name], register = v, expr.n_in + uses[0]
        dropped.add(uses[0])
    kept = [(k, ins) for k, ins in enumerate(expr.code) if k not in dropped]
    used = [k for k in range(1, expr.n_in) if any(k in ins.args for _, ins in kept)]
    place = {register: 0} | {k: j for j, k in enumerate(used, 1)}
    code: list[Instr] = []
    for k, ins in kept:
        place[expr.n_in + k] = 1 + len(used) + len(code)
        code.append(replace(ins, args=tuple(place[a] for a in ins.args)))
    rest = Expr(1 + len(used), tuple(code), place[expr.out]) if code else None
    extras = [after.extras[k - 1] for k in used]
    return replace(
        after, expr=rest, extras=extras, scale=found.get("scale"), bias=found.get("bias")
    )


def _unfit(op: Op, what: str) -> Unsupported:
    return Unsupported(
        f"no kernel computes {op.nodes[0].op} '{op.label}' in integers: it has {what}"
    )


def _dequantised(ctx: Lowering, op: Op, family: str) -> tuple[Quantised, Quantised] | None:
    """What both operands are dequantised from, as the kernels take it; None where they are not, or
    both are made in a run: such GEMMs are few beside those of weights.
    """
    roles = op.by_role
    x, w = ctx.value(roles["x"]).quantised, ctx.value(roles["w"]).quantised
    if x is None or w is None or not w.x.is_constant:
        return None
    ctx.available(family, f"{op.nodes[0].op} of integers")
    for held in (x, w):
        if held.x.dtype not in BYTES:
            raise _unfit(op, f"an operand of {held.x.dtype.name}")
    if any(v is not None and v.rank for v in (x.scale, x.zero)):
        raise _unfit(op, f"a scale for each place along an axis of '{x.x.name}'")
    return x, w


def _add_scales(
    ctx: Lowering, made: _Int8Launch, x: Quantised, w: Quantised, axis: int, columns: int
) -> None:
    """Scales and zero points of the operands; those of the weight may lie along the axis of its
    columns.
    """
    made.ints |= {"x_dtype": int(x.x.dtype), "w_dtype": int(w.x.dtype), "w_scales": 1, "w_zeros": 1}
    for name, v in (("x_scale", x.scale), ("x_zero", x.zero)):
        made.operands[name] = ctx.plain(v) if v is not None else None
    for name, v in (("w_scale", w.scale), ("w_zero", w.zero)):
        if v is None:
            continue
        if v.rank and (v.elements != columns or w.x.rank - v.rank != axis):
            raise _unfit(made.op, f"scales along another axis of '{w.x.name}' than its columns")
        made.operands[name] = ctx.plain(v)
        made.ints[f"{name}s"] = v.elements


def _add_bias(ctx: Lowering, made: _Int8Launch, b: Value | None, columns: int) -> None:
    if b is None:
        return
    known = b.dtype in (DType.F32, made.after.dtype)
    if b.elements != columns or (b.rank and b.shape[-1] != columns) or not known:
        raise _unfit(made.op, f"a bias of {b.dtype.name} and shape {list(b.shape)}")
    made.operands["bias"] = ctx.packed(
        "pack_bias", {"b": ctx.plain(b)}, {"OC": columns}, dtype=b.dtype
    )


def _residual(ctx: Lowering, made: _Int8Launch, v: Value) -> Value:
    """The residual as the launch reads it: its integers, if it has 8-bit ones."""
    held = v.quantised
    made.ints["r_dtype"] = int(v.dtype)
    known = held is not None and quantised.is_deferred(v) and held.x.dtype in BYTES
    if held is None or not known or any(p is not None and p.rank for p in (held.scale, held.zero)):
        return v
    made.ints["r_dtype"] = int(held.x.dtype)
    made.operands["r_scale"] = ctx.plain(held.scale)
    made.operands["r_zero"] = ctx.plain(held.zero) if held.zero is not None else None
    return held.x


def _residual_image(ctx: Lowering, made: _Int8Launch, v: Value) -> Nhwc:
    read = _residual(ctx, made, v)
    found = ctx.nhwc(v) if read is v else image_of(ctx, read)
    made.operands["res"] = found.ref
    return found


def _launch(
    ctx: Lowering,
    made: _Int8Launch,
    family: str,
    epi: Epilogue | None,
    place: Callable[[Value], Ref],
    *,
    whole: bool = True,
) -> None:
    """The launch, with its epilogue and what quantises the result where the kernel does these."""
    after = made.after
    name, dtype = after.name, after.dtype
    floats: Mapping[str, float] = {}
    if (between := after.between) is not None:
        made.operands["m_scale"] = ctx.plain(between.scale)
        made.operands["m_zero"] = ctx.plain(between.zero) if between.zero is not None else None
        made.ints["m_dtype"] = int(between.dtype)
    if epi is None:
        name += "\0before"
    else:
        made.operands |= epi.operands
        made.ints |= epi.ints
        floats = epi.floats
        if dtype != DType.I32:
            name, dtype = _quantise(ctx, made, name)
        if family == "conv2d_int8" and dtype in BYTES and _pooled(ctx, made, epi, name, dtype):
            return
    out = ctx.define(name, dtype, made.shape)
    made.ints["y_dtype"] = int(dtype)
    to = place(out)
    program = epi.program if epi is not None else None
    floating = DType.F32 if after.dtype == DType.I32 else after.dtype
    ctx.plan.launch(
        family, made.operands, {"y": to}, made.ints, floats, program, whole=whole, dtype=floating
    )
    if epi is None:
        assert after.expr is not None
        lower_expression(ctx, after.expr, [out, *after.extras], after.name, after.dtype)


def _pooled(ctx: Lowering, made: _Int8Launch, epi: Epilogue, name: str, dtype: DType) -> bool:
    """The launch with the max pooling that alone reads what its result is dequantised to; False
    where no kernel does both.
    """
    again = ctx.sole.get(name)
    pool = ctx.sole.get(again.outputs[0]) if again is not None else None
    if again is None or again.kind not in quantised.DEQUANTIZE or again.input(0) != name:
        return False
    if pool is None or pool.kind != "MaxPool" or len(pool.outputs) != 1:
        return False
    x = Value(name, dtype, made.shape)
    axes = conv_pool.windows(pool, x)
    able = "conv_pool_int8" in ctx.target.families and epi.program is None and epi.residual is None
    if axes is None or not able or not quantised.is_usual(ctx.value(again.input(1))):
        return False
    shape = (*made.shape[:2], *(w.out for w in axes))
    out = ctx.define(quantised.integers_of(pool.outputs[0]), dtype, shape)
    ints = {**made.ints, **conv_pool.sizes(axes), **new_image(ctx, out).pitches("y")}
    ints["y_dtype"] = int(dtype)
    assert out.nhwc is not None
    try:
        ctx.plan.launch(
            "conv_pool_int8", made.operands, {"y": out.nhwc.ref}, ints, epi.floats, whole=False,
            dtype=made.after.dtype,
        )  # fmt: skip
    except Unsupported:
        del ctx.values[out.name]
        return False
    ctx.define(name, dtype, made.shape)  # which is never stored, and nothing else reads
    return True


def _quantise(ctx: Lowering, made: _Int8Launch, name: str) -> tuple[str, DType]:
    """Name and type of the result, which is what the QuantizeLinear that alone reads it makes where
    that has one usual scale, and 8 bits.
    """
    dtype = made.after.dtype
    by = quantised.reader(ctx, Value(name, dtype, made.shape))
    if (
        by is None
        or by.dtype not in BYTES
        or not quantised.is_usual(by.scale)
        or any(v is not None and v.rank for v in by.parts)
    ):
        return name, dtype
    made.operands["y_scale"] = ctx.plain(by.scale)
    made.operands["y_zero"] = ctx.plain(by.zero) if by.zero is not None else None
    return by.name, by.dtype
