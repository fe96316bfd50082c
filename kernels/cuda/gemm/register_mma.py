"""Small products of two-byte elements, read straight into registers (`register_mma.cuh`): tiles and
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import epilogue
from ..common.launch import declared
from ..common.prelude import prelude
from ..common.templates import template
from . import select


@dataclass(frozen=True)
class DirectTile:
    """A warp has 16 `high` rows by 32 columns; warps along rows, columns and k; steps of 32 k that
    are read ahead.
    """

    high: int
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    ahead: int = 1

    @property
    def bm(self) -> int:
        return 16 * self.high * self.warps_m

    @property
    def bn(self) -> int:
        return 32 * self.warps_n

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k


TILES = (
    *(DirectTile(1, warps_k=k) for k in (1, 2, 4, 8)), DirectTile(2, warps_k=4), DirectTile(2, warps_k=8), DirectTile(2, warps_k=4, ahead=2),
    DirectTile(2, 2, 2), DirectTile(2, 2, 2, 2),
)  # fmt: skip
#: Tiles of rows that are read once, as warps have all columns, which wait for memory once or twice;
#: where pieces have all of their elements or none.
TILES_ONCE = tuple(DirectTile(high, 4, ahead=ahead) for high in (1, 2) for ahead in (1, 2, 3, 4, 5))
#: The cost model, fitted to measurements on an H200. Clocks to start, of a wave of warps, until a
#: step's operands come and more for each that is read ahead or that has 32 rows, of a warp to read
#: a piece, of an operand whose pieces lie anyhow, of rows whose places begin anywhere, to add up
#: the sums of a warp; clocks a byte from memory.
_START, _WAVE, _STEP, _AHEAD, _HIGH, _PIECE, _ENDS, _ANYWHERE, _SUM, _MEMORY = (
    1540.0,
    780.0,
    704.0,
    298.0,
    139.0,
    6.27,
    322.0,
    640.0,
    25.0,
    6.0e-4,
)
_SHIFTED = 2.2  # pieces that a piece costs that begins anywhere
#: That of TILES_ONCE: clocks to start; of each read of steps, of a step that is read ahead, and one
#: of 32 rows; of a warp to read a piece, to finish eight rows, and of such rows that begin
#: anywhere; clocks a byte from memory.
_ONCE_START, _ONCE_READ, _ONCE_AHEAD, _ONCE_HIGH, _ONCE_PIECE, _ONCE_FINISH = (
    2820.0,
    141.0,
    268.0,
    169.0,
    2.32,
    14.2,
)
_ONCE_ANYWHERE, _ONCE_MEMORY = 437.0, 3.42e-4


def _whole(t: DirectTile, a: Any, b: Any) -> tuple[bool, bool]:
    """Whether pieces of either operand lie at multiples of their size."""
    of_a, of_b = (
        how.bytes == 16 if not how.trans else how.bytes >= size
        for how, size in ((a, 4 * t.high), (b, 8))
    )
    return of_a, of_b


def _exact(r: Request, how: Any, rows: str, size: int) -> bool:
    """Whether pieces of an operand of `rows`, of `size` bytes where these are contiguous, have all
    of their elements or none.
    """
    return r.family in select.MATRICES and multiple_of(
        r.ints[rows if how.trans else "K"]
    ) * r.dtype.size >= (size if how.trans else 16)


def tile_cost(
    t: DirectTile, m: int, n: int, k: int, batch: int, sms: int, a: Any, b: Any, y: bool
) -> float:
    """Clocks, comparable with `multistage_tiles.odd_cost`."""
    # of one multiprocessor, with as many warps as divide k
    places = -(-(-(-m // t.bm) * -(-n // t.bn) * batch) // sms) * t.warps_m * t.warps_n
    waves, all_steps = -(-places * t.warps_k // (8 if t.ahead * t.high > 2 else 12)), -(-k // 32)
    steps, whole, finished = (
        -(-all_steps // t.warps_k),
        _whole(t, a, b),
        max(1, 2 * t.high // t.warps_k),
    )
    pieces = sum(
        (8 if how.trans else rows) * (1.0 if as_is else _SHIFTED)
        for how, rows, as_is in zip((a, b), (2 * t.high, 4), whole, strict=True)
    )
    latency = _STEP * -(-steps // t.ahead) + steps * (
        (_AHEAD if t.ahead > 1 else 0.0) + _HIGH * (t.high - 1)
    )
    ends = finished * ((_SUM * t.warps_k if t.warps_k > 1 else 0.0) + (0.0 if y else _ANYWHERE))
    start = _START + _ENDS * (2 - sum(whole)) + _MEMORY * 2 * batch * (m * k + n * k + m * n)
    return start + waves * (_WAVE + latency + ends) + places * all_steps * pieces * _PIECE


def once_cost(
    t: DirectTile, m: int, n: int, k: int, batch: int, sms: int, a: Any, b: Any, y: bool
) -> float:
    """As `tile_cost`, of TILES_ONCE."""
    places, steps, finished = (
        -(-(-(-m // t.bm) * batch) // sms) * t.warps_m,
        -(-k // 32),
        2 * t.high,
    )
    waves, pieces = (
        -(-places // (8 if t.ahead * t.high > 2 else 12)),
        sum(8 if how.trans else rows for how, rows in ((a, 2 * t.high), (b, 4))),
    )
    latency = _ONCE_READ * -(-steps // t.ahead) + steps * (
        (_ONCE_AHEAD if t.ahead > 1 else 0.0) + _ONCE_HIGH * (t.high - 1)
    )
    start = _ONCE_START + _ONCE_MEMORY * 2 * batch * (m * k + n * k + m * n)
    return (
        start
        + waves * (latency + (0.0 if y else _ONCE_ANYWHERE * finished))
        + places * (steps * pieces * _ONCE_PIECE + finished * _ONCE_FINISH)
    )


def prices(
    r: Request, m: int, n: int, k: int, batch: int, a: Any, b: Any, y: bool
) -> dict[DirectTile, float]:
    """Clocks of the tiles for these sizes. a, b: how operands are read (`select.Access`); y:
    whether rows of y begin at multiples of 16 bytes.
    """
    if r.dtype == DType.F32 or r.arch < 90 or a.gather or b.gather:
        return {}
    exact, steps = all(_exact(r, how, rows, 8) for how, rows in ((a, "M"), (b, "N"))), -(-k // 32)
    once = [
        t
        for t in TILES_ONCE
        if exact
        and 0 < n <= t.bn
        and all(_whole(t, a, b))
        and t.ahead <= steps <= (2 * t.ahead if t.ahead > 1 else 1)
    ]
    return {t: once_cost(t, m, n, k, batch, r.sms, a, b, y) for t in once} | {
        t: tile_cost(t, m, n, k, batch, r.sms, a, b, y)
        for t in TILES
        if k > (0 if t.warps_k == 1 else 32 if t.warps_k * t.ahead <= 4 else 128)
    }


def product(
    r: Request, tile: DirectTile, *, params: Sequence[tuple[str, str, Argument]], a: Any, b: Any, pitches: tuple[DimLike, ...], y_vector: bool,
    rows: DimLike, columns: DimLike, grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `select.product` takes them."""
    epi = epilogue.epilogue(r, pitches, 0, scaled=r.family == "matmul")
    parameters = [*params, *epi.parameters]
    whole = _whole(tile, a, b)
    exact = [
        as_is and _exact(r, how, rows, size)
        for as_is, how, rows, size in zip(whole, (a, b), "MN", (4 * tile.high, 8), strict=True)
    ]
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", f'#define MMA_TYPE "{select.MMA_TYPE[r.dtype]}"', select.to_batch(batched),
        *(f"#define LAST_{o.upper()} {f'(gridDim.z - 1) * {o}_0 + (gridDim.y - 1) * {o}_1' if batched else '0'}" for o in "ab"),
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr int MT = {tile.high}, WARPS_M = {tile.warps_m}, WARPS_N = {tile.warps_n}, WARPS_K = {tile.warps_k}, AHEAD = {tile.ahead};",
        f"constexpr bool A_ALONG = {int(not a.trans)}, B_ALONG = {int(not b.trans)}, A_WHOLE = {int(whole[0])}, B_WHOLE = {int(whole[1])};",
        f"constexpr bool A_EXACT = {int(exact[0])}, B_EXACT = {int(exact[1])};",
        f"constexpr bool Y_VECTOR = {int(y_vector)};", epi.source, template("gemm/register_mma"),
    ])  # fmt: skip
    grid = D.product([D.ceildiv(rows, tile.bm), D.ceildiv(columns, tile.bn), active])
    return Kernel(
        text,
        "product_direct",
        (grid, grid_y, grid_z),
        tile.threads,
        tuple(v for _, _, v in parameters),
        0,
        1,
        True,
    )
