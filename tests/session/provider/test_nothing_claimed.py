"""A session that gets no node of a model says so, and why."""

from __future__ import annotations

import onnx
import pytest

from tracea_onnx import provider

_DOUBLE = """<ir_version: 9, opset_import: ["" : 18]> g (double[n, 4] x) => (double[n, 4] y)
    <double[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> { y = MatMul(x, w) }"""
_FLOAT = """<ir_version: 9, opset_import: ["" : 18]> g (float[n, 4] x) => (float[n, 4] y)
    <float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> { y = MatMul(x, w) }"""
#: Nothing that is worth a line: a session of ONNX Runtime's own takes it.
_LIGHT = """<ir_version: 9, opset_import: ["" : 18]> g (float[n, 4] x) => (float[4, n] y)
    { y = Transpose(x) }"""


def lines(source: str, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The warnings of a session on the provider while it loads."""
    model = onnx.parser.parse_model(source).SerializeToString()
    provider.create_session(model, {"log_level": "warning"})
    said = capfd.readouterr().err.splitlines()
    return [line for line in said if line.startswith("tracea-onnx: ")]


def test_the_operator_that_is_left_and_why_is_one_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    [line] = lines(_DOUBLE, capfd)
    assert line.startswith("tracea-onnx: warning: the provider runs nothing of graph 'g': ")
    assert "(MatMul): " in line
    assert "`tracea-onnx explain MODEL --backend cpu`" in line


@pytest.mark.parametrize("source", [_FLOAT, _LIGHT])
def test_what_it_runs_and_what_costs_little_is_no_warning(
    source: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert lines(source, capfd) == []
