"""How columns are divided that are read as the vectors that they lie in (reduce_sheets): by the time that measurements of others make likely."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

#: Threads that a multiprocessor's registers hold, bytes of a thread on their way at once, the vectors that makes, and bytes of a block's shared memory.
_THREADS, _AHEAD, _DEPTH, _SHARED = 1170, 64, 4, 40000
#: Microseconds until these are there, bytes of memory's microsecond; what a launch takes, what joining the blocks of a cluster or of another launch adds.
_LATENCY, _MEMORY, _LAUNCH, _CLUSTER, _JOIN = 1.0, 4.4e6, 1.6, 1.2, 2.4


@dataclass(frozen=True)
class Sheet:
    """`lanes` vectors beside each other and `down` rows of a block, `tiles` of `wide` columns, `parts` blocks that share them (of a cluster, or each leaves
    what it holds)."""

    lanes: int
    down: int
    tiles: int
    wide: int
    parts: int
    cluster: bool


def sheet(outer: int, n: int, inner: int, size: int, held: int, sms: int, clusters: bool) -> Sheet:
    """For n of [outer, n, inner] elements of `size` bytes, of which `held` bytes are kept of every column."""
    return min(_sheets(outer, n, inner, size, held, sms, clusters), key=lambda s: _cost(s, outer, n, sms))


def _sheets(outer: int, n: int, inner: int, size: int, held: int, sms: int, clusters: bool) -> Iterator[Sheet]:
    v = 16 // size
    vectors, period = -(-inner // v), v // math.gcd(v, inner)
    for lanes in (16, 24, 32, 40):
        wide = -(-vectors // -(-vectors // lanes)) * v
        tiles, across = -(-inner // wide), wide // v + (inner % v > 0)
        for threads in (224, 512):
            room = min(_SHARED // (across * v * held), 1024 // across, max(n // 2, 1)) // period
            down = max(min(round(threads / (across * period)), room), 1) * period
            yield Sheet(across, down, tiles, wide, 1, False)
            for parts in (2, 4, 8, 16, 32, 64):
                if n < parts * 2 * down or outer * tiles * parts > 8 * sms:
                    break
                if clusters and parts <= 8:
                    yield Sheet(across, down, tiles, wide, parts, True)
                if parts > 2:
                    yield Sheet(across, down, tiles, wide, parts, False)


def _cost(s: Sheet, outer: int, n: int, sms: int) -> float:
    """Microseconds that it should take: waves of blocks, each as many rounds of what their threads ask for at once."""
    threads = s.lanes * s.down
    rounds = -(-n // (s.parts * _DEPTH * s.down))

    def wave(blocks: int) -> float:
        return rounds * max(_LATENCY, blocks * threads * _AHEAD / _MEMORY) if blocks else 0.0

    slots = sms * max(_THREADS // (-(-threads // 32) * 32), 1)
    waves, last = divmod(outer * s.tiles * s.parts, slots)
    return _LAUNCH + waves * wave(slots) + wave(last) + (_CLUSTER if s.cluster else _JOIN if s.parts > 1 else 0.0)
