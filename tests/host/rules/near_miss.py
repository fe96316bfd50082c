"""A random graph for each rule: the chain it fuses in one of its spellings, with random sizes,
options and operand order.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from tests.host.rules import near_miss_norms
from tests.host.rules.attention import near_miss_attention
from tests.host.rules.near_miss_parts import (
    BATCHES,
    EPSILONS,
    SPELT,
    Constants,
    Shapes,
    built,
    either,
    positive,
    tail,
    weights,
)
from tests.host.rules.rules_oracle import activation, node


def _batch_norm(r: Random, x: str, y: str) -> NodeProto:
    return node("BatchNormalization", f"{x} g be mu va", y, epsilon=r.choice(EPSILONS))


def _statistics(r: Random, channels: int) -> Constants:
    return {
        "g": weights(r, channels),
        "be": weights(r, channels),
        "mu": weights(r, channels),
        "va": positive(r, channels),
    }


def convolution(r: Random, op: str = "Conv") -> ModelProto:
    rank, ci, co, group = r.choice((1, 2, 2)), r.choice((1, 3, 4)), r.choice((2, 4)), 1
    if r.random() < 0.25:
        group, ci, co = r.choice(((4, 4, 4), (2, 4, 4), (4, 4, 8)))
    kernel = [r.choice((1, 2, 3)) for _ in range(rank)]
    shape = (co, ci // group, *kernel) if op == "Conv" else (ci, co // group, *kernel)
    strides = [r.choice((1, 1, 2)) for _ in range(rank)]
    attrs: dict[str, Any] = {"strides": strides} if r.random() < 0.8 else {}
    if op == "Conv" and r.random() < 0.2:
        attrs["auto_pad"] = r.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        attrs |= {
            "pads": [r.choice((0, 1)) for _ in range(2 * rank)],
            "dilations": [r.choice((1, 1, 2)) for _ in range(rank)],
        }
    if op == "ConvTranspose" and r.random() < 0.3 and "strides" in attrs:
        attrs["output_padding"] = [r.choice((0, s - 1)) for s in strides]
    if group > 1:
        attrs["group"] = group
    if r.random() < 0.3:
        attrs["kernel_shape"] = kernel
    ones = (1,) * rank
    constants: Constants = {
        "w": weights(r, *shape),
        "w2": weights(r, *shape),
        "b": weights(r, co),
        "b1": weights(r, co, *ones),
    }
    constants |= {"row": weights(r, 1, co, *ones), "k": np.float32(0.7), **_statistics(r, co)}
    biased = r.choice(("input", "add", "none"))
    nodes = [node(op, "x w b" if biased == "input" else "x w", "c", **attrs)]
    value = "c"
    if biased == "add":
        nodes.append(node("Add", either(r, value, "b1"), "cb"))
        value = "cb"
    if r.random() < 0.6:
        nodes.append(_batch_norm(r, value, "n"))
        value = "n"
    extra = r.choice(("none", "none", "row", "k", "residual"))
    if extra == "residual":  # of the same shape, whatever that is
        nodes.insert(0, node(op, "x w2", "res", **attrs))
        extra = "res"
    if extra != "none":
        nodes.append(node(r.choice(("Add", "Mul")), either(r, value, extra), "s"))
        value = "s"
    nodes += tail(r, value, "y", constants)
    return built(
        nodes,
        {"x": (r.choice(BATCHES), ci, *[r.choice((5, 6)) for _ in range(rank)])},
        constants,
        opset=14,
    )


def product(r: Random) -> ModelProto:
    k, n = r.choice(((3, 2), (5, 7), (4, 4), (3, 3)))
    lead: tuple[int | str, ...] = r.choice(((2, 3), ("batch", k), (2, n), (3,), (n,)))
    inner = lead[-1] if isinstance(lead[-1], int) else -1
    constants: Constants = {
        "b": weights(r, n),
        "w": weights(r, k, n),
        "wt": weights(r, n, k),
        "flat": np.array([-1, k]),
        "whole": np.array([-1, inner, n]),
    }
    constants["row"] = weights(r, 1, n)
    kinds = (
        ("MatMul", "Fused", "Gemm", "transposed")
        if len(lead) == 1
        else ("MatMul", "Fused", "batched", "reshaped")
    )
    kind, value = r.choice(kinds), "c"
    bias = r.choice(("b", "row"))
    x: tuple[int | str, ...] = (*lead, k)
    if kind == "MatMul":
        nodes = [node("MatMul", "x w", "p"), node("Add", either(r, "p", bias), "c")]
    elif kind == "Fused":
        nodes = [
            node("com.microsoft.FusedMatMul", "x wt", "p", transB=1, alpha=r.choice((1.0, 0.5))),
            node("Add", either(r, "p", bias), "c"),
        ]
    elif kind == "Gemm":
        transposed = r.random() < 0.5
        attrs = {
            "alpha": r.choice((1.0, 0.5)),
            "beta": r.choice((1.0, 2.0)),
            "transB": int(transposed),
        }
        nodes = [
            node(
                "Gemm",
                f"x {'wt' if transposed else 'w'}{r.choice((' b', ' row', ''))}",
                "c",
                **attrs,
            )
        ]
    elif kind == "transposed":
        x = (k, *lead)
        nodes = [node("Gemm", "x w b", "c", transA=1)]
    elif kind == "batched":
        lead = (2, *lead[1:])
        constants["w"], x = weights(r, 2, k, n), (*lead, k)
        nodes = [node("MatMul", "x w", "c")]
    else:
        nodes = [
            node("Reshape", "x flat", "f"),
            node("MatMul", "f w", "p"),
            node("Reshape", "p whole", "q"),
            node("Add", either(r, "q", "b"), "c"),
        ]
    inputs: Shapes = {"x": x}
    if r.random() < 0.4:
        inputs["res"] = r.choice(((*lead, n), (n,), (1,) * len(lead) + (n,)))
        nodes.append(node(r.choice(("Add", "Add", "Sub", "Mul")), either(r, value, "res"), "s"))
        value = "s"
    return built([*nodes, *tail(r, value, "y", constants)], inputs, constants)


def einsum_linear(r: Random) -> ModelProto:
    k, n, transposed = r.choice((3, 4)), r.choice((2, 5)), r.random() < 0.5
    lead: tuple[int | str, ...] = r.choice(((3,), (2, 3), ("batch", 4)))
    letters = "ab"[: len(lead)]
    equation = f"{letters}k,{'nk' if transposed else 'kn'}->{letters}n"
    constants: Constants = {
        "w": weights(r, *((n, k) if transposed else (k, n))),
        "b": weights(r, n),
    }
    nodes = [node("Einsum", "x w", "p", equation=equation), node("Add", either(r, "p", "b"), "c")]
    nodes += tail(r, "c", "y", constants)
    return built(nodes, {"x": (*lead, k)}, constants)


def gated(r: Random) -> ModelProto:
    k, n = r.choice(((3, 2), (5, 4), (4, 4)))
    constants: Constants = {
        "w": weights(r, k, n),
        "w2": weights(r, k, n),
        "wide": weights(r, k, 2 * n),
        "b": weights(r, n),
        "b2": weights(r, n),
    }
    constants |= {
        "start": np.array([0]),
        "cut": np.array([n]),
        "end": np.array([2 * n]),
        "last": np.array([-1]),
        "sizes": np.array([n, n]),
    }
    constants |= {"bw": weights(r, 2 * n), "wt": weights(r, n, k), "wt2": weights(r, n, k)}
    kind = r.choice(("pair", "pair", "gemm", "split", "slice"))
    bias = r.random() < 0.5
    if kind == "pair":
        nodes = [
            node("MatMul", "x w", "g0" if bias else "g"),
            *([node("Add", either(r, "g0", "b"), "g")] if bias else []),
        ]
        nodes += [
            node("MatMul", "x w2", "u0" if bias else "u"),
            *([node("Add", either(r, "u0", "b2"), "u")] if bias else []),
        ]
    elif kind == "gemm":
        transposed = r.random() < 0.5
        nodes = [
            node("Gemm", f"x {'wt' if transposed else 'w'} b", "g", transB=int(transposed)),
            node("Gemm", f"x {'wt2' if transposed else 'w2'} b2", "u", transB=int(transposed)),
        ]
    else:
        nodes = [
            node("MatMul", "x wide", "p0" if bias else "p"),
            *([node("Add", either(r, "p0", "bw"), "p")] if bias else []),
        ]
        if kind == "split":
            nodes.append(
                node(
                    "Split",
                    r.choice(("p sizes", "p")),
                    r.choice(("g u", "u g")),
                    axis=r.choice((-1, 2)),
                )
            )
        else:
            parts = [node("Slice", "p start cut last", "g"), node("Slice", "p cut end last", "u")]
            nodes += parts if r.random() < 0.5 else parts[::-1]
    act, more, _ = activation(
        r.choice([s for s in SPELT if s.startswith(("silu", "gelu", "relu", "tanh", "mish"))]),
        "g",
        "a",
    )
    x: tuple[int | str, ...] = (3, k) if kind == "gemm" else r.choice(((2, 3, k), ("batch", 4, k)))
    return built(
        [*nodes, *act, node("Mul", either(r, "a", "u"), "y")], {"x": x}, {**constants, **more}
    )


def squeeze_excite(r: Random) -> ModelProto:
    c, mid = r.choice(((4, 2), (6, 3), (3, 3)))
    pool = (
        node("GlobalAveragePool", "x", "m")
        if r.random() < 0.5
        else node("ReduceMean", "x", "m", axes=r.choice(([2, 3], [-1, -2])))
    )
    constants: Constants = {
        "w1": weights(r, mid, c, 1, 1),
        "b1": weights(r, mid),
        "w2": weights(r, c, mid, 1, 1),
        "b2": weights(r, c),
    }
    constants |= {
        "v1": weights(r, c, mid),
        "v2": weights(r, mid, c),
        "flat": np.array([0, -1]),
        "back": np.array([0, c, 1, 1]),
        "last": np.array([2, 3]),
    }
    gate, kind = (
        r.choice(("Sigmoid", "HardSigmoid", "Tanh")),
        r.choice(("conv", "conv", "gemm", "matmul", "flatten")),
    )
    if kind == "conv":
        a, b = r.choice((" b1", "")), r.choice((" b2", ""))
        nodes = [
            pool,
            node("Conv", f"m w1{a}", "d"),
            *tail(r, "d", "e", constants),
            node("Conv", f"e w2{b}", "u"),
            node(gate, "u", "s"),
        ]
    else:
        flat = (
            node("Flatten", "m", "mf")
            if kind == "flatten"
            else node("Squeeze", "m last", "mf")
            if kind == "matmul"
            else node("Reshape", "m flat", "mf")
        )
        if kind == "matmul":
            nodes = [
                pool,
                flat,
                node("MatMul", "mf v1", "d0"),
                node("Add", either(r, "d0", "b1"), "d"),
                *tail(r, "d", "e", constants),
            ]
            nodes += [node("MatMul", "e v2", "u")]
        else:
            nodes = [
                pool,
                flat,
                node("Gemm", "mf v1 b1", "d"),
                *tail(r, "d", "e", constants),
                node("Gemm", "e v2 b2", "u"),
            ]
        nodes += [
            node(gate, "u", "s0"),
            node("Unsqueeze", "s0 last", "s")
            if r.random() < 0.5
            else node("Reshape", "s0 back", "s"),
        ]
    return built(
        [*nodes, node("Mul", either(r, "x", "s"), "y")],
        {"x": (r.choice(BATCHES), c, 3, r.choice((3, 4)))},
        constants,
    )


def batch_norm(r: Random) -> ModelProto:
    c, batch = r.choice((2, 4)), r.choice(BATCHES)
    constants: Constants = {**_statistics(r, c), "row": weights(r, c, 1, 1)}
    before = r.choice(("Concat", "MaxPool", "nothing"))
    nodes = {
        "Concat": [node("Concat", "x z", "fed", axis=1)],
        "MaxPool": [node("MaxPool", "x", "fed", kernel_shape=[2, 2])],
        "nothing": [],
    }[before]
    channels = c // 2 if before == "Concat" else c
    nodes += [_batch_norm(r, "fed" if nodes else "x", "n")]
    value = "n"
    if r.random() < 0.3:
        nodes.append(node(r.choice(("Mul", "Add")), either(r, "n", "row"), "s"))
        value = "s"
    inputs: Shapes = {"x": (batch, channels, 3, 4)}
    if before == "Concat":
        inputs["z"] = (batch, channels, 3, 4)
    return built([*nodes, *tail(r, value, "y", constants)], inputs, constants, opset=14)


def pointwise(r: Random) -> ModelProto:
    """A few arithmetic nodes and activations, each reading what came before, a constant or an
    input.
    """
    constants: Constants = {
        "k": np.float32(r.choice((0.5, 2.0, -1.5))),
        "row": weights(r, 4),
        "cell": weights(r, 1, 1, 1),
        "column": weights(r, 3, 1),
    }
    nodes = [
        node(r.choice(("Add", "Sub", "Mul", "Max")), either(r, "x", "z"), "a"),
        *tail(r, "a", "b", constants),
    ]
    value = "b"
    for k in range(r.choice((1, 1, 2))):
        other = r.choice(("row", "x", "k", "cell", "column", "z", "a"))
        nodes.append(
            node(r.choice(("Add", "Sub", "Mul", "Min")), either(r, value, other), f"step{k}")
        )
        value = f"step{k}"
    if r.random() < 0.3:
        nodes += [
            node(r.choice(("Greater", "LessOrEqual", "Equal")), either(r, value, "row"), "q"),
            node("Where", f"q {either(r, value, 'k')}", "w"),
        ]
        value = "w"
    batch = r.choice(BATCHES)
    return built(
        [*nodes, *tail(r, value, "y", constants)],
        {"x": (batch, 3, 4), "z": r.choice(((batch, 3, 4), (3, 1), (4,), (1, 3, 1), ()))},
        constants,
    )


def fused_convolution(r: Random) -> ModelProto:
    """com.microsoft.FusedConv, as ONNX Runtime's own optimizer leaves it, with or without more
    behind it.
    """
    constants: Constants = {
        "w": weights(r, 4, 3, 3, 3),
        "b": weights(r, 4),
        "row": weights(r, 4, 1, 1),
    }
    params: dict[str, Any] = r.choice(
        (
            {"activation": "Relu"},
            {"activation": "LeakyRelu", "activation_params": [0.1]},
            {"activation": "Sigmoid"},
        )
    )
    nodes = [
        node("com.microsoft.FusedConv", "x w b", "c", pads=[1, 1, 1, 1], **params),
        node("Mul", either(r, "c", "row"), "y"),
    ]
    return built(nodes, {"x": (r.choice(BATCHES), 3, 5, 6)}, constants)


def nbits(r: Random) -> ModelProto:
    """A product by constant integers, dequantised for a tensor, in columns or in blocks, or by
    MatMulNBits.
    """
    k, n = r.choice(((3, 2), (5, 7), (32, 6), (32, 33)))
    rng = np.random.default_rng(r.randrange(1 << 30))
    transposed, signed = r.random() < 0.5, r.random() < 0.5
    kinds = ("blocks", "blobs", "columns") if k == 32 else ("columns", "one")
    kind = r.choice(kinds)
    low, dtype = (-8, np.int8) if signed else (0, np.uint8)
    size = {"blocks": (2, n), "columns": (n,)}.get(kind, ())
    w, scale = rng.integers(low, low + 16, (k, n)), rng.uniform(0.1, 1.0, size)
    zero, b, row = rng.integers(low, low + 16, size), weights(r, n), weights(r, 1, n)
    constants: Constants = {
        "w": (w.T if transposed else w).astype(dtype), "b": b, "row": row,
        "s": np.asarray(scale.T if transposed else scale, np.float32),
        "z": np.asarray(zero.T if transposed else zero, dtype),
    }  # fmt: skip
    x: tuple[int | str, ...] = (r.choice(("batch", 3)), k)
    zeros = r.choice((" z", ""))
    if kind == "blobs":
        constants |= {
            "w": rng.integers(0, 256, (n, 2, 8)).astype(np.uint8),
            "s": rng.uniform(0.1, 1.0, (n, 2)).astype(np.float32),
            "z": rng.integers(0, 256, (n, 1)).astype(np.uint8),
        }
        attrs: dict[str, int] = {"K": k, "N": n, "bits": 4, "block_size": 16}
        nodes = [node("com.microsoft.MatMulNBits", f"x w s{zeros}", "p", **attrs)]
        nodes += [node("Add", either(r, "p", r.choice(("b", "row"))), "c")]
    else:
        along = {"blocks": {"axis": int(transposed), "block_size": 16}, "one": {}}
        given: dict[str, int] = along.get(kind, {"axis": int(not transposed)})
        nodes = [node("DequantizeLinear", f"w s{zeros}", "d", **given)]
        if transposed:
            nodes += [node("Gemm", f"x d{r.choice((' b', ' row', ''))}", "c", transB=1)]
        else:
            x = r.choice((x, (2, *x)))
            nodes += [node("MatMul", "x d", "p"), node("Add", either(r, "p", "b"), "c")]
    opset = 21 if kind == "blocks" else 13
    return built([*nodes, *tail(r, "c", "y", constants)], {"x": x}, constants, opset=opset)


#: rule -> a random graph that it fuses
BASES: dict[str, Callable[[Random], ModelProto]] = {
    "conv": lambda r: fused_convolution(r) if r.random() < 0.1 else convolution(r),
    "conv_transpose": lambda r: convolution(r, "ConvTranspose"),
    "gemm": product,
    "gemm_nbits": nbits,
    "einsum_linear": einsum_linear,
    "swiglu": gated,
    "squeeze_excite": squeeze_excite,
    "batch_norm": batch_norm,
    "pointwise": pointwise,
    **near_miss_norms.BASES,
    **near_miss_attention.BASES,
}
