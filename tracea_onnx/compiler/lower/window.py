"""Windows of convolutions and poolings of images, and the launch that pools them."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import Dims, Nhwc, Unsupported, Value
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.shapes.windows import Window, windows


def over_axes(
    op: Op, x: Value, kernel: Sequence[DimLike], *, transposed: bool = False
) -> tuple[Window, ...]:
    """Windows along the (depth,) height and width of `x`; a line is an image of height 1."""
    found = windows(op, x.shape[2:], kernel, transposed=transposed)
    if any(isinstance(w.out, int) and w.out <= 0 for w in found):
        raise Unsupported("the windows have an empty result")
    return (Window(1), *found) if len(found) == 1 else tuple(found)


def pooling(op: Op, x: Value) -> tuple[Window, ...]:
    """The windows of a MaxPool or AveragePool that gives one result."""
    if any(op.outputs[1:]):
        raise Unsupported("no kernel computes the indices of MaxPool")
    if op.attr("storage_order", 0):
        raise Unsupported("no kernel computes MaxPool in column-major storage order")
    if x.rank not in (3, 4, 5):
        raise Unsupported(f"the pooling has an operand of rank {x.rank}")
    return over_axes(op, x, op.attr("kernel_shape"))


def sides(axes: Sequence[Window]) -> dict[str, DimLike]:
    """The windows over height and width as parameters of a launch."""
    ints: dict[str, DimLike] = {}
    for a, pad, w in zip("HW", ("PT", "PL"), axes, strict=True):
        ints |= {f"I{a}": w.size, f"O{a}": w.out, f"K{a}": w.kernel, f"S{a}": w.stride}
        ints |= {f"D{a}": w.dilation, pad: w.padding()[0]}
    return ints


def launch_pool(
    ctx: Lowering, x: Value, mode: int, src: Nhwc, dst: Nhwc, images: Dims, axes: Sequence[Window]
) -> None:
    """mode: as the family `pool2d` has it; images: how many there are, and their channels."""
    n, c = images
    ints: dict[str, DimLike] = {"mode": mode, "N": n, "C": c}
    ints |= {p: w.padding()[1] for p, w in zip(("PB", "PR"), axes, strict=True)}
    ctx.run_image("pool2d", src, dst, x.dtype, ints | sides(axes))
