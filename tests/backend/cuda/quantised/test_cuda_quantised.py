"""Quantisation in pointwise programs of CUDA: their text computes on the host what ONNX says, bit
for bit, and sessions leave it to others but for `claim=all`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import kernels_of, request
from tests.golden.record import gpu, sources_for_cubins
from tests.gpu.cases import quantised
from tests.support.cuda.case import Case, poisoned
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.ir.graph import Graph


def _cases() -> list[Case]:
    """Of seven columns and of a thousand."""
    made = [
        *quantised.quantise(np.random.default_rng(1)),
        *quantised.chain(np.random.default_rng(1)),
    ]
    return [c for c in made if c.name.endswith((" 7", " 1031"))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("c", [pytest.param(c, id=c.name) for c in _cases()])
def test_bits_are_those_of_onnx(c: Case, tmp_path: Path) -> None:
    names = (*c.operands, *c.outputs)
    (kernel,) = kernels_of(request(c.family, c.dtype, c.ints, None, c.program, names))
    assert "__fadd_rn" in kernel.source and " * r" not in kernel.source
    places = {k: cuda_host.aligned(v) for k, v in c.operands.items()}
    y = cuda_host.aligned(poisoned(c.outputs["y"].count, c.outputs["y"].dtype))
    cuda_host.run(kernel, {**places, "y": y}, tmp_path)
    assert c.outputs["y"].error(y) == 0


@pytest.mark.parametrize("everything", [False, True])
def test_claims(everything: bool) -> None:
    stored = {"s": np.float32(0.05), "z": np.uint8(3)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
        helper.make_node("Relu", ["f"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["y"]),
        helper.make_node("DynamicQuantizeLinear", ["r"], ["d", "scale", "zero"]),
    ]
    outputs = {"y": 2, "d": 2, "scale": 1, "zero": 2}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, ["m", 40])],
        [helper.make_tensor_value_info(k, t, None) for k, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with sources_for_cubins():
        found = compile_graph(Graph(model), gpu(90, 132), everything=everything)
    claimed = sum(len(names) for names, *_ in found.entries)
    assert (claimed, len(found.refused)) == (4, 0), found.refused
