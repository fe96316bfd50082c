"""Cases of integers of a few bits with a scale for each block, dequantised: exactly so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from tests.support.cuda.case import Array, Case, plain, stored, value
from tests.support.nbits import Weights
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

#: Sizes, the axis that rows are picked along, and the one of blocks; elements of a block.
SHAPES = (
    ((7, 64), 0, 1, 16), ((5, 131), 0, 1, 32), ((3, 600), 0, 1, 128), ((1, 1), 0, 1, 16),
    ((33, 5), 0, 0, 16), ((3, 40, 6), 2, 1, 32), ((2, 9, 34), 1, 2, 16), ((4, 0), 0, 1, 16),
)  # fmt: skip


def blocks(rng: np.random.Generator) -> Iterator[Case]:
    kinds = itertools.cycle((DType.F32, DType.F16, DType.BF16))
    for number, ((shape, along, across, block), bits, signed, zeros) in enumerate(
        itertools.product(SHAPES, (2, 4, 8), (False, True), ("", "row", "through"))
    ):
        yield _case(rng, shape, along, across, block, bits, signed, zeros, next(kinds), number % 3)


def _case(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    along: int,
    across: int,
    block: int,
    bits: int,
    signed: bool,
    zeros: str,
    dtype: DType,
    indices: int,
) -> Case:
    half, count = (1 << (bits - 1)) * signed, math.prod(shape)
    stored_values = rng.integers(0, 1 << bits, shape).astype(np.uint8)
    q = (stored_values ^ half).astype(np.int64) - half
    number = -(-shape[across] // block)
    of_scales = (*shape[:across], number, *shape[across + 1 :])
    scale = stored(rng.uniform(-1, 1, of_scales), dtype)
    low = rng.integers(0, 1 << bits, of_scales).astype(np.uint8)
    middle = (1 << (bits - 1)) - half if not zeros else 0
    z = (low ^ half).astype(np.int64) - half if zeros else np.full(of_scales, middle)
    wide = [np.repeat(a, block, across).take(range(shape[across]), across) for a in (z, scale)]
    numbers = (q - wide[0]).astype(np.float32) * value(wide[1], dtype).astype(np.float32)
    outer, n, inner = math.prod(shape[:along]), shape[along], math.prod(shape[along + 1 :])
    within = math.prod(shape[across + 1 :])
    row = number * within if zeros == "row" else 8 // bits
    ints: dict[str, DimLike] = {
        "outer": outer, "n": n, "inner": inner, "count": n, "idx_dtype": int(DType.I64),
        "bits": bits, "is_signed": int(signed), "middle": middle + half, "block": block,
        "span": shape[across], "within": within, "zero_row": row,
        "scale_dtype": int(dtype), "y_dtype": int(dtype),
    }  # fmt: skip
    operands: dict[str, Array] = {
        "x": Weights.together(stored_values.reshape(1, count), bits)[0], "scale": scale,
    }  # fmt: skip
    if zeros:
        lines = low.reshape(-1, row) if zeros == "row" and low.size else low.reshape(1, -1)
        operands["zero"] = Weights.together(lines, bits).reshape(-1)
    want = numbers.reshape(outer, n, inner)
    if indices:
        kind, out = (np.int32, DType.I32) if indices == 1 else (np.int64, DType.I64)
        picked = [*rng.integers(-n, n, 5).tolist(), n, -n - 1]
        idx = np.array(picked, kind)
        ints |= {"count": len(idx), "idx_dtype": int(out)}
        operands["idx"] = idx
        want = want[:, idx % n] * np.array([-n <= k < n for k in picked], np.float32)[:, None]
    made = {"y": plain(dtype, value(stored(want, dtype), dtype), None)}
    name = (
        f"dequantise {shape} {along}{across} {bits} bits in {block} {signed} {zeros} {dtype.name}"
    )
    return Case(name, "dequantise", DType.F32, ints, operands, made)


FAMILIES = {"blocks": blocks}
