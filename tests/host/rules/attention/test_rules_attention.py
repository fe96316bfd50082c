"""Attention rule: every way to write scale, mask, head split and cleanup means what the spec
says.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.host.rules.attention.attention_graphs import (
    SCALES,
    SPLITS,
    B,
    D,
    F,
    H,
    Net,
    S,
    T,
    X,
    close,
    ints,
    plain,
    whole,
)
from tests.host.rules.rules_oracle import Array, only, reason
from tests.host.rules.rules_oracle_attention import check_spec


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("scale", SCALES)
def test_scale_and_head_split(scale: str, split: str) -> None:
    for key_perm in (True, False):
        n, s = plain(scale, split, key_perm=key_perm)
        m = close(n, s, split)
        a = whole(m)
        assert (a["num_heads"], a["kv_heads"], a["mask_kind"], a["causal"]) == (H, H, "none", False)
        assert a["scale"] == pytest.approx(1.0 if scale == "none" else 0.5, rel=1e-6)
        assert len(only(m, "attention").nodes) == len(m.graph.node)


@pytest.mark.parametrize("split", ["zeros", "minus one", "tower", "slices"])
def test_symbolic_batch(split: str) -> None:
    n, s = plain("div", split, batch="batch")
    whole(close(n, s, split), sizes={"batch": 3})


MASKS: dict[str, tuple[tuple[int, ...], str]] = {
    "add": ((B, 1, S, T), "add"),
    "add per key": ((B, 1, 1, T), "add"),
    "add rank two": ((S, T), "add"),
    "add per head": ((1, H, S, T), "add"),
    "where keep": ((B, 1, S, T), "bool"),
    "where drop": ((B, 1, S, T), "drop"),
    "where keep rank two": ((S, T), "bool"),
}


@pytest.mark.parametrize("cleanup", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, cleanup: bool) -> None:
    n, s = plain()
    shape, kind = MASKS[mask]
    n.inputs["mask"] = shape
    rng = np.random.default_rng(3)
    feeds: dict[str, Array] = {
        c: rng.standard_normal((B, S if c == "q" else T, X)).astype(F) for c in "qkv"
    }
    if kind == "add":
        s = n.add("Add", "mask", s)
        feeds["mask"] = np.where(
            rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape)
        ).astype(F)
        if cleanup:
            feeds["mask"].reshape(-1, shape[-1])[0] = -np.inf  # a row without a visible key
    else:
        n.types["mask"] = TensorProto.BOOL
        fill = n.const(F(-3.4028235e38 if not cleanup else -np.inf))
        s = n.add("Where", "mask", s, fill) if kind == "bool" else n.add("Where", "mask", fill, s)
        feeds["mask"] = rng.random(shape) < 0.6
        feeds["mask"].reshape(-1, shape[-1])[0] = kind == "drop"
    a = whole(close(n, s, cleanup=cleanup), feeds=feeds)
    assert (a["mask_kind"], a["nan_to_zero"]) == (kind, cleanup)


@pytest.mark.parametrize("fill", [-np.inf, -3.4028235e38, -1e9])
@pytest.mark.parametrize("form", ["keep", "drop", "not"])
def test_additive_mask_made_from_a_boolean_one(form: str, fill: float) -> None:
    """Where(mask, 0, fill) is read as the boolean mask when adding the fill swallows any score; a
    smaller fill lets scores of hidden keys show.
    """
    n, s = plain()
    n.inputs["mask"] = (B, 1, S, T)
    n.types["mask"] = TensorProto.BOOL
    keep = n.add("Not", "mask") if form == "not" else "mask"
    values = (n.const(F(0.0)), n.const(F(fill)))
    m = close(
        n,
        n.add("Add", s, n.add("Where", keep, *(values if form != "drop" else values[::-1]))),
        cleanup=True,
    )
    rng = np.random.default_rng(5)
    feeds: dict[str, Array] = {
        c: rng.standard_normal((B, S if c == "q" else T, X)).astype(F) for c in "qkv"
    }
    feeds["mask"] = rng.random((B, 1, S, T)) < 0.5
    feeds["mask"][..., 0, :], feeds["mask"][..., 1, :] = True, False
    if fill == -1e9:
        feeds["mask"][..., :2, 0] = [True, False]
        feeds["mask"][..., :2, 1] = [False, True]
    a = whole(m, feeds=feeds)
    assert a["mask_kind"] == ("add" if fill == -1e9 else "bool" if form == "keep" else "drop")
    assert only(m, "attention").inputs[3] == (
        "mask" if fill != -1e9 else next(x.output[0] for x in m.graph.node if x.op_type == "Where")
    )


@pytest.mark.parametrize("softmax", ["div", "reciprocal"])
@pytest.mark.parametrize("masked", [False, True])
def test_softmax_from_its_parts(softmax: str, masked: bool) -> None:
    n, s = plain()
    if masked:
        n.inputs["mask"] = (B, 1, S, T)
        s = n.add("Add", s, "mask")
    assert whole(close(n, s, softmax=softmax))["mask_kind"] == ("add" if masked else "none")


def test_exponentials_without_their_maximum_refuse() -> None:
    """exp(x) / sum(exp(x)) is NaN from x = 89 on, where softmax is not."""
    n, s = plain()
    assert "overflows" in reason(close(n, s, softmax="no maximum"), "attention", "n_t")


def test_learned_queries_are_an_operand_and_a_layer_is_not() -> None:
    n = Net(k=(B, H, D, T), v=(B, H, T, D))
    queries = n.const(np.random.default_rng(0).standard_normal((B, H, S, D)))
    m = n.model(n.add("MatMul", n.add("Softmax", n.add("MatMul", queries, "k"), axis=-1), "v"))
    assert only(m, "attention").inputs[0] == queries
    whole(m, ("bhsd", "bhds", "bhsd", "bhsd"))
    n = Net(x=(B, H, S, D), v=(B, H, T, D))
    m = n.model(
        n.add(
            "MatMul",
            n.add("Softmax", n.add("MatMul", "x", n.const(np.ones((D, T), F))), axis=-1, name="p"),
            "v",
        )
    )
    assert "not a matrix multiplication" in reason(m, "attention", "n_p")


def test_two_masks_apply_in_order() -> None:
    n, s = plain()
    n.inputs |= {"bias": (1, H, S, T), "mask": (B, 1, 1, T)}
    m = close(n, n.add("Add", n.add("Add", s, "bias"), "mask"))
    match = only(m, "attention")
    assert match.spec.roles == ("q", "k", "v", "mask", "mask1")
    assert match.inputs[3:] == ("bias", "mask")
    check_spec(m, match)


def test_three_masks_apply_in_order() -> None:
    """A bias by place, and a mask that is added twice: Swin v2."""
    n, s = plain()
    n.inputs |= {"bias": (1, H, S, T), "mask": (B, 1, S, T)}
    m = close(n, n.add("Add", n.add("Add", n.add("Add", s, "bias"), "mask"), "mask"))
    match = only(m, "attention")
    assert match.spec.roles == ("q", "k", "v", "mask", "mask1", "mask2")
    assert match.inputs[3:] == ("bias", "mask", "mask")
    check_spec(m, match)


def test_mask_computed_in_the_graph_is_an_operand() -> None:
    n, s = plain()
    n.inputs["keep"] = (B, 1, 1, T)
    mask = n.add("Mul", n.add("Sub", n.const(F(1.0)), "keep"), n.const(F(-10000.0)))
    match = only(close(n, n.add("Add", s, mask)), "attention")
    assert match.inputs[3] == mask


CAUSAL = (
    "multiplied and subtracted",
    "constant add",
    "constant where",
    "trilu tower",
    "triu",
    "range",
    "range greater",
    "sliced constant",
)


@pytest.mark.parametrize("length", [S, S + 2])
@pytest.mark.parametrize("how", CAUSAL)
def test_causal(how: str, length: int) -> None:
    n, s = plain(length=length)
    past = 0
    if how == "constant add":
        s = n.add(
            "Add",
            s,
            n.const(
                np.where(np.tri(S, length, dtype=bool), 0, -np.inf)
                .astype(F)
                .reshape(1, 1, S, length)
            ),
        )
    elif how == "multiplied and subtracted":
        past = length - S
        table = n.const(np.tri(16, dtype=F).reshape(1, 1, 16, 16))
        b = n.add(
            "Slice",
            table,
            n.const(ints(past, 0)),
            n.const(ints(length, length)),
            n.const(ints(2, 3)),
        )
        s = n.add(
            "Sub",
            n.add("Mul", s, b),
            n.add("Mul", n.add("Sub", n.const(F(1.0)), b), n.const(F(10000.0))),
        )
    elif how == "constant where":
        s = n.add("Where", n.const(np.tri(S, length, dtype=bool)), s, n.const(F(-1e9)))
    elif how == "trilu tower":
        q, k = n.add("Shape", "q"), n.add("Shape", "k")
        size = n.add(
            "Concat",
            *(n.add("Slice", t, n.const(ints(1)), n.const(ints(2))) for t in (q, k)),
            axis=0,
        )
        lower = n.add("Trilu", n.add("Expand", n.const(np.ones(1, F)), size), upper=0)
        s = n.add(
            "Add",
            s,
            n.add(
                "Where",
                n.add("Equal", lower, n.const(F(0.0))),
                n.const(F(-np.inf)),
                n.const(F(0.0)),
            ),
        )
    elif how == "triu":
        full = n.add("ConstantOfShape", n.const(ints(S, length)), value=_tensor(-3.4e38))
        s = n.add("Add", s, n.add("Trilu", full, n.const(np.array(1)), upper=1))
    elif how in ("range", "range greater"):
        rows, columns = (
            n.add("Range", n.const(np.array(0)), n.const(np.array(e)), n.const(np.array(1)))
            for e in (S, length)
        )
        column, row = (
            n.add("Unsqueeze", columns, n.const(ints(0))),
            n.add("Unsqueeze", rows, n.const(ints(1))),
        )
        keep = (
            n.add("LessOrEqual", column, row)
            if how == "range"
            else n.add("Not", n.add("Greater", column, row))
        )
        s = n.add("Where", keep, s, n.const(F(-1e9)))
    else:
        past = length - S
        table = n.const(np.tri(16, dtype=bool).reshape(1, 1, 16, 16))
        ranges = (n.const(ints(past, 0)), n.const(ints(length, length)), n.const(ints(2, 3)))
        s = n.add("Where", n.add("Slice", table, *ranges), s, n.const(F(-1e4)))
    a = whole(close(n, s, opset=14, length=length))
    assert (a["causal"], a["past"], a["mask_kind"]) == (True, past, "none")


def _tensor(value: float) -> TensorProto:
    return helper.make_tensor("value", TensorProto.FLOAT, [1], [value])


@pytest.mark.parametrize("form", ["other diagonal", "weak", "upper", "band", "by head"])
def test_constant_masks_that_are_not_causal_stay_operands(form: str) -> None:
    table = np.where(np.tri(S, T, dtype=bool), 0, -np.inf).astype(F)
    table = {
        "other diagonal": np.where(np.tri(S, T, -1, dtype=bool), 0, -np.inf).astype(F),
        "weak": np.where(np.tri(S, T, dtype=bool), 0, -1.0).astype(F),
        "upper": table[::-1, ::-1],
        "band": np.where(
            np.tri(S, T, 1, dtype=bool) & ~np.tri(S, T, -2, dtype=bool), 0, -1e9
        ).astype(F),
        "by head": np.stack([table, np.zeros_like(table), table])[None],
    }[form]
    n, s = plain()
    a = whole(close(n, n.add("Add", s, n.const(table))))
    assert (a["causal"], a["mask_kind"]) == (False, "add")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("cap", "how"), [(50.0, "div"), (0.5, "div"), (0.5, "mul"), (2.0, "scale folded")]
)
def test_capped_scores(cap: float, how: str, masked: bool) -> None:
    """cap * tanh(scores / cap), as Gemma 2 has it, before a mask is added."""
    n, s = plain("none" if how == "scale folded" else "mul")
    inner = {"div": ("Div", cap), "mul": ("Mul", 1 / cap), "scale folded": ("Mul", 0.5 / cap)}[how]
    s = n.add("Mul", n.const(F(cap)), n.add("Tanh", n.add(inner[0], s, n.const(F(inner[1])))))
    if masked:
        n.inputs["mask"] = (B, 1, S, T)
        s = n.add("Add", s, "mask")
    m = close(n, s)
    a = whole(m)
    assert (
        a["scale"] == pytest.approx(0.5, rel=1e-6)
        and a["softcap"] == pytest.approx(cap)
        and a["mask_kind"] == ("add" if masked else "none")
    )
    assert len(only(m, "attention").nodes) == len(m.graph.node)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rank", [3, 4])
def test_factors_for_each_head(rank: int, masked: bool) -> None:
    """Cosine attention of Swin V2: products of normalised queries and keys times a learned factor
    for each head, and a bias.
    """
    n = Net(q=(B, H, S, D), k=(B, H, D, T), v=(B, H, T, D), bias=(1, H, S, T))
    q, k = (n.add("LpNormalization", x, axis=axis) for x, axis in (("q", 3), ("k", 2)))
    factors = np.linspace(0.5, 9, H).astype(F).reshape((1,) * (rank - 3) + (H, 1, 1))
    s = n.add("Mul", n.add("MatMul", q, k), n.const(factors))
    s = n.add("Add", s, "bias") if masked else s
    m = n.model(n.add("MatMul", n.add("Softmax", s, axis=-1, name="p"), "v"))
    a = whole(m, ("bhsd", "bhds", "bhsd", "bhsd"))
    match = only(m, "attention")
    assert match.spec.roles[-1] == "head_scale" and a["mask_kind"] == ("add" if masked else "none")
    assert [x.op for x in match.nodes] == [
        "MatMul",
        "Mul",
        *(["Add"] if masked else []),
        "Softmax",
        "MatMul",
    ]
