"""Convolution and pooling over three spatial dims, where a launch costs more than some memory
traffic (the GPU's way), run by the CPU's kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.session.test_few_launches import FEW, run

_RNG = np.random.default_rng(11)


def chain(
    shape: tuple[int, ...],
    *ops: tuple[str, tuple[int, ...], dict[str, Any]],
    symbolic: bool = False,
) -> ModelProto:
    """Operators one after the other: type, shape of the weight if it has one, attributes."""
    nodes, weights = [], []
    for k, (kind, weight, attrs) in enumerate(ops):
        inputs = ["x" if k == 0 else f"v{k}"]
        if weight:
            w = _RNG.standard_normal(weight).astype(np.float32) / np.float32(
                np.sqrt(np.prod(weight[1:]))
            )
            weights += [
                numpy_helper.from_array(w, f"w{k}"),
                numpy_helper.from_array(
                    _RNG.standard_normal(weight[0]).astype(np.float32), f"b{k}"
                ),
            ]
            inputs += [f"w{k}", f"b{k}"]
        nodes.append(helper.make_node(kind, inputs, [f"v{k + 1}"], **attrs))
    x = helper.make_tensor_value_info(
        "x", 1, ["n", shape[1], "d", *shape[3:]] if symbolic else shape
    )
    graph = helper.make_graph(
        nodes, "g", [x], [helper.make_tensor_value_info(f"v{len(ops)}", 1, None)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def conv(*weight: int, **attrs: Any) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    return "Conv", weight, attrs


RELU: tuple[str, tuple[int, ...], dict[str, Any]] = ("Relu", (), {})
CASES: dict[
    str, tuple[tuple[int, ...], tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...]]
] = {
    "padded": (
        (2, 3, 5, 9, 8),
        (conv(16, 3, 3, 3, 3, pads=[1] * 6), RELU, conv(20, 16, 3, 3, 3, pads=[1] * 6)),
    ),
    "strided": (
        (1, 5, 9, 11, 13),
        (conv(8, 5, 3, 5, 3, strides=[2, 1, 3], pads=[1, 2, 0, 0, 1, 1], dilations=[2, 1, 1]),),
    ),
    "planes, then depths": (
        (2, 4, 6, 8, 9),
        (
            conv(16, 4, 1, 3, 3, pads=[0, 1, 1, 0, 1, 1]),
            RELU,
            conv(16, 16, 3, 1, 1, pads=[1, 0, 0, 1, 0, 0]),
        ),
    ),
    "one by one": (
        (2, 16, 3, 4, 5),
        (conv(24, 16, 1, 1, 1), conv(8, 24, 1, 1, 1, strides=[2, 2, 2])),
    ),
    "groups": (
        (1, 12, 5, 7, 7),
        (
            conv(12, 4, 3, 3, 3, group=3, auto_pad="SAME_UPPER", strides=[2, 2, 2]),
            conv(12, 1, 3, 3, 3, group=12, pads=[1] * 6),
        ),
    ),
    "pooled": (
        (2, 6, 7, 9, 8),
        (
            (
                "MaxPool",
                (),
                {"kernel_shape": [3, 2, 3], "strides": [2, 2, 1], "pads": [1, 0, 1, 1, 1, 1]},
            ),
            conv(9, 6, 2, 2, 2),
        ),
    ),
    "means": (
        (2, 6, 7, 9, 8),
        (
            (
                "AveragePool",
                (),
                {"kernel_shape": [2, 3, 3], "strides": [2, 2, 2], "pads": [1, 1, 0, 0, 1, 1]},
            ),
        ),
    ),
    "means of zeros": (
        (1, 9, 6, 5, 8),
        (
            (
                "AveragePool",
                (),
                {"kernel_shape": [3, 3, 2], "pads": [1, 1, 1, 1, 1, 0], "count_include_pad": 1},
            ),
        ),
    ),
    "ceil": (
        (1, 5, 8, 9, 6),
        (
            (
                "MaxPool",
                (),
                {
                    "kernel_shape": [3, 3, 3],
                    "strides": [2, 2, 2],
                    "ceil_mode": 1,
                    "dilations": [1, 1, 2],
                },
            ),
        ),
    ),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_volumes(
    name: str, symbolic: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shape, ops = CASES[name]
    if symbolic and any("auto_pad" in attrs for _, _, attrs in ops):
        pytest.skip("its padding depends on the depth")
    model = chain(shape, *ops, symbolic=symbolic)
    x = {"x": _RNG.standard_normal(shape, dtype=np.float32)}
    (want,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, x)
    (got,), launches = run(model, x, FEW, monkeypatch, tmp_path)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    kinds = [kind for kind, _, _ in ops]
    assert sum(k.startswith(("conv2d", "gemm")) for k in launches) == kinds.count("Conv")
    assert launches.count("pool2d") == 2 * sum(k.endswith("Pool") for k in kinds)
