"""The doctor says which kernels a model gets, why, and what would be faster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never

import onnx
import pytest

from tests.host.pipeline_models import normal, parse, small_cnn
from tracea_onnx.cli.main import main
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.doctor import prescription
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import host_device

HOST = host_device.device("avx2", 2)
Captured = pytest.CaptureFixture[str]


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "a model.onnx"
    onnx.save(model, str(path))
    return path


def product() -> onnx.ModelProto:
    return parse("g (float[64,64] x) => (float[64,64] y) { y = MatMul (x, w) }", w=normal(64, 64))


def test_a_model_on_the_host(tmp_path: Path) -> None:
    path = saved(tmp_path, small_cnn())
    found = prescription.prescribe(path, "cpu")
    kinds = {c.what.split()[0]: c for c in found.launches}
    assert kinds["nchw_to_nhwc"].why == "the only kernel for it"
    assert kinds["conv2d"].why == "usual: one of 32, none of which was measured"
    assert kinds["conv2d"].kernel.startswith("conv2d(block=1.0, split=4")
    assert found.leaving == 0 and found.nodes > 0
    (advice,) = found.advice
    assert (
        advice.command == f"tracea-onnx tune '{path}' --backend cpu"
        and "never measured" in advice.what
    )


def test_weights_that_are_inputs_too(tmp_path: Path) -> None:
    model = product()
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [64, 64]))
    advice = prescription.prescribe(saved(tmp_path, model), "cpu").advice[0]
    assert advice.what.endswith("others: 1") and "optimize '" in advice.command


def test_nodes_that_leave(tmp_path: Path) -> None:
    model = parse(
        "g (float[64,64] x) => (float[64,64] y, float[64,64] d)"
        "{ y = MatMul (x, w) d = RandomNormalLike (y) }",
        w=normal(64, 64),
    )
    found = prescription.prescribe(saved(tmp_path, model), "cpu")
    (advice,) = (a for a in found.advice if a.what.startswith("nodes that leave"))
    assert (found.leaving, found.nodes) == (1, 2)
    assert advice.what.startswith("nodes that leave the provider: 1; 1 of them because ")
    assert advice.command.startswith("tracea-onnx explain '") and "--backend cpu" in advice.command


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_by_price_and_by_measurement(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, offered = saved(tmp_path, product()), {}
    asked = backends.get(backend)
    honest = asked.configs

    def configs(request: Request, device: Any) -> Mapping[str, float]:
        offered[kernel_choice.cache_key(request)] = honest(request, device)
        return offered[kernel_choice.cache_key(request)]

    monkeypatch.setattr(asked, "configs", configs)
    (priced,) = prescription.prescribe(path, backend).launches
    ((key, prices),) = offered.items()
    assert len(prices) > 1 and priced.kernel == min(prices, key=prices.__getitem__)
    assert f" of {len(prices)}" in priced.why
    assert priced.why.startswith("usual" if backend == "cpu" else "priced: the cheapest")
    last = list(prices)[-1] if backend == "cpu" else max(prices, key=prices.__getitem__)
    assert last != priced.kernel
    records = kernel_choice.Choices({key: last})
    monkeypatch.setattr(tuning_records, "choices", lambda device: records)
    monkeypatch.setattr(prescription, "_device", lambda asked: (asked.caps(None) or HOST, "it"))
    (tuned,) = prescription.prescribe(path, backend).launches
    assert tuned.kernel == last and tuned.why.startswith("tuned: chosen of ")


def test_sizes_of_a_run_and_what_would_help_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse("g (float[N,64] x) => (float[N,64] y) { y = MatMul (x, w) }", w=normal(64, 64))
    found = prescription.prescribe(saved(tmp_path, model), "cuda")
    (launch,) = found.launches
    assert launch.what == "gemm F32 M=? N=64 K=64" and launch.why.startswith("priced: the sizes")
    commands = [a.command for a in found.advice]
    assert any(c.endswith("--precision fp16 --backend cuda") for c in commands)
    assert sum(c.startswith("tracea-onnx tune") for c in commands) <= 1


def test_the_command(tmp_path: Path, capsys: Captured) -> None:
    path = saved(tmp_path, small_cnn())
    assert main(["doctor", str(path), "--quick", "--backend", "cpu", "--json"]) == 0
    out, err = capsys.readouterr()
    found: Mapping[str, Any] = json.loads(out)["model"]
    assert found["backend"] == "cpu" and found["launches"][0]["count"] >= 1
    assert f"{path} on cpu (" in err and "nodes on the provider" in err
    assert main(["doctor", "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] is None
    (tmp_path / "empty.onnx").touch()
    for name, said in (("none.onnx", "does not exist"), ("empty.onnx", "is empty")):
        assert main(["doctor", str(tmp_path / name)]) == 3
        err = capsys.readouterr().err
        assert err.startswith("error: ") and said in err and len(err.splitlines()) == 1


def test_a_device_that_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = backends.get("cuda")
    monkeypatch.setattr(type(cuda), "probe", lambda self: backends.Probe(("a GPU",), ""))

    def fails() -> Never:
        raise TraceaError("the NVIDIA driver does not start: out of memory")

    monkeypatch.setattr(cuda.harness, "device", fails)
    _, of = prescription._device(cuda)
    assert of == (
        "a GPU, which cannot be used (the NVIDIA driver does not start: out of memory): as files "
        "are made"
    )
