"""Whole models on a GPU: fp16 models, inputs, sessions whose tensors lie on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

NVIDIA = 0x10DE


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with fp16 weights and activations (ORT's own converter)."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(
        model, keep_io_types=False, disable_shape_infer=False
    )
    return converted


def input_shapes(model: onnx.ModelProto, batch: int, sequence: int) -> dict[str, list[int]]:
    """The first of an input's unknown sizes is its batch, the others are of its sequences."""
    dims = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input}
    return {
        name: [
            d.dim_value if d.HasField("dim_value") else sequence if k else batch
            for k, d in enumerate(shape)
        ]
        for name, shape in dims.items()
    }


def feeds(
    session: ort.InferenceSession, batch: int, sequence: int, rng: np.random.Generator
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for i in session.get_inputs():
        dims = [
            d if isinstance(d, int) else batch if k == 0 else sequence
            for k, d in enumerate(i.shape)
        ]
        if "int" in i.type:
            out[i.name] = (
                np.ones(dims, np.int64)
                if "mask" in i.name
                else rng.integers(0, 2 if "type" in i.name else 1000, dims)
            )
        else:
            out[i.name] = rng.standard_normal(dims).astype(np.float32)
    return out


def typed(session: ort.InferenceSession, x: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in fp16 where the session takes that."""
    return {
        i.name: x[i.name].astype(np.float16) if "float16" in i.type else x[i.name]
        for i in session.get_inputs()
    }


class Bound:
    """A session with its tensors on the device. vendor: of ONNX Runtime's memory for this provider
    (None: its own CUDA memory).
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        x: Mapping[str, Any],
        shapes: list[tuple[int, ...]],
        vendor: int | None,
    ) -> None:
        place: tuple[Any, ...] = ("cuda", 0) if vendor is None else ("gpu", 0, vendor)
        self.session, self.binding = session, session.io_binding()
        self.tensors = []
        for name, value in typed(session, x).items():
            self.tensors.append(ort.OrtValue.ortvalue_from_numpy(value, *place))
            self.binding.bind_ortvalue_input(name, self.tensors[-1])
        self.outputs = []
        for o, shape in zip(session.get_outputs(), shapes, strict=True):
            self.outputs.append(
                ort.OrtValue.ortvalue_from_shape_and_type(
                    list(shape), np.float16 if "float16" in o.type else np.float32, *place
                )
            )
            self.binding.bind_ortvalue_output(o.name, self.outputs[-1])

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def results(self) -> list[Any]:
        """The outputs of the last run."""
        return [v.numpy().astype(np.float64) for v in self.outputs]

    def error(self, want: list[Any]) -> float:
        """Largest difference relative to each output's largest value."""
        return max(
            float(np.abs(g - w).max() / (np.abs(w).max() + 1e-30))
            for g, w in zip(self.results(), want, strict=True)
        )
