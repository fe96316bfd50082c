"""Attention of few query rows (decoding): threads read the keys once, divided among the warps of a
block and the blocks of a cluster, or of the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Int32, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ...common.launch import clustered, known, overlapped, parameters
from ...common.prelude import prelude
from ...common.templates import template
from .. import problem

#: The most rows that read the same keys; more where a head has no more than so many of them, since
#: tiles of one head would be almost empty.
_MOST, _MOST_OF_HEAD = 8, 2
_WARPS, _STAGES, _IN_FLIGHT = 8, 3, 4
#: Keys are spread over more blocks than a cluster holds, at most so many, where each of a cluster's
#: would read more bytes than these.
_MOST_PARTS, _SPREAD_BYTES = 64, 128 << 10
#: Threads of a block that joins parts, and how many of these each has at once.
_JOINING, _TOGETHER = 128, 8


@dataclass(frozen=True)
class FewTile:
    """rows: of a block, which read the same keys; parts: blocks of a cluster that divide them;
    spread: as many blocks do as fill the device, and a second kernel joins what they have."""

    rows: int
    parts: int
    spread: bool = False

    def __str__(self) -> str:
        return f"few {self.rows}{f'/{self.parts}' if self.parts > 1 else ''}{' spread' if self.spread else ''}"


def rows_of(request: Request) -> DimLike:
    """Of the heads that share keys."""
    i = parameters(request)
    return D.mul(D.floordiv(i["H"], D.maximum(i["KVH"], 1)), i["S"])


def count_of(request: Request, rows: int) -> DimLike:
    i = parameters(request)
    return D.product([i["B"], i["KVH"], D.ceildiv(rows_of(request), rows)])


def _lanes(request: Request, widest: int) -> tuple[int, int]:
    """Threads that have one key, and of how many 16 bytes each."""
    pieces = -(-widest * request.dtype.size // 16)
    lanes = next(n for n in (1, 2, 4, 8, 16, 32) if n >= min(pieces, 32))
    return lanes, -(-pieces // lanes)


def _least(request: Request, widest: int) -> int:
    """Keys that a block has at once."""
    return _IN_FLIGHT * _WARPS * 32 // _lanes(request, widest)[0]


def applies(request: Request) -> DimLike:
    """Whether rows are few."""
    return D.maximum(
        D.less(rows_of(request), _MOST + 1), D.less(parameters(request)["S"], _MOST_OF_HEAD + 1)
    )


def tiles(request: Request, p: Any) -> list[tuple[FewTile, DimLike]]:
    """The tiles worth having, each with whether it is for the sizes of a run; none is where rows
    are many.
    """
    rows, keys = rows_of(request), parameters(request)["T"]
    exact = known(rows)
    some = next(n for n in (1, 2, 4) if n >= min(4, exact or 4))
    count = count_of(request, some)
    most: tuple[int, ...] = (
        (1,) if request.arch < 90 else (1, 2, 4, 8) if exact is not None else (1, 8)
    )
    most = tuple(n for n in most if n <= request.caps.cluster)
    few = applies(request)
    together = D.minimum(
        most[-1],
        D.maximum(D.floordiv(2 * clustered(request.sms, most[-1]), D.maximum(count, 1)), 1),
    )
    if (n := known(together)) is not None:
        together = max(m for m in most if m <= n)
    long = D.mul(together, _SPREAD_BYTES // ((p.head + p.head_v) * request.dtype.size))
    spread = D.mul(D.less(count, request.sms + 1), D.less(long, keys))
    divided = problem.divided(request, count, keys, _least(request, p.widest), most)
    found = [(FewTile(some, n), D.product([few, use, D.sub(1, spread)])) for n, use in divided]
    found.append((FewTile(some, 1, True), D.mul(few, spread)))
    return [(tile, use) for tile, use in found if use != 0]


def parts_of(request: Request, p: Any, tile: FewTile) -> DimLike:
    """Blocks that have the same rows."""
    if not tile.spread:
        return tile.parts
    fill = D.floordiv(2 * request.sms, D.maximum(count_of(request, tile.rows), 1))
    return D.minimum(
        _MOST_PARTS,
        D.minimum(
            fill, D.maximum(D.ceildiv(parameters(request)["T"], _least(request, p.widest)), 1)
        ),
    )


def scratch(request: Request, p: Any, tile: FewTile, use: DimLike) -> DimLike:
    """Bytes of what blocks have that another kernel joins."""
    part = -(-tile.rows * (p.head_v + 2) * 4 // 16) * 16
    return D.product(
        [count_of(request, tile.rows), D.add(parts_of(request, p, tile), 1), part, use]
    )


def kernels(request: Request, p: Any, tile: FewTile, use: DimLike, place: str) -> list[Kernel]:
    """place: where what blocks have lies until another kernel joins it."""
    lanes, chunks = _lanes(request, p.widest)
    widths = {f"READ_{o.upper()}": problem.access(request, p, o) for o in "qkv"}
    at_once, parts, block = _IN_FLIGHT // chunks, parts_of(request, p, tile), 32 * _WARPS
    sizes = {
        "ROWS": tile.rows,
        "PARTS": tile.parts,
        "SPREAD": int(tile.spread),
        "THREADS": block,
        "WARPS": _WARPS,
        "AT_ONCE": at_once,
        "STAGES": _STAGES,
    }
    sizes |= {"LANES": lanes, "CHUNKS": chunks, "V": 16 // request.dtype.size, **widths}

    constants = "".join(f"constexpr int {k} = {v};\n" for k, v in sizes.items())
    templates = template(
        "common/base",
        "common/mma",
        "attention/problem",
        "attention/splitkv_cluster",
        "attention/splitkv_warps",
        "attention/async_copy",
        "attention/decode/simt",
    )
    text = f"{prelude(request.dtype)}{p.constants(request.dtype)}{constants}{templates}{problem.entry(block, blocks=2)}"
    grid = (
        D.product([count_of(request, tile.rows), tile.parts, use]),
        parts if tile.spread else 1,
        1,
    )
    smem = _STAGES * at_once * 2 * chunks * 16 * block  # what the warps have fits in it, too
    arguments = problem.arguments(request, {"y": place} if tile.spread else {})
    few = Kernel(
        text,
        "attention",
        grid,
        block,
        arguments,
        smem=smem,
        cluster=tile.parts,
        pdl=overlapped(request),
    )
    if not tile.spread:
        return [few]
    count = D.mul(count_of(request, tile.rows), use)
    return [
        few,
        joining(
            request, p, tile.rows, count, D.mul(count, parts), known(parts) or _MOST_PARTS, place
        ),
    ]


def joining(
    request: Request, p: Any, rows: int, count: DimLike, blocks: DimLike, most: int, place: str
) -> Kernel:
    """Joins what blocks, at most `most`, have of the same `rows`, which lies at `place`, for
    `count` tiles of them of which `blocks` have equal shares. Threads beside each other have the
    pieces of some columns of a row, each group of them at most _TOGETHER of the parts where a block
    has room for so many groups."""
    piece = 4 if p.head_v % 4 == 0 else 1
    groups = min(16, _power(-(-most // _TOGETHER)))
    across = min(_power(-(-p.head_v // piece)), max(8, _JOINING // groups))
    block = max(32, groups * across)
    constants = f"constexpr int ROWS = {rows}, PARTS = 1, THREADS = {block}, COLUMNS = {across * piece}, TOGETHER = {_TOGETHER};\n"
    templates = template(
        "common/base", "attention/problem", "attention/splitkv_cluster", "attention/splitkv_combine"
    )
    text = f"{prelude(request.dtype)}{p.constants(request.dtype)}{constants}{templates}"
    grid = (count, D.minimum(rows_of(request), rows), -(-p.head_v // (across * piece)))
    arguments = (*problem.arguments(request, {"q": place}), Int32(blocks))
    return Kernel(
        text + problem.entry(block, last="blocks"),
        "attention",
        grid,
        block,
        arguments,
        pdl=overlapped(request),
    )


def _power(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << (n - 1).bit_length()


TILE = FewTile
