"""Attention of few query rows that many heads have (decoding), 16-bit operands: keys and values
flow straight into registers, for tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ...common.launch import known, overlapped, parameters
from ...common.prelude import prelude
from ...common.templates import template
from .. import problem

#: The most rows of a head, and elements of a row, whose operands and results registers hold.
_MOST_ROWS, _WIDEST = 16, 128
#: Warps of a multiprocessor that registers leave room for, by the sets of keys that each has: of
#: short heads, of longer ones; the same where rows are more than 8.
_WARPS_SHORT, _WARPS_LONG, _ROWS_SHORT, _ROWS_LONG = (
    {1: 20, 2: 14},
    {1: 12, 2: 8},
    {1: 16, 2: 12},
    {1: 8, 2: 0},
)
#: The most blocks of a multiprocessor, on average, and of its places the fewest and the most that
#: are taken, by blocks that are alone or two, and by larger clusters: with more, some find no place
#: beside the others.
_MOST_BLOCKS, _FEWEST_TAKEN, _TAKEN, _TAKEN_CLUSTERS = 7.25, 0.45, 0.98, 0.92
#: Nanoseconds to begin and end, for each block of a cluster, for each element of the results of a
#: head; bytes that the memory gives in one.
_BEGUN, _JOINING, _ELEMENT, _BYTES = 3100.0, 130.0, 2.4, 4360.0
#: By how much slower that is for rows of no whole sectors, of no whole lines, where keys of one
#: head lie beside each other (other kernels are faster there), for each share of the places that is
#: not taken up to this one; the same of blocks without a cluster, and of tiles by their sets and
#: warps; the fewest heads it is known of.
_RAGGED, _UNEVEN, _APART, _LEFT, _FILLED, _ALONE, _TILES, _FEWEST = (
    1.12,
    1.09,
    1.1,
    0.5,
    0.92,
    0.93,
    {(2, 2): 1.08, (2, 4): 1.04},
    48,
)


@dataclass(frozen=True)
class FlowTile:
    """parts: blocks of a cluster that divide a head's keys; warps: of a block, which take them in
    turn; sets: of 16 keys that a warp has at once; blocks: of a multiprocessor, for which registers
    leave room."""

    parts: int
    warps: int
    sets: int
    blocks: int

    def __str__(self) -> str:
        return f"flow {16 * self.sets}x{self.warps}*{self.blocks}{f'/{self.parts}' if self.parts > 1 else ''}"


def fits(request: Request, p: Any) -> bool:
    """Whether rows are whole 16 bytes, few and not too long. request: with the heads that share
    keys as rows.
    """
    i = parameters(request)
    rows, steps = known(i["S"]), [known(i[n]) for n in ("k_s", "v_s")]
    if (
        request.arch != 90
        or request.dtype == DType.F32
        or p.mask
        or p.causal
        or p.widest > _WIDEST
        or rows is None
        or not 0 < rows <= _MOST_ROWS
    ):
        return False
    near = all(n is not None and abs(n) < 1 << 30 for n in steps)
    return near and all(problem.access(request, p, o) == 8 for o in "qkv")


def _reading(request: Request, p: Any) -> float:
    """Nanoseconds of a key and its value."""
    i = parameters(request)
    sizes: tuple[int, int] = (p.head * request.dtype.size, p.head_v * request.dtype.size)
    whole = (
        1.0
        if all(n % 128 == 0 for n in sizes)
        else _UNEVEN
        if all(n % 32 == 0 for n in sizes)
        else _RAGGED
    )
    return (
        sum(sizes)
        / _BYTES
        * whole
        * (_APART if known(i["k_s"]) == p.head and known(i["v_s"]) == p.head_v else 1.0)
    )


def prices(request: Request, p: Any, heads: int, keys: int) -> dict[FlowTile, float]:
    """Nanoseconds of the tiles whose blocks are all on the device at once, for one row or a few of
    each of so many heads. request: with the heads that share keys as rows."""
    if not fits(request, p) or heads < _FEWEST:
        return {}
    rows, short = int(known(parameters(request)["S"]) or 0), p.widest <= 64
    room = (
        (_WARPS_SHORT if short else _WARPS_LONG)
        if rows <= 8
        else _ROWS_SHORT
        if short
        else _ROWS_LONG
    )
    size = heads * keys * _reading(request, p)
    found: dict[FlowTile, float] = {}
    for sets, warps in ((n, w) for n in (1, 2) for w in (1, 2, 4) if room[n] >= w):
        for parts in range(1, min(8, request.caps.cluster) + 1):
            tile = FlowTile(parts, warps, sets, room[sets] // warps)
            each = heads * parts / request.sms
            taken = each / tile.blocks
            fitting = (
                _FEWEST_TAKEN <= taken <= (_TAKEN if parts <= 2 else _TAKEN_CLUSTERS)
                and each <= _MOST_BLOCKS
            )
            if fitting and keys >= parts * warps * sets * 16:
                slower = (
                    (1 + _LEFT * max(0.0, _FILLED - taken))
                    * (_ALONE if parts == 1 else 1.0)
                    * _TILES.get((sets, warps), 1.0)
                )
                found[tile] = _BEGUN + _JOINING * parts + _ELEMENT * rows * p.head_v + size * slower
    return found


def kernel(request: Request, p: Any, tile: FlowTile, use: DimLike) -> Kernel:
    """request: with the heads that share keys as rows."""
    i, block = parameters(request), 32 * tile.warps
    sizes = {
        "ROWS": int(known(i["S"]) or 0),
        "PARTS": tile.parts,
        "THREADS": block,
        "WARPS": tile.warps,
        "SETS": tile.sets,
    }
    constants = "".join(f"constexpr int {k} = {v};\n" for k, v in sizes.items())
    # What several reads of a row, or rows beside each other, share of a sector of memory is read
    # once where the first cache keeps it.
    caching = "" if any(n % 16 for n in (p.head, p.head_v)) else ".L1::no_allocate"
    templates = template(
        "common/base",
        "common/mma",
        "attention/problem",
        "attention/splitkv_cluster",
        "attention/splitkv_warps",
        "attention/decode/stream",
    )
    text = f'{prelude(request.dtype)}{p.constants(request.dtype)}{constants}#define CACHING "{caching}"\n{templates}{problem.entry(block, blocks=tile.blocks)}'
    grid = (D.product([i["B"], i["H"], tile.parts, use]), 1, 1)
    return Kernel(
        text,
        "attention",
        grid,
        block,
        problem.arguments(request, {}),
        cluster=tile.parts,
        pdl=overlapped(request),
    )


TILE = FlowTile
