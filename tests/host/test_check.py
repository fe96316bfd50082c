"""tracea-onnx check: a model that fuses less than its baseline says is an error."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from tests.session.test_models import SMALL
from tracea_onnx.cli.main import main
from tracea_onnx.support import discovery

HOOKS = Path(__file__).resolve().parents[2] / ".pre-commit-hooks.yaml"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "net.onnx"
    path.parent.mkdir()
    onnx.save(discovery.module("models", "mobilenet_v2").build(**SMALL["mobilenet_v2"]), path)
    return path


def check(model: Path, baseline: Path, *more: str) -> int:
    return main(["check", str(model), "--baseline", str(baseline), *more])


def test_a_lost_fusion_is_exit_5_with_its_reason(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "fusions.json"
    assert check(model, baseline, "--update") == 0
    written = json.loads(baseline.read_text())
    assert written["models"]["models/net.onnx"]["fusions"]["conv"] > 5
    assert check(model, baseline) == 0
    # an exporter's update: a value inside of a chain became an output
    net = onnx.load(model)
    inside = next(n for n in net.graph.node if n.op_type == "Conv").output[0]
    net.graph.output.append(
        onnx.helper.make_tensor_value_info(inside, onnx.TensorProto.FLOAT, None)
    )
    onnx.save(net, model)
    capsys.readouterr()
    assert check(model, baseline, "--json") == 5
    out, err = capsys.readouterr()
    [report] = json.loads(out)
    assert report["worse"] and report["nodes"] > report["before"]["nodes"]
    assert re.search(r"error: 1 of 1 models lost fusions; .*--update$", err.strip())
    before = baseline.read_bytes()
    assert check(model, baseline, "--update") == 0 and baseline.read_bytes() != before
    assert check(model, baseline) == 0


def test_a_model_that_the_baseline_lacks_is_exit_5(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "fusions.json"
    baseline.write_text('{"version": 1, "models": {}}')
    assert check(model, baseline) == 5
    assert "1 are not in" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"version": 2}', '{"version": 1, "models": {"a": 1}}', "[" * 100_000,
        '{"version": 1, "models": {"a": {"nodes": 1e999, "fusions": {}}}}',
    ],
    ids=[*"abcdef"],
)  # fmt: skip
def test_what_is_no_baseline_is_one_line(
    text: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "fusions.json"
    baseline.write_text(text)
    assert check(model, baseline) == 2
    assert capsys.readouterr().err.strip().endswith("write it anew with --update")
    assert check(model, tmp_path / "missing.json") == 2


def test_the_hook_runs_the_command() -> None:
    entry = re.search(r"entry: tracea-onnx (\w+) --baseline fusions.json", HOOKS.read_text())
    assert entry and entry[1] == "check"
