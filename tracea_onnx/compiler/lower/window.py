"""Windows of convolutions and poolings: where they lie over an image and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracea_onnx.compiler.lower.context import Border
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import Unsupported, Value
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.match.spec_table import ConvSpec


def pair(values: Sequence[int] | None, default: int, spatial: int) -> tuple[int, int]:
    """Per-axis parameter of a 1-d or 2-d operator as (height, width); a 1-d one has height 1
    (stride/dilation) or 0 (pad).
    """
    v = [int(x) for x in values] if values else [default] * spatial
    if len(v) != spatial or min(v) < 1:
        raise Unsupported(f"strides or dilations {v} do not fit {spatial} spatial dims")
    return (v[0], v[1]) if spatial == 2 else (1, v[0])


def _pads(
    spec: ConvSpec,
    dims: Sequence[DimLike],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """What lies before each axis, then what lies after each, from explicit pads or auto_pad."""
    spatial = len(dims)
    auto = spec.auto_pad or "NOTSET"
    if auto in ("NOTSET", "VALID"):
        pads = list((spec.pads if auto == "NOTSET" else ()) or [0] * (2 * spatial))
    else:
        begin, end = [], []
        for n, k, s, d in zip(dims, kernel, strides, dilations, strict=True):
            if not isinstance(n, int):
                if s != 1:
                    raise Unsupported(f"auto_pad {auto} with stride {s} needs a constant dim")
                total = (k - 1) * d
            else:
                total = (-(-n // s) - 1) * s + (k - 1) * d + 1 - n
            if total < 0:  # ONNX pads by nothing; ONNX Runtime cuts as much off, or fails
                raise Unsupported(
                    f"auto_pad {auto} is not defined for a stride longer than the window"
                )
            small, large = total // 2, total - total // 2
            begin.append(small if auto == "SAME_UPPER" else large)
            end.append(large if auto == "SAME_UPPER" else small)
        pads = begin + end
    if min(pads) < 0 or len(pads) != 2 * spatial:
        raise Unsupported(f"pads {pads} do not fit {spatial} spatial dims, or are negative")
    return pads


def resolve_pads(
    spec: ConvSpec,
    dims: Sequence[DimLike],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Border:
    """(top, left, bottom, right) of one or two axes, of a convolution or a pooling."""
    pads = _pads(spec, dims, kernel, strides, dilations)
    return (pads[0], pads[1], pads[2], pads[3]) if len(dims) == 2 else (0, pads[0], 0, pads[1])


def _results(op: Op, size: DimLike, k: int, s: int, d: int, begin: int, end: int) -> DimLike:
    """How many windows there are along an axis."""
    free = size + (begin + end - d * (k - 1) - 1)
    if not op.attr("ceil_mode", 0):
        return D.floordiv(free, s) + 1
    up = D.ceildiv(free, s) + 1
    # a window must start inside the input or its leading pad
    return D.select(D.less(D.mul(up - 1, s), size + begin), up, up - 1)


@dataclass(frozen=True)
class Extent:
    """Windows along one axis: its size, their taps, stride and dilation, what lies before and
    after, how many there are.
    """

    size: DimLike
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: DimLike


def extents(op: Op, dims: Sequence[DimLike], kernel: Sequence[int]) -> list[Extent]:
    """The windows along each axis of a convolution or pooling."""
    spec = ConvSpec.of(op.attrs)
    strides, dilations = (v or [1] * len(dims) for v in (spec.strides, spec.dilations))
    if min(*strides, *dilations) < 1 or not len(strides) == len(dilations) == len(dims):
        raise Unsupported(
            f"strides {strides} and dilations {dilations} do not fit {len(dims)} spatial dims"
        )
    pads = _pads(spec, dims, kernel, strides, dilations)
    found = []
    for n, k, s, d, begin, end in zip(
        dims, kernel, strides, dilations, pads[: len(dims)], pads[len(dims) :], strict=True
    ):
        found.append(Extent(n, k, s, d, begin, end, _results(op, n, k, s, d, begin, end)))
    if any(isinstance(e.out, int) and e.out <= 0 for e in found):
        raise Unsupported("the windows have an empty result")
    return found


@dataclass(frozen=True)
class Pooling:
    """(height, width) of windows, strides, dilations and results, and the padding (top, left,
    bottom, right).
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: Border
    out: tuple[DimLike, DimLike]


def pooled_window(op: Op) -> list[int]:
    """The window of a MaxPool or AveragePool that gives one result."""
    if len([o for o in op.outputs if o]) > 1:
        raise Unsupported("no kernel computes the indices of MaxPool")
    if op.attr("storage_order", 0):
        raise Unsupported("no kernel computes MaxPool in column-major storage order")
    return [int(k) for k in op.attr("kernel_shape")]


def pooling(op: Op, x: Value) -> Pooling:
    """The windows of a MaxPool or AveragePool of `x`."""
    kernel = pooled_window(op)
    spatial = len(kernel)
    if spatial not in (1, 2) or x.rank != spatial + 2:
        raise Unsupported(
            f"the window of the pooling has {spatial} dims for a tensor of rank {x.rank}"
        )
    _, _, h, w = x.image()
    spec = ConvSpec.of(op.attrs)
    sh, sw = pair(spec.strides, 1, spatial)
    dh, dw = pair(spec.dilations, 1, spatial)
    kh, kw = (kernel[0], kernel[1]) if spatial == 2 else (1, kernel[0])
    per_axis = ([sh, sw], [dh, dw]) if spatial == 2 else ([sw], [dw])
    pads = resolve_pads(spec, (h, w) if spatial == 2 else (w,), kernel, *per_axis)
    oh, ow = (
        _results(op, h, kh, sh, dh, pads[0], pads[2]),
        _results(op, w, kw, sw, dw, pads[1], pads[3]),
    )
    if any(isinstance(d, int) and d <= 0 for d in (oh, ow)):
        raise Unsupported("the pooling has an empty output")
    return Pooling((kh, kw), (sh, sw), (dh, dw), pads, (oh, ow))
