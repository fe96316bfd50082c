"""Cases of LSTM, GRU and RNN: steps, rows of a batch, directions and units around what a warp and a
block take at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.support.cuda.case import Case, plain, stored, value
from tests.support.recurrent import Layer
from tracea_onnx.ir.abi import DType

_FLOATS = (DType.F32, DType.F16, DType.BF16)
_SIZES = (
    (1, 1, 1, 1), (5, 1, 2, 33), (9, 3, 1, 64), (40, 2, 2, 129), (3, 17, 1, 40), (20, 1, 1, 512),
    (6, 9, 2, 1024), (300, 1, 1, 256), (0, 2, 1, 8),
)  # fmt: skip


def recurrent(rng: np.random.Generator) -> Iterator[Case]:
    kinds = (("LSTM", 0), ("GRU", 0), ("GRU", 1), ("RNN", 0))
    for dtype, (kind, before), sizes in itertools.product(_FLOATS, kinds, _SIZES):
        if dtype != DType.F32 and sizes[3] not in (33, 129, 1024):
            continue
        layer = Layer(kind, sizes, before=before, reverse=sizes[0] % 2)
        kept = {k: stored(getattr(layer, k), dtype) for k in ("x", "r", "bias", "h")}
        for k, v in kept.items():  # what float64 computes with
            setattr(layer, k, value(v, dtype).astype(np.float32))
        sides, units = sizes[2:]
        packed = stored(layer.rows_of_units(-(-units // 8) * 8), dtype)
        y, last = layer.want()
        # hidden states have the type between steps: what bf16 rounds is eight times fp16's
        bound = {DType.F32: 2e-5, DType.F16: 2e-3, DType.BF16: 1.6e-2}[dtype]
        packing = {"D": sides, "H": units, "K": units, "G": layer.gates, "first": layer.gates}
        name = f"{kind} {before} {'x'.join(map(str, sizes))}"
        yield Case(
            f"pack {name}",
            "pack_recurrent",
            dtype,
            packing,
            {"r": kept["r"]},
            {"packed": plain(dtype, value(packed, dtype), None)},
        )
        yield Case(
            name,
            "recurrent",
            dtype,
            layer.ints(),
            {**layer.operands(), **kept, "r": packed},
            {"y": plain(dtype, y, bound), "y_h": plain(dtype, last, bound)},
        )


FAMILIES = {"recurrent": recurrent}
