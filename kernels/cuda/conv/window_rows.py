"""8-bit convolutions of few channels, in which rows of windows are pixels that overlap, also with
the max pooling that follows (`window_rows.cuh`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Int64, Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.plan.kernel_families import tap_pitch
from tracea_onnx.support.data_classes import dataclass

from ..common.epilogue import Parameter
from ..common.instantiate import instantiate, ints, longs, pointer, sizes
from ..gemm import select
from ..gemm.int8 import requantise
from ..gemm.int8.requantise import dtype
from . import problem

#: Registers that filters of a thread may take; warps of an SM, of most n-tiles and of fewer; most
#: rows of a tile; bytes of shared memory of a CTA, so that two are on an SM.
_FILTERS, _MOST, _FEWER, _ROWS, _SMEM = 112, 8, 16, 8, 112 * 1024
#: Clocks of a tile; instructions of a warp for 16 pixels, for a result of a lane; clocks that these
#: pixels take at least.
_TILE, _UNIT, _RESULT, _LATENCY = 1500.0, 150.0, 8.0, 700.0
_MMA = 32  # bytes
_POOLED = ("PH", "PW", "PKH", "PKW", "PPT", "PPL")


@dataclass(frozen=True)
class RowsTile:
    """rows: of a tile, of what is stored; warps; resident CTAs per SM. All else (steps of a tap,
    n-tiles of a warp) follows from the request.
    """

    rows: int
    warps: int
    resident: int


@dataclass(frozen=True)
class _Shape:
    """Sizes of a request: rows and columns of results and of the window, bytes of a row; rows of
    pooled results and of the windows that are pooled, 0 where none are.
    """

    oh: int
    ow: int
    oc: int
    kh: int
    ic: int
    stride: int
    dilation: int
    step: int
    ph: int = 0
    pkh: int = 0

    @property
    def steps(self) -> int:
        """MMAs along a row of the window."""
        return -(-self.ic // _MMA)

    @property
    def tiles(self) -> int:
        """n-tiles of a warp: as many as registers hold; 0: not even two."""
        most = _FILTERS // (self.kh * self.steps * 2)
        return next((t for t in (8, 4, 2) if t <= most and self.oc % (8 * t) == 0), 0)

    @property
    def across(self) -> int:
        """Warps along channels."""
        return self.oc // (8 * self.tiles) if self.tiles else 0

    @property
    def row_bytes(self) -> int:
        return -(-((self.ow - 1) * self.step + self.steps * _MMA) // 16) * 16

    @property
    def high(self) -> int:
        """Rows of what is stored."""
        return self.ph or self.oh

    def made(self, t: RowsTile) -> int:
        """Rows of results that a tile needs."""
        return 2 * (t.rows - 1) + self.pkh if self.pkh else t.rows

    def smem(self, t: RowsTile) -> int:
        seen = (self.made(t) - 1) * self.stride + (self.kh - 1) * self.dilation + 1
        pooled = self.made(t) * self.ow * self.oc if self.pkh else 0
        pairs = self.oc // 2 + self.oc // 2 // self.tiles
        return 2 * seen * self.row_bytes + 32 * pairs + pooled


def supports(r: Request) -> bool:
    """Whether the launch is one of such pixels, and its results are bytes of sums alone."""
    i = r.ints
    names = ("OH", "OW", "OC", "IC", "KH", "SH", "DH", "x_cs", *(_POOLED if _pools(r) else ()))
    if not problem.fixed(r, *names, "KW", "SW", "G") or "x_rs" not in i:
        return False
    few = 0 < int(i["x_cs"]) < int(i["IC"]) and i["KW"] == i["SW"] == i["G"] == 1
    if not few or not problem.inside(r) or r.program is not None or "w_zero" in r.operands:
        return False
    if dtype(r, "y", DType.F32).size != 1 or requantise.has_residual(r):
        return False
    s = _shape(r)
    whole = all(multiple_of(i[f"y_{p}"]) >= 16 for p in ("cs", "rs", "ns"))
    aligned = i["x_cs"] % 4 == 0 and all(multiple_of(i[f"x_{p}"]) >= 16 for p in ("rs", "ns"))
    reached = whole and aligned and not {"x", "y"} & r.unaligned
    return reached and s.across in (1, 2, 4) and next(_tiles(r, s), None) is not None


def _pools(r: Request) -> bool:
    return r.family == "conv_pool_int8"


def _shape(r: Request) -> _Shape:
    names = ("OH", "OW", "OC", "KH", "IC", "SH", "DH", "x_cs")
    return _Shape(*(int(r.ints.get(n, 0)) for n in (*names, "PH", "PKH")))


def kernels(r: Request) -> list[Kernel]:
    s = _shape(r)

    def prices(pixels: int) -> dict[RowsTile, float]:
        return {t: _price(s, t, pixels, r.sms) for t in _tiles(r, s)}

    chosen = select.choose(problem.rows(r), prices)
    return [_kernel(r, s, tile, active) for tile, active in chosen]


def _tiles(r: Request, s: _Shape) -> Iterator[RowsTile]:
    of_sm = _MOST if s.tiles == 8 else _FEWER
    for rows in range(1, _ROWS + 1):
        for resident in (1, 2):
            t = RowsTile(rows, of_sm // resident, resident)
            if s.smem(t) <= min(_SMEM, r.caps.smem_block):
                yield t


def _price(s: _Shape, t: RowsTile, pixels: int, sms: int) -> float:
    """Clocks."""
    tiles = -(-pixels // (s.oh * s.ow)) * -(-s.high // t.rows)
    units = -(-s.made(t) * s.ow // 16)
    rounds = -(-units // (t.warps // s.across))
    issued = _UNIT + s.kh * s.steps * (4 + s.tiles) + s.tiles * 4 * _RESULT
    together = t.warps / 4 * min(t.resident, -(-tiles // sms))
    waves = -(-tiles // (t.resident * sms))
    return waves * (_TILE + rounds * max(_LATENCY, together * issued))


def _kernel(r: Request, s: _Shape, t: RowsTile, active: DimLike) -> Kernel:
    i, tiles = r.ints, D.mul(r.ints["N"], -(-s.high // t.rows))
    parameters: list[Parameter] = [
        pointer("const T", "x"),
        pointer("const Weight", "w"),
        pointer("Result", "y"),
        *ints({n: i[n] for n in ("N", "OH")}),
        ("i64", "x_rs", Int64(i["x_rs"])),
        ("i64", "x_ns", Int64(i["x_ns"])),
        *longs(sizes(r, *(f"y_{p}" for p in ("cs", "rs", "ns")))),
        *ints(sizes(r, "PH", "PW")),
    ]
    taps = s.kh * tap_pitch(s.ic)
    epilogue = requantise.epilogue(r, s.ic * s.kh, s.oc * taps, (), width=2, columns=s.oc)
    return instantiate(
        replace(r, dtype=dtype(r, "x")),
        "conv_window_rows",
        "conv/window_rows",
        parameters,
        (D.mul(D.minimum(tiles, t.resident * r.sms), active), 1, 1),
        32 * t.warps,
        epilogue=epilogue,
        macros={"POOL": _pools(r)},
        constants={
            "EARLY": "w" in r.constant, "KH": s.kh, "SH": s.stride, "DH": s.dilation,
            "STEPS": s.steps, "TAP_BYTES": tap_pitch(s.ic), "X_STEP": s.step, "NT": s.tiles,
            "OC": s.oc, "OW": s.ow, "WARPS": t.warps, "ROWS": t.rows, "RESIDENT": t.resident,
            "ROW_BYTES": s.row_bytes,
            **{n: int(i.get(n, 0)) for n in _POOLED[2:]},
        },
        smem=s.smem(t),
    )  # fmt: skip


def conv_pool(r: Request) -> list[Kernel]:
    if not supports(r):
        raise NoKernel("no kernel pools the results of this convolution")
    return kernels(r)


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {"conv_pool_int8": conv_pool}
