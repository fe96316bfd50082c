"""Windows of convolutions and poolings along the axes of an image."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import FARTHEST
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.shapes.environment import Operator, Unsupported
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Window:
    """Along one axis: its size, the taps of a window, their stride and dilation, what is padded
    before and after, how many windows there are.
    """

    size: DimLike
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pads: tuple[DimLike, DimLike] = (0, 0)
    out: DimLike = 1

    def padding(self) -> tuple[int, int]:
        """`pads`, where a kernel can add them."""
        before, after = self.pads
        # ONNX pads by nothing where a stride is longer than the window; ONNX Runtime cuts as much
        # off, or fails
        if not isinstance(before, int) or not isinstance(after, int) or min(before, after) < 0:
            raise Unsupported(f"the padding {self.pads} is not known, or is negative")
        return before, after


def windows(
    n: Operator, sizes: Sequence[DimLike], kernel: Sequence[DimLike], *, transposed: bool = False
) -> list[Window]:
    """The windows along each spatial axis of a convolution, transposed or not, or of a pooling.

    out = (size + before + after - dilation * (kernel - 1) - 1) / stride + 1, rounded as `ceil_mode`
    says; transposed: the size of which this is the inverse. Raises Unsupported for attributes that
    do not fit the axes.
    """
    fixed = [k for k in kernel if isinstance(k, int)]
    count, auto = len(sizes), n.attr("auto_pad") or "NOTSET"
    strides, dilations = (n.attr(a) or [1] * count for a in ("strides", "dilations"))
    pads = (n.attr("pads") if auto == "NOTSET" else None) or [0] * (2 * count)
    extra = n.attr("output_padding") or [0] * count
    if (
        {len(fixed), len(kernel), len(strides), len(dilations), len(extra), len(pads) / 2}
        != {count}
        or min(*fixed, *strides, *dilations, 1) < 1
        or auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    ):
        raise Unsupported(
            f"kernel {list(kernel)}, strides {strides}, dilations {dilations}, pads {pads} and"
            f" auto_pad {auto} do not fit {count} spatial dims"
        )
    if max(*fixed, *strides, *dilations, 1) > FARTHEST:
        raise Unsupported(
            f"no kernel takes windows of kernel {fixed}, strides {strides} and dilations"
            f" {dilations}: one is larger than {FARTHEST}"
        )
    given = (n.attr("output_shape") or [])[-count:]
    if given and len(given) != count:
        raise Unsupported(f"output_shape {given} does not fit {count} spatial dims")
    found = []
    for k, (h, taps, s, d) in enumerate(zip(sizes, fixed, strides, dilations, strict=True)):
        begin, end, reach = pads[k], pads[k + count], d * (taps - 1) + 1
        if transposed:
            whole = D.mul(h - 1, s) + (extra[k] + reach)
            if given or auto.startswith("SAME"):
                out = given[k] if given else D.mul(h, s)
                cut = D.maximum(whole - out, 0) if given else max(extra[k] + reach - s, 0)
                small = D.floordiv(cut, 2)
                begin, end = (small, cut - small)[:: 1 if auto == "SAME_UPPER" else -1]
            else:
                out = whole - (begin + end)
        elif auto.startswith("SAME"):
            out = D.ceildiv(h, s)
            total = D.mul(out - 1, s) + reach - h
            small = D.floordiv(total, 2)
            begin, end = (small, total - small)[:: 1 if auto == "SAME_UPPER" else -1]
        else:
            free = h + (begin + end - reach)
            out = D.floordiv(free, s) + 1
            if n.attr("ceil_mode", 0):
                up = D.ceildiv(free, s) + 1
                # a window must start inside the input or its leading pad
                out = D.select(D.less(D.mul(up - 1, s), h + begin), up, up - 1)
        found.append(Window(h, taps, s, d, (begin, end), out))
    return found
