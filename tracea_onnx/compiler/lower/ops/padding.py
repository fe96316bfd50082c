"""Padding: one launch where the target has a kernel for it, else a fill or copies that read
backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import helper

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.copies import bits
from tracea_onnx.compiler.lower.ops.movement import identity
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import PADDED
from tracea_onnx.shapes.operands import padded
from tracea_onnx.shapes.operands import pads as pads_of

MODES = {"constant": 0, "reflect": 1, "edge": 2, "wrap": 3}


def pad(ctx: Lowering, op: Op) -> None:
    """Pad: constant, edge, reflect and wrap; a crop where pads are negative."""
    x = ctx.value(op.input(0))
    mode = op.attr("mode", "constant")
    if mode not in MODES or (mode == "wrap" and "pad" not in ctx.target.families):
        raise Unsupported(f"no {ctx.plan.backend} kernel computes Pad in mode '{mode}'")
    pads = pads_of(ctx, op, x.rank)
    if op.attr("pads") is not None:
        fill = np.asarray(op.attr("value", 0.0), helper.tensor_dtype_to_np_dtype(int(x.dtype)))
    else:
        fill = ctx.contents(op.input(2), "the pad value") if op.input(2) else np.zeros(1, np.int64)
    if all(p == 0 for p in pads):
        identity(ctx, op)
        return
    if not fill.any():
        fill = np.zeros(1, np.int64)
    if "pad" in ctx.target.families:
        _pad_at_once(ctx, op.outputs[0], x, pads, MODES[mode], bits(fill))
        return
    amounts = [p for p in pads if isinstance(p, int)]
    if len(amounts) < len(pads):
        raise Unsupported("the pads are symbolic; the CPU kernels need constants")
    if min(amounts, default=0) < 0:
        raise Unsupported("Pad crops (negative pads); the CPU kernels only add")
    if mode != "constant":
        _pad_mirrored(ctx, op, x, amounts, reflect=mode == "reflect")
        return
    _fill_and_copy(ctx, op.outputs[0], x, amounts, bits(fill))


def with_zeros(ctx: Lowering, name: str, x: Value, pads: Sequence[int]) -> Value:
    """`x` with zeros before and behind each axis."""
    return (
        _pad_at_once(ctx, name, x, pads, 0, 0)
        if "pad" in ctx.target.families
        else _fill_and_copy(ctx, name, x, pads, 0)
    )


def _fill_and_copy(ctx: Lowering, name: str, x: Value, pads: Sequence[int], value: int) -> Value:
    out = ctx.define(name, x.dtype, padded(x.shape, pads))
    ref, strides = ctx.new_plain(out), contiguous(out.shape)
    ctx.plan.launch(
        "fill",
        {},
        {"y": ref},
        {"elem": x.dtype.size, "count": out.elements, "value": value},
        whole=False,
    )
    start: DimLike = 0
    for k in range(x.rank):
        start = start + D.mul(strides[k], pads[k])
    ctx.copy(
        ctx.strided(x),
        View(ref.at(D.mul(start, x.dtype.size)), strides),
        x.shape,
        x.dtype,
        whole=False,
    )
    return out


def _pad_at_once(
    ctx: Lowering, name: str, x: Value, pads: Sequence[DimLike], mode: int, value: int
) -> Value:
    """An image stays one where its height and width are padded."""
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


def _pad_mirrored(ctx: Lowering, op: Op, x: Value, pads: list[int], *, reflect: bool) -> None:
    """Reflect or edge padding, two axes at a time: of each the middle, then each side read
    backwards (or its edge repeated).
    """
    axes = [k for k in range(x.rank) if pads[k] or pads[k + x.rank]]
    for k in axes if reflect else ():
        least = max(pads[k], pads[k + x.rank]) + 1
        ctx.at_least(x.shape[k], least, f"axis {k} of what Pad '{op.label}' reflects")
    if not axes:
        raise Unsupported("Pad adds nothing")
    for first in range(0, len(axes), 2):
        pair = axes[first : first + 2]
        shape_ = tuple(
            d + (pads[k] + pads[k + x.rank]) if k in pair else d for k, d in enumerate(x.shape)
        )
        out = ctx.define(
            op.outputs[0] if pair[-1] == axes[-1] else f"{op.outputs[0]}\0pad{pair[-1]}",
            x.dtype,
            shape_,
        )
        strides, src = contiguous(shape_), ctx.strided(x)
        moves: list[tuple[View, DimLike, Dims]] = [(src, 0, x.shape)]
        for axis in pair:
            step, to = src.strides[axis], strides[axis]
            moves = [
                (View(v.ref.at(D.mul(D.mul(start, step), x.dtype.size)),
                tuple(D.mul(s, direction) if k == axis else s for k, s in enumerate(v.strides))),
                 at + D.mul(begin, to), tuple(count if k == axis else d for k,
                 d in enumerate(shape)))
                for v, at, shape in moves
                for count, start, direction, begin in _segments(x.shape[axis], pads[axis],
                pads[axis + x.rank], reflect=reflect)
            ]  # fmt: skip
        ctx.copy_all(ctx.fresh(out), out.dtype, moves)
        x = out


def _segments(
    n: DimLike, before: int, after: int, *, reflect: bool
) -> Iterator[tuple[DimLike, DimLike, int, DimLike]]:
    """The parts of a padded axis: elements, first source index, source step, first target index."""
    yield n, 0, 1, before
    if before:
        yield before, before if reflect else 0, -1 if reflect else 0, 0
    if after:
        yield after, n - 2 if reflect else n - 1, -1 if reflect else 0, before + n


OPS = {"Pad": pad}
