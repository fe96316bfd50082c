"""Attention in f32 by tensor cores, three MMAs for each (3xTF32) (`tf32x3.cuh`)."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common.launch import sms_of_clusters
from ..cost.fitted import fitted
from . import problem
from .problem import Problem

#: Multiply-adds of an SM in a cycle; cycles that it takes to copy an element by itself, to go from
#: a tile of keys to the next, of CTAs beside each other to begin and end, and of one to meet those
#: of a cluster, for each column, and to combine an element of what these have.
_MULTIPLIED, _COPYING, _STEP, _STARTING, _MEETING, _JOINING = fitted(
    "attention.tf32x3", "multiplied copying step starting meeting joining"
)
#: Warps that hide each other's waits, and by how much slower they are for each that is missing, or
#: where they are more, which have fewer registers.
_WARPS, _WAITING, _CRAMPED = 8, 0.1, 1.1
#: Columns of a warp's results up to which registers leave room for what is multiplied next, the
#: same of more than _MANY warps without a cluster, and by how much slower more are; keys of a
#: warp's scores from which on enough is multiplied at once, and by how much slower fewer are.
_ROOMY, _ROOMY_OF_MANY, _MANY, _CROWDED, _ENOUGH, _SCARCE = 128, 112, 10, 1.1, 32, 1.07


def _padded(head: int) -> int:
    return -(-head // 16) * 16


@dataclass(frozen=True)
class Tf32Config:
    """warps: of 16 rows each; keys: of a tile; cluster: CTAs of a cluster that divide the keys;
    groups: of so many warps, with their shares of a tile's keys and of the values' columns.
    """

    warps: int
    keys: int
    cluster: int
    groups: int = 1

    def __str__(self) -> str:
        groups = f"*{self.groups}" if self.groups > 1 else ""
        cluster = f"/{self.cluster}" if self.cluster > 1 else ""
        return f"3xtf32 {16 * self.warps}x{self.keys}{groups}{cluster}"

    @property
    def rows(self) -> int:
        """Query rows of a CTA."""
        return 16 * self.warps

    def smem(self, p: Problem) -> int:
        d, dv = _padded(p.head), self.columns(p) * self.groups
        pitch = d + (0 if d % 32 else 16)
        part = self.rows * (p.head_v + 2) if self.cluster > 1 else 0
        weights = self.rows * (self.keys + 8 + self.groups) if self.groups > 1 else 0
        return 4 * max(self.rows * pitch + self.keys * (pitch + dv + 4) + weights, part)

    def columns(self, p: Problem) -> int:
        """Of a group."""
        return -(-p.head_v // (16 * self.groups)) * 16

    def residents(self, p: Problem) -> int:
        """CTAs of an SM that registers must leave room for."""
        small = self.columns(p) <= 64 and 2 * (self.smem(p) + 1024) <= 228 * 1024
        return 2 if self.groups > 1 and small and 32 * self.warps * self.groups == 256 else 1

    def scratch(self, request: Request, p: Problem, use: DimLike) -> DimLike | None:
        return None

    def kernels(self, request: Request, p: Problem, use: DimLike, place: str = "") -> list[Kernel]:
        sizes = {
            "WARPS": self.warps,
            "GROUPS": self.groups,
            "BN": self.keys,
            "CLUSTER": self.cluster,
            "CTAS_PER_SM": self.residents(p),
            "WRITE": problem.access(request, p, "y"),
            **problem.reads(request, p),
        }
        count = D.product([problem.blocks(request, self.rows), self.cluster, use])
        return [
            problem.kernel(
                request,
                p,
                "attention/tf32x3",
                (count, 1, 1),
                32 * self.warps * self.groups,
                sizes,
                smem=problem.cap_occupancy(request, self.smem(p), count, self.cluster),
                cluster=self.cluster,
            )
        ]


def fits(request: Request) -> bool:
    """Whether tensor cores multiply three times as fast as FFMA, which those of smaller devices do
    not.
    """
    return request.arch < 120 and request.arch not in (86, 89)


def cycles(
    request: Request, p: Problem, c: Tf32Config, sizes: dict[str, int], shared: int
) -> float:
    """About how many a launch takes. shared: bytes of shared memory of an SM."""
    wide = min(problem.access(request, p, o) for o in "kv")
    warps, device = c.warps * c.groups, sms_of_clusters(request.sms, c.cluster)
    ctas = sizes["B"] * sizes["H"] * -(-sizes["S"] // c.rows) * c.cluster
    each: int = -(-ctas // device)
    beside = max(min(_WARPS // warps, shared // (c.smem(p) + 1024)), 1)
    steps = -(-sizes["T"] // (c.keys * c.cluster))
    all_steps: float = each * steps
    if p.causal:
        all_steps = min(all_steps, steps + ctas / device * (steps + 1) / 2)
    elements = c.keys * (_padded(p.head) + _padded(p.head_v))
    step = elements * (c.rows / _MULTIPLIED + _COPYING / wide) + _STEP
    together = warps * min(beside, each)
    # the slowest of four schedulers
    waiting = -(-together // 4) * 4 / together * _CRAMPED
    if together <= _WARPS:
        waiting = 1 + _WAITING * (_WARPS - together)
    roomy = _ROOMY if warps <= _MANY or c.cluster > 1 else _ROOMY_OF_MANY
    slower = _CROWDED if c.columns(p) > roomy else 1
    slower *= _SCARCE if c.keys < _ENOUGH * c.groups else 1
    joining = each * p.head_v * (_MEETING + c.rows * _JOINING) if c.cluster > 1 else 0
    return all_steps * step * waiting * slower + -(-each // beside) * _STARTING + joining
