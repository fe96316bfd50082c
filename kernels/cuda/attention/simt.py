"""Attention in f32: configurations of FFMA (`simt.cuh`), and where those of tensor cores are worth
more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common.launch import known, parameters, sms_of_clusters
from . import problem, tf32x3
from .problem import Problem
from .tf32x3 import Tf32Config

#: Cycles that CTAs beside each other take to begin and end, and to combine what those of a cluster
#: have.
_STARTING, _JOINING = 3000, 4000
#: By how much a larger tile must be better: the cycles are guesses.
_WORTH = 0.9

Chosen = list[tuple[Any, DimLike]]


@dataclass(frozen=True)
class SimtConfig:
    """rows, keys: of a thread, which has every 16th of the CTA's; cluster: CTAs of a cluster that
    divide the keys.
    """

    rows: int
    keys: int
    cluster: int = 1

    def __str__(self) -> str:
        cluster = f"/{self.cluster}" if self.cluster > 1 else ""
        return f"{16 * self.rows}x{16 * self.keys}{cluster}"

    def smem(self, p: Problem) -> int:
        d, dv = -(-p.head // 4) * 4, -(-p.head_v // 64) * 64
        pitch = d + 4 + (4 if d // 4 % 2 else 0)
        rows, keys = 16 * self.rows, 16 * self.keys
        part = rows * (p.head_v + 2) if self.cluster > 1 else 0
        return 4 * max(rows * pitch + keys * (pitch + dv + 4) + rows * (keys + 4), part)

    def scratch(self, request: Request, p: Problem, use: DimLike) -> DimLike | None:
        return None

    def kernels(self, request: Request, p: Problem, use: DimLike, place: str = "") -> list[Kernel]:
        sizes = {"R": self.rows, "J": self.keys, "CLUSTER": self.cluster}
        count = D.product([problem.blocks(request, 16 * self.rows), self.cluster, use])
        return [
            problem.kernel(
                request,
                p,
                "attention/simt",
                (count, 1, 1),
                256,
                sizes | problem.reads(request, p),
                smem=problem.cap_occupancy(request, self.smem(p), count, self.cluster),
                cluster=self.cluster,
            )
        ]


def _cycles(request: Request, p: Problem, c: SimtConfig, sizes: dict[str, int]) -> float:
    """About how many a launch takes. Shared memory hands a warp 16 bytes per thread in four, also
    where threads read the same; an SM multiplies four warps' numbers in one.
    """
    rows, keys, groups = c.rows, c.keys, -(-p.head_v // 64)
    scores = -(-p.head // 4) * max(4 * (rows + keys), rows * keys)
    values = 4 * keys * max(4 * (rows + 4 * groups), 4 * rows * groups)
    ctas = sizes["B"] * sizes["H"] * -(-sizes["S"] // (16 * rows)) * c.cluster
    each: int = -(-ctas // sms_of_clusters(request.sms, c.cluster))  # of an SM
    # as far as registers and shared memory go
    beside = 1 if rows * (keys + 4 * groups) > 32 or 2 * c.smem(p) > HOPPER_SHARED else 2
    steps = -(-sizes["T"] // (16 * keys * c.cluster))
    waiting = 1.15 if min(beside, each) == 1 else 1.0  # nobody multiplies while weights are found
    starting = _STARTING + (_JOINING if c.cluster > 1 else 0)
    return 8 * each * steps * (scores + values) * waiting + -(-each // beside) * starting


def _large(
    request: Request, p: Problem, keys: tuple[int, ...], clusters: tuple[int, ...]
) -> list[SimtConfig]:
    """Configurations whose threads multiply more of what they read, as far as there is room for
    them.
    """
    rows = (8, 4) if p.widest <= 128 else (4,)
    found = [SimtConfig(r, k, n) for r in rows for k in keys for n in clusters]
    return [c for c in found if c.smem(p) <= request.caps.smem_block]


def _tensor(request: Request, p: Problem, clusters: tuple[int, ...]) -> list[Tf32Config]:
    """Configurations of tensor cores, as far as shared memory goes."""
    if not tf32x3.fits(request):
        return []
    shapes: tuple[tuple[int, int, int], ...] = ((4, 64, 1), (2, 64, 4))
    if p.widest > 96:
        large, divided = ((4, 64, 1), (4, 32, 1), (8, 64, 1), (8, 32, 1)), ((4, 64, 2), (2, 64, 4))
        few = ((2, 32, 2), (3, 64, 4), (5, 32, 2), (6, 32, 2))  # there is no room for many CTAs
        shapes = (*large, *divided) if p.widest <= 128 else (*divided, *few, *large)
    found = [Tf32Config(warps, keys, n, groups) for warps, keys, groups in shapes for n in clusters]
    if p.widest > 128:
        found.append(Tf32Config(5, 48, 1, 3))
    return [c for c in found if c.smem(p) <= request.caps.smem_block]


def _many(request: Request, p: Problem, keys: int) -> Chosen:
    """Large tiles for sizes that are not known: one where there are many of it, on tensor cores
    another with the keys divided where there are some.
    """
    enough = request.sms - 1
    if tensor := _tensor(request, p, (1,)):
        large = tensor[0]
        count = problem.blocks(request, large.rows)
        if request.arch >= 90 and len(tensor) > 1 and p.widest <= 96:
            return _by_count(request, large, tensor[1], count)
        many = D.less(enough, count)
        found: Chosen = [(large, many)]
        if request.arch >= 90:
            long = D.less(4 * large.keys - 1, parameters(request)["T"])
            some = D.mul(D.less(enough, D.mul(count, 4)), long)
            found.append((replace(large, cluster=4), D.mul(D.sub(1, many), some)))
        return found
    return [
        (c, D.less(2 * enough + 1, problem.blocks(request, 16 * c.rows)))
        for c in _large(request, p, (keys,), (1,))[:1]
    ]


def _by_count(request: Request, large: Tf32Config, small: Tf32Config, count: DimLike) -> Chosen:
    """By how many of the large tiles there are: these, with the keys divided where there are some,
    else small ones whose warps divide them, with these divided again where they are few. Where
    there is one tile of keys, and few of rows, others do as well.
    """
    keys, sms = parameters(request)["T"], request.sms
    many, some, few, least = (
        D.less(n, count) for n in (sms * 3 // 2, sms // 2, sms // 4, sms // 8)
    )
    short, long = D.less(keys, large.keys + 1), D.less(4 * small.keys - 1, keys)
    rest = D.product([D.sub(1, few), D.sub(1, short)])
    quarters = D.product([D.sub(1, least), long])
    return [
        (large, D.maximum(many, D.mul(some, short))),
        (replace(large, cluster=2), D.product([some, D.sub(1, many), D.sub(1, short)])),
        (small, D.mul(few, D.sub(1, some))),
        (replace(small, cluster=2), D.mul(rest, D.sub(1, quarters))),
        (replace(small, cluster=4), D.mul(rest, quarters)),
    ]


def configs(request: Request, p: Problem) -> Chosen:
    """Those worth having, each with whether it is for the sizes of a run: the most rows of which
    there are tiles for every SM, else few, with the keys divided; where sizes are known, larger
    ones and those of tensor cores when they take fewer cycles.
    """
    i = parameters(request)
    exact = {n: v for n in "BHST" if (v := known(i[n])) is not None}
    fixed, most = len(exact) == 4, request.caps.cluster
    most_rows = (4, 2, 1) if p.widest <= 128 else (2, 1)
    keys = 4 if p.widest <= 128 else 2
    found = [] if fixed else _many(request, p, keys)
    left: DimLike = 1  # whether no larger tile is chosen
    for _, use in found:
        left = D.sub(left, use)
    for rows in most_rows if fixed else (1,) if _tensor(request, p, (1,)) else (most_rows[0], 1):
        fitting = keys
        while SimtConfig(rows, fitting).smem(p) > request.caps.smem_block:
            fitting //= 2
        count = problem.blocks(request, 16 * rows)
        if rows > 1:
            enough = D.less(request.sms - 1, count)
            found.append((SimtConfig(rows, fitting), D.mul(left, enough)))
            left = D.mul(left, D.sub(1, enough))
            continue
        clusters: tuple[int, ...] = (1, 2, 4, 8) if fixed else (1, 4)
        # `_by_count` leaves few keys
        clusters = (1,) if request.arch < 90 or len(found) > 2 else clusters
        clusters = tuple(n for n in clusters if n <= most)
        found += [
            (SimtConfig(rows, fitting, n), D.mul(left, use))
            for n, use in problem.divided(request, count, i["T"], 8 * fitting, clusters)
        ]
    found = [(c, use) for c, use in found if use != 0]
    if not fixed:
        return found
    plain = found[0][0]
    price: dict[Any, float] = {plain: _WORTH * _cycles(request, p, plain, exact)}
    if tensor := _tensor(request, p, tuple(n for n in (1, 2, 4, 8) if n <= most)):
        room = request.caps.smem_block + 1024
        price |= {c: tf32x3.cycles(request, p, c, exact, room) for c in tensor}
    else:
        large = _large(request, p, (8, 4, 2), tuple(n for n in (1, 2, 4) if n <= most))
        price |= {c: _cycles(request, p, c, exact) for c in large if c != plain}
    best = kernel_choice.cheapest(price)
    return found if best == plain else [(best, 1)]
