"""The pass of Olive, in Olive's own workflows."""

from __future__ import annotations

import importlib
import inspect
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.recipes.conftest import blocks, library, run, stock
from tests.session.test_models import SMALL
from tracea_onnx import optimize
from tracea_onnx.match import rule_set
from tracea_onnx.support import discovery

olive = library("olive.workflows")
plugin = importlib.import_module("tracea_onnx.olive")
MODEL = "my-model/model.onnx"
pytestmark = pytest.mark.filterwarnings("ignore")  # of Olive's packages for one another


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the model of the page."""
    model = discovery.module("models", "mobilenet_v2").build(**SMALL["mobilenet_v2"])
    onnx.helper.set_model_props(model, {"names": "{0: 'cat'}"})
    (tmp_path / "my-model").mkdir()
    onnx.save(model, tmp_path / MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def workflow(before: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The page's workflow with other options, and with more passes before ours."""
    (made,) = (json.loads(b) for b in blocks("Olive") if b.startswith("{"))
    made["passes"] = {**(before or {}), "fuse": made["passes"]["fuse"] | options}
    return {**made, "cache_dir": "cache", "log_severity_level": 1}


def fused(config: Any) -> Path:
    """The model's file that a workflow writes; Olive tells its folder where there are more."""
    output = olive.run(config, package_config=plugin.package_config())
    path = Path(output.get_best_candidate().model_path)
    return next(path.glob("*.onnx")) if path.is_dir() else path


def calls(path: Path) -> list[str]:
    model = onnx.load(path, load_external_data=False)
    return [n.op_type for n in model.graph.node if n.domain == "ai.tracea"]


def test_the_workflow_of_the_page(folder: Path) -> None:
    Path("workflow.json").write_text(json.dumps(workflow()))
    written = Path(run("Olive")["output"].get_best_candidate().model_path)
    assert written.parent == (folder / "fused").resolve() and calls(written)
    assert onnx.load(written).metadata_props[0].value == "{0: 'cat'}"
    x = {"input": np.random.default_rng(0).standard_normal((2, 3, 65, 65)).astype(np.float32)}
    got, expected = (stock(p).run(None, x)[0] for p in (written, folder / MODEL))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_weights_stay_in_a_file_of_their_own(folder: Path) -> None:
    """As another pass left them."""
    half = {"type": "OnnxFloatToFloat16", "keep_io_types": True, "save_as_external_data": True,
            "size_threshold": 0}  # fmt: skip
    written = fused(workflow({"half": half}))
    (weights,) = written.parent.glob("*.data")
    assert written.stat().st_size < weights.stat().st_size and calls(written)
    x = {"input": np.random.default_rng(0).standard_normal((1, 3, 65, 65)).astype(np.float32)}
    got, expected = (stock(p).run(None, x)[0] for p in (written, folder / MODEL))
    np.testing.assert_allclose(got, expected, rtol=0.05, atol=0.05)


def test_options_are_those_of_optimize(caplog: pytest.LogCaptureFixture) -> None:
    assert set(plugin.OPTIONS) <= set(inspect.signature(optimize).parameters)
    assert not calls(fused(workflow(skip=[r.name for r in rule_set.rules()], verify=False)))
    assert calls(fused(workflow(only=["conv"], backend="cuda", seed=3)))
    assert "backend cuda" in caplog.text and "verification passed" in caplog.text


def test_the_accelerator_says_what_fusions_are_priced_for() -> None:
    from olive.hardware import AcceleratorSpec

    for device, backend in (("cpu", "cpu"), ("gpu", "cuda")):
        defaults = plugin.TraceaOptimize.default_config(AcceleratorSpec(device))
        assert defaults["backend"].default_value == backend


@pytest.mark.parametrize(
    ("options", "said"),
    [({"only": ["attention"]}, "fused nothing"), ({"precision": "fp4"}, "'fp4' is unknown")],
)
def test_what_cannot_be_done_is_said(
    options: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    output = olive.run(workflow(**options), package_config=plugin.package_config())
    assert said in caplog.text and not output.has_output_model()


def test_the_module_prints_the_file_of_passes(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("tracea_onnx.olive", run_name="__main__")
    assert json.loads(capsys.readouterr().out) == plugin.package_config()
    assert "OnnxConversion" in plugin.package_config()["passes"]
