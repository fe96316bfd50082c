"""Few rows of many keys on Hopper: which of the kernels that read these soonest. One query row of each head of a group that shares keys (decoding) is taken as the
rows of one head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Request
from tracea_onnx.cuda_source import clustered, known, parameters
from tracea_onnx.dims import DimLike, evaluate
from tracea_onnx.ops import DType

_attention = registry.module("kernels", "cuda").part("_attention")
_few = registry.module("kernels", "cuda").part("_attention_few")
_group = registry.module("kernels", "cuda").part("_attention_group")
_hopper = registry.module("kernels", "cuda").part("_attention_hopper")

#: Fewer rows that read the same keys are cheap for threads.
_LEAST_ROWS = 4
#: Clocks that few rows take beside those of reading: where a block has all keys, where a cluster has, where another kernel joins; and bytes read in a clock.
_ALONE, _CLUSTER, _SPREAD, _FEW_BYTES = 3500, 11400, 15800, 22
#: Bytes read in a clock where one block has all keys of several rows.
_SEVERAL_BYTES = 10
#: Up to so many keys tiles of tensor cores are best for the rows of heads that share them.
_SHORT_KEYS = 256
#: The same of tensor cores: beside those of multiplying, beside those of reading where a block has all keys and where a cluster has; and bytes read in a clock.
_BEGINNING, _READING, _READING_PARTS, _BYTES = 4000, 4000, 7000, 20
#: The same of tensor cores that divide keys for another kernel to join: to begin, for each step as far as they are not hidden, for each row, bytes read in a clock
#: and by how much slower it is where rows are no whole lines of memory.
_DIVIDING, _STEP, _STEPS, _ROW, _DIVIDED_BYTES, _RAGGED = 7700, 1225, 4, 9, 17.7, 1.15
#: The same of tiles of whole heads that do so: beside those of reading, for each step, bytes read in a clock, from the L2 cache; and how many tiles do not fill
#: the device, for how many keys that is considered.
_SPREADING, _SPREAD_STEP, _SPREAD_BYTES, _CACHED_BYTES, _FEW_TILES, _MANY_KEYS = 10600, (608, 1168, 1104), 20.3, 35, 2, 1024
#: Rows of heads that share keys up to which they are considered as one.
_MOST_SHARED = 32
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
    rate = _SEVERAL_BYTES if tile.rows >= _LEAST_ROWS and parts == 1 and not tile.spread else _FEW_BYTES
    return (_SPREAD if tile.spread else _CLUSTER if parts > 1 else _ALONE) + each * -(-keys // parts) * row / rate


def _of_group(request: Request, p: Any, tile: Any, keys: int, row: int) -> float:
    heads, parts = evaluate(_few.count_of(request, tile.rows), {}), evaluate(_group.parts_of(request, p, tile), {})
    steps = min(_STEPS, -(-keys // (64 * parts)))
    rows = heads * min(tile.rows, evaluate(_few.rows_of(request), {}))
    ragged = _RAGGED if row % 256 else 1.0
    i = parameters(request)
    tiles = -(-evaluate(_few.rows_of(request), {}) // tile.rows)
    reading = (1 + tiles) / 2 * evaluate(D.mul(i["B"], i["KVH"]), {}) * keys * row / (_DIVIDED_BYTES * request.sms) * ragged
    return float(_DIVIDING + steps * _STEP + rows * _ROW + reading)


def _of_tile(request: Request, tile: Any, clocks: int, keys: int, row: int) -> float:
    blocks = evaluate(_attention.blocks(request, tile.rows), {}) * tile.parts
    each = -(-blocks // clustered(request.sms, tile.parts))
    ragged = _RAGGED if row % 256 else 1.0
    i = parameters(request)
    alone = known(i["H"]) == known(i["KVH"]) and evaluate(i["S"], {}) <= tile.rows  # no other tile reads the same keys
    reading = (_READING_PARTS if tile.parts > 1 else _READING) + each * -(-keys // tile.parts) * row / (_BYTES if alone else _CACHED_BYTES) * ragged
    return float(max(_BEGINNING + clocks, reading))


def _of_spread(request: Request, p: Any, tile: Any, keys: int, row: int) -> float:
    i = parameters(request)
    each = keys * row / request.sms * (_RAGGED if row % 256 else 1.0)
    read, fetched = (evaluate(n, {}) * each for n in (D.mul(i["B"], i["KVH"]), _attention.blocks(request, tile.rows)))
    steps = -(-keys // (tile.keys * evaluate(_hopper.parts_of(request, tile), {})))
    return float(_SPREADING + max(read / _SPREAD_BYTES, fetched / _CACHED_BYTES, steps * _SPREAD_STEP[(p.widest > 64) + (p.widest > 128)]))


def spread(request: Request, few: list[tuple[Any, DimLike]]) -> list[tuple[Any, DimLike]]:
    """The tiles for few rows, where one of tensor cores is for the rows of heads that share keys a tile of whole heads, if that reads the keys once, too."""
    rows, i = as_rows(request), parameters(request)
    if request.arch != 90 or not all(_hopper.copied(rows, o) for o in "qkv") or (rows is request and known(i["H"]) != known(i["KVH"])):
        return few
    tile = _hopper.spread_tile(_attention.problem(rows))
    return [(tile if tile is not None and isinstance(t, _group.TILE) else t, use) for t, use in few]


def tiles(request: Request, p: Any, few: list[tuple[Any, DimLike]]) -> list[tuple[Any, DimLike]]:
    """The tile that reads the keys soonest, or none where that is the one for few rows or, of rows that are not few, one that has no other's keys to wait for, or
    where sizes are not known."""
    rows = as_rows(request)
    i = parameters(rows)
    exact = [known(i[n]) for n in ("B", "S", "T")]
    if request.arch != 90 or request.dtype == DType.F32 or any(n is None for n in exact) or not all(_hopper.copied(rows, o) for o in "qkv"):
        return []
    _, count, keys = (int(n or 0) for n in exact)
    if (count < _LEAST_ROWS or len(few) != 1) if rows is not request else (len(few) > 0 or keys < _MANY_KEYS):
        return []
    merged = _attention.problem(rows)
    row = (p.head + p.head_v) * request.dtype.size
    found = [(tile, evaluate(clocks, {})) for tile, clocks in _hopper.priced(rows, merged)]
    if found and rows is not request and keys <= _SHORT_KEYS:
        return [(min(found, key=lambda one: one[1])[0], 1)]
    price: dict[Any, tuple[float, int]] = {tile: (_of_tile(rows, tile, clocks, keys, row), clocks) for tile, clocks in found}
    usual = min(price.values())[0] if price else 0.0
    divided = _hopper.spread_tile(merged)
    if divided is not None and evaluate(_attention.blocks(rows, divided.rows), {}) * _FEW_TILES <= request.sms:
        price[divided] = _of_spread(rows, merged, divided, keys, row), 0
    if rows is request and _group.fits(request, p) and known(i["H"]) != known(i["KVH"]) and evaluate(_few.rows_of(request), {}) <= _MOST_SHARED:
        price[_group.TILE()] = _of_group(request, p, _group.TILE(), keys, row), 0
    if not price:
        return []
    best = min(price, key=price.__getitem__)
    if rows is request:
        return [(best, 1)] if price[best][0] < _WORTH * usual else []
    other = few[0][0]
    if other in price:
        return [(best, 1)]
    least = _of_group(request, p, other, keys, row) if isinstance(other, _group.TILE) else _WORTH * _of_few(request, p, other, keys, row)
    return [(best, 1)] if price[best][0] < least else []
