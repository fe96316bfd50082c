"""The optimizer as a pass of onnx_ir."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import FunctionProto

from tests.session.test_models import SMALL
from tracea_onnx import optimize
from tracea_onnx.ir import fused_op_names
from tracea_onnx.support import discovery

ir = pytest.importorskip("onnx_ir")
fusion = pytest.importorskip("tracea_onnx.onnx_ir")


@pytest.fixture
def model() -> Any:
    return ir.from_proto(discovery.module("models", "mobilenet_v2").build(**SMALL["mobilenet_v2"]))


@pytest.mark.parametrize("limit", [1 << 31, 1])
def test_the_pass_fuses(model: Any, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "INLINE_LIMIT", limit)
    before = len(list(model.graph))
    made = fusion.FusionPass(verify=False)
    result = ir.passes.PassManager([made])(model)
    assert result.modified and len(list(result.model.graph)) < before == len(list(model.graph))
    assert made.report.fused
    x = {"input": np.random.default_rng(0).standard_normal((1, 3, 65, 65)).astype(np.float32)}
    sessions = [
        ort.InferenceSession(ir.to_proto(m).SerializeToString()) for m in (model, result.model)
    ]
    a, b = (s.run(None, x)[0] for s in sessions)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert not ir.passes.PassManager([made])(result.model).modified


def test_a_program_of_torch_onnx_is_fused(model: Any) -> None:
    program = SimpleNamespace(model=model)
    assert fusion.optimize_program(program, verify=False) is program
    assert any(n.domain == "ai.tracea" for n in program.model.graph)


def test_a_file_whose_names_count_the_spelled_domain_is_read() -> None:
    fused = optimize(
        discovery.module("models", "mobilenet_v2").build(**SMALL["mobilenet_v2"]), verify=False
    ).model
    new = {}
    for call in fused_op_names.calls(fused):
        function = next(f for f in fused.functions if f.name == call.op_type)
        spec, op = fused_op_names.spec_text(call), fused_op_names.op_of(call.op_type)
        new[call.op_type] = fused_op_names.name(op, function, spec or "", spelled=True)
    assert any(old != name for old, name in new.items())
    for part in (*fused.functions, *fused_op_names.calls(fused)):
        field = "name" if isinstance(part, FunctionProto) else "op_type"
        setattr(part, field, new[getattr(part, field)])
    fused_op_names.check(fused, "the model")
