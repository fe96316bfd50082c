"""What a spec may say: what the rules write passes, and whatever else is refused in a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tracea_onnx
from tests.session.test_models import SMALL, small
from tracea_onnx.compiler.lower import LOWER
from tracea_onnx.ir import fused_op_names
from tracea_onnx.ir.contracts import Spec
from tracea_onnx.match import spec_table


def test_every_op_that_is_lowered_is_in_the_table() -> None:
    assert {f":{op}" for op in spec_table.OPS} == {kind for kind in LOWER if kind.startswith(":")}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_what_the_rules_write_passes(name: str) -> None:
    calls = list(
        fused_op_names.calls(tracea_onnx.optimize(small(name), backend="cuda", verify=False).model)
    )
    assert calls
    for n in calls:
        spec, why = spec_table.read(fused_op_names.spec_text(n))
        assert spec is not None and not why and spec_table.fault(spec, n.input, n.output) == ""


RELU = {"n_in": 1, "out": 1, "code": [["relu", [0], 0.0]]}
CONV: dict[str, Any] = {
    "strides": [1, 1],
    "dilations": [1, 1],
    "pads": [0, 0, 0, 0],
    "auto_pad": "NOTSET",
    "group": 1,
}
ATTENTION: dict[str, Any] = {
    **{k: {"layout": "bsx"} for k in ("q", "k", "v", "out")}, "num_heads": 2, "kv_heads": 2,
    "scale": 0.5, "causal": False, "mask_kind": "none",
}  # fmt: skip
WRONG: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    ("convolution", ("x", "w"), CONV, "there is no fused op 'convolution'"),
    (
        "conv",
        ("x", "w", "b", "e0"),
        CONV,
        "its expression reads another number of operands than the 1 it has",
    ),
    (
        "conv",
        ("x", "w"),
        {**CONV, "expr": {"n_in": 2, "out": 2, "code": [["add", [0, 1], 0.0]]}},
        "its expression reads another number of operands than the 0",
    ),
    ("conv", ("x", "x"), CONV, "a role is there twice"),
    ("conv", ("x", "b"), CONV, "role 'w' is not there"),
    ("conv", ("x", "w", "gamma"), CONV, "conv has no role 'gamma'"),
    (
        "conv",
        ("x", "w", "e1"),
        {**CONV, "expr": RELU},
        "its roles for the expression are not e0, e1, ...",
    ),
    ("conv", ("x", "w", "bn_scale"), CONV, "it has bn_scale alone"),
    ("conv", ("x", "w", "b", "e0", "e1", "e2"), CONV, "it has 6 roles for 5 operands"),
    (
        "conv",
        ("x", "w"),
        {**CONV, "strides": [0, 1]},
        "its strides is [0, 1], not a list of whole numbers from 1 to 2147483647",
    ),
    (
        "conv",
        ("x", "w"),
        {**CONV, "strides": [1 << 40, 1]},
        "its strides is [1099511627776, 1], not a list",
    ),
    ("conv", ("x", "w"), {**CONV, "dilations": [True, 1]}, "its dilations is [True, 1], not"),
    ("conv", ("x", "w"), {**CONV, "pads": [-1, 0, 0, 0]}, "its pads is [-1, 0, 0, 0], not"),
    (
        "conv",
        ("x", "w"),
        {**CONV, "pads": [0, 0]},
        "its strides, dilations and pads are for different numbers of dims",
    ),
    ("conv", ("x", "w"), {**CONV, "group": 0}, "its group is 0, not a whole number from 1"),
    ("conv", ("x", "w"), {**CONV, "auto_pad": "SAME"}, "its auto_pad is 'SAME', not one of NOTSET"),
    ("conv", ("x", "w"), {**CONV, "depth": 1}, "conv has no attribute 'depth'"),
    (
        "conv",
        ("x", "w"),
        {**CONV, "expr": {**RELU, "out": 2}},
        "(an expression reads a value that it does not have)",
    ),
    (
        "conv",
        ("x", "w"),
        {**CONV, "expr": {**RELU, "code": [["relu", [1], 0.0]]}},
        "malformed pointwise expression",
    ),
    (
        "conv",
        ("x", "w"),
        {**CONV, "expr": {**RELU, "code": [["relu", [0, 0], 0.0]]}},
        "(its instruction 0 gives 'relu' 2 operands)",
    ),
    (
        "conv",
        ("x", "w"),
        {**CONV, "expr": {**RELU, "code": [["relu", [0], float("inf")]]}},
        "(the constant of its instruction 0 is no number)",
    ),
    (
        "conv",
        ("x", "w"),
        {**CONV, "expr": {**RELU, "code": [["relu", [0], 0.0]] * 5000}},
        "(its code is not a list of at most 4096 instructions)",
    ),
    ("conv", ("x", "w"), {**CONV, "expr": None}, "(it has no n_in, out and code that can be read)"),
    (
        "conv_transpose",
        ("x", "w"),
        {**CONV, "output_padding": [1, 0]},
        "its output_padding is not less than its strides",
    ),
    ("gemm", ("x", "w"), {"alpha": float("nan")}, "its alpha is nan, not a finite number"),
    ("gemm", ("x", "w"), {"trans_a": 2}, "its trans_a is 2, not true or false"),
    (
        "attention",
        ("q", "k", "v"),
        {**ATTENTION, "q": {"layout": "bs999x", "index": 0}},
        "not a layout",
    ),
    (
        "attention",
        ("q", "k", "v"),
        {**ATTENTION, "q": {"layout": "bs3x", "index": 3}},
        "not a layout",
    ),
    ("attention", ("q", "k", "v"), {**ATTENTION, "q": {"layout": "bspx"}}, "not a layout"),
    (
        "attention",
        ("q", "k", "v"),
        {**ATTENTION, "out": {"layout": "bs3x"}},
        "not one of the layouts",
    ),
    (
        "attention",
        ("q", "k", "v", "mask"),
        ATTENTION,
        "its mask_kind is none, and its operands say otherwise",
    ),
    (
        "attention",
        ("q", "k", "v", "mask1"),
        {**ATTENTION, "mask1_kind": "add"},
        "it has mask1 without mask",
    ),
    (
        "attention",
        ("q", "k", "v"),
        {k: v for k, v in ATTENTION.items() if k != "kv_heads"},
        "it has no kv_heads",
    ),
    (
        "swiglu",
        ("x", "w_gate", "w"),
        {"expr": {"n_in": 2, "out": 2, "code": [["mul", [0, 1], 0.0]]}},
        "it has neither one weight and a split nor two weights",
    ),
    ("swiglu", ("x", "w_gate", "w_up"), {"expr": RELU}, "its expression has 1 inputs, not 2"),
    ("pointwise", ("x1", "x0"), {"expr": RELU}, "its roles are not x0, x1, ..."),
    ("pointwise", ("x0", "x1"), {"expr": RELU}, "its expression has 1 inputs, not 2"),
    (
        "groupnorm",
        ("x",),
        {"groups": -2, "eps": 1e-5},
        "its groups is -2, not a whole number from -1",
    ),
    (
        "squeeze_excite",
        ("x", "w1", "w2"),
        {"kind": "conv", "expr1": {**RELU, "n_in": 2}},
        "its expressions have more than one input",
    ),
]


@pytest.mark.parametrize(("op", "roles", "attrs", "why"), WRONG)
def test_whatever_else_is_refused(
    op: str, roles: tuple[str, ...], attrs: dict[str, Any], why: str
) -> None:
    said = spec_table.fault(Spec(op, roles, attrs), ["a", "b", "c", "d", "e"], ["y"])
    assert why in said and "\n" not in said


def test_results_are_counted() -> None:
    norm = {"axis": -1, "eps": 1e-5}
    assert spec_table.fault(Spec("layernorm", ("x", "res"), norm), ["a", "b"], ["y", "sum"]) == ""
    assert "a sum as its result" in spec_table.fault(
        Spec("layernorm", ("x",), norm), ["a"], ["y", "sum"]
    )
    assert "it has 2 results" in spec_table.fault(
        Spec("softmax", ("x",), {"axis": -1}), ["a"], ["y", "z"]
    )
    assert "roles for" in spec_table.fault(Spec("layernorm", ("x", "res"), norm), ["a", ""], ["y"])


BADLY_MADE: list[dict[str, Any]] = [
    {"op": "conv", "roles": [1], "attrs": {}},
    {"op": 1, "roles": [], "attrs": {}},
    {"op": "conv", "roles": ["x"]},
]


@pytest.mark.parametrize(
    "text", [None, "", "[" * 100_000, "{}", "[1]", *map(json.dumps, BADLY_MADE)]
)
def test_what_cannot_be_read_is_no_spec(text: str | None) -> None:
    spec, why = spec_table.read(text)
    assert spec is None and why
