"""Normalisations, softmax and reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_onnx.compiler.lower.axes import around, broadcast_strides
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.epilogue import activation_only
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.image import pool_globally
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.passes import gemm_nbits_norm, gemm_norm, quantised, summed_rows
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.match.spec_table import BatchNormSpec, GroupNormSpec, LayerNormSpec, SoftmaxSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.shapes.operands import axis_of, constant, reduced
from tracea_onnx.shapes.operators import result


def _vector(ctx: Lowering, name: str, n: DimLike) -> Ref | None:
    """A per-element weight of the normalised dims."""
    if not name:
        return None
    v = ctx.value(name)
    ctx.require(v, "a norm weight")
    if v.elements is not n and v.elements != n:
        raise Unsupported(f"a norm has a weight of {v.elements} elements for {n} normalized ones")
    return ctx.plain(v)


def layernorm(ctx: Lowering, op: Op) -> None:
    """y = norm(x + res + xbias) * gamma + beta; the optional second output is the sum."""
    roles = op.by_role
    x = ctx.value(roles["x"])
    ctx.require(x, "a norm")
    spec = LayerNormSpec.of(op.attrs)
    channels = spec.axis == 1  # an image over its channels
    if channels:
        x = _channels_last(ctx, x)
    axis = x.rank - 1 if channels else axis_of(spec.axis, x.rank)
    n = D.product(x.shape[axis:])
    eps, rule = spec.eps, {"rms": int(spec.rms), "gamma_add": int(spec.gamma_add)}
    if (
        axis == x.rank - 1
        and not channels
        and not (roles.get("res") or roles.get("xbias"))  # statistics are of x alone
        and any(
            defer(ctx, op, x, roles, rule, eps, lambda: layernorm(ctx, op))
            for defer in (gemm_norm.defer_norm, gemm_nbits_norm.defer_norm)
        )
    ):
        return
    operands: dict[str, Ref | None] = {
        "gamma": _vector(ctx, roles.get("gamma", ""), n),
        "beta": _vector(ctx, roles.get("beta", ""), n),
    }
    if (
        axis == x.rank - 1
        and not channels
        and _over_sum(
            ctx,
            op,
            x,
            [ctx.value(roles[r]) for r in ("res", "xbias") if roles.get(r)],
            operands,
            rule,
            eps,
        )
    ):
        return
    operands["x"] = ctx.plain(x)
    if roles.get("xbias"):
        operands["xbias"] = _vector(ctx, roles["xbias"], n)
    if roles.get("res"):
        res = ctx.value(roles["res"])
        ctx.require(res, "a norm residual")
        res = _channels_last(ctx, res) if channels else res
        if res.shape != x.shape:
            wide = ctx.define(f"{op.outputs[0]}\0res", x.dtype, x.shape)
            wide.view = View(
                (view := ctx.strided(res)).ref,
                broadcast_strides(ctx.plan, view, res.shape, x.shape),
            )
            res = wide
        operands["res"] = ctx.plain(res)
    ints: dict[str, DimLike] = {"rows": D.product(x.shape[:axis]), "N": n, **rule}
    if not channels and _quantised(ctx, op, x, operands, ints, eps):
        return
    made = [
        ctx.define(o + ("\0last" if channels else ""), x.dtype, x.shape) for o in op.outputs if o
    ]
    outs: dict[str, Ref | None] = dict(
        zip(("y", "skip"), (ctx.new_plain(v) for v in made), strict=False)
    )
    for o, last in zip(op.outputs, made if channels else (), strict=False):
        ctx.define(o, x.dtype, _first(last.shape)).view = View(
            ctx.plain(last), _first(contiguous(last.shape))
        )
    ctx.plan.launch("layernorm", operands, outs, ints, {"eps": eps}, dtype=x.dtype)


def _quantised(
    ctx: Lowering, op: Op, x: Value, operands: Mapping[str, Ref | None],
    ints: Mapping[str, DimLike], eps: float
) -> bool:  # fmt: skip
    """The norm with the QuantizeLinear that reads it, to 8 bits by known numbers, in one launch;
    False where there is none. Where nothing else reads the norm, it lies nowhere.
    """
    by = ctx.quantisers.get(op.outputs[0])
    if by is None or "layernorm_quantised" not in ctx.target.families:
        return False
    found = quantised.numbered(ctx, by, Value(op.outputs[0], x.dtype, x.shape))
    if found is None:
        return False
    made, scale, zero = found
    y, *skip = (ctx.define(o, x.dtype, x.shape) for o in op.outputs if o)
    outs: dict[str, Ref | None] = {}
    if op.outputs[0] not in ctx.sole:
        outs["y"] = ctx.new_plain(y)
    if skip:
        outs["skip"] = ctx.new_plain(skip[0])
    outs["q"] = ctx.new_plain(ctx.define(made.name, made.dtype, x.shape))
    ctx.plan.launch(
        "layernorm_quantised",
        operands,
        outs,
        {**ints, "q_dtype": int(made.dtype), "q_zero": zero},
        {"eps": eps, "q_scale": scale},
        dtype=x.dtype,
    )
    return True


def _over_sum(
    ctx: Lowering, op: Op, x: Value, others: Sequence[Value], weights: Mapping[str, Ref | None],
    rule: Mapping[str, int], eps: float
) -> bool:  # fmt: skip
    """Normalise rows that the kernel adds up itself, where that saves launches."""
    if not summed_rows.fits(ctx, x, others) or not summed_rows.is_profitable(
        [x, *(o for o in others if o.rank > 1)], x.shape
    ):
        return False
    found = summed_rows.operands(ctx, [x, *others], x.shape)
    if found is None:
        return False
    refs, ints = found
    outs: dict[str, Ref | None] = dict(
        zip(
            ("y", "skip"),
            (ctx.new_plain(ctx.define(o, x.dtype, x.shape)) for o in op.outputs if o),
            strict=False,
        )
    )
    if (
        x.view is None
        and not others
        and "skip" not in outs
        and len(ctx.graph.consumers(x.name)) > 1
    ):
        outs["skip"] = ctx.new_plain(x)  # for its other readers
    ctx.plan.launch(
        "layernorm_sum", {**refs, **weights}, outs, {**ints, **rule}, {"eps": eps}, dtype=x.dtype
    )
    return True


def _channels_last(ctx: Lowering, x: Value) -> Value:
    """[N, C, ...] as [N, ..., C]; an image that lies so already is read in place."""
    moved = ctx.define(x.name + "\0last", x.dtype, (x.shape[0], *x.shape[2:], x.shape[1]))
    if x.rank == 4 and x.nhwc is not None and x.view is None:
        moved.view = View(x.nhwc.ref, (x.nhwc.ns, x.nhwc.rs, x.nhwc.cs, 1))
    else:
        view = ctx.strided(x)
        moved.view = View(view.ref, (view.strides[0], *view.strides[2:], view.strides[1]))
    return moved


def _first(dims: Dims) -> Dims:
    """Dims or strides of [N, ..., C] in the order [N, C, ...]."""
    return (dims[0], dims[-1], *dims[1:-1])


def groupnorm(ctx: Lowering, op: Op) -> None:
    """Group (groups = -1: instance) normalization over [N, C, ...] with an optional activation."""
    roles = op.by_role
    x = ctx.value(roles["x"])
    ctx.require(x, "a norm")
    c = x.channels
    spec = GroupNormSpec.of(op.attrs)
    groups = c if spec.groups == -1 else spec.groups
    if groups < 1 or c % groups:
        raise Unsupported(
            f"the group norm has {c} channels in {groups} groups; they must divide evenly"
        )
    act, p0, p1 = activation_only(spec.expr, x.dtype)
    operands: dict[str, Ref | None] = {
        "gamma": _vector(ctx, roles.get("gamma", ""), c),
        "beta": _vector(ctx, roles.get("beta", ""), c),
    }
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    floats = {"eps": spec.eps, "p0": p0, "p1": p1}
    if x.nhwc is not None and x.view is None:
        ints = {**x.nchw(), "G": groups, "act": act}
        dst = ctx.new_nhwc(out)
        ctx.run_image("groupnorm_nhwc", x.nhwc, dst, x.dtype, ints, floats, **operands)
        return
    ints = {"B": x.shape[0], "C": c, "G": groups, "inner": D.product(x.shape[2:]), "act": act}
    ctx.run("groupnorm", {"x": x, **operands}, out, ints, floats, dtype=x.dtype)


def softmax(ctx: Lowering, op: Op) -> None:
    """Softmax and LogSoftmax over one axis, or over all from one on before opset 13."""
    x = ctx.value(op.inputs[0])
    ctx.require(x, "a softmax")
    spec = SoftmaxSpec.of({"axis": 1, "log": op.kind == "LogSoftmax", **op.attrs})
    axis = axis_of(spec.axis, x.rank)
    # before opset 13 the tensor is coerced to 2-d at the axis
    ints = {"log": int(spec.log), **around(x.shape, axis, axis if op.fused else x.rank - 1)}
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    ctx.run("softmax", {"x": x}, out, ints, dtype=x.dtype)


_KINDS = {
    "ReduceSum": 0, "ReduceMean": 1, "ReduceMax": 2, "ReduceMin": 3, "ReduceProd": 4, "ReduceL1": 5,
    "ReduceL2": 6, "ReduceSumSquare": 7,
    "ReduceLogSum": 8, "ReduceLogSumExp": 9,
}  # fmt: skip


def reduce(ctx: Lowering, op: Op) -> None:
    """Reduction over adjacent axes (others are transposed next to each other first)."""
    x = ctx.value(op.input(0))
    kind = _KINDS[op.kind]
    if x.dtype not in {DType.I64, DType.I32, *ctx.target.types} or (
        x.dtype not in ctx.target.types and kind not in (0, 2, 3, 4)
    ):
        raise Unsupported(f"no kernel computes {op.kind} of type {x.dtype.name}")
    gone, shape = reduced(ctx, op, x.rank), result(ctx, op)
    if (
        gone
        and gone == [2, 3]
        and x.rank == 4
        and x.nhwc is not None
        and x.view is None
        and kind in (1, 2)
    ):
        pool_globally(ctx, x, ctx.define(op.outputs[0], x.dtype, shape), int(kind == 1))
        return
    first = gone[0] if gone else x.rank
    if gone != [*range(first, first + len(gone))]:
        order = [k for k in range(x.rank) if k not in gone] + gone
        view = ctx.strided(x)
        moved = ctx.define(op.outputs[0] + "\0moved", x.dtype, tuple(x.shape[k] for k in order))
        moved.view = View(view.ref, tuple(view.strides[k] for k in order))
        x, first = moved, x.rank - len(gone)
    ints = {"kind": kind, "dtype": int(x.dtype), **around(x.shape, first, first + len(gone) - 1)}
    out = ctx.define(op.outputs[0], x.dtype, shape)
    ctx.run("reduce", {"x": x}, out, ints, dtype=x.dtype)


def argmax(ctx: Lowering, op: Op) -> None:
    """ArgMax and ArgMin along one axis."""
    x = ctx.value(op.input(0))
    if x.dtype not in {DType.I64, DType.I32, *ctx.target.types}:
        raise Unsupported(f"no kernel computes {op.kind} of type {x.dtype.name}")
    axis = axis_of(op.attr("axis", 0), x.rank)
    ctx.at_least(
        x.shape[axis], 1, f"axis {axis} of '{x.name}', of which {op.kind} takes an element,"
    )
    out = ctx.define(op.outputs[0], DType.I64, result(ctx, op))
    ints = {
        **around(x.shape, axis), "min": int(op.kind == "ArgMin"),
        "last": int(op.attr("select_last_index", 0)), "dtype": int(x.dtype),
    }  # fmt: skip
    ctx.run("argmax", {"x": x}, out, ints, dtype=x.dtype)


def cumsum(ctx: Lowering, op: Op) -> None:
    """CumSum along one axis."""
    x = ctx.value(op.input(0))
    ctx.available("cumsum", "CumSum")
    if x.dtype not in {DType.I64, DType.I32, *ctx.target.types}:
        raise Unsupported(f"no kernel computes CumSum of type {x.dtype.name}")
    axis = axis_of(constant(ctx, op.input(1), "the axis"), x.rank)
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    ints = {
        **around(x.shape, axis), "exclusive": int(op.attr("exclusive", 0)),
        "reverse": int(op.attr("reverse", 0)), "dtype": int(x.dtype),
    }  # fmt: skip
    ctx.run("cumsum", {"x": x}, out, ints, dtype=x.dtype)


def _by_statistics(ctx: Lowering, op: Op, epsilon: float, x: Value, parts: Sequence[Value]) -> None:
    """BatchNormalization with statistics of a run (what TensorFlow makes of a layer norm), as it is
    written.
    """
    columns = []
    for p in parts:
        column = ctx.define(
            f"{op.outputs[0]}\0{p.name}", p.dtype, (*p.shape, *(1 for _ in x.shape[2:]))
        )
        column.view = View(ctx.plain(p), contiguous(column.shape))
        columns.append(column)
    eps = Instr("const", (), epsilon)
    code = (
        Instr("sub", (0, 3)),
        eps,
        Instr("add", (4, 6)),
        Instr("sqrt", (7,)),
        Instr("div", (1, 8)),
        Instr("fma", (5, 9, 2)),
    )
    lower_expression(ctx, Expr(5, code, 10), [x, *columns], op.outputs[0], x.dtype)


def batchnorm(ctx: Lowering, op: Op) -> None:
    """A BatchNormalization that follows no convolution, with what follows it: expr(x * scale +
    shift, ...) per channel.
    """
    roles = op.by_role
    x = ctx.value(roles["x"])
    spec = BatchNormSpec.of(op.attrs)
    parts = [ctx.value(roles.get(f"bn_{r}", "")) for r in ("scale", "bias", "mean", "var")]
    ctx.require(x, "a norm")
    kinds = {p.dtype for p in parts}
    if spec.expr is None and kinds == {x.dtype} and not all(p.is_constant for p in parts):
        _by_statistics(ctx, op, spec.bn_eps, x, parts)
        return
    if not all(p.is_constant for p in parts) or len(kinds) > 1 or not kinds <= ctx.target.types:
        raise Unsupported(
            "the statistics of BatchNormalization are not constants of one float type"
        )
    c = x.shape[1]
    if not isinstance(c, int) or any(p.elements != c for p in parts):
        raise Unsupported(
            f"BatchNormalization has {c} channels, and statistics of"
            f" {', '.join(str(p.elements) for p in parts)} elements"
        )
    scale, shift = (
        ctx.define(op.outputs[0] + s, DType.F32, (c, *(1 for _ in x.shape[2:])))
        for s in ("\0scale", "\0shift")
    )
    outs = {"scale": ctx.new_plain(scale), "shift": ctx.new_plain(shift)}
    names = ("gamma", "beta", "mean", "var")
    ctx.plan.launch(
        "fold_bn",
        {k: ctx.plain(p) for k, p in zip(names, parts, strict=True)},
        outs,
        {"C": c},
        {"eps": spec.bn_eps},
        dtype=kinds.pop(),
    )
    follow = spec.expr or Expr(1, (), 0)
    extras = [ctx.value(n) for n in op.extras]
    # inputs of the whole: x, scale, shift, then the epilogue's own operands
    first = 2 + follow.n_in

    def moved(i: int) -> int:
        return first if i == 0 else i + 2 if i < follow.n_in else i - follow.n_in + first + 1

    code = (
        Instr("fma", (0, 1, 2)),
        *(Instr(i.op, tuple(moved(a) for a in i.args), i.imm) for i in follow.code),
    )
    lower_expression(
        ctx,
        Expr(first, code, moved(follow.out)),
        [x, scale, shift, *extras],
        op.outputs[0],
        x.dtype,
    )


OPS = {
    ":layernorm": layernorm, ":groupnorm": groupnorm, ":softmax": softmax, ":batchnorm": batchnorm,
    # before opset 13, where it runs over several axes
    "Softmax": softmax, "LogSoftmax": softmax,
    "ArgMax": argmax, "ArgMin": argmax, "CumSum": cumsum,
    **dict.fromkeys(_KINDS, reduce),
}  # fmt: skip
