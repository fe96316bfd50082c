"""Libraries that give ONNX Runtime a list of providers of their own: Ultralytics, by a stand-in
that makes its session, and reads the file's metadata, in the same way.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.recipes.conftest import run, stock
from tests.session.test_models import SMALL
from tracea_onnx import provider
from tracea_onnx.support import discovery

METADATA = {
    "description": "Ultralytics YOLO model", "stride": "32", "task": "detect", "batch": "1",
    "imgsz": "[160, 160]", "names": "{0: 'person', 1: 'bicycle'}", "end2end": "False",
}  # fmt: skip


class YOLO:
    """Loads with the first prediction."""

    session: Any = None

    def __init__(self, path: str) -> None:
        self.path = path

    def predict(self, image: str) -> Any:
        if self.session is None:
            self.session = ort.InferenceSession(self.path, providers=["CPUExecutionProvider"])
            metadata = self.session.get_modelmeta().custom_metadata_map
            self.stride, self.task = int(metadata["stride"]), metadata["task"]
            self.names = ast.literal_eval(metadata["names"])
            self.imgsz = ast.literal_eval(metadata["imgsz"])
        return self.session.run(None, self.inputs())

    def inputs(self) -> dict[str, Any]:
        (x,) = self.session.get_inputs()
        shape = [d if isinstance(d, int) else 1 for d in x.shape]
        return {x.name: np.random.default_rng(0).random(shape, np.float32)}


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory's yolo.onnx."""
    model = discovery.module("models", "yolo_nano").build(**SMALL["yolo_nano"])
    onnx.helper.set_model_props(model, METADATA)
    model.doc_string = "of the model"
    model.graph.doc_string = "of the graph"
    onnx.save(model, tmp_path / "yolo.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "yolo.onnx"


def test_a_library_with_providers_of_its_own(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", SimpleNamespace(YOLO=YOLO))
    made = run("Libraries that name their own providers")
    model = made["model"]
    assert (model.stride, model.task, model.imgsz) == (32, "detect", [160, 160])
    assert model.names == {0: "person", 1: "bicycle"}
    provider.assert_provider_selected(model.session)
    assert len(provider.assigned_nodes(model.session)) > 20
    for got, expected in zip(
        made["results"], stock(exported).run(None, model.inputs()), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    later = YOLO("yolo.tracea.onnx")
    later.predict("image.png")
    assert later.session.get_providers() == ["CPUExecutionProvider"]
