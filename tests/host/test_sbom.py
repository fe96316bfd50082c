"""The bill of materials that wheels carry."""

from __future__ import annotations

import json

import pytest

from tools import sbom


@pytest.mark.parametrize("target", ["", "aarch64-linux-musl", "x86_64-windows-gnu"])
@pytest.mark.parametrize("clang", ["", "22.1.8"])
def test_it_is_cyclonedx(clang: str, target: str) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    made = sbom.bom(clang, target)
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(made)) is None
    made["components"][0]["scope"] = "sometimes"
    assert validator.validate_str(json.dumps(made)) is not None


def test_it_names_what_is_asked_for_and_what_is_linked() -> None:
    made = sbom.bom("22.1.8", "x86_64-windows-gnu")
    found = {c["name"]: c for c in made["components"]}
    assert len(found) == len(made["components"])
    assert found["onnx"]["scope"] == "required" and found["onnxruntime"]["scope"] == "optional"
    assert found["onnx"]["properties"] == [{"name": "requires", "value": ">=1.21"}]
    assert {"libc++", "mingw-w64"} <= set(found) and found["libc++"]["version"] == "22.1.8"
    assert not {"libc++", "mingw-w64"} & {c["name"] for c in sbom.bom()["components"]}
    assert made["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    assert sbom.bom("22.1.8", "x86_64-windows-gnu") == made != sbom.bom("22.1.8")
