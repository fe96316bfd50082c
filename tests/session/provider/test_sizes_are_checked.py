"""Sizes that only a run knows: what ONNX requires of them is compared before a kernel runs, and the
line names both.

Each request here is one that ONNX Runtime refuses. Without the comparison the provider would read
or write other tensors' memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.ir.graph import Graph

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
Dims = Sequence[int | str]


def model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Dims],
    weights: dict[str, Any],
    outputs: Sequence[str] = ("y",),
    opset: int = 21,
) -> bytes:
    given = [helper.make_tensor_value_info(n, F32, d) for n, d in inputs.items()]
    made = [helper.make_tensor_value_info(n, F32, None) for n in outputs]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    m: ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    )
    return bytes(m.SerializeToString())


def node(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=op.lower(), **attrs)


def normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


#: Name -> (model, shapes that fit, shapes that do not, what the line says).
CASES: dict[str, tuple[bytes, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]], str]] = {
    "groups of frames behind a convolution": (
        model(
            [node("Conv", "x w", "c", pads=[1] * 4), node("Reshape", "c to")],
            {"x": ("n", 3, 8, 8)}, {"w": normal(16, 3, 3, 3), "to": np.array([-1, 8, 16, 8, 8])},
        ),
        {"x": (16, 3, 8, 8)}, {"x": (15, 3, 8, 8)},
         "the elements of Reshape 'reshape', of its result and its input, differ",
    ),
    "a Reshape to known sizes": (
        model([node("Relu", "x", "r"), node("Reshape", "r to")], {"x": ("n", 4)},
        {"to": np.array([6, 4])}),
        {"x": (6, 4)}, {"x": (5, 4)}, "differ: 24 and 20",
    ),
    "features of a linear layer": (
        model([node("MatMul", "x w", "m"), node("Add", "m b")], {"x": ("n", "f")},
        {"w": normal(64, 32), "b": normal(32)}),
        {"x": (3, 64)}, {"x": (3, 8)}, "differ: 8 and 64",
    ),
    "an image flattened for a linear layer": (
        model(
            [node("Relu", "x", "r"), node("Flatten", "r", "f"), node("Gemm", "f w b")],
            {"x": ("n", 8, "h", "w")}, {"w": normal(128, 10), "b": normal(10)},
        ),
        {"x": (2, 8, 4, 4)}, {"x": (2, 8, 1, 1)}, "the inner dims of",
    ),
    "two operands of a run": (
        model([node("MatMul", "a b")], {"a": ("n", "k"), "b": ("j", "m")}, {}),
        {"a": (3, 5), "b": (5, 7)}, {"a": (3, 500), "b": (5, 7)}, "the inner dims of",
    ),
    "parts of a Split": (
        model([node("Relu", "x", "r"), node("Split", "r parts", "p q", axis=1), node("Add", "p q")],
        {"x": (2, "c")}, {"parts": np.array([32, 32])}),
        {"x": (2, 64)}, {"x": (2, 6)}, "the sum of the parts of Split",
    ),
    "an index behind the end": (
        model([node("Relu", "x", "r"), node("Gather", "r at", "g", axis=1), node("Neg", "g")],
        {"x": (4, "c")}, {"at": np.array(900)}),
        {"x": (4, 901)}, {"x": (4, 3)}, "is 3, less than 901",
    ),
    "an image smaller than the window": (
        model([node("Conv", "x w", "c"), node("Relu", "c")], {"x": (1, 3, "h", "w")},
        {"w": normal(16, 3, 7, 7)}),
        {"x": (1, 3, 9, 9)}, {"x": (1, 3, 4, 4)}, "less than 0",
    ),
    "an uneven image for SpaceToDepth": (
        model([node("Relu", "x", "r"), node("SpaceToDepth", "r", blocksize=2)],
        {"x": (1, 3, "h", 8)}, {}),
        {"x": (1, 3, 6, 8)}, {"x": (1, 3, 7, 8)}, "multiple of 2",
    ),
    "sizes of a broadcast": (
        model([node("Add", "a b", "s"), node("Relu", "s")], {"a": (2, "n"), "b": (2, "m")}, {}),
        {"a": (2, 5), "b": (2, 1)}, {"a": (2, 5), "b": (2, 3)}, "the sizes of a broadcast",
    ),
}  # fmt: skip


def session(m: bytes) -> Any:
    made = provider.create_session(m, {"backend": "cpu", "claim": "all"})
    provider.assert_provider_selected(made)
    return made


@pytest.mark.parametrize("case", CASES)
def test_a_size_that_does_not_fit_is_refused(case: str) -> None:
    m, good, bad, line = CASES[case]
    plain, ours = ort.InferenceSession(m, providers=["CPUExecutionProvider"]), session(m)
    feed = {n: normal(*s) for n, s in good.items()}
    np.testing.assert_allclose(
        ours.run(None, feed)[0], plain.run(None, feed)[0], rtol=1e-4, atol=1e-4
    )
    wrong = {n: normal(*s) for n, s in bad.items()}
    with pytest.raises(Exception) as refused:
        plain.run(None, wrong)
    assert str(refused.value)
    with pytest.raises(Exception, match=line) as told:
        ours.run(None, wrong)
    assert "TraceaExecutionProvider" in str(told.value)
    np.testing.assert_allclose(
        ours.run(None, feed)[0], plain.run(None, feed)[0], rtol=1e-4, atol=1e-4
    )


def short_bias(op: str) -> bytes:
    w = normal(64, 3, 1, 1) if op == "Conv" else normal(3, 64, 1, 1)
    return model([node(op, "x w b")], {"x": (1, 3, 4, 4)}, {"w": w, "b": normal(1)})


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_bias_shorter_than_the_channels_is_left_to_onnx_runtime(op: str) -> None:
    compiled = partition_compiler.compile_graph(
        Graph(onnx.load_from_string(short_bias(op))), everything=True
    )
    assert (
        not compiled.entries
        and "the convolution has 64 output channels, and a bias of shape [1]"
        in compiled.refused[0][1]
    )


def test_groups_of_a_norm_share_its_channels() -> None:
    m = model(
        [node("GroupNormalization", "x s b", num_groups=3)],
        {"x": (1, 4, 5)},
        {"s": normal(4), "b": normal(4)},
    )
    with pytest.raises(Exception, match=r"(?i)reshape|group"):
        provider.create_session(m, {"backend": "cpu", "claim": "all"}).run(
            None, {"x": normal(1, 4, 5)}
        )
    compiled = partition_compiler.compile_graph(Graph(onnx.load_from_string(m)), everything=True)
    assert (
        not compiled.entries
        and "the group norm has 4 channels in 3 groups" in compiled.refused[0][1]
    )


def test_a_0_of_a_run_in_the_target_of_reshape_stands_for_the_size_of_the_input() -> None:
    """ONNX Runtime gives (0, 3, 4); what was lowered for the target's own size may not give (0, 3,
    0).
    """
    ends = [
        node("Shape", "x", "n", end=1),
        helper.make_node("Shape", ["z"], ["k"]),
        node("Concat", "n three k", "to", axis=0),
    ]
    source = model(
        [*ends, node("Relu", "x", "r"), node("Reshape", "r to", "t"), node("Neg", "t")],
        {"x": ("n", 3, "m"), "z": ("k",)},
        {"three": np.array([3])},
    )
    session = provider.create_session(source, {"claim": "all"})
    provider.assert_provider_selected(session)
    assert session.run(None, {"x": normal(2, 3, 4), "z": normal(4)})[0].shape == (2, 3, 4)
    with pytest.raises(Exception, match="where 0 stands for the input's, and that differ: 0 and 4"):
        session.run(None, {"x": normal(0, 3, 4), "z": normal(0)})
