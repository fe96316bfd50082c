"""The cost model of GEMM and convolution kernels of f32, and the program that fits it."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda.test_cuda_gemm import gemm
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime.device_caps import DeviceCaps, usual
from tracea_onnx.support import discovery

model = discovery.module("kernels", "cuda.cost.model")
FILES = [p for p in sorted(model.FOLDER.glob("*.json")) if "kernels" in json.loads(p.read_text())]


def works(r: Request) -> dict[str, Any]:
    fit = pytest.importorskip("tools.fit")
    return dict(fit.works(r)[0])


def test_every_device_has_efficiencies_of_every_kernel() -> None:
    kernels = [set(json.loads(path.read_text())["kernels"]) for path in FILES]
    assert kernels and all(k == kernels[0] for k in kernels)
    for path in FILES:
        content = json.loads(path.read_text())
        for kernel, known in content["kernels"].items():
            assert len(known) <= 8 and all(v > 0 for v in known.values()), (path.stem, kernel)
        assert set(content["device"]) == set(model.OF_DEVICE)


def test_every_fitted_constant_is_read_and_nothing_else() -> None:
    """Of kernels whose prices are formulas of their own (`cost/fitted.py`)."""
    known = json.loads((model.FOLDER / "h200.json").read_text())["fitted"]
    read = {
        (args[0], name)
        for path in model.FOLDER.parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("fitted", "groups", "table")
        and all(isinstance(a, ast.Constant) for a in node.args)
        for args in [[str(a.value) for a in node.args if isinstance(a, ast.Constant)]]
        for name in args[1].split()
    }
    assert read == {(kernel, name) for kernel, names in known.items() for name in names}


def test_devices_without_a_file_have_that_of_the_nearest_architecture() -> None:
    for name, arch in (("NVIDIA H200", 90), ("NVIDIA A10", 86), ("GeForce RTX 5090", 120)):
        assert model.efficiencies(name, arch)["ffma"].fill > 0


@pytest.mark.parametrize("m", [1, 77, 4096])
def test_a_lesser_device_is_not_faster(m: int) -> None:
    r = gemm(DType.F32, m, 1024, 768)

    def least(caps: DeviceCaps) -> float:
        return float(min(model.prices(works(replace(r, caps=caps)), caps).values()))

    caps = usual(90)
    best = least(caps)
    assert least(replace(caps, bandwidth=caps.bandwidth // 4)) >= best
    assert least(usual(90, 33)) >= best


def test_efficiencies_are_found_from_times() -> None:
    """Times that the model gives with other efficiencies: what is fitted chooses as these would."""
    fit = pytest.importorskip("tools.fit")
    caps, layers = usual(90), {}
    known = {
        k: e._replace(fill=2 * e.fill, epilogue=3 * e.epilogue, latency=e.latency / 2)
        for k, e in model.efficiencies(caps.name, caps.arch).items()
    }
    for m, n, k in ((1, 4096, 4096), (128, 768, 768), (197, 3072, 768), (4096, 1024, 1024)):
        r = gemm(DType.F32, m, n, k)
        made = works(r)
        rows = list(made.values())
        work = model.Work("", *np.array([w[1:] for w in rows], float).T)
        of = model.Efficiencies(*np.array([known[w.kernel] for w in rows]).T)
        times = model.time(work, of, caps) * 1000 / caps.clock
        near = dict(sorted(zip(made, times.tolist(), strict=True), key=lambda t: t[1])[:20])
        layers[str(m)] = {**fit._written(r), "models": {f"m{m}:fp32:1x1": 1}, "times": near}
    problem = fit.Problem({"layers": layers}, caps)
    x = problem.fit(np.ones(len(problem.layers), bool))
    assert max(problem.regret(problem.chosen(problem.prices(x))).values()) < 1.02
