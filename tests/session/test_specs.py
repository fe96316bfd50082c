"""A fused op's spec is not believed: the provider runs what its body says, whatever the spec does,
unless the session says `specs=trust`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tracea_onnx
from tests.session.test_models import feeds, small
from tracea_onnx import provider
from tracea_onnx.compiler import compile_requests
from tracea_onnx.ir.contracts import DOMAIN, SPEC_ATTRIBUTE
from tracea_onnx.plan.builder import read_pack


@pytest.fixture(scope="module")
def optimized() -> onnx.ModelProto:
    return tracea_onnx.optimize(small("demo"), backend="cpu").model


def changed(model: onnx.ModelProto, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The model with `change` made to the spec of every fused op."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for n in out.graph.node:
        for a in n.attribute:
            if n.domain == DOMAIN and a.name == SPEC_ATTRIBUTE:
                spec = json.loads(a.s)
                change(spec)
                a.s = json.dumps(spec).encode()
    return bytes(out.SerializeToString())


def run(model: bytes, options: dict[str, str]) -> Any:
    session = provider.create_session(model, {"backend": "cpu", **options})
    provider.assert_provider_selected(session)
    return session.run(None, feeds(onnx.load_from_string(model), 2, 1, 0))[0]


def stock(model: bytes) -> Any:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(
        None, feeds(onnx.load_from_string(model), 2, 1, 0)
    )[0]


def no_activation(spec: dict[str, Any]) -> None:
    spec["attrs"].pop("expr", None)


def reads_too_much(spec: dict[str, Any]) -> None:
    if "expr" in spec["attrs"]:
        spec["attrs"]["expr"] = {"n_in": 9, "out": 9, "code": [["add", [0, 8], 0.0]]}


def strides_of_zero(spec: dict[str, Any]) -> None:
    if "strides" in spec["attrs"]:
        spec["attrs"]["strides"] = [0, 0]


def no_json(model: onnx.ModelProto) -> bytes:
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for n in out.graph.node:
        for a in n.attribute:
            if a.name == SPEC_ATTRIBUTE:
                a.s = b"{" * 100_000
    return bytes(out.SerializeToString())


@pytest.mark.parametrize("change", [no_activation, reads_too_much, strides_of_zero])
def test_a_spec_that_lies_changes_nothing(
    optimized: onnx.ModelProto, change: Callable[[dict[str, Any]], None]
) -> None:
    honest, lying = optimized.SerializeToString(), changed(optimized, change)
    assert honest != lying
    np.testing.assert_allclose(run(lying, {}), stock(honest), rtol=1e-4, atol=1e-5)


def test_a_damaged_spec_changes_nothing(optimized: onnx.ModelProto) -> None:
    np.testing.assert_allclose(
        run(no_json(optimized), {}), stock(optimized.SerializeToString()), rtol=1e-4, atol=1e-5
    )


def test_trust_is_asked_for(optimized: onnx.ModelProto) -> None:
    """With it, the specs are what runs: one without its activations gives something else."""
    lying = changed(optimized, no_activation)
    assert not np.allclose(run(lying, {"specs": "trust"}), stock(lying), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        run(optimized.SerializeToString(), {"specs": "trust"}), stock(lying), rtol=1e-4, atol=1e-5
    )


def test_bodies_fuse_again(optimized: onnx.ModelProto, tmp_path: Path) -> None:
    """No fused op is lost by not believing it: Plans launch the same kernels."""

    def launched(options: dict[str, str]) -> list[str]:
        with compile_requests.recording() as packs:
            provider.create_session(
                optimized.SerializeToString(),
                {"backend": "cpu", "cache_dir": str(tmp_path / "cache"), **options},
            )
        header, _ = read_pack(packs[-1])
        return sorted(launch["k"] for e in header["entries"] for launch in e["plan"]["run"])

    assert launched({}) == launched({"specs": "trust"}) != []


def test_another_value_is_refused() -> None:
    with pytest.raises(
        Exception, match="provider option specs='maybe' is not one of: rematch, trust"
    ):
        provider.create_session(small("demo").SerializeToString(), {"specs": "maybe"})
