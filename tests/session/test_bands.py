"""Convolutions that run together in bands of rows compute, to the bit, what they do one by one, and
that is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx import provider

pytestmark = pytest.mark.once

F64 = npt.NDArray[np.float64]


def _conv(x: F64, w: F64, b: F64, stride: int, pads: tuple[int, int, int, int], g: int) -> F64:
    """One of any window that is pointwise, or whose groups have one channel, or that has few."""
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    k = w.shape[2]
    oh, ow = ((n - k) // stride + 1 for n in x.shape[2:])
    y = np.zeros((x.shape[0], w.shape[0], oh, ow))
    for i in range(k):
        for j in range(k):
            part = x[:, :, i : i + stride * oh : stride, j : j + stride * ow : stride]
            if g > 1:
                y += part[:, :, :oh, :ow] * w[:, 0, i, j, None, None]
            else:
                y += np.einsum("nchw,oc->nohw", part[:, :, :oh, :ow], w[:, :, i, j])
    return y + b[:, None, None]


class _Stages:
    """A model of convolutions, and its results in float64."""

    def __init__(self, shape: tuple[int, int, int, int], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.standard_normal(shape).astype(np.float32)
        self.now: F64 = self.x.astype(np.float64)
        self.name = "x"
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.was: dict[str, F64] = {"x": self.now}

    def conv(
        self, oc: int, k: int = 1, stride: int = 1,
        pads: tuple[int, int, int, int] = (0, 0, 0, 0), act: str = "", residual: str = "",
    ) -> str:  # fmt: skip
        """oc: 0 for a depthwise one."""
        ic = self.now.shape[1]
        g, oc = (ic, ic) if not oc else (1, oc)
        w = self.rng.standard_normal((oc, ic // g, k, k)).astype(np.float32)
        w /= np.float32(np.sqrt(ic // g * k * k))
        b = self.rng.standard_normal(oc).astype(np.float32)
        n = len(self.nodes)
        self.weights += [numpy_helper.from_array(v, f"{s}{n}") for s, v in (("w", w), ("b", b))]
        attributes = {"strides": [stride] * 2, "pads": pads, "group": g}
        self._node("Conv", [self.name, f"w{n}", f"b{n}"], **attributes)
        self.now = _conv(self.now, w.astype(np.float64), b.astype(np.float64), stride, pads, g)
        if residual:
            self._node("Add", [self.name, residual])
            self.now = self.now + self.was[residual]
        if act == "Silu":
            before = self.name
            self._node("Sigmoid", [before])
            self._node("Mul", [before, self.name])
            self.now = self.now / (1 + np.exp(-self.now))
        elif act:
            self._node(act, [self.name])
            self.now = np.maximum(self.now, 0)
        self.was[self.name] = self.now
        return self.name

    def _node(self, op: str, inputs: list[str], **attributes: Any) -> None:
        self.name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [self.name], **attributes))

    def model(self, dims: list[Any], *more: str) -> onnx.ModelProto:
        outputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)
            for name in (self.name, *more)
        ]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
        graph = helper.make_graph(self.nodes, "bands", [x], outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def check(self, bands: int, threads: int, dims: list[Any] | None = None, *more: str) -> None:
        """How many groups of launches run in bands, and what they compute. more: results."""
        options = {"claim": "all", "num_threads": str(threads)}
        model = self.model(dims or list(self.x.shape), *more).SerializeToString()
        session = provider.create_session(model, options)
        before = provider.stats()["bands"]
        for name, got in zip((self.name, *more), session.run(None, {"x": self.x}), strict=True):
            want = self.was[name]
            np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
        assert provider.stats()["bands"] == before + bands
        assert provider.stats()["claimed_nodes"]


@pytest.mark.parametrize("threads", [1, 3])
def test_wide_then_depthwise_then_narrow(threads: int) -> None:
    """Two images, a residual; sizes that are no multiple of anything."""
    s = _Stages((2, 19, 53, 71), 0)
    s.conv(67, act="Relu")
    s.conv(0, 3, 1, (1, 1, 1, 1), act="Relu")
    s.conv(19, residual="x")
    s.check(1, threads)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("k", "stride", "pads"), [(5, 2, (1, 2, 2, 1)), (3, 2, (0, 0, 1, 1)), (2, 3, (0, 1, 0, 0))]
)
def test_a_window_then_depthwise(
    k: int, stride: int, pads: tuple[int, int, int, int], threads: int
) -> None:
    """The first convolution has windows, too; rows and columns that no window reads; an activation
    that is computed behind the tile.
    """
    s = _Stages((1, 3, 101, 147), 1)
    s.conv(34, 3, 1, (1, 1, 1, 1), act="Silu")
    s.conv(0, k, stride, pads, act="Silu")
    s.check(1, threads)


def test_depthwise_then_narrow_of_unknown_sizes() -> None:
    """The same session: what is between is small first, then large."""
    s = _Stages((1, 48, 97, 103), 2)
    s.conv(0, 3, 1, (1, 1, 1, 1), act="Relu")
    s.conv(0, 3, 1, (1, 1, 1, 1), act="Relu")
    s.conv(24)
    model = s.model(["n", 48, "h", "w"]).SerializeToString()
    session = provider.create_session(model, {"claim": "all", "num_threads": "1"})
    before = provider.stats()["bands"]
    small = session.run(None, {"x": s.x[:, :, :40, :40]})[0]
    assert provider.stats()["bands"] == before
    got = session.run(None, {"x": s.x})[0]
    assert provider.stats()["bands"] == before + 1
    np.testing.assert_allclose(got, s.now, rtol=0, atol=3e-6 * np.abs(s.now).max())
    np.testing.assert_array_equal(small[:, :, :38, :38], got[:, :, :38, :38])


def test_what_is_read_twice_lies_in_the_arena() -> None:
    s = _Stages((1, 16, 60, 80), 3)
    wide = s.conv(96, act="Relu")
    s.conv(0, 3, 1, (1, 1, 1, 1), residual=wide)
    s.conv(16)

    s.check(0, 1, None, wide)
