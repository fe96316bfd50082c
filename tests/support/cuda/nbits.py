"""Weights of a few bits as the CUDA kernels read them (`gemm/nbits/layout.cuh`), by numpy."""

from __future__ import annotations

import numpy as np

from tests.support.cuda.case import Array, stored
from tests.support.nbits import Weights
from tracea_onnx.ir.abi import DType


def _tiled(values: Array, w: Weights) -> Array:
    """Of [n, blocks] values: [tiles, blocks, 8, 2] of columns g and g + 8."""
    rows = np.pad(values, ((0, -w.n % 16), (0, 0)))
    return np.ascontiguousarray(rows.reshape(-1, 2, 8, values.shape[1]).transpose(0, 3, 2, 1))


def packing(w: Weights, scale: DType) -> tuple[dict[str, int], dict[str, Array]]:
    """Parameters and operands of the packing of blobs as MatMulNBits has them."""
    kind = 0 if w.zeros is None else DType.F32 if w.zeros.dtype == np.float32 else DType.U8
    pitch = w.blocks if kind == DType.F32 else -(-w.blocks * w.bits // 8) * 8 // w.bits
    ints = {
        "K": w.k, "N": w.n, "bits": w.bits, "block": w.block, "zero_dtype": int(kind),
        "w_n": w.blocks * w.block, "w_k": 1, "s_n": w.blocks, "s_k": 1, "z_n": pitch, "z_k": 1,
        "scale_dtype": int(scale),
    }  # fmt: skip
    operands = {"w": w.blobs, "scale": stored(w.scales, scale)}
    return ints, operands if w.zeros is None else operands | {"zero": w.zeros}


def packed(w: Weights, scale: DType) -> Array:
    """The bytes: pieces, scales, zeros."""
    depth, steps = 256 // w.bits, 16 // w.bits
    step, t, e = np.meshgrid(*map(np.arange, (steps, 4, 4)), indexing="ij")
    short = w.block == 16 and w.block < w.k
    term = 16 * step + 4 * t + e if short else 32 * (step // 2) + 8 * t + 4 * (step % 2) + e
    values = np.where(np.arange(w.values.shape[1]) < w.k, w.values, 0)[:, : w.k].astype(np.uint32)
    values = np.pad(values, ((0, -w.n % 16), (0, -w.k % depth)))
    tiles, pieces = len(values) // 16, values.shape[1] // depth
    # [tile, r, g, piece, step, t, e]
    lanes = values.reshape(tiles, 2, 8, pieces, depth)[..., term]
    half = steps // 2
    bit = w.bits * (step % half * 2 + e // 2) + 16 * (e % 2)
    words = np.zeros((tiles, pieces, 8, 4, 4), np.uint32)
    for s in range(steps):
        for r in range(2):
            shifted = lanes[:, r, :, :, s] << bit[s].astype(np.uint32)
            word = np.bitwise_or.reduce(shifted, axis=-1)  # [tile, g, piece, t]
            words[..., s // half * 2 + r] |= word.transpose(0, 2, 1, 3)
    parts = [words, stored(_tiled(w.scales, w), scale)]
    if w.zeros is not None:
        parts.append(_tiled(w.zero_values, w))
    return np.concatenate([np.frombuffer(p.tobytes(), np.uint8) for p in parts])
