"""Convolutions to check and to time: their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracea_onnx.ir.abi import DType


@dataclass(frozen=True)
class Conv:
    """One convolution. pads: top, left, bottom, right. extra: output padding of a transposed one.

    slack: extra channels in every pitch (a slice of a wider tensor). planes: the image lies as
    models are given it. pool: window and top, left, bottom, right pads of a max pooling of stride 2
    that follows in the same launch."""

    n: int
    c: int
    h: int
    w: int
    oc: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    groups: int = 1
    transposed: bool = False
    extra: tuple[int, int] = (0, 0)
    act: str = "relu"
    res_mode: int = 0
    kinds: tuple[int, ...] | None = None
    slack: int = 0
    planes: bool = False
    pool: tuple[int, int, int, int, int, int] | None = None

    @property
    def out(self) -> tuple[int, int]:
        sizes = []
        for axis, n in enumerate((self.h, self.w)):
            k, s, d, pad = (
                self.kernel[axis],
                self.stride[axis],
                self.dilation[axis],
                self.pads[axis] + self.pads[axis + 2],
            )
            sizes.append(
                (n - 1) * s + self.extra[axis] + d * (k - 1) + 1 - pad
                if self.transposed
                else (n + pad - d * (k - 1) - 1) // s + 1
            )
        return sizes[0], sizes[1]

    @property
    def results(self) -> tuple[int, int]:
        """Height and width of what is written."""
        if self.pool is None:
            return self.out
        sizes = [
            (n + self.pool[2 + axis] + self.pool[4 + axis] - self.pool[axis]) // 2 + 1
            for axis, n in enumerate(self.out)
        ]
        return sizes[0], sizes[1]

    @property
    def depthwise(self) -> bool:
        return self.groups == self.c > 1 and not (self.transposed and self.dilation != (1, 1))

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        first, second = (
            (self.c, self.oc // self.groups)
            if self.transposed
            else (self.oc, self.c // self.groups)
        )
        return first, second, *self.kernel

    def name(self, dtype: DType) -> str:
        kind = (
            ("dw" if self.depthwise else "") + "deconv"
            if self.transposed
            else "dw"
            if self.depthwise
            else "conv"
        )
        size = f"{self.n}x{self.c}x{self.h}x{self.w}->{self.oc}"
        parts = [
            f"{kind} {dtype.name} {size} k{self.kernel} s{self.stride} d{self.dilation} p{self.pads} g{self.groups} {self.act}"
        ]
        parts += (
            [f"res{self.res_mode}"] * bool(self.res_mode)
            + [f"program{self.kinds}"] * bool(self.kinds)
            + [f"slack{self.slack}"] * bool(self.slack)
        )
        parts += ["planes"] * self.planes + [f"pool{self.pool}"] * bool(self.pool)
        return " ".join(parts)


def pitch(channels: int, slack: int = 0) -> int:
    return -(-channels // 8) * 8 + slack


#: (C, H, W, OC, kernel, stride, residual, how often) of ResNet-50.
RESNET50 = [
    (3, 224, 224, 64, 7, 2, 0, 1), (64, 56, 56, 64, 1, 1, 0, 1), (64, 56, 56, 64, 3, 1, 0, 3), (64, 56, 56, 256, 1, 1, 1, 3), (64, 56, 56, 256, 1, 1, 0, 1),
    (256, 56, 56, 64, 1, 1, 0, 2), (256, 56, 56, 128, 1, 1, 0, 1), (128, 56, 56, 128, 3, 2, 0, 1), (128, 28, 28, 512, 1, 1, 1, 4),
    (256, 56, 56, 512, 1, 2, 0, 1),
    (512, 28, 28, 128, 1, 1, 0, 3), (128, 28, 28, 128, 3, 1, 0, 3), (512, 28, 28, 256, 1, 1, 0, 1), (256, 28, 28, 256, 3, 2, 0, 1),
    (256, 14, 14, 1024, 1, 1, 1, 6),
    (512, 28, 28, 1024, 1, 2, 0, 1), (1024, 14, 14, 256, 1, 1, 0, 5), (256, 14, 14, 256, 3, 1, 0, 5), (1024, 14, 14, 512, 1, 1, 0, 1),
    (512, 14, 14, 512, 3, 2, 0, 1),
    (512, 7, 7, 2048, 1, 1, 1, 3), (1024, 14, 14, 2048, 1, 2, 0, 1), (2048, 7, 7, 512, 1, 1, 0, 2), (512, 7, 7, 512, 3, 1, 0, 2),
]  # fmt: skip
#: (C, H, OC, activation, residual) of 1x1 layers of MobileNetV3 and EfficientNet.
POINTWISE = [
    (16, 112, 64, "relu", 0), (16, 112, 16, "none", 1), (64, 56, 24, "none", 0), (24, 56, 72, "relu", 0), (72, 56, 24, "none", 1), (40, 28, 120, "relu", 0),
    (120, 28, 40, "none", 1), (80, 14, 184, "hard_swish", 0), (184, 14, 80, "none", 1), (160, 7, 960, "hard_swish", 0), (960, 7, 160, "none", 1),
    (32, 112, 16, "none", 0), (16, 112, 96, "silu", 0), (24, 56, 144, "silu", 0), (144, 56, 24, "none", 1), (40, 28, 240, "silu", 0),
    (112, 14, 672, "silu", 0), (672, 14, 112, "none", 1), (192, 7, 1152, "silu", 0), (1152, 7, 192, "none", 1),
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
    (128, 56, 32, 1), (256, 56, 32, 2), (256, 28, 32, 1), (512, 14, 32, 1), (1024, 7, 32, 1), (48, 112, 6, 2), (104, 28, 13, 1), (208, 14, 26, 1),
    (440, 7, 55, 1), (96, 56, 2, 1), (192, 28, 4, 1), (432, 14, 9, 1), (1008, 7, 21, 1), (128, 28, 64, 1), (120, 28, 5, 1), (672, 14, 6, 1),
]  # fmt: skip


def layers(batches: Sequence[int]) -> list[tuple[str, Conv, int]]:
    out = []
    for n in batches:
        for c, h, w, oc, k, s, res, times in RESNET50:
            out.append(
                (
                    f"resnet50 N{n}",
                    Conv(
                        n,
                        c,
                        h,
                        w,
                        oc,
                        (k, k),
                        (s, s),
                        (1, 1),
                        (k // 2,) * 4,
                        act="relu",
                        res_mode=res,
                    ),
                    times,
                )
            )
        out += [
            (
                f"pointwise N{n}",
                Conv(n, c, h, h, oc, (1, 1), pads=(0, 0, 0, 0), act=act, res_mode=2 * res),
                1,
            )
            for c, h, oc, act, res in POINTWISE
        ]
        out += [
            (f"grouped N{n}", Conv(n, c, h, h, c, stride=(s, s), groups=g), 1)
            for c, h, g, s in GROUPED
        ]
    for n in batches[:2]:
        out += [
            (
                f"depthwise N{n}",
                Conv(n, c, h, w, c, (k, k), (s, s), (1, 1), (k // 2,) * 4, c, act="silu"),
                1,
            )
            for c, h, w, k, s in DEPTHWISE
        ]
    return out
