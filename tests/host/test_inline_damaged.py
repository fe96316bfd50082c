"""`inline` of a model whose fused ops carry damaged metadata ends in one line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tracea_onnx
from tests.host.test_hostile_text import _model
from tracea_onnx import cli


@pytest.mark.parametrize("damaged", ["x", "[1]", "{}", "[" * 100000])
def test_damaged_metadata_is_one_line(damaged: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tracea_onnx.optimize(_model(), verify=False).model
    call = next(n for n in model.graph.node if n.domain == "ai.tracea")
    next(p for p in call.metadata_props if p.key == "tracea.nodes").value = damaged
    source = tmp_path / "m.onnx"
    onnx.save(model, source)
    code = cli.main(["inline", str(source), "-o", str(tmp_path / "out.onnx")])
    assert (code, capfd.readouterr().err.count("\n")) == (3, 1)
