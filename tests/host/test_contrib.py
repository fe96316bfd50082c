"""Types and shapes go on behind ONNX Runtime's own operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.host.rules.rules_oracle import model, node
from tracea_onnx.canonicalize.canonical_form import canonicalise
from tracea_onnx.ir.graph import Graph

X = 8


def weights(*shape: int) -> npt.NDArray[np.float32]:
    return np.ones(shape, np.float32)


def contrib(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", name=op, **attrs)


def shape_behind(
    call: NodeProto, inputs: dict[str, tuple[int | str, ...]], types: dict[str, int] | None = None
) -> tuple[int | None, object]:
    """Type and shape of Relu(first output of `call`)."""
    known: dict[str, npt.ArrayLike] = {
        "w": weights(X, 3 * X),
        "b": weights(3 * X),
        "g": weights(X),
        "we": weights(30, X),
        "pe": weights(16, X),
    }
    known["n"] = np.array([4], np.int32)
    used = {k: v for k, v in known.items() if k in call.input}
    m: ModelProto = model(
        [call, node("Relu", call.output[0], "r"), node("Neg", "r", "y")],
        inputs,
        ("y",),
        used,
        types=types,
    )
    g = Graph(canonicalise(m))
    return g.dtype("r"), g.shape("r")


@pytest.mark.parametrize(
    ("call", "inputs", "types", "shape"),
    [
        (
            contrib("Attention", ["x", "w", "b"], ["a"], num_heads=2),
            {"x": ("n", "s", X)},
            {},
            ("n", "s", X),
        ),
        (
            contrib("SkipLayerNormalization", ["x", "x2", "g"], ["a", "", "", "sum"]),
            {"x": ("n", 3, X), "x2": ("n", 3, X)},
            {},
            ("n", 3, X),
        ),
        (
            contrib("EmbedLayerNormalization", ["ids", "", "we", "pe", "", "g", "g"], ["a", "m"]),
            {"ids": ("n", "s")},
            {"ids": TensorProto.INT32},
            ("n", "s", X),
        ),
        (
            contrib("EmbedLayerNormalization", ["ids", "", "we", "pe", "", "g", "g"], ["a"]),
            {"ids": ("n", "s")},
            {"ids": TensorProto.INT32},
            ("n", "s", X),
        ),
        (
            contrib("GroupQueryAttention", ["x", "k", "k", "", "", "n", "n"], ["a"], num_heads=2),
            {"x": (2, 4, X), "k": (2, 4, X)},
            {},
            (2, 4, X),
        ),
        (
            contrib("GroupQueryAttention", ["x", "", "", "", "", "n", "n"], ["a"], num_heads=2),
            {"x": (2, 4, 3 * X)},
            {},
            None,
        ),
    ],
)
def test_shapes(
    call: NodeProto, inputs: dict[str, tuple[int | str, ...]], types: dict[str, int], shape: object
) -> None:
    assert shape_behind(call, inputs, types) == (
        (None, None) if shape is None else (TensorProto.FLOAT, shape)
    )
