"""Random models of quantisation: what quantises and dequantises, for a tensor or along an axis,
with what moves or selects elements in between (see `operator_draws`). Their results are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tools.fuzz.operator_draws import Draw

_TYPES = (np.uint8, np.uint8, np.int8, np.int8, np.uint16, np.int16)


def _parameters(d: Draw, shape: tuple[int, ...]) -> tuple[list[str], dict[str, int]]:
    """Scale and zero point, stored or fed, and the axis that they lie along."""
    r, along = d.random, {}
    size: tuple[int, ...] = ()
    if len(shape) > 1 and r.random() < 0.3:
        # not the first axis: other sizes of it are run, too, and of none ONNX Runtime takes any
        # number of scales
        along = {"axis": r.choice([*range(1, len(shape)), *range(1 - len(shape), 0)])}
        size = (shape[along["axis"]],)
    elif r.random() < 0.2:
        size = (1,)
    limits = np.iinfo(r.choice(_TYPES))
    zero = d.rng.integers(limits.min, int(limits.max) + 1, size).astype(limits.dtype)
    scale = np.asarray(2.0 ** d.rng.uniform(-9, 2, size), np.float32)
    keep = d.store if r.random() < 0.7 else d.given
    return [keep(scale), keep(zero)], along


def _moved(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """What keeps the elements of x, or a part of them."""
    op = d.random.choice(("", "Relu", "Transpose", "Reshape", "Concat", "Slice", "Neg"))
    if op == "Transpose" and shape:
        order = d.random.sample(range(len(shape)), len(shape))
        return d.add(op, x, perm=order), tuple(shape[k] for k in order)
    if op == "Reshape":
        new = (int(np.prod(shape)), 1)
        return d.add(op, x, d.ints(*new)), new
    if op == "Concat" and shape:
        return d.add(op, x, x, axis=0), (2 * shape[0], *shape[1:])
    if op == "Slice" and shape and shape[0] > 1:
        return d.add(op, x, d.ints(1), d.ints(shape[0]), d.ints(0)), (shape[0] - 1, *shape[1:])
    return (d.add(op, x), shape) if op in ("Relu", "Neg") else (x, shape)


def quantised(d: Draw) -> None:
    d.opset = d.random.choice((21, 23))
    shape = d.shape(d.random.randrange(0, 5), 4000)
    x = d.feed(shape, 10.0 ** d.random.uniform(-2, 2))
    if d.random.random() < 0.15:
        d.add("DynamicQuantizeLinear", x, outputs=3)
        return
    given, along = _parameters(d, shape)
    for _ in range(d.random.randrange(1, 4)):
        if along or d.random.random() < 0.3:
            given, along = _parameters(d, shape)
        q = d.add("QuantizeLinear", x, *given, **along)
        x = d.add("DequantizeLinear", q, *given, **along)
        x, shape = _moved(d, x, shape)
    if not along:
        d.add("QuantizeLinear", x, *given)


def _image(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Sizes of images and filters, and attributes of their convolution."""
    r = d.random
    group = r.choice((1, 1, 1, 2, 3, 8, 16))
    channels, filters = group * r.choice((1, 1, 2, 3, 8)), group * r.choice((1, 1, 2, 5, 16))
    window = [r.choice((1, 1, 3, 3, 2, 5)) for _ in range(2)]
    size = [r.randrange(k, 20) for k in window]
    attrs = {
        "group": group,
        "strides": [r.choice((1, 1, 2)) for _ in range(2)],
        "pads": [r.randrange(k) for k in window * 2],
    }
    return (r.choice((1, 2)), channels, *size), (filters, channels // group, *window), attrs


def product(d: Draw) -> None:
    """A product of integers, as the sums themselves, or as what they are dequantised to."""
    r = d.random
    d.opset, image = 21, r.random() < 0.5
    if image:
        shape, weight, attrs = _image(d)
        axis, columns = 0, weight[0]
    else:
        k, columns, axis, attrs = d.size(200), d.size(140), 1, {}
        shape, weight = (*d.shape(r.randrange(1, 4), 60), k), (k, columns)
    kinds = [r.choice((np.uint8, np.int8)) for _ in range(2)]
    x, w = (
        d.rng.integers(np.iinfo(t).min, int(np.iinfo(t).max) + 1, n).astype(t)
        for t, n in zip(kinds, (shape, weight), strict=True)
    )
    given, stored = d.given(x), d.store(w)
    zeros = [d.store(d.rng.integers(0, 100, ()).astype(t)) for t in kinds]
    if r.random() < 0.3:
        # ONNX Runtime's ConvInteger has no signed images
        d.add("ConvInteger" if image else "MatMulInteger", given, stored, *zeros, **attrs)
        return
    many = r.random() < 0.5
    size = (columns,) if many else ()
    scales = [d.store(np.asarray(2.0 ** d.rng.uniform(-9, -5, n), np.float32)) for n in ((), size)]
    a = d.add("DequantizeLinear", given, scales[0], zeros[0])
    b = d.add("DequantizeLinear", stored, scales[1], *([] if many else zeros[1:]), axis=axis)
    y = d.add("Conv" if image else "MatMul", a, b, **attrs)
    if r.random() < 0.5:
        y = d.add(r.choice(("Relu", "Sigmoid", "HardSwish")), y)
    if r.random() < 0.3:
        d.add("Add", y, d.weight((columns, 1, 1) if image else (columns,)))


def blocks(d: Draw) -> None:
    """A constant with a scale for each block of an axis, added to what is fed."""
    r = d.random
    d.opset, shape = 21, d.shape(r.randrange(1, 4), 3000)
    axis, size = r.randrange(len(shape)), r.choice((1, 2, 5, 16, 33))
    kind: Any = r.choice((np.uint8, np.int8, ml_dtypes.uint4, ml_dtypes.int4))
    low, high = (0, 15) if kind in (ml_dtypes.uint4, ml_dtypes.int4) else (0, 255)
    scales = tuple(-(-n // size) if k == axis else n for k, n in enumerate(shape))
    if scales[axis] > 1 and -(-shape[axis] // (scales[axis] - 1)) <= size:
        size = -(-shape[axis] // scales[axis])  # ONNX asks for the least that gives so many
    w, zero = (d.rng.integers(low, high + 1, n).astype(np.uint8) for n in (shape, scales))
    stored = [_as(w, kind), np.asarray(2.0 ** d.rng.uniform(-9, 2, scales), np.float32)]
    stored += [_as(zero, kind)] * (r.random() < 0.6)
    y = d.add("DequantizeLinear", *map(d.store, stored), axis=axis, block_size=size)
    d.add("Add", d.feed(shape), y)


def _as(a: Any, kind: Any) -> Any:
    """Bytes as integers of a type, by their lowest bits."""
    half = 8 if kind is ml_dtypes.int4 else 0
    few = kind in (ml_dtypes.uint4, ml_dtypes.int4)
    return (a.astype(np.int16) - half).astype(kind) if few else a.view(kind)


KINDS: Mapping[str, Callable[[Draw], None]] = {
    "quantised": quantised, "product": product, "blocks": blocks,
}  # fmt: skip
