"""A third backend runs the zoo in sessions of ONNX Runtime: nothing outside of its own file, and no
line of the package, knows it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.backends import reference
from tests.backends.reference import Interpreter
from tests.session.test_models import SMALL, feeds, small
from tracea_onnx import provider
from tracea_onnx.cli import main
from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import compile_requests
from tracea_onnx.doctor import diagnosis
from tracea_onnx.errors import UsageError
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.plan.builder import read_pack
from tracea_onnx.support import discovery


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the file lay in `kernels`."""
    known = (*discovery.names("kernels"), reference.BACKEND.name)
    honest = discovery.names
    monkeypatch.setattr(
        discovery, "names", lambda kind: known if kind == "kernels" else honest(kind)
    )
    monkeypatch.setitem(sys.modules, "tracea_onnx.kernels.reference", reference)
    yield
    assert not reference.opened, "sessions that are gone keep no Plan"


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_zoo(name: str, tmp_path: Path) -> None:
    model = small(name)
    data = model.SerializeToString()
    plain = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    Interpreter.launches.clear()
    options = {"backend": "reference", "claim": "all", "cache_dir": str(tmp_path)}
    with compile_requests.recording() as packs:
        session = provider.create_session(data, options)
    plans = [entry["plan"] for entry in read_pack(packs[-1])[0]["entries"]]
    assert {plan["backend"] for plan in plans} == {"reference"}
    assert len(reference.opened) == len(plans)
    ran = session.get_provider_graph_assignment_info()
    assert {a.ep_name for a in ran} == {provider.PROVIDER_NAME}, "it runs every node"
    Interpreter.launches.clear()  # those of init
    for batch, seq in ((2, 7), (1, 5)):
        x = feeds(model, batch, seq, 1)
        for got, want in zip(session.run(None, x), plain.run(None, x), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5 * float(np.abs(want).max()))
    wanted = sum(len(plan["run"]) for plan in plans)
    assert sum(Interpreter.launches.values()) == 2 * wanted
    del session


def test_its_kernels_make_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another activation in its table is another result of the session."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => (float[n, 3] y) { '
        "y = Relu(x) }"
    )
    session = provider.create_session(
        model.SerializeToString(),
        {"backend": "reference", "claim": "all", "cache_dir": str(tmp_path)},
    )
    x = np.array([[-1.0, 0.0, 2.0]], np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [[0.0, 0.0, 2.0]]
    monkeypatch.setattr(reference, "program", lambda p, inputs: inputs[0] + 1)
    assert session.run(None, {"x": x})[0].tolist() == [[0.0, 1.0, 3.0]]


def test_a_kernel_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => (float[n, 3] y) { '
        "y = Relu(x) }"
    )
    session = provider.create_session(
        model.SerializeToString(),
        {"backend": "reference", "claim": "all", "cache_dir": str(tmp_path)},
    )
    monkeypatch.setattr(reference, "program", lambda p, inputs: 1 / 0)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        session.run(None, {"x": np.zeros((1, 3), np.float32)})


def test_the_commands_know_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    model_file.save(model_file.load(small("resnet50")), path)
    assert main.main(["explain", str(path), "--backend", "reference"]) == 0
    assert "on the provider (reference): " in capsys.readouterr().err
    report = optimizer.optimize(path, backend="reference", verify=False).report
    assert report.backend == "reference" and report.fused
    assert optimizer.choose_backend("auto") != "reference"  # the slowest
    with pytest.raises(UsageError, match=f"choose from auto, {', '.join(backends.names())}"):
        optimizer.choose_backend("tpu")
    assert backends.default().name == "cpu"
    assert diagnosis.run(measure=False).checks
