"""The table of what runs on the provider: nodes, and why the others stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tools import coverage

MODEL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 3, 8, 8] x, float[2, 3, 3, 3] w) => (int64[r, k] z)
{
  c = Conv (x, w)
  y = Relu (c)
  z = NonZero (y)
}"""


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_shares(backend: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    w = np.ones((2, 3, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    found = coverage.share(tmp_path / "m.onnx", backend)
    if backend == "cpu":  # which counts how many results there are
        assert (found.nodes, found.ours, found.failed, found.left) == (3, 3, "", {})
        return
    assert (found.nodes, found.ours, found.failed) == (3, 2, "")
    ((operator, why),) = found.left
    assert operator == "NonZero" and "depends on what tensors hold" in why
    together, folder, left = coverage.tables({"models": {"m": found}})
    assert together["rows"] == [["all 1 models", 3, 2, pytest.approx(200 / 3), "1 NonZero"]]
    assert [row[0] for row in folder["rows"]] == ["m", "all"]
    assert left["rows"] == [["sizes are computed from what tensors hold", "NonZero", 1, 1]]


def test_shares_of_what_optimize_makes(tmp_path: Path) -> None:
    """A fused op is one node in the file, and its nodes in a session."""
    model = onnx.parser.parse_model(MODEL.replace("z = NonZero (y)", "z = Neg (y)"))
    w = np.ones((2, 3, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    model.graph.output[0].type.tensor_type.elem_type = 1
    onnx.save(model, tmp_path / "m.onnx")
    found = coverage.share(tmp_path / "m.onnx", "cpu", optimized=True)
    assert found.failed == "" and found.nodes == found.ours == 3


def test_a_file_that_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    assert coverage.share(tmp_path / "m.onnx", "cpu").failed


def test_reasons_count_together_whatever_they_name() -> None:
    a, b = (coverage.alike(f"the type or rank of '{name}' is not known") for name in "ab")
    assert a == b
    assert coverage.alike("") == coverage.alike("the provider would take about 3.1 us for these 2")
