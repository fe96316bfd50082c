"""Convolutions over channels-last images: implicit GEMM (`gemm/multistage_sm80/gemm.cuh`), 1x1 as a
matrix product, transposed by output phases.

Packed weights are [OC, KH, KW, round_up(IC / G, 8)] (also of a transposed convolution); of several
taps in f32 round_up(IC / G, 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    Unfit,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue
from ..gemm import cluster_splitk_sm90, persistent_sm90, select
from ..gemm import emit as gemm_emit
from ..gemm.multistage_sm80 import tiles as multistage_tiles
from . import grouped, halo, narrow_simt, small_c_patch, small_c_pool, small_c_simt
from . import transposed as _transposed
from .depthwise import emit as depthwise

_SIZES = ("IH", "IW", "OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL")
#: Input channels below which tiles that copy no more of them may be better than tensor copies of
#: 64; how much slower these are than their price at least, in clocks too.
_NARROW, _TILES_OF_PIXELS = 48, (1.5, 5000.0)
_OUTPUT = ("y_cs", "y_rs", "y_ns", "r_cs", "r_rs", "r_ns")


def _flat(r: Request, side: str, height: DimLike, width: DimLike) -> bool:
    """Whether the pixels of that operand follow each other at one pitch, rows and images included."""
    i = r.ints
    rows: bool = height == 1 or i[f"{side}_rs"] == D.mul(width, i[f"{side}_cs"])
    images: bool = i["N"] == 1 or i[f"{side}_ns"] == D.mul(height, i[f"{side}_rs"])
    return rows and images


def _reads_full(r: Request) -> bool:
    """Whether the epilogue reads operands with the residual's pitches."""
    if r.program is None:
        return bool(epilogue.residual(r))
    return any(
        r.ints.get(f"o{k}_kind", 0) == epilogue.FULL for k in range(int(r.program["n_in"]) - 1)
    )


def conv2d(r: Request) -> list[Kernel]:
    i = r.ints
    g, ic, oc = (select.static(r, n) for n in ("G", "IC", "OC"))
    flat = _flat(r, "y", i["OH"], i["OW"]) and (
        not _reads_full(r) or _flat(r, "r", i["OH"], i["OW"])
    )
    unit = (
        all(i[n] == 1 for n in ("KH", "KW", "SH", "SW"))
        and i["PT"] == i["PL"] == 0
        and i["OH"] == i["IH"]
        and i["OW"] == i["IW"]
    )
    if (
        unit
        and g == 1
        and flat
        and _flat(r, "x", i["IH"], i["IW"])
        and not small_c_pool.planar(r)
        and not _row_operands(r)
    ):
        ints = {**i, **{f"o{k}_ld": i.get("r_cs", 0) for k in range(4)}}
        rows, line = select.pixels(r), narrow_simt.pixels(r)
        narrow = gemm_emit.Beside(
            narrow_simt.NarrowTile, lambda m: narrow_simt.beside_products(line, m), lambda tile, active: narrow_simt.convolution(line, tile, False, active),
        )  # fmt: skip
        few = narrow if oc <= narrow_simt.most_beside(r) else None
        return list(
            gemm_emit.rows_by_weight(
                replace(r, ints=ints),
                rows,
                oc,
                ic,
                i["x_cs"],
                select.channels(r, ic),
                i["y_cs"],
                i.get("r_cs", 0),
                few,
            )
        )
    return _implicit(r, flat, transposed=False)


def _row_operands(r: Request) -> bool:
    return any(r.ints.get(f"o{k}_kind", 0) == epilogue.ROW for k in range(4))


def deconv2d(r: Request) -> list[Kernel]:
    return _implicit(r, False, transposed=True)


def _implicit(r: Request, flat: bool, *, transposed: bool) -> list[Kernel]:
    i = r.ints
    g = select.static(r, "G")
    if g == 1 and not transposed and small_c_pool.applies(r):
        return list(small_c_pool.convolution(r))
    if (
        g == 1
        and not transposed
        and (r.dtype == DType.F32 or small_c_pool.planar(r))
        and small_c_simt.applies(r)
    ):
        return list(small_c_simt.convolution(r))
    if small_c_pool.planar(r):
        raise Unfit("no kernel reads this image but channels-last")
    ic, oc = select.static(r, "IC") // g, select.static(r, "OC") // g
    sh, sw = select.static(r, "SH"), select.static(r, "SW")
    taps = select.static(r, "KH") * select.static(r, "KW")
    pitch = select.channels(r, ic)
    params: list[tuple[str, str, Argument]] = [
        ("const T*", "a", Pointer("x")),
        ("const T*", "b", Pointer("w")),
        ("T*", "y", Pointer("y")),
    ]
    phases = sh * sw if transposed else 1
    rows_h, rows_w = (
        (D.ceildiv(i["OH"], sh), D.ceildiv(i["OW"], sw)) if transposed else (i["OH"], i["OW"])
    )
    rows = D.product([i["N"], rows_h, rows_w])
    params += [
        ("int", "M", Int32(rows)),
        ("int", "N", Int32(oc)),
        ("int", "IC", Int32(ic)),
        ("int", "pitch", Int32(pitch)),
    ]
    params += select.int_params(r, _SIZES)
    params += [
        ("int", "x_cs", Int32(i["x_cs"])),
        ("int", "x_rs", Int32(i["x_rs"])),
        ("i64", "x_ns", Int64(i["x_ns"])),
        *select.long_params(r, _OUTPUT),
    ]
    columns = 0 if g == 1 else oc
    full = tuple(i.get(n, 0) for n in ("r_cs", "r_rs", "r_ns"))
    a = select.access(r, "x", i["x_cs"], 1, (i["x_rs"], i["x_ns"], *((ic,) if g > 1 else ())))
    y_vector = epilogue.vector(r, "y", (i["y_cs"], i["y_rs"], i["y_ns"]), columns)
    if (
        transposed
        and g == 1
        and ic >= 24
        and _transposed.reaches(r)
        and persistent_sm90.able(r, (i["x_cs"], i["x_rs"], i["x_ns"]), ("x",))
    ):
        return _turned_phases(r, rows)
    bundle = grouped.of(r)
    tensor_maps = (
        not transposed and flat and (g > 1 or ic >= 24) and persistent_sm90.corners(r) is not None
    )
    maps = (
        taps * bundle.chunks
        if tensor_maps and persistent_sm90.able(r, (i["x_cs"], i["x_rs"], i["x_ns"]), ("x",))
        else 0
    )
    stored = persistent_sm90.able(r, (i["y_cs"], i.get("r_cs", 0)), ("y", "res"))
    batch = g * phases

    def tiles(size: int) -> dict[Any, float]:
        odd = (
            multistage_tiles.Odd(16, 16, True, pixels=True, uneven=g == 1 and pitch % 32 != 0)
            if r.dtype == DType.F32
            else None
        )

        def priced(windows: str) -> Any:
            return select.prices(
                size,
                oc,
                taps * pitch // phases,
                batch,
                r,
                odd=odd,
                split=r.arch >= 90 or batch == 1,
                windows=windows,
            )

        if not maps:
            return dict(priced("deconv" if transposed else "conv"))
        if g > 1:
            return {t: cost * grouped.ALONE + grouped.START for t, cost in priced("").items()}
        (worse, more), windows = _TILES_OF_PIXELS, priced("conv")
        return {t: max(cost * worse + more, windows[t]) for t, cost in priced("").items()}

    def price(size: int) -> Any:
        costs: dict[Any, float] = {}
        if maps:
            more = grouped.START if g > 1 else 0.0
            mapped = select.prices(
                size,
                bundle.columns,
                0,
                1,
                r,
                maps=maps,
                stored=stored,
                bundles=bundle.count,
                pixel=grouped.pixel(r),
                made=grouped.made(r),
            )
            costs |= {
                t: cost + more * isinstance(t, cluster_splitk_sm90.SplitTile)
                for t, cost in mapped.items()
            }
        if maps and stored:
            costs |= halo.prices(r, size)
        if g > 1 or not maps or ic < _NARROW:
            costs |= tiles(size)
        return (
            costs
            | narrow_simt.prices(r, transposed, size * phases)
            | small_c_patch.prices(r, transposed, size * phases)
        )

    kernels: list[Kernel] = []
    for tile, active in select.choose(rows, price, r.dtype == DType.F32):
        if isinstance(tile, persistent_sm90.HopperTile):
            kernels.append(persistent_sm90.convolution(r, tile, rows, active))
            continue
        if isinstance(tile, cluster_splitk_sm90.SplitTile):
            kernels.append(cluster_splitk_sm90.convolution(r, tile, rows, active))
            continue
        if isinstance(tile, halo.HaloTile):
            kernels.append(halo.emit(r, tile, active))
            continue
        if isinstance(tile, (narrow_simt.NarrowTile, small_c_patch.PatchTile)):
            kernels.append(_of(tile).convolution(r, tile, transposed, active))
            continue
        kernels += select.product(
            r, tile, source=1, params=params, a=a, b=select.Access(16), pitches=full, y_vector=y_vector, rows=rows, columns=oc, grid_y=1, grid_z=g * phases,
            defines=(f"#define TRANSPOSED {int(transposed)}", f"constexpr bool Y_FLAT = {int(flat)};"), group=columns, active=active,
        )  # fmt: skip
    return list(select.shared_scratch(kernels))


def _of(tile: Any) -> Any:
    """The part that computes convolutions of either kind with this tile."""
    return small_c_patch if isinstance(tile, small_c_patch.PatchTile) else narrow_simt


def _turned_phases(r: Request, rows: DimLike) -> list[Kernel]:
    """A transposed convolution on Hopper; rows: output pixels of a phase."""
    (least, mean), oc = _transposed.steps(r), int(r.ints["OC"])

    def price(size: int) -> Any:
        costs: dict[Any, float] = {}
        for steps in (mean, least):
            costs = costs or {
                t: cost
                for t, cost in select.prices(
                    size, oc, 0, 1, r, maps=steps, bundles=_transposed.phases(r)
                ).items()
                if t.split <= least
            }
        return (
            costs
            | narrow_simt.prices(r, True, size * _transposed.phases(r))
            | small_c_patch.prices(r, True, size * _transposed.phases(r))
        )

    return [
        cluster_splitk_sm90.deconvolution(r, tile, rows, active)
        if isinstance(tile, cluster_splitk_sm90.SplitTile)
        else _of(tile).convolution(r, tile, True, active)
        for tile, active in select.choose(rows, price)
    ]


def conv_pool(r: Request) -> list[Kernel]:
    if (
        select.static(r, "G") != 1
        or not small_c_pool.applies(r)
        or (r.program is not None and (_reads_full(r) or _row_operands(r)))
    ):
        raise Unfit("no kernel pools the result of this convolution")
    return list(small_c_pool.convolution(r))


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "conv2d": conv2d, "conv_pool": conv_pool, "deconv2d": deconv2d, "conv2d_dw": depthwise.convolution, "deconv2d_dw": depthwise.transposed,
}  # fmt: skip
