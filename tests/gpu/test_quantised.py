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
from tests.support.cuda.models import typed
from tests.support.difference import distance
from tests.support.quantised_models import Form, quantise
from tests.support.sessions import left_to_ort
from tracea_onnx import provider

pytestmark = pytest.mark.cuda

#: Of a result's largest value: a few of the steps that 8 bits make of it.
_STEPS = 0.02
#: How much farther from the model in fp32 than ONNX Runtime's results ours may be.
_AS_NEAR = 1.25


def maker_cases(config: pytest.Config) -> list[Any]:
    return makers(blocks, int8, nbits, quantised)


def test_against_float64(gpu: Gpu, maker: Maker) -> None:
    gpu.maker(maker)


@pytest.mark.parametrize("form", ["qdq", "operators", "dynamic", "mixed"])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "minilm"])
def test_models(gpu: Gpu, name: str, form: Form) -> None:
    """As on the CPU: within a few of the steps that 8 bits make of a result's largest value; mixed:
    as near to the model in fp32 as there (roundings in fp16 move values to other steps, and all
    that follows in a model of random weights is another).
    """
    if gpu.only_compile:
        pytest.skip("runs sessions")
    model = small(name)
    fed = [feeds(model, 2, 9, seed) for seed in range(3)]
    products = {"op_types_to_quantize": ["Gemm", "MatMul"]} if name == "minilm" else {}
    made = quantise(model, form, fed[:2], **(products if form == "mixed" else {}))
    session = provider.create_session(made.SerializeToString(), {"backend": "cuda"})
    given = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = typed(given, fed[2])
    want, plain = (
        given.run(None, x),
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, fed[2]
        ),
    )
    for _ in range(3):  # the third run replays a graph
        for got, wanted, floats in zip(session.run(None, x), want, plain, strict=True):
            if form == "mixed":
                assert distance(floats, got) <= _AS_NEAR * distance(floats, wanted)
                continue
            assert np.abs(got - wanted).max() <= _STEPS * np.abs(wanted).max()
    if form in ("qdq", "mixed"):
        assert set(left_to_ort(session)) <= {"Cast"}
