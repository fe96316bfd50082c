"""What a model says of itself stays: metadata, doc strings, inputs and outputs in their order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import helper as h

from tests.session.test_models import SMALL
from tracea_onnx import optimize
from tracea_onnx.pipeline.compiled_model import compile_model
from tracea_onnx.support import discovery

pytestmark = pytest.mark.once

#: As Ultralytics and others write them.
METADATA = {"names": "{0: 'person'}", "stride": "32", "imgsz": "[64, 64]", "task": "detect"}


@pytest.fixture
def described(tmp_path: Path) -> onnx.ModelProto:
    """A model with two inputs and two outputs, which also lies in a file."""
    m: onnx.ModelProto = discovery.module("models", "yolo_nano").build(**SMALL["yolo_nano"])
    g = m.graph
    h.set_model_props(m, METADATA)
    m.doc_string, m.producer_name, m.producer_version = "of the model", "an exporter", "3"
    m.domain, m.model_version, g.doc_string = "org.example", 7, "of the graph"
    g.metadata_props.add(key="of", value="the graph")
    g.input.insert(0, h.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["batch", 1]))
    g.output.insert(0, h.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["batch", 1]))
    g.node.append(h.make_node("Neg", ["a"], ["z"]))
    g.input[1].type.denotation = "IMAGE"
    for v in (*g.input, *g.output):
        v.doc_string = f"about {v.name}"
        v.metadata_props.add(key="layout", value=v.name)
    onnx.save(m, tmp_path / "model.onnx")
    return m


def of_itself(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without what it computes."""
    told = onnx.ModelProto()
    told.CopyFrom(model)
    for field in ("ir_version", "opset_import", "functions"):
        told.ClearField(field)
    for field in ("node", "initializer", "sparse_initializer", "value_info"):
        told.graph.ClearField(field)
    of_ort = [p for p in told.metadata_props if p.key.startswith("ep_compatibility_info.")]
    for p in of_ort:
        told.metadata_props.remove(p)
    told.metadata_props.sort(key=lambda p: p.key)
    return told


def in_memory(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    return optimize(model, verify=False).model


def in_a_file(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    optimize(folder / "model.onnx", output=folder / "fused.onnx", verify=False)
    return onnx.load(folder / "fused.onnx")


def in_narrow_types(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    return optimize(model, precision="fp16", verify=False).model


def by_onnx_ir(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    ir = pytest.importorskip("onnx_ir")
    from tracea_onnx.onnx_ir import FusionPass

    made: onnx.ModelProto = ir.to_proto(FusionPass(verify=False)(ir.from_proto(model)).model)
    return made


def by_compiling(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    compile_model(folder / "model.onnx", folder / "compiled.onnx")
    return onnx.load(folder / "compiled.onnx")


@pytest.mark.parametrize("way", [in_memory, in_a_file, in_narrow_types, by_onnx_ir, by_compiling])
def test_a_description_stays(
    way: Callable[[onnx.ModelProto, Path], onnx.ModelProto],
    described: onnx.ModelProto,
    tmp_path: Path,
) -> None:
    result = way(described, tmp_path)
    assert len(result.graph.node) < len(described.graph.node)
    assert of_itself(result) == of_itself(described)


def test_text_that_is_no_utf_8_is_mended(described: onnx.ModelProto, tmp_path: Path) -> None:
    damaged = described.SerializeToString().replace(b"of the model", b"of the mod\xffl")
    (tmp_path / "model.onnx").write_bytes(damaged)
    assert by_compiling(described, tmp_path).doc_string == "of the mod\ufffdl"


def test_onnx_runtime_tells_the_metadata_of_both_files(
    described: onnx.ModelProto, tmp_path: Path
) -> None:
    in_a_file(described, tmp_path)
    for name in ("model", "fused"):
        session = ort.InferenceSession(
            tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"]
        )
        told = session.get_modelmeta()
        assert told.custom_metadata_map == METADATA and told.version == 7
        assert [v.name for v in session.get_inputs()] == ["a", "images"]
        assert [v.name for v in session.get_outputs()] == ["z", "output0"]
