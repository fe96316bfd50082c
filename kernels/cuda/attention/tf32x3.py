"""Attention in f32 by tensor cores, three products of each two elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common.launch import clustered, overlapped
from ..common.prelude import prelude
from ..common.templates import template
from . import problem

#: Pairs of elements that a multiprocessor multiplies in a cycle; cycles that it takes to copy one
#: of them by itself, to go from a tile of keys to the next, of blocks beside each other to begin
#: and end, and of one to meet those of a cluster, for each column, and to join an element of what
#: these have.
_MULTIPLIED, _COPYING, _STEP, _STARTING, _MEETING, _JOINING = 125, 0.4, 300, 5700, 16, 0.1
#: Warps that hide each other's waits, and by how much slower they are for each that is missing:
#: nobody multiplies while weights are found.
_WARPS, _WAITING = 8, 0.1
#: Columns of a warp's results up to which registers leave room for what is multiplied next, the
#: same of more than so many warps (that have all keys: measured there), keys of its scores from
#: which on enough is multiplied at once; and by how much slower other warps are, and more than
#: `_WARPS` of them, which have fewer registers.
_ROOMY, _ROOMY_OF_MANY, _MANY, _ENOUGH, _CROWDED, _SCARCE, _CRAMPED = (
    128,
    112,
    10,
    32,
    1.1,
    1.07,
    1.1,
)


def _padded(head: int) -> int:
    return -(-head // 16) * 16


@dataclass(frozen=True)
class SplitTile:
    """warps: of 16 rows each; keys: of a tile; parts: blocks of a cluster that divide the keys;
    groups: of so many warps, with their shares of a tile's keys and of the values' columns."""

    warps: int
    keys: int
    parts: int
    groups: int = 1

    def __str__(self) -> str:
        return f"tensor {16 * self.warps}x{self.keys}{f'*{self.groups}' if self.groups > 1 else ''}{f'/{self.parts}' if self.parts > 1 else ''}"

    def smem(self, p: Any) -> int:
        d, dv = _padded(int(p.head)), self.columns(p) * self.groups
        pitch, rows = d + (0 if d % 32 else 16), 16 * self.warps
        part = rows * (int(p.head_v) + 2) if self.parts > 1 else 0
        weights = rows * (self.keys + 8 + self.groups) if self.groups > 1 else 0
        return 4 * max(rows * pitch + self.keys * (pitch + dv + 4) + weights, part)

    def columns(self, p: Any) -> int:
        """Of a group."""
        return -(-int(p.head_v) // (16 * self.groups)) * 16

    def residents(self, p: Any) -> int:
        """Blocks that registers must leave room for beside each other."""
        return (
            2
            if self.groups > 1
            and self.columns(p) <= 64
            and 32 * self.warps * self.groups == 256
            and 2 * (self.smem(p) + 1024) <= 228 * 1024
            else 1
        )


def fits(request: Request) -> bool:
    """Whether tensor cores multiply three times as fast as threads, which those of smaller devices
    do not.
    """
    return request.arch < 120 and request.arch not in (86, 89)


def cycles(request: Request, p: Any, tile: SplitTile, sizes: dict[str, int], shared: int) -> float:
    """About how many a launch takes. shared: bytes of shared memory of a multiprocessor."""
    rows, wide, warps = (
        16 * tile.warps,
        min(problem.access(request, p, o) for o in "kv"),
        tile.warps * tile.groups,
    )
    blocks = sizes["B"] * sizes["H"] * -(-sizes["S"] // rows) * tile.parts
    device = clustered(request.sms, tile.parts)
    each: int = -(-blocks // device)
    beside = max(min(_WARPS // warps, shared // (tile.smem(p) + 1024)), 1)
    steps = -(-sizes["T"] // (tile.keys * tile.parts))
    all_steps = (
        min(each * steps, steps + blocks / device * (steps + 1) / 2) if p.causal else each * steps
    )
    step = (
        tile.keys * (_padded(p.head) + _padded(p.head_v)) * (rows / _MULTIPLIED + _COPYING / wide)
        + _STEP
    )
    together = warps * min(beside, each)
    # the slowest of four schedulers
    waiting = (
        1 + _WAITING * (_WARPS - together)
        if together <= _WARPS
        else -(-together // 4) * 4 / together * _CRAMPED
    )
    roomy = _ROOMY if warps <= _MANY or tile.parts > 1 else _ROOMY_OF_MANY
    slower = (_CROWDED if tile.columns(p) > roomy else 1) * (
        _SCARCE if tile.keys < _ENOUGH * tile.groups else 1
    )
    joining = each * p.head_v * (_MEETING + rows * _JOINING) if tile.parts > 1 else 0
    return float(all_steps * step * waiting * slower + -(-each // beside) * _STARTING + joining)


def kernel(request: Request, p: Any, tile: SplitTile, use: DimLike) -> Kernel:
    widths = {f"READ_{o.upper()}": problem.access(request, p, o) for o in "qkv"} | {
        "WRITE": problem.access(request, p, "y")
    }
    block = 32 * tile.warps * tile.groups
    sizes = {
        "WARPS": tile.warps,
        "GROUPS": tile.groups,
        "BN": tile.keys,
        "PARTS": tile.parts,
        "THREADS": block,
        **widths,
    }
    constants = "".join(f"constexpr int {k} = {v};\n" for k, v in sizes.items())
    templates = template(
        "common/base",
        "common/mma",
        "attention/problem",
        "attention/splitkv_cluster",
        "attention/async_copy",
        "attention/load_rows",
        "attention/online_softmax",
        "attention/tf32x3",
    )
    source = f"{prelude(request.dtype)}{p.constants(request.dtype)}{constants}{templates}{problem.entry(block, blocks=tile.residents(p))}"
    grid = (D.product([problem.blocks(request, 16 * tile.warps), tile.parts, use]), 1, 1)
    smem = problem.apart(request, tile.smem(p), grid[0], tile.parts)
    return Kernel(
        source,
        "attention",
        grid,
        block,
        problem.arguments(request, {}),
        smem=smem,
        cluster=tile.parts,
        pdl=overlapped(request),
    )
