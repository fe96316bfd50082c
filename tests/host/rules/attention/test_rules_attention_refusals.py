"""Attention rule: near misses refuse with a sentence; values needed elsewhere stay."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.host.rules.attention.attention_graphs import (
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
    split_heads,
    whole,
)
from tests.host.rules.rules_oracle import find, node, reason
from tests.host.rules.rules_oracle_attention import check_spec


def test_wrong_axis_refuses() -> None:
    for axis in (0, 1, 2, -2):
        n, s = plain()
        y = n.add(
            "MatMul", n.add("Softmax", s, axis=axis, name="p"), split_heads(n, "v", "constant", T)
        )
        assert "axis" in reason(n.model(y), "attention", "n_p")


def test_softmax_before_opset_13_needs_the_last_axis() -> None:
    n = Net(q=(B, H, S, D), k=(B, H, D, T), v=(B, H, T, D))
    y = n.add("MatMul", n.add("Softmax", n.add("MatMul", "q", "k"), name="p"), "v")
    assert "axes after 1 into one" in reason(n.model(y, opset=11), "attention", "n_p")
    n.nodes[1].attribute.append(node("X", "", "x", axis=3).attribute[0])
    whole(n.model(y, opset=11), ("bhsd", "bhds", "bhsd", "bhsd"))


def inner_values() -> list[str]:
    n, s = plain("mul")
    close(n, n.add("Add", s, n.const(np.zeros((1, 1, S, T), F))))
    return [x.output[0] for x in n.nodes]


@pytest.mark.parametrize("use", ["reader", "output"])
@pytest.mark.parametrize("value", inner_values()[:-1])
def test_a_value_needed_elsewhere_stays(value: str, use: str) -> None:
    """Scores and probabilities refuse; a view of an operand or of the result becomes the operand or
    the result.
    """
    n, s = plain("mul")
    n.inputs["mask"] = (1, 1, S, T)
    m = close(n, n.add("Add", s, "mask"))
    if use == "reader":
        m.graph.node.append(node("Relu", value, "extra"))
        m.graph.output.append(type(m.graph.output[0])(name="extra", type=m.graph.output[0].type))
        m.graph.output[-1].type.tensor_type.ClearField("shape")
    else:
        m.graph.output.append(next(v for v in m.graph.value_info if v.name == value))
    _, matches, refusals = find(m, "attention")
    ops = {x.output[0]: x.op_type for x in m.graph.node}
    first_product = next(x.output[0] for x in m.graph.node if x.op_type == "MatMul")
    core = value == first_product or ops[value] in ("Mul", "Add", "Softmax")
    assert bool(matches) != core
    if core:
        assert refusals[0].near
        assert f"'{value}'" in refusals[0].reason
    else:
        check_spec(m, matches[0])


def test_captured_by_a_body_counts_as_a_use() -> None:
    n, s = plain()
    m = close(n, s)
    body = helper.make_graph(
        [node("Identity", "p", "inner")],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    m.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    m.graph.node.append(
        helper.make_node("If", ["flag"], ["branch"], then_branch=body, else_branch=body, name="if")
    )
    m.graph.output.append(helper.make_tensor_value_info("branch", TensorProto.FLOAT, None))
    assert "read by 2 nodes" in reason(m, "attention", "n_p")


REFUSALS = (
    "scale at run time",
    "overridable scale",
    "scale per key",
    "bounded scores",
    "unknown mask lifted",
    "four masks",
    "weak fill",
    "fill per key",
    "dropout in training",
    "mask widens",
    "probabilities rescaled",
    "probabilities on the right",
    "values scaled",
    "batched keys",
    "masked values",
    "nan to one",
    "probabilities rounded",
)


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals(what: str) -> None:
    n, s = plain("none")
    n.inputs |= {"mask": (B, 1, S, T), "f": (1,)}
    kw: dict[str, Any] = {}
    after = None
    why = ""
    if what == "scale at run time":
        s, why = n.add("Mul", s, "f"), "not a constant scalar"
    elif what == "overridable scale":
        factor = n.const(F(0.5))
        s, why, kw = n.add("Mul", s, factor), "not a constant scalar", {"overridable": (factor,)}
    elif what == "scale per key":
        s, why = n.add("Mul", s, n.const(np.ones((1, 1, T), F))), "not a constant scalar"
    elif what == "bounded scores":
        s, why = n.add("Max", s, n.const(F(-5.0))), "bounds the scores"
    elif what == "unknown mask lifted":
        s, why = (
            n.add("Max", n.add("Add", s, "mask"), n.const(np.finfo(F).min)),
            "of unknown content",
        )
    elif what == "four masks":
        for _ in range(4):
            s = n.add("Add", s, "mask")
        why = "more than three masks"
    elif what in ("weak fill", "fill per key"):
        n.types["mask"] = TensorProto.BOOL
        fill = n.const(
            F(-5.0) if what == "weak fill" else np.full(T, -1e9, F) * np.arange(1, T + 1, dtype=F)
        )
        s, why = (
            n.add("Where", "mask", s, fill),
            "a mask writes -10000 or less" if what == "weak fill" else "not one constant",
        )
    elif what == "mask widens":
        n = Net(q=(1, H, S, D), k=(1, H, D, T), v=(1, H, T, D), mask=(B, 1, S, T))
        s, why = n.add("Add", n.add("MatMul", "q", "k"), "mask"), "does not broadcast"
        after = "v"
    elif what == "batched keys":
        n = Net(q=(B, H, S, D), k=(1, H, D, T), v=(B, H, T, D))
        s, why, after = n.add("MatMul", "q", "k"), "different batch sizes", "v"
    p = n.add("Softmax", s, axis=-1, name="p")
    v = after or split_heads(n, "v", "constant", T)
    if what == "dropout in training":
        p, why = n.add("Dropout", p, n.const(F(0.5)), n.const(np.array(True))), "training"
    elif what == "probabilities rescaled":
        p, why = n.add("Mul", p, "mask"), "stands between Softmax and"
    elif what == "masked values":
        p, why = n.add("Where", n.add("IsNaN", p), p, n.const(F(0.0))), "is read by 2 nodes"
    elif what == "nan to one":
        p, why = n.add("Where", n.add("IsNaN", p), n.const(F(1.0)), p), "other than 0"
    elif what == "probabilities rounded":
        p, why = (
            n.add("Cast", n.add("Cast", p, to=TensorProto.FLOAT16), to=TensorProto.FLOAT),
            "rounds to a narrower type",
        )
    elif what == "values scaled":
        v, why = (
            n.add("Mul", v, n.const(F(2.0))),
            "are scaled; the fused kernel scales the scores only",
        )
    if what == "probabilities on the right":
        n.inputs["w"] = (B, H, D, S)
        y, why = n.add("MatMul", "w", p), "left operand"
    else:
        y = n.add("MatMul", p, v)
    assert why in reason(n.model(y, **kw), "attention", "n_p")


def test_a_classifier_is_not_nearly_attention() -> None:
    n = Net(x=(B, X))
    m = n.model(n.add("Softmax", n.add("MatMul", "x", n.const(np.ones((X, 5), F))), axis=-1))
    assert not find(m, "attention")[2][0].near


@pytest.mark.parametrize(
    ("perm_q", "perm_k"),
    list(
        itertools.product(
            [(0, 2, 1, 3), (0, 2, 3, 1), (2, 0, 1, 3)], [(0, 2, 3, 1), (0, 1, 3, 2), (0, 2, 1, 3)]
        )
    ),
)
def test_wrong_transposes_are_described_truthfully_or_refused(
    perm_q: tuple[int, ...], perm_k: tuple[int, ...]
) -> None:
    """With every dim equal any permutation is a legal graph; what matches must compute the same."""
    n = Net(q=(4, 4, 16), k=(4, 4, 16), v=(4, 4, 16))
    q, k, v = (
        n.add("Transpose", n.add("Reshape", c, n.const(ints(4, 4, 4, 4))), perm=list(p))
        for c, p in (("q", perm_q), ("k", perm_k), ("v", (0, 2, 1, 3)))
    )
    y = n.add("MatMul", n.add("Softmax", n.add("MatMul", q, k), axis=-1), v)
    m = n.model(n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.const(ints(4, 4, 16))))
    for match in find(m, "attention")[1]:
        check_spec(m, match)


def test_values_in_another_type_than_the_queries_refuse() -> None:
    """nn.MultiheadAttention in half precision with a float32 mask: from the mask on everything is
    float32.
    """
    n = Net(**dict.fromkeys("qkv", (B, H, S, D)))
    n.types |= dict.fromkeys("qkv", TensorProto.FLOAT16)
    s = n.add(
        "Cast",
        n.add("MatMul", "q", n.add("Transpose", "k", perm=[0, 1, 3, 2])),
        to=TensorProto.FLOAT,
    )
    y = n.add(
        "MatMul", n.add("Softmax", s, axis=-1, name="p"), n.add("Cast", "v", to=TensorProto.FLOAT)
    )
    assert "not all of one element type" in reason(n.model(y), "attention", "n_p")


@pytest.mark.parametrize("value", ["scale", "fill", "table"])
def test_bfloat16_constants_are_read(value: str) -> None:
    n = Net(q=(B, H, S, D), k=(B, H, D, S), v=(B, H, S, D))
    n.types |= dict.fromkeys("qkv", TensorProto.BFLOAT16)
    s = n.add("MatMul", "q", "k")
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    triangle = np.tri(S)
    if value == "scale":
        s = n.add("Mul", s, n.const(np.array(0.5, kind)))
    elif value == "fill":
        s = n.add("Where", n.const(triangle.astype(bool)), s, n.const(np.array(-3e38, kind)))
    else:
        s = n.add("Add", s, n.const(np.where(triangle, 0.0, -np.inf).astype(kind)))
    n.types["y"] = TensorProto.BFLOAT16
    m = n.model(n.add("MatMul", n.add("Softmax", s, axis=-1), "v", name="y"))
    a = find(m, "attention")[1][0].spec.attrs
    assert (a["scale"], a["causal"], a["mask_kind"]) == (
        0.5 if value == "scale" else 1.0,
        value != "scale",
        "none",
    )


def _changed_before(how: str) -> tuple[Net, str]:
    """Attention whose scores are masked or bounded before they are changed, where `how` says so."""
    n, s = plain()
    if how == "mask inside":
        n.inputs["mask"] = (1, 1, S, T)
        s = n.add("Add", s, "mask")
    if how == "floor inside":
        s = n.add("Max", s, n.const(F(-1e30)))
    return n, s


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("twice", "Tanh to the scores a second time"),
        ("negative", "a softcap is positive"),
        ("mask inside", "masks or bounds the scores before Tanh caps them"),
        ("floor inside", "before Tanh caps them"),
    ],
)
def test_what_is_no_cap_refuses(how: str, why: str) -> None:
    n, s = _changed_before(how)
    s = n.add(
        "Mul",
        n.add("Tanh", n.add("Tanh", s) if how == "twice" else s),
        n.const(F(-3.0 if how == "negative" else 3.0)),
    )
    assert why in reason(close(n, s), "attention", "n_p")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("twice", "nor one per head"), ("batch", "nor one per head"),
         ("mask inside", "changes the scores before they are multiplied"),
        ("floor inside", "changes the scores before they are multiplied"),
         ("capped", "changes the scores before they are multiplied"),
    ],
)  # fmt: skip
def test_factors_that_are_not_one_for_each_head_refuse(how: str, why: str) -> None:
    n, s = _changed_before(how)
    if how == "capped":
        s = n.add("Tanh", s)
    if how == "twice":
        s = n.add("Mul", s, n.const(np.ones((H, 1, 1), F)))
    s = n.add("Mul", s, n.const(np.ones((B, H, 1, 1) if how == "batch" else (H, 1, 1), F)))
    assert why in reason(close(n, s), "attention", "n_p")


def test_factors_of_heads_in_the_batch_refuse() -> None:
    n = Net(q=(H, S, D), k=(H, D, T), v=(H, T, D))
    s = n.add("Mul", n.add("MatMul", "q", "k"), n.const(np.ones((H, 1, 1), F)))
    m = n.model(n.add("MatMul", n.add("Softmax", s, axis=-1, name="p"), "v"))
    assert "not one for each head" in reason(m, "attention", "n_p")


@pytest.mark.parametrize("shape", [(3, T), (2, 1, 1, T)])
def test_a_causal_mask_that_enlarges_scores_refuses(shape: tuple[int, ...]) -> None:
    n = Net(q=(1, H, 1, D), k=(1, H, D, T), v=(1, H, T, D))
    mask = np.broadcast_to(np.where(np.tri(shape[-2], T, dtype=bool), F(0), F(-1e9)), shape)
    y = n.add(
        "MatMul",
        n.add("Softmax", n.add("Add", n.add("MatMul", "q", "k"), n.const(mask)), axis=-1, name="p"),
        "v",
    )
    assert "does not broadcast" in reason(n.model(y), "attention", "n_p")
