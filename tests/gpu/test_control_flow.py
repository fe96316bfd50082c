"""If, Loop and Scan on a GPU: ONNX Runtime runs bodies, and values stay on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from tests.gpu.gpu import Gpu
from tests.support.cuda.models import NVIDIA
from tracea_onnx import provider

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def device(gpu: Gpu) -> None:
    if gpu.only_compile:
        pytest.skip("runs sessions")


LAYER = "m = MatMul (a, w)  b = Add (m, x)"
MODELS = {
    "Loop": f"""
        g (float[n, 96] x, float[96, 96] w, int64 times, bool go)
            => (float[n, 96] y, float[times, n, 96] each)
        {{
          s = Tanh (x)
          v, each = Loop (times, go, s) <body = step (int64 i, bool c, float[n, 96] a)
              => (bool d, float[n, 96] next, float[n, 96] t) {{
            d = Identity (c)  {LAYER}  next = Tanh (b)  t = Sigmoid (b) }}>
          y = MatMul (v, w)
        }}""",
    "Scan": f"""
        g (float[n, 96] x, float[96, 96] w, float[times, n, 96] rows)
            => (float[n, 96] y, float[times, n, 96] each)
        {{
          s = Tanh (x)
          v, each = Scan <num_scan_inputs = 1, body = step (float[n, 96] a, float[n, 96] r)
              => (float[n, 96] next, float[n, 96] t) {{
            {LAYER}  next = Tanh (b)  t = Mul (b, r) }}> (s, rows)
          y = MatMul (v, w)
        }}""",
    # as TorchScript writes a squeeze: light nodes alone (of a known size a branch is constant)
    "If of a size": """
        g (float[rows, 96] x, float[96, 96] w) => (float[k, 96] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}>
        {
          m = MatMul (x, w)
          s = Shape (m)
          n = Gather (s, zero)
          c = Equal (n, one)
          v = If (c) <then_branch = then () => (float[1, 96] u) {
              q = Squeeze (m, axis)  u = Unsqueeze (q, axis) },
            else_branch = other () => (float[rows, 96] o) { o = Identity (m) }>
          y = MatMul (v, w)
        }""",
    "If": f"""
        g (float[n, 96] x, float[96, 96] w, bool go) => (float[n, 96] y)
        {{
          a = Tanh (x)
          v = If (go) <then_branch = then () => (float[n, 96] u) {{ {LAYER}  u = Tanh (b) }},
                       else_branch = other () => (float[n, 96] o) {{ o = MatMul (a, w) }}>
          y = MatMul (v, w)
        }}""",
}


@pytest.mark.parametrize("name", MODELS)
def test_on_the_device(name: str) -> None:
    """Other sizes, counts and branches in turn; three runs of each record a graph and replay it."""
    data = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> {MODELS[name]}'
    ).SerializeToString()
    plain = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    session = provider.create_session(data, {"device_id": "0"})
    op = name.split()[0]
    assert op in provider.assigned_nodes(session)
    rng = np.random.default_rng(0)
    for n, times, go in ((3, 4, True), (17, 1, False), (3, 4, True), (1, 9, True)):
        rows = 1 if name == "If of a size" else n
        values: dict[str, Any] = {
            "x": rng.standard_normal((rows, 96)), "w": rng.standard_normal((96, 96)) / 10,
            "rows": rng.standard_normal((times, n, 96)),
        }  # fmt: skip
        given = {k: v.astype(np.float32) for k, v in values.items()}
        given |= {"times": np.array(times), "go": np.array(go or op != "If")}
        fed = {i.name: given[i.name] for i in plain.get_inputs()}
        want = plain.run(None, fed)
        binding = session.io_binding()
        for i, x in fed.items():
            if x.ndim:
                binding.bind_ortvalue_input(
                    i, ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0, NVIDIA)
                )
            else:
                binding.bind_cpu_input(i, x)
        results = [
            ort.OrtValue.ortvalue_from_shape_and_type(list(w.shape), np.float32, "gpu", 0, NVIDIA)
            for w in want
        ]
        for o, value in zip(session.get_outputs(), results, strict=True):
            binding.bind_ortvalue_output(o.name, value)
        for _ in range(3):
            session.run_with_iobinding(binding)
            for got, w in zip(results, want, strict=True):
                np.testing.assert_allclose(got.numpy(), w, rtol=1e-4, atol=1e-4)
        for got, w in zip(session.run(None, fed), want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-4, atol=1e-4)
