"""Convolutions to check: each form of each kernel, at sizes that end within a tile."""

from __future__ import annotations

from tests.support.cuda.conv_shape import Conv
from tracea_onnx.ir.abi import ACTIVATIONS

_ONE, _NONE = (1, 1), (0, 0, 0, 0)
#: For the kernel that is chosen.
SHAPES = [
    Conv(2, 64, 14, 14, 64), Conv(1, 3, 33, 35, 20, (7, 7), (2, 2), _ONE, (3, 3, 3, 3)),
    Conv(2, 3, 16, 18, 16, (3, 3), (2, 2), _ONE, (0, 0, 1, 1), act="silu"),
    Conv(1, 1, 9, 7, 1, act="none"), Conv(3, 5, 11, 13, 7, (3, 2), (2, 3), (2, 1), (1, 0, 2, 1)),
    Conv(1, 32, 1, 50, 24, (1, 5), _ONE, (1, 2), (0, 4, 0, 4)),
    Conv(2, 40, 15, 15, 72, (5, 5), _ONE, _ONE, (2, 2, 2, 2), act="hard_swish"),
    Conv(2, 64, 12, 12, 128, (1, 1), _ONE, _ONE, _NONE, res_mode=1),
    Conv(2, 64, 13, 13, 128, (1, 1), (2, 2), _ONE, _NONE),
    Conv(1, 17, 8, 8, 19, (1, 1), _ONE, _ONE, _NONE, res_mode=2),
    Conv(1, 512, 7, 7, 512, act="relu"),
    Conv(1, 2048, 7, 7, 512, (1, 1), _ONE, _ONE, _NONE), Conv(2, 64, 10, 10, 64, res_mode=1),
    Conv(2, 64, 10, 10, 64, act="silu", res_mode=2, slack=8),
    Conv(2, 24, 9, 9, 40, slack=3), Conv(2, 24, 9, 9, 40, slack=4, res_mode=1),
    Conv(2, 32, 9, 10, 48, kinds=(0, 1, 0)),
    Conv(2, 32, 9, 10, 48, kinds=(1, 3, 0), slack=8),
    Conv(1, 32, 9, 10, 45, (1, 1), _ONE, _ONE, _NONE, kinds=(1, 0, 1)),
    Conv(2, 32, 10, 10, 64, groups=4), Conv(2, 20, 10, 10, 30, groups=5, res_mode=1),
    Conv(1, 16, 9, 9, 32, groups=16), Conv(2, 64, 9, 9, 64, groups=8, stride=(2, 2)),
    Conv(1, 256, 6, 6, 256, groups=2, kinds=(1, 3, 0)),
    Conv(2, 64, 28, 28, 64, dilation=(2, 2), pads=(2, 2, 2, 2)), Conv(2, 192, 8, 8, 128),
    Conv(8, 128, 28, 28, 128), Conv(4, 64, 56, 56, 64, res_mode=1),
    Conv(4, 256, 14, 14, 256, (3, 3), (2, 2)), Conv(4, 320, 9, 11, 264, pads=(1, 0, 0, 1)),
    Conv(16, 64, 28, 28, 256, (1, 1), _ONE, _ONE, _NONE, res_mode=1),
    Conv(16, 256, 28, 28, 128, (1, 1), (2, 2), _ONE, _NONE), Conv(1, 128, 64, 64, 3, act="sigmoid"),
    Conv(1, 96, 40, 40, 96),
    Conv(2, 48, 40, 40, 80, stride=(2, 2)),
    *[Conv(1, 16, 6, 6, 24, act=act) for act in ACTIVATIONS],
    # depthwise
    Conv(2, 64, 14, 14, 64, groups=64), Conv(1, 7, 9, 11, 7, groups=7, act="silu"),
    Conv(2, 40, 15, 13, 40, (5, 5), (2, 2), _ONE, (2, 2, 2, 2), 40, act="hard_swish"),
    Conv(1, 96, 10, 10, 96, (3, 3), _ONE, (2, 2), (2, 2, 2, 2), 96, res_mode=1),
    Conv(1, 24, 8, 8, 24, (7, 7), _ONE, _ONE, (3, 3, 3, 3), 24, kinds=(1, 3, 0)),
    Conv(1, 32, 1, 40, 32, (1, 31), _ONE, _ONE, (0, 15, 0, 15), 32),
    Conv(1, 33, 8, 8, 33, groups=33, stride=(2, 2), pads=(0, 0, 1, 1), slack=3, res_mode=2),
    # few channels of few rows, more channels than a thread's kernel usually takes
    Conv(9, 6, 1, 397, 48, (1, 9), pads=(0, 4, 0, 4)),
    Conv(2, 5, 3, 161, 20, (3, 7), (1, 2), _ONE, (1, 3, 1, 3), act="silu"),
    Conv(1, 4, 2, 99, 70, slack=3),
    Conv(2, 272, 9, 8, 6, (4, 4), (2, 2), _ONE, (1, 1, 1, 1), transposed=True),
    Conv(1, 41, 33, 30, 28, (5, 5), pads=(2, 2, 2, 2)),
    Conv(1, 500, 9, 9, 5, pads=(1, 0, 0, 1)),
    # depthwise in strips
    Conv(16, 96, 28, 27, 96, (5, 5), _ONE, _ONE, (2, 2, 2, 2), 96, act="silu"),
    Conv(40, 33, 56, 57, 33, groups=33, stride=(2, 2), slack=3, res_mode=2),
    Conv(9, 72, 61, 50, 72, groups=72, dilation=(2, 2), kinds=(1, 3, 0)),
    Conv(8, 48, 40, 41, 48, (7, 7), _ONE, _ONE, (3, 3, 3, 3), 48, act="hard_swish"),
    Conv(33, 200, 14, 13, 200, (5, 3), (2, 1), _ONE, (1, 2, 3, 0), 200, res_mode=1),
    Conv(32, 64, 80, 81, 64, groups=64, act="none"),
    Conv(2, 20, 15, 13, 40, groups=20), Conv(16, 48, 56, 57, 144, groups=48, stride=(2, 2),
        act="silu"), Conv(1, 9, 6, 7, 18, groups=9, slack=3, res_mode=1),
    Conv(1, 24, 20, 21, 24, (31, 31), pads=(15, 15, 15, 15), groups=24),
    Conv(1, 200, 1, 3000, 200, (1, 31), (1, 2), (1, 4), (0, 120, 0, 0), 200),
    # transposed
    Conv(2, 64, 8, 8, 32, (2, 2), (2, 2), _ONE, _NONE, transposed=True),
    Conv(2, 16, 7, 9, 24, (4, 4), (2, 2), _ONE, (1, 1, 1, 1), transposed=True),
    Conv(1, 5, 6, 5, 7, (3, 3), (2, 3), (1, 2), (1, 0, 0, 1), transposed=True, extra=(1, 2)),
    Conv(1, 16, 6, 6, 16, groups=4, transposed=True, stride=(3, 3)),
    Conv(1, 12, 5, 5, 12, (3, 3), (1, 1), (2, 2), groups=12, transposed=True),
    Conv(1, 8, 5, 5, 8, (1, 1), (2, 2), _ONE, _NONE, transposed=True, res_mode=1),
    Conv(1, 8, 5, 6, 16, (3, 3), (2, 2), (2, 2), _NONE, transposed=True, act="none"),
    Conv(2, 128, 14, 14, 64, (2, 2), (2, 2), _ONE, _NONE, transposed=True, kinds=(1, 3, 0)),
    Conv(3, 67, 13, 9, 131, (3, 3), (2, 2), _ONE, (1, 1, 1, 1), transposed=True, extra=(1, 1),
        res_mode=2),
    Conv(1, 96, 1, 67, 40, (1, 16), (1, 8), _ONE, (0, 4, 0, 4), transposed=True, slack=3),
    Conv(2, 40, 7, 6, 56, (5, 4), (3, 2), _ONE, (2, 1, 0, 1), transposed=True),
    Conv(2, 24, 9, 7, 24, (4, 4), (2, 2), _ONE, (1, 1, 1, 1), 24, True),
    Conv(1, 7, 6, 5, 14, (3, 3), (2, 2), _ONE, _NONE, 7, True, (1, 0), act="silu"),
]  # fmt: skip
#: Of few channels.
FIRST = [
    Conv(2, 3, 224, 224, 64, (7, 7), (2, 2), _ONE, (3, 3, 3, 3), planes=True),
    Conv(3, 3, 37, 61, 24, (3, 3), (2, 2), planes=True, act="silu"),
    Conv(2, 4, 23, 29, 33, (5, 8), (3, 4), _ONE, (2, 3, 1, 4), planes=True),
    Conv(1, 1, 31, 33, 6, (5, 5), planes=True, pads=_NONE),
    Conv(2, 2, 9, 17, 16, (1, 3), (2, 1), planes=True, pads=(0, 1, 0, 1), kinds=(1, 0, 3)),
    Conv(0, 3, 9, 17, 16, planes=True),
    Conv(1, 3, 1, 1, 70, planes=True),
]  # fmt: skip
#: Of few channels, lines and large windows.
LINES = [
    Conv(2, 1, 1, 91, 20, (1, 10), (1, 5), _ONE, _NONE, planes=True),
    Conv(1, 3, 1, 70, 33, (1, 25), _ONE, _ONE, (0, 12, 0, 12), planes=True, act="silu", res_mode=1),
    Conv(1, 3, 40, 43, 24, (11, 11), (4, 4), _ONE, (2, 2, 2, 2), planes=True, kinds=(0, 1, 3)),
    Conv(2, 2, 21, 19, 6, (9, 3), pads=(4, 1, 4, 1), planes=True, slack=3),
]  # fmt: skip
#: Of few channels, and pooled.
POOLED = [
    Conv(2, 3, 224, 224, 64, (7, 7), (2, 2), _ONE, (3, 3, 3, 3), planes=True,
        pool=(3, 3, 1, 1, 1, 1)),
    Conv(3, 3, 37, 61, 24, (3, 3), (2, 2), planes=True, act="silu", pool=(3, 3, 1, 1, 1, 1)),
    Conv(2, 1, 28, 28, 6, (5, 5), pads=_NONE, planes=True, pool=(2, 2, *_NONE)),
    Conv(1, 8, 23, 29, 33, (5, 5), (1, 3), _ONE, (2, 3, 1, 4), act="none", pool=(3, 2, 2, 0, 1, 1)),
    Conv(3, 5, 17, 71, 70, (2, 7), (3, 1), slack=3, pool=(2, 3, 1, 2, 0, 1)),
    Conv(0, 3, 9, 17, 16, planes=True, pool=(2, 2, *_NONE)),
    Conv(1, 3, 1, 47, 40, (1, 7), (1, 2), _ONE, (0, 3, 0, 3), planes=True, pool=(3, 3, 1, 1, 1, 1)),
    Conv(1, 4, 60, 131, 16, (7, 7), (2, 2), _ONE, (3, 3, 3, 3), planes=True, act="hard_swish",
        kinds=(1, 3, 1), pool=(3, 3, 0, 0, 1, 1)),
]  # fmt: skip
#: For every tile.
EVERY_TILE = [
    Conv(3, 64, 13, 17, 136), Conv(2, 96, 15, 11, 72, (3, 2), (2, 1), (1, 2), (1, 0, 2, 1),
        res_mode=1),
    Conv(5, 200, 6, 7, 264, act="silu", kinds=(1, 3, 0)),
    Conv(2, 320, 13, 13, 328, (1, 1), (2, 2), _ONE, _NONE, slack=8, res_mode=2),
]  # fmt: skip
#: For every tile that keeps its window.
WINDOWS = [
    Conv(3, 64, 13, 17, 136), Conv(2, 96, 21, 20, 64, (3, 2), _ONE, (2, 1), (1, 0, 2, 1),
        act="silu", kinds=(1, 0, 3)), Conv(5, 64, 56, 56, 64),
    Conv(1, 40, 1, 100, 72, (1, 5), _ONE, _ONE, (0, 2, 0, 2), slack=8),
    Conv(2, 128, 7, 9, 24, (2, 2), _ONE, _ONE, _NONE),
]  # fmt: skip
#: For every slab.
HALOS = [
    Conv(3, 88, 19, 54, 64, (7, 7), pads=(3, 3, 3, 3)),
    Conv(5, 40, 9, 11, 72, (5, 5), pads=(2, 2, 2, 2), act="silu"),
    Conv(3, 512, 7, 7, 512, res_mode=2),
    Conv(2, 96, 9, 20, 45, (3, 2), _ONE, (2, 1), (1, 0, 2, 1), act="silu", kinds=(1, 0, 3)),
    Conv(3, 256, 14, 14, 256, res_mode=1),
    Conv(1, 200, 1, 150, 33, (1, 25), pads=(0, 12, 0, 12)),
    Conv(2, 64, 60, 60, 40, (9, 9), pads=(4, 4, 4, 4), slack=8),
    Conv(3, 128, 10, 10, 128, (4, 4), _ONE, _ONE, (2, 1, 1, 2)),
    Conv(21, 104, 6, 6, 96, (5, 5), pads=(2, 2, 2, 2)),
]  # fmt: skip
#: Whose merged groups have odd sizes, end within a tile, or are all the image has.
GROUPS = [
    Conv(2, 96, 15, 11, 96, (3, 2), (2, 1), (1, 2), (1, 0, 2, 1), 48, res_mode=1),
    Conv(1, 72, 9, 10, 72, groups=3, res_mode=2),
    Conv(8, 120, 7, 7, 240, groups=5, act="silu", kinds=(1, 3, 0)),
    Conv(2, 40, 9, 9, 30, groups=10), Conv(2, 36, 9, 9, 192, groups=12),
    Conv(2, 24, 9, 9, 40, groups=8), Conv(3, 144, 8, 9, 144, groups=16),
    Conv(2, 300, 9, 9, 300, groups=2), Conv(2, 48, 20, 20, 48, groups=6, slack=4),
    Conv(2, 96, 9, 9, 96, (1, 1), _ONE, _ONE, _NONE, 3, slack=8),
    Conv(1, 768, 1, 50, 768, (1, 128), _ONE, _ONE, (0, 64, 0, 64), 16),
    Conv(3, 128, 13, 12, 128, groups=4), Conv(2, 64, 30, 31, 128, groups=8, stride=(2, 2)),
    Conv(5, 48, 9, 9, 48, groups=3), Conv(2, 24, 20, 20, 48),
]  # fmt: skip
#: With Inf, NaN and results that overflow, each in a group of its own.
WILD = [
    Conv(3, 64, 13, 11, 64, groups=16, act="none"), Conv(2, 40, 9, 9, 30, groups=10, act="none"),
    Conv(2, 144, 9, 11, 144, groups=3),
    Conv(2, 128, 9, 11, 128, groups=4),
]  # fmt: skip
