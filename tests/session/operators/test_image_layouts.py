"""Images that are turned, joined, shuffled and cut where launches cost: same results as ONNX
Runtime's, and nothing moves that need not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.session.test_few_launches import FEW, run
from tracea_onnx.compiler import plan_writer
from tracea_onnx.pipeline import optimizer

_RNG = np.random.default_rng(7)
#: Into another order of axes; a `copy_nhwc` may also make room for a border.
_MOVES = ("copy", "copies", "nchw_to_nhwc", "nhwc_to_nchw")


class Graph:
    """Nodes over float tensors, written in order."""

    def __init__(self, channels: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.channels = channels

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(
            helper.make_node(kind, list(inputs), [f"v{len(self.nodes)}"], **attributes)
        )
        return f"v{len(self.nodes) - 1}"

    def constant(self, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return f"w{len(self.weights) - 1}"

    def weight(self, *shape: int) -> str:
        return self.constant(
            _RNG.standard_normal(shape).astype(np.float32)
            / np.float32(np.sqrt(max(1, int(np.prod(shape[1:])))))
        )

    def conv(self, x: str, n_in: int, n_out: int, kernel: int = 1, group: int = 1) -> str:
        return self.op(
            "Conv",
            x,
            self.weight(n_out, n_in // group, kernel, kernel),
            pads=[kernel // 2] * 4,
            group=group,
        )

    def model(self, y: str) -> ModelProto:
        x = helper.make_tensor_value_info("x", 1, ["n", self.channels, 6, 7])
        graph = helper.make_graph(
            self.nodes, "g", [x], [helper.make_tensor_value_info(y, 1, None)], self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def convnext(g: Graph) -> str:
    """Depthwise convolution -> tokens -> norm, product -> image, twice."""
    y = g.conv("x", 16, 32, 3)
    for _ in range(2):
        t = g.op("Transpose", g.conv(y, 32, 32, 3, 32), perm=[0, 2, 3, 1])
        t = g.op("LayerNormalization", t, g.weight(32), g.weight(32), axis=-1)
        y = g.op("Transpose", g.op("Gelu", g.op("MatMul", t, g.weight(32, 32))), perm=[0, 3, 1, 2])
    return g.conv(y, 32, 16)


def tokens(g: Graph) -> str:
    """Rows of tokens that become an image for one convolution."""
    t = g.op(
        "Transpose",
        g.op("Reshape", g.conv("x", 16, 32, 3), g.constant(np.asarray([0, 32, 42]))),
        perm=[0, 2, 1],
    )
    t = g.op("MatMul", t, g.weight(32, 48))
    y = g.op("Reshape", g.op("Transpose", t, perm=[0, 2, 1]), g.constant(np.asarray([0, 48, 6, 7])))
    y = g.conv(y, 48, 48, 3, 48)
    return g.op(
        "Relu",
        g.op("Transpose", g.op("Reshape", y, g.constant(np.asarray([0, 48, 42]))), perm=[0, 2, 1]),
    )


def dense(nested: bool) -> Callable[[Graph], str]:
    def build(g: Graph) -> str:
        """Every layer reads all images before it; `nested`: as a concatenation of the one before
        and the newest.
        """
        parts, whole, width = (
            [g.op("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
            "",
            16,
        )
        for k in range(4):
            read = (
                parts[0]
                if k == 0
                else g.op("Concat", whole, parts[-1], axis=1)
                if nested and k > 1
                else g.op("Concat", *parts, axis=1)
            )
            bn = g.op(
                "BatchNormalization",
                read,
                g.weight(width),
                g.weight(width),
                g.weight(width),
                g.constant(np.full(width, 0.7, np.float32)),
            )
            parts.append(g.conv(g.op("Relu", bn), width, 32, 3))
            whole, width = read, width + 32
        return g.conv(g.op("Concat", *parts, axis=1), width, 16)

    return build


def shuffle(half: int) -> Callable[[Graph], str]:
    def build(g: Graph) -> str:
        """Two branches, joined, their channels shuffled, and cut in half again."""
        y = g.conv("x", 16, 2 * half)
        for _ in range(2):
            a, b = (
                g.op(
                    "Slice",
                    y,
                    *(g.constant(np.asarray([i])) for i in (k * half, (k + 1) * half, 1)),
                )
                for k in range(2)
            )
            y = g.op("Concat", a, g.op("Relu", g.conv(b, half, half, 3)), axis=1)
            y = g.op(
                "Transpose",
                g.op("Reshape", y, g.constant(np.asarray([0, 2, half, 6, 7]))),
                perm=[0, 2, 1, 3, 4],
            )
            y = g.op("Reshape", y, g.constant(np.asarray([0, 2 * half, 6, 7])))
        return g.conv(y, 2 * half, 16)

    return build


CASES: dict[str, tuple[Callable[[Graph], str], dict[str, int]]] = {
    "convnext": (convnext, {"nchw_to_nhwc": 1, "nhwc_to_nchw": 1}),
    "tokens": (tokens, {"nchw_to_nhwc": 1}),
    "dense": (dense(nested=False), {"nchw_to_nhwc": 1, "nhwc_to_nchw": 1}),
    "dense nested": (dense(nested=True), {"nchw_to_nhwc": 1, "nhwc_to_nchw": 1}),
    "shuffle 32": (shuffle(32), {"nchw_to_nhwc": 1, "nhwc_to_nchw": 1, "copy": 2}),
    "shuffle 20": (shuffle(20), {"nchw_to_nhwc": 1, "nhwc_to_nchw": 1, "copy": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_images_stay_where_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build, most = CASES[name]
    g = Graph(16)
    model = g.model(build(g))
    x = {"x": _RNG.standard_normal((3, 16, 6, 7), dtype=np.float32)}
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, x)
    (got,), launches = run(model, x, FEW, monkeypatch, tmp_path)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert {k: launches.count(k) for k in _MOVES if k in launches} == most


def text(g: Graph) -> str:
    """A convolution over rows of tokens, as exporters without one over one dim spell it."""
    rows = g.op("Reshape", "x", g.constant(np.asarray([0, 42, 16])))
    t = g.op("Transpose", g.op("MatMul", rows, g.weight(16, 32)), perm=[0, 2, 1])
    y = g.op("Unsqueeze", t, g.constant(np.asarray([2])))
    y = g.op("Conv", y, g.weight(48, 32, 1, 3))
    y = g.op("Add", g.op("Squeeze", y, g.constant(np.asarray([2]))), g.weight(48, 1))
    return g.op("Gelu", g.op("Transpose", y, perm=[0, 2, 1]))


def channels_last(g: Graph) -> str:
    """Convolutions between Transposes, as of TensorFlow's."""
    y = "x"
    for n_in, n_out in ((7, 32), (32, 32)):
        y = g.conv(g.op("Transpose", y, perm=[0, 3, 1, 2]), n_in, n_out, 3)
        y = g.op("Relu", g.op("Add", g.op("Transpose", y, perm=[0, 2, 3, 1]), g.weight(n_out)))
    return y


@pytest.mark.parametrize(
    ("build", "most"),
    [
        (text, {}),
        (channels_last, {"copy_nhwc": 1}),
        (convnext, {"nchw_to_nhwc": 1, "copy_nhwc": 1, "nhwc_to_nchw": 1}),
    ],
)
def test_on_the_cpu_images_are_read_where_they_lie(
    build: Callable[[Graph], str],
    most: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Other than to make room for a border, and where NCHW comes in or goes out."""
    g = Graph(16)
    model = g.model(build(g))
    x = {"x": _RNG.standard_normal((3, 16, 6, 7), dtype=np.float32)}
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, x)
    (got,), launches = run(model, x, plan_writer.writer_of({}), monkeypatch, tmp_path)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert {k: launches.count(k) for k in (*_MOVES, "copy_nhwc") if k in launches} == most


@pytest.mark.parametrize(
    ("times", "kernel", "more", "family"),
    [
        (2, 3, {}, "conv2d_dw"),
        (5, 5, {"strides": [2, 2]}, "conv2d_dw"),
        (8, 3, {"dilations": [2, 1]}, "conv2d_dw"),
        (9, 3, {}, "conv2d"),
    ],
)
def test_several_filters_of_each_channel(
    times: int, kernel: int, more: dict[str, Any], family: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    g, channels = Graph(7), 7
    w = g.weight(channels * times, 1, kernel, kernel)
    y = g.op("Conv", "x", w, g.weight(channels * times), group=channels, pads=[1, 2, 0, 3], **more)
    model = g.model(g.op("Relu", y))
    x = {"x": _RNG.standard_normal((3, channels, 6, 7), dtype=np.float32)}
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, x)
    (got,), launches = run(model, x, plan_writer.writer_of({}), monkeypatch, tmp_path)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert [k for k in launches if k.startswith("conv2d")] == [family]


@pytest.mark.parametrize("backend", [plan_writer.writer_of({}), FEW])
@pytest.mark.parametrize("steps", ["Mul", "Add", "Mul Add", "Add Mul", "Mul Mul"])
def test_factors_and_sums_per_channel_go_into_the_weights(
    steps: str, backend: plan_writer.Writer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a TensorFlow model has where its BatchNormalization was folded, with a residual and an
    activation behind it.
    """
    g = Graph(16)
    y = g.op("Conv", "x", g.weight(16, 16, 3, 3), g.weight(16), pads=[1] * 4)
    for k, step in enumerate(steps.split()):
        y = g.op(step, *((y, g.weight(1, 16, 1, 1)) if k else (g.weight(16, 1, 1), y)))
    model = g.model(g.op("Relu", g.op("Add", y, "x")))
    x = {"x": _RNG.standard_normal((3, 16, 6, 7), dtype=np.float32)}
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, x)
    (got,), launches = run(
        optimizer.optimize(model, backend="cpu").model, x, backend, monkeypatch, tmp_path
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert "pointwise_nhwc" not in launches
