"""Where the boxes of a drawn graph stand, and how the curves between them run.

A box stands one row below the lowest box that it reads; within a row, boxes stand near what they
are connected to (barycentre ordering).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import accumulate, pairwise

#: Boxes and the gaps between them, in pixels.
WIDTH, HEIGHT, GAP, RISE = 150.0, 38.0, 22.0, 34.0
#: Pixels of a row that a value only passes through.
_THREAD = 12.0
_SWEEPS = 12
#: Rows that all edges together pass; where they are more, an edge is one curve.
_MOST = 1 << 18
#: Rows on each side over which the middle of a drawing is kept straight.
_AROUND = 30

#: A box, or a place in a row that the value of a box passes through.
Stop = str | tuple[str, int]
Place = tuple[float, float]
#: A cubic Bezier curve: both ends, and the control points between them.
Curve = tuple[Place, Place, Place, Place]
#: The stops beside each stop: of its readers, or of what it reads.
_Beside = dict[Stop, list[Stop]]


@dataclass(frozen=True)
class Layout:
    """Top centres of the boxes, the curves, the curves of each edge, and the size of it all.

    Edges from one box share curves where they run together.
    """

    at: dict[str, Place]
    curves: list[Curve]
    ways: list[list[int]]
    size: Place


def layout(
    boxes: Sequence[str], edges: Sequence[tuple[str, str]], sources: Collection[str]
) -> Layout:
    """The boxes from top to bottom. Each of `sources`, which reads nothing, stands just above its
    first reader.
    """
    row = _rows(boxes, edges, sources)
    straight = sum(row[b] - row[a] for a, b in edges) > _MOST
    ways: list[list[Stop]] = [
        [a, *((a, k) for k in range(row[a] + 1, row[b]) if not straight), b] for a, b in edges
    ]
    steps = dict.fromkeys(s for way in ways for s in pairwise(way))
    above: _Beside = {b: [] for b in boxes}
    below: _Beside = {b: [] for b in boxes}
    for a, b in steps:
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    rows: list[list[Stop]] = [[] for _ in range(max(row.values(), default=0) + 1)]
    for stop in above:
        rows[row[stop] if isinstance(stop, str) else stop[1]].append(stop)
    width = {s: WIDTH if isinstance(s, str) else _THREAD for s in above}
    x = _columns(rows, above, below, width)
    at = {s: (x[s], 10 + k * (HEIGHT + RISE)) for k, stops in enumerate(rows) for s in stops}
    number = {step: k for k, step in enumerate(steps)}
    right = max((x[s] + width[s] / 2 for s in x), default=0.0)
    return Layout(
        {b: at[b] for b in boxes},
        _curves(list(steps), above, below, at),
        [[number[s] for s in pairwise(way)] for way in ways],
        (right + 10, 20 + len(rows) * (HEIGHT + RISE)),
    )


def _rows(
    boxes: Sequence[str], edges: Sequence[tuple[str, str]], sources: Collection[str]
) -> dict[str, int]:
    reads: dict[str, list[str]] = {b: [] for b in boxes}
    readers: dict[str, list[str]] = {b: [] for b in boxes}
    for a, b in edges:
        reads[b].append(a)
        readers[a].append(b)
    row: dict[str, int] = {}
    for b in TopologicalSorter(reads).static_order():
        row[b] = max((row[a] + 1 for a in reads[b]), default=0)
    for b in sources:
        row[b] = min((row[r] for r in readers[b]), default=1) - 1
    return row


def _columns(
    rows: list[list[Stop]], above: _Beside, below: _Beside, width: Mapping[Stop, float]
) -> dict[Stop, float]:
    """x of every stop: each as near the mean of its neighbours as the others of its row allow,
    sweeping down and up.
    """
    x: dict[Stop, float] = {}
    for row in rows:
        _place(row, {s: float(i) for i, s in enumerate(row)}, width, x)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wish = {}
            for s in row:
                near = above[s] if down else below.get(s, [])
                if sweep >= _SWEEPS // 2:
                    near = above[s] + below.get(s, [])
                wish[s] = _mean([x[n] for n in near]) if near else x[s]
            row.sort(key=lambda s: wish[s])
            _place(row, wish, width, x)
    drift = _smooth([(x[row[0]] + x[row[-1]]) / 2 for row in rows])
    for row, middle in zip(rows, drift, strict=True):
        for s in row:
            x[s] -= middle
    least = min((x[s] - width[s] / 2 for s in x), default=0.0)
    return {s: v - least + 10 for s, v in x.items()}


def _smooth(values: Sequence[float]) -> list[float]:
    """Means around each: how the rows of a deep graph drift to a side, a little from one to the
    next.
    """
    sums = [0.0, *accumulate(values)]
    ends = [(max(0, k - _AROUND), min(len(values), k + _AROUND + 1)) for k in range(len(values))]
    return [(sums[b] - sums[a]) / (b - a) for a, b in ends]


def _place(
    row: Sequence[Stop],
    wish: Mapping[Stop, float],
    width: Mapping[Stop, float],
    x: dict[Stop, float],
) -> None:
    """Put the row's stops in order, none overlapping, as a whole where they wish to be (pool
    adjacent violators).
    """
    # members, position of the first, width so far
    groups: list[tuple[list[Stop], float, float]] = []
    for s in row:
        members, start, used = [s], wish[s] - width[s] / 2, width[s] + GAP
        while groups and groups[-1][1] + groups[-1][2] > start:
            before, at, wide = groups.pop()
            n, m = len(before), len(members)
            # The merged group starts where the mean of its members' wishes puts it.
            start = (at * n + (start - wide) * m) / (n + m)
            members, used = before + members, wide + used
        groups.append((members, start, used))
    for members, start, _ in groups:
        for s in members:
            x[s] = start + width[s] / 2
            start += width[s] + GAP


def _curves(
    steps: Sequence[tuple[Stop, Stop]], above: _Beside, below: _Beside, at: Mapping[Stop, Place]
) -> list[Curve]:
    """They leave and enter boxes straight down, and pass other rows in the direction that the
    value's way has there.
    """
    lean: dict[Stop, float] = {}
    for s in at:
        if not isinstance(s, str):
            before, after = [at[n] for n in above[s]], [at[n] for n in below[s]]
            lean[s] = (_mean([p[0] for p in after]) - _mean([p[0] for p in before])) / (
                _mean([p[1] for p in after]) - _mean([p[1] for p in before])
            )
    out: list[Curve] = []
    for a, b in steps:
        x, y = at[a][0], at[a][1] + (HEIGHT / 2 if a in lean else HEIGHT)
        u, v = at[b][0], at[b][1] + (HEIGHT / 2 if b in lean else 0.0)
        d = (v - y) * 0.42
        out.append(
            ((x, y), (x + lean.get(a, 0.0) * d, y + d), (u - lean.get(b, 0.0) * d, v - d), (u, v))
        )
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
