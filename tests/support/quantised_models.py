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
from onnx.version_converter import convert_version
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests.support.cuda.models import half

Form = Literal["qdq", "operators", "dynamic", "mixed"]
#: The first operator set with scales of 16 bits.
_NARROW_SCALES = 19


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
    dynamic: with scales of a run; mixed: qdq for GPUs, where all floats, scales too, are fp16,
    products are quantised that have a constant operand, and their results are not. fed: what the
    ranges are taken from.
    """
    if form == "mixed":
        options = {**options, "extra_options": {
            **options.get("extra_options", {}),
            "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]}}  # fmt: skip
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
        if form == "mixed":
            options["nodes_to_exclude"] = _of_runs(onnx.load(source))
        if form == "dynamic":
            quantize_dynamic(source, to, weight_type=QuantType.QInt8, **options)
        else:
            quantize_static(
                source,
                to,
                _Given(fed),
                quant_format=QuantFormat.QOperator if form == "operators" else QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                **options,
            )
        made = onnx.load(to)
        return made if form != "mixed" else half(convert_version(made, _NARROW_SCALES))


def _of_runs(model: onnx.ModelProto) -> list[str]:
    """Names of products of two values of a run."""
    stored = {t.name for t in model.graph.initializer}
    return [n.name for n in model.graph.node if n.op_type == "MatMul" and n.input[1] not in stored]


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
