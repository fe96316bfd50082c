"""Models of the zoo as ONNX Runtime's own tool quantises them."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
import onnxruntime as ort
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

Form = Literal["qdq", "operators", "dynamic"]


class _Given(CalibrationDataReader):  # type: ignore[misc]
    """These inputs, once."""

    def __init__(self, fed: Sequence[dict[str, Any]]) -> None:
        self._left: Iterator[dict[str, Any]] = iter(fed)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def quantise(
    model: onnx.ModelProto, form: Form, fed: Sequence[dict[str, Any]], **options: Any
) -> onnx.ModelProto:
    """qdq: between QuantizeLinear and DequantizeLinear; operators: as QLinearConv and its like;
    dynamic: with scales of a run. fed: what the ranges are taken from.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet():
        given, folded, source, to = (
            Path(folder, f"{k}.onnx") for k in ("given", "folded", "source", "int8")
        )
        onnx.save(model, given)
        # as the tool would, had it folded norms in each of its versions
        basic = ort.SessionOptions()
        basic.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        basic.optimized_model_filepath = str(folded)
        ort.InferenceSession(given, basic, providers=["CPUExecutionProvider"])
        quant_pre_process(folded, source, skip_optimization=True, skip_symbolic_shape=True)
        if form == "dynamic":
            quantize_dynamic(source, to, weight_type=QuantType.QInt8, **options)
        else:
            quantize_static(
                source,
                to,
                _Given(fed),
                quant_format=QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                **options,
            )
        return onnx.load(to)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The tool gives advice in the root logger."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
