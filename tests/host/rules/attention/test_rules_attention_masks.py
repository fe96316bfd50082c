"""Masks that are scaled, subtracted, repeated, lifted or stacked; rows with nothing left to see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.host.rules.attention.attention_graphs import B, D, F, H, Net, S, T, close, plain, whole
from tests.host.rules.rules_oracle import only, reason
from tests.host.rules.rules_oracle_attention import check_spec

LOWEST = np.finfo(F).min


@pytest.mark.parametrize("how", ["scaled", "subtracted", "both"])
def test_additive_masks_keep_their_factor(how: str) -> None:
    n, s = plain("none")
    n.inputs["mask"] = (B, 1, S, T)
    s = n.add("Sub" if how != "scaled" else "Add", s, "mask")
    s = n.add("Div", s, n.const(F(4.0))) if how != "subtracted" else s
    a = whole(close(n, s))
    assert a["mask_scale"] == {"scaled": 0.25, "subtracted": -1.0, "both": -0.25}[how]


def test_two_masks_keep_their_own_factors() -> None:
    n, s = plain("none")
    n.inputs |= {"mask": (B, 1, S, T), "bias": (1, H, S, T)}
    s = n.add("Sub", n.add("Mul", n.add("Add", "bias", s), n.const(F(0.5))), "mask")
    a = whole(close(n, s))
    assert (a["mask_scale"], a["mask1_scale"]) == (0.5, -1.0)


def _hidden(n: Net, fill: Any, batch: int = B) -> str:
    """A mask as exporters write it: Where(keep, 0, fill), its batch's first row fully hidden."""
    n.inputs["keep"], n.types["keep"] = (batch, 1, 1, T), TensorProto.BOOL
    return n.add("Where", "keep", n.const(F(0)), n.const(F(fill)))


def _feeds(m: Any) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    out = {}
    for i in m.graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        out[i.name] = rng.standard_normal(shape).astype(F)
    rows = m.graph.input[-1].type.tensor_type.shape.dim[2].dim_value
    out["keep"] = np.ones((B, 1, rows, T), bool)
    out["keep"][0, ..., :4] = False  # the first rows of a causal matrix have nothing left
    out["keep"][1] = False
    return out


@pytest.mark.parametrize("fill", [LOWEST, -np.inf])
@pytest.mark.parametrize("causal", [LOWEST, -np.inf])
@pytest.mark.parametrize("lift", [False, True])
def test_rows_with_nothing_left_to_see(fill: float, causal: float, lift: bool) -> None:
    """A causal mask and another one: what a fully masked row becomes depends on what each of them
    writes.
    """
    n = Net(q=(B, H, T, D), k=(B, H, D, T), v=(B, H, T, D))
    s = n.add(
        "Where",
        n.const(np.tri(T, dtype=bool)[None, None]),
        n.add("MatMul", "q", "k"),
        n.const(F(causal)),
    )
    s = n.add("Add", s, _hidden(n, fill))
    s = n.add("Max", s, n.const(F(LOWEST))) if lift else s
    m = n.model(n.add("MatMul", n.add("Softmax", s, axis=-1, name="p"), "v"))
    match = only(m, "attention")
    assert match.spec.attrs["causal"] == (causal == -np.inf and not lift)
    with np.errstate(all="ignore"):
        check_spec(m, match, feeds=_feeds(m))


def _cleared(kind: str, fill: float, *, other: bool = False, value: float = 0.0) -> Any:
    """The probabilities of what a mask hides are overwritten once more."""
    n = Net(q=(B, H, S, D), k=(B, H, D, T), v=(B, H, T, D), keep=(B, 1, 1, T))
    n.types["keep"] = TensorProto.BOOL

    def order(seen: str, hidden: str) -> tuple[str, str]:
        return (seen, hidden) if kind == "bool" else (hidden, seen)

    p = n.add(
        "Softmax",
        n.add("Where", "keep", *order(n.add("MatMul", "q", "k"), n.const(F(fill)))),
        axis=-1,
        name="p",
    )
    again = n.add("Not", "keep") if other else "keep"
    return n.model(
        n.add("MatMul", n.add("Where", again, *order(n.add("Dropout", p), n.const(F(value)))), "v")
    )


@pytest.mark.parametrize("kind", ["bool", "drop"])
@pytest.mark.parametrize("fill", [LOWEST, -np.inf])
def test_probabilities_cleared_by_the_mask_of_the_scores(kind: str, fill: float) -> None:
    m = _cleared(kind, fill)
    match = only(m, "attention")
    assert match.spec.attrs["nan_to_zero"]
    with np.errstate(all="ignore"):
        check_spec(m, match, feeds=_feeds(m))


@pytest.mark.parametrize("change", [{"other": True}, {"value": 0.5}, {"fill": -1e5}])
def test_probabilities_overwritten_otherwise_refuse(change: dict[str, Any]) -> None:
    assert "overwrites probabilities" in reason(
        _cleared("bool", **{"fill": LOWEST, **change}), "attention", "n_p"
    )


def test_lifted_scores_of_one_causal_mask() -> None:
    n = Net(q=(B, H, T, D), k=(B, H, D, T), v=(B, H, T, D))
    s = n.add("Add", n.add("MatMul", "q", "k"), n.const(np.triu(np.full((T, T), -np.inf, F), 1)))
    s = n.add("Clip", s, n.const(F(LOWEST)))
    a = whole(
        n.model(n.add("MatMul", n.add("Softmax", s, axis=-1), "v")),
        ("bhsd", "bhds", "bhsd", "bhsd"),
    )
    assert a["causal"]
    assert a["mask_kind"] == "none"


@pytest.mark.parametrize("second", [False, True])
def test_scores_multiplied_by_a_triangle(second: bool) -> None:
    """The first GPT: w * b + -10000 * (1 - b); with another mask behind it a fully masked row would
    see the future.
    """
    n = Net(q=(B, H, T, D), k=(B, H, D, T), v=(B, H, T, D))
    tri = np.tri(T, dtype=F)[None, None]
    s = n.add(
        "Add", n.add("Mul", n.add("MatMul", "q", "k"), n.const(tri)), n.const(-1e4 * (1 - tri))
    )
    s = n.add("Add", s, _hidden(n, LOWEST)) if second else s
    m = n.model(n.add("MatMul", n.add("Softmax", s, axis=-1, name="p"), "v"))
    if second:
        assert "multiplied by a triangle" in reason(m, "attention", "n_p")
    else:
        assert whole(m, ("bhsd", "bhds", "bhsd", "bhsd"))["causal"]


def test_a_mask_repeated_to_the_shape_of_the_scores_is_read_from_before() -> None:
    n, s = plain("none")
    n.inputs["hide"], n.types["hide"] = (B, 1, 1, T), TensorProto.BOOL
    m = close(n, n.add("Where", n.add("Expand", "hide", n.add("Shape", s)), n.const(F(LOWEST)), s))
    match = only(m, "attention")
    assert match.inputs[match.spec.roles.index("mask")] == "hide"
    check_spec(m, match)


def test_an_expand_that_enlarges_the_scores_refuses() -> None:
    n = Net(q=(1, H, S, D), k=(1, H, D, T), v=(1, H, T, D), mask=(1, 1, S, T))
    s = n.add(
        "Add", n.add("MatMul", "q", "k"), n.add("Expand", "mask", n.const(np.array([B, 1, S, T])))
    )
    m = n.model(n.add("MatMul", n.add("Softmax", s, axis=-1, name="p"), "v"))
    assert "does not broadcast" in reason(m, "attention", "n_p")


@pytest.mark.parametrize("kind", ["bool", "inf"])
@pytest.mark.parametrize("causal", [0, 1])
def test_the_operator_gives_zeros_for_rows_with_nothing_left_to_see(kind: str, causal: int) -> None:
    n = Net(q=(B, H, T, D), k=(B, H, T, D), v=(B, H, T, D))
    mask = _hidden(n, -np.inf)
    n.inputs["keep"] = (B, 1, T, T)
    y = n.add("Attention", "q", "k", "v", "keep" if kind == "bool" else mask, is_causal=causal)
    m = n.model(y, opset=23)
    m.ir_version = 10
    match = only(m, "attention_op")
    check_spec(m, match, feeds=_feeds(m))


@pytest.mark.parametrize("masked", [False, True])
def test_softmax_over_flattened_rows(masked: bool) -> None:
    """Reshape to [batch * heads * queries, keys], Softmax, Reshape back; a mask met there could not
    be told by batch and head.
    """
    n = Net(q=(B, H, S, D), k=(B, H, D, T), v=(B, H, T, D), mask=(B * H * S, T))
    s = n.add("Reshape", n.add("MatMul", "q", "k"), n.const(np.array([-1, T])))
    s = n.add("Add", s, "mask") if masked else s
    p = n.add("Reshape", n.add("Softmax", s, axis=-1, name="p"), n.const(np.array([B, H, S, T])))
    m = n.model(n.add("MatMul", p, "v"))
    if masked:
        assert "does not broadcast" in reason(m, "attention", "n_p")
    else:
        whole(m, ("bhsd", "bhds", "bhsd", "bhsd"))


def test_rows_regrouped_after_softmax_refuse() -> None:
    n = Net(q=(2, 2, 4, D), k=(2, 2, D, T), v=(2, 4, T, D))
    p = n.add(
        "Reshape",
        n.add("Softmax", n.add("MatMul", "q", "k"), axis=-1, name="p"),
        n.const(np.array([2, 4, 2, T])),
    )
    assert "regroups the rows" in reason(n.model(n.add("MatMul", p, "v")), "attention", "n_p")
