"""Padding, and cropping, in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.copies import bits
from tracea_onnx.compiler.lower.ops.movement import identity
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.plan.kernel_families import PADDED
from tracea_onnx.shapes.operands import padded
from tracea_onnx.shapes.operands import pads as pads_of

MODES = {"constant": 0, "reflect": 1, "edge": 2, "wrap": 3}


def pad(ctx: Lowering, op: Op) -> None:
    """Pad: constant, edge, reflect and wrap; a crop where pads are negative."""
    x = ctx.value(op.input(0))
    mode = op.attr("mode", "constant")
    ctx.available("pad", "Pad")
    if mode not in MODES:
        raise Unsupported(f"no kernel computes Pad in mode '{mode}'")
    pads = pads_of(ctx, op, x.rank)
    if op.attr("pads") is not None:
        fill = np.asarray(op.attr("value", 0.0), numpy_type(int(x.dtype)))
    else:
        fill = ctx.contents(op.input(2), "the pad value") if op.input(2) else np.zeros(1, np.int64)
    if all(p == 0 for p in pads):
        identity(ctx, op)
        return
    if not fill.any():
        fill = np.zeros(1, np.int64)
    for k, p in enumerate(pads if mode == "reflect" else ()):
        if not isinstance(p, int) or p > 0:
            axis = k % x.rank
            least = D.add(p, 1)
            ctx.at_least(x.shape[axis], least, f"axis {axis} of what Pad '{op.label}' reflects")
    surround(ctx, op.outputs[0], x, pads, MODES[mode], bits(fill))


def surround(
    ctx: Lowering, name: str, x: Value, pads: Sequence[DimLike], mode: int = 0, value: int = 0
) -> Value:
    """`x` with so many elements before and behind each axis: zeros, by default. An image stays one
    where its height and width are padded.
    """
    before, after = pads[: x.rank], pads[x.rank :]
    if x.dtype.size not in (1, 2, 4, 8):
        raise Unsupported(f"the kernel does not pad elements of {x.dtype.size} bytes")
    out = ctx.define(name, x.dtype, padded(x.shape, pads))
    image = (
        x.nhwc is not None
        and x.view is None
        and x.rank in (3, 4)
        and all(p == 0 for p in (*before[:2], *after[:2]))
    )
    if image and x.nhwc is not None:
        to, spatial = ctx.new_nhwc(out), (0,) if x.rank == 3 else ()
        rows = merged(
            [(x.image()[k], out.image()[k], ([before[0], before[1], *spatial,
            *before[2:]])[k]) for k in (0, 2, 3, 1)],
            (x.nhwc.ns, x.nhwc.rs, x.nhwc.cs, 1), (to.ns, to.rs, to.cs, 1),
        )  # fmt: skip
        source, target = x.nhwc.ref, to.ref
    else:
        view = ctx.strided(x)
        source, target = view.ref, ctx.new_plain(out)
        rows = merged(
            list(zip(x.shape, out.shape, before, strict=True)), view.strides, contiguous(out.shape)
        )
    ctx.plan.launch(
        "pad", {"x": source}, {"y": target}, numbers(rows, x.dtype, mode, value), whole=not image
    )
    return out


#: Elements of x, elements of y, elements of y before the first of x, strides in x and in y.
Row = tuple[DimLike, DimLike, DimLike, DimLike, DimLike]


def merged(sizes: Sequence[tuple[DimLike, DimLike, DimLike]], xs: Dims, ys: Dims) -> list[Row]:
    """Drops dims of 1, and merges neighbours without padding where their strides allow it."""
    rows: list[Row] = []
    for (m, n, p), x, y in zip(sizes, xs, ys, strict=True):
        plain = p == 0 and m == n
        if plain and n == 1:
            continue
        if (
            rows
            and plain
            and rows[-1][0] == rows[-1][1]
            and rows[-1][2] == 0
            and rows[-1][3:] == (D.mul(n, x), D.mul(n, y))
        ):
            rows[-1] = (D.mul(rows[-1][0], m), D.mul(rows[-1][1], n), 0, x, y)
        else:
            rows.append((m, n, p, x, y))
    return rows


def numbers(rows: Sequence[Row], dtype: DType, mode: int, value: int) -> dict[str, DimLike]:
    """The parameters of the family `pad`."""
    if len(rows) > PADDED:
        raise Unsupported(f"Pad needs {len(rows)} separate dims; the kernel takes {PADDED}")
    ints: dict[str, DimLike] = {"elem": dtype.size, "mode": mode, "value": value}
    for k, row in enumerate([*[(1, 1, 0, 0, 0)] * (PADDED - len(rows)), *rows]):
        ints |= {f"{c}{k}": d for c, d in zip("mnpxy", row, strict=True)}
    return ints


OPS = {"Pad": pad}
