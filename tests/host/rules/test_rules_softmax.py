"""Softmax rule: axes before and after opset 13, logarithms, the decomposed form, and what it
declines.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from tests.host.rules.rules_oracle import find, model, node, only, reason
from tests.host.rules.rules_oracle_attention import check_spec


def build(
    nodes: list[NodeProto],
    *,
    shape: tuple[int | str, ...] = (2, 3, 5),
    opset: int = 13,
    outputs: tuple[str, ...] = ("y",),
    axis: int = -1,
) -> ModelProto:
    constants = {"ax": np.array([axis]), "other": np.array([0])}
    used = {i for n in nodes for i in n.input}
    return model(
        nodes, {"x": shape}, outputs, {k: v for k, v in constants.items() if k in used}, opset=opset
    )


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, None])
def test_operator(op: str, axis: int | None) -> None:
    m = build([node(op, "x", "y", **({} if axis is None else {"axis": axis}))])
    match = only(m, "softmax")
    assert match.spec.attrs["axis"] == (-1 if axis is None else axis - 3 if axis >= 0 else axis)
    check_spec(m, match)


def test_log_of_softmax() -> None:
    m = build([node("Softmax", "x", "p", axis=1), node("Log", "p", "y")])
    match = only(m, "softmax")
    assert match.spec.attrs["log"]
    check_spec(m, match)
    m = build([node("Softmax", "x", "p"), node("Log", "p", "y")], outputs=("y", "p"))
    assert not only(m, "softmax").spec.attrs["log"]


def test_before_opset_13_later_axes_are_flattened() -> None:
    m = build([node("Softmax", "x", "y", axis=2)], opset=11)
    check_spec(m, only(m, "softmax"))
    m = build([node("Softmax", "x", "y")], opset=11, shape=(2, 3, 1, 1))
    match = only(m, "softmax")
    assert match.spec.attrs["axis"] == -3
    check_spec(m, match)
    assert "flattens" in reason(build([node("Softmax", "x", "y")], opset=11), "softmax", "n_y")


def decomposed(**change: NodeProto) -> list[NodeProto]:
    nodes = [
        node("ReduceMax", "x", "m", axes=[1], keepdims=1),
        node("Sub", "x m", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e ax", "t"),
        node("Div", "e t", "y"),
    ]
    return [change.get(n.output[0], n) for n in nodes]


def test_decomposed() -> None:
    m = build(decomposed(), axis=1)
    match = only(m, "softmax")
    assert len(match.nodes) == 5
    check_spec(m, match)


@pytest.mark.parametrize("log", [False, True])
def test_decomposed_with_a_reciprocal_or_a_logarithm(log: bool) -> None:
    tail = (
        [node("Log", "t", "l"), node("Sub", "d l", "y")]
        if log
        else [node("Reciprocal", "t", "l"), node("Mul", "l e", "y")]
    )
    m = build([*decomposed()[:-1], *tail], axis=1)
    match = only(m, "softmax")
    assert match.spec.attrs["log"] == log
    check_spec(m, match)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"t": node("ReduceSum", "e other", "t")}, "same single axis"),
        ({"y": node("Div", "t e", "y")}, "does not divide"),
        ({"e": node("Sigmoid", "d", "e")}, "does not sum"),
        ({"d": node("Sub", "m x", "d")}, "does not sum"),
    ],
)
def test_near_misses_refuse(change: dict[str, NodeProto], why: str) -> None:
    assert why in reason(build(decomposed(**change), axis=1), "softmax", "n_t")


def test_exposed_exponentials_refuse() -> None:
    _, matches, refusals = find(build(decomposed(), axis=1, outputs=("y", "e")), "softmax")
    assert not matches
    assert "output" in refusals[0].reason
