"""GroupQueryAttention over a cache, in place or copied: the provider runs it, and gives what ONNX
Runtime gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.ir.graph import Graph

Arrays = dict[str, np.ndarray[Any, Any]]
H, KV, D = 6, 2, 16
INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "lens", "total"),
    *("cos", "sin", "pos", "bias", "sink"),
)


def _model(feeds: Arrays, weights: Arrays, kv: int, **attrs: Any) -> ModelProto:
    """The total length is the size of an axis of `mask`, as model builders write it."""
    given = {**feeds, **weights, "total": None}
    names = [n if n in given else "" for n in INPUTS]
    while not names[-1]:
        names.pop()
    axis = numpy_helper.from_array(np.array(1, np.int64), "axis")
    nodes = [
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["wide"], axis=0),
        helper.make_node("Cast", ["wide"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            names,
            ["y", "present_key", "present_value"],
            "gqa",
            domain="com.microsoft",
            num_heads=H,
            kv_num_heads=kv,
            **attrs,
        ),
    ]
    known = {"query": 2, "key": 2, "value": 2}
    infos = []
    for name, x in feeds.items():
        dims: list[int | str] = [f"{name}{k}" for k in range(x.ndim)]
        if name in known:
            dims[2] = x.shape[2]
        if name.startswith("past"):
            dims = ["batch", kv, "past", D]
        infos.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), dims)
        )
    results = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
        for n in ("y", "present_key", "present_value")
    ]
    constants = [axis, *(numpy_helper.from_array(v, k) for k, v in weights.items())]
    graph = helper.make_graph(nodes, "g", infos, results, constants)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )


def _feeds(
    lens: list[int], seq: int, room: int, *, kv: int = KV, packed: bool = False, seed: int = 0
) -> Arrays:
    """lens: of each row with its new tokens. room: of the cache."""
    rng, b, total = np.random.default_rng(seed), len(lens), max(lens)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape, dtype=np.float32)

    feeds: Arrays = {"mask": np.ones((b, total), np.int64), "query": normal(b, seq, H * D)}
    feeds |= {name: normal(b, seq, kv * D) for name in ("key", "value")}
    if packed:
        feeds["query"] = np.concatenate([feeds.pop(n) for n in INPUTS[:3]], axis=2)
    feeds |= {name: normal(b, kv, room, D) for name in ("past_key", "past_value")}
    return {**feeds, "lens": np.array(lens, np.int32) - 1}


def _tables(width: int, rows: int = 40) -> Arrays:
    angles = np.random.default_rng(9).uniform(0, 6, (rows, width)).astype(np.float32)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


def _in_place(session: ort.InferenceSession, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    """A run whose new cache has the memory of the old one."""
    bound, held = session.io_binding(), {k: v.copy() for k, v in feeds.items()}
    values = {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in held.items()}
    for k, v in values.items():
        bound.bind_ortvalue_input(k, v)
    bound.bind_output("y")
    for k in ("key", "value"):
        bound.bind_ortvalue_output(f"present_{k}", values[f"past_{k}"])
    session.run_with_iobinding(bound)
    return [v.numpy().copy() for v in bound.get_outputs()]


def _agrees(
    cases: Sequence[Arrays], weights: Arrays | None = None, *, kv: int = KV, **attrs: Any
) -> None:
    """In one session; of rows that are shorter than others, what belongs to a token."""
    m = _model(cases[0], weights or {}, kv, **attrs).SerializeToString()
    session = provider.create_session(m, {"claim": "all"})
    ran = {e.ep_name for e in session.get_provider_graph_assignment_info()}
    assert ran == {provider.PROVIDER_NAME}
    plain = ort.InferenceSession(m, providers=["CPUExecutionProvider"])
    for feeds in cases:
        runs = [(plain.run(None, feeds), session.run(None, feeds))]
        if feeds["mask"].shape[1] <= feeds["past_key"].shape[2]:
            runs.append((_in_place(plain, feeds), _in_place(session, feeds)))
        for want, got in runs:
            for a, b in zip(want, got, strict=True):
                assert a.shape == b.shape
                for x, y, last in zip(a, b, feeds["lens"], strict=True):
                    kept = (..., slice(last + 1), slice(None))
                    np.testing.assert_allclose(y[kept], x[kept], rtol=1e-4, atol=2e-5)


#: Lengths of rows with their new tokens, how many these are, and the room of the cache: a prompt,
#: then steps of one token or several.
STEPS = [
    ([1], 1, 0), ([13], 13, 0), ([31], 31, 40), ([8], 1, 7), ([8], 1, 8), ([7, 3], 1, 23),
    ([11], 4, 16), ([11], 4, 7), ([9, 4, 1], 9, 12),
]  # fmt: skip


@pytest.mark.parametrize("attrs", [
    {}, {"scale": 0.3}, {"softcap": 1.5}, {"local_window_size": 3}, {"smooth_softmax": 1},
    {"local_window_size": 1, "softcap": 0.7, "smooth_softmax": 1},
], ids=str)  # fmt: skip
def test_steps(attrs: dict[str, Any]) -> None:
    _agrees([_feeds(*step) for step in STEPS], **attrs)


@pytest.mark.parametrize(("packed", "interleaved"), [(False, 1), (True, 0)])
def test_rotated(packed: bool, interleaved: int) -> None:
    cases = [_feeds(*step, packed=packed) for step in STEPS]
    _agrees(cases, _tables(D // 2), do_rotary=1, rotary_interleaved=interleaved)


@pytest.mark.parametrize("kv", [1, 6])
def test_shared_heads(kv: int) -> None:
    cases = [_feeds([300], 1, 310, kv=kv), _feeds([300], 300, 310, kv=kv)]
    _agrees(cases, kv=kv, local_window_size=270)


@pytest.mark.parametrize("rotated", [0, 1])
def test_biases_sinks_and_positions(rotated: int) -> None:
    cases = [_feeds([9], 9, 24), _feeds([21, 4], 1, 24)]
    for feeds in cases:
        (_, seq, _), total = feeds["query"].shape, feeds["mask"].shape[1]
        feeds["bias"] = np.random.default_rng(1).standard_normal((1, H, seq, total), np.float32)
        if rotated:
            feeds["pos"] = feeds["lens"][:, None] + np.arange(4 - seq, 4, dtype=np.int64)
    weights = {"sink": np.linspace(-1, 2, H, dtype=np.float32)}
    if rotated:
        weights |= _tables(D // 2)
    _agrees(cases, weights, do_rotary=rotated, local_window_size=5)


@pytest.mark.parametrize(("attrs", "lens", "why"), [
    ({"qk_output": 1}, [3], "a result of its scores"),
    ({"local_window_size": 0}, [3], "a window of no keys"),
    ({}, [3], "does not follow from the shapes"),
])  # fmt: skip
def test_what_no_kernel_computes_is_left(attrs: dict[str, Any], lens: list[int], why: str) -> None:
    m = _model(_feeds(lens, 1, 4), {}, KV, **attrs)
    if not attrs:  # a total length that is an input
        del m.graph.node[:3]
        total = helper.make_tensor_value_info("total", TensorProto.INT32, [])
        m.graph.input.append(total)
    plan = plan_writer.writer_of({})
    found = partition_compiler.compile_graph(Graph(m), plan, everything=True)
    ((node, reason),) = [(n.name, r) for n, r in found.refused if n.name == "gqa"]
    assert node == "gqa" and why in reason
