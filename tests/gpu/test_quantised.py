"""Weights of a few bits, quantisation as pointwise programs, products of 8-bit integers, and models
of these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.gpu.cases import blocks, int8, nbits, quantised
from tests.gpu.gpu import Gpu, Maker, makers
from tests.session.test_models import feeds, small
from tests.support.quantised_models import Form, quantise
from tests.support.sessions import left_to_ort
from tracea_onnx import provider

pytestmark = pytest.mark.cuda

#: Of a result's largest value: a few of the steps that 8 bits make of it.
_STEPS = 0.02


def maker_cases(config: pytest.Config) -> list[Any]:
    return makers(blocks, int8, nbits, quantised)


def test_against_float64(gpu: Gpu, maker: Maker) -> None:
    gpu.maker(maker)


@pytest.mark.parametrize("form", ["qdq", "operators", "dynamic"])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "minilm"])
def test_models(gpu: Gpu, name: str, form: Form) -> None:
    """As on the CPU: within a few of the steps that 8 bits make of a result's largest value."""
    if gpu.only_compile:
        pytest.skip("runs sessions")
    model = small(name)
    fed = [feeds(model, 2, 9, seed) for seed in range(3)]
    made = quantise(model, form, fed[:2])
    session = provider.create_session(made.SerializeToString(), {"backend": "cuda"})
    given = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    want = given.run(None, fed[2])
    for _ in range(3):  # the third run replays a graph
        for got, wanted in zip(session.run(None, fed[2]), want, strict=True):
            assert np.abs(got - wanted).max() <= _STEPS * np.abs(wanted).max()
    if form == "qdq":
        assert set(left_to_ort(session)) <= {"Cast"}
