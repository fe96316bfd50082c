"""Pad of old operator sets has its value as an fp32 attribute, whatever it pads."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.host.lowering.test_pooled import CUDA, Launch, Recorded
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.ir.graph import Graph


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("value", [2.0, -0.1])
def test_the_value_has_the_type_of_the_elements(dtype: type, value: float) -> None:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    pad = helper.make_node("Pad", ["x"], ["y"], mode="constant", pads=[0, 1, 2, 0], value=value)
    graph = helper.make_graph(
        [pad],
        "g",
        [helper.make_tensor_value_info("x", element, [3, 4])],
        [helper.make_tensor_value_info("y", element, None)],
    )
    seen: list[Launch] = []
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)
    partition_compiler.compile_graph(
        Graph(model),
        plan_writer.Writer(CUDA, lambda name, probe: Recorded(name, [] if probe else seen)),
        everything=True,
    )
    ints = next(ints for family, ints in seen if family == "pad")
    assert ints["elem"] == np.dtype(dtype).itemsize
    assert (
        np.asarray(ints["value"], np.int64).tobytes()[: np.dtype(dtype).itemsize]
        == np.asarray(value, dtype).tobytes()
    )
