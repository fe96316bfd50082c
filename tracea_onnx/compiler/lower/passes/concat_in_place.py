"""In-place concatenation of channels: the op that makes an image writes it directly into its slice
of the concatenation, so that no kernel copies it.

On devices where launches are expensive, nested concatenations (a dense block concatenates all of
its images after every layer) share the storage of the longest one:

    b = Concat(a, f)
    d = Concat(a, f, g)  or  Concat(b, g)

    slots[a] = slots[b] = (d, 0)
    slots[f] = (d, channels of a)
    slots[g] = (d, channels of b)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tracea_onnx.compiler.lower.context import Border, Lowering, wider
from tracea_onnx.compiler.lower.op import Op, makers
from tracea_onnx.compiler.lower.value import Value
from tracea_onnx.ir.op_traits import Trait, kinds
from tracea_onnx.ir.pointwise_ops import POINTWISE

_WRITES_IMAGES = kinds(Trait.IMAGE)
#: Those that do so when they read one: worth a look where a launch costs more than a pitch.
_KEEPS_IMAGES = kinds(Trait.KEEPS_IMAGE) | POINTWISE.keys()


def place(
    ctx: Lowering, ops: Sequence[Op], known: Mapping[str, Value], outputs: Collection[str]
) -> None:
    """Fill `ctx.slots`. A slice must start at a vector boundary."""
    concats = {
        op.outputs[0]: op
        for op in ops
        if op.kind == "Concat" and op.outputs[0] not in outputs and _joins_channels(ctx, op, known)
    }
    maker = makers(ops)
    if not ctx.target.launch_bound:
        for whole, op in concats.items():
            _place(ctx, whole, list(op.inputs), maker, known)
        return
    flat: dict[str, list[str]] = {}
    for name, op in concats.items():  # inner ones come first
        flat[name] = _unsplit([p for n in op.inputs for p in flat.get(n, [n])], maker)
    for whole in reversed(concats):
        if whole in ctx.slots:
            continue
        names = flat[whole]
        if not _place(ctx, whole, names, maker, known):
            _place(ctx, whole, _unsplit(list(concats[whole].inputs), maker), maker, known)
            continue
        for other in concats:
            first = _index(names, flat[other])
            if other != whole and other not in ctx.slots and first is not None:
                ctx.slots[other] = (whole, sum(_channels(known, n) for n in names[:first]))


def widen(ctx: Lowering, name: str, border: Border) -> None:
    """Ask for at least this zero border around an image."""
    ctx.borders[name] = wider(border, ctx.borders.get(name))


def _joins_channels(ctx: Lowering, op: Op, known: Mapping[str, Value]) -> bool:
    parts = [known[n] for n in op.inputs]
    return int(op.attr("axis", 1)) == 1 and all(
        p.rank in (3, 4) and p.dtype in ctx.target.types and isinstance(p.shape[1], int)
        for p in parts
    )


def _channels(known: Mapping[str, Value], name: str) -> int:
    c = known[name].shape[1]
    assert isinstance(c, int)
    return c


def _unsplit(names: list[str], maker: Mapping[str, Op]) -> list[str]:
    """A Concat that joins all slices of a channel Split in their order is the tensor that was
    split.
    """
    k = 0
    while k < len(names):
        split = maker.get(names[k])
        if (
            split is not None
            and split.kind == "Split"
            and int(split.attr("axis", 0)) == 1
            and tuple(names[k : k + len(split.outputs)]) == tuple(split.outputs)
        ):
            names[k : k + len(split.outputs)] = [split.input(0)]
        k += 1
    return names


def _index(names: Sequence[str], part: Sequence[str]) -> int | None:
    """Index of the contiguous run `part` in `names`."""
    return next(
        (
            k
            for k in range(len(names) - len(part) + 1)
            if list(names[k : k + len(part)]) == list(part)
        ),
        None,
    )


def _place(
    ctx: Lowering,
    whole: str,
    names: Sequence[str],
    maker: Mapping[str, Op],
    known: Mapping[str, Value],
) -> bool:
    """Give the images of `whole` their slices, if at least half of them can be written there."""
    channels = [_channels(known, n) for n in names]
    if any(c % 16 for c in channels[:-1]):
        return False  # a kernel writes whole vectors and would spill into the next slice
    writers = _WRITES_IMAGES | _KEEPS_IMAGES if ctx.target.launch_bound else _WRITES_IMAGES
    direct = [
        n in maker and maker[n].kind in writers and n not in ctx.slots and names.count(n) == 1
        for n in names
    ]
    if sum(direct) * 2 < len(names):
        return False
    ctx.concat_channels[whole] = sum(channels)
    at = 0
    for n, c, d in zip(names, channels, direct, strict=True):
        if d:
            ctx.slots[n] = (whole, at)
            if n in ctx.borders:
                widen(ctx, whole, ctx.borders[n])
        at += c
    return True
