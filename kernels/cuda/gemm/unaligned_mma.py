"""Products with many results and few terms, whose rows begin anywhere (`unaligned_mma.cuh`,
`unaligned_simt.cuh`): tiles and kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue
from ..common.launch import declared
from ..common.prelude import prelude
from ..common.templates import template
from . import block_costs, select

_BK = 32  # k of a step
_THREADS = 512  # of all blocks that a multiprocessor holds


@dataclass(frozen=True)
class FlatTile:
    """Warps along rows and columns, each with 32 by 32 results. held: threads of all blocks of a
    multiprocessor, more than _THREADS where they hold little; ahead: steps that are read ahead."""

    warps_m: int
    warps_n: int
    held: int = _THREADS
    ahead: int = 1

    @property
    def bm(self) -> int:
        return 32 * self.warps_m

    @property
    def bn(self) -> int:
        return 32 * self.warps_n

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    def smem(self, a: Any, b: Any, f32: bool) -> int:
        """Bytes of two steps, then of the results. a, b: how operands are read."""
        if f32:
            return max(2 * _BK * (self.bm + self.bn + 8) * 4, self.bm * (self.bn + 4) * 4)
        stage = sum(
            rows * _BK * 2 + (_BK * 16 if how.trans else 0)
            for rows, how in ((self.bm, a), (self.bn, b))
        )
        return max(2 * stage, self.bm * (self.bn * 2 + 16))


_WARPS = (
    (2, 2),
    (1, 4),
    (1, 6),
    (1, 8),
    (2, 4),
    (4, 1),
    (1, 2),
    (1, 3),
    (1, 5),
    (1, 7),
    (2, 1),
    (2, 3),
    (3, 1),
    (3, 2),
)
# where k takes more steps than lie in shared memory at once
_MANY_WARPS = ((4, 2), (8, 1), (3, 3), (2, 6), (3, 4), (4, 3), (4, 4))
TILES = tuple(FlatTile(*warps) for warps in (*_WARPS, *_MANY_WARPS))
TILES_F32 = TILES[:2]
#: Threads of a multiprocessor and steps that they read ahead; registers that a thread needs beside
#: what it reads ahead.
_AHEAD, _REGISTERS = ((_THREADS, 1), (768, 1), (_THREADS, 2), (384, 3), (256, 4)), 56

#: The cost model of two-byte elements, fitted to measurements on an H200. Clocks to start, of a
#: wave of blocks, of its steps, of a warp, of rows of an operand that begin anywhere, of parts of
#: y's rows that do, for all and for 32 of a block, of a result; clocks a byte from memory.
_START, _WAVE, _STEP, _WARP, _ROW, _PARTS, _PART, _RESULT, _MEMORY = (
    2700.0,
    370.0,
    1230.0,
    13.8,
    1.54,
    1290.0,
    232.0,
    0.07,
    5.53e-4,
)
#: The same where k is long: clocks to start, of a wave's steps and of its reads, of a warp, of rows
#: that begin anywhere, of a result; clocks a byte from memory.
_LONG_START, _LONG_STEP, _LONG_READS, _LONG_WARP, _LONG_ROW, _LONG_RESULT, _LONG_MEMORY = (
    3160.0,
    870.0,
    383.0,
    78.0,
    1.5,
    0.17,
    4.9e-4,
)
#: That of f32. Clocks to start, of a wave's steps; of a warp: itself, its k where FFMA multiplies,
#: and what it reads in a step; clocks a byte from memory.
_START_F32, _STEP_F32, _WARP_F32, _DEEP_F32, _READ_F32, _MEMORY_F32 = (
    3120.0,
    785.0,
    21.1,
    11.7,
    1.21,
    2.98e-4,
)
_FINISH_F32 = 0.6  # clocks of a result that takes many instructions
_TERMS, _MOST, _LEAST = (1, 12), (1024, 256), 8  # k, and columns, for which these hold


def candidates(k: int, a: Any, b: Any) -> Iterator[FlatTile]:
    """Tiles of two-byte elements. a, b: how operands are read."""
    if k <= 2 * _BK:
        yield from (
            replace(t, held=held) for t in TILES[: len(_WARPS)] for held in (_THREADS, 2 * _THREADS)
        )
        return
    for t in TILES:
        words = 0  # of a thread in a step
        for how, rows in ((a, t.bm), (b, t.bn)):
            across, lines = (rows // 8, _BK) if how.trans else (_BK // 8, rows)
            words += -(-lines * across // t.threads) * (4 if how.bytes == 16 else 8)
        for held, ahead in _AHEAD:
            if (
                t.threads <= held
                and 65536 // (held // t.threads * t.threads) >= _REGISTERS + ahead * words
            ):
                yield replace(t, held=held, ahead=ahead)


def tile_cost(
    t: FlatTile, m: int, n: int, k: int, batch: int, sms: int, f32: bool, y: bool, whole: tuple[bool, bool] = (False, False), dear: bool = False,
) -> float:  # fmt: skip
    """Clocks, comparable with `multistage_tiles.odd_cost`. whole: whether rows of a and b begin at
    multiples of 16 bytes; dear: whether finishing a result takes many instructions (f32)."""
    here, steps = -(-(-(-m // t.bm) * -(-n // t.bn) * batch) // sms), -(-k // _BK)
    waves, elements = -(-here // max(1, t.held // t.threads)), batch * (m * k + n * k + m * n)
    if f32:
        each = (
            _WARP_F32
            + _DEEP_F32 * (-(-k // 4) * 4)
            + steps * (32 // t.warps_n + 32 // t.warps_m) * _READ_F32
        )
        finished = _FINISH_F32 * here * t.bm * t.bn if dear else 0.0
        return (
            _START_F32
            + finished
            + waves * steps * _STEP_F32
            + here * t.warps_m * t.warps_n * each
            + _MEMORY_F32 * 4 * elements
        )
    rows = sum(size for size, at_once in zip((t.bm, t.bn), whole, strict=True) if not at_once)
    parts = n > t.bn and not y
    if k > 2 * _BK:
        each = (
            steps * rows * _LONG_ROW
            + t.warps_m * (t.warps_n * _LONG_WARP + parts * _PART)
            + _LONG_RESULT * t.bm * min(t.bn, n)
        )
        return (
            _LONG_START
            + waves * (steps * _LONG_STEP + -(-steps // t.ahead) * _LONG_READS)
            + here * each
            + _LONG_MEMORY * 2 * elements
        )
    each = (
        steps * rows * _ROW
        + t.warps_m * (t.warps_n * _WARP + parts * _PART)
        + _RESULT * t.bm * min(t.bn, n)
    )
    return (
        _START
        + waves * (_WAVE + steps * _STEP)
        + here * each
        + parts * _PARTS
        + _MEMORY * 2 * elements
    )


def prices(
    r: Request, m: int, n: int, k: int, batch: int, a: Any, b: Any, y: bool
) -> dict[FlatTile, float]:
    """Clocks of the tiles for these sizes. a, b: how operands are read (`select.Access`); y:
    whether rows of y begin at multiples of 16 bytes.
    """
    f32 = r.dtype == DType.F32
    if (
        r.arch < 90
        or not (_TERMS[f32] <= k <= _MOST[f32])
        or n < _LEAST
        or (not f32 and (a.gather or b.gather))
    ):
        return {}
    tiles = TILES_F32 if f32 else candidates(k, a, b)
    return {
        t: tile_cost(
            t, m, n, k, batch, r.sms, f32, y, (a.bytes == 16, b.bytes == 16), block_costs.dear(r)
        )
        for t in tiles
    }


def product(
    r: Request, tile: FlatTile, *, params: Sequence[tuple[str, str, Argument]], a: Any, b: Any, pitches: tuple[DimLike, ...],
    rows: DimLike, columns: DimLike, grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `select.product` takes them."""
    epi = epilogue.epilogue(r, pitches, 0, scaled=r.family == "matmul", width=2)
    parameters, f32 = [*params, *epi.parameters], r.dtype == DType.F32
    i = {name: v.value for _, name, v in params if isinstance(v, (Int32, Int64))}
    depth = select.known(i["K"], 1 << 30)
    for o, row, count in (("a", "m", rows), ("b", "n", columns)) if not f32 else ():
        span: DimLike = D.add(
            D.add(D.mul(D.add(count, -1), i[f"{o}_{row}"]), D.mul(D.add(i["K"], -1), i[f"{o}_k"])),
            1,
        )
        before = (
            D.add(D.mul(D.add(grid_z, -1), i[f"{o}_0"]), D.mul(D.add(grid_y, -1), i[f"{o}_1"]))
            if batched
            else 0
        )
        parameters += [
            ("i64", f"span_{o}", Int64(span)),
            ("i64", f"all_{o}", Int64(D.add(before, span))),
        ]
    text = "\n".join([
        prelude(r.dtype), f"#define IS_F32 {int(f32)}", f'#define MMA_TYPE "{select.MMA_TYPE[r.dtype]}"', select.to_batch(batched),
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr int WARPS_M = {tile.warps_m}, WARPS_N = {tile.warps_n}, A_BYTES = {a.bytes}, B_BYTES = {b.bytes};",
        f"constexpr int HELD = {tile.held}, AHEAD = {tile.ahead}, WHOLE = {-(-depth // _BK) if depth <= 2 * _BK else 0};",
        f"constexpr bool EVEN = {int(select.each(r) > 1)};" if not f32 else "",
        f"constexpr bool A_ALONG = {int(not (a.trans or a.gather))}, B_ALONG = {int(not (b.trans or b.gather))};", epi.source,
        template("gemm/unaligned_simt" if f32 else "gemm/unaligned_mma"),
    ])  # fmt: skip
    grid = D.product([D.ceildiv(rows, tile.bm), D.ceildiv(columns, tile.bn), active])
    return Kernel(
        text,
        "product_flat",
        (grid, grid_y, grid_z),
        tile.threads,
        tuple(v for _, _, v in parameters),
        tile.smem(a, b, f32),
        1,
        True,
    )
