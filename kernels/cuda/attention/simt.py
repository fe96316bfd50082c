"""Attention in f32: tiles without tensor cores, and where those of tensor cores are worth more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common.launch import clustered, known, overlapped, parameters, shared
from ..common.prelude import prelude
from ..common.templates import template
from . import problem, tf32x3

#: Bytes of shared memory of a multiprocessor whose tiles may lie beside each other.
_MOST_SHARED = 227 * 1024
#: Cycles that blocks beside each other take to begin and end, and to join what those of a cluster
#: have.
_STARTING, _JOINING = 3000, 4000
#: By how much a larger tile must be better: the cycles are guesses.
_WORTH = 0.9


@dataclass(frozen=True)
class PlainTile:
    """rows, keys: of a tile, in units of 16; parts: blocks of a cluster that divide the keys."""

    rows: int
    keys: int
    parts: int

    def __str__(self) -> str:
        return f"{16 * self.rows}x{16 * self.keys}{f'/{self.parts}' if self.parts > 1 else ''}"

    def smem(self, p: Any) -> int:
        head, head_v = int(p.head), int(p.head_v)
        d, dv = -(-head // 4) * 4, -(-head_v // 64) * 64
        pitch = d + 4 + (4 if d // 4 % 2 else 0)
        rows, keys = 16 * self.rows, 16 * self.keys
        part = rows * (head_v + 2) if self.parts > 1 else 0
        return 4 * max(rows * pitch + keys * (pitch + dv + 4) + rows * (keys + 4), part)


def _cycles(request: Request, p: Any, tile: PlainTile, sizes: dict[str, int]) -> float:
    """About how many a launch takes. Shared memory hands a warp 16 bytes per thread in four, also
    where threads read the same; a multiprocessor multiplies four warps' numbers in one."""
    rows, keys, head, groups = tile.rows, tile.keys, int(p.head), -(-int(p.head_v) // 64)
    scores = -(-head // 4) * max(4 * (rows + keys), rows * keys)
    values = 4 * keys * max(4 * (rows + 4 * groups), 4 * rows * groups)
    blocks = sizes["B"] * sizes["H"] * -(-sizes["S"] // (16 * rows)) * tile.parts
    each: int = -(-blocks // clustered(request.sms, tile.parts))  # of a multiprocessor
    # as far as registers and shared memory go
    beside = 1 if rows * (keys + 4 * groups) > 32 or 2 * tile.smem(p) > _MOST_SHARED else 2
    steps = -(-sizes["T"] // (16 * keys * tile.parts))
    waiting = 1.15 if min(beside, each) == 1 else 1.0  # nobody multiplies while weights are found
    return 8 * each * steps * (scores + values) * waiting + -(-each // beside) * (
        _STARTING + (_JOINING if tile.parts > 1 else 0)
    )


def _large(
    request: Request, p: Any, keys: tuple[int, ...], parts: tuple[int, ...]
) -> list[PlainTile]:
    """Tiles whose threads multiply more of what they read, as far as registers and shared memory
    go.
    """
    most = 8 if p.widest <= 128 else 4
    tiles = [
        PlainTile(rows, n, split)
        for rows in (8, 4)
        if rows <= most
        for n in keys
        for split in parts
    ]
    return [tile for tile in tiles if tile.smem(p) <= shared(request)]


def _split(request: Request, p: Any, parts: tuple[int, ...]) -> list[Any]:
    """Tiles of tensor cores, as far as shared memory goes."""
    if not tf32x3.fits(request):
        return []
    shapes: tuple[tuple[int, int, int], ...] = ((4, 64, 1), (2, 64, 4))
    if p.widest > 96:
        large, divided = ((4, 64, 1), (4, 32, 1), (8, 64, 1), (8, 32, 1)), ((4, 64, 2), (2, 64, 4))
        few = ((2, 32, 2), (3, 64, 4), (5, 32, 2), (6, 32, 2))  # there is no room for many blocks
        shapes = (*large, *divided) if p.widest <= 128 else (*divided, *few, *large)
    tiles = [
        tf32x3.SplitTile(warps, keys, n, groups) for warps, keys, groups in shapes for n in parts
    ]
    if p.widest > 128:
        tiles.append(tf32x3.SplitTile(5, 48, 1, 3))
    return [tile for tile in tiles if tile.smem(p) <= shared(request)]


def _many(request: Request, p: Any, keys: int) -> list[tuple[Any, DimLike]]:
    """Large tiles for sizes that are not known: one where there are many of it, on tensor cores
    another with the keys divided where there are some.
    """
    enough = request.sms - 1
    if split := _split(request, p, (1,)):
        tile, count = split[0], problem.blocks(request, 16 * split[0].warps)
        if request.arch >= 90 and len(split) > 1 and p.widest <= 96:
            return _by_count(request, tile, split[1], count)
        many = D.less(enough, count)
        found = [(tile, many)]
        if request.arch >= 90:
            some = D.mul(
                D.less(enough, D.mul(count, 4)), D.less(4 * tile.keys - 1, parameters(request)["T"])
            )
            found.append((replace(tile, parts=4), D.mul(D.sub(1, many), some)))
        return found
    return [
        (tile, D.less(2 * enough + 1, problem.blocks(request, 16 * tile.rows)))
        for tile in _large(request, p, (keys,), (1,))[:1]
    ]


def _by_count(
    request: Request, large: Any, small: Any, count: DimLike
) -> list[tuple[Any, DimLike]]:
    """Tiles of tensor cores by how many of the large ones there are: these, with the keys divided
    where there are some, else small ones whose warps divide them, with these divided again where
    they are few. Where there is one tile of keys, and few of rows, others do as well."""
    keys, sms = parameters(request)["T"], request.sms
    many, some, few, least = (
        D.less(n, count) for n in (sms * 3 // 2, sms // 2, sms // 4, sms // 8)
    )
    short, long = D.less(keys, large.keys + 1), D.less(4 * small.keys - 1, keys)
    rest = D.product([D.sub(1, few), D.sub(1, short)])
    quarters = D.product([D.sub(1, least), long])
    return [
        (large, D.maximum(many, D.mul(some, short))), (replace(large, parts=2), D.product([some, D.sub(1, many), D.sub(1, short)])),
        (small, D.mul(few, D.sub(1, some))), (replace(small, parts=2), D.mul(rest, D.sub(1, quarters))), (replace(small, parts=4), D.mul(rest, quarters)),
    ]  # fmt: skip


def tiles(request: Request, p: Any) -> list[tuple[Any, DimLike]]:
    """The tiles worth having, each with whether it is for the sizes of a run: the most rows of
    which there are tiles for every multiprocessor, else few, with the keys divided; where sizes are
    known, larger ones and those of tensor cores when they take fewer cycles."""
    i = parameters(request)
    sizes = {n: known(i[n]) for n in "BHST"}
    exact = {n: v for n, v in sizes.items() if v is not None}
    fixed = len(exact) == len(sizes)
    most_rows = (4, 2, 1) if p.widest <= 128 else (2, 1)
    keys = 4 if p.widest <= 128 else 2
    found = [] if fixed else _many(request, p, keys)
    left: DimLike = 1  # whether no larger tile is chosen
    for _, use in found:
        left = D.sub(left, use)
    for rows in most_rows if fixed else (1,) if _split(request, p, (1,)) else (most_rows[0], 1):
        fitting = keys
        while PlainTile(rows, fitting, 1).smem(p) > shared(request):
            fitting //= 2
        count = problem.blocks(request, 16 * rows)
        if rows > 1:
            enough = D.less(request.sms - 1, count)
            found.append((PlainTile(rows, fitting, 1), D.mul(left, enough)))
            left = D.mul(left, D.sub(1, enough))
            continue
        # `_by_count` leaves few keys
        most: tuple[int, ...] = (
            (1,) if request.arch < 90 or len(found) > 2 else (1, 2, 4, 8) if fixed else (1, 4)
        )
        most = tuple(n for n in most if n <= request.caps.cluster)
        found += [
            (PlainTile(rows, fitting, n), D.mul(left, use))
            for n, use in problem.divided(request, count, i["T"], 8 * fitting, most)
        ]
    found = [(tile, use) for tile, use in found if use != 0]
    if not fixed:
        return found
    plain = found[0][0]
    price = {plain: _WORTH * _cycles(request, p, plain, exact)}
    if split := _split(request, p, tuple(n for n in (1, 2, 4, 8) if n <= request.caps.cluster)):
        price |= {
            tile: tf32x3.cycles(request, p, tile, exact, shared(request) + 1024) for tile in split
        }
    else:
        large = _large(
            request, p, (8, 4, 2), tuple(n for n in (1, 2, 4) if n <= request.caps.cluster)
        )
        price |= {tile: _cycles(request, p, tile, exact) for tile in large if tile != plain}
    best = kernel_choice.cheapest(price)
    return found if best == plain else [(best, 1)]


def kernel(request: Request, p: Any, tile: PlainTile, use: DimLike) -> Kernel:
    widths = {f"READ_{o.upper()}": problem.access(request, p, o) for o in "qkv"}
    sizes = {"R": tile.rows, "J": tile.keys, "PARTS": tile.parts, "THREADS": 256, **widths}
    constants = "".join(f"constexpr int {k} = {v};\n" for k, v in sizes.items())
    templates = template(
        "common/base",
        "common/mma",
        "attention/problem",
        "attention/splitkv_cluster",
        "attention/async_copy",
        "attention/load_rows",
        "attention/simt",
    )
    source = f"{prelude(request.dtype)}{p.constants(request.dtype)}{constants}{templates}{problem.entry(256)}"
    grid = (D.product([problem.blocks(request, 16 * tile.rows), tile.parts, use]), 1, 1)
    arguments = problem.arguments(request, {})
    smem = problem.apart(request, tile.smem(p), grid[0], tile.parts)
    return Kernel(
        source,
        "attention",
        grid,
        256,
        arguments,
        smem=smem,
        cluster=tile.parts,
        pdl=overlapped(request),
    )
