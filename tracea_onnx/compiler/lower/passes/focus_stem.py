"""A convolution over 2x2 blocks turned into channels (the "Focus" stem of detectors): four slices
of step 2 along height and width, concatenated.

    conv(concat(x[:, :, 0::2, 0::2], x[:, :, 1::2, 0::2], x[:, :, 0::2, 1::2], x[:, :, 1::2, 1::2]),
    w)

is the convolution of x itself with a kernel twice as large and stride 2: the same products, and
nothing is moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import Blocks, Dims, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match.spec_table import ConvSpec


def reads_blocks(op: Op, name: str, graph: Graph) -> bool:
    """Whether this convolution reads `name` as its image only, and could read the image below a
    concatenation of its slices instead.
    """
    roles = op.by_role
    shape = graph.shape(roles.get("w", ""))
    spec = ConvSpec.of(op.attrs)
    plain = all(s == 1 for s in (*spec.strides, *spec.dilations))
    fixed = spec.auto_pad in ("", "NOTSET") and spec.group == 1
    only_image = roles["x"] == name and op.inputs.count(name) == 1
    return (
        shape is not None
        and len(shape) == 4
        and graph.is_const(roles["w"])
        and only_image
        and plain
        and fixed
    )


def find_blocks(parts: Sequence[Value]) -> Blocks | None:
    """The image whose four step-2 slices these are, or None."""
    views = [p.view for p in parts if p.view is not None]
    first = parts[0]
    static = all(isinstance(d, int) for p in parts for d in p.shape[1:]) and all(
        p.shape[1:] == first.shape[1:] for p in parts
    )
    if (
        len(views) != 4
        or len(parts) != 4
        or first.rank != 4
        or not static
        or any(v.strides[1:] != views[0].strides[1:] for v in views)
    ):
        return None
    strides, offsets = views[0].strides, [v.ref.offset for v in views]
    if (
        not all(isinstance(s, int) for s in strides[1:])
        or not all(isinstance(o, int) for o in offsets)
        or len({v.ref.buffer for v in views}) != 1
    ):
        return None
    _, channel, row, column = (s if isinstance(s, int) else 0 for s in strides)
    moved = [
        (o - offsets[0]) // first.dtype.size
        for o in offsets
        if isinstance(o, int) and isinstance(offsets[0], int)
    ]
    if row % 2 or column % 2 or moved[3] != row // 2 + column // 2:
        return None
    steps = {(row // 2, column // 2): (1, 2), (column // 2, row // 2): (2, 1)}.get(
        (moved[1], moved[2])
    )
    if steps is None:
        return None
    n, c, h, w = first.shape
    image = Value(first.name + "\0image", first.dtype, (n, c, D.mul(h, 2), D.mul(w, 2)))
    image.view = View(views[0].ref, (strides[0], channel, row // 2, column // 2))
    return Blocks(image, *steps)


def spread_weight(ctx: Lowering, w: Value, blocks: Blocks) -> Value:
    """The weight over the image: w'[o, c, 2i + dy, 2j + dx] = w[o, block(dy, dx) * C + c, i, j]."""
    oc, ic, kh, kw = (int(d) for d in w.shape if isinstance(d, int))
    c = ic // 4
    s_o, s_c, s_h, _ = contiguous(w.shape)
    by_block = D.mul(s_c, c)
    out = Value(w.name + "\0spread", w.dtype, (oc, c, 2 * kh, 2 * kw), initializer=w.name)
    shape: Dims = (oc, c, kh, 2, kw, 2)
    source = View(
        ctx.plain(w),
        (s_o, s_c, s_h, D.mul(by_block, blocks.row_step), 1, D.mul(by_block, blocks.column_step)),
    )
    ref = ctx.plan.arena(D.mul(out.elements, w.dtype.size))
    ctx.copy(source, View(ref, contiguous(shape)), shape, w.dtype)
    out.view = View(ref, contiguous(out.shape))
    return out
