"""A convolution: its sizes, and how its tensors lie."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx.ir.abi import DType


@dataclass(frozen=True)
class Conv:
    """One convolution. pads: top, left, bottom, right. extra: output padding of a transposed one.

    slack: extra channels in every pitch (a slice of a wider tensor). planes: the image lies as
    models are given it. pool: window and top, left, bottom, right pads of a max pooling of stride 2
    that follows in the same launch.
    """

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
            (
                f"{kind} {dtype.name} {size} k{self.kernel} s{self.stride} d{self.dilation} "
                f"p{self.pads} g{self.groups} {self.act}"
            )
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
