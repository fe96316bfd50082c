"""Operators that keep keys and values from run to run: MultiHeadAttention and Attention behind a
past, Attention over a cache with lengths, TensorScatter. The provider runs them, and gives what
ONNX Runtime gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.ir.graph import Graph

Arrays = dict[str, np.ndarray[Any, Any]]
B, H, KV, D = 2, 4, 2, 8


def _normal(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _model(op: str, inputs: str, outputs: str, feeds: Arrays, **attrs: Any) -> ModelProto:
    """Sizes of sequences and batches are not known."""
    domain, _, kind = op.rpartition(".")
    node = helper.make_node(
        kind, [n.replace("-", "") for n in inputs.split()], outputs.split(), op, domain=domain,
        **attrs,
    )  # fmt: skip
    infos = []
    for name, x in feeds.items():
        known = x.dtype == np.float32 and name != "bias"
        dims = [
            n if known and (axis == x.ndim - 1 or (x.ndim == 4 and axis == 1)) else f"{name}{axis}"
            for axis, n in enumerate(x.shape)
        ]
        kind_of = helper.np_dtype_to_tensor_dtype(x.dtype)
        infos.append(helper.make_tensor_value_info(name, kind_of, dims))
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs.split()]
    graph = helper.make_graph([node], "g", infos, results)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def _session(m: ModelProto) -> ort.InferenceSession:
    session = provider.create_session(m.SerializeToString(), {"claim": "all"})
    ran = {e.ep_name for e in session.get_provider_graph_assignment_info()}
    assert ran == {provider.PROVIDER_NAME}
    return session


def _agrees(m: ModelProto, cases: list[Arrays], *, onnx_says: bool = False) -> None:
    """onnx_says: not every ONNX Runtime computes it."""
    session = _session(m)
    plain: Any = (
        ReferenceEvaluator(m)
        if onnx_says
        else ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    )
    for feeds in cases:
        for a, b in zip(plain.run(None, feeds), session.run(None, feeds), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("inputs", "attrs"), [
    ("q k v - - - pk pv", {}), ("q k v b - - pk pv", {"unidirectional": 1}),
    ("q k v - - bias pk pv", {"scale": 0.2}), ("q k v - m", {}),
])  # fmt: skip
def test_multi_head_attention(inputs: str, attrs: dict[str, Any]) -> None:
    cases = []
    for past, seq in ((0, 5), (7, 1), (3, 4)):
        past = past if "pk" in inputs else 0
        feeds = {
            **{n: _normal(k, B, seq, H * D) for k, n in enumerate("qkv")},
            **{n: _normal(k, B, H, past, D) for k, n in enumerate(("pk", "pv"), 3)},
            "b": _normal(5, 3 * H * D), "bias": _normal(6, 1, H, seq, past + seq),
            "m": np.tile(np.arange(past + seq) < 3, (B, 1)).astype(np.int32),
        }  # fmt: skip
        cases.append({n: x for n, x in feeds.items() if n in inputs.split()})
    op = "com.microsoft.MultiHeadAttention"
    _agrees(_model(op, inputs, "y key value", cases[0], num_heads=H, **attrs), cases)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize(("inputs", "attrs"), [
    ("q k v - pk pv", {"is_causal": 1}), ("q k v m pk pv", {"scale": 0.3}),
    ("q k v - pk pv", {"softcap": 2.0}),
])  # fmt: skip
def test_attention_behind_a_past(rank: int, inputs: str, attrs: dict[str, Any]) -> None:
    cases = []
    for past, seq in ((0, 5), (7, 1), (3, 4)):
        feeds: Arrays = {
            n: _normal(k, *((B, seq, h * D) if rank == 3 else (B, h, seq, D)))
            for k, (n, h) in enumerate((("q", H), ("k", KV), ("v", KV)))
        }
        feeds |= {n: _normal(k, B, KV, past, D) for k, n in enumerate(("pk", "pv"), 3)}
        if " m " in inputs:
            feeds["m"] = np.random.default_rng(1).random((B, 1, seq, past + seq)) < 0.8
            feeds["m"][..., 0] = True
        cases.append(feeds)
    heads = {"q_num_heads": H, "kv_num_heads": KV} if rank == 3 else {}
    _agrees(_model("Attention", inputs, "y key value", cases[0], **heads, **attrs), cases)


def test_attention_with_lengths() -> None:
    """Against float64: ONNX Runtime 1.24 and the reference of onnx 1.21 do not compute it."""
    shape = {"q": (B, H, 1, D), "k": (B, KV, 9, D), "v": (B, KV, 9, D)}
    feeds: Arrays = {n: _normal(k, *s) for k, (n, s) in enumerate(shape.items())}
    feeds["n"] = np.array([5, 9])
    session = _session(_model("Attention", "q k v - - - n", "y", feeds))
    for seq, lens in ((1, [5, 9]), (4, [9, 1]), (20, [1, 4])):
        feeds |= {"q": _normal(seq, B, H, seq, D), "n": np.array(lens, np.int64)}
        q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
        k, v = (np.repeat(x, H // KV, 1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) * D**-0.5
        weights = np.exp(scores) * (np.arange(9) < feeds["n"][:, None])[:, None, None]
        want = weights @ v / weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("mode", "axis", "at"), [
    ("linear", -2, [3, 0]), ("circular", 1, [5, 2]), ("linear", 1, None),
])  # fmt: skip
def test_writing_into_a_cache(mode: str, axis: int, at: list[int] | None) -> None:
    cache = (B, 7, H, D) if axis == 1 else (B, H, 7, D)
    new = (B, 3, H, D) if axis == 1 else (B, H, 3, D)
    feeds: Arrays = {"c": _normal(0, *cache), "x": _normal(1, *new)}
    if at is not None:
        feeds["at"] = np.array(at, np.int64)
    m = _model("TensorScatter", " ".join(feeds), "y", feeds, mode=mode, axis=axis)
    _agrees(m, [feeds], onnx_says=True)


@pytest.mark.parametrize(("op", "inputs", "outputs", "attrs", "why"), [
    ("com.microsoft.MultiHeadAttention", "q k v - - - p", "y", {"num_heads": H}, "cache of two"),
    ("com.microsoft.MultiHeadAttention", "q k v - - - p p n", "y", {"num_heads": H}, "with room"),
    ("Attention", "q k v - p", "y", {"q_num_heads": H, "kv_num_heads": H}, "cache of two"),
    ("Attention", "q k v", "y a b c", {"q_num_heads": H, "kv_num_heads": H}, "of its scores"),
    ("Attention", "q k v - - - n", "y", {"q_num_heads": H, "kv_num_heads": H, "is_causal": 1},
     "where its queries are"),
])  # fmt: skip
def test_what_no_kernel_computes_is_left(
    op: str, inputs: str, outputs: str, attrs: dict[str, Any], why: str
) -> None:
    feeds: Arrays = {n: _normal(0, B, 3, H * D) for n in "qkv"}
    feeds |= {"p": _normal(1, B, H, 2, D), "n": np.ones(B, np.int64)}
    m = _model(op, inputs, outputs, {n: feeds[n] for n in feeds if n in inputs.split()}, **attrs)
    found = partition_compiler.compile_graph(Graph(m), plan_writer.writer_of({}), everything=True)
    assert why in found.refused[0][1]
