"""What products of f32 with few steps along k cost: one model of blocks, fitted to measurements on
an H200, for all kinds of their tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS
from tracea_onnx.ir.dims import DimLike

from ..common.launch import clustered, known, overlapped, share

#: Most k for which these hold.
TERMS = 1200
#: Activations that take a few instructions and no special function.
SIMPLE = frozenset({"none", "relu", "leaky_relu", "clip", "hard_sigmoid"})


@dataclass(frozen=True)
class Blocks:
    """bm by bn results of a block, bk of k in a step; blocks that divide k, and that a
    multiprocessor holds.
    """

    bm: int
    bn: int
    bk: int
    split: int
    resident: int

    def here(self, m: int, n: int, batch: int, sms: int) -> int:
        """Blocks of one multiprocessor."""
        blocks = -(-m // self.bm) * -(-n // self.bn) * batch * self.split
        return -(-blocks // clustered(sms, self.split))


@dataclass(frozen=True)
class Kind:
    """Clocks of 32 elements that a block copies: along k, and there 16 bytes at a time; of a line's
    32 rows, and of 32 such elements 16 bytes at a time. Clocks of a byte from memory; of a result,
    and what it takes beyond that where a dear activation finishes it, clusters add it up, and rows
    of y begin anywhere; of a cluster's exchange."""

    along: float
    along16: float
    turned: float
    turned16: float
    memory: float
    result: float
    dear: float
    joined: float
    anywhere: float
    exchange: float


def dear(r: Request) -> bool:
    """Whether finishing a result takes many instructions."""
    return r.program is not None or ACTIVATIONS[int(r.ints.get("act", 0))] not in SIMPLE


def even(r: Request, smem: int, blocks: DimLike, resident: int) -> int:
    """Shared memory with which a multiprocessor, which would hold `resident` of so many blocks,
    holds no more than its share where two launches do not fit together. Else some blocks of the
    next one come early, to where this one leaves room, and the others to where it ends first, all
    together."""
    if not overlapped(r) or known(D.less(r.sms * resident, D.mul(blocks, 2))) != 1:
        return smem
    here = next(
        (n for n in range(1, resident) if known(D.less(blocks, n * r.sms + 1)) == 1), resident
    )
    return share(r, smem, here) if here < resident else smem


def clocks(
    kind: Kind,
    own: tuple[float, float, float],
    t: Blocks,
    m: int,
    n: int,
    k: int,
    batch: int,
    sms: int,
    a: Any,
    b: Any,
    y: bool,
    dear: bool,
) -> float:
    """Clocks of a product, comparable with `multistage_tiles.odd_cost`. own: a tile's clocks to
    start, of each step of a wave of blocks, and of each step of a block."""
    start, wave, step = own
    here = t.here(m, n, batch, sms)
    steps = -(-k // (t.bk * t.split))
    depth, copies = steps * t.bk, 0.0
    for how, rows in ((a, t.bm), (b, t.bn)):
        if not (how.trans or how.gather):
            copies += rows * depth / 32 * (kind.along16 if how.bytes == 16 else kind.along)
        else:
            copies += (
                rows * depth / 128 * kind.turned16
                if how.bytes == 16
                else -(-rows // 32) * depth * kind.turned
            )
    each = (
        kind.result
        + kind.dear * dear
        + (0.0 if y else kind.anywhere)
        + (kind.joined if t.split > 1 else 0.0)
    )
    exchange = kind.exchange if t.split > 1 else 0.0
    memory = kind.memory * 4 * batch * (m * k + n * k + m * n)
    return (
        start
        + -(-here // t.resident) * steps * wave
        + here * (steps * step + copies + each * t.bm * t.bn)
        + exchange
        + memory
    )
