"""ONNX's Attention as a single node, which no rule fuses with anything, on the provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tracea_onnx import provider

CASES: dict[str, tuple[int, dict[str, Any], str]] = {
    "heads": (4, {}, ""), "causal": (4, {"is_causal": 1}, ""), "scaled": (4, {"scale": 0.5}, ""), "added": (4, {}, "float"), "hidden": (4, {}, "bool"),
    "flat": (3, {"q_num_heads": 4, "kv_num_heads": 2}, "bool"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_as_onnx_runtime(case: str) -> None:
    rank, attrs, mask = CASES[case]
    rng = np.random.default_rng(0)
    heads, kv, size, queries, keys = 4, 2 if rank == 3 else 4, 8, 5, 5 if "is_causal" in attrs else 7
    shapes = {n: (2, c, s, size) if rank == 4 else (2, s, c * size) for n, c, s in (("q", heads, queries), ("k", kv, keys), ("v", kv, keys))}
    data: dict[str, Any] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if mask:
        data["m"] = rng.random((2, 1, queries, keys)) > 0.3 if mask == "bool" else rng.standard_normal((queries, keys)).astype(np.float32)
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), ["b" if a.ndim > 2 else a.shape[0], *a.shape[1:]]) for n, a in data.items()
    ]
    node = helper.make_node("Attention", [*data], ["y"], **attrs)
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11).SerializeToString()
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)
    session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    assert all(p.ep_name == provider.PROVIDER_NAME for p in session.get_provider_graph_assignment_info())
    np.testing.assert_allclose(session.run(None, data)[0], want[0], rtol=1e-4, atol=1e-5)
