"""Random models of one operator that moves, samples or maps elements (see `operator_draws`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tools.fuzz.operator_draws import Draw

_UNARY = (
    "Abs", "Neg", "Exp", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Atan", "Tanh", "Erf",
    "Sigmoid", "Relu", "Softplus", "Softsign", "HardSwish", "Mish",
    "Gelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu", "Reciprocal", "Sqrt", "Log",
    "Sinh", "Acosh", "Asinh", "Atanh", "Swish", "IsNaN", "Not", "Identity",
)  # fmt: skip
_BINARY = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Max",
    "Min",
    "Mod",
    "Equal",
    "Less",
    "GreaterOrEqual",
    "And",
    "Or",
    "Xor",
    "PRelu",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "BitShift",
    "Where",
)

_MOVES = (
    "Transpose", "Transpose", "Slice", "Slice", "Concat", "Split", "Pad", "Pad", "Expand", "Tile",
    "Trilu", "Reshape", "Squeeze", "DepthToSpace", "SpaceToDepth",
)  # fmt: skip


def _values(d: Draw, shape: Sequence[int]) -> str:
    """Elements of a type that is only moved."""
    kind = d.random.choice(("f", "f", "f", "i8", "i4", "u1", "b"))
    if kind == "f":
        return d.feed(shape)
    whole = d.rng.integers(0, 2 if kind == "b" else 200, tuple(shape))
    return d.given(
        whole.astype({"i8": np.int64, "i4": np.int32, "u1": np.uint8, "b": np.bool_}[kind])
    )


def unary(d: Draw) -> None:
    r = d.random
    op, shape = r.choice(_UNARY), d.shape(r.randrange(0, 5), 20000)
    if op == "Not":
        d.add(op, d.given(d.rng.random(shape) < 0.5))
        return
    x = d.feed(shape)
    if op in ("Sqrt", "Log", "Reciprocal"):
        x = d.add("Add", d.add("Abs", x), d.store(np.float32(0.1)))
    if op == "Swish":
        d.opset = 24
    d.add(op, x)


def binary(d: Draw) -> None:
    r = d.random
    op, rank = r.choice(_BINARY), r.randrange(0, 6)
    shape = d.shape(rank, 20000)

    def part(*, whole: bool = False) -> tuple[int, ...]:
        kept = tuple(1 if not whole and r.random() < 0.3 else n for n in shape)
        return kept if whole or r.random() < 0.6 else kept[r.randrange(0, rank + 1) :]

    if op == "Where":
        d.add(op, d.given(d.rng.random(part()) < 0.5), d.feed(part()), d.feed(part(whole=True)))
        return
    shapes = [part(whole=True), part()]
    if op == "PRelu":
        d.add(op, d.feed(shapes[0]), d.feed(shapes[1]))
        return
    r.shuffle(shapes)
    if op in ("And", "Or", "Xor"):
        d.add(op, *(d.given(d.rng.random(s) < 0.5) for s in shapes))
    elif op == "BitShift":
        unsigned = r.choice((np.uint8, np.uint32))
        few = [d.given(d.rng.integers(0, 40, s).astype(unsigned)) for s in shapes]
        d.add(op, *few, direction=r.choice(("LEFT", "RIGHT")))
    elif op.startswith("Bitwise") or (
        op in ("Mod", "Equal", "Less", "Add", "Mul", "Div", "Sub", "Max") and r.random() < 0.3
    ):
        kind = r.choice((np.int64, np.int32))
        low = 1 if op in ("Mod", "Div") else -50
        d.add(op, *(d.given(d.rng.integers(low, 50, s).astype(kind)) for s in shapes))
    elif op == "Mod":
        d.add(
            op,
            d.feed(shapes[0]),
            d.add("Add", d.add("Abs", d.feed(shapes[1])), d.store(np.float32(0.5))),
            fmod=1,
        )
    elif op in ("Pow", "Div"):
        base = [d.add("Add", d.add("Abs", d.feed(s)), d.store(np.float32(0.5))) for s in shapes]
        d.add(op, *base)
    else:
        d.add(op, *(d.feed(s) for s in shapes))


def move(d: Draw) -> None:
    r = d.random
    op = r.choice(_MOVES)
    rank = r.randrange(1, 6)
    shape = d.shape(rank, 20000)
    if op == "Transpose":
        rank = r.randrange(1, 7)
        d.add(op, _values(d, d.shape(rank, 30000)), perm=r.sample(range(rank), rank))
    elif op == "Slice":
        axes = r.sample(range(rank), r.randrange(1, rank + 1))
        starts = [r.randrange(-shape[a] - 1, shape[a] + 1) for a in axes]
        ends = [r.choice((r.randrange(-shape[a] - 1, shape[a] + 2), 2**40, -(2**40))) for a in axes]
        steps = [r.choice((1, 1, 1, 2, 3, -1, -2, 7)) for _ in axes]
        d.add(op, _values(d, shape), d.ints(*starts), d.ints(*ends), d.ints(*axes), d.ints(*steps))
    elif op == "Concat":
        axis, many = r.randrange(-rank, rank), r.choice((1, 2, 2, 3, 5, 9))
        d.add(
            op,
            *(
                d.feed([d.size(65) if k == axis % rank else n for k, n in enumerate(shape)])
                for _ in range(many)
            ),
            axis=axis,
        )
    elif op == "Split":
        axis = r.randrange(-rank, rank)
        cuts = sorted(r.randrange(0, shape[axis] + 1) for _ in range(r.choice((1, 2, 4))))
        parts = np.diff([0, *cuts, shape[axis]])
        d.add(op, _values(d, shape), d.ints(*map(int, parts)), outputs=len(parts), axis=axis)
    elif op == "Pad":
        mode = r.choice(("constant", "constant", "reflect", "edge", "wrap"))
        most = [{"reflect": n - 1, "wrap": n}.get(mode, 20) for n in shape * 2]
        pads = [
            r.randrange(-(n // 3) if mode == "constant" and r.random() < 0.3 else 0, min(m, 20) + 1)
            for n, m in zip(shape * 2, most, strict=True)
        ]
        value = [d.store(np.float32(1.5))] if mode == "constant" and r.random() < 0.5 else []
        d.add(op, d.feed(shape), d.ints(*pads), *value, mode=mode)
    elif op == "Expand":
        base = [1 if r.random() < 0.4 else n for n in shape]
        d.add(
            op, _values(d, base[r.randrange(0, rank) :] if base[0] == 1 else base), d.ints(*shape)
        )
    elif op == "Tile":
        d.add(
            op,
            _values(d, [min(n, 65) for n in shape]),
            d.ints(*(r.choice((1, 1, 2, 3)) for _ in shape)),
        )
    elif op == "Trilu":
        d.add(
            op,
            _values(d, d.shape(r.randrange(2, 5), 20000)),
            *([d.store(np.int64(r.randrange(-9, 10)))] if r.random() < 0.5 else []),
            upper=int(r.random() < 0.5),
        )
    elif op == "Reshape":
        x = d.add("Transpose", _values(d, shape), perm=r.sample(range(rank), rank))
        d.add(op, x, d.ints(*r.choice(((-1,), (1, -1), (-1, 1)))))
    elif op == "Squeeze":
        x = d.add("Unsqueeze", _values(d, shape), d.ints(r.randrange(0, rank + 1)))
        d.add("Transpose", x, perm=r.sample(range(rank + 1), rank + 1))
    else:
        b = r.choice((1, 2, 3, 4))
        n, c, h, w = r.choice((1, 2, 3)), d.size(40), d.size(33), d.size(65)
        into = op == "DepthToSpace"
        more: dict[str, Any] = {"mode": r.choice(("DCR", "CRD"))} if into else {}
        shape4 = (n, c * b * b, h, w) if into else (n, c, h * b, w * b)
        d.add(op, d.feed(shape4), blocksize=b, **more)


def index(d: Draw) -> None:
    r = d.random
    op = r.choice(
        (
            "Gather",
            "Gather",
            "GatherElements",
            "GatherND",
            "ScatterND",
            "ScatterElements",
            "OneHot",
            "ReverseSequence",
        )
    )
    rank = r.randrange(1, 5)
    shape = d.shape(rank, 20000)
    axis = r.randrange(-rank, rank)
    n = shape[axis]
    kind = r.choice((np.int64, np.int32))

    def places(size: Sequence[int], most: int) -> Any:
        return d.rng.integers(-most, most, tuple(size))

    if op == "Gather":
        d.add(
            op,
            _values(d, shape),
            d.given(places(d.shape(r.randrange(0, 3), 500), n).astype(kind)),
            axis=axis,
        )
    elif op == "GatherElements":
        size = [
            d.size(65) if k == axis % rank else r.randrange(1, s + 1) for k, s in enumerate(shape)
        ]
        d.add(op, _values(d, shape), d.given(places(size, n).astype(kind)), axis=axis)
    elif op in ("GatherND", "ScatterND"):
        depth, count = r.randrange(1, rank + 1), d.size(65)
        at = np.stack([d.rng.integers(-s, s, count) for s in shape[:depth]], -1).astype(np.int64)
        if op == "GatherND":
            d.add(op, _values(d, shape), d.given(at))
        else:
            reduction = r.choice(("none", "add", "max", "min"))
            if reduction == "none":  # which of two writes to one place comes last is open
                at = np.unique(np.where(at < 0, at + np.array(shape[:depth]), at), axis=0)
            d.add(
                op,
                d.feed(shape),
                d.given(at),
                d.feed((len(at), *shape[depth:])),
                reduction=reduction,
            )
    elif op == "ScatterElements":
        size = [r.randrange(1, s + 1) for s in shape]
        reduction = r.choice(("none", "add", "max", "min"))
        at = np.argsort(
            d.rng.random([*size[: axis % rank], n, *size[axis % rank + 1 :]]), axis=axis
        )
        at = (
            np.take(at, range(size[axis % rank]), axis=axis)
            if reduction == "none"
            else places(size, n)
        )
        d.add(
            op,
            d.feed(shape),
            d.given(at.astype(np.int64)),
            d.feed(size),
            axis=axis,
            reduction=reduction,
        )
    elif op == "OneHot":
        depth = d.size(129)
        x = d.given(d.rng.integers(-depth, depth, d.shape(r.randrange(1, 4), 500)).astype(np.int64))
        d.add(
            op,
            x,
            d.store(np.int64(depth)),
            d.store(np.array([0.0, 1.0], np.float32)),
            axis=r.choice((-1, 0, 1)),
        )
    else:
        shape = d.shape(r.randrange(2, 5), 20000)
        d.add(
            op,
            d.feed(shape),
            d.given(d.rng.integers(1, shape[0] + 1, shape[1]).astype(np.int64)),
            batch_axis=1,
            time_axis=0,
        )


def detect(d: Draw) -> None:
    """Regions of images, windows whose taps are moved, and determinants."""
    r = d.random
    n, c, h, w = r.choice((1, 2, 3)), r.choice((1, 4, 12, 17, 32)), d.size(24), d.size(24)
    kind = r.random()
    if kind < 0.2:
        size = r.choice((1, 2, 3, 5))
        d.add("Det", d.feed((*d.shape(r.randrange(0, 3), 200), size, size)))
        return
    if kind < 0.6:
        d.opset = 20  # ONNX Runtime has no newer one
        count, scale = d.size(9), r.choice((1.0, 0.25, 0.7))
        corners = d.rng.uniform(-4, 28, (count, 2, 2)) / scale
        corners.sort(1)
        d.add(
            "RoiAlign",
            d.feed((n, c, h, w)),
            d.given(corners.reshape(count, 4).astype(np.float32)),
            d.given(d.rng.integers(0, n, count)),
            mode=r.choice(("avg", "max")),
            coordinate_transformation_mode=r.choice(("half_pixel", "output_half_pixel")),
            output_height=r.choice((1, 2, 7)),
            output_width=r.choice((1, 3, 7)),
            sampling_ratio=r.choice((0, 1, 2)),
            spatial_scale=scale,
        )
        return
    kh, kw, pad = r.choice((1, 2, 3)), r.choice((1, 3)), r.choice((0, 1))
    group = r.choice([g for g in (1, 2, 4) if c % g == 0])
    moved = r.choice([g for g in (1, 2) if c % g == 0])
    h, w = max(h, kh), max(w, kw)
    oh, ow, taps = h + 2 * pad - kh + 1, w + 2 * pad - kw + 1, kh * kw
    offset = d.given(d.rng.uniform(-2, 2, (n, 2 * moved * taps, oh, ow)).astype(np.float32))
    mask = d.given(d.rng.random((n, moved * taps, oh, ow)).astype(np.float32))
    weights = d.store(d.rng.standard_normal((4 * group, c // group, kh, kw)).astype(np.float32))
    more = r.choice(((), ("", mask), (d.store(np.ones(4 * group, np.float32)), mask)))
    how: dict[str, Any] = {"group": group, "offset_group": moved, "pads": [pad] * 4}
    d.add("DeformConv", d.feed((n, c, h, w)), weights, offset, *more, **how)


def counted(d: Draw) -> None:
    """Results whose size contents say."""
    r = d.random
    kind, shape = (
        r.choice(("NonZero", "Compress", "Unique", "boxes")),
        d.shape(r.randrange(1, 5), 9000),
    )
    few = d.rng.integers(-1, r.choice((1, 3, 50)), shape)
    if kind == "NonZero":
        d.add(kind, d.given(few.astype(r.choice((np.float32, np.int64, np.int32, np.bool_)))))
    elif kind == "boxes":
        batch, classes, n = r.choice((1, 2)), d.size(9), d.size(400)
        boxes = d.rng.uniform(0, 9, (batch, n, 4)).astype(np.float32)
        scores = (d.rng.integers(0, 50, (batch, classes, n)) / 50).astype(np.float32)
        more = d.store(np.array([r.choice((0.0, 0.3, 1.0))], np.float32))
        d.add(
            "NonMaxSuppression", d.given(boxes), d.given(scores), d.ints(r.choice((0, 1, 7, 1000))),
            more, *r.choice(((), (d.store(np.array([0.4], np.float32)),))),
            center_point_box=r.choice((0, 1)),
        )  # fmt: skip
    else:
        axis = r.choice((None, r.randrange(-len(shape), len(shape))))
        how = {} if axis is None else {"axis": axis}
        n = few.size if axis is None else shape[axis]
        x = d.given(few.astype(r.choice((np.float32, np.int64))))
        if kind == "Unique":
            d.add(kind, x, outputs=4, sorted=r.choice((0, 1)), **how)
        else:
            d.add(kind, x, d.given(d.rng.random(r.randrange(n + 1)) < 0.6), **how)


_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)


def sample(d: Draw) -> None:
    r = d.random
    if r.random() < 0.25:
        n, c, h, w = r.choice((1, 2)), d.size(33), d.size(65), d.size(65)
        grid = d.given(
            (d.rng.random((n, d.size(40), d.size(40), 2)) * 2.6 - 1.3).astype(np.float32)
        )
        how: dict[str, Any] = {
            "mode": r.choice(("linear", "nearest", "cubic")),
            "padding_mode": r.choice(("zeros", "border", "reflection")),
        }
        d.add("GridSample", d.feed((n, c, h, w)), grid, align_corners=int(r.random() < 0.5), **how)
        return
    rank = r.choice((3, 4, 4, 4))
    shape = (r.choice((1, 2)), d.size(65), *(d.size(40) for _ in range(rank - 2)))
    mode = (
        r.choice(("nearest", "linear", "linear", "cubic"))
        if rank == 4
        else r.choice(("nearest", "linear"))
    )
    more: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": r.choice(_COORDINATES)}
    if mode == "nearest":
        more["nearest_mode"] = r.choice(
            ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        )
    if mode == "cubic":
        more |= {"cubic_coeff_a": r.choice((-0.75, -0.5)), "exclude_outside": int(r.random() < 0.3)}
    x = d.feed(shape)
    if r.random() < 0.5:
        d.add(
            "Resize", x, "", "", d.ints(*shape[:2], *(d.size(97) for _ in range(rank - 2))), **more
        )
    else:
        scales = np.array(
            [1.0, 1.0, *(r.choice((0.5, 0.3, 1.0, 1.5, 2.0, 2.7, 3.0)) for _ in range(rank - 2))],
            np.float32,
        )
        if min(int(n * s) for n, s in zip(shape, scales, strict=True)) < 1:
            scales[2:] = 2.0
        d.add("Resize", x, "", d.store(scales), **more)


KINDS: Mapping[str, Callable[[Draw], None]] = {
    "unary": unary,
    "binary": binary,
    "move": move,
    "index": index,
    "sample": sample,
    "detect": detect,
    "counted": counted,
}
