"""Lowering where a launch costs more than some memory traffic (the GPU's way), run by the CPU's kernels: same results, fewer launches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.session.test_models import feeds, small
from tracea_onnx import compiler, provider
from tracea_onnx.modelbuilder import Net
from tracea_onnx.plan import PlanBuilder, read_pack

FEW = compiler.Backend(replace(compiler.CPU_BACKEND.target, few_launches=True), lambda name, probe: PlanBuilder(name))


def run(model: Any, x: dict[str, Any], backend: compiler.Backend, monkeypatch: pytest.MonkeyPatch, cache: Path) -> tuple[list[Any], list[str]]:
    """Outputs on the provider with this backend, and the families its partitions launch."""
    monkeypatch.setattr(compiler, "backend_of", lambda props: backend)
    with compiler.recording() as packs:
        session = provider.create_session(model.SerializeToString(), {"claim": "all", "cache_dir": str(cache / str(backend.target.few_launches))})
    launches = [launch["k"] for entry in read_pack(packs[-1])[0]["entries"] for launch in entry["plan"]["run"]]
    return session.run(None, x), launches


@pytest.mark.parametrize("name", ["bert_base", "gpt2", "minilm", "resnet50", "unet", "vit_b16", "yolo_nano"])
def test_zoo(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = small(name)
    x = feeds(model, 2, 7, 1)
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)
    usual, launches = run(model, x, compiler.CPU_BACKEND, monkeypatch, tmp_path)
    got, fewer = run(model, x, FEW, monkeypatch, tmp_path)
    for a, b, w in zip(got, usual, want, strict=True):
        scale = np.abs(w).max()
        np.testing.assert_allclose(a, b, atol=1e-5 * scale)
        np.testing.assert_allclose(a, w, atol=1e-4 * scale)
    assert len(fewer) <= len(launches)
    if name in ("bert_base", "minilm"):  # two layers, each with three products less
        assert fewer.count("gemm") == launches.count("gemm") - 4
    if name == "vit_b16":
        assert fewer.count("nhwc_to_nchw") == launches.count("nhwc_to_nchw") - 1 and "nchw_to_nhwc" not in fewer


@pytest.mark.parametrize("bias", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("width", [24, 20])
def test_a_gate_is_one_product_where_its_halves_are_whole_vectors(bias: tuple[bool, bool], width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = Net("gate", seed=1)
    x = net.input("x", ["n", 16], width=16)
    gate, up = (net.linear(x, width, bias=b, name=f"fc{k}") for k, b in enumerate(bias))
    model = net.model([("y", net.op("Mul", net.act(gate, "silu"), up), np.float32, ["n", width])])
    data = {"x": np.random.default_rng(0).standard_normal((5, 16), dtype=np.float32)}
    (want,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, data)
    (got,), launches = run(model, data, FEW, monkeypatch, tmp_path)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert launches.count("gemm") == (1 if width % 8 == 0 else 2)
