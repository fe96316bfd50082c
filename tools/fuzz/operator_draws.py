"""Random models of one operator, or of a short chain, with attributes, ranks and sizes drawn from
all that the operator takes.

`draw(seed)` gives the same model for the same seed. Sizes stay small: what is looked for is a wrong
result, not a slow one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = Any
#: Sizes of one axis: ones, primes, and what lies beside the sizes of tiles.
_SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 23, 31, 32, 33, 40, 63, 64, 65, 97, 127, 128, 129)
_LARGE = (*_SIZES, 191, 200, 255, 257, 384, 511, 513, 1000, 1031, 2047, 4099)


@dataclass
class Draw:
    """A graph in the making: its nodes, what is fed and what is stored."""

    random: Random
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    fed: dict[str, Array] = field(default_factory=dict)
    stored: dict[str, Array] = field(default_factory=dict)
    opset: int = 23

    def size(self, most: int, *, large: bool = False) -> int:
        return self.random.choice([s for s in (_LARGE if large else _SIZES) if s <= most])

    def shape(self, rank: int, elements: int) -> tuple[int, ...]:
        out: list[int] = []
        for _ in range(rank):
            out.append(self.size(max(1, min(4099, elements)), large=self.random.random() < 0.3))
            elements //= out[-1]
        self.random.shuffle(out)
        return tuple(out)

    def feed(self, shape: Sequence[int], scale: float = 1.0) -> str:
        return self.given((self.rng.standard_normal(tuple(shape)) * scale).astype(np.float32))

    def given(self, value: Array) -> str:
        name = f"x{len(self.fed)}"
        self.fed[name] = value
        return name

    def store(self, value: Array) -> str:
        name = f"w{len(self.stored)}"
        self.stored[name] = np.asarray(value)
        return name

    def weight(self, shape: Sequence[int], scale: float = 1.0) -> str:
        return self.store((self.rng.standard_normal(tuple(shape)) * scale).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.store(np.array(values, np.int64))

    def add(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = [f"n{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attrs))
        return names[0]

    def model(self, *, symbolic: bool) -> onnx.ModelProto:
        """Every value that no node reads is an output. symbolic: sizes of inputs are unknown."""
        given = []
        for name, a in self.fed.items():
            dims = [f"{name}_{k}" if symbolic else n for k, n in enumerate(a.shape)]
            given.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), dims)
            )
        read = {i for n in self.nodes for i in n.input}
        outputs = [
            onnx.ValueInfoProto(name=o) for n in self.nodes for o in n.output if o and o not in read
        ]
        stored = [numpy_helper.from_array(a, name) for name, a in self.stored.items()]
        graph = helper.make_graph(self.nodes, "drawn", given, outputs, stored)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=11
        )


# --- windows


def _window(d: Draw, rank: int, span: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """kernel, strides, dilations, pads of a window, of few elements."""
    r = d.random
    kernel: list[int] = []
    dilations: list[int] = []
    for _ in range(rank):
        k = r.choice((1, 1, 2, 3, 3, 3, 4, 5, 7, 9, 11, 15, 31))
        while k > 1 and np.prod([*kernel, k]) > span:
            k = k // 2
        kernel.append(k)
        dilations.append(r.choice((1, 1, 1, 2, 3, 4, 7)) if k < 32 else 1)
    strides = [r.choice((1, 1, 1, 2, 2, 3, 5)) for _ in range(rank)]
    reach = [(k - 1) * e for k, e in zip(kernel, dilations, strict=True)]
    kind = r.random()
    same = [*(n // 2 for n in reach), *(n - n // 2 for n in reach)]
    pads = (
        [0] * (2 * rank)
        if kind < 0.25
        else same
        if kind < 0.6
        else [r.randrange(0, min(n, 40) + 1) for n in reach * 2]
    )
    return kernel, strides, dilations, pads


def _image(
    d: Draw, kernel: Sequence[int], dilations: Sequence[int], pads: Sequence[int], elements: int
) -> tuple[int, ...]:
    rank = len(kernel)
    least = [
        max(1, (kernel[k] - 1) * dilations[k] + 1 - pads[k] - pads[k + rank]) for k in range(rank)
    ]
    shape = d.shape(rank, elements)
    return tuple(max(a, b) for a, b in zip(shape, least, strict=True))


def _activation(d: Draw, x: str) -> str:
    op = d.random.choice(
        ("", "", "Relu", "Sigmoid", "HardSwish", "Elu", "LeakyRelu", "Tanh", "Gelu", "Softplus")
    )
    return d.add(op, x) if op else x


def conv(d: Draw) -> None:
    r = d.random
    rank = r.choice((1, 2, 2, 2, 3))
    kernel, strides, dilations, pads = _window(d, rank, 64)
    image = _image(d, kernel, dilations, pads, 4000)
    groups = r.choice((1, 1, 1, 2, 3, 8))
    if r.random() < 0.3:  # depthwise
        groups = d.size(129)
        channels, filters = groups, groups * r.choice((1, 1, 1, 2, 3))
    else:
        channels, filters = (
            groups * d.size(130 // groups),
            groups * d.size(200 // groups, large=True),
        )
    n = r.choice((1, 1, 2, 3, 7))
    x = d.feed((n, channels, *image))
    w = d.weight(
        (filters, channels // groups, *kernel), (channels // groups * np.prod(kernel)) ** -0.5
    )
    bias = [d.weight((filters,))] if r.random() < 0.6 else []
    auto: dict[str, Any] = (
        {"auto_pad": r.choice(("SAME_UPPER", "SAME_LOWER"))}
        if r.random() < 0.1 and max(dilations) == 1
        else {"pads": pads}
    )
    y = d.add(
        "Conv",
        x,
        w,
        *bias,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        group=groups,
        **auto,
    )
    if r.random() < 0.3:
        y = d.add(
            "BatchNormalization",
            y,
            *(d.weight((filters,)) for _ in range(3)),
            d.store(d.rng.random(filters).astype(np.float32) + 0.5),
        )
    y = _activation(d, y)
    if r.random() < 0.2:
        d.add("Add", y, y)


def conv_transpose(d: Draw) -> None:
    r = d.random
    rank = r.choice((1, 2, 2, 2))
    kernel, strides, dilations, _ = _window(d, rank, 32)
    image = d.shape(rank, 600)
    reach = [(k - 1) * e for k, e in zip(kernel, dilations, strict=True)]
    pads = [r.randrange(0, n // 2 + 1) for n in reach * 2]
    extra = [
        r.randrange(0, max(s, e)) if r.random() < 0.3 else 0
        for s, e in zip(strides, dilations, strict=True)
    ]
    groups = r.choice((1, 1, 1, 2, 4))
    channels, filters = groups * d.size(130 // groups), groups * d.size(64 // groups)
    total = [
        (i - 1) * s + n + 1 + e - pads[k] - pads[k + rank]
        for k, (i, s, n, e) in enumerate(zip(image, strides, reach, extra, strict=True))
    ]
    if min(total) < 1:
        pads = [0] * (2 * rank)
    x = d.feed((r.choice((1, 2, 3)), channels, *image))
    w = d.weight((channels, filters // groups, *kernel), channels**-0.5)
    bias = [d.weight((filters,))] if r.random() < 0.6 else []
    y = d.add(
        "ConvTranspose",
        x,
        w,
        *bias,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        group=groups,
        pads=pads,
        output_padding=extra,
    )
    _activation(d, y)


def pool(d: Draw) -> None:
    r = d.random
    rank = r.choice((1, 2, 2, 2, 3))
    op = r.choice(
        (
            "MaxPool",
            "MaxPool",
            "AveragePool",
            "AveragePool",
            "LpPool",
            "GlobalAveragePool",
            "GlobalMaxPool",
        )
    )
    kernel, strides, dilations, pads = _window(d, rank, 121)
    pads = [min(p, (k - 1) // 2) for p, k in zip(pads, kernel * 2, strict=True)]
    image = _image(d, kernel, dilations, pads, 3000)
    x = d.feed((r.choice((1, 2, 3)), d.size(129), *image))
    if op.startswith("Global"):
        d.add(op, x)
        return
    more: dict[str, Any] = {"dilations": dilations, "ceil_mode": int(r.random() < 0.3)}
    if op == "AveragePool":
        more |= {"count_include_pad": int(r.random() < 0.5)}
    if op == "LpPool":
        more["p"] = r.choice((1, 2, 3))
    d.add(op, x, kernel_shape=kernel, strides=strides, pads=pads, **more)


# --- rows


def reduce(d: Draw) -> None:
    r = d.random
    rank = r.randrange(1, 6)
    x = d.feed(d.shape(rank, 30000))
    axes = sorted(r.sample(range(rank), r.randrange(0, rank + 1)))
    axes = [a - rank if r.random() < 0.3 else a for a in axes]
    op = r.choice(
        ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare", "LogSum")
    )
    if op == "LogSum":
        x = d.add("Abs", x)
    if op == "Prod":
        x = d.add("Clip", x, d.store(np.float32(0.9)), d.store(np.float32(1.1)))
    d.add(
        f"Reduce{op}",
        x,
        *([d.ints(*axes)] if axes else []),
        keepdims=int(r.random() < 0.5),
        **({} if axes else {"noop_with_empty_axes": int(r.random() < 0.3)}),
    )


def along_axis(d: Draw) -> None:
    r = d.random
    rank = r.randrange(1, 5)
    shape = d.shape(rank, 30000)
    axis = r.randrange(-rank, rank)
    x = d.feed(shape)
    op = r.choice(
        (
            "Softmax",
            "Softmax",
            "LogSoftmax",
            "Hardmax",
            "ArgMax",
            "ArgMin",
            "CumSum",
            "TopK",
            "LpNormalization",
        )
    )
    if op == "CumSum":
        d.add(
            op,
            x,
            d.store(np.int64(axis)),
            exclusive=int(r.random() < 0.4),
            reverse=int(r.random() < 0.4),
        )
    elif op == "TopK":
        d.add(
            op,
            x,
            d.ints(r.randrange(0, shape[axis] + 1)),
            outputs=2,
            axis=axis,
            largest=int(r.random() < 0.6),
        )
    elif op.startswith("Arg"):
        d.add(
            op,
            x,
            axis=axis,
            keepdims=int(r.random() < 0.5),
            select_last_index=int(r.random() < 0.3),
        )
    elif op == "LpNormalization":
        d.add(op, x, axis=axis, p=r.choice((1, 2)))
    else:
        d.add(op, x, axis=axis)


_ROWS = ("LayerNormalization", "RMSNormalization")
_IMAGES = (
    "GroupNormalization",
    "InstanceNormalization",
    "MeanVarianceNormalization",
    "LRN",
    "BatchNormalization",
)


def norm(d: Draw) -> None:
    r = d.random
    op = r.choice((*_ROWS, *_ROWS, *_IMAGES))
    rank = r.randrange(2, 5)
    shape = d.shape(rank, 40000)
    if op in _ROWS:
        axis = r.randrange(-rank, rank)
        weights = [d.weight(shape[axis:])]
        if op[0] == "L" and r.random() < 0.6:
            weights.append(d.weight(shape[axis:]))
        x = d.feed(shape)
        if r.random() < 0.4:
            x = d.add("Add", x, d.feed(shape))
        d.add(op, x, *weights, axis=axis, epsilon=1e-5)
        return
    if op == "MeanVarianceNormalization":
        axes = sorted(r.sample(range(rank), r.randrange(1, rank + 1)))
        if np.prod([shape[a] for a in axes]) > 1:
            d.add(op, d.feed(shape), axes=axes)
            return
    shape = (r.choice((1, 2, 3)), r.choice((1, 2, 3, 8)) * d.size(40), *d.shape(rank - 1, 2000))
    c = shape[1]
    x = d.feed(shape)
    if op == "GroupNormalization":
        groups = r.choice([g for g in range(1, c + 1) if c % g == 0])
        d.add(op, x, d.weight((c,)), d.weight((c,)), num_groups=groups)
    elif op == "LRN":
        d.add(op, x, size=r.choice((1, 2, 3, 5)), alpha=0.1, beta=0.75, bias=1.0)
    elif op == "BatchNormalization":
        d.add(
            op,
            x,
            *(d.weight((c,)) for _ in range(3)),
            d.store(d.rng.random(c).astype(np.float32) + 0.5),
        )
    else:
        d.add("InstanceNormalization", x, d.weight((c,)), d.weight((c,)))


# --- products


def matmul(d: Draw) -> None:
    r = d.random
    m, n, k = d.size(513, large=True), d.size(513, large=True), d.size(1031, large=True)
    scale = k**-0.5
    if r.random() < 0.3:
        ta, tb = int(r.random() < 0.4), int(r.random() < 0.5)
        b_shape = (n, k) if tb else (k, n)
        a, b = (
            d.feed((k, m) if ta else (m, k)),
            d.weight(b_shape, scale) if r.random() < 0.7 else d.feed(b_shape, scale),
        )
        c_shape = r.choice(((m, n), (n,), (1, n), (m, 1), (1,), ()))
        c = [d.weight(c_shape)] if r.random() < 0.7 else []
        y = d.add(
            "Gemm",
            a,
            b,
            *c,
            transA=ta,
            transB=tb,
            alpha=r.choice((1.0, 0.5)),
            beta=r.choice((1.0, 2.0)),
        )
    else:
        batch = [d.size(7) for _ in range(r.choice((0, 0, 1, 1, 2)))]
        left = [b if r.random() < 0.8 else 1 for b in batch]
        right = [b if r.random() < 0.6 else 1 for b in batch][r.randrange(0, len(batch) + 1) :]
        a_shape: tuple[int, ...] = (*left, m, k)
        columns: tuple[int, ...] = (*right, k, n)
        if r.random() < 0.1:
            a_shape = (k,)
        elif r.random() < 0.1:
            columns = (k,)
        a, b = (
            d.feed(a_shape),
            d.weight(columns, scale) if r.random() < 0.5 else d.feed(columns, scale),
        )
        y = d.add("MatMul", a, b)
        if len(columns) > 1 and r.random() < 0.5:
            y = d.add("Add", y, d.weight((n,)))
    _activation(d, y)


def attention(d: Draw) -> None:
    r = d.random
    b, h, s, t, e = (
        r.choice((1, 2, 3)),
        r.choice((1, 2, 4, 6)),
        d.size(129),
        d.size(200, large=True),
        r.choice((8, 16, 24, 32, 40, 64, 80, 96, 128, 160, 256)),
    )
    kv = r.choice([g for g in (1, 2, h) if h % g == 0])
    causal = int(r.random() < 0.4)
    if causal:
        t = max(s, t)
    flat = r.random() < 0.5
    shapes = [(b, n, h1 * e) if flat else (b, h1, n, e) for n, h1 in ((s, h), (t, kv), (t, kv))]
    inputs = [d.feed(x) for x in shapes]
    if not causal and r.random() < 0.5:
        shape = r.choice(((s, t), (1, 1, s, t), (b, 1, 1, t), (b, h, s, t), (1, h, s, t)))
        seen = d.rng.random(shape) < 0.7
        seen[..., 0] = True
        inputs.append(
            d.given(
                seen
                if r.random() < 0.5
                else np.where(seen, d.rng.standard_normal(shape), -10000.0).astype(np.float32)
            )
        )
    more = {"q_num_heads": h, "kv_num_heads": kv} if flat else {}
    d.add("Attention", *inputs, is_causal=causal, softcap=r.choice((0.0, 0.0, 3.0)), **more)


def fourier(d: Draw) -> None:
    r = d.random
    fast = r.choice((240, 256, 400, 480, 512, 640, 1024))
    length = fast if r.random() < 0.5 else d.size(200, large=True)
    if r.random() < 0.5:
        step, batch = r.randrange(1, length + 3), r.choice((1, 2, 3))
        x = d.feed((batch, length + r.randrange(0, 6 * step), 1))
        window = d.weight((length,)) if r.random() < 0.6 else ""
        names = [x, d.store(np.int64(step)), window, d.store(np.int64(length))]
        d.add("STFT", *names, onesided=int(r.random() < 0.7))
        return
    parts = r.choice((1, 2))
    shape = [*d.shape(r.randrange(1, 4), 60), parts]
    axis = r.randrange(0, len(shape) - 1)
    shape[axis] = length
    padded = fast if r.random() < 0.5 else d.size(200)
    given = d.store(np.int64(padded)) if r.random() < 0.4 else ""
    half = int(parts == 1 and r.random() < 0.5)
    inverse = int(not half and r.random() < 0.4)
    at = d.store(np.int64(axis if r.random() < 0.5 else axis - len(shape)))
    d.add("DFT", d.feed(shape), given, at, onesided=half, inverse=inverse)


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "Elu", "LeakyRelu", "Softsign")


def recurrent(d: Draw) -> None:
    r = d.random
    kind, direction = r.choice(tuple(_GATES)), r.choice(("forward", "reverse", "bidirectional"))
    steps, batch, width = r.choice((1, 2, 3, 7)), r.choice((1, 1, 2, 3, 17)), d.size(40)
    sides, units = 2 if direction == "bidirectional" else 1, d.size(129)
    rows, named = _GATES[kind] * units, r.random() < 0.3
    scale = units**-0.5 * (0.3 if named else 1.0)  # else what grows without bound grows from h to h
    weight = d.weight if r.random() < 0.9 else d.feed
    inputs = [d.feed((steps, batch, width)), weight((sides, rows, width), width**-0.5)]
    inputs.append(weight((sides, rows, units), scale))
    inputs.append(weight((sides, 2 * rows), 0.3) if r.random() < 0.7 else "")
    lens = np.array([r.randrange(0, steps + 1) for _ in range(batch)], np.int32)
    lens[0] = max(lens[0], 1)  # where all are 0, ONNX Runtime leaves results as they are in memory
    inputs.append(d.given(lens) if r.random() < 0.4 else "")
    inputs.append(d.feed((sides, batch, units)) if r.random() < 0.5 else "")
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": units}
    if kind == "LSTM":
        inputs.append(d.feed((sides, batch, units)) if r.random() < 0.5 else "")
        inputs.append(d.weight((sides, 3 * units), 0.3) if r.random() < 0.3 else "")
        attrs["input_forget"] = int(r.random() < 0.2)
    if kind == "GRU":
        attrs["linear_before_reset"] = int(r.random() < 0.5)
    if r.random() < 0.2:
        attrs["clip"] = 0.7
    if named:
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[kind]
        gates = "Sigmoid" if r.random() < 0.5 else "HardSigmoid"
        names = [r.choice(_ACTIVATIONS) for _ in range(count)]
        attrs["activations"] = (names if kind == "RNN" else [gates, *names[1:]]) * sides
    d.add(kind, *inputs, outputs=3 if kind == "LSTM" else 2, **attrs)


KINDS: Mapping[str, Callable[[Draw], None]] = {
    "conv": conv, "conv_transpose": conv_transpose, "pool": pool, "reduce": reduce,
    "along_axis": along_axis, "norm": norm, "matmul": matmul, "attention": attention,
    "fourier": fourier, "recurrent": recurrent,
}  # fmt: skip
