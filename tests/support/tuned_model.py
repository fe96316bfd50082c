"""A model whose launches have kernels to choose from on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Kinds of launch with a choice, and kernels of all of them that differ from the usual ones.
KINDS, KERNELS = 6, 18


def tuned_model(folder: Path, batch: int | str = "batch") -> Path:
    """A convolution of each kind, a linear layer, and a product of values of the run."""
    rng = np.random.default_rng(0)
    shapes = {
        "w0": (40, 3, 5, 5), "w1": (48, 40, 3, 3), "w2": (48, 1, 3, 3), "w3": (700, 48, 1, 1),
        "w4": (700, 330),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], strides=[2, 2], pads=[2, 2, 2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "w2"], ["d"], group=48, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["d", "w3"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "w4"], ["h"]),
        helper.make_node("Transpose", ["h"], ["i"], perm=[1, 0]),
        helper.make_node("MatMul", ["i", "h"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 34, 37])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [330, 330])],
        [
            numpy_helper.from_array((0.1 * rng.standard_normal(s)).astype(np.float32), n)
            for n, s in shapes.items()
        ],
    )
    path = folder / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path
    )
    return path
