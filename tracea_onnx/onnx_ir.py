"""The optimizer as a pass of onnx_ir, and for what `torch.onnx.export(dynamo=True)` gives:

    program = tracea_onnx.onnx_ir.optimize_program(torch.onnx.export(model, inputs, dynamo=True))
    program.save("model.onnx")

    passes = onnx_ir.passes.PassManager([..., tracea_onnx.onnx_ir.FusionPass(precision="fp16")])

Needs the package onnx_ir, which torch.onnx brings.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tracea_onnx.model_io.model_file import INLINE_LIMIT
from tracea_onnx.pipeline.optimizer import optimize
from tracea_onnx.pipeline.report import Report


class FusionPass(ir.passes.FunctionalPass):
    """Returns a fused model, and leaves the one that it is given as it is. `options` are those of
    `tracea_onnx.optimize`; `report` is that of the last model. Raises what that raises.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options, self.report = options, None

    report: Report | None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Returns the fused model; `modified` says whether something was fused."""
        fused, self.report = _optimized(model, self.options)
        return ir.passes.PassResult(fused, modified=bool(self.report.fused))


def optimize_program(program: Any, **options: Any) -> Any:
    """The `torch.onnx.ONNXProgram`, whose model is fused now. `options` are those of
    `tracea_onnx.optimize`.
    """
    program.model = FusionPass(**options)(program.model).model
    return program


def _optimized(model: ir.Model, options: dict[str, Any]) -> tuple[ir.Model, Report]:
    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values()
                  if value.const_value is not None)  # fmt: skip
    if weights < INLINE_LIMIT:
        result = optimize(ir.to_proto(model), **options)
        return ir.from_proto(result.model), result.report
    # no message of protobuf holds them
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "fused.onnx"
        ir.save(model, source, external_data="weights.bin")
        result = optimize(source, output=target, **options)
        fused = ir.load(target)
        ir.external_data.load_to_model(fused)
        return fused, result.report
