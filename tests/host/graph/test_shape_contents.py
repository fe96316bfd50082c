"""Arithmetic on shapes: what is known of it is what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto

from tests.host.pipeline_models import parse
from tracea_onnx.ir import dims
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes import symbolic

DIVISORS = (3, -3, 1, -1, 4)


def _model(node: str, left: int, right: int) -> ModelProto:
    return parse(
        f"""g (float[N] x) => (int64[1] y) {{
            n = Shape (x)
            a = Add (n, left)
            y = {node}
        }}""",
        left=np.array([left], np.int64),
        right=np.array([right], np.int64),
    )


@pytest.mark.parametrize(
    "node",
    [
        "Div (a, right)",
        "Mod (a, right)",
        "Mod <fmod = 1> (a, right)",
        "Div (left, right)",
        "Mod <fmod = 1> (left, right)",
    ],
)
def test_quotients_and_remainders_of_negative_numbers(node: str) -> None:
    known = 0
    for left in (-8, -7, 5, 2**63 // 2):
        for right in DIVISORS:
            if "fmod" in node and left > 2**53:
                continue  # ONNX Runtime computes these in float64
            m = _model(node, left, right)
            graph = Graph(m)  # which shapes refer to weakly
            shapes = symbolic.shapes(graph)
            found = shapes.content("y")
            if found is None:
                continue
            known += 1
            session = ort.InferenceSession(
                m.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            for n in (0, 1, 5, 6, 7, 8, 20):
                (symbol,) = dims.symbols(shapes.dims("x")[0])  # type: ignore[index]
                (real,) = session.run(None, {"x": np.zeros(n, np.float32)})
                assert dims.evaluate(found[0], {symbol: n}) == real[0], (left, right, n)
    assert known >= 8
