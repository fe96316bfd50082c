"""Convolutions over channels-last images: implicit GEMM (`tile.cuh`), 1x1 as a matrix product, transposed by output phases.

Packed weights are [OC, KH, KW, round_up(IC / G, 8)] (also of a transposed convolution); of several taps in f32 round_up(IC / G, 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Pointer, Request, Unfit
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support import discovery

_backend = discovery.module("kernels", "cuda")
_product, _costs, _epilogue, _gemm = (_backend.part(n) for n in ("_product", "_tile_costs", "_epilogue", "emit_gemm"))
_wgmma, _split, _few, _first, _stem, _window = (_backend.part(name) for name in ("_wgmma", "_split", "_few", "_first", "_stem", "_window"))
_bundles, _depthwise, _turned, _narrow = (_backend.part(name) for name in ("_bundles", "_depthwise", "_turned", "_narrow"))
_patch, _slab, _fold = (_backend.part(name) for name in ("_patch", "_slab", "_fold"))
_SIZES = ("IH", "IW", "OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL")
#: Input channels below which tiles that copy no more of them may be better than tensor copies of 64; how much slower these are than their price at least, in clocks
#: too.
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
        return bool(_epilogue.residual(r))
    return any(r.ints.get(f"o{k}_kind", 0) == _epilogue.FULL for k in range(int(r.program["n_in"]) - 1))


def conv2d(r: Request) -> list[Kernel]:
    i = r.ints
    g, ic, oc = (_product.static(r, n) for n in ("G", "IC", "OC"))
    flat = _flat(r, "y", i["OH"], i["OW"]) and (not _reads_full(r) or _flat(r, "r", i["OH"], i["OW"]))
    unit = all(i[n] == 1 for n in ("KH", "KW", "SH", "SW")) and i["PT"] == i["PL"] == 0 and i["OH"] == i["IH"] and i["OW"] == i["IW"]
    if unit and g == 1 and flat and _flat(r, "x", i["IH"], i["IW"]) and not _stem.planar(r) and not _row_operands(r):
        ints = {**i, **{f"o{k}_ld": i.get("r_cs", 0) for k in range(4)}}
        rows, line = _product.pixels(r), _narrow.pixels(r)
        narrow = _gemm.Beside(_narrow.NarrowTile, lambda m: _narrow.beside_products(line, m), lambda tile, active: _narrow.convolution(line, tile, False, active))
        few = narrow if oc <= _narrow.most_beside(r) else None
        return list(_gemm.rows_by_weight(replace(r, ints=ints), rows, oc, ic, i["x_cs"], _product.channels(r, ic), i["y_cs"], i.get("r_cs", 0), few))
    return _implicit(r, flat, transposed=False)


def _row_operands(r: Request) -> bool:
    return any(r.ints.get(f"o{k}_kind", 0) == _epilogue.ROW for k in range(4))


def deconv2d(r: Request) -> list[Kernel]:
    return _implicit(r, False, transposed=True)


def _implicit(r: Request, flat: bool, *, transposed: bool) -> list[Kernel]:
    i = r.ints
    g = _product.static(r, "G")
    few = _few.choose(r) if g == 1 and not transposed and not _stem.planar(r) else None
    if few is not None:
        return [_few.convolution(r, few)]
    if g == 1 and not transposed and _stem.applies(r):
        return list(_stem.convolution(r))
    if g == 1 and not transposed and (r.dtype == DType.F32 or _stem.planar(r)) and _first.applies(r):
        return list(_first.convolution(r))
    if _stem.planar(r):
        raise Unfit("no kernel reads this image but channels-last")
    ic, oc = _product.static(r, "IC") // g, _product.static(r, "OC") // g
    sh, sw = _product.static(r, "SH"), _product.static(r, "SW")
    taps = _product.static(r, "KH") * _product.static(r, "KW")
    pitch = _product.channels(r, ic)
    params: list[tuple[str, str, Argument]] = [("const T*", "a", Pointer("x")), ("const T*", "b", Pointer("w")), ("T*", "y", Pointer("y"))]
    phases = sh * sw if transposed else 1
    rows_h, rows_w = (D.ceildiv(i["OH"], sh), D.ceildiv(i["OW"], sw)) if transposed else (i["OH"], i["OW"])
    rows = D.product([i["N"], rows_h, rows_w])
    params += [("int", "M", Int32(rows)), ("int", "N", Int32(oc)), ("int", "IC", Int32(ic)), ("int", "pitch", Int32(pitch))]
    params += _product.int_params(r, _SIZES)
    params += [("int", "x_cs", Int32(i["x_cs"])), ("int", "x_rs", Int32(i["x_rs"])), ("i64", "x_ns", Int64(i["x_ns"])), *_product.long_params(r, _OUTPUT)]
    columns = 0 if g == 1 else oc
    full = tuple(i.get(n, 0) for n in ("r_cs", "r_rs", "r_ns"))
    a = _product.access(r, "x", i["x_cs"], 1, (i["x_rs"], i["x_ns"], *((ic,) if g > 1 else ())))
    y_vector = _epilogue.vector(r, "y", (i["y_cs"], i["y_rs"], i["y_ns"]), columns)
    if transposed and g == 1 and ic >= 24 and _turned.reaches(r) and _wgmma.able(r, (i["x_cs"], i["x_rs"], i["x_ns"]), ("x",)):
        return _turned_phases(r, rows)
    bundle = _bundles.of(r)
    tensor_maps = not transposed and flat and (g > 1 or ic >= 24) and _wgmma.corners(r) is not None
    maps = taps * bundle.chunks if tensor_maps and _wgmma.able(r, (i["x_cs"], i["x_rs"], i["x_ns"]), ("x",)) else 0
    stored = _wgmma.able(r, (i["y_cs"], i.get("r_cs", 0)), ("y", "res"))
    batch = g * phases

    def tiles(size: int) -> dict[Any, float]:
        odd = _costs.Odd(16, 16, True, pixels=True, uneven=g == 1 and pitch % 32 != 0) if r.dtype == DType.F32 else None

        def priced(windows: str) -> Any:
            return _product.prices(size, oc, taps * pitch // phases, batch, r, odd=odd, split=r.arch >= 90 or batch == 1, windows=windows)

        if not maps:
            return dict(priced("deconv" if transposed else "conv"))
        if g > 1:
            return {t: cost * _bundles.ALONE + _bundles.START for t, cost in priced("").items()}
        (worse, more), windows = _TILES_OF_PIXELS, priced("conv")
        return {t: max(cost * worse + more, windows[t]) for t, cost in priced("").items()}

    def price(size: int) -> Any:
        costs: dict[Any, float] = {}
        if maps:
            more = _bundles.START if g > 1 else 0.0
            mapped = _product.prices(size, bundle.columns, 0, 1, r, maps=maps, stored=stored, bundles=bundle.count, pixel=_bundles.pixel(r), made=_bundles.made(r))
            costs |= {t: cost + more * isinstance(t, _split.SplitTile) for t, cost in mapped.items()}
        if maps and stored:
            costs |= _window.prices(r, size, maps) | _slab.prices(r, size)
        if g > 1 or not maps or ic < _NARROW:
            costs |= tiles(size)
        if transposed:
            costs |= _fold.prices(r)
        return costs | _narrow.prices(r, transposed, size * phases) | _patch.prices(r, transposed, size * phases)

    kernels: list[Kernel] = []
    for tile, active in _product.choose(rows, price, r.dtype == DType.F32):
        if isinstance(tile, _wgmma.HopperTile):
            kernels.append(_wgmma.convolution(r, tile, rows, active))
            continue
        if isinstance(tile, _split.SplitTile):
            kernels.append(_split.convolution(r, tile, rows, active))
            continue
        if isinstance(tile, _window.WindowTile):
            kernels.append(_window.convolution(r, tile, active))
            continue
        if isinstance(tile, _slab.SlabTile):
            kernels.append(_slab.convolution(r, tile, active))
            continue
        if isinstance(tile, _fold.Folded):
            kernels += _fold.convolution(r, tile, active)
            continue
        if isinstance(tile, (_narrow.NarrowTile, _patch.PatchTile)):
            kernels.append(_of(tile).convolution(r, tile, transposed, active))
            continue
        kernels += _product.product(
            r, tile, source=1, params=params, a=a, b=_product.Access(16), pitches=full, y_vector=y_vector, rows=rows, columns=oc, grid_y=1, grid_z=g * phases,
            defines=(f"#define TRANSPOSED {int(transposed)}", f"constexpr bool Y_FLAT = {int(flat)};"), group=columns, active=active,
        )  # fmt: skip
    return list(_product.shared_scratch(kernels))


def _of(tile: Any) -> Any:
    """The part that computes convolutions of either kind with this tile."""
    return _patch if isinstance(tile, _patch.PatchTile) else _narrow


def _turned_phases(r: Request, rows: DimLike) -> list[Kernel]:
    """A transposed convolution on Hopper; rows: output pixels of a phase."""
    (least, mean), oc = _turned.steps(r), int(r.ints["OC"])

    def price(size: int) -> Any:
        costs: dict[Any, float] = {}
        for steps in (mean, least):
            costs = costs or {t: cost for t, cost in _product.prices(size, oc, 0, 1, r, maps=steps, bundles=_turned.phases(r)).items() if t.split <= least}
        return costs | _narrow.prices(r, True, size * _turned.phases(r)) | _patch.prices(r, True, size * _turned.phases(r))

    return [
        _split.deconvolution(r, tile, rows, active) if isinstance(tile, _split.SplitTile) else _of(tile).convolution(r, tile, True, active)
        for tile, active in _product.choose(rows, price)
    ]


def conv_pool(r: Request) -> list[Kernel]:
    if _product.static(r, "G") != 1 or not _stem.applies(r) or (r.program is not None and (_reads_full(r) or _row_operands(r))):
        raise Unfit("no kernel pools the result of this convolution")
    return list(_stem.convolution(r))


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "conv2d": conv2d, "conv_pool": conv_pool, "deconv2d": deconv2d, "conv2d_dw": _depthwise.convolution, "deconv2d_dw": _depthwise.transposed,
}  # fmt: skip
