"""A convolution of few channels and the max pooling that alone reads it are one launch on CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan, Emitter
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import Ref
from tracea_onnx.runtime.device_caps import usual

_BACKEND = backends.get("cuda")
#: Of a GPU without the kernels that only Hopper has.
CUDA = _BACKEND.target(usual(80))
Launch = tuple[str, dict[str, DimLike]]
_POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}


class Recorded(BackendPlan):
    """A plan that keeps the families and integer parameters of its launches."""

    def __init__(self, name: str, seen: list[Launch]) -> None:
        super().__init__(name, Emitter(_BACKEND), {}, usual(90, 132), compile_code=False)
        self.seen = seen

    def _append(
        self, family: str, refs: Mapping[str, Ref | None], ints: Mapping[str, DimLike],
        floats: Mapping[str, float], program: Mapping[str, Any] | None,
        dtype: DType, to: list[dict[str, Any]], instead_of: str = "",
    ) -> None:  # fmt: skip
        super()._append(family, refs, ints, floats, program, dtype, to, instead_of)
        if to is self._run:
            self.seen.append((family, dict(ints)))


def lowered(
    pool: Mapping[str, Any] | None = None, *, act: str = "Relu", channels: int = 3, kernel: int = 7,
    groups: int = 1, dtype: Any = np.float16, reader: str = "",
    outputs: int = 1, kind: str = "MaxPool",
) -> list[Launch]:  # fmt: skip
    """Launches of x -> convolution -> activation -> pooling; `reader`: another node that reads what
    is pooled ("output": it is one).
    """
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    w = (
        np.random.default_rng(0)
        .standard_normal((16, channels // groups, kernel, kernel))
        .astype(dtype)
    )
    nodes = [
        helper.make_node(
            "Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[kernel // 2] * 4, group=groups
        ),
        helper.make_node(act, ["c"], ["a"]),
        helper.make_node(kind, ["a"], ["y", "i"][:outputs], **(pool or _POOL)),
    ]
    results = [helper.make_tensor_value_info("y", element, None)]
    if outputs > 1:
        results.append(helper.make_tensor_value_info("i", TensorProto.INT64, None))
    if reader:
        nodes.append(helper.make_node("Neg", ["a"], ["z"]))
        results.append(
            helper.make_tensor_value_info("a" if reader == "output" else "z", element, None)
        )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["n", channels, 37, 61])],
        results,
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    seen: list[Launch] = []
    partition_compiler.compile_graph(
        Graph(model),
        plan_writer.Writer(CUDA, lambda name, probe: Recorded(name, [] if probe else seen)),
        everything=True,
    )
    return seen


def families(*args: Any, **more: Any) -> list[str]:
    return [family for family, _ in lowered(*args, **more)]


@pytest.mark.parametrize("act", ["Relu", "Sigmoid", "HardSwish"])
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_one_launch(act: str, kernel: int, channels: int) -> None:
    names = families(act=act, kernel=kernel, channels=channels)
    assert names[-2:] == ["conv_pool", "nhwc_to_nchw"]
    assert names[:-2] == ([] if channels <= CUDA.planar else ["nchw_to_nhwc"])


@pytest.mark.parametrize(
    ("pool", "size", "pads"),
    [
        ({"kernel_shape": [2, 2], "strides": [2, 2]}, (9, 15), (0, 0)),
        ({"kernel_shape": [3, 3], "strides": [2, 2]}, (9, 15), (0, 0)),
        ({"kernel_shape": [3, 2], "strides": [2, 2], "pads": [2, 0, 0, 1]}, (10, 16), (2, 0)),
        ({"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}, (10, 15), (0, 0)),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, (10, 16), (1, 1)),
    ],
)
def test_windows(pool: dict[str, Any], size: tuple[int, int], pads: tuple[int, int]) -> None:
    ((family, ints),) = (launch for launch in lowered(pool) if launch[0] != "nhwc_to_nchw")
    assert family == "conv_pool" and (ints["OH"], ints["OW"]) == (19, 31)
    assert (ints["PH"], ints["PW"]) == size and (ints.get("PPT", 0), ints.get("PPL", 0)) == pads


@pytest.mark.parametrize(
    "case",
    [
        {"reader": "node"}, {"reader": "output"}, {"dtype": np.float32}, {"channels": 9},
        {"channels": 6, "groups": 2}, {"kind": "AveragePool"},
        {"pool": {**_POOL, "strides": [1, 1]}}, {"pool": {**_POOL, "dilations": [2, 2]}},
        {"pool": {"kernel_shape": [5, 5], "strides": [2, 2]}},
        {"pool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [3, 3, 3, 3]}},
    ],
)  # fmt: skip
def test_two_launches(case: dict[str, Any]) -> None:
    names = families(**case)
    assert "conv_pool" not in names and "conv2d" in names and "pool2d" in names


def test_indices_stay_with_onnx_runtime() -> None:
    assert "conv_pool" not in families(outputs=2)
