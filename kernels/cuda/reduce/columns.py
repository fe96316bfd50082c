"""Tilings for reductions of columns by aligned vectors (`reduce_unaligned_columns`), and a cost
model fitted to measurements on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED
from tracea_onnx.support.data_classes import dataclass

from ..cost.fitted import fitted

#: Candidates: vectors per row of a tile, threads of a CTA, (rows per thread, loads in flight).
_LANES, _THREADS, _ROWS = (16, 32, 64), (128, 256, 512), ((4, 4), (8, 8), (16, 4), (16, 8), (32, 8))
#: Most threads of a CTA with several tiles: larger CTAs wait longer for their slowest thread.
_TEAMS = 256
#: Registers of a thread besides loads and states, with aligned and with misaligned rows; most bytes
#: of shared memory of a CTA.
_REGISTERS, _SHARED = (12, 22), 40000
#: Microseconds: of a launch; of a CTA besides its loads; latency of an iteration's loads; of each
#: load; of a cluster's exchange; of a second launch that combines. Bytes per microsecond: of the
#: device's memory; of one SM. Share of the idle part of the last wave that counts.
_LAUNCH, _BLOCK, _LATENCY, _VECTOR, _CLUSTER, _JOIN, _MEMORY, _SHARE, _LAST = fitted(
    "reduce.columns", "launch block latency vector cluster join memory share last"
)
#: Microseconds per thread for addresses of misaligned rows.
(_THREAD,) = fitted("reduce.columns", "thread")
#: Relative slowdown of memory where all CTAs run in one wave, and so wait for memory at the same
#: time; waves at which it is half.
_TOGETHER, _HALF = fitted("reduce.columns", "together half")


@dataclass(frozen=True)
class Tiling:
    """lanes, down: threads along a row of a tile, and along n. tiles: of one [inner], `wide`
    columns each. teams: tiles per CTA. parts: CTAs that share a tile (cluster: as a cluster; else
    by a second launch). depth: loads of a thread in flight.
    """

    lanes: int
    down: int
    tiles: int
    wide: int
    parts: int
    cluster: bool
    teams: int
    depth: int

    @property
    def threads(self) -> int:
        return -(-self.lanes * self.down * self.teams // 32) * 32


def tiling(outer: int, n: int, inner: int, size: int, held: int, sms: int, cluster: int) -> Tiling:
    """The cheapest tiling for axis n of [outer, n, inner]. size: bytes of an element; held: bytes
    of a column's state; cluster: largest cluster.
    """
    return min(
        _tilings(outer, n, inner, size, held, sms, cluster),
        key=lambda s: _cost(s, outer, n, inner, size, held, sms),
    )


def _tilings(
    outer: int, n: int, inner: int, size: int, held: int, sms: int, cluster: int
) -> Iterator[Tiling]:
    v = 16 // size
    vectors, period = -(-inner // v), v // math.gcd(v, inner)
    for tiled in sorted({-(-vectors // lanes) for lanes in _LANES}):
        wide = -(-vectors // tiled) * v
        tiles, across = -(-inner // wide), wide // v + (inner % v > 0)
        for threads in _THREADS:
            room = (
                max(min(threads // across, _SHARED // (v * held * (across | 1))) // period, 1)
                * period
            )
            for down, depth in sorted(
                {(min(-(-n // (rows * period)) * period, room), depth) for rows, depth in _ROWS}
            ):
                teams = max(min(threads, _TEAMS) // (across * down), 1)
                yield Tiling(across, down, tiles, wide, 1, False, teams, depth)
                for parts in (2, 4, 8, 16, 32, 64) if teams == 1 else ():
                    if n < parts * 2 * down or outer * tiles * parts > 8 * sms:
                        break
                    if parts <= min(cluster, 8):
                        yield Tiling(across, down, tiles, wide, parts, True, 1, depth)
                    if parts > 2:
                        yield Tiling(across, down, tiles, wide, parts, False, 1, depth)


def _cost(s: Tiling, outer: int, n: int, inner: int, size: int, held: int, sms: int) -> float:
    """Estimated microseconds: launch, memory, waves of CTAs (a CTA takes an iteration per `depth`
    loads of a thread), and combining.
    """
    v, warps = 16 // size, s.threads // 32
    registers = -(-(_REGISTERS[inner % v > 0] + 4 * s.depth + v * held // 4) // 8) * 8
    shared = v * ((s.lanes | 1) * s.down * s.teams + 32) * held + 1024
    resident = max(
        min(64 // warps, 65536 // (registers * s.threads), 32, HOPPER_SHARED // shared), 1
    )
    blocks, bytes, iterations = (
        -(-outer * s.tiles * s.parts // s.teams),
        outer * n * inner * size,
        -(-n // (s.parts * s.down * s.depth)),
    )
    filled = blocks / (sms * resident)
    waves = max(filled + (math.ceil(filled) - filled) * _LAST, 1.0)
    memory = max(bytes / _MEMORY, -(-blocks // sms) * bytes / blocks / _SHARE)
    together = (
        _TOGETHER * bytes / _MEMORY * min(iterations - 1, 4) / 4 / (1 + (filled / _HALF) ** 4)
    )
    joining = _CLUSTER if s.cluster else _JOIN if s.parts > 1 else 0.0
    places = _THREAD * blocks * s.threads if inner % v else 0.0
    return (
        _LAUNCH
        + memory
        + together
        + waves * (_BLOCK + iterations * (_LATENCY + _VECTOR * s.depth))
        + joining
        + places
    )
