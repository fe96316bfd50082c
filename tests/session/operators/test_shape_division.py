"""Sizes that a division of shapes gives: rounded toward zero, also where what is divided turns out
negative.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests.host.pipeline_models import parse
from tracea_onnx import provider


@pytest.mark.parametrize("divisor", [3, -3])
def test_a_start_that_is_a_quotient_of_a_negative_size(divisor: int) -> None:
    m = parse(
        """g (float[N] x) => (float[M] y) {
            n = Shape (x)
            a = Add (n, less)
            start = Div (a, by)
            s = Slice (x, start, end)
            y = Relu (s)
        }""",
        less=np.array([-8], np.int64),
        by=np.array([divisor], np.int64),
        end=np.array([1 << 40], np.int64),
    )
    plain = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    session = provider.create_session(m.SerializeToString(), {"claim": "all"})
    for n in (1, 5, 6, 7, 8, 12, 20):
        x = np.arange(1, n + 1, dtype=np.float32)
        np.testing.assert_array_equal(
            session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0], str(n)
        )
