"""Layers of well-known networks, for `benchmarks.kernels`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.support.cuda.conv_shape import Conv

#: (C, H, W, OC, kernel, stride, residual, how often) of ResNet-50.
RESNET50 = [
    (3, 224, 224, 64, 7, 2, 0, 1), (64, 56, 56, 64, 1, 1, 0, 1), (64, 56, 56, 64, 3, 1, 0, 3),
    (64, 56, 56, 256, 1, 1, 1, 3), (64, 56, 56, 256, 1, 1, 0, 1),
    (256, 56, 56, 64, 1, 1, 0, 2), (256, 56, 56, 128, 1, 1, 0, 1), (128, 56, 56, 128, 3, 2, 0, 1),
    (128, 28, 28, 512, 1, 1, 1, 4),
    (256, 56, 56, 512, 1, 2, 0, 1),
    (512, 28, 28, 128, 1, 1, 0, 3), (128, 28, 28, 128, 3, 1, 0, 3), (512, 28, 28, 256, 1, 1, 0, 1),
    (256, 28, 28, 256, 3, 2, 0, 1),
    (256, 14, 14, 1024, 1, 1, 1, 6),
    (512, 28, 28, 1024, 1, 2, 0, 1), (1024, 14, 14, 256, 1, 1, 0, 5),
    (256, 14, 14, 256, 3, 1, 0, 5), (1024, 14, 14, 512, 1, 1, 0, 1),
    (512, 14, 14, 512, 3, 2, 0, 1),
    (512, 7, 7, 2048, 1, 1, 1, 3), (1024, 14, 14, 2048, 1, 2, 0, 1), (2048, 7, 7, 512, 1, 1, 0, 2),
    (512, 7, 7, 512, 3, 1, 0, 2),
]  # fmt: skip
#: (C, H, OC, activation, residual) of 1x1 layers of MobileNetV3 and EfficientNet.
POINTWISE = [
    (16, 112, 64, "relu", 0), (16, 112, 16, "none", 1), (64, 56, 24, "none", 0),
    (24, 56, 72, "relu", 0), (72, 56, 24, "none", 1), (40, 28, 120, "relu", 0),
    (120, 28, 40, "none", 1), (80, 14, 184, "hard_swish", 0), (184, 14, 80, "none", 1),
    (160, 7, 960, "hard_swish", 0), (960, 7, 160, "none", 1),
    (32, 112, 16, "none", 0), (16, 112, 96, "silu", 0), (24, 56, 144, "silu", 0),
    (144, 56, 24, "none", 1), (40, 28, 240, "silu", 0),
    (112, 14, 672, "silu", 0), (672, 14, 112, "none", 1), (192, 7, 1152, "silu", 0),
    (1152, 7, 192, "none", 1),
]  # fmt: skip
#: (C, H, W, kernel, stride) of depthwise layers of MobileNetV3 and EfficientNet.
DEPTHWISE = [
    (32, 112, 112, 3, 1),
    (96, 112, 112, 3, 2),
    (144, 56, 56, 5, 2),
    (240, 28, 28, 3, 1),
    (480, 14, 14, 5, 1),
    (672, 14, 14, 5, 1),
    (1152, 7, 7, 5, 1),
]

#: (C, H, groups, stride) of grouped 3x3 layers of ResNeXt-50 and RegNet; and of other widths.
GROUPED = [
    (128, 56, 32, 1), (256, 56, 32, 2), (256, 28, 32, 1), (512, 14, 32, 1), (1024, 7, 32, 1),
    (48, 112, 6, 2), (104, 28, 13, 1), (208, 14, 26, 1),
    (440, 7, 55, 1), (96, 56, 2, 1), (192, 28, 4, 1), (432, 14, 9, 1), (1008, 7, 21, 1),
    (128, 28, 64, 1), (120, 28, 5, 1), (672, 14, 6, 1),
]  # fmt: skip

_LINEAR = (
    (768, 768, "none", True), (2304, 768, "none", False), (3072, 768, "gelu_erf", False),
    (768, 3072, "none", True),
    (4096, 4096, "none", False), (11008, 4096, "silu", False), (4096, 11008, "none", True),
)  # fmt: skip
#: M, N, K, activation, residual of linear layers of transformers, a classifier, and squares.
LINEAR = (
    (4096, 4096, 4096, "gelu_erf", False), (8192, 8192, 8192, "none", False),
    *((m, *layer) for m in (1, 16, 128, 512, 4096) for layer in _LINEAR),
    *((197, *layer) for layer in _LINEAR[:4]), (512, 50257, 768, "none", False),
    *((32 * 197, *layer) for layer in _LINEAR[:4]), (32, 1000, 2048, "none", False),
    (1023, 1021, 1019, "none", False), (127, 4095, 1000, "relu", False),
)  # fmt: skip


def attention() -> Iterator[tuple[int, int, int, int, bool]]:
    """Batch, heads, rows, head size, causal."""
    for d in (64, 128):
        for causal in (False, True):
            for s in (128, 256, 512, 1024, 2048, 8192):
                batch = max(1, 16384 // s if s >= 1024 else 4096 // s)
                yield batch, 16 if d == 64 else 8, s, d, causal
    for batch, s, causal in (
        (1, 128, False),
        (32, 128, False),
        (1, 197, False),
        (32, 197, False),
        (1, 512, True),
    ):
        yield batch, 12, s, 64, causal


def convolutions(batches: Sequence[int]) -> Iterator[tuple[str, Conv, int]]:
    """Network, layer, how often the network has it."""
    one = (1, 1)
    for n in batches:
        for c, h, w, oc, k, s, res, times in RESNET50:
            pads = (k // 2, k // 2, k // 2, k // 2)
            yield (
                f"resnet50 N{n}",
                Conv(n, c, h, w, oc, (k, k), (s, s), one, pads, res_mode=res),
                times,
            )
        for c, h, oc, act, res in POINTWISE:
            yield (
                f"pointwise N{n}",
                Conv(n, c, h, h, oc, one, pads=(0, 0, 0, 0), act=act, res_mode=2 * res),
                1,
            )
        for c, h, g, s in GROUPED:
            yield f"grouped N{n}", Conv(n, c, h, h, c, stride=(s, s), groups=g), 1
        for c, h, w, k, s in DEPTHWISE:
            pads = (k // 2, k // 2, k // 2, k // 2)
            yield (
                f"depthwise N{n}",
                Conv(n, c, h, w, c, (k, k), (s, s), one, pads, c, act="silu"),
                1,
            )
