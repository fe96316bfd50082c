"""A random graph for each rule: the chain it fuses in one of its spellings, with random sizes, options and operand order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto

from tests.host.attention_graphs import SCALES, SPLITS, B, D, H, Net, S, T, X, close, plain
from tests.host.rules_oracle import SPELLINGS, activation, model, node

Constants = dict[str, npt.ArrayLike]
#: Spellings of activations that any opset from 13 on can write, and those worth having behind a product.
_ANY = tuple(name for name, (opset, _) in SPELLINGS.items() if opset <= 13)


def weights(r: Random, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(r.randrange(1 << 30)).standard_normal(shape).astype(np.float32)


def positive(r: Random, *shape: int) -> npt.NDArray[np.float32]:
    return (np.abs(weights(r, *shape)) + 0.3).astype(np.float32)


def either(r: Random, a: str, b: str) -> str:
    """The two inputs of a commutative node in random order."""
    return f"{a} {b}" if r.random() < 0.5 else f"{b} {a}"


def built(nodes: Sequence[NodeProto], inputs: Mapping[str, Sequence[int | str]], constants: Mapping[str, npt.ArrayLike], **kw: Any) -> ModelProto:
    """The model of `nodes`, with the constants they use."""
    used = {i for n in nodes for i in n.input}
    return model(nodes, inputs, kw.pop("outputs", ("y",)), {k: v for k, v in constants.items() if k in used}, opset=kw.pop("opset", 13), **kw)


def tail(r: Random, x: str, y: str, constants: Constants) -> list[NodeProto]:
    """A random activation from `x` to `y`; its constants join `constants`."""
    nodes, more, _ = activation(r.choice(_ANY), x, y)
    constants |= more
    return nodes


# --- compute nodes ----------------------------------------------------------------------------------------------------------
def convolution(r: Random, op: str = "Conv") -> ModelProto:
    rank, ci, co = r.choice((1, 2, 2)), r.choice((1, 3, 4)), r.choice((2, 4))
    kernel, group = [r.choice((1, 2, 3)) for _ in range(rank)], 1
    if r.random() < 0.25:
        group = ci = co = 4
    shape = (co, ci // group, *kernel) if op == "Conv" else (ci, co // group, *kernel)
    attrs: dict[str, Any] = {"pads": [r.choice((0, 1)) for _ in range(2 * rank)], "strides": [r.choice((1, 2)) for _ in range(rank)]}
    if group > 1:
        attrs["group"] = group
    ones = (1,) * rank
    constants: Constants = {"w": weights(r, *shape), "b": weights(r, co), "b1": weights(r, co, *ones), "row": weights(r, 1, co, *ones)}
    constants |= {"g": weights(r, co), "be": weights(r, co), "mu": weights(r, co), "va": positive(r, co)}
    biased = r.choice(("input", "add", "none"))
    nodes = [node(op, "x w b" if biased == "input" else "x w", "c", **attrs)]
    value = "c"
    if biased == "add":
        nodes.append(node("Add", either(r, value, "b1"), "cb"))
        value = "cb"
    if r.random() < 0.6:
        nodes.append(node("BatchNormalization", f"{value} g be mu va", "n", epsilon=r.choice((1e-5, 1e-3))))
        value = "n"
    if r.random() < 0.4:
        nodes.append(node(r.choice(("Add", "Mul")), either(r, value, "row"), "s"))
        value = "s"
    nodes += tail(r, value, "y", constants)
    return built(nodes, {"x": (r.choice((1, 2)), ci, *[r.choice((5, 6)) for _ in range(rank)])}, constants, opset=14)


def product(r: Random) -> ModelProto:
    k, n = r.choice((3, 5)), r.choice((2, 7))
    constants: Constants = {"b": weights(r, n), "w": weights(r, k, n), "wt": weights(r, n, k), "flat": np.array([-1, k]), "whole": np.array([2, -1, n])}
    kind = r.choice(("MatMul", "Gemm", "reshaped"))
    if kind == "MatMul":
        nodes = [node("MatMul", "x w", "p"), node("Add", either(r, "p", "b"), "c")]
    elif kind == "Gemm":
        alpha, turned = r.choice((1.0, 0.5)), r.random() < 0.5
        nodes = [node("Gemm", f"x {'wt' if turned else 'w'} b", "c", transB=int(turned), alpha=alpha, beta=r.choice((1.0, 2.0)))]
    else:
        nodes = [node("Reshape", "x flat", "f"), node("MatMul", "f w", "p"), node("Reshape", "p whole", "q"), node("Add", either(r, "q", "b"), "c")]
    inputs: dict[str, Sequence[int | str]] = {"x": (3, k) if kind == "Gemm" else (2, 3, k)}
    value = "c"
    if r.random() < 0.4:
        inputs["res"] = (3, n) if kind == "Gemm" else (2, 3, n)
        nodes.append(node("Add", either(r, value, "res"), "s"))
        value = "s"
    return built([*nodes, *tail(r, value, "y", constants)], inputs, constants)


def gated(r: Random) -> ModelProto:
    k, n = r.choice((3, 5)), r.choice((2, 4))
    constants: Constants = {"w": weights(r, k, n), "w2": weights(r, k, n), "wide": weights(r, k, 2 * n), "b": weights(r, n), "b2": weights(r, n)}
    constants |= {"start": np.array([0]), "cut": np.array([n]), "end": np.array([2 * n]), "last": np.array([-1]), "sizes": np.array([n, n])}
    kind = r.choice(("pair", "split", "slice"))
    if kind == "pair":
        bias = r.random() < 0.5
        nodes = [node("MatMul", "x w", "g0" if bias else "g"), *([node("Add", either(r, "g0", "b"), "g")] if bias else [])]
        nodes += [node("MatMul", "x w2", "u0" if bias else "u"), *([node("Add", either(r, "u0", "b2"), "u")] if bias else [])]
    elif kind == "split":
        nodes = [node("MatMul", "x wide", "p"), node("Split", "p sizes", r.choice(("g u", "u g")), axis=r.choice((-1, 2)))]
    else:
        nodes = [node("MatMul", "x wide", "p"), node("Slice", "p start cut last", "g"), node("Slice", "p cut end last", "u")]
    act, more, _ = activation(r.choice([n for n in _ANY if n.startswith(("silu", "gelu", "relu", "tanh"))]), "g", "a")
    return built([*nodes, *act, node("Mul", either(r, "a", "u"), "y")], {"x": (2, 3, k)}, {**constants, **more})


def squeeze_excite(r: Random) -> ModelProto:
    c, mid = r.choice((4, 6)), r.choice((2, 3))
    pool = node("GlobalAveragePool", "x", "m") if r.random() < 0.5 else node("ReduceMean", "x", "m", axes=[2, 3])
    constants: Constants = {"w1": weights(r, mid, c, 1, 1), "b1": weights(r, mid), "w2": weights(r, c, mid, 1, 1), "b2": weights(r, c)}
    constants |= {"v1": weights(r, c, mid), "v2": weights(r, mid, c), "flat": np.array([0, -1]), "back": np.array([0, c, 1, 1])}
    gate = r.choice(("Sigmoid", "HardSigmoid", "Tanh"))
    if r.random() < 0.6:
        nodes = [pool, node("Conv", "m w1 b1", "d"), *tail(r, "d", "e", constants), node("Conv", "e w2 b2", "u"), node(gate, "u", "s")]
    else:
        nodes = [pool, node("Reshape", "m flat", "mf"), node("Gemm", "mf v1 b1", "d"), *tail(r, "d", "e", constants), node("Gemm", "e v2 b2", "u")]
        nodes += [node(gate, "u", "s0"), node("Reshape", "s0 back", "s")]
    return built([*nodes, node("Mul", either(r, "x", "s"), "y")], {"x": (2, c, 3, 4)}, constants)


def batch_norm(r: Random) -> ModelProto:
    c = r.choice((2, 4))
    constants: Constants = {"g": weights(r, c), "be": weights(r, c), "mu": weights(r, c), "va": positive(r, c)}
    first = node("Concat", "x z", "d", axis=1) if r.random() < 0.5 else node("MaxPool", "x", "d", kernel_shape=[2, 2])
    channels = c // 2 if first.op_type == "Concat" else c
    nodes = [first, node("BatchNormalization", "d g be mu va", "n", epsilon=r.choice((1e-5, 1e-2))), *tail(r, "n", "y", constants)]
    inputs: dict[str, Sequence[int | str]] = {"x": (2, channels, 3, 4)}
    return built(nodes, inputs | ({"z": (2, channels, 3, 4)} if first.op_type == "Concat" else {}), constants, opset=14)


def pointwise(r: Random) -> ModelProto:
    constants: Constants = {"k": np.float32(r.choice((0.5, 2.0, -1.5))), "row": weights(r, 4)}
    nodes = [node(r.choice(("Add", "Sub", "Mul")), either(r, "x", "z"), "a"), *tail(r, "a", "b", constants)]
    nodes += [node(r.choice(("Add", "Mul")), either(r, "b", r.choice(("row", "x", "k"))), "c"), *tail(r, "c", "y", constants)]
    return built(nodes, {"x": (2, 3, 4), "z": r.choice(((2, 3, 4), (3, 1), (4,)))}, constants)


# --- normalisations ------------------------------------------------------------------------------------------------------------
def _inverse(r: Random, numerator: str, variance: str, out: str) -> list[NodeProto]:
    """numerator / sqrt(variance + eps) in one of its forms."""
    how = r.choice(("div", "reciprocal", "one over", "power"))
    nodes = [node("Add", either(r, variance, "eps"), "ve")]
    if how == "power":
        return [*nodes, node("Pow", "ve minus", "i"), node("Mul", either(r, numerator, "i"), out)]
    nodes.append(node("Sqrt", "ve", "sd"))
    if how == "div":
        return [*nodes, node("Div", f"{numerator} sd", out)]
    nodes.append(node("Reciprocal", "sd", "i") if how == "reciprocal" else node("Div", "one sd", "i"))
    return [*nodes, node("Mul", either(r, numerator, "i"), out)]


def norm(r: Random, *, rms: bool, skip: bool = False) -> ModelProto:
    n = r.choice((3, 6))
    channels = not skip and r.random() < 0.2
    shape = (2, n, 3, 2) if channels else (2, 4, n)
    column = (n, 1, 1) if channels else (n,)
    constants: Constants = {"eps": np.float32(r.choice((1e-5, 1e-2))), "one": np.float32(1), "minus": np.float32(-0.5), "two": np.float32(2)}
    constants |= {"g": weights(r, *column), "b": weights(r, *column), "vb": weights(r, n)}
    axis, x, inputs = [1] if channels else [-1], "x", dict[str, Sequence[int | str]](x=shape)
    nodes: list[NodeProto] = []
    if skip:
        inputs["res"] = r.choice((shape, shape, (1, *shape[1:])))
        if r.random() < 0.3:
            nodes.append(node("Add", either(r, "x", "vb"), "xb"))
            x = "xb"
        nodes.append(node("Add", either(r, x, "res"), "s0"))
        x = "s0"
    if not rms and r.random() < 0.25 and not channels:
        return built([*nodes, node("LayerNormalization", f"{x} g b", "y", axis=r.choice((-1, 2)), epsilon=1e-3)], inputs, constants, opset=17)
    top = x
    if not rms:
        nodes += [node("ReduceMean", x, "m", axes=axis), node("Sub", f"{x} m", "d")]
        top = "d"
    square = node("Pow", f"{top} two", "q") if r.random() < 0.5 else node("Mul", f"{top} {top}", "q")
    nodes += [square, node("ReduceMean", "q", "v", axes=axis), *_inverse(r, top, "v", "z")]
    value = "z"
    if r.random() < 0.85:
        nodes.append(node("Mul", either(r, value, "g"), "zg"))
        value = "zg"
        if not rms and r.random() < 0.85:
            nodes.append(node("Add", either(r, value, "b"), "zb"))
            value = "zb"
    nodes[-1].output[0] = "y"
    return built(nodes, inputs, constants)


def group_norm(r: Random) -> ModelProto:
    groups = r.choice((1, 2))
    c = groups * r.choice((2, 3))
    constants: Constants = {"ones": np.ones(groups, np.float32), "zeros": np.zeros(groups, np.float32), "g": weights(r, c, 1, 1), "b": weights(r, c, 1, 1)}
    constants |= {"split": np.array([0, groups, -1]), "back": np.array([2, c, 3, 4]), "g1": weights(r, c), "b1": weights(r, c)}
    if r.random() < 0.3:
        nodes = [node("GroupNormalization", "x g1 b1", "n", num_groups=groups, epsilon=1e-3)]
        return built([*nodes, *tail(r, "n", "y", constants)], {"x": (2, c, 3, 4)}, constants, opset=21)
    nodes = [node("Reshape", "x split", "r0"), node("InstanceNormalization", "r0 ones zeros", "n0", epsilon=r.choice((1e-5, 1e-2))), node("Reshape", "n0 back", "r1")]
    nodes += [node("Mul", either(r, "r1", "g"), "m"), node("Add", either(r, "m", "b"), "n"), *tail(r, "n", "y", constants)]
    return built(nodes, {"x": (2, c, 3, 4)}, constants)


def instance_norm(r: Random) -> ModelProto:
    c = r.choice((2, 3))
    constants: Constants = {"g": weights(r, c), "b": weights(r, c)}
    nodes = [node("InstanceNormalization", "x g b", "n", epsilon=r.choice((1e-5, 1e-2))), *tail(r, "n", "y", constants)]
    return built(nodes, {"x": (2, c, 3, 4) if r.random() < 0.7 else (2, c, 5)}, constants)


def softmax(r: Random) -> ModelProto:
    axis, kind = r.choice((-1, 1, 2)), r.choice(("op", "log", "log op", "exp"))
    if kind == "exp":
        nodes = [node("ReduceMax", "x", "t", axes=[axis]), node("Sub", "x t", "d"), node("Exp", "d", "e"), node("ReduceSum", "e ax", "s"), node("Div", "e s", "y")]
    elif kind == "log":
        nodes = [node("Softmax", "x", "p", axis=axis), node("Log", "p", "y")]
    else:
        nodes = [node("LogSoftmax" if kind == "log op" else "Softmax", "x", "y", axis=axis)]
    return built(nodes, {"x": (2, 3, 4)}, {"ax": np.array([axis])})


# --- attention -----------------------------------------------------------------------------------------------------------------
def rope(r: Random) -> ModelProto:
    d, kind = 4, r.choice(("half", "products", "pairs", "half pairs"))
    shape, low, high = (2, H, 3, d), "x1", "x2"
    width = d if kind.startswith("half") else d // 2
    table: tuple[int, ...] = r.choice(((2, 1, 3, width), (1, 1, 3, width), (3, width)))
    ends: Constants = {"zero": np.array([0]), "half": np.array([d // 2]), "end": np.array([9]), "last": np.array([-1]), "two": np.array([2]), "one": np.array([1])}
    ends["flat"] = np.array([0, 0, 0, d])
    if kind.endswith("pairs"):
        nodes = [node("Slice", "x zero end last two", low), node("Slice", "x one end last two", high)]
    else:
        nodes = [node("Slice", "x zero half last", low), node("Slice", "x half end last", high)]

    def joined(a: str, b: str, y: str) -> list[NodeProto]:
        if not kind.endswith("pairs"):
            return [node("Concat", f"{a} {b}", y, axis=-1)]
        nodes = [node("Unsqueeze", f"{c} last", f"{c}1") for c in (a, b)]
        return [*nodes, node("Concat", f"{a}1 {b}1", "j", axis=-1), node("Reshape", "j flat", y)]

    if kind.startswith("half"):
        nodes += [node("Neg", high, "n"), *joined("n", low, "r"), node("Mul", either(r, "x", "cos"), "a"), node("Mul", either(r, "r", "sin"), "b")]
        nodes += [node("Add", either(r, "a", "b"), "y")]
    else:
        nodes += [node("Mul", either(r, low, "cos"), "a"), node("Mul", either(r, high, "sin"), "b"), node("Sub", "a b", "p")]
        nodes += [node("Mul", either(r, high, "cos"), "c"), node("Mul", either(r, low, "sin"), "e"), node("Add", either(r, "c", "e"), "q"), *joined("p", "q", "y")]
    return built(nodes, {"x": shape, "cos": table, "sin": table}, ends)


def attention(r: Random) -> ModelProto:
    split = r.choice(SPLITS)
    n, s = plain(r.choice(SCALES), split, key_perm=r.random() < 0.5)
    kind = r.choice(("none", "add", "row", "where", "drop", "causal"))
    if kind in ("add", "row"):
        n.inputs["mask"] = (B, 1, 1, T) if kind == "add" else (1, H, S, T)
        s = n.add("Add", *r.sample((s, "mask"), 2))
    elif kind in ("where", "drop"):
        n.inputs["mask"], n.types["mask"] = (B, 1, S, T), int(TensorProto.BOOL)
        fill = n.const(np.float32(r.choice((-np.inf, -3.4e38, -1e9))))
        s = n.add("Where", "mask", *((s, fill) if kind == "where" else (fill, s)))
    elif kind == "causal":
        s = n.add("Where", n.const(np.tri(S, T, dtype=bool)), s, n.const(np.float32(-np.inf)))
    return close(n, s, split, cleanup=r.random() < 0.2)


def attention_operator(r: Random) -> ModelProto:
    flat = r.random() < 0.4
    n = Net(q=(B, S, X), k=(B, T, X), v=(B, T, X))
    if r.random() < 0.3:
        n.inputs["mask"] = (B, 1, S, T)
    mask = ["mask"] if "mask" in n.inputs else []
    attrs: dict[str, Any] = {"scale": r.choice((0.5, 0.3))} if r.random() < 0.5 else {}
    if flat:
        y = n.add("Attention", "q", "k", "v", *mask, q_num_heads=H, kv_num_heads=H, is_causal=int(not mask), **attrs)
    else:
        heads = [n.add("Transpose", n.add("Reshape", c, n.const(np.array([0, 0, H, D]))), perm=[0, 2, 1, 3]) for c in "qkv"]
        y = n.add("Attention", *heads, *mask, is_causal=int(not mask and r.random() < 0.5), **attrs)
        y = n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.const(np.array([0, 0, X])))
    return n.model(n.add("Identity", y, name="y"), opset=23)


#: rule -> a random graph that it fuses
BASES: dict[str, Callable[[Random], ModelProto]] = {
    "conv": convolution,
    "conv_transpose": lambda r: convolution(r, "ConvTranspose"),
    "gemm": product,
    "swiglu": gated,
    "squeeze_excite": squeeze_excite,
    "batch_norm": batch_norm,
    "pointwise": pointwise,
    "layernorm": lambda r: norm(r, rms=False),
    "skip_layernorm": lambda r: norm(r, rms=False, skip=True),
    "rmsnorm": lambda r: norm(r, rms=True),
    "skip_rmsnorm": lambda r: norm(r, rms=True, skip=True),
    "groupnorm": group_norm,
    "instancenorm": instance_norm,
    "softmax": softmax,
    "rope": rope,
    "attention": attention,
    "attention_op": attention_operator,
}
