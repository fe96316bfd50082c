"""Odd convolutions, pooling and resizing: other windows, strides, paddings and channel counts,
lines, first layers, groups, transposed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.support.cuda import runner as R
from tests.support.cuda.conv_shape import Conv
from tests.support.cuda.trials import move as M
from tests.support.cuda.trials.dense import convolution
from tests.support.cuda.trials.trial import Tensors, Trial
from tracea_onnx.ir.abi import DType

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
_NONE = (0, 0, 0, 0)


def conv(
    n: int,
    c: int,
    size: int | tuple[int, int],
    oc: int,
    kernel: int | tuple[int, int] = 3,
    stride: int = 1,
    **more: object,
) -> Conv:
    """Padded to keep its size, unless `pads` says otherwise."""
    h, w = (size, size) if isinstance(size, int) else size
    kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
    strides = (1 if h == kh == 1 else stride, stride)
    more = {"pads": ((kh - 1) // 2, (kw - 1) // 2) * 2, "act": "none", **more}
    return Conv(n, c, h, w, oc, (kh, kw), strides, **more)  # type: ignore[arg-type]


def _convolutions() -> Iterator[tuple[Sequence[DType], Conv]]:
    half, both = (F16, BF16), (F16, F32)
    yield both, conv(1, 517, 13, 131, (1, 7))
    yield both, conv(3, 131, (15, 19), 67, 2, pads=(0, 1, 1, 0))
    yield both, conv(4, 67, 41, 33, 3, 3)
    yield both, conv(1, 160, 33, 259, 3, dilation=(3, 3), pads=(3,) * 4)
    yield half, conv(8, 24, 127, 40, 5)  # few channels, many pixels
    yield half, conv(1, 40, 61, 131, 7)
    yield both, conv(2, 128, (1, 1997), 192, (1, 25), 4)  # lines
    yield both, conv(4, 512, (1, 997), 259, (1, 3), 2)
    yield both, conv(1, 3, 299, 33, 3, 2, planes=True, pads=_NONE)  # first layers
    yield both, conv(8, 1, 97, 67, 7, 4, planes=True)
    yield both, conv(2, 4, 131, 96, 5, planes=True)
    yield (F32,), conv(1, 3, 224, 64, 11, 4, planes=True)
    yield both, conv(1, 1, (1, 16001), 33, (1, 10), 5, planes=True, pads=_NONE)
    yield both, conv(2, 48, 41, 48, 3, groups=16)  # groups
    yield both, conv(1, 66, 37, 66, 3, 2, groups=2)
    yield both, conv(1, 384, 14, 384, 7, groups=384)  # depthwise
    yield both, conv(2, 67, 19, 67, 9, groups=67)
    yield both, conv(1, 61, 29, 61, 31, groups=61)
    yield both, conv(2, 259, (13, 41), 259, 5, 2, groups=259)
    yield both, conv(1, 160, 55, 320, groups=160)
    yield both, conv(1, 144, (1, 101), 144, (1, 31), groups=144)
    yield both, conv(2, 67, 41, 33, 2, 2, transposed=True, pads=_NONE)  # transposed
    yield both, conv(1, 131, 17, 67, 4, 2, transposed=True, pads=(1,) * 4)
    yield both, conv(3, 96, (13, 11), 131, 3, 2, transposed=True, pads=(1,) * 4, extra=(1, 1))
    yield both, conv(1, 256, (1, 499), 128, (1, 16), 8, transposed=True, pads=(0, 4, 0, 4))
    yield both, conv(2, 61, 19, 61, 4, 2, groups=61, transposed=True, pads=(1,) * 4)


def cubic(dtype: DType, n: int, c: int, h: int, w: int, oh: int, ow: int) -> Trial:
    r = R.request(
        "resize_cubic",
        dtype,
        M._resized(n, c, h, w, oh, ow),
        {"scale_h": oh / h, "scale_w": ow / w, "a": -0.75},
        operands=("x", "y"),
    )

    def eager(x: Tensors) -> object:
        return R.torch().nn.functional.interpolate(x["x"], (oh, ow), mode="bicubic")

    name = f"cubic resize {dtype.name} {n}x{c}x{h}x{w} to {oh}x{ow}"
    return Trial(
        name,
        dtype,
        [r],
        M._image(n, c, h, w, dtype),
        eager,
        M._into(n, c, oh, ow, dtype),
        16.0,
        size=M.slopes(dtype, h, w),
    )


def trials() -> Iterator[Trial]:
    for dtypes, v in _convolutions():
        for dtype in dtypes:
            yield convolution(dtype, v)
    for dtype in (F16, F32):
        yield M.pool(dtype, 0, 1, 67, 56, 53, 5, 3, 2)
        yield M.pool(dtype, 2, 2, 33, 19, 23, 7, 1, 3)
        yield M.pool(dtype, 0, 4, 259, 13, 15, 13, 1, 6)
        yield M.global_pool(dtype, 1, 512, 15, 15)
        yield M.global_pool(dtype, 1, 67, 53, 27)
        yield M.resize(dtype, 1, 33, 41, 37, 67, 29)
        yield cubic(dtype, 1, 17, 61, 53, 97, 131)
