"""Whole models on a GPU: `optimize --precision`, and random stacks of layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tracea_onnx
from tests.gpu.gpu import Gpu
from tests.support.cuda.models import NVIDIA, Bound, feeds, typed
from tests.support.cuda.models import half as converted
from tracea_onnx import provider
from tracea_onnx.pipeline.compiled_model import compile_model
from tracea_onnx.support import discovery

pytestmark = pytest.mark.cuda

ROOT = Path(__file__).resolve().parents[2]
#: Runs a compiled model three times (the third replays a graph); no request is compiled.
_RUN = """
import sys
import numpy as np
from tracea_onnx import provider
model, inputs, outputs, context = sys.argv[1:]
session = provider.create_session(model, {"backend": "cuda", "ep_context": context})
for _ in range(3):
    results = session.run(None, dict(np.load(inputs)))
found = provider.stats()
assert not found["compile_requests"] and found["runs"] >= 3, found
np.savez(outputs, *results)
"""
SEQUENCE, BATCH = 128, 4
#: The largest drift that is no defect: what rounding every activation of a deep network to this
#: type does.
ALLOWED = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1.5e-1}


def drift(got: list[Any], want: list[Any]) -> tuple[float, float]:
    pairs = [(g.astype(np.float64), w.astype(np.float64)) for g, w in zip(got, want, strict=True)]
    if not all(np.isfinite(g).all() for g, _ in pairs):
        return float("inf"), float("inf")
    return max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in pairs), max(
        float(np.sqrt(((g - w) ** 2).mean() / (w**2).mean())) for g, w in pairs
    )


def case_cases(config: pytest.Config) -> list[Any]:
    """Models by the type that `optimize` gives them."""
    return [
        pytest.param(
            (name, kind),
            id=f"{name}-{kind}",
            marks=[pytest.mark.slow] if name in ("mobilenet_v3", "vit_b16") else [],
        )
        for name in ("resnet50", "bert_base", "mobilenet_v3", "vit_b16")
        for kind in ALLOWED
    ]


def test_drift_from_fp32_on_the_cpu(gpu: Gpu, case: tuple[str, str], tmp_path: Path) -> None:
    """Largest difference from ONNX Runtime's CPU provider on the fp32 model, relative to each
    output's largest value; every node runs on the GPU.
    """
    if gpu.only_compile:
        pytest.skip("runs sessions")
    name, kind = case
    sizes = {"batch": BATCH, "dynamic": False} | ({"seq": SEQUENCE} if name == "bert_base" else {})
    full, path = tmp_path / "full.onnx", tmp_path / "model.onnx"
    model = discovery.module("models", name).build(**sizes)
    onnx.save(model, str(full))
    reference = ort.InferenceSession(str(full), providers=["CPUExecutionProvider"])
    x = feeds(reference, BATCH, SEQUENCE, np.random.default_rng(0))
    want = reference.run(None, x)
    if kind == "fp32":
        path = full
    else:
        report = tracea_onnx.optimize(model, output=path, precision=kind, backend="cuda").report
        assert report.verify is not None and report.verify.ok
    session = provider.create_session(path, {"backend": "cuda"})
    left = [
        n.op_type
        for p in session.get_provider_graph_assignment_info()
        if p.ep_name != provider.PROVIDER_NAME
        for n in p.get_nodes()
    ]
    assert not left
    bound = Bound(session, x, [w.shape for w in want], NVIDIA)
    for _ in range(3):  # the third run replays a graph
        bound()
    assert drift([v.numpy() for v in bound.outputs], want)[0] <= ALLOWED[kind]


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
def test_stacks_of_layers(gpu: Gpu, half: bool) -> None:
    if gpu.only_compile:
        pytest.skip("runs sessions")
    command = ["-m", "tools.fuzz.operator_fuzz", "--backend", "cuda", "--kinds", "stack"]
    done = subprocess.run(
        [sys.executable, *command, "--count", "40", *(["--half"] if half else [])],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", ["mobilenet_v2", "minilm"])
def test_compiled_models_run_without_a_compiler(
    gpu: Gpu, name: str, half: bool, tmp_path: Path
) -> None:
    """A process without Python's compiler and NVRTC loads one, and its results are bit-equal."""
    if gpu.only_compile:
        pytest.skip("runs sessions")
    source, target, got = (tmp_path / n for n in ("model.onnx", "model_ctx.onnx", "got.npz"))
    model = discovery.module("models", name).build()
    onnx.save(converted(model) if half else model, source)
    compile_model(source, target, options={"backend": "cuda"})
    direct = provider.create_session(source, {"backend": "cuda"})
    x = typed(direct, feeds(direct, BATCH, SEQUENCE, np.random.default_rng(0)))
    np.savez(tmp_path / "x.npz", **x)
    untrusted = subprocess.run(
        [sys.executable, "-c", _RUN, target, tmp_path / "x.npz", got, "check"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert untrusted.returncode and "ep_context" in untrusted.stderr
    done = subprocess.run(
        [sys.executable, "-c", _RUN, target, tmp_path / "x.npz", got, "trust"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    want = direct.run(None, x)
    with np.load(got) as found:
        for i, value in enumerate(want):
            np.testing.assert_array_equal(found[f"arr_{i}"], value)
