"""Decoding with heads that share keys: one query row of each head of a group, taken as the rows of one head, has tiles of tensor cores where these cost less than
threads that read the keys for a few rows at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Request
from tracea_onnx.cuda_source import clustered, known, parameters
from tracea_onnx.dims import DimLike, evaluate

_attention = registry.module("kernels", "cuda").part("_attention")
_few = registry.module("kernels", "cuda").part("_attention_few")
_group = registry.module("kernels", "cuda").part("_attention_group")
_hopper = registry.module("kernels", "cuda").part("_attention_hopper")

#: Fewer rows that read the same keys are cheap for threads.
_LEAST_ROWS = 4
#: Clocks that few rows take beside those of reading: where a block has all keys, where a cluster has, where another kernel joins; and bytes read in a clock.
_ALONE, _CLUSTER, _SPREAD, _FEW_BYTES = 3500, 11400, 15800, 22
#: The same of tensor cores: beside those of multiplying, beside those of reading where a block has all keys and where a cluster has; and bytes read in a clock.
_BEGINNING, _READING, _READING_PARTS, _BYTES = 4000, 4000, 7000, 20
#: The same of tensor cores that divide keys for another kernel to join: to begin, for each step as far as they are not hidden, for each row, bytes read in a clock
#: and by how much slower it is where rows are no whole lines of memory.
_DIVIDING, _STEP, _STEPS, _ROW, _DIVIDED_BYTES, _RAGGED = 7700, 1225, 4, 9, 17.7, 1.15
#: By how much tensor cores must be better: the clocks are guesses.
_WORTH = 0.9


def as_rows(request: Request) -> Request:
    """The same attention with the heads of a group as rows of one head, where heads have a single row that sees all keys; else the request itself."""
    i = parameters(request)
    heads, shared, keys, past = (known(i[n]) for n in ("H", "KVH", "T", "past"))
    if known(i["S"]) != 1 or not heads or not shared or heads == shared:
        return request
    if i["causal"] and (keys is None or past is None or past + 1 < keys):
        return request
    group = heads // shared
    ints: dict[str, DimLike] = {"H": shared, "S": group, "causal": 0}
    for name, row, head in (("q", "q_s", "q_h"), ("y", "y_s", "y_h"), ("mask", "m_q", "m_h")):
        if name in request.operands:
            ints |= {row: i[head], head: D.mul(group, i[head])}
    return replace(request, ints=dict(request.ints) | ints)


def _of_few(request: Request, p: Any, tile: Any, keys: int, row: int) -> float:
    """row: bytes of a key and its value."""
    count, parts = evaluate(_few.count_of(request, tile.rows), {}), evaluate(_few.parts_of(request, p, tile), {})
    each = -(-count * parts // request.sms)  # blocks of a multiprocessor
    return (_SPREAD if tile.spread else _CLUSTER if parts > 1 else _ALONE) + each * -(-keys // parts) * row / _FEW_BYTES


def _of_group(request: Request, p: Any, tile: Any, keys: int, row: int) -> float:
    heads, parts = evaluate(_few.count_of(request, tile.rows), {}), evaluate(_group.parts_of(request, p, tile), {})
    steps = min(_STEPS, -(-keys // (64 * parts)))
    rows = heads * min(tile.rows, evaluate(_few.rows_of(request), {}))
    ragged = _RAGGED if row % 256 else 1.0
    i = parameters(request)
    reading = evaluate(D.mul(i["B"], i["KVH"]), {}) * keys * row / (_DIVIDED_BYTES * request.sms) * ragged
    return float(_DIVIDING + steps * _STEP + rows * _ROW + reading)


def _of_tile(request: Request, tile: Any, clocks: int, keys: int, row: int) -> float:
    blocks = evaluate(_attention.blocks(request, tile.rows), {}) * tile.parts
    each = -(-blocks // clustered(request.sms, tile.parts))
    reading = (_READING_PARTS if tile.parts > 1 else _READING) + each * -(-keys // tile.parts) * row / _BYTES
    return float(max(_BEGINNING + clocks, reading))


def tiles(request: Request, p: Any, few: list[tuple[Any, DimLike]]) -> list[tuple[Any, DimLike]]:
    """The tile of tensor cores for `as_rows`, or none where the tile for few rows is as good or sizes are not known."""
    rows = as_rows(request)
    i = parameters(rows)
    exact = [known(i[n]) for n in ("B", "S", "T")]
    if rows is request or request.arch != 90 or any(n is None for n in exact) or not all(_hopper.copied(rows, o) for o in "qkv"):
        return []
    _, group, keys = (int(n or 0) for n in exact)
    if group < _LEAST_ROWS or len(few) != 1:
        return []
    merged = _attention.problem(rows)
    row = (p.head + p.head_v) * request.dtype.size
    found = [(tile, evaluate(clocks, {})) for tile, clocks in _hopper.priced(rows, merged)]
    price = {tile: (_of_tile(rows, tile, clocks, keys, row), clocks) for tile, clocks in found}
    best = min(price, key=price.__getitem__)
    other = few[0][0]
    least = _of_group(request, p, other, keys, row) if isinstance(other, _group.TILE) else _WORTH * _of_few(request, p, other, keys, row)
    return [(best, 1)] if price[best][0] < least else []
