"""Products by weights of 2, 4 or 8 bits, which stay packed."""

from __future__ import annotations

import math

from tracea_onnx.compiler.lower.context import Lowering, matrix_rows
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.blocks import elements
from tracea_onnx.compiler.lower.ops.gemm import is_row, launched, with_bias
from tracea_onnx.compiler.lower.value import Dims, Unsupported
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.match.nbits import TYPES
from tracea_onnx.match.spec_table import GemmNbitsSpec
from tracea_onnx.plan.builder import Ref


def gemm_nbits(ctx: Lowering, op: Op) -> None:
    """y = epilogue(x (w - zero) scale + b)."""
    spec, roles = GemmNbitsSpec.of(op.attrs), op.by_role
    ctx.available("gemm_nbits", f"a product by weights of {spec.bits} bits")
    x, b = ctx.value(roles["x"]), ctx.optional(roles.get("b"))
    ctx.require(x, "a matrix product")
    if x.rank < 2:
        raise Unsupported(f"the product '{op.label}' of a tensor of rank {x.rank}")
    K, N = spec.K, spec.N
    ctx.same(x.shape[-1], K, f"the inner dims of '{op.label}'")
    operands, ints, floats = _weights(ctx, op, spec)
    operands["x"], ints["ldx"] = matrix_rows(ctx, x)
    ints |= {"M": D.product(x.shape[:-1]), "N": N, "K": K, "ldy": N}
    expr, extras = spec.expr, [ctx.value(e) for e in op.extras]
    if b is not None and is_row(b, 1.0, N):
        operands["bias"] = ctx.packed("pack_bias", {"b": ctx.plain(b)}, {"OC": N}, dtype=b.dtype)
    elif b is not None:
        expr, extras = with_bias(expr, extras, b, 1.0)
    shape: Dims = (*x.shape[:-1], N)
    launched(ctx, op, x.dtype, shape, operands, ints, floats, expr, extras, "gemm_nbits")


def _weights(
    ctx: Lowering, op: Op, spec: GemmNbitsSpec
) -> tuple[dict[str, Ref | None], dict[str, DimLike], dict[str, float]]:
    """Operands, integers and floats of the launch that are of the weights."""
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
    made = ctx.packed("pack_gemm_nbits", {"w": w, "scale": scale, "zero": zero}, params)
    zeros = 0 if zero is None else 1 if zero_type == DType.U8 else 2
    middle = 0.0 if not (blobs or spec.signed) else float(1 << (bits - 1))
    return (
        {"w": made},
        {"bits": bits, "block": block, "zeros": zeros, "scale_dtype": scale_type},
        {"zero": middle},
    )


OPS = {":gemm_nbits": gemm_nbits}
