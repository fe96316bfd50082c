"""8-bit products on Hopper by wgmma and TMA (`gemm/persistent_sm90`, and `gemm/cluster_splitk_sm90`
for few tiles): of matrices, and of windows that im2col copies reach.

Such copies fill what lies outside of an image with zeros. Where that counts, the zero point of x
must be 0, and weights must have none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, Pointer, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ...common.epilogue import Epilogue, Parameter
from ...common.instantiate import MMA_TYPE, ints, longs, pointer
from ...conv import problem
from .. import cluster_splitk_sm90, persistent_sm90, sm90
from ..cluster_splitk_sm90 import SplitTile
from ..persistent_sm90 import HopperTile
from . import requantise
from .requantise import dtype

_MAP = "const __grid_constant__ TensorMap"
_STAGE = 128  # terms
_MMA = 32


@cache
def _prices(s: sm90.Sizes) -> dict[Any, float]:
    # the persistent kernel has no buffers of a residual
    persistent = persistent_sm90.prices(s._replace(residual=False))
    costs: dict[Any, float] = {t: c for t, c in persistent.items() if not t.tma}
    if s.residual:  # of tiles with the same price wide ones take less: they read rows of it whole
        costs = {t: costs[t] for t in sorted(costs, key=lambda t: -t.bn)}
    return costs | cluster_splitk_sm90.prices(s)


@dataclass(frozen=True)
class Product:
    """y[rows, columns]. depth: terms of a sum; pitch: of a packed tap; taps: 0 for matrices. ldx:
    of rows of x; ldy, ldr: of y and a residual.
    """

    request: Request
    rows: DimLike
    columns: int
    depth: int
    pitch: int
    taps: int
    ldx: DimLike
    ldy: DimLike
    ldr: DimLike

    @property
    def chunks(self) -> int:
        """Stages of a tap, or of a matrix."""
        return -(-self.depth // max(self.taps, 1) // _STAGE)

    @property
    def row(self) -> int:
        """Bytes of a packed row."""
        return max(self.taps, 1) * self.pitch

    def able(self) -> bool:
        """Whether tensor maps reach the operands, and zeros stand for what is not there."""
        r = self.request
        pitches = [self.ldx]
        if self.taps:
            pitches = [r.ints[f"x_{p}"] for p in ("cs", "rs", "ns")]
        # rows that begin before the one above them ends, or such pixels
        overlap = isinstance(pitches[0], int) and 0 < pitches[0] < self.depth // max(self.taps, 1)
        reached = (
            r.arch == 90
            and not overlap
            and "x" not in r.unaligned
            and all(multiple_of(p) >= 16 for p in pitches)
            and "w_zero" not in r.operands
            and self.depth > 0
        )
        if not reached or not self.taps:
            return reached
        return sm90.corners(r) is not None and (
            "x_zero" not in r.operands or problem.inside(r)
        )  # fmt: skip

    def prices(self, rows: int) -> dict[Any, float]:
        """Clocks of the tiles: a stage takes as long as one of 16 bits."""
        r, steps = self.request, max(self.taps, 1) * self.chunks
        return _prices(sm90.Sizes(
            rows, self.columns, steps, r.sms, requantise.has_residual(r), r.program is not None,
            result_bytes=dtype(r, "y", DType.F32).size, integers=True,
        ))  # fmt: skip

    def emit(self, tile: HopperTile | SplitTile, active: DimLike) -> Kernel:
        """active: 0 empties the grid."""
        return (
            self._persistent(tile, active)
            if isinstance(tile, HopperTile)
            else self._split(tile, active)
        )

    def _persistent(self, tile: HopperTile, active: DimLike) -> Kernel:
        r, epilogue = self.request, self._epilogue(2)
        tile = replace(tile, column=epilogue.column)
        a, b = self._maps((tile.bm, 1), (tile.bn, tile.multicast_b), blocked=self._blocked())
        tiles_m = D.ceildiv(self.rows, tile.bm * tile.multicast_b)
        tiles_n = -(-self.columns // tile.bn)
        if tile.resident_b:
            grid = D.mul(D.minimum(tiles_m, r.sms // tiles_n), tiles_n)
        else:
            clusters = D.minimum(D.mul(tiles_m, tiles_n), r.sms // tile.cluster_size)
            grid = D.mul(clusters, tile.cluster_size)
        return sm90.kernel(
            self._problem(), "gemm/persistent_sm90", self._parameters({"map_a": a, "map_b": b}),
            epilogue, tile.bn, (D.mul(grid, active), 1, 1), 384, tile, False,
            {
                **self._macros(swap=False), "STORE": 1, "SWAP": False,
                "RES_ROWS": self._residual_rows(), "BLOCKED": self._blocked(),
            },
            {
                "BM": tile.bm, "BN": tile.bn, "CLUSTER": tile.cluster_size, "CLUSTER_N": 1,
                "PINGPONG": tile.pingpong, "RESIDENT_B": tile.resident_b, "STAGING": 0,
                "A_MN_MAJOR": False, "B_MN_MAJOR": False,
                "LAST_STAGE_MMAS": self._mmas(whole=False),
            },
        )  # fmt: skip

    def _split(self, tile: SplitTile, active: DimLike) -> Kernel:
        shared = tile.right_multicast
        x, w = self._maps(
            (tile.bm, shared if tile.swap else 1), (tile.bn, 1 if tile.swap else shared)
        )
        down, along = (1, shared) if tile.swap else (shared, 1)
        tiles = D.mul(D.ceildiv(self.rows, tile.bm * down), -(-self.columns // (tile.bn * along)))
        return sm90.kernel(
            self._problem(), "gemm/cluster_splitk_sm90", self._parameters({"map_x": x, "map_w": w}),
            self._epilogue(requantise.WIDTH), tile.columns,
            (D.product([tiles, tile.cluster_size, active]), 1, 1), tile.threads, tile,
            requantise.has_residual(self.request),
            {**self._macros(swap=tile.swap), "TRANSPOSED_CONV": False},
            {
                "ROWS": tile.rows, "COLUMNS": tile.columns, "SWAP": tile.swap, "SPLIT": tile.split,
                "RIGHT_MULTICAST": shared, "LEFT_MULTICAST": 1, "RESIDENT": tile.resident,
                "LEFT_MN_MAJOR": False, "RIGHT_MN_MAJOR": False,
                "LAST_STAGE_MMAS": self._mmas(whole=False),
            },
        )  # fmt: skip

    def _epilogue(self, width: int) -> Epilogue:
        return requantise.epilogue(
            self.request, self.depth, self.columns * self.row, (self.ldr,), width=width,
            columns=self.columns,
        )  # fmt: skip

    def _problem(self) -> sm90.Problem:
        r = self.request
        return sm90.Problem(
            replace(r, dtype=dtype(r, "x")), int(self.taps > 0), self.rows, self.columns, self.ldy,
            self.ldr, self._maps, (), (self.ldy,), (self.ldr,), stage_mmas=self._mmas(whole=True),
        )  # fmt: skip

    def _parameters(self, maps: Mapping[str, TensorMap]) -> list[Parameter]:
        parameters: list[Parameter] = [(_MAP, name, m) for name, m in maps.items()]
        parameters += [pointer("Result", "y"), *longs({"ldy": self.ldy})]
        parameters += [*ints({"M": self.rows, "N": self.columns}), *longs({"ldr": self.ldr})]
        if self.taps:
            names = ("OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL")
            values = {n: self.request.ints[n] for n in names}
            sizes = {"chunks": self.chunks, "tap_bytes": self.pitch}
            return [*parameters, *ints({**sizes, **values})]
        return [*parameters, *ints({"K": self.depth})]

    def _macros(self, *, swap: bool) -> dict[str, bool | int | str]:
        """swap: the weight is the left operand of wgmma."""
        left, right = (MMA_TYPE[dtype(self.request, o)] for o in ("wx" if swap else "xw"))
        return {
            "IS_INT8": True, "NORMED": False, "MEASURED": False, "MMA_TYPE": f'"{left}"',
            "RIGHT_TYPE": f'"{right}"', "Y_VECTOR": self._vector(),
        }  # fmt: skip

    def _mmas(self, *, whole: bool) -> int:
        """MMAs of the last stage of a tap, or of the others (whole)."""
        last = self.depth // max(self.taps, 1) % _STAGE
        others = self.chunks > 1 and (whole or self.taps > 0)
        return 4 if others or not last else -(-last // _MMA)

    def _vector(self) -> bool:
        """Whether rows of y are aligned to 16 bytes."""
        size = dtype(self.request, "y", DType.F32).size
        return "y" not in self.request.unaligned and multiple_of(self.ldy) * size >= 16

    def _blocked(self) -> bool:
        """Whether each lane of the persistent kernel has 16 neighbouring columns."""
        return self.columns % 64 == 0 and dtype(self.request, "y", DType.F32).size <= 2

    def _residual_rows(self) -> bool:
        """Whether 16 bytes of a row of the residual can be read at a time."""
        r = self.request
        if not requantise.has_residual(r) or "res" in r.unaligned:
            return False
        size = dtype(r, "r").size
        whole = self.columns % 16 == 0 and multiple_of(self.ldr) * size >= 16
        return whole and (size == 1 or (size == 2 and self._blocked()))

    def _maps(
        self, a: tuple[int, int], b: tuple[int, int], *, blocked: bool = False
    ) -> tuple[TensorMap, TensorMap]:
        """Of x and the weight. a, b: rows of a tile, CTAs that multicast parts of it. blocked: of
        64 rows of the weight as `copy_blocked` (`sm90_mainloop.cuh`) takes them.
        """
        return self._x_map(a[0] // a[1]), self._weight_map(b[0] // b[1], blocked)

    def _weight_map(self, rows: int, blocked: bool) -> TensorMap:
        weight, row = Pointer("w"), self.row
        if blocked:
            return TensorMap(
                weight, DType.U8, (row, 2, self.columns // 16, 8), (row, 16 * row, 2 * row),
                (_STAGE, 2, 4, math.gcd(rows, 64) // 8),
            )  # fmt: skip
        if not self.taps:
            return TensorMap(weight, DType.U8, (self.depth, self.columns), (row,), (_STAGE, rows))
        sizes = (self.pitch, self.taps, self.columns)
        return TensorMap(weight, DType.U8, sizes, (self.pitch, row), (_STAGE, 1, rows))

    def _x_map(self, rows: int) -> TensorMap:
        r, x = self.request, Pointer("x")
        if not self.taps:
            return TensorMap(x, DType.U8, (self.depth, self.rows), (self.ldx,), (_STAGE, rows))
        i, box = r.ints, sm90.corners(r)
        assert box is not None
        return TensorMap(
            x, DType.U8, (int(i["IC"]), i["IW"], i["IH"], i["N"]),
            tuple(i[f"x_{p}"] for p in ("cs", "rs", "ns")), (), 128, (*box, _STAGE, rows),
            (1, int(i["SW"]), int(i["SH"]), 1),
        )  # fmt: skip
