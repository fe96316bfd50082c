"""Integers of 2, 4 or 8 bits, which stay packed: GEMMs with such weights, and blocks that are
dequantised, of rows that indices pick or of all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tracea_onnx.compiler.lower.context import Lowering, element_type, matrix_rows
from tracea_onnx.compiler.lower.epilogue import program_of
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.gemm import is_row, launched, with_bias
from tracea_onnx.compiler.lower.passes import gemm_nbits_norm, sibling_gemms
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.activations import unrounded
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import exchanged
from tracea_onnx.match.nbits import TYPES
from tracea_onnx.match.spec_table import GemmNbitsSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import packed_elements
from tracea_onnx.shapes.operands import axis_of
from tracea_onnx.support.data_classes import dataclass

FLOATS = frozenset((DType.F32, DType.F16, DType.BF16))


@dataclass(frozen=True, eq=False)
class Blocks:
    """Where the scales of integers [outer, n, inner] lie: element e of all has number (e / within /
    span * blocks + e / within % span / block) * within + e % within. zero_row: zeros that begin
    with a byte.
    """

    dims: tuple[int, int, int]
    span: int
    within: int
    block: int
    zero_row: int

    @property
    def scales(self) -> int:
        """Number of scales."""
        lines = math.prod(self.dims) // max(self.span * self.within, 1)
        return lines * -(-self.span // self.block) * self.within


def elements(
    ctx: Lowering, op: Op, role: str, name: str, count: int, types: Collection[int]
) -> Ref:
    """A constant of so many elements of one of these types, for which there need be no kernels."""
    have, dtype = math.prod(constant_shape(ctx, op, name)), ctx.graph.dtype(name)
    if have != count or dtype not in types:
        raise Unsupported(
            f"the {role} '{name}' of '{op.label}' has {have} elements of type {dtype}, not {count}"
            f" of type {' or '.join(map(str, sorted(map(int, types))))}"
        )
    return ctx.plan.initializer(name)


def kind_of(ctx: Lowering, op: Op) -> tuple[int, int, bool]:
    """Element type of the first input, its bits, and whether it has a sign."""
    dtype = ctx.graph.dtype(op.input(0)) or 0
    if dtype not in TYPES:
        raise Unsupported(
            f"{op.kind} '{op.label}' dequantises element type {dtype}; the kernels read integers of"
            " 2, 4 and 8 bits"
        )
    return dtype, *TYPES[dtype]


def constant_shape(ctx: Lowering, op: Op, name: str) -> tuple[int, ...]:
    """The sizes of a constant. Raises Unsupported for what is none."""
    shape = ctx.graph.shape(name)
    if not ctx.graph.is_const(name) or shape is None:
        raise Unsupported(f"'{name}' of {op.kind} '{op.label}' is no constant")
    return tuple(int(d or 0) for d in shape)


def dequantised(
    ctx: Lowering,
    op: Op,
    at: Blocks,
    data: tuple[int, bool, Ref],
    names: tuple[str, str],
    middle: int,
    idx: Value | None,
    out: tuple[DType, Sequence[DimLike]],
) -> None:
    """The first output: rows that `idx` picks, or all. data: bits of an integer, whether it has a
    sign, and where they lie; names: of the scales, and of the zeros or ""; middle: the zero where
    there are none, counted from the least integer.
    """
    ctx.available("dequantise", op.kind)
    bits, signed, x = data
    dtype = element_type(names[0], ctx.graph.dtype(names[0]))
    scale = elements(ctx, op, "scale", names[0], at.scales, FLOATS)
    zero = None
    if names[1]:
        kinds, count = {ctx.graph.dtype(op.input(0)) or 0}, at.scales
        if kinds == {DType.U8}:  # the zeros of a row are in whole bytes
            count = count // at.zero_row * -(-at.zero_row * bits // 8)
        zero = elements(ctx, op, "zero", names[1], count, kinds)
    outer, n, inner = at.dims
    made = ctx.define(op.outputs[0], *out)
    rows: DimLike = n if idx is None else idx.elements
    ints: dict[str, DimLike] = {
        "outer": outer, "n": n, "inner": inner, "count": rows,
        "idx_dtype": int(DType.I64 if idx is None else idx.dtype), "bits": bits,
        "is_signed": int(signed), "middle": middle, "span": at.span, "within": at.within,
        "block": at.block, "zero_row": at.zero_row, "scale_dtype": int(dtype),
        "y_dtype": int(made.dtype),
    }  # fmt: skip
    ctx.run("dequantise", {"x": x, "idx": idx, "scale": scale, "zero": zero}, made, ints)
    made.prepared = idx is None


def dequantise_constant(ctx: Lowering, op: Op) -> None:
    """DequantizeLinear of a constant, with a scale for each block, for each place along an axis, or
    for all.
    """
    dtype, bits, signed = kind_of(ctx, op)
    shape, scales = constant_shape(ctx, op, op.input(0)), constant_shape(ctx, op, op.input(1))
    count, size = math.prod(shape), int(op.attr("block_size", 0))
    axis = axis_of(int(op.attr("axis", 1)), len(shape)) if size or math.prod(scales) != 1 else 0
    before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if size:
        span, within, block = shape[axis], behind, size
        want = (*shape[:axis], -(-span // max(size, 1)), *shape[axis + 1 :])
    elif math.prod(scales) == 1:
        span, within, block, want = count, 1, count, scales
    elif before == 1:
        span, within, block, want = count, 1, behind, (shape[axis],)
    else:
        span, within, block, want = before, shape[axis], before, (shape[axis],)
    if size < 0 or scales != want or (not size and behind != 1 and before != 1):
        raise Unsupported(
            f"the scales '{op.input(1)}' of {op.kind} '{op.label}' have the shape"
            f" [{', '.join(map(str, scales))}]; the kernels take one, one for each block, or one"
            " for each place along the first axis or the last one"
        )
    kind = element_type(op.input(1), ctx.graph.dtype(op.input(1)))
    kind = element_type(op.outputs[0], op.attr("output_dtype", 0) or int(kind))
    if kind not in FLOATS:
        raise Unsupported(f"{op.kind} '{op.label}' makes element type {kind.name}")
    dims = 1, math.prod(shape[:-1]), shape[-1] if shape else 1
    places = Blocks(dims, max(span, 1), max(within, 1), max(block, 1), 8 // bits)
    x = elements(ctx, op, "data", op.input(0), count, {dtype})
    given = (op.input(1), op.input(2))
    middle = 1 << (bits - 1) if signed else 0
    dequantised(ctx, op, places, (bits, signed, x), given, middle, None, (kind, shape))


def gather_blocks(ctx: Lowering, op: Op) -> None:
    """GatherBlockQuantized. Rows of indices that are out of range are zeros."""
    dtype, bits, signed = kind_of(ctx, op)
    shape, idx = constant_shape(ctx, op, op.input(0)), ctx.value(op.input(1))
    packed = dtype == DType.U8
    bits = int(op.attr("bits", 4)) if packed else bits
    block = int(op.attr("block_size", 128))
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1):
        raise Unsupported(
            f"{op.kind} '{op.label}' has blocks of {block} integers of {bits} bits; there are those"
            " of 2, 4 and 8, in blocks of 16, 32, 64, ..."
        )
    if idx.dtype not in (DType.I64, DType.I32):
        raise Unsupported(
            f"{op.kind} has indices of type {idx.dtype.name}; the kernel reads I64 and I32"
        )
    along, across = (
        axis_of(int(op.attr(f"{k}_axis", default)), len(shape))
        for k, default in (("gather", 0), ("quantize", 1))
    )
    if packed:
        if along != 0 or across != len(shape) - 1 or across == 0:
            raise Unsupported(
                f"{op.kind} '{op.label}' has packed bytes, and gathers along axis {along} what is"
                f" quantised along {across}; it must be the first and the last of several"
            )
        shape = (*shape[:-1], shape[-1] * (8 // bits))
    blocks = -(-shape[across] // block)
    scales = (*shape[:across], blocks, *shape[across + 1 :])
    if constant_shape(ctx, op, op.input(2)) != scales:
        raise Unsupported(
            f"the scales '{op.input(2)}' of {op.kind} '{op.label}' have another shape than"
            f" [{', '.join(map(str, scales))}]"
        )
    places = Blocks(
        (math.prod(shape[:along]), shape[along], math.prod(shape[along + 1 :])),
        max(shape[across], 1),
        max(math.prod(shape[across + 1 :]), 1),
        block,
        max(blocks, 1) if packed else 8 // bits,
    )
    held = math.prod(shape) * bits // 8 if packed else math.prod(shape)
    x = elements(ctx, op, "data", op.input(0), held, {dtype})
    middle = 1 << (bits - 1) if packed or signed else 0
    to: Dims = (*shape[:along], *idx.shape, *shape[along + 1 :])
    kind = element_type(op.input(2), ctx.graph.dtype(op.input(2)))
    given = (op.input(2), op.input(3))
    dequantised(ctx, op, places, (bits, signed, x), given, middle, idx, (kind, to))


def gemm_nbits(ctx: Lowering, op: Op) -> None:
    """y = epilogue(x (w - zero) scale + b)."""
    name = op.outputs[0]
    if name in ctx.merges and name in ctx.values:
        return  # computed with an earlier GEMM of the same input
    if any(name == other.outputs[0] for other in ctx.gates.values()):
        return  # computed with the GEMM that it gates
    spec, roles = GemmNbitsSpec.of(op.attrs), op.by_role
    ctx.available("gemm_nbits", f"a matrix multiplication by weights of {spec.bits} bits")
    x, b = ctx.value(roles["x"]), ctx.optional(roles.get("b"))
    ctx.require(x, "a matrix multiplication")
    if x.rank < 2:
        raise Unsupported(f"the matrix multiplication '{op.label}' of a tensor of rank {x.rank}")
    K, N = spec.K, spec.N
    ctx.same(x.shape[-1], K, f"the inner dims of '{op.label}'")
    if name in ctx.merges:
        _merged(ctx, x, ctx.merges[name])
        return
    if name in ctx.gates:
        _gated(ctx, op, x, ctx.gates[name])
        return
    given, params, ints, floats = _weights(ctx, op, spec)
    operands: dict[str, Ref | None] = {"w": ctx.packed("pack_gemm_nbits", given, params)}
    family = _rows(ctx, x, operands, ints, floats)
    ints |= {"M": D.product(x.shape[:-1]), "N": N, "K": K, "ldy": N}
    expr, extras = spec.expr, [ctx.value(e) for e in op.extras]
    if b is not None and is_row(b, 1.0, N):
        operands["bias"] = ctx.packed("pack_bias", {"b": ctx.plain(b)}, {"OC": N}, dtype=b.dtype)
    elif b is not None:
        expr, extras = with_bias(expr, extras, b, 1.0)
    shape: Dims = (*x.shape[:-1], N)
    launched(ctx, op, x.dtype, shape, operands, ints, floats, expr, extras, family)


def _rows(
    ctx: Lowering, x: Value, operands: dict[str, Ref | None], ints: dict[str, DimLike],
    floats: dict[str, float],
) -> str:  # fmt: skip
    """Adds the rows of a GEMM, and their norm if that was left to it; the family that reads
    them.
    """
    norm = gemm_nbits_norm.norm_of(ctx, x)
    if norm is None:
        operands["x"], ints["ldx"] = matrix_rows(ctx, x)
        return "gemm_nbits"
    operands |= {"x": ctx.plain(norm.x), "gamma": ctx.plain(norm.gamma)}
    if norm.beta is not None:
        operands["beta"] = ctx.plain(norm.beta)
    ints |= {"ldx": x.shape[-1], "rms": int(norm.rms), "gamma_add": norm.gamma_add}
    floats["eps"] = norm.eps
    return "gemm_nbits_norm"


def _merged(ctx: Lowering, x: Value, group: Sequence[Op]) -> None:
    """GEMMs of one input as one launch: their values are slices of its rows."""
    specs, lead = [GemmNbitsSpec.of(op.attrs) for op in group], x.shape[:-1]
    total = sum(s.N for s in specs)
    packed, ints, floats = _side_by_side(ctx, group)
    operands: dict[str, Ref | None] = {"w": packed}
    family = _rows(ctx, x, operands, ints, floats)
    rows = ctx.plan.arena(D.mul(D.product([*lead, total]), x.dtype.size))
    ints |= {"M": D.product(lead), "N": total, "K": specs[0].K, "ldy": total}
    ctx.plan.launch(family, operands, {"y": rows}, ints, floats, dtype=x.dtype)
    names = [(op.outputs[0], s.N) for op, s in zip(group, specs, strict=True)]
    sibling_gemms.slices(ctx, names, rows, lead, x.dtype)


def _gated(ctx: Lowering, op: Op, x: Value, other: Op) -> None:
    """A GEMM and the one that its epilogue reads as one launch."""
    spec, lead = GemmNbitsSpec.of(op.attrs), x.shape[:-1]
    assert spec.expr is not None
    packed, ints, floats = _side_by_side(ctx, (other, op))
    operands: dict[str, Ref | None] = {"w": packed}
    _rows(ctx, x, operands, ints, floats)
    ints |= {"M": D.product(lead), "N": spec.N, "K": spec.K, "ldy": spec.N, "gated": 1}
    out = ctx.new_plain(ctx.define(op.outputs[0], x.dtype, (*lead, spec.N)))
    program = program_of(unrounded(exchanged(spec.expr), x.dtype), type="f32", joins=True)
    ctx.plan.launch("gemm_nbits_norm", operands, {"y": out}, ints, floats, program, dtype=x.dtype)


def _side_by_side(
    ctx: Lowering, group: Sequence[Op]
) -> tuple[Ref, dict[str, DimLike], dict[str, float]]:
    """The weights of these GEMMs as one, and what the GEMM must know of them."""
    specs = [GemmNbitsSpec.of(op.attrs) for op in group]
    total = sum(s.N for s in specs)
    packed: Ref | None = None
    ints: dict[str, DimLike] = {}
    floats: dict[str, float] = {}
    at = 0
    for op, spec in zip(group, specs, strict=True):
        given, params, ints, floats = _weights(ctx, op, spec)
        if packed is None:
            count = packed_elements("pack_gemm_nbits", **{**params, "N": total})
            packed = ctx.plan.arena(DType.F32.size * count)
        place = {"n0": at, "N_total": total}
        ctx.plan.launch(
            "pack_gemm_nbits_part", given, {"packed": packed}, params | place, more=at > 0
        )
        at += spec.N
    assert packed is not None
    return packed, ints, floats


def _weights(
    ctx: Lowering, op: Op, spec: GemmNbitsSpec
) -> tuple[dict[str, Ref | None], dict[str, int], dict[str, DimLike], dict[str, float]]:
    """Operands and integers of what packs the weights; integers and floats of the GEMM that are
    of them.
    """
    K, N, bits, blobs = spec.K, spec.N, spec.bits, spec.form == "blobs"
    block = spec.block or D.round_up(K, 16)
    assert isinstance(block, int)
    blocks = -(-K // block)
    row = blocks * block if blobs else K
    types = {t for t, kind in TYPES.items() if kind == (bits, spec.signed)}
    types = {DType.U8} if blobs else types
    w = elements(ctx, op, "w", op.role("w"), N * row * bits // 8 if blobs else N * K, types)
    by_row = (1, N) if spec.form == "kn" else (row, 1)
    shape = ctx.graph.shape(op.role("scale")) or ()
    one = not spec.block and math.prod(int(d or 0) for d in shape) == 1
    count = 1 if one else N * blocks
    scale = elements(ctx, op, "scale", op.role("scale"), count, ctx.target.types)
    scale_type = int(ctx.graph.dtype(op.role("scale")) or DType.F32)
    s_n, s_k = (0, 0) if one else (1, N) if spec.form == "kn" else (blocks, 1)
    zero, zero_type, z_n, z_k = None, 0, s_n, s_k
    if op.role("zero"):
        packed = not blobs or ctx.graph.dtype(op.role("zero")) != DType.F32
        if packed and blobs:  # each column's begin with a byte
            z_n = -(-blocks * bits // 8) * 8 // bits
        held = N * z_n * bits // 8 if packed and blobs else count
        zero = elements(ctx, op, "zero", op.role("zero"), held, types if packed else {DType.F32})
        zero_type = int(DType.U8 if packed else DType.F32)
    params = {
        "K": K, "N": N, "bits": bits, "block": block, "w_n": by_row[0], "w_k": by_row[1],
        "s_k": s_k, "s_n": s_n, "z_k": z_k, "z_n": z_n, "zero_dtype": zero_type,
        "is_signed": int(spec.signed), "scale_dtype": scale_type,
    }  # fmt: skip
    zeros = 0 if zero is None else 1 if zero_type == DType.U8 else 2
    middle = 0.0 if not (blobs or spec.signed) else float(1 << (bits - 1))
    return (
        {"w": w, "scale": scale, "zero": zero},
        params,
        {"bits": bits, "block": block, "zeros": zeros, "scale_dtype": scale_type},
        {"zero": middle},
    )


OPS = {":gemm_nbits": gemm_nbits, "com.microsoft.GatherBlockQuantized": gather_blocks}
