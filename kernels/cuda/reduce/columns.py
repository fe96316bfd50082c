"""How columns are divided that are read as the vectors that they lie in
(`reduce_unaligned_columns`): by the time that measurements of others make likely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tracea_onnx.support.data_classes import dataclass

#: Vectors beside each other, threads, and rows of a thread with the vectors that it has on their
#: way at once, that CTAs are tried with.
_LANES, _THREADS, _ROWS = (16, 32, 64), (128, 256, 512), ((4, 4), (8, 8), (16, 4), (16, 8), (32, 8))
#: Threads that several tiles of columns share at most: larger CTAs wait longer for their slowest.
_TEAMS = 256
#: Registers of a thread beside what it has on its way and what it holds, where rows begin at whole
#: vectors and elsewhere; bytes of a CTA's shared memory at most, and of an SM's.
_REGISTERS, _SHARED, _MULTIPROCESSOR = (12, 22), 40000, 232448
#: Microseconds that a launch takes, a CTA before and after its loads, those that a thread has
#: under way, each vector of them; what joining the CTAs of a cluster or of another launch adds;
#: bytes that all memory and one SM bring in a microsecond; what of a last wave counts
#: that is not full.
_LAUNCH, _BLOCK, _LATENCY, _VECTOR, _CLUSTER, _JOIN, _MEMORY, _SHARE, _LAST = (
    1.7,
    0.088,
    0.17,
    0.019,
    0.68,
    0.97,
    4.26e6,
    9.3e4,
    0.5,
)
#: What a thread takes whose rows do not begin at whole vectors: it finds the elements that are its
#: own before and after its loads.
_THREAD = 4e-6
#: How much longer memory takes where all CTAs run at once and so wait together, turn by turn;
#: waves that make half of it.
_TOGETHER, _HALF = 0.084, 0.93


@dataclass(frozen=True)
class Sheet:
    """`lanes` vectors beside each other and `down` rows of a tile of `wide` columns, of which
    `tiles` make a row and a CTA has `teams`; `parts` CTAs that share one (of a cluster, or each
    leaves what it holds); `depth` vectors of a thread under way at once.
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


def sheet(outer: int, n: int, inner: int, size: int, held: int, sms: int, cluster: int) -> Sheet:
    """For n of [outer, n, inner] elements of `size` bytes, of which `held` bytes are kept of every
    column. cluster: CTAs of the largest one.
    """
    return min(
        _sheets(outer, n, inner, size, held, sms, cluster),
        key=lambda s: _cost(s, outer, n, inner, size, held, sms),
    )


def _sheets(
    outer: int, n: int, inner: int, size: int, held: int, sms: int, cluster: int
) -> Iterator[Sheet]:
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
                yield Sheet(across, down, tiles, wide, 1, False, teams, depth)
                for parts in (2, 4, 8, 16, 32, 64) if teams == 1 else ():
                    if n < parts * 2 * down or outer * tiles * parts > 8 * sms:
                        break
                    if parts <= min(cluster, 8):
                        yield Sheet(across, down, tiles, wide, parts, True, 1, depth)
                    if parts > 2:
                        yield Sheet(across, down, tiles, wide, parts, False, 1, depth)


def _cost(s: Sheet, outer: int, n: int, inner: int, size: int, held: int, sms: int) -> float:
    """Microseconds that it should take: what memory takes, and waves of CTAs, each as many turns
    as their threads need.
    """
    v, warps = 16 // size, s.threads // 32
    registers = -(-(_REGISTERS[inner % v > 0] + 4 * s.depth + v * held // 4) // 8) * 8
    shared = v * ((s.lanes | 1) * s.down * s.teams + 32) * held + 1024
    resident = max(
        min(64 // warps, 65536 // (registers * s.threads), 32, _MULTIPROCESSOR // shared), 1
    )
    blocks, bytes, turns = (
        -(-outer * s.tiles * s.parts // s.teams),
        outer * n * inner * size,
        -(-n // (s.parts * s.down * s.depth)),
    )
    filled = blocks / (sms * resident)
    waves = max(filled + (math.ceil(filled) - filled) * _LAST, 1.0)
    memory = max(bytes / _MEMORY, -(-blocks // sms) * bytes / blocks / _SHARE)
    together = _TOGETHER * bytes / _MEMORY * min(turns - 1, 4) / 4 / (1 + (filled / _HALF) ** 4)
    joining = _CLUSTER if s.cluster else _JOIN if s.parts > 1 else 0.0
    places = _THREAD * blocks * s.threads if inner % v else 0.0
    return (
        _LAUNCH
        + memory
        + together
        + waves * (_BLOCK + turns * (_LATENCY + _VECTOR * s.depth))
        + joining
        + places
    )
