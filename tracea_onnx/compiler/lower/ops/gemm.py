"""GEMM: packed weights with a fused epilogue, batched GEMM of run-time operands,
gated linear units.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.axes import broadcast_strides, merge_dims, pad_rows
from tracea_onnx.compiler.lower.context import Lowering, matrix_rows
from tracea_onnx.compiler.lower.epilogue import activation_only, plan_epilogue
from tracea_onnx.compiler.lower.op import Op, of_roles
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.passes import (
    bf16_gemm,
    gemm_norm,
    integer_gemm,
    one_hot_rows,
    sibling_gemms,
)
from tracea_onnx.compiler.lower.passes.fold_affine import batch_norm
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.match.spec_table import GemmSpec, SwigluSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import packed_elements
from tracea_onnx.shapes.operands import broadcast


def gemm(ctx: Lowering, op: Op) -> None:
    """y = epilogue(alpha * op(x) @ op(w) + beta * b)."""
    if op.outputs[0] in ctx.merges and op.outputs[0] in ctx.values:
        return  # computed with an earlier GEMM of the same input
    roles = op.by_role
    x, w = ctx.value(roles["x"]), ctx.value(roles["w"])
    if integer_gemm.gemm(ctx, op):
        return
    for v in (w,) if x.name in ctx.halved else (x, w):
        ctx.require(v, "a matrix multiplication")
        if x.name not in ctx.halved and v.dtype != x.dtype:
            raise Unsupported(
                f"the GEMM multiplies {x.dtype.name} by {v.dtype.name}; the types must be equal"
            )
    if op.outputs[0] in ctx.merges and sibling_gemms.lower(ctx, x, ctx.merges[op.outputs[0]]):
        return
    spec = GemmSpec.of(op.attrs)
    b = ctx.optional(roles.get("b"))
    if "bn_scale" in roles:
        w, b = _normalised(ctx, op, w, b, spec)
    if w.rank == 2 and w.is_constant and x.rank >= 2 and not spec.trans_a:
        _packed(ctx, op, x, w, b, spec)
    else:
        _runtime(ctx, op, bf16_gemm.widened(ctx, x), w, b, spec)


def _normalised(
    ctx: Lowering, op: Op, w: Value, b: Value | None, spec: GemmSpec
) -> tuple[Value, Value]:
    """Weights and bias that include the BatchNormalization behind the GEMM."""
    n = int(w.shape[0 if spec.trans_b else 1])
    made = [ctx.define(f"{op.outputs[0]}\0bn_{k}", DType.F32, (n,)) for k in ("scale", "shift")]
    for v, ref in zip(made, batch_norm(ctx, op.by_role, spec.bn_eps, n), strict=True):
        assert ref is not None
        v.view = View(ref, (1,))
    scale, shift = made
    if spec.trans_b:
        scale = ctx.define(scale.name + "\0column", DType.F32, (n, 1))
        scale.view = View(made[0].view.ref, (1, 1)) if made[0].view is not None else None
    names = [f"{op.outputs[0]}\0{k}" for k in ("w", "b")]
    lower_expression(ctx, Expr(2, (Instr("mul", (0, 1)),), 2), [w, scale], names[0], w.dtype)
    if b is None:
        lower_expression(ctx, Expr(1, (), 0), [shift], names[1], w.dtype)
    else:
        lower_expression(
            ctx, Expr(3, (Instr("fma", (0, 1, 2)),), 3), [b, made[0], shift], names[1], w.dtype
        )
    both = ctx.value(names[0]), ctx.value(names[1])
    for v in both:
        v.prepared = True
    return both


def is_row(b: Value, beta: float, n: int) -> bool:
    """Whether this is a constant with one value for each column, added as it is."""
    return (
        b.is_constant
        and b.rank > 0
        and all(d == 1 for d in b.shape[:-1])
        and b.shape[-1] == n
        and beta == 1.0
    )


def _packed(ctx: Lowering, op: Op, x: Value, w: Value, b: Value | None, spec: GemmSpec) -> None:
    trans_b, alpha, beta = bool(spec.trans_b), spec.alpha, spec.beta
    k, n = (int(w.shape[1]), int(w.shape[0])) if trans_b else (int(w.shape[0]), int(w.shape[1]))
    ctx.same(x.shape[-1], k, f"the inner dims of {_named(op)}")
    shape: Dims = (*x.shape[:-1], n)
    expr, extras = spec.expr, [ctx.value(e) for e in op.extras]
    plain_bias = b is not None and is_row(b, beta, n)
    if b is not None and not plain_bias:
        expr, extras = with_bias(expr, extras, b, beta)
    if alpha == 1.0 and x.deferred is not None:
        full, more = expr, extras
        if b is not None and plain_bias:
            full, more = with_bias(expr, extras, b, beta)
        rows = one_hot_rows.transposed(ctx, w) if trans_b else w
        if one_hot_rows.lower(ctx, op, x, rows, full, more):
            return
    params = {"K": k, "N": n, "trans": int(trans_b), "ldw": int(w.shape[1]), "n0": 0, "N_total": n}
    norm = gemm_norm.norm_of(ctx, x)
    halfs = norm is None and bf16_gemm.fits(ctx, x.name, w, k, n)
    if not halfs:
        x = bf16_gemm.widened(ctx, x)
    operands: dict[str, Ref | None]
    floats: dict[str, float] = {}
    family = "gemm"
    src, ldx = matrix_rows(ctx, norm.x if norm is not None else x)
    ints: dict[str, DimLike] = {"M": D.product(x.shape[:-1]), "N": n, "K": k, "ldx": ldx, "ldy": n}
    if norm is not None:
        folded = gemm_norm.weights(
            ctx, norm, ctx.plan.arena(x.dtype.size * packed_elements("pack_gemm", **params)), n
        )
        folded.add(ctx, w, b if plain_bias else None, params, alpha)
        operands = {"x": src, **folded.operands()}
        ints |= folded.ints()
        floats |= folded.floats()
    else:
        if halfs:
            family = "gemm_bf16"
            packed = bf16_gemm.packed(ctx, f"pack_{family}", w, params, {"alpha": alpha})
        else:
            packed = ctx.packed(
                "pack_gemm", {"w": ctx.plain(w)}, params, {"alpha": alpha}, dtype=x.dtype
            )
        bias = (
            ctx.packed("pack_bias", {"b": ctx.plain(b)}, {"OC": n}, dtype=b.dtype)
            if b is not None and plain_bias
            else None
        )
        operands = {"x": src, "w": packed, "bias": bias}
    launched(ctx, op, w.dtype, shape, operands, ints, floats, expr, extras, family)


def launched(
    ctx: Lowering,
    op: Op,
    dtype: DType,
    shape: Dims,
    operands: dict[str, Ref | None],
    ints: dict[str, DimLike],
    floats: dict[str, float],
    expr: Expr | None,
    extras: list[Value],
    family: str = "gemm",
) -> None:
    """The launch of a GEMM with packed weights, with `expr` as its epilogue where that fits."""
    halfs, last = family == "gemm_bf16", len(shape) - 1
    if halfs:
        epi, extras = bf16_gemm.epilogue(ctx, expr, extras, shape, last)
    else:
        epi = plan_epilogue(ctx, expr, extras, dtype, shape, last)
    name = op.outputs[0]
    if epi is not None:
        operands |= epi.operands
        ints |= epi.ints
        floats |= epi.floats
        if epi.residual is not None:
            added = gemm_norm.norm_of(ctx, epi.residual)
            if added is not None:
                more = gemm_norm.residual(ctx, added)
                operands, ints, floats = operands | more[0], ints | more[1], floats | more[2]
            operands["res"], ints["ldr"] = matrix_rows(
                ctx, added.x if added is not None else epi.residual
            )
        for j, v in epi.full:
            operands[f"o{j}"], ints[f"o{j}_ld"] = matrix_rows(ctx, v)
    made = DType.BF16 if halfs and epi is not None and name in ctx.halved else dtype
    out = ctx.define(name if epi is not None else name + "\0before", made, shape)
    if halfs:
        ints |= bf16_gemm.types(ctx.value(op.role("x")), epi, out)
    outs: dict[str, Ref | None] = {"y": ctx.new_plain(out)}
    if epi is not None and family == "gemm":
        src, res, n = operands["x"], operands.get("res"), shape[-1]
        assert src is not None and isinstance(n, int)
        reached = [(src, ints["ldx"]), *([(res, ints["ldr"])] if res is not None else [])]
        if (left := gemm_norm.statistics(ctx, name, dtype, ints["M"], n, reached)) is not None:
            outs["y_stats"] = left
    if {"x_stats", "r_stats", "y_stats"} & {*operands, *outs}:
        family = "gemm_norm"
    ctx.plan.launch(family, operands, outs, ints, floats, epi.program if epi else None, dtype=dtype)
    if epi is None:
        assert expr is not None
        lower_expression(ctx, expr, [out, *extras], name, dtype)


def with_bias(
    expr: Expr | None, extras: list[Value], b: Value, beta: float
) -> tuple[Expr, list[Value]]:
    """Move `+ beta * b` into the epilogue expression."""
    old = expr or Expr(1, (), 0)
    n = old.n_in
    code: list[Instr] = []
    bias_at = n  # the new input
    base = n + 1
    if beta != 1.0:
        code += [Instr("const", (), beta), Instr("mul", (base, bias_at))]
        bias_at = base + 1
    code.append(Instr("add", (0, bias_at)))
    acc = base + len(code) - 1
    shift = base + len(code) - n

    def moved(i: int) -> int:
        return acc if i == 0 else i if i < n else i + shift

    code += [Instr(ins.op, tuple(moved(a) for a in ins.args), ins.imm) for ins in old.code]
    return Expr(n + 1, tuple(code), moved(old.out)), [*extras, b]


def _runtime(ctx: Lowering, op: Op, x: Value, w: Value, b: Value | None, spec: GemmSpec) -> None:
    """Both operands at run time, any rank (numpy matmul semantics)."""
    trans_a, trans_b = spec.trans_a, spec.trans_b
    if not x.rank or not w.rank:
        raise Unsupported("a matrix multiplication of a scalar")
    # which lie one after the other in what is contiguous
    if max(x.rank, w.rank) > 4 and _batch_dims(ctx, x, w) > 2:
        for v in (x, w):
            ctx.plain(v)
    a_view, b_view = ctx.strided(x), ctx.strided(w)
    a_shape, a_st = (
        (x.shape, a_view.strides) if x.rank > 1 else ((1, *x.shape), (0, *a_view.strides))
    )
    b_shape, b_st = (
        (w.shape, b_view.strides) if w.rank > 1 else ((*w.shape, 1), (*b_view.strides, 0))
    )
    m, ka = (a_shape[-1], a_shape[-2]) if trans_a else (a_shape[-2], a_shape[-1])
    kb, n = (b_shape[-1], b_shape[-2]) if trans_b else (b_shape[-2], b_shape[-1])
    ctx.same(ka, kb, f"the inner dims of {_named(op)}")
    batch = broadcast(ctx, a_shape[:-2], b_shape[:-2])
    full: Dims = (*batch, m, n)
    shape = tuple(
        d
        for k, d in enumerate(full)
        if not (x.rank == 1 and k == len(full) - 2) and not (w.rank == 1 and k == len(full) - 1)
    )
    expr, extras = spec.expr, [ctx.value(e) for e in op.extras]
    if b is not None:
        expr, extras = with_bias(expr, extras, b, spec.beta)
    act, p0, p1 = 0, 0.0, 0.0
    simple = expr is None
    if expr is not None and not extras:
        try:
            act, p0, p1 = activation_only(expr, x.dtype)
            simple = True
        except Unsupported:
            simple = False
    out = ctx.define(op.outputs[0] if simple else op.outputs[0] + "\0before", x.dtype, shape)
    dst = ctx.new_plain(out)
    assert out.view is not None
    ya = tuple(D.mul(s, D.mul(m, n)) for s in contiguous(batch))
    rows = _batches(ctx, batch, [(a_shape[:-2], a_st[:-2]), (b_shape[:-2], b_st[:-2]), (batch, ya)])
    if len(rows) > 2:
        raise Unsupported(f"the GEMM needs {len(rows)} separate batch dims; the kernel takes 2")
    rows = pad_rows(rows, 2, 3)
    a_m, a_k = (a_st[-1], a_st[-2]) if trans_a else (a_st[-2], a_st[-1])
    b_k, b_n = (b_st[-1], b_st[-2]) if trans_b else (b_st[-2], b_st[-1])
    ints: dict[str, DimLike] = {
        "B0": rows[0][0], "B1": rows[1][0], "M": m, "N": n, "K": ka, "a_0": rows[0][1][0],
        "a_1": rows[1][1][0], "a_m": a_m, "a_k": a_k,
        "b_0": rows[0][1][1], "b_1": rows[1][1][1], "b_k": b_k, "b_n": b_n, "y_0": rows[0][1][2],
        "y_1": rows[1][1][2], "ldy": n, "act": act,
    }  # fmt: skip
    ctx.plan.launch(
        "matmul",
        {"a": a_view.ref, "b": b_view.ref},
        {"y": dst},
        ints,
        {"alpha": spec.alpha, "p0": p0, "p1": p1},
        dtype=x.dtype,
    )
    if not simple:
        assert expr is not None
        lower_expression(ctx, expr, [out, *extras], op.outputs[0], x.dtype)


def _batches(
    ctx: Lowering, batch: Dims, parts: Sequence[tuple[Dims, Dims]]
) -> list[tuple[DimLike, list[DimLike]]]:
    """Separate batch dims of operands of such (shape, strides) before their last two dims."""
    return merge_dims(
        batch,
        [
            broadcast_strides(ctx.plan, View(Ref(0), strides), shape, batch)
            for shape, strides in parts
        ],
    )


def _batch_dims(ctx: Lowering, x: Value, w: Value) -> int:
    """Number of separate GEMMs in the product of two tensors as they are stored."""
    parts = [(v.shape[:-2], ctx.strided(v).strides[:-2]) for v in (x, w)]
    batch = broadcast(ctx, *(shape for shape, _ in parts))
    return len(_batches(ctx, batch, [*parts, (batch, contiguous(batch))]))


def _named(op: Op) -> str:
    return f"{op.nodes[0].op if len(op.nodes) == 1 else op.kind[1:]} '{op.label}'"


def swiglu(ctx: Lowering, op: Op) -> None:
    """act(x @ w_gate + b_gate) * (x @ w_up + b_up), or the packed form: two GEMMs and one
    pointwise pass.
    """
    spec = SwigluSpec.of(op.attrs)
    x, trans_b = ctx.value(op.role("x")), bool(spec.trans_b)
    halves: list[Value] = []
    if op.role("w"):
        w, b = ctx.value(op.role("w")), ctx.optional(op.role("b"))
        both = matmul(ctx, x, w, b, trans_b, op.outputs[0] + "\0both")
        view = ctx.strided(both)
        n = both.shape[-1]
        if not isinstance(n, int) or n % 2:
            raise Unsupported("the packed gate has an odd, or symbolic, width")
        for k in range(2):
            half = ctx.define(f"{op.outputs[0]}\0half{k}", x.dtype, (*both.shape[:-1], n // 2))
            half.view = View(view.ref.at(x.dtype.size * (n // 2) * k), view.strides)
            halves.append(half)
        if spec.split == 1:
            halves.reverse()
    else:
        parts = [
            sibling_gemms.Part(
                f"{op.outputs[0]}\0{half}",
                ctx.value(op.role(f"w_{half}")),
                ctx.optional(op.role(f"b_{half}")),
                trans_b,
            )
            for half in ("gate", "up")
        ]
        halves = (
            sibling_gemms.merged(ctx, x, parts)
            if sibling_gemms.fits(ctx, x, parts)
            else [matmul(ctx, x, p.w, p.b, p.trans, p.name) for p in parts]
        )
    lower_expression(ctx, spec.expr, halves, op.outputs[0], x.dtype)


def matmul(ctx: Lowering, x: Value, w: Value, b: Value | None, trans_b: bool, name: str) -> Value:
    """X [.., K] times w [K, N] ([N, K] with trans_b), plus b [N]; defines and returns `name`."""
    roles = {"x": x.name, "w": w.name, **({"b": b.name} if b is not None else {})}
    gemm(ctx, of_roles(GemmSpec(trans_b=int(trans_b)), roles, (name,), (), name))
    return ctx.value(name)


OPS = {":gemm": gemm, ":swiglu": swiglu}
