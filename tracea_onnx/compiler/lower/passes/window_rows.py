"""8-bit convolutions of few channels, in which a row of a window is one pixel.

Taps of C channels are filled up to 16 bytes, and pixels of C bytes are aligned to few. In a padded
copy of the image, whose pixels have P >= C bytes, the KW pixels of a row of a window follow each
other, and those of the next window begin SW P bytes behind them:

    y[oh, ow] = sum over kh of w[:, kh, :] . x[oh SH + kh DH, ow SW P : (ow SW + KW) P]

That is a convolution by KH x 1 filters over KW P channels of pixels that overlap. What the copy
adds has the zero point of x, and so adds nothing to a sum.
"""

from __future__ import annotations

import math

import numpy as np

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.ops.copies import bits
from tracea_onnx.compiler.lower.ops.padding import merged, numbers
from tracea_onnx.compiler.lower.passes.byte_images import BYTES, lying
from tracea_onnx.compiler.lower.passes.quantised import Quantising, is_usual
from tracea_onnx.compiler.lower.value import Nhwc, Quantised, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import multiple_of
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.shapes.windows import Window
from tracea_onnx.support.data_classes import dataclass

#: Bytes of a vector, to which taps are filled up, and of the least asynchronous copy; bytes of
#: filters that take as long as a copy.
_VECTOR, _LEAST, _COPY = 16, 4, 4


@dataclass(frozen=True, eq=False)
class WindowRows:
    """The convolution over rows: image, filters [OC, KW P, KH, 1], and windows over both axes."""

    image: Nhwc
    weight: Value
    axes: tuple[Window, Window]


def window_rows(
    ctx: Lowering, x: Quantised, w: Value, axes: tuple[Window, ...], groups: int
) -> WindowRows | None:
    """A convolution of `x` by `w` as one over rows, where that takes less time: of an image that is
    to be copied anyway, or whose pixels no asynchronous copy reaches. None for others, and where
    the zero point is not known.
    """
    high, wide = axes
    zero = 0 if x.zero is None else x.zero.data
    if not ctx.target.window_rows or groups > 1 or wide.dilation > 1 or wide.kernel == 1:
        return None
    if zero is None or np.size(zero) != 1:
        return None
    there = None if _waits(x.x) else lying(ctx, x.x)
    if there is not None and _aligned(*map(multiple_of, (there.cs, there.rs, there.ns))) > 1:
        return None
    channels = x.x.channels
    pixel = _pixel(channels, wide)
    if pixel is None:
        return None
    return WindowRows(
        _image(ctx, x.x, np.asarray(zero), (high, wide), pixel),
        _filters(ctx, w, (high, wide), pixel),
        (
            Window(_read(high), high.kernel, high.stride, high.dilation, out=high.out),
            Window(wide.out, out=wide.out),
        ),
    )


def is_first_image(ctx: Lowering, x: Value, made: Quantising) -> bool:
    """Whether images of so few channels that are quantised so wait for a convolution that copies
    them anyway.
    """
    few = x.rank == 4 and isinstance(x.shape[1], int) and x.shape[1] <= _LEAST
    usual = is_usual(made.scale)
    one = made.scale.rank == 0 and (made.zero is None or made.zero.rank == 0)
    known = made.zero is None or made.zero.data is not None
    able = ctx.target.window_rows and "quantise_image" in ctx.target.families
    return able and few and usual and one and known and made.dtype in BYTES and x.view is not None


def _waits(v: Value) -> bool:
    """Whether it is a quantised image that is not stored yet."""
    known = v.deferred if v.view is None else None
    return known is not None and known.kind == "quantised"


def _pixel(channels: int, wide: Window) -> int | None:
    """Bytes of a pixel; None where the taps one by one take no longer."""

    def price(row: int, step: int) -> float:
        filled = -(-row // _VECTOR) * _VECTOR
        return filled + _COPY * filled / _aligned(step & -step)

    taps = wide.kernel * price(channels, channels)
    prices = {p: price(wide.kernel * p, wide.stride * p) for p in range(channels, _VECTOR + 1)}
    best = min(prices, key=lambda p: prices[p], default=None)
    return None if best is None or prices[best] >= taps else best


def _aligned(*steps: int) -> int:
    """Bytes of a copy of what lies at multiples of these powers of two."""
    found = min(_VECTOR, *steps)
    return found if found >= _LEAST else 1


def _read(a: Window) -> D.DimLike:
    """Pixels along an axis of the padded image, of which windows read all but some at the end."""
    return D.mul(a.out, a.stride) + max((a.kernel - 1) * a.dilation + 1 - a.stride, 0)


def _image(
    ctx: Lowering, x: Value, zero: np.ndarray, axes: tuple[Window, Window], pixel: int
) -> Nhwc:
    """The padded copy, as pixels from window to window."""
    (n, channels, h, w), (high, wide) = x.image(), axes
    # rows begin where windows and vectors may
    unit = math.lcm(wide.stride, _VECTOR // math.gcd(_VECTOR, pixel))
    rows, columns = _read(high), D.round_up(_read(wide), unit)
    to = contiguous((n, rows, columns, pixel))
    ref = ctx.plan.arena(D.mul(n, to[0]))
    image = Nhwc(ref, wide.stride * pixel, to[1], to[0])
    if _waits(x) and x.deferred is not None:
        source, scale, *zeros = x.deferred.parts
        given = ctx.strided(source)
        operands = {"x": given.ref, "scale": ctx.plain(scale)}
        if zeros:
            operands["zero"] = ctx.plain(zeros[0])
        numbers_of = dict(zip(("x_n", "x_c", "x_h", "x_w"), given.strides, strict=True))
        before = {"top": high.padding()[0], "left": wide.padding()[0]}
        ctx.plan.launch(
            "quantise_image",
            operands,
            {"y": ref},
            {
                **x.nchw(), **numbers_of, **before, "P": pixel, "rows": rows, "columns": columns,
                "y_dtype": int(x.dtype),
            },
            dtype=source.dtype,
        )  # fmt: skip
        return image
    view = ctx.strided(x)
    s_n, s_c, *s_h, s_w = view.strides
    sizes = [
        (n, n, 0),
        (h, rows, high.padding()[0]),
        (w, columns, wide.padding()[0]),
        (channels, pixel, 0),
    ]
    moved = merged(sizes, (s_n, s_h[0] if s_h else 0, s_w, s_c), to)
    fill = bits(zero.astype(numpy_type(int(x.dtype))))
    ctx.plan.launch(
        "pad", {"x": view.ref}, {"y": ref}, numbers(moved, x.dtype, 0, fill), whole=False
    )
    return image


def _filters(ctx: Lowering, w: Value, axes: tuple[Window, Window], pixel: int) -> Value:
    """w'[o, kw P + c, kh, 0] = w[o, c, kh, kw], and 0 for c from C on."""
    oc, channels = (int(d) for d in w.shape[:2] if isinstance(d, int))
    kh, kw = (a.kernel for a in axes)
    out = Value(f"{w.name}\0rows", w.dtype, (oc, kw * pixel, kh, 1), initializer=w.name)
    sizes = [(oc, oc, 0), (kw, kw, 0), (channels, pixel, 0), (kh, kh, 0)]
    s_o, s_c, s_h, s_w = contiguous((oc, channels, kh, kw))
    moved = merged(sizes, (s_o, s_w, s_c, s_h), contiguous((oc, kw, pixel, kh)))
    ref = ctx.plan.arena(D.mul(out.elements, w.dtype.size))
    ctx.plan.launch("pad", {"x": ctx.plain(w)}, {"y": ref}, numbers(moved, w.dtype, 0, 0))
    out.view = View(ref, contiguous(out.shape))
    return out
