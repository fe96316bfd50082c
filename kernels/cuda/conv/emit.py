"""Convolutions over channels-last images: which kernel computes a request.

Packed weights are [OC, KH, KW, round_up(IC / G, 8)] (also of a transposed convolution); of several
taps in f32 round_up(IC / G, 4).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..gemm import emit as gemm
from ..gemm import select
from . import halo, narrow_simt, problem, small_c_patch, small_c_pool, small_c_simt
from .depthwise import emit as depthwise
from .implicit_gemm import TensorMaps, Tiles


class Candidate(Protocol):
    """A convolution kernel that competes by price: a module or an object."""

    @property
    @abstractmethod
    def tiles(self) -> tuple[type, ...]:
        """Classes of its configurations."""

    def supports(self, r: Request) -> bool: ...

    @abstractmethod
    def prices(self, r: Request, pixels: int, /) -> Mapping[Any, float]:
        """Clocks of the configurations for `pixels` output pixels."""

    @abstractmethod
    def emit(self, r: Request, tile: Any, active: DimLike) -> list[Kernel]:
        """active: 0 empties the grid."""


class FirstLayer(Protocol):
    """A convolution kernel that is always used where it is supported."""

    def supports(self, r: Request) -> bool: ...

    @abstractmethod
    def choose(self, r: Request) -> Iterable[tuple[Any, DimLike]]:
        """(configuration, condition) of each kernel."""

    def emit(self, r: Request, tile: Any, active: DimLike) -> list[Kernel]: ...


FIRST_LAYERS: tuple[FirstLayer, ...] = (small_c_pool, small_c_simt)
#: The cheapest configuration of all these is used; of equal ones the first.
CANDIDATES: tuple[Candidate, ...] = (TensorMaps(), halo, Tiles(), narrow_simt, small_c_patch)


def convolution(r: Request) -> list[Kernel]:
    for n in ("G", "IC", "OC", *problem.WINDOW[:4]):
        select.static(r, n)
    for first in FIRST_LAYERS:
        if first.supports(r):
            return [k for tile, use in first.choose(r) for k in first.emit(r, tile, use)]
    if problem.planar(r):
        raise NoKernel("no kernel reads this image but channels-last")
    found, phases = [c for c in CANDIDATES if c.supports(r)], problem.phases(r)

    def prices(rows: int) -> dict[Any, float]:
        return {t: cost for c in found for t, cost in c.prices(r, rows * phases).items()}

    kernels: list[Kernel] = []
    for tile, use in select.choose(problem.rows(r), prices, r.dtype == DType.F32):
        kernels += next(c for c in CANDIDATES if isinstance(tile, c.tiles)).emit(r, tile, use)
    return select.shared_scratch(kernels)


def conv2d(r: Request) -> list[Kernel]:
    return _gemm(r) if _is_gemm(r) else convolution(r)


def _is_gemm(r: Request) -> bool:
    """Whether the convolution is pointwise over pixels that are rows of a matrix."""
    i = r.ints
    unit = all(i[n] == 1 for n in ("G", "KH", "KW", "SH", "SW")) and i["PT"] == i["PL"] == 0
    same = i["OH"] == i["IH"] and i["OW"] == i["IW"]
    flat = problem.flat(r) and problem.flat_input(r)
    return unit and same and flat and not problem.planar(r) and not problem.reads_rows(r)


def _gemm(r: Request) -> list[Kernel]:
    """A pointwise convolution as GEMM, y = x w^T; with few channels `narrow_simt` competes."""
    i, oc, ic = r.ints, select.static(r, "OC"), select.static(r, "IC")
    residual, line = i.get("r_cs", 0), narrow_simt.pixels(r)
    competitor = gemm.Competitor(
        narrow_simt.NarrowTile,
        lambda pixels: narrow_simt.pointwise_prices(line, pixels),
        lambda tile, active: narrow_simt.emit(line, tile, active)[0],
    )
    return gemm.rows_by_weight(
        replace(r, ints={**i, **{f"o{k}_ld": residual for k in range(4)}}),
        select.pixels(r),
        oc,
        ic,
        i["x_cs"],
        select.channels(r, ic),
        i["y_cs"],
        residual,
        competitor if oc <= narrow_simt.most_pointwise_channels(r) else None,
    )


def conv_pool(r: Request) -> list[Kernel]:
    reads = r.program is not None and (problem.reads_full(r) or problem.reads_rows(r))
    if reads or not small_c_pool.supports(r):
        raise NoKernel("no kernel pools the result of this convolution")
    return [k for tile, use in small_c_pool.choose(r) for k in small_c_pool.emit(r, tile, use)]


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "conv2d": conv2d,
    "conv_pool": conv_pool,
    "deconv2d": convolution,
    "conv2d_dw": depthwise.convolution,
    "deconv2d_dw": depthwise.transposed,
}
