"""Few rows of many keys on Hopper: which of the kernels that read these soonest. One query row of
each head of a group that shares keys (decoding) is taken as the rows of one head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate

from ...common.launch import clustered, known, parameters
from .. import problem
from ..fa3_sm90 import kernel as fa3
from . import group as decode_group
from . import simt as decode_simt
from . import stream as decode_stream

#: Up to so many keys tiles of tensor cores are best for the rows of heads that share them.
_SHORT_KEYS = 256
#: Nanoseconds of a key of a tile: of short heads, of longer ones; bytes that a block reads in one.
_KEY, _KEY_LONG, _BLOCK_BYTES = 6.4, 8.1, 50
#: Fewest keys of each of several blocks of threads; the longest heads whose prices these are where
#: threads may have them.
_LEAST_KEYS, _LONGEST = 64, 128
#: Clocks of several rows on tensor cores: beside those of multiplying, beside those of reading
#: where a block has all keys and where a cluster has; and bytes read in a clock.
_BEGINNING, _READING, _READING_PARTS, _BYTES = 4000, 4000, 7000, 20
#: The same of tensor cores that divide keys for another kernel to join: to begin, for each step as
#: far as they are not hidden, for each row, bytes read in a clock and by how much slower it is
#: where rows are no whole lines of memory.
_DIVIDING, _STEP, _STEPS, _ROW, _DIVIDED_BYTES, _RAGGED = 7700, 1225, 4, 9, 17.7, 1.15
#: The same of tiles of whole heads that do so: beside those of reading, for each step, bytes read
#: in a clock, from the L2 cache; and how many tiles do not fill the device, for how many keys that
#: is considered.
_SPREADING, _SPREAD_STEP, _SPREAD_BYTES, _CACHED_BYTES, _FEW_TILES, _MANY_KEYS = (
    10600,
    (608, 1168, 1104),
    20.3,
    35,
    2,
    1024,
)
#: Rows of heads that share keys up to which they are considered as one.
_MOST_SHARED = 32
#: By how much tensor cores must be better: the clocks are guesses.
_WORTH = 0.9


@dataclass(frozen=True)
class Reading:
    """What it takes to read the keys and values of one row of each head, in nanoseconds: to begin
    and end; beside reading; bytes that a multiprocessor's share of the memory gives in one; by how
    much slower that is where rows are no whole lines; the bytes of one block."""

    begun: float
    beside: float
    rate: float
    uneven: float
    block: float = 1e9

    def memory(self, size: float, row: int, mine: float = 0) -> float:
        """size: bytes of a multiprocessor's share; mine: of one block."""
        return self.beside + max(size / self.rate, mine / self.block) * (
            self.uneven if row % 256 else 1.0
        )


#: By the blocks of a cluster that divide a head's keys: of tensor cores, of threads.
_TILES = {
    1: Reading(1900, 900, 27.6, 1.15, 44),
    2: Reading(3500, 600, 21, 1.1),
    4: Reading(4200, 300, 25, 1.1),
    8: Reading(4500, 300, 25, 1.1),
}
_THREADS = {4: Reading(4600, 0, 19, 1.08, 60), 8: Reading(4650, 0, 19.3, 1.2, 34)}
#: As many blocks as fill the device: of short heads, of longer ones, of threads; nanoseconds more
#: where a block has keys of two heads.
_SPREAD_SHORT, _SPREAD_LONG, _SPREAD_THREADS, _TWO_HEADS = (
    Reading(5170, 0, 30, 1.0),
    Reading(5800, 0, 32.5, 1.15),
    Reading(5100, 0, 32.5, 1.07, 60),
    500,
)


@dataclass(frozen=True)
class Whole:
    """A block for each head, two of which lie beside each other: nanoseconds to begin and end;
    bytes in one of a multiprocessor's share of the memory, of a block whose neighbours are done, of
    a multiprocessor's share where others are idle."""

    begun: float
    share: float
    last: float
    partly: float

    def of(self, heads: int, sms: int, size: float) -> float:
        """Multiprocessors that have one more than others read it when these are done. size: bytes
        of a head.
        """
        each, rest = divmod(heads, sms)
        return self.begun + size * (
            each / self.share + (1 / min(self.last, self.partly * sms / rest) if rest else 0)
        )

    def paired(self, heads: int, sms: int, size: float) -> float:
        """The same of blocks that go from one head to the next: those beside each other are
        neighbours, and both have one more.
        """
        if heads <= 2 * sms:
            return self.begun + size / self.partly if heads == sms else self.of(heads, sms, size)
        each, rest = divmod(heads, 2 * sms)
        return self.begun + 2 * size * (
            each / self.share + (1 / min(self.last, self.partly * 2 * sms / rest) if rest else 0)
        )


#: Of tensor cores, of threads; by how much slower these, and those where heads are longer, are
#: where rows are no whole lines.
_WHOLE, _WHOLE_THREADS, _UNEVEN, _UNEVEN_LONG = (
    Whole(3300, 33.4, 54, 28),
    Whole(3300, 29.5, 58, 25),
    1.2,
    1.1,
)
#: Blocks of a cluster that divide the keys of a head: nanoseconds that they take to join what they
#: have, by how many of them lie beside each other.
_SHARING = {2: 1200, 3: 300}
#: Nanoseconds of a key and its value on their way to tensor cores where rows of short heads are no
#: whole sectors of memory; the same where blocks have equal shares.
_FETCHING, _FETCHING_SPREAD = 9, 10


def as_rows(request: Request) -> Request:
    """The same attention with the heads of a group as rows of one head, where heads have a single
    row that sees all keys; else the request itself.
    """
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


def _of_group(request: Request, p: Any, tile: Any, keys: int, row: int) -> float:
    heads, parts = (
        evaluate(decode_simt.count_of(request, tile.rows), {}),
        evaluate(decode_group.parts_of(request, p, tile), {}),
    )
    steps = min(_STEPS, -(-keys // (64 * parts)))
    rows = heads * min(tile.rows, evaluate(decode_simt.rows_of(request), {}))
    ragged = _RAGGED if row % 256 else 1.0
    i = parameters(request)
    tiles = -(-evaluate(decode_simt.rows_of(request), {}) // tile.rows)
    reading = (
        (1 + tiles)
        / 2
        * evaluate(D.mul(i["B"], i["KVH"]), {})
        * keys
        * row
        / (_DIVIDED_BYTES * request.sms)
        * ragged
    )
    return float(_DIVIDING + steps * _STEP + rows * _ROW + reading)


def _of_tile(request: Request, tile: Any, clocks: int, keys: int, row: int) -> float:
    blocks = evaluate(problem.blocks(request, tile.rows), {}) * tile.parts
    each = -(-blocks // clustered(request.sms, tile.parts))
    ragged = _RAGGED if row % 256 else 1.0
    i = parameters(request)
    # no other tile reads the same keys
    alone = known(i["H"]) == known(i["KVH"]) and evaluate(i["S"], {}) <= tile.rows
    reading = (_READING_PARTS if tile.parts > 1 else _READING) + each * -(
        -keys // tile.parts
    ) * row / (_BYTES if alone else _CACHED_BYTES) * ragged
    return float(max(_BEGINNING + clocks, reading))


def _of_spread(request: Request, p: Any, tile: Any, keys: int, row: int) -> float:
    i = parameters(request)
    each = keys * row / request.sms * (_RAGGED if row % 256 else 1.0)
    read, fetched = (
        evaluate(n, {}) * each
        for n in (D.mul(i["B"], i["KVH"]), problem.blocks(request, tile.rows))
    )
    steps = -(
        -keys
        * evaluate(problem.blocks(request, tile.rows), {})
        // (tile.keys * evaluate(fa3.blocks_of(request, tile), {}))
    )
    return float(
        _SPREADING
        + max(
            read / _SPREAD_BYTES,
            fetched / _CACHED_BYTES,
            steps * _SPREAD_STEP[(p.widest > 64) + (p.widest > 128)],
        )
    )


def spread(request: Request, few: list[tuple[Any, DimLike]]) -> list[tuple[Any, DimLike]]:
    """The tiles for few rows, where one of tensor cores is for the rows of heads that share keys a
    tile of whole heads, if that reads the keys once, too.
    """
    rows, i = as_rows(request), parameters(request)
    if (
        request.arch != 90
        or not all(fa3.copied(rows, o) for o in "qkv")
        or (rows is request and known(i["H"]) != known(i["KVH"]))
    ):
        return few
    tile = fa3.spread_tile(problem.problem(rows))
    return [
        (tile if tile is not None and isinstance(t, decode_group.TILE) else t, use)
        for t, use in few
    ]


def _of_threads(request: Request, p: Any, heads: int, keys: int, row: int) -> dict[Any, float]:
    """Prices of tiles of threads for one row of each of heads that share nothing. row: bytes of a
    key and its value.
    """
    price: dict[Any, float] = {
        decode_simt.TILE(1, 1): _WHOLE_THREADS.of(
            heads, request.sms, keys * row * (_UNEVEN if row % 256 else 1.0)
        )
    }
    tiles = [(decode_simt.TILE(1, n), of) for n, of in _THREADS.items() if keys >= n * _LEAST_KEYS]
    for tile, of in (*tiles, (decode_simt.TILE(1, 1, True), _SPREAD_THREADS)):
        parts = evaluate(decode_simt.parts_of(request, p, tile), {})
        if parts > 1:
            mine = -(-heads * parts // request.sms) * -(-keys // parts) * row
            price[tile] = of.begun + max(
                of.memory(heads * keys * row / request.sms, row), mine / of.block
            )
    return price


def _of_shares(
    request: Request, p: Any, rows: int, heads: int, keys: int, row: int
) -> dict[Any, float]:
    """Prices of tiles whose keys the blocks of a cluster divide, all of them on the device at once,
    a multiprocessor's beside each other. rows: of a head.
    """
    price: dict[Any, float] = {}
    short, whole = p.widest <= 64, row % 256 == 0
    for parts in (2, 4) if short and (p.head % 16 or p.head_v % 16) else (2,):
        if parts > request.caps.cluster:
            continue
        blocks = heads * parts
        # the last place of a multiprocessor may be one that no cluster finds
        beside = blocks // request.sms + 1
        # some multiprocessors would have all that find a place there
        uneven = 4 * blocks < 3 * beside * request.sms
        if (
            rows > 64
            or 2 * heads <= request.sms
            or beside not in _SHARING
            or uneven
            or keys < parts * _LEAST_KEYS
            or not (short or whole or beside > 2)
        ):
            continue
        if (tile := fa3.divided_tile(p, beside, parts)) is not None:
            price[tile] = _SHARING[beside] + _WHOLE.of(
                blocks, request.sms, keys * row / parts * (1.0 if short or whole else _UNEVEN_LONG)
            )
    return price


def _most(heads: int, sms: int) -> int:
    """Heads of the multiprocessor that has the most of them, two beside each other."""
    return -(-heads // sms) if heads <= 2 * sms else 2 * -(-heads // (2 * sms))


def _decoding(request: Request, rows: Request) -> list[tuple[Any, DimLike]]:
    """The tile that has one row of each head soonest. rows: the request with the heads that share
    keys as rows.
    """
    i, p, shared = parameters(rows), problem.problem(rows), rows is not request
    heads, keys = evaluate(D.mul(i["B"], i["KVH"]), {}), evaluate(i["T"], {})
    row: int = (p.head + p.head_v) * request.dtype.size
    found = [(tile, evaluate(clocks, {})) for tile, clocks in fa3.priced(rows, p)]
    if found and shared and keys <= _SHORT_KEYS:
        return [(min(found, key=lambda one: one[1])[0], 1)]
    price: dict[Any, float] = {}
    size, short = heads * keys * row / request.sms, p.widest <= 64
    paired = fa3.paired_tile(p, keys) if keys else None
    for tile in (t for t, _ in found if t.plan == "ALONE"):
        blocks, of = evaluate(problem.blocks(rows, tile.rows), {}) * tile.parts, _TILES[tile.parts]
        if tile.parts == 1 and blocks >= request.sms and paired is not None:
            price[paired] = _WHOLE.paired(
                heads, request.sms, keys * row * (1.0 if short or row % 256 == 0 else _UNEVEN_LONG)
            )
            if short:
                price[paired] = max(
                    price[paired], _WHOLE.begun + _most(heads, request.sms) * keys * _KEY
                )
            continue
        each, steps = (
            -(-blocks // clustered(request.sms, tile.parts)),
            -(-keys // (tile.keys * tile.parts)),
        )
        multiplying = (
            each * steps * tile.keys * (_KEY if short else max(_KEY_LONG, row / _BLOCK_BYTES))
        )
        price[tile] = each * of.begun + max(
            multiplying, of.memory(size, row, -(-keys // tile.parts) * row)
        )
    if price:
        price |= _of_shares(request, p, evaluate(i["S"], {}), heads, keys, row)
    if price and (shares := fa3.spread_tile(p)) is not None:
        of = _SPREAD_SHORT if short else _SPREAD_LONG
        two = (
            evaluate(D.mod(fa3.blocks_of(rows, shares), problem.blocks(rows, shares.rows)), {}) != 0
        )
        price[shares] = of.begun + of.memory(size, row) + (_TWO_HEADS if two else 0)
    if short and (p.head % 16 or p.head_v % 16):
        for tile in price:
            places = clustered(request.sms, tile.parts) if tile.blocks == 1 else request.sms
            most = _most(heads, request.sms) if tile == paired else -(-heads * tile.parts // places)
            mine = heads * keys / request.sms if tile.spread else most * keys / tile.parts
            of, each_key = (
                (_SPREAD_SHORT, _FETCHING_SPREAD)
                if tile.spread
                else (_TILES[tile.parts], _FETCHING)
            )
            price[tile] = max(price[tile], of.begun + mine * each_key)
    if price and not shared:
        price |= _of_threads(request, p, heads, keys, row)
    if price:
        price |= decode_stream.prices(rows, p, heads, keys)
    return [(kernel_choice.cheapest(price), 1)] if price else []


def tiles(request: Request, p: Any, few: list[tuple[Any, DimLike]]) -> list[tuple[Any, DimLike]]:
    """The tile that reads the keys soonest, or none where that is the one for few rows or, of rows
    that are not few, one that has no other's keys to wait for, or where sizes are not known."""
    rows = as_rows(request)
    i = parameters(rows)
    exact = [known(i[n]) for n in ("B", "S", "T")]
    if (
        request.arch != 90
        or request.dtype == DType.F32
        or any(n is None for n in exact)
        or not all(fa3.copied(rows, o) for o in "qkv")
    ):
        return []
    keys = int(exact[2] or 0)
    alone = (
        exact[1] == 1
        and known(i["H"]) == known(i["KVH"])
        and not p.mask
        and not i["causal"]
        and p.widest <= _LONGEST
    )
    if rows is not request or alone:
        return _decoding(request, rows)
    if few or keys < _MANY_KEYS:
        return []
    merged = problem.problem(rows)
    row = (p.head + p.head_v) * request.dtype.size
    price: dict[Any, tuple[float, int]] = {
        tile: (_of_tile(rows, tile, clocks, keys, row), clocks)
        for tile, clocks in ((t, evaluate(c, {})) for t, c in fa3.priced(rows, merged))
    }
    usual = min(price.values())[0] if price else 0.0
    divided = fa3.spread_tile(merged)
    if (
        divided is not None
        and evaluate(problem.blocks(rows, divided.rows), {}) * _FEW_TILES <= request.sms
    ):
        price[divided] = _of_spread(rows, merged, divided, keys, row), 0
    if (
        decode_group.fits(request, p)
        and known(i["H"]) != known(i["KVH"])
        and evaluate(decode_simt.rows_of(request), {}) <= _MOST_SHARED
    ):
        price[decode_group.TILE()] = _of_group(request, p, decode_group.TILE(), keys, row), 0
    if not price:
        return []
    best = min(price, key=price.__getitem__)
    return [(best, 1)] if price[best][0] < _WORTH * usual else []
