"""Kernels of GEMM with few-bit weights (family `gemm_nbits`). For few rows they read the packed
weights: `few_rows`, or `stream_rows` for one row and as many more as fit in shared memory. For more
rows weights are dequantised in every run and a GEMM reads that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Kernel,
    NoKernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.codegen.size_ranges import dispatch
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.plan.kernel_families import weight_pitch
from tracea_onnx.support.data_classes import dataclass

from ...common import epilogue
from ...common.instantiate import instantiate, ints, longs, pointer, sizes
from ...common.launch import known
from ..emit import gemm
from . import stream_rows
from .layout import FLOATS, Layout, layout_of

#: Most rows that read weights as they are, rows of a fragment, threads that dequantise.
_FEW, _FRAGMENT, _THREADS = 32, 8, 256
#: Of a lane, for rows of a piece.
_REGISTERS = 48
_MOST_SPLIT = 8


@dataclass(frozen=True)
class FewRows:
    """row_tiles: of 8 rows; column_tiles: of 16 columns; warps, and CTAs of a cluster (split), that
    divide k; ahead: pieces of weights in flight.
    """

    row_tiles: int
    column_tiles: int
    warps: int
    split: int
    ahead: int


def tiles(r: Request, at: Layout, rows: int) -> Iterator[FewRows]:
    """The tile for so many rows."""
    row_tiles = next((t for t in (1, 2) if rows <= t * _FRAGMENT), 4)
    parts = 3 if r.dtype == DType.F32 else 1
    while row_tiles > 1 and row_tiles * parts * at.depth // 8 > _REGISTERS:
        row_tiles //= 2
    subs = max(1, at.depth // at.block) if at.block else 1
    # rows are read once for all columns of a CTA
    column_tiles = 2 if row_tiles > 1 and subs <= 2 and at.tiles >= 2 * r.sms else 1
    warps = next((w for w in (8, 4, 2) if at.pieces >= w), 1)
    ctas, split = -(-at.tiles // column_tiles), 1
    while (
        r.arch >= 90
        and 2 * split <= min(_MOST_SPLIT, r.caps.cluster)
        and ctas * split < r.sms
        and at.pieces >= 4 * warps * split
    ):
        split *= 2
    # two CTAs of an SM have as much on its way as four
    alone = row_tiles == 1 and ctas * split <= 2 * r.sms
    most = 8 if alone and at.pieces >= 8 * warps * split else 4
    ahead = max(1, most // (column_tiles * max(1, subs // 2) * max(1, row_tiles // 2)))
    yield FewRows(row_tiles, column_tiles, warps, split, ahead)


def few_rows(r: Request, at: Layout, tile: FewRows) -> Kernel:
    """The kernel of a tile (`few_rows.cuh`)."""
    i = sizes(r, "M", "ldx", "ldy", "ldr")
    aligned = (
        "x" not in r.unaligned
        and (i["M"] == 1 or multiple_of(i["ldx"]) * r.dtype.size % 16 == 0)
        and at.k % at.run == 0
    )
    given = [pointer("const T", "x"), *at.operands("w"), pointer("T", "y")]
    given += ints({"M": i["M"], "N": at.n, "K": at.k})
    given += longs({name: i[name] for name in ("ldx", "ldy", "ldr")})
    return instantiate(
        r,
        "few_rows",
        "gemm/nbits/few_rows",
        given,
        (
            -(-at.tiles // tile.column_tiles) * tile.split,
            D.ceildiv(i["M"], _FRAGMENT * tile.row_tiles),
            1,
        ),
        32 * tile.warps,
        epilogue=epilogue.epilogue(r, (i["ldr"],), 1),
        macros={"SPLIT": tile.split},
        constants={
            "ROW_TILES": tile.row_tiles,
            "COLUMN_TILES": tile.column_tiles,
            "WARPS": tile.warps,
            "AHEAD": tile.ahead,
            "ROWS_ALIGNED": aligned,
            "EARLY": "w" in r.constant,
        },
        text=at.definitions(),
        cluster=tile.split,
    )


def dequantised(r: Request, at: Layout) -> list[Kernel]:
    """A GEMM by weights in a buffer of the launch, and before it what fills that buffer."""
    pitch, dtype = weight_pitch(at.k, r.dtype.size), r.dtype
    product = gemm(
        replace(r, family="gemm", unaligned=r.unaligned - {"w"}, constant=r.constant - {"w"})
    )
    sizes_ = next((k.scratch for k in product if k.scratch), ())
    own = f"scratch{len(sizes_)}"

    def moved(a: Argument) -> Argument:
        if isinstance(a, Pointer) and a.operand == "w":
            return replace(a, operand=own)
        if isinstance(a, TensorMap) and a.pointer.operand == "w":
            return replace(a, pointer=replace(a.pointer, operand=own))
        return a

    scratch = (*sizes_, (at.n * pitch + 64) * dtype.size)
    count = at.tiles * -(-pitch // at.depth) * 32
    given = [*at.operands("w"), ("T*", "to", Pointer(own))]
    given += [*ints({"N": at.n, "K": at.k, "pitch": pitch}), *longs({"count": count})]
    grid = (D.mul(-(-count // _THREADS), D.minimum(r.ints["M"], 1)), 1, 1)
    first = instantiate(
        r, "dequantise", "gemm/nbits/dequantise", given, grid, _THREADS,
        text=at.definitions(), scratch=scratch,
    )  # fmt: skip
    return [first, *(replace(k, args=tuple(map(moved, k.args)), scratch=scratch) for k in product)]


def gemm_nbits(r: Request) -> list[Kernel]:
    at, m = layout_of(r), r.ints["M"]
    if r.dtype not in (DType.F16, DType.BF16, DType.F32):
        raise NoKernel(f"GEMMs of {r.dtype.name} with few-bit weights")
    if at.zeros == FLOATS:
        return dequantised(r, at)
    few = known(D.less(m, _FEW + 1))
    if few == 0:
        return dequantised(r, at)

    def fewer(rows: int) -> list[Kernel]:
        tile = stream_rows.tile(r, at, at.n, rows)
        if tile is None:
            return [few_rows(r, at, next(tiles(r, at, rows)))]
        return [stream_rows.emit(r, at, at.n, tile)]

    choices: list[tuple[DimLike, list[Kernel]]] = []
    low = 0
    for rows in (1, _FRAGMENT, 2 * _FRAGMENT, _FEW):
        if (within := known(D.less(m, rows + 1))) != 0:
            above: DimLike = D.less(low, m) if low else 1
            choices.append((D.mul(above, D.less(m, rows + 1)), fewer(rows)))
            if within == 1:
                return choices[0][1] if len(choices) == 1 else dispatch(choices)
            low = rows
    return dispatch([*choices, (D.less(_FEW, m), dequantised(r, at))])


FAMILIES = {"gemm_nbits": gemm_nbits}
