"""Convolutions as implicit GEMM: rows are output pixels (of one phase of a transposed convolution),
k runs over the filter taps and input channels.
"""

from __future__ import annotations

from typing import Any

from tracea_onnx.codegen.kernel_request import Int32, Int64, Kernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common.epilogue import Parameter
from ..common.instantiate import ints, longs, pointer, sizes
from ..cost.fitted import fitted
from ..cost.model import prices
from ..gemm import cluster_splitk_sm90, persistent_sm90, select, sm90
from ..gemm.multistage_sm80 import tiles as multistage
from . import grouped, problem
from . import transposed as phased

_SIZES = ("IH", "IW", "OH", "OW", *problem.WINDOW, "PT", "PL")
#: Input channels below which Tile, which copies no padding channels, is compared with im2col TMA
#: copies of 64; a factor and clocks by which its price is too low there.
_NARROW = 48
_WORSE, _MORE = fitted("conv.implicit_gemm", "worse more")


class TensorMaps:
    """Windows read by im2col TMA, on Hopper."""

    tiles = (persistent_sm90.HopperTile, cluster_splitk_sm90.SplitTile)

    def supports(self, r: Request) -> bool:
        return problem.by_tensor_maps(r)

    def prices(self, r: Request, pixels: int) -> dict[Any, float]:
        if problem.transposed(r):
            return _prices_of_phases(r, pixels)
        merged, several = grouped.of(r), r.ints["G"] != 1
        costs = select.sm90_prices(
            r,
            pixels,
            merged.columns,
            int(r.ints["KH"]) * int(r.ints["KW"]) * merged.chunks,
            stored=problem.stored_by_tensor_maps(r),
            problem_count=merged.count,
            pixel=grouped.pixel(r),
            mma_scale=grouped.mma_scale(r),
        )
        split = cluster_splitk_sm90.SplitTile
        start = grouped.START if several else 0.0
        return {t: cost + start * isinstance(t, split) for t, cost in costs.items()}

    def emit(self, r: Request, tile: Any, active: DimLike) -> list[Kernel]:
        windows = phased.problem if problem.transposed(r) else sm90.windows
        persistent = isinstance(tile, persistent_sm90.HopperTile)
        scheduler = persistent_sm90 if persistent else cluster_splitk_sm90
        return [scheduler.emit(windows(r, problem.rows(r)), tile, active)]


def _prices_of_phases(r: Request, pixels: int) -> dict[Any, float]:
    """Of a transposed convolution: phases have `least` steps along k or more, `mean` on average."""
    least, mean = phased.steps(r)
    for steps in (mean, least):
        phases, oc = problem.phases(r), int(r.ints["OC"])
        costs = select.sm90_prices(r, pixels // phases, oc, steps, problem_count=phases)
        if found := {t: cost for t, cost in costs.items() if t.split <= least}:
            return found
    return {}


class Tiles:
    """Pixels read one by one, on any GPU."""

    tiles = (multistage.Tile,)

    def supports(self, r: Request) -> bool:
        if not problem.by_tensor_maps(r):
            return True
        return not problem.transposed(r) and (r.ints["G"] != 1 or int(r.ints["IC"]) < _NARROW)

    def prices(self, r: Request, pixels: int) -> dict[Any, float]:
        oc, pitch, phases = _of_group(r)[1], _pitch(r), problem.phases(r)
        g, taps = int(r.ints["G"]), int(r.ints["KH"]) * int(r.ints["KW"])
        batch = g * phases
        if r.dtype == DType.F32:
            whole = pixels * int(r.ints["IC"])  # each phase reads the whole image
            if not problem.transposed(r):
                whole *= int(r.ints["SH"]) * int(r.ints["SW"])
            a, b = select.Access(16), select.Access(16)
            p = select.problem(
                r, pixels // phases, oc, taps * pitch // phases, batch, a, b, True, "_conv", whole
            )
            return prices(select.works(r, p, split=r.arch >= 90 or batch == 1), r.caps)

        def priced(windows: str) -> dict[Any, float]:
            return select.prices(
                pixels // phases,
                oc,
                taps * pitch // phases,
                batch,
                r,
                split=r.arch >= 90 or batch == 1,
                windows=windows,
            )

        if not problem.by_tensor_maps(r):
            return priced("deconv" if problem.transposed(r) else "conv")
        if g > 1:
            return {t: cost * grouped.ALONE + grouped.START for t, cost in priced("").items()}
        windows = priced("conv")
        return {t: max(cost * _WORSE + _MORE, windows[t]) for t, cost in priced("").items()}

    def emit(self, r: Request, tile: Any, active: DimLike) -> list[Kernel]:
        i, (ic, oc), g = r.ints, _of_group(r), int(r.ints["G"])
        rows, columns, transposed = problem.rows(r), oc if g > 1 else 0, problem.transposed(r)
        parameters: list[Parameter] = [
            pointer("const T", "x", "a"),
            pointer("const T", "w", "b"),
            pointer("T", "y"),
            *ints({"M": rows, "N": oc, "IC": ic, "pitch": _pitch(r), **sizes(r, *_SIZES)}),
            ("int", "x_cs", Int32(i["x_cs"])),
            ("int", "x_rs", Int32(i["x_rs"])),
            ("i64", "x_ns", Int64(i["x_ns"])),
            *longs(sizes(r, *(f"{s}_{p}" for s in "yr" for p in ("cs", "rs", "ns")))),
        ]
        apart = (i["x_rs"], i["x_ns"], *((ic,) if g > 1 else ()))
        flat = problem.flat(r) and not transposed
        operands = select.Operands(
            parameters,
            select.access(r, "x", i["x_cs"], 1, apart),
            select.Access(16),
            problem.pitches(r, "r"),
            problem.vector(r, "y", columns),
            rows,
            oc,
            active,
            grid_z=g * problem.phases(r),
        )
        macros, constants = {"TRANSPOSED": transposed}, {"Y_FLAT": flat}
        return select.emit(
            r, tile, operands, source=1, macros=macros, constants=constants, group=columns
        )


def _of_group(r: Request) -> tuple[int, int]:
    """Input and output channels of a group."""
    g = select.static(r, "G")
    return select.static(r, "IC") // g, select.static(r, "OC") // g


def _pitch(r: Request) -> int:
    """Elements of a packed tap."""
    return select.channels(r, _of_group(r)[0])
