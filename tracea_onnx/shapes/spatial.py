"""Symbolic output dims of operators over images: convolutions, pooling, padding, resizing, block
moves.

Image sizes are often inputs' own (`batch`, `height`): without these two branches of a residual
block could not be shown to have one shape."""

from __future__ import annotations

from collections.abc import Callable

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dim_proofs import Dims
from tracea_onnx.ir.graph import Node
from tracea_onnx.shapes.environment import ShapeEnv
from tracea_onnx.shapes.windows import windows


def _conv(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    """Of a convolution, transposed or not."""
    x, w = s.dims(n.input(0)), s.dims(n.input(1))
    transposed = n.op == "ConvTranspose"
    if w is None or any(not isinstance(d, int) for d in w[transposed:]):
        return None
    channels = D.mul(w[1], int(n.attr("group", 1))) if transposed else w[0]
    if x is None:  # the weight fixes the rank
        x = tuple(D.symbol(f"{n.outputs[0]}:{k}") for k in range(len(w)))
        return (x[0], channels, *x[2:])
    found = windows(n, x[2:], w[2:], transposed=transposed)
    return (x[0], channels, *(d.out for d in found))


def _pool(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x, kernel = s.dims(n.input(0)), n.attr("kernel_shape")
    if x is None or not kernel:
        return None
    return (*x[:2], *(d.out for d in windows(n, x[2:], kernel)))


def _global_pool(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x = s.dims(n.input(0))
    return None if x is None else (x[0], x[1], *[1] * (len(x) - 2))


def _pad(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x = s.dims(n.input(0))
    pads = n.attr("pads") or (s.graph.ints(n.input(1)) if n.input(1) else None)
    if x is None or pads is None or n.input(3) or len(pads) != 2 * len(x):
        return None
    return tuple(D.add(d, pads[k] + pads[k + len(x)]) for k, d in enumerate(x))


def _flatten(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x = s.dims(n.input(0))
    if x is None:
        return None
    axis = n.attr("axis", 1)
    axis = axis + len(x) if axis < 0 else axis
    return (D.product(x[:axis]), D.product(x[axis:]))


def _resize(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    """Sizes that are known, or whole-number scales; other forms keep what inference declared."""
    x, axes = s.dims(n.input(0)), n.attr("axes")
    if x is None or axes is not None:
        return None
    name = n.input(2) if n.op == "Resize" and s.graph.opset() >= 11 else n.input(1)
    if n.input(3):
        sizes = (
            s.content(n.input(3))
            if n.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
            else None
        )
        return (
            tuple(sizes)
            if sizes is not None
            and len(sizes) == len(x)
            and not any(isinstance(v, float) for v in sizes)
            else None
        )
    scales = n.attr("scales") if n.attr("scales") else s.graph.const(name)
    if scales is None or len(scales) != len(x) or any(float(v) != int(v) for v in scales):
        return None
    return tuple(D.mul(d, int(v)) for d, v in zip(x, scales, strict=True))


def _blocks(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x, b = s.dims(n.input(0)), int(n.attr("blocksize", 1))
    if x is None or len(x) != 4:
        return None
    if n.op == "DepthToSpace":
        return (x[0], D.floordiv(x[1], b * b), D.mul(x[2], b), D.mul(x[3], b))
    return (x[0], D.mul(x[1], b * b), D.floordiv(x[2], b), D.floordiv(x[3], b))


SPATIAL: dict[str, Callable[[ShapeEnv, Node, int], Dims | None]] = {
    "Conv": _conv, "com.microsoft.FusedConv": _conv, "ConvTranspose": _conv, "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool,
    "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool, "Pad": _pad, "Flatten": _flatten, "Resize": _resize, "Upsample": _resize,
    "DepthToSpace": _blocks, "SpaceToDepth": _blocks,
}  # fmt: skip
