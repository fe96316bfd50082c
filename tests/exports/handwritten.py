"""Graphs as tf2onnx and Keras write them (`tf`), and as ONNX Runtime's own tools leave them behind
(`ort`); no framework needed to make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from tests.host.rules.rules_oracle import chain, model, node

B, S, X, H, D, C = 2, 5, 8, 2, 4, 4
Constants = dict[str, npt.ArrayLike]


def weights(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * 0.5).astype(np.float32)


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


SCALARS: Constants = {
    k: np.float32(v)
    for k, v in {
        "half": 0.5, "one": 1, "two": 2, "three": 3, "six": 6, "sixth": 1 / 6, "zero": 0,
        "r2": np.sqrt(2), "ir2": np.sqrt(0.5), "c0": 0.044715,
        "c1": np.sqrt(2 / np.pi), "eps": 1e-6, "scale": D**-0.5, "big": -10000.0, "large": 10000.0,
    }.items()
}  # fmt: skip


def built(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Sequence[int | str]],
    constants: Constants | None = None,
    *outputs: str,
    **kw: Any,
) -> ModelProto:
    """The model of `nodes`; scalar constants are found by name."""
    used = {i for n in nodes for i in n.input}
    known = {**{k: v for k, v in SCALARS.items() if k in used}, **(constants or {})}
    return model(nodes, inputs, outputs or ("y",), known, opset=kw.pop("opset", 15), **kw)


# --- convolutions ---------------------------------------------------------------------------------
def _bn() -> Constants:
    return {
        "g": weights(C, seed=1),
        "be": weights(C, seed=2),
        "mu": weights(C, seed=3),
        "va": np.abs(weights(C, seed=4)) + 0.5,
    }


def padded_conv() -> ModelProto:
    """Keras' 'same' padding with stride 2, channels last outside."""
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Pad", "t p zero", "d"),
        node("Conv", "d w", "c", strides=[2, 2]),
        node("BatchNormalization", "c g be mu va", "n", epsilon=1e-3),
        *chain("Max X zero > a; Min a six > Y", "n", "r"),
        node("Transpose", "r", "y", perm=[0, 2, 3, 1]),
    ]  # fmt: skip
    return built(
        nodes,
        {"x": ("n", 6, 6, C)},
        {"p": ints(0, 0, 0, 0, 0, 0, 1, 1), "w": weights(C, C, 3, 3), **_bn()},
    )


def scaled_conv(act: str) -> ModelProto:
    """BatchNormalization as a Mul and an Add per channel, after a bias of its own."""
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1], group=C),
        node("Add", "c b", "a"),
        node("Mul", "a s", "m"),
        node("Add", "m h", "n"),
        *chain(act, "n", "y"),
    ]
    per_channel = {k: weights(1, C, 1, 1, seed=j) for j, k in enumerate("bsh")}
    return built(nodes, {"x": ("n", C, 5, 5)}, {"w": weights(C, 1, 3, 3), **per_channel})


def channels_last(kind: str) -> ModelProto:
    """Bias, scale and activation channels last, between the transposes around each convolution: a
    residual block, or an upsampling.
    """
    back, to = [0, 3, 1, 2], [0, 2, 3, 1]
    nodes = [node("Transpose", "x", "x0", perm=back)]
    if kind == "residual":
        nodes += [
            node("Conv", "x0 w1", "u1", pads=[1] * 4), node("Transpose", "u1", "t1", perm=to),
            node("Add", "t1 b1", "a1"), node("Mul", "a1 s1", "m1"),
            node("Add", "m1 h1", "n1"), node("Relu", "n1", "r1"),
            node("Transpose", "r1", "v1", perm=back), node("Conv", "v1 w2", "u2", pads=[1] * 4),
            node("Transpose", "u2", "t2", perm=to), node("Add", "t2 b2", "a2"),
            node("Add", "a2 r1", "e2"), node("Relu", "e2", "y"),
        ]  # fmt: skip
        constants: Constants = {f"w{k}": weights(C, C, 3, 3, seed=k) for k in (1, 2)}
    else:
        nodes += [
            node("ConvTranspose", "x0 w1", "u1", strides=[2, 2]),
            node("Transpose", "u1", "t1", perm=to), node("Add", "t1 b1", "a1"),
            *chain("Sigmoid X > s; Mul X s > Y", "a1", "y"),
        ]  # fmt: skip
        constants = {"w1": weights(C, C, 2, 2)}
    used = {i for n in nodes for i in n.input}
    return built(
        nodes,
        {"x": ("n", 6, 6, C)},
        constants
        | {k: weights(C, seed=j) for j, k in enumerate(("b1", "s1", "h1", "b2")) if k in used},
    )


def squeeze_excite(kind: str) -> ModelProto:
    tail = "Relu X > r" if kind != "swish" else "Sigmoid X > q; Mul X q > r"
    if kind == "dense":
        nodes = [
            node("ReduceMean", "x", "m", axes=[2, 3], keepdims=0), node("MatMul", "m w1", "p"),
            node("Add", "p b1", "d"), node("Relu", "d", "r"),
            node("MatMul", "r w2", "u0"), node("Add", "u0 b2", "u"), node("Sigmoid", "u", "s"),
            node("Reshape", "s back", "k"), node("Mul", "x k", "y"),
        ]  # fmt: skip
        return built(
            nodes,
            {"x": ("n", C, 5, 5)},
            {
                "w1": weights(C, 2),
                "b1": weights(2),
                "w2": weights(2, C),
                "b2": weights(C),
                "back": ints(-1, C, 1, 1),
            },
        )
    first = (
        [node("ReduceMean", "x", "m0", axes=[2, 3], keepdims=0), node("Reshape", "m0 back", "m")]
        if kind == "reshaped"
        else [node("GlobalAveragePool", "x", "m")]
    )
    nodes = [
        *first,
        node("Conv", "m w1 b1", "d"),
        *chain(tail.replace("> r", "> Y"), "d", "r"),
        node("Conv", "r w2 b2", "u"),
        node("Sigmoid", "u", "s"),
    ]
    nodes += [node("Mul", "s x", "y")]
    constants: Constants = {
        "w1": weights(2, C, 1, 1),
        "b1": weights(2),
        "w2": weights(C, 2, 1, 1),
        "b2": weights(C),
    }
    return built(
        nodes,
        {"x": ("n", C, 5, 5)},
        {**constants, **({"back": ints(-1, C, 1, 1)} if kind == "reshaped" else {})},
    )


# --- sequences ------------------------------------------------------------------------------------
GELU = {
    "erf": "Mul X half > h; Mul X ir2 > d; Erf d > e; Add one e > a; Mul h a > Y",
    "pow": "Pow X three > p; Mul c0 p > k; Add X k > a; Mul c1 a > i; Tanh i > t; Add one t > o; "
    "Mul half o > m; Mul X m > Y",
}


def _dense(x: str, y: str, name: str) -> list[NodeProto]:
    """A Dense layer on rank 3 through Reshape, MatMul, Reshape, Add (Tensordot)."""
    return [
        node("Reshape", f"{x} flat", f"{y}_f"), node("MatMul", f"{y}_f w{name}", f"{y}_p"),
        node("Reshape", f"{y}_p whole", f"{y}_r"),
        node("Add", f"{y}_r b{name}", y),
    ]  # fmt: skip


def dense_gelu(gelu: str) -> ModelProto:
    nodes = [*_dense("x", "d", "0"), *chain(GELU[gelu], "d", "y")]
    return built(
        nodes,
        {"x": ("n", S, X)},
        {"flat": ints(-1, X), "whole": ints(-1, S, X), "w0": weights(X, X), "b0": weights(X)},
    )


def gated_dense() -> ModelProto:
    """SwiGLU whose two products lie between Reshapes."""

    def dense(name: str) -> list[NodeProto]:
        return [
            node("Gemm", f"f w{name}", f"p{name}", transB=1),
            node("Reshape", f"p{name} whole", name),
        ]

    nodes = [
        node("Reshape", "x flat", "f"),
        *dense("g"),
        *dense("u"),
        *chain("Sigmoid X > s; Mul X s > Y", "g", "a"),
        node("Mul", "a u", "y"),
    ]
    return built(
        nodes,
        {"x": ("n", S, X)},
        {
            "flat": ints(-1, X),
            "whole": ints(-1, S, X),
            "wg": weights(X, X),
            "wu": weights(X, X, seed=1),
        },
    )


def keras_layer_norm(affine: bool = True) -> ModelProto:
    """x * s + (beta - mean * s) with s = gamma / sqrt(var + eps), or (x - mean) * s + beta."""
    text = (
        "ReduceMean(axes=[-1]) X > m; Sub X m > d; Mul d d > q; ReduceMean(axes=[-1]) q > v; "
        "Add v eps > e; Sqrt e > r; Reciprocal r > i; Mul i g > s; "
    )
    text += (
        "Mul X s > xs; Mul m s > ms; Sub b ms > o; Add xs o > Y"
        if affine
        else "Mul d s > n; Add n b > Y"
    )
    nodes = []
    for n in chain(
        text.replace(" eps", " EPS").replace(" g ", " G ").replace(" b ", " BE "), "x", "y"
    ):
        n.input[:] = [{"y_EPS": "eps", "y_G": "g", "y_BE": "b"}.get(i, i) for i in n.input]
        nodes.append(n)
    return built(nodes, {"x": ("n", S, X)}, {"g": weights(X, seed=1), "b": weights(X)})


def attention(kind: str) -> ModelProto:
    """TensorFlow's BERT: dense layers through Reshape, heads with the scale on q or the scores, a
    mask made from integers.

    Or the mask subtracted, or added before the scale; or Softmax over rows in one axis, or from its
    parts.
    """
    nodes = [*_dense("x", "q", "0"), *_dense("x", "k", "1"), *_dense("x", "v", "2")]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("Reshape", f"{name} split", f"{name}4"),
            node("Transpose", f"{name}4", f"{name}t", perm=perm),
        ]
    nodes += [node("Mul", "qt scale", "qs")] if kind == "query" else []
    nodes += [node("MatMul", "qs kt" if kind == "query" else "qt kt", "s0")]
    scaled = {"query": "s0", "prescaled": "s0"}.get(kind, "s1")
    nodes += [] if scaled == "s0" else [node("Mul", "s0 scale", "s1")]
    nodes += [
        node("Cast", "m", "mf", to=1),
        node("Unsqueeze", "mf middle", "m4"),
        node("Sub", "one m4", "mi"),
    ]
    nodes += [
        node("Mul", "mi large" if kind == "subtracted" else "mi big", "mb"),
        node("Sub" if kind == "subtracted" else "Add", f"{scaled} mb", "sm"),
    ]
    nodes += [node("Mul", "sm scale", "sp")] if kind == "prescaled" else []
    if kind == "flat":
        nodes += [
            node("Reshape", "sm rows", "sf"),
            node("Softmax", "sf", "pf", axis=-1),
            node("Reshape", "pf back", "p"),
        ]
    elif kind == "spelled":
        nodes += [
            node("ReduceMax", "sm", "mx", axes=[-1]),
            node("Sub", "sm mx", "sd"),
            node("Exp", "sd", "se"),
            node("ReduceSum", "se last", "st"),
        ]
        nodes += [node("Div", "se st", "p")]
    else:
        nodes += [node("Softmax", "sp" if kind == "prescaled" else "sm", "p", axis=-1)]
    nodes += [
        node("MatMul", "p vt", "o"),
        node("Transpose", "o", "ot", perm=[0, 2, 1, 3]), node("Reshape", "ot whole", "oj"),
        *_dense("oj", "y", "3"),
    ]  # fmt: skip
    constants: Constants = {
        "flat": ints(-1, X),
        "whole": ints(-1, S, X),
        "split": ints(-1, S, H, D),
        "middle": ints(1, 2),
    }
    constants |= {f"w{k}": weights(X, X, seed=k) for k in range(4)} | {
        f"b{k}": weights(X, seed=k) for k in range(4)
    }
    constants |= {"last": ints(-1)} if kind == "spelled" else {}
    constants |= {"rows": ints(-1, S), "back": ints(-1, H, S, S)} if kind == "flat" else {}
    return built(nodes, {"x": ("n", S, X), "m": ("n", S)}, constants, types={"m": 7})


def einsum_attention() -> ModelProto:
    """Keras' MultiHeadAttention."""
    nodes = []
    for name in "qkv":
        nodes += [
            node("Einsum", f"x w{name}", f"{name}0", equation="abc,cde->abde"),
            node("Add", f"{name}0 b{name}", name),
        ]
    nodes += [
        node("Mul", "q scale", "qs"), node("Einsum", "k qs", "s", equation="aecd,abcd->acbe"),
        node("Softmax", "s", "p", axis=-1),
        node("Einsum", "p v", "o", equation="acbe,aecd->abcd"),
        node("Einsum", "o wo", "y0", equation="abcd,cde->abe"), node("Add", "y0 bo", "y"),
    ]  # fmt: skip
    constants: Constants = {f"w{c}": weights(X, H, D, seed=k) for k, c in enumerate("qkv")} | {
        f"b{c}": weights(H, D, seed=k) for k, c in enumerate("qkv")
    }
    return built(nodes, {"x": ("n", S, X)}, {**constants, "wo": weights(H, D, X), "bo": weights(X)})


# --- what ONNX Runtime's tools leave behind -------------------------------------------------------
def ort_fused_conv() -> ModelProto:
    nodes = [
        node(
            "com.microsoft.FusedConv",
            "x w b",
            "c",
            pads=[1, 1, 1, 1],
            activation="Clip",
            activation_params=[0.0, 6.0],
        ),
        node("Add", "c x", "y"),
    ]
    return built(
        nodes, {"x": ("n", C, 5, 5)}, {"w": weights(C, C, 3, 3), "b": weights(C)}, types={"y": 1}
    )


def ort_gelu(kind: str) -> ModelProto:
    op = {
        "bias": "com.microsoft.BiasGelu",
        "fast": "com.microsoft.FastGelu",
        "plain": "com.microsoft.Gelu",
        "quick": "com.microsoft.QuickGelu",
    }[kind]
    biased = kind in ("bias", "fast")
    nodes = [
        node("MatMul", "x w1", "u"),
        *([] if biased else [node("Add", "u b1", "ub")]),
        node(op, "u b1" if biased else "ub", "g"),
    ]
    nodes += [node("MatMul", "g w2", "d"), node("Add", "b2 d", "y")]
    return built(
        nodes,
        {"x": ("n", S, X)},
        {"w1": weights(X, 12), "b1": weights(12), "w2": weights(12, X), "b2": weights(X)},
    )


def ort_attention(kind: str) -> ModelProto:
    """FusedMatMul around Softmax, or MultiHeadAttention with the projections' bias Adds still
    there.
    """
    nodes: list[NodeProto] = []
    for name in "qkv":
        nodes += [node("MatMul", f"x w{name}", f"{name}0"), node("Add", f"{name}0 b{name}", name)]
    if kind == "mha":
        nodes += [node("com.microsoft.MultiHeadAttention", "q k v", "o", num_heads=H)]
    else:
        for name in "qkv":
            nodes += [
                node("Reshape", f"{name} split", f"{name}4"),
                node("Transpose", f"{name}4", f"{name}t", perm=[0, 2, 1, 3]),
            ]
        nodes += [
            node("com.microsoft.FusedMatMul", "qt kt", "s", transB=1, alpha=0.5),
            node("Softmax", "s", "p", axis=-1),
            node("MatMul", "p vt", "o4"),
        ]
        nodes += [
            node("Transpose", "o4", "ot", perm=[0, 2, 1, 3]),
            node("Reshape", "ot whole", "o"),
        ]
    nodes += [node("com.microsoft.SkipLayerNormalization", "o x g be b", "y", epsilon=1e-5)]
    constants: Constants = {f"w{c}": weights(X, X, seed=k) for k, c in enumerate("qkv")} | {
        f"b{c}": weights(X, seed=k) for k, c in enumerate("qkv")
    }
    constants |= {"g": weights(X, seed=1), "be": weights(X, seed=2), "b": weights(X, seed=3)}
    return built(
        nodes,
        {"x": ("n", S, X)},
        {
            **constants,
            **({} if kind == "mha" else {"split": ints(0, 0, H, D), "whole": ints(0, 0, X)}),
        },
    )


def ort_packed() -> ModelProto:
    """Attention with its projections inside, which stays; the layers behind it fuse."""
    nodes = [
        node("com.microsoft.Attention", "x w b", "a", num_heads=H), node("MatMul", "a wo", "p"),
        node("Add", "p bo", "ap"),
        node("com.microsoft.SkipLayerNormalization", "ap x g be", "s", epsilon=1e-5),
        node("MatMul", "s w1", "u"), node("com.microsoft.FastGelu", "u b1", "y"),
    ]  # fmt: skip
    constants: Constants = {
        "w": weights(X, 3 * X),
        "b": weights(3 * X),
        "wo": weights(X, X),
        "bo": weights(X),
        "w1": weights(X, 12),
        "b1": weights(12),
    }
    return built(
        nodes, {"x": ("n", S, X)}, {**constants, "g": weights(X, seed=1), "be": weights(X, seed=2)}
    )


#: file name without its ending -> how to build it
HANDWRITTEN: dict[str, Callable[[], ModelProto]] = {
    "tf_conv_same_bn_relu6.tf": padded_conv,
    "tf_depthwise_scale_hswish.tf": lambda: scaled_conv(
        "Add X three > a; Clip a zero six > k; Mul k sixth > d; Mul X d > Y"),
    "tf_depthwise_scale_mish.tf": lambda: scaled_conv("Softplus X > p; Tanh p > t; Mul X t > Y"),
    **{f"tf_nhwc_{k}.tf": (lambda k=k: channels_last(k)) for k in ("residual", "upsampling")},
    "tf_se_pool.tf": lambda: squeeze_excite("pool"),
    "tf_se_swish.tf": lambda: squeeze_excite("swish"),
    "tf_se_reshaped.tf": lambda: squeeze_excite("reshaped"),
    "tf_se_dense.tf": lambda: squeeze_excite("dense"),
    "tf_dense_gelu_erf.tf": lambda: dense_gelu("erf"),
    "tf_dense_gelu_pow.tf": lambda: dense_gelu("pow"),
    "tf_gated_dense.tf": gated_dense,
    "tf_layernorm_keras.tf": keras_layer_norm,
    "tf_layernorm_early.tf": lambda: keras_layer_norm(affine=False),
    "tf_attention.tf": lambda: attention("scores"),
    "tf_attention_scaled_query.tf": lambda: attention("query"),
    **{f"tf_attention_{k}.tf": (lambda k=k: attention(k))
        for k in ("subtracted", "prescaled", "flat", "spelled")},
    "tf_attention_einsum.tf": einsum_attention,
    "ort_fused_conv.ort": ort_fused_conv,
    **{f"ort_gelu_{k}.ort": (lambda k=k: ort_gelu(k)) for k in ("bias", "fast", "plain", "quick")},
    "ort_attention.ort": lambda: ort_attention("fused"),
    "ort_mha.ort": lambda: ort_attention("mha"),
    "ort_packed.ort": ort_packed,
}  # fmt: skip
