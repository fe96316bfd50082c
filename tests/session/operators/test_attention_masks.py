"""Masks that are scaled or subtracted, rows with nothing left to see, scores that are capped or
have factors for each head, on the provider: ONNX Runtime's own results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto

from tests.host.rules.attention.attention_graphs import B, D, F, H, Net, T
from tests.session.test_few_launches import run
from tracea_onnx.compiler import plan_writer

LOWEST = np.finfo(F).min


def graph(kind: str) -> ModelProto:
    n = Net(q=(B, H, T, D), k=(B, H, D, T), v=(B, H, T, D), keep=(B, 1, T, T))
    n.types["keep"] = TensorProto.BOOL
    if kind == "operator":
        m = n.model(
            n.add("Attention", "q", n.add("Transpose", "k", perm=[0, 1, 3, 2]), "v", "keep"),
            opset=23,
        )
        m.ir_version = 10
        return m
    s = n.add("MatMul", "q", "k")
    if kind == "causal":  # two masks that write finite numbers
        s = n.add("Where", n.const(np.tri(T, dtype=bool)[None, None]), s, n.const(F(LOWEST)))
        s = n.add("Add", s, n.add("Where", "keep", n.const(F(0)), n.const(F(LOWEST))))
    elif kind == "capped":
        s = n.add("Mul", n.add("Tanh", n.add("Div", s, n.const(F(1.5)))), n.const(F(1.5)))
        s = n.add("Where", "keep", s, n.const(F(LOWEST)))
    elif kind == "factors":
        s = n.add("Mul", s, n.const(np.linspace(0.3, 2, H).astype(F).reshape(1, H, 1, 1)))
        s = n.add("Where", "keep", s, n.const(F(LOWEST)))
    elif kind == "three":
        n.inputs |= {"bias": (1, H, T, T), "keys": (B, 1, 1, T)}
        s = n.add("Sub", n.add("Add", s, "bias"), "keys")
        s = n.add("Where", "keep", s, n.const(F(LOWEST)))
    else:
        n.inputs["bias"] = (1, H, T, T)
        s = (
            n.add("Sub", s, "bias")
            if kind == "subtracted"
            else n.add("Div", n.add("Add", s, "bias"), n.const(F(4)))
        )
        s = n.add("Where", "keep", s, n.const(F(LOWEST)))
    return n.model(n.add("MatMul", n.add("Softmax", s, axis=-1), "v"))


@pytest.mark.parametrize(
    "kind", ["scaled", "subtracted", "causal", "operator", "capped", "factors", "three"]
)
def test_masks(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, rng = graph(kind), np.random.default_rng(4)
    data: dict[str, Any] = {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(F)
        for i in model.graph.input
    }
    data["keep"] = data["keep"] > 0
    data["keep"][0, :, :3] = False
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, data)
    # zeros where nothing is left to see: ONNX Runtime's own since some version after 1.24, which
    # averages
    if kind == "operator":
        want = np.where(data["keep"].any(-1, keepdims=True), want, F(0))
    (got,), launches = run(model, data, plan_writer.writer_of({}), monkeypatch, tmp_path)
    assert "attention" in launches
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cleaned", ["NaN", "masked"])
@pytest.mark.parametrize("rows", [1, T])
def test_scores_that_are_not_numbers(
    cleaned: str, rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A NaN in a query makes its row of scores NaN.

    Where the graph cleans up every NaN the row is 0; where it clears what the mask hid the row
    stays NaN.
    """
    n = Net(q=(B, H, rows, D), k=(B, H, D, T), v=(B, H, T, D), keep=(B, 1, rows, T))
    n.types["keep"] = TensorProto.BOOL
    p = n.add(
        "Softmax", n.add("Where", "keep", n.add("MatMul", "q", "k"), n.const(F(-np.inf))), axis=-1
    )
    p = (
        n.add("Where", n.add("IsNaN", p), n.const(F(0)), p)
        if cleaned == "NaN"
        else n.add("Where", "keep", p, n.const(F(0)))
    )
    model, rng = n.model(n.add("MatMul", p, "v")), np.random.default_rng(4)
    data: dict[str, Any] = {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(F)
        for i in model.graph.input
    }
    data["keep"] = np.ones((B, 1, rows, T), bool)
    data["q"][0, 0, 0, 0], data["q"][-1, -1, -1, 1] = np.nan, np.inf
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, data)
    (got,), launches = run(model, data, plan_writer.writer_of({}), monkeypatch, tmp_path)
    assert "attention" in launches and np.isnan(want).any() == (cleaned == "masked")
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
