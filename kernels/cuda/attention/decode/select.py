"""Choice of the kernel for attention of few query rows. Prices are nanoseconds where each head has
one row (decoding, bound by memory), and clocks for several rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate
from tracea_onnx.support.data_classes import dataclass

from ...common.launch import known, parameters, sms_of_clusters
from ...cost.fitted import fitted, groups, table
from .. import problem
from ..fa3_sm90 import config as fa3
from ..fa3_sm90.config import Fa3Config
from ..problem import Problem
from . import config as decode
from .config import DecodeConfig

Chosen = list[tuple[Any, DimLike]]

#: Up to so many keys prefill kernels are best for the rows of heads that share them.
_SHORT_KEYS = 256
#: Fewest keys of each of several CTAs; the longest heads where simt is priced; rows of heads that
#: share keys up to which mma is; from how many keys on several rows may be split-KV.
_LEAST_KEYS, _LONGEST, _MOST_SHARED, _MANY_KEYS = 64, 128, 32, 1024
#: By how much split-KV must be better for several rows: the clocks are guesses.
(_WORTH,) = fitted("attention.decode.select", "worth")
#: Nanoseconds of a key of a tile: of short heads, of longer ones; bytes that a CTA reads in one.
_KEY, _KEY_LONG, _CTA_BYTES = fitted("attention.decode.select", "key key_long cta_bytes")
#: Nanoseconds of a key and its value on their way to tensor cores where rows of short heads are no
#: whole sectors of memory: without and with split-KV.
_FETCHING, _FETCHING_SPLIT = fitted("attention.decode.select", "fetching fetching_split")


@dataclass(frozen=True)
class Reading:
    """Nanoseconds of reading the keys and values of one row of each head: to begin and end (begun);
    besides reading (beside); bytes of an SM's share of memory in one (rate), by how much slower
    that is where rows are no whole lines (uneven), bytes of one CTA (cta).
    """

    begun: float
    beside: float
    rate: float
    uneven: float
    cta: float = 1e9

    def memory(self, size: float, row: int, mine: float = 0) -> float:
        """size: bytes of an SM's share; row: of a key and its value; mine: of one CTA."""
        uneven = self.uneven if row % 256 else 1.0
        return self.beside + max(size / self.rate, mine / self.cta) * uneven


#: Of fa3 and of simt, by the CTAs of a cluster; split-KV of short heads, of longer ones, of simt;
#: nanoseconds more where a CTA has keys of two heads.
_FA3 = {k: Reading(**v) for k, v in table("attention.decode.select", "fa3").items()}
_SIMT = {k: Reading(**v) for k, v in table("attention.decode.select", "simt").items()}
_SPLIT, _SPLIT_LONG, _SPLIT_SIMT = (
    Reading(**reading)
    for reading in groups("attention.decode.select", "split split_long split_simt")
)
(_TWO_HEADS,) = fitted("attention.decode.select", "two_heads")


@dataclass(frozen=True)
class Whole:
    """A CTA for each head, two on an SM: nanoseconds to begin and end; bytes in one of an SM's
    share of memory, of a CTA whose neighbours are done, of an SM's share where others are idle.
    """

    begun: float
    share: float
    last: float
    partly: float

    def of(self, heads: int, sms: int, size: float, each: int = 1) -> float:
        """size: bytes of a head. SMs that have `each` more than others read them when these are
        done.
        """
        full, rest = divmod(heads, each * sms)
        tail = 1 / min(self.last, self.partly * each * sms / rest) if rest else 0
        return self.begun + each * size * (full / self.share + tail)

    def paired(self, heads: int, sms: int, size: float) -> float:
        """The same of CTAs that go from one head to the next: those of an SM are neighbours, and
        both have one more.
        """
        if heads == sms:
            return self.begun + size / self.partly
        return self.of(heads, sms, size, 1 if heads <= 2 * sms else 2)


#: Of fa3, of simt; by how much slower simt, and fa3 where heads are longer, are where rows are no
#: whole lines.
_WHOLE, _WHOLE_SIMT = (
    Whole(**whole) for whole in groups("attention.decode.select", "whole whole_simt")
)
_UNEVEN, _UNEVEN_LONG = fitted("attention.decode.select", "uneven uneven_long")

#: Clocks of several rows by fa3: besides multiplying, besides reading without and with a cluster;
#: bytes read in one from memory and from the L2 cache; by how much slower rows that are no whole
#: lines are. Of its split-KV: to begin, for each step of heads up to 64, 128 and 256, bytes read;
#: how many tiles fill the device. Of mma: to begin, for a step as far as it is not hidden, for a
#: row, bytes read.
_BEGINNING, _READING, _READING_CLUSTER, _BYTES, _CACHED_BYTES, _RAGGED = fitted(
    "attention.decode.select", "beginning reading reading_cluster bytes cached_bytes ragged"
)
_SPLITTING, _SPLIT_BYTES = fitted("attention.decode.select", "splitting split_bytes")
_SPLIT_STEP: list[float] = groups("attention.decode.select", "split_step")[0]
_FEW_TILES = 2
_MMA, _STEP, _STEPS, _ROW, _MMA_BYTES = fitted(
    "attention.decode.select", "mma step steps row mma_bytes"
)

#: stream: warps of an SM that registers leave room for, by the sets of keys of each: up to 8 rows
#: of heads up to 64 elements, of longer ones; the same of more rows.
_STREAM_WARPS = (({1: 20, 2: 14}, {1: 12, 2: 8}), ({1: 16, 2: 12}, {1: 8, 2: 0}))
#: The most CTAs of an SM, on average, and of its places the fewest and the most that are taken,
#: without and with clusters of more than two: with more, some find no place beside the others.
_MOST_CTAS, _FEWEST_TAKEN, _TAKEN, _TAKEN_CLUSTERS = fitted(
    "attention.decode.select", "most_ctas fewest_taken taken taken_clusters"
)
#: Nanoseconds to begin and end, for each CTA of a cluster, for each element of the results of a
#: head; bytes that the memory gives in one; the fewest heads that these are known of.
_BEGUN, _JOINING, _ELEMENT, _STREAM_BYTES = fitted(
    "attention.decode.select", "begun joining element stream_bytes"
)
_FEWEST = 48
#: By how much slower that is for rows of no whole sectors, of no whole lines, where the keys of one
#: head are contiguous (other kernels are faster there), for each share of the places that is not
#: taken up to this one; the same without a cluster, and by sets and warps.
_NO_SECTORS, _NO_LINES, _CONTIGUOUS, _LEFT, _FILLED, _ALONE = fitted(
    "attention.decode.select", "no_sectors no_lines contiguous left filled alone"
)
_SETS_AND_WARPS = dict(
    zip(
        ((2, 2), (2, 4)),
        fitted("attention.decode.select", "two_sets_two_warps two_sets_four_warps"),
        strict=True,
    )
)


def _number(d: DimLike) -> int:
    return int(evaluate(d, {}))


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


def configs(request: Request, p: Problem) -> tuple[Chosen, bool]:
    """Decoding configurations, each with whether it is for the sizes of a run, and whether there is
    nothing left for others.
    """
    rows, few = as_rows(request), decode.simt_configs(request, p)
    by_tma = request.arch == 90 and all(fa3.copied(rows, o) for o in "qkv")
    # Rows of heads that share keys, which several CTAs would divide: mma, or fa3 if that reads the
    # keys once, too.
    count = known(decode.rows_of(request))
    if count is not None and count > 1 and decode.mma_fits(request, p):
        use: DimLike = 0
        for c, used in few:
            use = D.add(use, used) if c.split_kv or c.cluster > 1 else use
        merged: Any = decode.mma_config()
        alone = rows is request and known(parameters(rows)["H"]) != known(parameters(rows)["KVH"])
        if by_tma and not alone:
            merged = fa3.split_kv_config(problem.problem(rows)) or merged
        few = [(c, used) for c, used in few if not c.split_kv and c.cluster == 1]
        few = [*few, *([(merged, use)] if use != 0 else [])]
    if by_tma and request.dtype != DType.F32 and (best := _cheapest(request, p, rows, few)):
        return [(best, 1)], True
    return few, known(decode.few_rows(request)) == 1


def _cheapest(request: Request, p: Problem, rows: Request, few: Chosen) -> Any | None:
    """The configuration that reads the keys soonest, or none where that is one of `few` or, of rows
    that are not few, one that has no other's keys to wait for, or where sizes are not known.
    """
    i = parameters(rows)
    if any(known(i[n]) is None for n in ("B", "S", "T")):
        return None
    keys, shares_keys = _number(i["T"]), known(i["H"]) != known(i["KVH"])
    plain = not (shares_keys or p.mask or i["causal"]) and p.widest <= _LONGEST
    if rows is not request or (plain and known(i["S"]) == 1):
        return _decoding(request, rows, keys)
    if few or keys < _MANY_KEYS:
        return None
    merged, row = problem.problem(rows), p.row_bytes(request.dtype)
    price: dict[Any, float] = {
        c: _of_fa3(rows, c, _number(clocks), keys, row) for c, clocks in fa3.priced(rows, merged)
    }
    usual = min(price.values(), default=0.0)
    split = fa3.split_kv_config(merged)
    if split and _number(problem.blocks(rows, split.rows)) * _FEW_TILES <= request.sms:
        price[split] = _of_split_kv(rows, merged, split, keys, row)
    heads_share = known(parameters(request)["H"]) != known(parameters(request)["KVH"])
    if (
        heads_share
        and decode.mma_fits(request, p)
        and _number(decode.rows_of(request)) <= _MOST_SHARED
    ):
        price[decode.mma_config()] = _of_mma(request, p, keys, row)
    best = min(price, key=price.__getitem__, default=None)
    return best if best is not None and price[best] < _WORTH * usual else None


def _of_fa3(request: Request, config: Fa3Config, clocks: int, keys: int, row: int) -> float:
    i, ctas = parameters(request), _number(problem.blocks(request, config.rows)) * config.cluster
    each = -(-ctas // sms_of_clusters(request.sms, config.cluster))
    # no other tile reads the same keys
    alone = known(i["H"]) == known(i["KVH"]) and _number(i["S"]) <= config.rows
    rate = (_BYTES if alone else _CACHED_BYTES) / (_RAGGED if row % 256 else 1.0)
    beginning = _READING_CLUSTER if config.cluster > 1 else _READING
    return max(_BEGINNING + clocks, beginning + each * -(-keys // config.cluster) * row / rate)


def _of_split_kv(request: Request, p: Problem, config: Fa3Config, keys: int, row: int) -> float:
    i, tiles = parameters(request), _number(problem.blocks(request, config.rows))
    each = keys * row / request.sms * (_RAGGED if row % 256 else 1.0)
    steps = -(-keys * tiles // (config.keys * _number(fa3.ctas(request, config))))
    step = _SPLIT_STEP[(p.widest > 64) + (p.widest > 128)]
    read = _number(D.mul(i["B"], i["KVH"])) * each / _SPLIT_BYTES
    return _SPLITTING + max(read, tiles * each / _CACHED_BYTES, steps * step)


def _of_mma(request: Request, p: Problem, keys: int, row: int) -> float:
    i, config, rows = parameters(request), decode.mma_config(), _number(decode.rows_of(request))
    items, shares = (
        _number(decode.items(request, config.rows)),
        _number(config.shares(request, p)),
    )
    tiles, heads = -(-rows // config.rows), _number(D.mul(i["B"], i["KVH"]))
    rate = _MMA_BYTES * request.sms / (_RAGGED if row % 256 else 1.0)
    reading = (1 + tiles) / 2 * heads * keys * row / rate
    steps = min(_STEPS, -(-keys // (64 * shares)))
    return _MMA + steps * _STEP + items * min(config.rows, rows) * _ROW + reading


def _of_simt(request: Request, p: Problem, heads: int, keys: int, row: int) -> dict[Any, float]:
    """For one row of each of heads that share nothing."""
    uneven = _UNEVEN if row % 256 else 1.0
    price: dict[Any, float] = {
        DecodeConfig("simt", 1): _WHOLE_SIMT.of(heads, request.sms, keys * row * uneven)
    }
    configs = {DecodeConfig("simt", 1, n): of for n, of in _SIMT.items() if keys >= n * _LEAST_KEYS}
    for config, of in (configs | {DecodeConfig("simt", 1, split_kv=True): _SPLIT_SIMT}).items():
        parts = _number(config.shares(request, p))
        if parts > 1:
            mine = -(-heads * parts // request.sms) * -(-keys // parts) * row
            memory = of.memory(heads * keys * row / request.sms, row)
            price[config] = of.begun + max(memory, mine / of.cta)
    return price


def stream_prices(rows: Request, p: Problem, heads: int, keys: int) -> dict[Any, float]:
    """stream, of which all CTAs are on the device at once. rows: with the heads that share keys as
    rows.
    """
    if not decode.stream_fits(rows, p) or heads < _FEWEST:
        return {}
    i, count, sizes = (
        parameters(rows),
        _number(parameters(rows)["S"]),
        [n * rows.dtype.size for n in (p.head, p.head_v)],
    )
    room = _STREAM_WARPS[count > 8][p.widest > 64]
    slower = _NO_SECTORS if any(n % 32 for n in sizes) else _NO_LINES
    slower = slower if any(n % 128 for n in sizes) else 1.0
    if known(i["k_s"]) == p.head and known(i["v_s"]) == p.head_v:
        slower *= _CONTIGUOUS
    size = heads * keys * (sum(sizes) / _STREAM_BYTES * slower)
    found: dict[Any, float] = {}
    for sets, warps in ((n, w) for n in (1, 2) for w in (1, 2, 4) if room[n] >= w):
        for cluster in range(1, min(8, rows.caps.cluster) + 1):
            ctas, each = room[sets] // warps, heads * cluster / rows.sms
            most = _TAKEN if cluster <= 2 else _TAKEN_CLUSTERS
            if (
                _FEWEST_TAKEN <= each / ctas <= most
                and each <= _MOST_CTAS
                and keys >= cluster * warps * sets * 16
            ):
                slower = 1 + _LEFT * max(0.0, _FILLED - each / ctas)
                slower *= _ALONE if cluster == 1 else 1.0
                slower *= _SETS_AND_WARPS.get((sets, warps), 1.0)
                config = DecodeConfig("stream", count, cluster, False, warps, sets, ctas)
                fixed = _BEGUN + _JOINING * cluster + _ELEMENT * count * p.head_v
                found[config] = fixed + size * slower
    return found


def _most(heads: int, sms: int) -> int:
    """Heads of the SM that has the most of them, two beside each other."""
    return -(-heads // sms) if heads <= 2 * sms else 2 * -(-heads // (2 * sms))


def _decoding(request: Request, rows: Request, keys: int) -> Any | None:
    """The cheapest kernel for one row of each head. rows: the request with the heads that share
    keys as rows.
    """
    i, p, sms, shared = parameters(rows), problem.problem(rows), request.sms, rows is not request
    heads, row = _number(D.mul(i["B"], i["KVH"])), p.row_bytes(request.dtype)
    found = [(config, _number(clocks)) for config, clocks in fa3.priced(rows, p)]
    if found and shared and keys <= _SHORT_KEYS:
        return min(found, key=lambda one: one[1])[0]
    price: dict[Any, float] = {}
    size, short = heads * keys * row / sms, p.widest <= 64
    paired = fa3.paired_config(p, keys) if keys else None
    for config in (c for c, _ in found if c.schedule == "SINGLE_WG"):
        ctas, of = _number(problem.blocks(rows, config.rows)) * config.cluster, _FA3[config.cluster]
        if config.cluster == 1 and ctas >= sms and paired is not None:
            uneven = 1.0 if short or row % 256 == 0 else _UNEVEN_LONG
            price[paired] = _WHOLE.paired(heads, sms, keys * row * uneven)
            if short:
                least = _WHOLE.begun + _most(heads, sms) * keys * _KEY
                price[paired] = max(price[paired], least)
            continue
        each = -(-ctas // sms_of_clusters(sms, config.cluster))
        steps = -(-keys // (config.keys * config.cluster))
        key = _KEY if short else max(_KEY_LONG, row / _CTA_BYTES)
        reading = of.memory(size, row, -(-keys // config.cluster) * row)
        price[config] = each * of.begun + max(each * steps * config.keys * key, reading)
    if not price:
        return None
    split, of_split = fa3.split_kv_config(p), _SPLIT if short else _SPLIT_LONG
    if split is not None:
        two = _number(D.mod(fa3.ctas(rows, split), problem.blocks(rows, split.rows))) != 0
        price[split] = of_split.begun + of_split.memory(size, row) + (_TWO_HEADS if two else 0)
    if short and (p.head % 16 or p.head_v % 16):
        for config in price:
            if config.split_kv:
                least = _SPLIT.begun + heads * keys / sms * _FETCHING_SPLIT
            else:
                places = sms_of_clusters(sms, config.cluster) if config.ctas == 1 else sms
                most = -(-heads * config.cluster // places)
                most = _most(heads, sms) if config == paired else most
                least = _FA3[config.cluster].begun + most * keys / config.cluster * _FETCHING
            price[config] = max(price[config], least)
    if not shared:
        price |= _of_simt(request, p, heads, keys, row)
    return kernel_choice.cheapest(price | stream_prices(rows, p, heads, keys))
