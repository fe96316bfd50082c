"""Convolutions of few input channels by FFMA (`small_c_simt.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracea_onnx.codegen import kernel_choice, size_ranges
from tracea_onnx.codegen.kernel_request import Argument, Int64, Kernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue
from ..common.launch import declared, shared, spread
from ..common.prelude import prelude
from ..common.templates import template
from ..gemm import select

_STATIC = ("IC", "KH", "KW", "SH", "SW", "DH", "DW")
#: Windows of so many terms that reach so far at most (those of one row further), and strides up to
#: 4, have a tile on every device.
MOST_TERMS, WIDEST, WIDEST_ROW = 400, 15, 31
#: An image's height or width where it is symbolic, and images; taps of a row whose pixels a thread
#: holds, where a row has more.
_USUAL, _BATCH, _PIECE = 112, 8, 8
#: Where several sizes are symbolic: a tile serves more pixels, too, while it takes at most so many
#: times the clocks; of what parts of the pixels.
_ALIKE, _PARTS = 1.05, (1.0, 0.8, 0.64)
#: Results beyond which what blocks copy is hidden by other blocks' products: through registers that
#: takes fewer instructions.
_MANY = 1 << 24
#: Clocks to start; of products for one warp of a scheduler and for each, of asynchronous copies the
#: same; of a copied row of pixels and of 32 of them.
_START, _ALONE, _TOGETHER, _COPY_ALONE, _COPY_TOGETHER, _ROW, _PIECE_OF_ROW = (
    3060.0,
    0.36,
    0.93,
    4.5,
    2.5,
    20.0,
    9.0,
)
#: Where copies go through registers: clocks to start, to start a block, for 32 pixels or half as
#: many filters that a warp copies; how many warps' time products wait.
_BEGIN, _BLOCK, _COPY, _WAITS = 1100.0, 3500.0, 46.0, 1.5


@dataclass(frozen=True)
class FirstTile:
    """Output pixels of a thread, groups of them side by side and rows of a block, its output
    channels, threads that divide the rows of a window.
    """

    pixels: int
    groups: int
    down: int
    columns: int
    parts: int = 1

    @property
    def threads(self) -> int:
        return self.groups * self.down * self.columns // 8 * self.parts


def _sizes(r: Request) -> tuple[int, ...]:
    return tuple(int(r.ints[n]) for n in _STATIC)


def _piece(r: Request) -> int:
    return min(int(r.ints["KW"]), _PIECE)


def _held(r: Request, tile: FirstTile) -> int:
    """Pixels of a row that a thread holds."""
    _, _, _, _, sw, _, dw = _sizes(r)
    return ((tile.pixels - 1) * sw + (_piece(r) - 1) * dw + 4) // 4 * 4


def _patch(r: Request, tile: FirstTile) -> tuple[int, int]:
    """Rows of all channels that a block reads, floats of one of them."""
    ic, kh, kw, sh, sw, dh, dw = _sizes(r)
    pitch = (
        (tile.groups - 1) * tile.pixels * sw
        + (kw - 1) // _piece(r) * _piece(r) * dw
        + _held(r, tile)
        + 3
    )
    return ic * ((tile.down - 1) * sh + (kh - 1) * dh + 1), pitch // 4 * 4


def _smem(r: Request, tile: FirstTile) -> int:
    ic, kh, kw = _sizes(r)[:3]
    rows, pitch = _patch(r, tile)
    return (
        max(
            ic * kh * kw * (tile.columns + 4) + rows * pitch,
            (tile.parts - 1) * tile.threads // tile.parts * tile.pixels * 8,
        )
        * 4
    )


def _resident(r: Request, tile: FirstTile) -> int:
    """Blocks of a multiprocessor, by shared memory and registers."""
    registers = tile.pixels * 8 + _held(r, tile) + 40
    return min(shared(r) // (_smem(r, tile) + 1024), 65536 // (registers * tile.threads), 8)


def _tiles(r: Request) -> Iterator[FirstTile]:
    (ic, kh), sw, most = _sizes(r)[:2], int(r.ints["SW"]), min(r.caps.smem_block, 160 * 1024)
    for pixels in (8, 4):
        for columns in (64, 32, 16):
            for threads in (128, 64):
                groups = 1
                while groups <= threads * 8 // columns:
                    for parts in (1, 2, 3, 4):
                        tile = FirstTile(
                            pixels, groups, threads * 8 // columns // groups, columns, parts
                        )
                        if (
                            pixels * sw % 4 == 0
                            and _held(r, tile) <= 64
                            and _smem(r, tile) <= most
                            and _resident(r, tile) > 0
                            and parts <= ic * kh // 2 + 1
                        ):
                            yield tile
                    groups *= 2


def applies(r: Request) -> bool:
    """Whether the kernel computes this convolution without groups."""
    i = r.ints
    if any(not isinstance(i[n], int) for n in (*_STATIC, "OC")) or "w" in r.unaligned:
        return False
    return int(i["IC"]) <= 4 and next(_tiles(r), None) is not None


def _blocks(r: Request, tile: FirstTile) -> tuple[DimLike, int]:
    """Along the pixels and the channels."""
    i = r.ints
    return D.product(
        [i["N"], D.ceildiv(i["OW"], tile.groups * tile.pixels), D.ceildiv(i["OH"], tile.down)]
    ), -(-int(i["OC"]) // tile.columns)


def _asynchronous(r: Request) -> bool:
    """Whether pixels are copied to shared memory without registers."""
    n, height, width = (
        int(select.known(r.ints[n], usual))
        for n, usual in (("N", _BATCH), ("OH", _USUAL), ("OW", _USUAL))
    )
    return r.dtype == DType.F32 and n * height * width * int(r.ints["OC"]) <= _MANY


def _room(r: Request, tile: FirstTile) -> int:
    """Shared memory of a block."""
    blocks, columns = _blocks(r, tile)
    return spread(r, D.mul(blocks, columns), _smem(r, tile)) if _asynchronous(r) else _smem(r, tile)


def _price(r: Request, tile: FirstTile, images: int) -> float:
    """Clocks for so many images."""
    ic, kh, kw = _sizes(r)[:3]
    height, width = (int(select.known(r.ints[n], _USUAL)) for n in ("OH", "OW"))
    blocks = (
        images
        * -(-height // tile.down)
        * -(-width // (tile.groups * tile.pixels))
        * -(-int(r.ints["OC"]) // tile.columns)
    )
    rows, warps = _patch(r, tile)[0], tile.threads // 32
    span = (tile.groups * tile.pixels - 1) * int(r.ints["SW"]) + (kw - 1) * int(r.ints["DW"]) + 1
    # instructions of a warp
    multiply = -(-ic * kh // tile.parts) * (_held(r, tile) / 2 + kw * tile.pixels * 8)
    # of equally fast ones, that which computes least
    idle = 0.05 * blocks * tile.threads / 128 / r.sms * multiply
    resident, here = _resident(r, tile), -(-blocks // r.sms)
    if not _asynchronous(r):
        copies = -(-rows * -(-span // 32) * 32 // tile.threads) + 2 * -(
            -kh * kw * tile.columns // tile.threads
        )
        together = min(resident, here) * tile.threads / 128  # warps of a scheduler
        one = _BLOCK + (together + _WAITS) * multiply + together * copies * _COPY
        return _BEGIN + -(-blocks // (resident * r.sms)) * one + idle
    lines = -(-rows // warps) if rows >= warps else rows / warps  # of a warp
    copy = max(1.0, lines) * _ROW + lines * -(-span // 32) * _PIECE_OF_ROW
    if 2 * blocks <= r.sms * resident and _room(r, tile) == _smem(r, tile):
        # they come while those of the launch before are there
        here = -(-2 * blocks // r.sms) - blocks // r.sms
    together = min(resident, here) * tile.threads / 128
    one = (
        _START
        + (together * _TOGETHER + _ALONE) * multiply
        + (together * _COPY_TOGETHER + _COPY_ALONE) * copy
    )
    return -(-here // resident) * one + idle


def choose(r: Request) -> FirstTile:
    images = int(select.known(r.ints["N"], _BATCH))
    tile: FirstTile = kernel_choice.cheapest({t: _price(r, t, images) for t in _tiles(r)})
    return tile


def convolution(r: Request) -> list[Kernel]:
    """The kernels of a convolution to which this one applies: where several sizes are symbolic, one
    for each range of its pixels.
    """
    pixels = select.pixels(r)
    if len(D.symbols(pixels)) < 2:
        return [kernel(r, choose(r))]
    tiles = list(_tiles(r))

    def price(size: int) -> dict[FirstTile, float]:
        costs = dict.fromkeys(tiles, 0.0)
        for part in _PARTS:  # sides that are multiples of some tiles' and not of others'
            with size_ranges.at(pixels, round(part * size)):
                for t in tiles:
                    costs[t] += _price(r, t, int(select.known(r.ints["N"], 1))) / part
        return costs

    return [kernel(r, tile, use) for tile, use in select.choose(pixels, price, False, _ALIKE)]


def kernel(r: Request, tile: FirstTile, active: DimLike = 1) -> Kernel:
    """active: 0 empties the grid."""
    i = r.ints
    params: list[tuple[str, str, Argument]] = [
        ("const T*", "x", Pointer("x")),
        ("const T*", "w", Pointer("w")),
        ("T*", "y", Pointer("y")),
    ]
    params += select.int_params(r, ("IH", "IW", "OH", "OW", "OC", "PT", "PL"))
    params += [("i64", "x_c", Int64(1 if i.get("x_c", 0) == 0 else i["x_c"]))]
    params += select.long_params(
        r, ("x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns", "r_cs", "r_rs", "r_ns")
    )
    epi = epilogue.epilogue(r, tuple(i.get(n, 0) for n in ("r_cs", "r_rs", "r_ns")), width=4)
    parameters = [*params, *epi.parameters]
    constants = {n: i[n] for n in _STATIC} | {
        "P": tile.pixels,
        "GROUPS": tile.groups,
        "DOWN": tile.down,
        "BN": tile.columns,
        "PIECE": _piece(r),
        "PARTS": tile.parts,
    }
    constants |= {
        "THREADS": tile.threads,
        "RESIDENT": _resident(r, tile),
        "FILTER_PITCH": select.channels(r, int(i["IC"])),
        "MULTIPLE": 1,
    }
    text = "\n".join([
        prelude(r.dtype), f"#define IS_F32 {int(r.dtype.size == 4)}", f"#define ASYNCHRONOUS {int(_asynchronous(r))}",
        f"constexpr int {', '.join(f'{n} = {v}' for n, v in constants.items())};",
        f"constexpr bool X_VECTOR = 0, Y_VECTOR = {int(epilogue.vector(r, 'y', (i['y_cs'], i['y_rs'], i['y_ns'])))}, EARLY = {int('w' in r.constant)};",
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        epi.source, template("conv/depthwise/channels"), template("conv/small_c_simt"),
    ])  # fmt: skip
    blocks, columns = _blocks(r, tile)
    return Kernel(
        text,
        "conv_first",
        (D.mul(blocks, active), columns, 1),
        tile.threads,
        tuple(v for _, _, v in parameters),
        _room(r, tile),
        pdl=r.arch >= 90,
    )
