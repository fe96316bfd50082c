"""Random graphs of several operators: chains whose values are read more than once (what fusions,
views and shared memory must get right), and stacks of small layers, each of which reads what the
one before has only just written (what kernels that begin before their producers end must get
right); see `operator_draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tools.fuzz.operator_draws import Draw


@dataclass
class _Graph:
    """Values made so far, newest last, with their shapes."""

    d: Draw
    values: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def pick(self) -> tuple[str, tuple[int, ...]]:
        """The newest value, mostly."""
        return (
            self.values[-1] if self.d.random.random() < 0.75 else self.d.random.choice(self.values)
        )

    def keep(self, name: str, shape: tuple[int, ...]) -> None:
        self.values.append((name, shape))


def _map(g: _Graph) -> None:
    x, shape = g.pick()
    op = g.d.random.choice(
        (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Gelu",
            "HardSwish",
            "LeakyRelu",
            "Neg",
            "Abs",
            "Erf",
            "Softplus",
        )
    )
    g.keep(g.d.add(op, x), shape)


def _gate(g: _Graph) -> None:
    x, shape = g.pick()
    g.keep(g.d.add("Mul", x, g.d.add("Sigmoid", x)), shape)


def _with_weight(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    part = tuple(1 if d.random.random() < 0.4 else n for n in shape)[
        d.random.randrange(0, len(shape) + 1) :
    ]
    operands = [x, d.weight(part)]
    d.random.shuffle(operands)
    g.keep(d.add(d.random.choice(("Add", "Sub", "Mul", "Max")), *operands), shape)


def _join(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    same = [v for v, s in g.values if s == shape]
    other = d.random.choice(same)
    if d.random.random() < 0.4:
        axis = d.random.randrange(len(shape))
        if shape[axis] <= 64:
            g.keep(
                d.add("Concat", x, other, axis=axis),
                tuple(2 * n if k == axis else n for k, n in enumerate(shape)),
            )
            return
    g.keep(d.add(d.random.choice(("Add", "Mul", "Sub")), x, other), shape)


def _turn(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    order = d.random.sample(range(len(shape)), len(shape))
    g.keep(d.add("Transpose", x, perm=order), tuple(shape[k] for k in order))


def _reshape(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    k = d.random.randrange(len(shape))
    n = shape[k]
    if d.random.random() < 0.5 and len(shape) > 2:  # two neighbours become one
        k = min(k, len(shape) - 2)
        new = (*shape[:k], n if k >= len(shape) - 1 else shape[k] * shape[k + 1], *shape[k + 2 :])
    else:
        part = d.random.choice([f for f in range(1, n + 1) if n % f == 0])
        new = (*shape[:k], part, n // part, *shape[k + 1 :])
    if len(new) < 6:
        g.keep(d.add("Reshape", x, d.ints(*new)), new)


def _cut(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    k = d.random.randrange(len(shape))
    n = shape[k]
    if n > 1:
        first = d.random.randrange(0, n - 1)
        last = d.random.randrange(first + 1, n + 1)
        step = d.random.choice((1, 1, 1, 2, 3))
        g.keep(
            d.add("Slice", x, d.ints(first), d.ints(last), d.ints(k), d.ints(step)),
            tuple(-(-(last - first) // step) if j == k else s for j, s in enumerate(shape)),
        )


def _halves(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    k = d.random.randrange(len(shape))
    if shape[k] % 2 == 0:
        half = tuple(n // 2 if j == k else n for j, n in enumerate(shape))
        d.add("Split", x, d.ints(shape[k] // 2, shape[k] // 2), outputs=2, axis=k)
        a, b = d.nodes[-1].output
        g.keep(a, half)
        g.keep(d.add("Mul", a, d.add("Sigmoid", b)) if d.random.random() < 0.6 else b, half)


def _rows(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    op = d.random.choice(("Softmax", "LayerNormalization", "ReduceMean", "ReduceMax", "ReduceSum"))
    axis = d.random.randrange(len(shape))
    if op == "Softmax":
        g.keep(d.add(op, x, axis=axis), shape)
    elif op == "LayerNormalization":
        g.keep(d.add(op, x, d.weight(shape[-1:]), d.weight(shape[-1:]), axis=-1), shape)
    else:
        less = tuple(1 if k == axis else n for k, n in enumerate(shape))
        y = d.add(op, x, d.ints(axis), keepdims=1)
        g.keep(d.add("Sub", x, y), shape) if d.random.random() < 0.5 else g.keep(y, less)


def _product(g: _Graph) -> None:
    d, (x, shape) = g.d, g.pick()
    k, n = shape[-1], d.size(65)
    y = d.add("MatMul", x, d.weight((k, n), k**-0.5))
    g.keep(d.add("Add", y, d.weight((n,))) if d.random.random() < 0.6 else y, (*shape[:-1], n))


def _convolution(g: _Graph) -> None:
    d = g.d
    images = [(v, s) for v, s in g.values if len(s) == 4]
    if not images:
        return
    x, (n, c, h, w) = images[-1]
    k = d.random.choice((1, 1, 3, 3, 5))
    depthwise = d.random.random() < 0.3
    filters = c if depthwise else d.size(65)
    group = c if depthwise else 1
    y = d.add("Conv", x, d.weight((filters, c // group, k, k), (c // group * k * k) ** -0.5),
        *([d.weight((filters,))] if d.random.random() < 0.5 else []),
              kernel_shape=[k, k], pads=[k // 2] * 4, group=group)  # fmt: skip
    if d.random.random() < 0.3:
        y = d.add(
            "BatchNormalization",
            y,
            *(d.weight((filters,)) for _ in range(3)),
            d.store(d.rng.random(filters).astype(np.float32) + 0.5),
        )
    g.keep(y, (n, filters, h, w))


_STEPS: tuple[Callable[[_Graph], None], ...] = (
    _map, _map, _gate, _with_weight, _with_weight, _join, _join, _turn, _reshape, _cut, _halves,
    _rows, _product, _convolution, _convolution,
)  # fmt: skip


def chain(d: Draw) -> None:
    """Up to a dozen steps; values stay small, so that nothing is lost to cancellation."""
    g = _Graph(d)
    shape = d.shape(d.random.choice((2, 3, 4, 4)), 3000)
    g.keep(d.feed(shape), shape)
    if d.random.random() < 0.3:
        g.keep(d.feed(shape), shape)
    for _ in range(d.random.randrange(2, 12)):
        step = d.random.choice(_STEPS)
        step(g)
        new = g.values[-1][1]
        if np.prod(new) > 200_000:
            break
    if not d.nodes:
        _map(g)


def _dense(d: Draw, x: str, k: int, n: int) -> str:
    """A layer of n columns, mostly with a bias and an activation."""
    if d.random.random() < 0.5:
        y = d.add("Gemm", x, d.weight((n, k), k**-0.5), d.weight((n,)), transB=1)
    else:
        y = d.add("MatMul", x, d.weight((k, n), k**-0.5))
        y = d.add("Add", y, d.weight((n,))) if d.random.random() < 0.7 else y
    return d.add(d.random.choice(("Relu", "Gelu", "Tanh")), y) if d.random.random() < 0.7 else y


def stack(d: Draw) -> None:
    """A few rows through layers of different widths, or an image whose convolutions end in such
    layers.
    """
    rows, k = d.random.choice((1, 1, 2, 3, 5, 8, 13, 40, 130)), d.size(1100, large=True)
    if d.random.random() < 0.6:
        x = d.feed((rows, k))
    else:
        rows, k, side = d.random.choice((1, 1, 2, 7)), d.size(65), d.random.choice((5, 8, 14, 29))
        x = d.feed((rows, k, side, side))
        for _ in range(d.random.randrange(1, 5)):
            n, window, group = d.size(130), d.random.choice((1, 3, 5)), 1
            if d.random.random() < 0.3:
                n = group = k
            x = d.add("Conv", x, d.weight((n, k // group, window, window),
                (k // group * window**2) ** -0.5), d.weight((n,)), kernel_shape=[window] * 2,
                      pads=[window // 2] * 4, group=group)  # fmt: skip
            x, k = (d.add("Relu", x) if d.random.random() < 0.8 else x), n
            if side > 5 and d.random.random() < 0.4:
                x, side = d.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), side // 2
        pooled = d.random.random() < 0.5
        x, k = (
            d.add("Flatten", d.add("GlobalAveragePool", x) if pooled else x),
            k if pooled else k * side**2,
        )
    for _ in range(d.random.randrange(2, 8)):
        if d.random.random() < 0.2:
            x = d.add("LayerNormalization", x, d.weight((k,)), d.weight((k,)), axis=-1)
        n = (
            k
            if d.random.random() < 0.2 and k < 1100
            else d.size(1100, large=d.random.random() < 0.5)
        )
        y = _dense(d, x, k, n)
        x, k = d.add("Add", x, y) if n == k else y, n
    if d.random.random() < 0.3:
        d.add("Softmax", x, axis=-1)


KINDS: Mapping[str, Callable[[Draw], None]] = {"chain": chain, "stack": stack}
