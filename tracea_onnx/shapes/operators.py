"""Dims of what an operator computes, of an ONNX node and of an op that is lowered alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dim_proofs import Dims, same
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import MOST_RANK
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes.environment import Operator, ShapeEnv, Unsupported
from tracea_onnx.shapes.operands import (
    axes,
    axis_of,
    bounds,
    broadcast,
    integer,
    integers,
    need,
    padded,
    pads,
    parts,
    permutation,
    placed,
    reduced,
    terms,
    times,
    whole_number,
)
from tracea_onnx.shapes.spectra import dft, stft
from tracea_onnx.shapes.windows import windows

#: The dims of result `k`. Raises Unsupported where they are not known.
Rule = Callable[[ShapeEnv, Operator, int], Dims]


def result(s: ShapeEnv, n: Operator, k: int = 0) -> Dims:
    """The dims of result `k`."""
    rule = DIMS.get(n.op)
    if rule is None:
        raise Unsupported(f"the sizes of the result of {n.op} are not known")
    try:
        found = rule(s, n, k)
    except Unsupported:
        raise
    except (IndexError, TypeError, ValueError, ArithmeticError, RecursionError):
        raise Unsupported(f"attributes and operands of {n.op} do not fit one another") from None
    if len(found) > MOST_RANK or D.too_deep(found):
        raise Unsupported(f"the result of {n.op} has too many axes, or sizes of too many others")
    return found


def _first(s: ShapeEnv, n: Operator) -> Dims:
    return need(s, n.input(0))


def _replaced(d: Dims, axis: int, *by: DimLike) -> Dims:
    return (*d[:axis], *by, *d[axis + 1 :])


def _same(s: ShapeEnv, n: Operator, k: int) -> Dims:
    if k:
        raise Unsupported(f"result {k} of {n.op} has sizes of its own")
    return _first(s, n)


def _broadcast(s: ShapeEnv, n: Operator, _: int) -> Dims:
    return broadcast(s, *(need(s, i) for i in n.inputs if i))


# --- movement -------------------------------------------------------------------------------------
def reshape_target(
    target: Sequence[DimLike], source: Sequence[DimLike], allowzero: int
) -> list[DimLike]:
    """What a Reshape is given, with the sizes of its input where 0 stands for them; one is -1 where
    it follows from the others.

    Raises Unsupported for the 0 of an axis that the input does not have, for a second -1, and for
    what is less than -1.
    """
    out = list(target)
    for k, d in enumerate(target):
        if not isinstance(d, int) or d > 0:
            continue
        if d < -1:
            raise Unsupported(f"Reshape is given dim {k} as {d}, which is no size")
        if d == -1 and -1 in target[:k]:
            raise Unsupported("Reshape is given two dims as -1, and neither follows")
        if d == 0 and not allowzero:
            if k >= len(source):
                raise Unsupported(f"Reshape copies dim {k} of a tensor of rank {len(source)}")
            out[k] = source[k]
    return out


def _reshape(s: ShapeEnv, n: Operator, _: int) -> Dims:
    source, target = _first(s, n), n.attr("shape")
    target = integers(s, n.input(1), "the shape") if target is None else target
    target = reshape_target(target, source, n.attr("allowzero", 0))
    unknown = [k for k, d in enumerate(target) if isinstance(d, int) and d == -1]
    if unknown:
        rest = D.product([d for k, d in enumerate(target) if k not in unknown])
        total = s.count(n.input(0))
        total = D.product(source) if total is None else total
        if isinstance(total, int) and isinstance(rest, int) and (not rest or total % rest):
            raise Unsupported(f"Reshape does not divide {total} elements by {rest}")
        target[unknown[0]] = D.floordiv(total, rest)
    return tuple(target)


def _flatten(s: ShapeEnv, n: Operator, _: int) -> Dims:
    x = _first(s, n)
    axis = n.attr("axis", 1)
    axis = len(x) if axis == len(x) else axis_of(axis, len(x))
    return (D.product(x[:axis]), D.product(x[axis:]))


def _transpose(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = _first(s, n)
    return tuple(d[p] for p in permutation(n, len(d)))


def _placed(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = _first(s, n)
    return tuple(1 if k is None else d[k] for k in placed(s, n))


def _gather(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = _first(s, n)
    return _replaced(d, axis_of(n.attr("axis", 0), len(d)), *need(s, n.input(1)))


def _concat(s: ShapeEnv, n: Operator, _: int) -> Dims:
    found = [need(s, i) for i in n.inputs]
    axis = axis_of(n.attr("axis", 1), len(found[0]))
    if any(len(d) != len(found[0]) for d in found):
        raise Unsupported(f"Concat joins tensors of ranks {', '.join(str(len(d)) for d in found)}")
    return _replaced(found[0], axis, D.total([d[axis] for d in found]))


def _ranges(s: ShapeEnv, n: Operator) -> list[tuple[int, DimLike, DimLike, int]]:
    d = _first(s, n)

    def place(v: DimLike, size: DimLike) -> DimLike:
        if isinstance(v, int) and isinstance(size, int):
            return max(0, min(size, v + size if v < 0 else v))
        if isinstance(v, int) and v >= 2**31 - 1:
            return size
        if isinstance(v, int) and v <= -(2**31) + 1:
            return 0
        if isinstance(v, int) and v < 0:
            return D.add(size, v)
        # counted from the end by a size: only all of it is known
        back = v if isinstance(v, int) or D.never_negative(v) else D.add(size, v)
        return 0 if isinstance(back, int) and back == 0 else v

    return [(a, place(b, d[a]), place(e, d[a]), t) for a, b, e, t in bounds(s, n, len(d))]


def slice_ranges(s: ShapeEnv, n: Operator) -> list[tuple[int, DimLike, DimLike, int]] | None:
    """(axis, start, stop, step) per sliced axis with ends resolved against the dims; None when they
    are not known.
    """
    try:
        return _ranges(s, n)
    except Unsupported:
        return None


def _slice(s: ShapeEnv, n: Operator, k: int) -> Dims:
    d = list(_first(s, n))
    for axis, start, stop, step in _ranges(s, n):
        size, rest = d[axis], D.sub(d[axis], start)
        if isinstance(start, int) and isinstance(stop, int) and isinstance(size, int) and step > 0:
            d[axis] = len(range(start, stop, step))
        elif step == 1 and start == 0 and D.never_negative(stop):
            d[axis] = size if same(stop, size) else D.minimum(stop, size)
        elif step == 1 and same(stop, size) and D.never_negative(start) and D.never_negative(rest):
            d[axis] = rest
        else:
            d[axis] = D.symbol(f"{n.outputs[k]}:{axis}")
    return tuple(d)


def _split(s: ShapeEnv, n: Operator, k: int) -> Dims:
    d = _first(s, n)
    axis = axis_of(n.attr("axis", 0), len(d))
    return _replaced(d, axis, parts(s, n, d[axis])[k])


def _expand(s: ShapeEnv, n: Operator, _: int) -> Dims:
    return broadcast(s, _first(s, n), tuple(integers(s, n.input(1), "the shape")))


def _range(s: ShapeEnv, n: Operator, _: int) -> Dims:
    start, limit, step = (whole_number(s, i, "a bound of a Range") for i in n.inputs)
    if not isinstance(step, int) or not step:
        raise Unsupported("the step of Range is symbolic, or 0")
    span = D.sub(limit, start) if step > 0 else D.sub(start, limit)
    return (D.maximum(D.ceildiv(span, abs(step)), 0),)


def _tile(s: ShapeEnv, n: Operator, _: int) -> Dims:
    repeats = integers(s, n.input(1), "the repeats")
    return tuple(D.mul(d, r) for d, r in zip(_first(s, n), repeats, strict=True))


def _blocks(s: ShapeEnv, n: Operator, _: int) -> Dims:
    (x, c, h, w), b = _first(s, n), int(n.attr("blocksize", 1))
    if n.op == "DepthToSpace":
        return (x, D.floordiv(c, b * b), D.mul(h, b), D.mul(w, b))
    return (x, D.mul(c, b * b), D.floordiv(h, b), D.floordiv(w, b))


# --- products and reductions ----------------------------------------------------------------------
def _matmul(s: ShapeEnv, n: Operator, _: int) -> Dims:
    a, b = _first(s, n), need(s, n.input(1))
    if len(a) < 2 or len(b) < 2 or n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        raise Unsupported(f"{n.op} multiplies vectors, or transposes batches")
    batch = broadcast(s, a[:-2], b[:-2])
    rows, columns = a[-1 if n.attr("transA", 0) else -2], b[-2 if n.attr("transB", 0) else -1]
    return (*batch, rows, columns)


def _matmul_nbits(s: ShapeEnv, n: Operator, _: int) -> Dims:
    return (*_first(s, n)[:-1], int(n.attr("N", 0)))


def _merged_heads(s: ShapeEnv, n: Operator, k: int) -> Dims:
    q, v = _first(s, n), need(s, n.input(2))
    if k:
        raise Unsupported(f"result {k} of {n.op} has sizes of its own")
    if len(q) != 3 or len(v) != 3:
        raise Unsupported(f"{n.op} has operands of ranks {len(q)} and {len(v)}")
    return (*q[:2], v[2])


def grouped_heads(s: ShapeEnv, n: Operator) -> tuple[int, int, int]:
    """Of GroupQueryAttention: heads of queries, of keys and values, and elements of each."""
    q, heads, kv = _first(s, n), n.attr("num_heads", 0), n.attr("kv_num_heads", 0)
    if len(q) != 3 or heads < 1 or kv < 1 or heads % kv or not isinstance(q[2], int):
        raise Unsupported(f"the heads of {n.op} are not known")
    parts = heads if n.input(1) else heads + 2 * kv
    if q[2] % parts or q[2] == 0:
        raise Unsupported(f"{q[2]} elements of a row of {n.op} are no {parts} heads")
    return heads, kv, q[2] // parts


def _grouped_heads(s: ShapeEnv, n: Operator, k: int) -> Dims:
    heads, kv, size = grouped_heads(s, n)
    batch, seq, _ = _first(s, n)
    if k == 0:
        return (batch, seq, heads * size)
    total = s.content(n.input(6))
    if k > 2 or total is None or total.size != 1:
        raise Unsupported(f"the sizes of result {k} of {n.op} are not known")
    past = need(s, n.input(2 + k)) if n.input(2 + k) else (batch, kv, 0, size)
    return (batch, kv, D.maximum(past[2], total.reshape(-1)[0]), size)


def _einsum(s: ShapeEnv, n: Operator, _: int) -> Dims:
    found = [need(s, i) for i in n.inputs]
    spelled, out = terms(n.attr("equation"), [len(d) for d in found])
    size: dict[str, DimLike] = {}
    for term, dims in zip(spelled, found, strict=True):
        for c, d in zip(term, dims, strict=True):
            size[c] = d if size.get(c, 1) == 1 else size[c]
    return tuple(size[c] for c in out)


def _reduce(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = _first(s, n)
    gone = reduced(s, n, len(d))
    keep = n.attr("keepdims", 1)
    return tuple(1 if k in gone else v for k, v in enumerate(d) if keep or k not in gone)


def _arg(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = _first(s, n)
    return _replaced(d, axis_of(n.attr("axis", 0), len(d)), *[1] * n.attr("keepdims", 1))


def _topk(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = _first(s, n)
    k = integer(s, n.input(1), "the number of results") if n.input(1) else n.attr("k")
    return _replaced(d, axis_of(n.attr("axis", -1), len(d)), k)


def _one_hot(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = _first(s, n)
    axis = axis_of(n.attr("axis", -1), len(d) + 1)
    return (*d[:axis], integer(s, n.input(1), "the depth"), *d[axis:])


def _gather_nd(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d, (*lead, members) = _first(s, n), need(s, n.input(1))
    return (*lead, *d[n.attr("batch_dims", 0) + int(members) :])


def _recurrent(s: ShapeEnv, n: Operator, k: int) -> Dims:
    x, w, r = (need(s, i) for i in n.inputs[:3])
    if n.attr("layout", 0):
        return (x[0], x[1], w[0], r[2]) if k == 0 else (x[0], w[0], r[2])
    return (x[0], w[0], x[1], r[2]) if k == 0 else (w[0], x[1], r[2])


def _affine_grid(s: ShapeEnv, n: Operator, _: int) -> Dims:
    batch, _channels, *image = integers(s, n.input(1), "the size")
    return (batch, *image, len(image))


# --- images ---------------------------------------------------------------------------------------
def _conv(s: ShapeEnv, n: Operator, _: int) -> Dims:
    """Of a convolution, transposed or not."""
    x, w = s.dims(n.input(0)), need(s, n.input(1))
    transposed = n.op == "ConvTranspose"
    channels = D.mul(w[1], int(n.attr("group", 1))) if transposed else w[0]
    if x is None:  # the weight fixes the rank
        x = tuple(D.symbol(f"{n.outputs[0]}:{k}") for k in range(len(w)))
        return (x[0], channels, *x[2:])
    return (x[0], channels, *(d.out for d in windows(n, x[2:], w[2:], transposed=transposed)))


def _pool(s: ShapeEnv, n: Operator, _: int) -> Dims:
    x = _first(s, n)
    return (*x[:2], *(d.out for d in windows(n, x[2:], n.attr("kernel_shape"))))


def _deform_conv(s: ShapeEnv, n: Operator, _: int) -> Dims:
    x, w = _first(s, n), need(s, n.input(1))
    return (x[0], w[0], *(d.out for d in windows(n, x[2:], w[2:])))


def _roi_align(s: ShapeEnv, n: Operator, _: int) -> Dims:
    regions, _corners = need(s, n.input(1))
    sides = (int(n.attr(f"output_{a}", 1)) for a in ("height", "width"))
    return (regions, _first(s, n)[1], *sides)


def _max_unpool(s: ShapeEnv, n: Operator, _: int) -> Dims:
    x = _first(s, n)
    axes = windows(n, x[2:], n.attr("kernel_shape"), transposed=True)
    return (*x[:2], *(w.out for w in axes))


def _col2im(s: ShapeEnv, n: Operator, _: int) -> Dims:
    x, block = _first(s, n), integers(s, n.input(2), "the blocks")
    image = integers(s, n.input(1), "the sizes of the image")
    return (x[0], D.floordiv(x[1], D.product(list(block))), *image)


def _center(s: ShapeEnv, n: Operator, _: int) -> Dims:
    d = list(_first(s, n))
    along = axes(s, n, len(d), 2) or range(len(d))
    for axis, size in zip(along, integers(s, n.input(1), "the sizes"), strict=True):
        d[axis] = size
    return tuple(d)


def _global_pool(s: ShapeEnv, n: Operator, _: int) -> Dims:
    x = _first(s, n)
    return (*x[:2], *[1] * (len(x) - 2))


def _pad(s: ShapeEnv, n: Operator, _: int) -> Dims:
    x = _first(s, n)
    return padded(x, pads(s, n, len(x)))


def _resize(s: ShapeEnv, n: Operator, _: int) -> Dims:
    """By sizes or scales of all axes."""
    x = _first(s, n)
    if n.attr("axes") is not None or n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unsupported("Resize has axes, or keeps an aspect ratio")
    if n.input(3):
        sizes = tuple(integers(s, n.input(3), "the sizes"))
    else:
        scales = n.attr("scales") or s.content(n.input(2) or n.input(1))
        if scales is None:
            raise Unsupported("the scales of Resize are computed at run time")
        sizes = tuple(times(d, float(v)) for d, v in zip(x, scales, strict=True))
    if len(sizes) != len(x):
        raise Unsupported(f"Resize has {len(sizes)} sizes for a tensor of rank {len(x)}")
    return sizes


_REDUCTIONS = frozenset(f"Reduce{k}" for k in (
    "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"
))  # fmt: skip
DIMS: dict[str, Rule] = {
    **dict.fromkeys(operators(Trait.SAME_SHAPE), _same),
    **dict.fromkeys(operators(Trait.BROADCAST), _broadcast),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(operators(Trait.CONV, Trait.DECONV), _conv),
    **dict.fromkeys(operators(Trait.POOL), _pool),
    **dict.fromkeys(operators(Trait.GLOBAL_POOL), _global_pool),
    **dict.fromkeys(operators(Trait.MATMUL, Trait.FUSED_MATMUL), _matmul),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "ArgMax": _arg, "ArgMin": _arg, "TopK": _topk, "OneHot": _one_hot, "GatherND": _gather_nd,
    "Einsum": _einsum, "com.microsoft.MatMulNBits": _matmul_nbits,
    "com.microsoft.MultiHeadAttention": _merged_heads,
    "com.microsoft.GroupQueryAttention": _grouped_heads,
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Unsqueeze": _placed,
    "Squeeze": _placed, "Gather": _gather, "Concat": _concat, "Slice": _slice, "Split": _split,
    "Expand": _expand, "Range": _range, "Tile": _tile, "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks, "Pad": _pad, "Resize": _resize, "Upsample": _resize,
    "MaxUnpool": _max_unpool, "Col2Im": _col2im, "CenterCropPad": _center,
    "DeformConv": _deform_conv, "RoiAlign": _roi_align, "Det": lambda s, n, _: _first(s, n)[:-2],
    "DFT": dft, "STFT": stft, "AffineGrid": _affine_grid,
    "GatherElements": lambda s, n, _: need(s, n.input(1)),
    "ConstantOfShape": lambda s, n, _: tuple(integers(s, n.input(0), "the shape")),
    "Shape": lambda s, n, _: (len(_first(s, n)[slice(n.attr("start", 0), n.attr("end"))]),),
}  # fmt: skip
