"""Convolutions of few input channels over images in any order of axes, and such convolutions with the max pooling that follows (`stem.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Argument, Kernel, Pointer, Request
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import ACTIVATIONS, DType

_backend = registry.module("kernels", "cuda")
_product, _epilogue, _few = _backend.part("_product"), _backend.part("_epilogue"), _backend.part("_few")
_RELU = ACTIVATIONS.index("relu")
_STATIC = ("IC", "KH", "KW", "SH", "SW")
#: Most steps along k whose pixels fit into registers, most rows of results that a warp computes, and the width of an image whose width is not known.
_STEPS, _LONGEST, _USUAL = 20, 16, 112


@dataclass(frozen=True)
class StemTile:
    """Warps side by side (the others of four lie below), output channels of one block, blocks of a multiprocessor."""

    across: int
    columns: int
    resident: int


def planar(r: Request) -> bool:
    """Whether the channels of a pixel do not lie together."""
    return r.ints.get("x_c", 0) not in (0, 1)


def _pooled(r: Request) -> bool:
    return r.family == "conv_pool"


def _shape(r: Request) -> tuple[int, int]:
    """Pairs of taps that a row of the window has, rounded up to a power of two; steps of 16 along k."""
    ic, kh, kw = (int(r.ints[n]) for n in _STATIC[:3])
    pairs = 1 if kw <= 2 else 2 if kw <= 4 else 4
    return pairs, -(-kh * -(-ic * pairs // 4) // 2)


def _results(r: Request) -> int:
    """Columns of results of a warp."""
    return 16 if not _pooled(r) else 7 if r.ints["PKW"] == 3 else 8


def _smem(r: Request, tile: StemTile) -> int:
    ic, kh, _, sh, sw = (int(r.ints[n]) for n in _STATIC)
    pairs, steps = _shape(r)
    wide = _results(r) * (2 if _pooled(r) else 1)
    words = ((tile.across - 1) * wide * sw + 15 * sw + 2 * pairs + 1) // 2 + sw % 2
    slots = -(-kh // sh) + 1
    return tile.columns * (steps * 32 + 16) + (slots * 4 // tile.across * sh * ic + 4) * words * 4  # a unit may reach beyond the last channel


def choose(r: Request) -> StemTile | None:
    """The tile of a convolution without groups; None where the kernel does not apply."""
    i = r.ints
    if r.dtype not in (DType.F16, DType.BF16) or any(not isinstance(i[n], int) for n in (*_STATIC, "DH", "DW", "OC")) or i["DH"] != 1 or i["DW"] != 1:
        return None
    ic, _, kw, _, _ = (int(i[n]) for n in _STATIC)
    if ic > 8 or kw > 8 or _shape(r)[1] > _STEPS:
        return None
    oc = int(i["OC"])
    columns = 64 if oc > 32 else 32 if oc > 16 else 16
    width = _product.known(i["PW"] if _pooled(r) else i["OW"], _USUAL)
    across = min((4, 2, 1), key=lambda n: -(-width // (n * _results(r))) * (n * 16 + 4))
    steps = _shape(r)[1]
    tile = StemTile(across, columns, 3 if steps > 12 else 4 if steps > 4 or columns == 64 else 6 if columns == 32 else 8)
    return tile if _smem(r, tile) <= 96 * 1024 else None


def _lines(r: Request, tile: StemTile, height: DimLike, across: DimLike) -> DimLike:
    """Rows of results of a warp: so many that all blocks run at once, where that is not too many. across: blocks beside each other, all images included."""
    down = 4 // tile.across
    bands = D.maximum(D.ceildiv(height, down * _LONGEST), D.floordiv(tile.resident * r.sms, D.maximum(1, across)))
    return D.maximum(1, D.ceildiv(D.ceildiv(height, down), D.maximum(1, bands)))


def convolution(r: Request, tile: StemTile) -> Kernel:
    i = r.ints
    pooled = _pooled(r)
    height, width = (i["PH"], i["PW"]) if pooled else (i["OH"], i["OW"])
    down, blocks_y = 4 // tile.across, -(-int(i["OC"]) // tile.columns)
    strips = D.ceildiv(width, tile.across * _results(r))
    lines = _lines(r, tile, height, D.product([i["N"], strips, blocks_y]))
    params: list[tuple[str, str, Argument]] = [("const T*", "x", Pointer("x")), ("const T*", "w", Pointer("w")), ("T*", "y", Pointer("y"))]
    params += _product.int_params(r, ("IH", "IW", "OH", "OW", "OC", "PT", "PL", *(("PPT", "PPL") if pooled else ())))
    params += [("int", n, _product.Int32(v)) for n, v in (("H", height), ("W", width), ("lines", lines))]
    channel = [("i64", "x_c", _product.Int64(i.get("x_c", 0) or 1))]
    params += [*channel, *_product.long_params(r, ("x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns", *(() if pooled else ("r_cs", "r_rs", "r_ns"))))]
    relu = pooled and r.program is None and i.get("act", 0) == _RELU
    epi = _epilogue.epilogue(replace(r, ints={**i, "act": 0}) if relu else r, tuple(i.get(n, 0) for n in ("r_cs", "r_rs", "r_ns")), width=2)
    parameters = [*params, *epi.parameters]
    window = {n: i[n] for n in ("PKH", "PKW")} if pooled else dict.fromkeys(("PKH", "PKW", "PPT", "PPL"), 0)
    constants = {**{n: i[n] for n in _STATIC}, **window, "BN": tile.columns, "ACROSS": tile.across}
    wgmma = r.arch == 90
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", f'#define MMA_TYPE "{_product.MMA_TYPE[r.dtype]}"', f"#define WGMMA {int(wgmma)}", f"#define POOL {int(pooled)}",
        f"#define RESIDENT {tile.resident}", f"constexpr int {', '.join(f'{n} = {v}' for n, v in constants.items())};",
        f"#define Y_VECTOR {int(_epilogue.vector(r, 'y', (i['y_cs'], i['y_rs'], i['y_ns'])))}",
        f"constexpr bool EARLY = {int('w' in r.constant)}, WHOLE_CHUNKS = {int(int(i['OC']) % 8 == 0)};",
        f"constexpr bool RELU = {int(relu)};",
        f"#define PARAMETERS {', '.join(_product.declaration(t, n) for t, n, _ in parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        epi.source, _few.multiply(tile.columns, _product.MMA_TYPE[r.dtype]) if wgmma else "",
        _backend.template("pairs"), _backend.template("chunks"), _backend.template("stem"),
    ])  # fmt: skip
    grid = D.product([i["N"], strips, D.ceildiv(height, D.mul(lines, down))])
    return Kernel(text, "conv_stem", (grid, blocks_y, 1), 128, tuple(v for _, _, v in parameters), _smem(r, tile), pdl=r.arch >= 90)
