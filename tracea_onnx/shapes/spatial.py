"""Symbolic output dims of operators over images: convolutions, pooling, padding, resizing, block
moves.

Image sizes are often inputs' own (`batch`, `height`): without these two branches of a residual
block could not be shown to have one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dim_proofs import Dims
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Node
from tracea_onnx.shapes.environment import ShapeEnv


def _windows(node: Node, sizes: Sequence[DimLike], kernel: Sequence[int]) -> list[DimLike] | None:
    """Output sizes of a sliding window; None for ceil_mode and unknown padding."""
    n = len(sizes)
    strides, dilations = node.attr("strides") or [1] * n, node.attr("dilations") or [1] * n
    auto = node.attr("auto_pad", "NOTSET") or "NOTSET"
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return [D.ceildiv(h, s) for h, s in zip(sizes, strides, strict=True)]
    pads = (node.attr("pads") or [0] * (2 * n)) if auto == "NOTSET" else [0] * (2 * n)
    if node.attr("ceil_mode", 0) or auto not in ("NOTSET", "VALID"):
        return None
    spare = [pads[k] + pads[k + n] - dilations[k] * (kernel[k] - 1) - 1 for k in range(n)]
    return [
        D.add(D.floordiv(D.add(h, e), s), 1) for h, e, s in zip(sizes, spare, strides, strict=True)
    ]


def _unknown(node: Node, count: int) -> list[DimLike]:
    """Sizes nothing is known of: symbols of their own."""
    return [D.symbol(f"{node.outputs[0]}:{k + 2}") for k in range(count)]


def _conv(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x, w = s.dims(n.input(0)), s.dims(n.input(1))
    if w is None or any(not isinstance(d, int) for d in w):
        return None
    if x is None:  # the weight fixes the rank
        return (D.symbol(f"{n.outputs[0]}:0"), w[0], *_unknown(n, len(w) - 2))
    kernel = [d for d in w[2:] if isinstance(d, int)]
    return (x[0], w[0], *(_windows(n, x[2:], kernel) or _unknown(n, len(kernel))))


def _conv_transpose(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x, w = s.dims(n.input(0)), s.dims(n.input(1))
    if x is None or w is None or any(not isinstance(d, int) for d in w[1:]):
        return None
    kernel = [d for d in w[2:] if isinstance(d, int)]
    count = len(kernel)
    channels = D.mul(w[1], int(n.attr("group", 1)))
    if n.attr("output_shape"):
        return (x[0], channels, *n.attr("output_shape")[-count:])
    if (n.attr("auto_pad", "NOTSET") or "NOTSET") not in ("NOTSET", "VALID"):
        return (x[0], channels, *_unknown(n, count))
    strides, dilations = n.attr("strides") or [1] * count, n.attr("dilations") or [1] * count
    pads, extra = n.attr("pads") or [0] * (2 * count), n.attr("output_padding") or [0] * count
    rest = [
        extra[k] + dilations[k] * (kernel[k] - 1) + 1 - pads[k] - pads[k + count]
        for k in range(count)
    ]
    return (
        x[0],
        channels,
        *(D.add(D.mul(D.sub(h, 1), t), r) for h, t, r in zip(x[2:], strides, rest, strict=True)),
    )


def _pool(s: ShapeEnv, n: Node, _: int) -> Dims | None:
    x, kernel = s.dims(n.input(0)), n.attr("kernel_shape")
    if x is None or not kernel:
        return None
    return (x[0], x[1], *(_windows(n, x[2:], kernel) or _unknown(n, len(kernel))))


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
    "Conv": _conv, "com.microsoft.FusedConv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool,
    "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool, "Pad": _pad, "Flatten": _flatten, "Resize": _resize, "Upsample": _resize,
    "DepthToSpace": _blocks, "SpaceToDepth": _blocks,
}  # fmt: skip
