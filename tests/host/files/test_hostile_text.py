"""Names and texts that a model brings are shown without control characters, and damaged
descriptions end in one line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import tracea_onnx
from tracea_onnx.cli import main
from tracea_onnx.errors import ModelError
from tracea_onnx.ir import fused_op_names
from tracea_onnx.ir.graph import tensor_array

_TEXT = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[3, 4] x) => (float[3, 4] y) { '
    "t = Gemm (x, w)  y = Relu (t) }"
)


def _model() -> ModelProto:
    model: ModelProto = onnx.parser.parse_model(_TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    return model


def _said(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main.main([*argv])
    return code, capfd.readouterr().err


@pytest.mark.parametrize("command", ["explain", "inspect", "optimize"])
def test_names_do_not_write_to_the_terminal(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = _model()
    for node in model.graph.node:
        node.name = f"{node.op_type}\x1b]0;title\x07\nerror: \x9b2J"
    source = tmp_path / "m.onnx"
    better = tracea_onnx.optimize(model, verify=False).model if command == "inspect" else model
    onnx.save(better, source)
    code, text = _said(
        capfd,
        command,
        str(source),
        *{"explain": ["--all"], "inspect": ["--all"], "optimize": ["-v", "--dry-run"]}[command],
    )
    assert code == 0
    assert "\\x1b]0;title\\x07\\nerror: \\x9b2J" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    assert not any(line.startswith("error: ") for line in text.splitlines())


@pytest.mark.parametrize("value", ["x\0y", b"\xff\xfe"])
def test_external_data_that_is_no_text_is_one_line(
    value: str | bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = _model()
    t = model.graph.initializer[0]
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    t.external_data.add(key="location", value="aaa")
    data = model.SerializeToString().replace(
        b"aaa", value.encode() if isinstance(value, str) else value + b"a"
    )
    source = tmp_path / "m.onnx"
    source.write_bytes(data)
    code, text = _said(capfd, "inspect", str(source))
    assert (code, text.count("\n")) == (3, 1)
    assert "whose description is not text" in text


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("damaged", [b"", b"\xff", b"[" * 100000, b"[1]", b'{"op": "gemm"}'])
def test_a_damaged_spec_is_one_line(
    damaged: bytes, named: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`named`: with the name that its hash makes."""
    model = tracea_onnx.optimize(_model(), verify=False).model
    call = next(n for n in model.graph.node if n.domain == "ai.tracea")
    next(a for a in call.attribute if a.name == "spec").s = damaged
    if named and damaged != b"\xff":
        call.op_type = model.functions[0].name = fused_op_names.name(
            "Gemm", model.functions[0], damaged.decode()
        )
    source = tmp_path / "m.onnx"
    onnx.save(model, source)
    code, text = _said(capfd, "inspect", str(source))
    assert (code, text.count("\n")) == (3, 1)
    assert ("is damaged" if named and damaged != b"\xff" else "fused op 'Gemm_t/Gemm' has ") in text


@pytest.mark.parametrize("damaged", ["x", "[1]", "{}", "[" * 100000])
@pytest.mark.parametrize("command", ["inspect", "inline"])
def test_damaged_metadata_is_one_line(
    command: str, damaged: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tracea_onnx.optimize(_model(), verify=False).model
    call = next(n for n in model.graph.node if n.domain == "ai.tracea")
    next(p for p in call.metadata_props if p.key == "tracea.nodes").value = damaged
    source = tmp_path / "m.onnx"
    onnx.save(model, source)
    code, text = _said(
        capfd,
        command,
        str(source),
        *(["-o", str(tmp_path / "out.onnx")] if command == "inline" else []),
    )
    assert (code, text.count("\n")) == (3, 1)


@pytest.mark.parametrize("size", [15, 17, 24])
def test_a_constant_whose_data_does_not_fit_is_one_line(size: int) -> None:
    with pytest.raises(
        ModelError, match="tensor 's' is damaged: its data does not fit its type and shape"
    ):
        tensor_array(
            TensorProto(name="s", data_type=TensorProto.INT64, dims=[2], raw_data=b"\2" * size),
            None,
        )
