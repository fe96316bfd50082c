"""Operators that ONNX Runtime's tool writes between operands of 8 bits, beside its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.sessions import left_to_ort, session

_TYPES = {np.uint8: onnx.TensorProto.UINT8, np.int8: onnx.TensorProto.INT8}


def _operand(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: Any, scale: float
) -> dict[str, Any]:
    ends = np.iinfo(dtype)
    return {
        name: rng.integers(ends.min, ends.max + 1, shape).astype(dtype),
        f"{name}_scale": np.array(scale, np.float32),
        f"{name}_zero": np.array(ends.min + 120, dtype),
    }


def _floats(given: dict[str, Any], name: str) -> Any:
    zero = given[f"{name}_zero"].astype(np.float64)
    return (given[name] - zero) * float(given[f"{name}_scale"])


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _pooled(x: Any) -> Any:
    """AveragePool of windows of 2x2 in steps of 2 without a border."""
    h, w = (n // 2 * 2 for n in x.shape[2:])
    return x[:, :, :h, :w].reshape(*x.shape[:2], h // 2, 2, w // 2, 2).mean((3, 5))


#: Operator, shapes of its operands, its attributes, what it is of floats, and the result's scale,
#: by which few values are next to a tie.
_CASES: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any], Any, float]] = {
    "QLinearSigmoid": (((3, 37),), {}, _sigmoid, 0.004),
    "QLinearLeakyRelu": (((3, 37),), {"alpha": 0.2}, lambda x: np.where(x < 0, 0.2 * x, x), 0.03),
    "QLinearSoftmax": (((2, 5, 13),), {"opset": 13}, _softmax, 0.004),
    "QLinearAveragePool": (
        ((2, 5, 9, 7),), {"kernel_shape": [2, 2], "strides": [2, 2]}, _pooled, 0.0213,
    ),
    "QLinearConcat": (
        ((2, 3, 5), (2, 1, 5), (2, 7, 5)), {"axis": 1},
        lambda *parts: np.concatenate(parts, 1), 0.0413,
    ),
    "QLinearWhere": (
        ((1, 7), (5, 7)), {}, lambda x, y: np.where(np.arange(7) % 2 == 1, x, y), 0.0413,
    ),
    "QLinearMatMul": (((2, 3, 5, 33), (2, 3, 33, 17)), {}, lambda x, y: x @ y, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("kind", _CASES)
def test_against_float64(kind: str, dtype: Any) -> None:
    """Within a step of float64, and of ONNX Runtime: both round where a value is next to a tie."""
    shapes, attributes, of_floats, scale = _CASES[kind]
    names = [f"x{k}" for k in range(len(shapes))]
    given: dict[str, Any] = {}
    rng = np.random.default_rng(11)
    for k, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        given |= _operand(rng, name, shape, dtype, 0.02 + 0.01 * k)
    ends = {"y_scale": np.array(scale, np.float32), "y_zero": np.array(9, dtype)}
    triples = [n for name in names for n in (name, f"{name}_scale", f"{name}_zero")]
    order = [*ends, *triples] if kind == "QLinearConcat" else [*triples, *ends]
    if kind == "QLinearWhere":
        ends["condition"] = np.arange(7) % 2 == 1
        order = ["condition", *order]
    domain = "" if kind == "QLinearMatMul" else "com.microsoft"
    run = {n: given[n] for n in names}
    graph = helper.make_graph(
        [helper.make_node(kind, order, ["y"], kind, domain=domain, **attributes)],
        "g",
        [helper.make_tensor_value_info(n, _TYPES[dtype], v.shape) for n, v in run.items()],
        [helper.make_tensor_value_info("y", _TYPES[dtype], None)],
        [onnx.numpy_helper.from_array(v, n) for n, v in {**given, **ends}.items() if n not in run],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    ours = session(model, provider=True, everything=True)
    assert not left_to_ort(ours)
    [got], [theirs] = (s.run(None, run) for s in (ours, session(model, exact=True)))
    limits = np.iinfo(dtype)
    want = np.clip(
        np.round(of_floats(*(_floats(given, n) for n in names)) / float(ends["y_scale"])) + 9,
        limits.min,
        limits.max,
    )
    assert got.shape == want.shape and np.abs(got - want).max() <= 1
    assert (got == want).mean() > 0.98
    assert np.abs(got.astype(int) - theirs.astype(int)).max() <= 1
