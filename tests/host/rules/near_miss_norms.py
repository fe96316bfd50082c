"""Random normalisations and softmaxes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
from onnx import ModelProto, NodeProto

from tests.host.rules.near_miss_parts import (
    BATCHES,
    EPSILONS,
    Constants,
    Shapes,
    built,
    either,
    tail,
    weights,
)
from tests.host.rules.rules_oracle import node


def _inverse(r: Random, numerator: str, variance: str, out: str) -> list[NodeProto]:
    """numerator / sqrt(variance + eps) in one of its forms."""
    how = r.choice(("div", "reciprocal", "one over", "power"))
    nodes = [node("Add", either(r, variance, "eps"), "ve")]
    if how == "power":
        return [*nodes, node("Pow", "ve minus", "i"), node("Mul", either(r, numerator, "i"), out)]
    nodes.append(node("Sqrt", "ve", "sd") if r.random() < 0.8 else node("Pow", "ve root", "sd"))
    if how == "div":
        return [*nodes, node("Div", f"{numerator} sd", out)]
    nodes.append(
        node("Reciprocal", "sd", "i") if how == "reciprocal" else node("Div", "one sd", "i")
    )
    return [*nodes, node("Mul", either(r, numerator, "i"), out)]


def _operator(
    r: Random, x: str, inputs: Shapes, constants: Constants, nodes: list[NodeProto], *, rms: bool
) -> ModelProto:
    """The norm as one node."""
    if rms:
        op, opset = r.choice((("RMSNormalization", 23), ("SimplifiedLayerNormalization", 17)))
        nodes.append(node(op, f"{x} g", "y", axis=-1, epsilon=r.choice(EPSILONS)))
    else:
        opset = 17
        nodes.append(
            node(
                "LayerNormalization",
                r.choice((f"{x} g b", f"{x} g")),
                "y",
                axis=r.choice((-1, 2)),
                epsilon=r.choice(EPSILONS),
            )
        )
    return built(nodes, inputs, constants, opset=opset)


def _contrib(r: Random, inputs: Shapes, constants: Constants, *, rms: bool) -> ModelProto:
    """com.microsoft's norm of a sum."""
    op = (
        "com.microsoft.SkipSimplifiedLayerNormalization"
        if rms
        else "com.microsoft.SkipLayerNormalization"
    )
    names = r.choice(("x res g", "x res g vb") if rms else ("x res g b", "x res g b vb", "x res g"))
    wants = r.random() < 0.5
    made = node(op, names, "y - - s0" if wants else "y", epsilon=r.choice(EPSILONS))
    made.output[:] = ["" if o == "-" else o for o in made.output]
    return built(
        [made], inputs | {"res": inputs["x"]}, constants, outputs=("y", "s0") if wants else ("y",)
    )


def norm(r: Random, *, rms: bool, skip: bool = False) -> ModelProto:
    n = r.choice((3, 4, 6))
    channels = not skip and r.random() < 0.2
    batch = r.choice((*BATCHES, 4))
    shape: tuple[int | str, ...] = (batch, n, 3, 2) if channels else (batch, 4, n)
    column = (n, 1, 1) if channels else r.choice(((n,), (n,), (1, 1, n)))
    constants: Constants = {
        "eps": np.float32(r.choice(EPSILONS)),
        "one": np.float32(1),
        "minus": np.float32(-0.5),
        "two": np.float32(2),
    }
    constants |= {
        "g": weights(r, *column),
        "b": weights(r, *column),
        "vb": weights(r, n),
        "root": np.array([0.5], np.float32),
    }
    axis, x, inputs = [1] if channels else [r.choice((-1, 2))], "x", Shapes(x=shape)
    nodes: list[NodeProto] = []
    if not channels and r.random() < 0.2:
        constants |= {"g": weights(r, n), "b": weights(r, n)}
        if skip and not rms and r.random() < 0.5:
            return _contrib(r, inputs, constants, rms=rms)
        if skip:
            inputs["res"] = shape
            nodes.append(node("Add", either(r, "x", "res"), "s0"))
        return _operator(r, "s0" if skip else "x", inputs, constants, nodes, rms=rms)
    if skip:
        inputs["res"] = r.choice((shape, shape, (1, *shape[1:])))
        if r.random() < 0.3:
            nodes.append(node("Add", either(r, "x", "vb"), "xb"))
            x = "xb"
        nodes.append(node("Add", either(r, x, "res"), "s0"))
        x = "s0"
    top = x
    if not rms:
        nodes += [node("ReduceMean", x, "m", axes=axis), node("Sub", f"{x} m", "d")]
        top = "d"
    square = (
        node("Pow", f"{top} two", "q") if r.random() < 0.5 else node("Mul", f"{top} {top}", "q")
    )
    nodes += [square, node("ReduceMean", "q", "v", axes=axis)]
    if not rms and not channels and r.random() < 0.15:  # as Keras writes it
        nodes += [
            node("Add", either(r, "v", "eps"), "ve"),
            node("Sqrt", "ve", "sd"),
            node("Reciprocal", "sd", "i"),
            node("Mul", either(r, "i", "g"), "sc"),
        ]
        nodes += [
            node("Mul", either(r, "m", "sc"), "ms"),
            node("Sub", "b ms", "sh"),
            node("Mul", either(r, x, "sc"), "xs"),
            node("Add", either(r, "xs", "sh"), "y"),
        ]
        return built(nodes, inputs, constants)
    nodes += _inverse(r, top, "v", "z")
    if r.random() < 0.85:
        gamma = "g"
        if not channels and r.random() < 0.2:  # 1 + w with a run-time w
            inputs["w"], gamma = (n,), "gw"
            nodes.append(node("Add", either(r, "w", "one"), "gw"))
        nodes.append(node("Mul", either(r, "z", gamma), "zg"))
        if not rms and r.random() < 0.85:
            nodes.append(node("Add", either(r, "zg", "b"), "zb"))
    nodes[-1].output[0] = "y"
    return built(nodes, inputs, constants)


def group_norm(r: Random) -> ModelProto:
    groups = r.choice((1, 2, 3))
    c, batch = groups * r.choice((2, 3)), r.choice(BATCHES)
    constants: Constants = {
        "ones": np.ones(groups, np.float32),
        "zeros": np.zeros(groups, np.float32),
        "g": weights(r, c, 1, 1),
        "b": weights(r, c, 1, 1),
    }
    constants |= {
        "split": np.array([0, groups, -1]),
        "blocks": np.array([0, groups, c // groups, -1]),
        "back": np.array([-1, c, 3, 4]),
    }
    constants |= {"g1": weights(r, c), "b1": weights(r, c), "ga": weights(r, 1, c, 1, 1)}
    inputs: Shapes = {"x": (batch, c, 3, 4)}
    if r.random() < 0.3:
        nodes = [
            node(
                "GroupNormalization", "x g1 b1", "n", num_groups=groups, epsilon=r.choice(EPSILONS)
            )
        ]
        return built([*nodes, *tail(r, "n", "y", constants)], inputs, constants, opset=21)
    nodes = [
        node("Reshape", f"x {r.choice(('split', 'blocks'))}", "r0"),
        node("InstanceNormalization", "r0 ones zeros", "n0", epsilon=r.choice(EPSILONS)),
    ]
    nodes += [node("Reshape", "n0 back", "r1")]
    value = "r1"
    if r.random() < 0.8:
        nodes += [
            node("Mul", either(r, "r1", r.choice(("g", "ga"))), "m"),
            node("Add", either(r, "m", "b"), "n"),
        ]
        value = "n"
    return built(
        [
            *nodes,
            *(
                tail(r, value, "y", constants)
                if r.random() < 0.8 or value == "r1"
                else [node("Neg", value, "y")]
            ),
        ],
        inputs,
        constants,
    )


def instance_norm(r: Random) -> ModelProto:
    c = r.choice((2, 3))
    constants: Constants = {"g": weights(r, c), "b": weights(r, c)}
    nodes = [
        node("InstanceNormalization", "x g b", "n", epsilon=r.choice(EPSILONS)),
        *tail(r, "n", "y", constants),
    ]
    batch = r.choice(BATCHES)
    return built(nodes, {"x": (batch, c, 3, 4) if r.random() < 0.7 else (batch, c, 5)}, constants)


def softmax(r: Random) -> ModelProto:
    axis, kind = r.choice((-1, 1, 2, 0, -2)), r.choice(("op", "log", "log op", "exp", "exp", "old"))
    opset, shape = 13, r.choice(((2, 3, 4), ("batch", 3, 3), (3, 3, 3), (2, 4, 4)))
    if kind == "exp":
        nodes = [
            node("ReduceMax", "x", "t", axes=[axis]),
            node("Sub", "x t", "d"),
            node("Exp", "d", "e"),
            node("ReduceSum", "e ax", "s"),
            node("Div", "e s", "y"),
        ]
    elif kind == "log":
        nodes = [node("Softmax", "x", "p", axis=axis), node("Log", "p", "y")]
    elif kind == "old":  # before opset 13 the axes after `axis` are one with it
        nodes, opset = (
            [node(r.choice(("LogSoftmax", "Softmax")), "x", "y", axis=r.choice((2, -1)))],
            11,
        )
    else:
        nodes = [node("LogSoftmax" if kind == "log op" else "Softmax", "x", "y", axis=axis)]
    return built(nodes, {"x": shape}, {"ax": np.array([axis])}, opset=opset)


#: rule -> a random graph that it fuses
BASES: dict[str, Callable[[Random], ModelProto]] = {
    "layernorm": lambda r: norm(r, rms=False),
    "skip_layernorm": lambda r: norm(r, rms=False, skip=True),
    "rmsnorm": lambda r: norm(r, rms=True),
    "skip_rmsnorm": lambda r: norm(r, rms=True, skip=True),
    "groupnorm": group_norm,
    "instancenorm": instance_norm,
    "softmax": softmax,
}
