"""Models of the zoo as ONNX Runtime's tool quantises them, on the provider: run there, with
ONNX Runtime's results.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.session.test_models import feeds, small
from tests.support.quantised_models import Form, quantise
from tests.support.sessions import TRACEA, session
from tracea_onnx import optimize

#: What may be left to ONNX Runtime: conversions of integers, and products of two operands of a run,
#: with what is between them.
_LEFT: dict[str, tuple[str, ...]] = {
    "qdq": ("Cast",),
    "operators": (
        "Sub", "Div",
        "QuantizeLinear", "DequantizeLinear",
    ),
    "dynamic": (),
}  # fmt: skip


#: Of a result's largest value: a few of the steps that 8 bits make of it.
_STEPS = 0.02


def operators(made: Any) -> dict[bool, list[str]]:
    """The operators that the provider runs, and those that it does not."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for part in made.get_provider_graph_assignment_info():
        found[part.ep_name == TRACEA] += [n.op_type for n in part.get_nodes()]
    return found


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "minilm"])
@pytest.mark.parametrize("form", ["qdq", "operators", "dynamic"])
def test_quantised(name: str, form: Form, per_channel: bool) -> None:
    if form == "dynamic" and per_channel:
        pytest.skip("the tool quantises the weights of MatMulInteger as a whole")
    model = small(name)
    fed = [feeds(model, 2, 9, seed) for seed in range(3)]
    options = {"per_channel": True} if per_channel else {}
    given = quantise(model, form, fed[:2], **options)
    made = session(given, provider=True, everything=True)
    where = operators(made)
    products = [op for op in where[True] if any(k in op for k in ("Conv", "MatMul", "Gemm"))]
    left = [op for op in where[False] if op not in _LEFT[form]]
    assert products and not left, left
    exact, integers = (
        session(given, optimize=k, exact=True).run(None, fed[2]) for k in (False, True)
    )
    for got, *wanted in zip(made.run(None, fed[2]), exact, integers, strict=True):
        # sums of floats round otherwise than sums of integers, and so to another step at times
        assert any(
            got.dtype == w.dtype and np.abs(got - w).max() <= _STEPS * np.abs(w).max()
            for w in wanted
        )


@pytest.mark.parametrize("form", ["qdq", "operators", "dynamic"])
def test_groups_are_left_whole_where_onnx_runtime_is_faster(form: Form) -> None:
    model = small("resnet50")
    given = quantise(model, form, [feeds(model, 1, 9, 0)])
    where = operators(session(given, provider=True))
    assert not {"Conv", "ConvInteger", "QLinearConv", "QuantizeLinear"}.intersection(where[True])


@pytest.mark.parametrize("form", ["qdq", "dynamic"])
@pytest.mark.parametrize("name", ["resnet50", "minilm"])
def test_optimize_leaves_quantised_groups_as_they_are(name: str, form: Form) -> None:
    model = small(name)
    fed = feeds(model, 2, 9, 0)
    given = quantise(model, form, [fed])
    made = optimize(given).model
    kinds = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Conv", "MatMulInteger"}
    before, after = (
        Counter(n.op_type for n in m.graph.node if n.op_type in kinds) for m in (given, made)
    )
    assert before == after
    want, got = (session(m, optimize=False).run(None, fed) for m in (given, made))
    if form == "qdq":
        assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
