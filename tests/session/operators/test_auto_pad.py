"""auto_pad where windows leave pixels out: ONNX Runtime cuts them off where ONNX pads by nothing,
and the provider follows it.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx import provider


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(40, 1, 5), (13, 2, 7), (9, 1, 4), (40, 3, 5), (10, 3, 2)]
)
def test_same_as_onnx_runtime(auto_pad: str, size: int, kernel: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (
        rng.standard_normal((2, 8, 4, size)).astype(np.float32),
        rng.standard_normal((5, 8, 3, kernel)).astype(np.float32),
    )
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=auto_pad, strides=[1, stride])
    given, made = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    )
    graph = helper.make_graph([node], "g", [given], [made], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9
    ).SerializeToString()
    want = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    session = provider.create_session(model, {"backend": "cpu", "claim": "all"})
    ours = sum(
        len(p.get_nodes())
        for p in session.get_provider_graph_assignment_info()
        if p.ep_name == provider.PROVIDER_NAME
    )
    leaves_out = (-(-size // stride) - 1) * stride + kernel < size
    assert ours == int(not leaves_out)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], want[0], rtol=1e-4, atol=1e-5)
