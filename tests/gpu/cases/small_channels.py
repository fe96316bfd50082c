"""Small convolutions of few channels and of large windows with references in numpy, for tools under
which PyTorch is too slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.gpu.cases.small_convs import conv
from tests.gpu.cases.small_gemms import with_tile
from tests.support.cuda.case import Case
from tests.support.cuda.conv_shape import Conv
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
_ONE, _NONE = (1, 1), (0, 0, 0, 0)


def narrow(rng: np.random.Generator) -> Iterator[Case]:
    """`conv/narrow_simt.cuh`: phases of one tap and of several, groups, channels divided among
    threads, output channels that are woven, ragged ends, windows of one pixel.
    """
    tile = discovery.module("kernels", "cuda.conv.narrow_simt").NarrowTile
    for v, dtype, t in (
        (Conv(2, 5, 6, 7, 5, (4, 4), (4, 4), _ONE, _NONE, 1, True), F16, tile(2, 5, 1, 1, 5, 64)),
        (
            Conv(1, 40, 7, 6, 5, (3, 3), (2, 2), _ONE, _NONE, 1, True, res_mode=1),
            F32,
            tile(4, 5, 4, 1, 4, 64),
        ),
        (
            Conv(1, 8, 9, 11, 24, (4, 4), (2, 2), groups=4, transposed=True, act="silu"),
            F32,
            tile(2, 6, 1, 4, 2),
        ),
        (
            Conv(2, 8, 5, 6, 38, (4, 4), (4, 4), _ONE, _NONE, 2, True),
            BF16,
            tile(1, 7, 1, 6, 4, 256),
        ),
        (
            Conv(2, 32, 9, 7, 32, (5, 5), _ONE, _ONE, (2, 2, 2, 2), 16, kinds=(1, 3, 0)),
            F32,
            tile(2, 2, 1, 16, 2),
        ),
        (Conv(2, 28, 9, 12, 4, stride=(2, 2), groups=4, res_mode=1), F32, tile(2, 1, 1, 4, 7, 64)),
        (
            Conv(1, 9, 11, 13, 19, (2, 3), _ONE, (3, 2), (1, 2, 1, 2), slack=3),
            F16,
            tile(2, 5, 2, 4, 8),
        ),
        (Conv(1, 17, 11, 13, 70, stride=(2, 2), res_mode=2), F32, tile(4, 8, 1, 9, 4)),
        (
            Conv(3, 20, 1, 37, 9, (1, 8), (1, 4), _ONE, (0, 2, 0, 2), 1, True),
            F16,
            tile(2, 4, 2, 3, 8),
        ),
        (Conv(1, 5, 1, 50, 30, (1, 25), pads=(0, 12, 0, 12)), F32, tile(4, 4, 2, 4, 2)),
        (Conv(2, 13, 9, 7, 5, _ONE, (2, 2), pads=_NONE, res_mode=1), F16, tile(4, 5, 2, 1, 8, 64)),
        (Conv(3, 38, 7, 9, 3, _ONE, pads=_NONE, act="silu"), F32, tile(2, 3, 8, 1, 4, 128, 2)),
        (
            Conv(3, 20, 7, 5, 14, _ONE, pads=_NONE, groups=2, res_mode=2),
            F32,
            tile(4, 7, 2, 2, 4, 64),
        ),
        (
            Conv(1, 6, 11, 13, 93, _ONE, pads=_NONE, groups=3, kinds=(1, 3, 0)),
            BF16,
            tile(2, 8, 1, 12, 2),
        ),
        (Conv(2, 270, 6, 6, 2, (7, 7), pads=(3, 3, 3, 3)), F32, tile(1, 2, 32, 1, 4, 256)),
    ):
        yield with_tile(conv(rng, v, dtype), t)


def patches(rng: np.random.Generator) -> Iterator[Case]:
    """`conv/small_c_patch.cuh`: strides and dilations, odd numbers of units, several warpgroups,
    transposed ones, channels in several passes.
    """
    tile = discovery.module("kernels", "cuda.conv.small_c_patch").PatchTile
    for v, dtype, t in (
        (Conv(1, 24, 9, 11, 40, (5, 5), pads=(2, 2, 2, 2)), F16, tile(4, 11, 1, 2, 40)),
        (Conv(2, 17, 13, 15, 24, stride=(2, 2), res_mode=1), BF16, tile(4, 8, 1, 1, 24)),
        (Conv(1, 40, 7, 30, 67, (3, 4), _ONE, (2, 1), (2, 1, 2, 2), act="silu"), F16,
            tile(2, 15, 1, 2, 40)),
        (Conv(1, 9, 20, 11, 13, (4, 3), (3, 2), (1, 2), (1, 2, 1, 2), slack=8), F16,
            tile(4, 4, 1, 1, 16)),
        (Conv(2, 24, 11, 9, 64, transposed=True), BF16, tile(5, 9, 1, 4, 64)),
        (Conv(1, 3, 21, 30, 48, (11, 11), (4, 4), kinds=(1, 0, 3)), F16, tile(4, 8, 2, 1, 48)),
        (Conv(1, 135, 13, 11, 9, (5, 5), pads=(2, 2, 2, 2), res_mode=1), F16,
            tile(5, 11, 2, 1, 16, 5)),
        (Conv(3, 67, 9, 12, 20, stride=(2, 2), slack=8), BF16, tile(5, 6, 1, 2, 24, 2)),
    ):  # fmt: skip
        yield with_tile(conv(rng, v, dtype), t)


def large(rng: np.random.Generator) -> Iterator[Case]:
    """Depthwise: windows beyond the image, wider than what a thread holds, strides, ragged
    channels.
    """
    yield conv(rng, Conv(1, 12, 13, 11, 12, (31, 31), pads=(15, 15, 15, 15), groups=12), F32)
    yield conv(
        rng, Conv(2, 9, 5, 4, 9, (31, 31), (2, 2), pads=(15, 15, 15, 15), groups=9, res_mode=1), F16
    )
    yield conv(
        rng, Conv(1, 20, 21, 33, 20, (9, 11), pads=(4, 5, 4, 5), groups=20, act="silu"), BF16
    )
    yield conv(
        rng, Conv(1, 3, 20, 19, 3, (13, 37), (3, 1), pads=(2, 18, 1, 18), groups=3, slack=3), F32
    )


FAMILIES = {"few channels": narrow, "patches": patches, "large windows": large}
