"""Attention rules: packed projections, grouped and merged heads, other products, and attention
written as one operator.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.host.rules.attention.attention_graphs import (
    B,
    D,
    F,
    H,
    Net,
    S,
    T,
    X,
    ints,
    join_heads,
    scores,
    split_heads,
    whole,
)
from tests.host.rules.rules_oracle import Array, node, only, reason
from tests.host.rules.rules_oracle_attention import check_spec
from tracea_onnx.explain import explanation


@pytest.mark.parametrize("how", ["split", "slice", "reshape gather", "reshape split", "head major"])
def test_packed_projection(how: str) -> None:
    n = Net(x=("batch", S, 3 * X))
    layout = "bs3x"
    if how in ("split", "slice"):
        if how == "split":
            n.nodes.append(node("Split", f"x {n.const(ints(X, X, X))}", "q k v", axis=-1))
            parts = ["q", "k", "v"]
        else:
            parts = [
                n.add(
                    "Slice", "x", n.const(ints(i * X)), n.const(ints((i + 1) * X)), n.const(ints(2))
                )
                for i in range(3)
            ]
        q, k, v = (
            split_heads(n, p, "zeros", S, perm=(0, 2, 3, 1) if i == 1 else (0, 2, 1, 3))
            for i, p in enumerate(parts)
        )
    elif how == "head major":
        layout = "bsh3d"
        t = n.add(
            "Transpose", n.add("Reshape", "x", n.const(ints(0, 0, H, 3 * D))), perm=[0, 2, 1, 3]
        )
        q, k, v = (
            n.add("Slice", t, n.const(ints(i * D)), n.const(ints((i + 1) * D)), n.const(ints(-1)))
            for i in range(3)
        )
        k = n.add("Transpose", k, perm=[0, 1, 3, 2])
    else:
        t = n.add(
            "Transpose", n.add("Reshape", "x", n.const(ints(0, 0, 3, H, D))), perm=[2, 0, 3, 1, 4]
        )
        if how == "reshape gather":
            q, k, v = (n.add("Gather", t, n.const(np.array(i)), axis=0) for i in (0, 1, -1))
        else:
            n.nodes.append(node("Split", t, "part_q part_k part_v", axis=0))
            q, k, v = (
                n.add("Squeeze", i, n.const(ints(0))) for i in ("part_q", "part_k", "part_v")
            )
        k = n.add("Transpose", k, perm=[0, 1, 3, 2])
    p = n.add("Softmax", scores(n, q, k, "mul"), axis=-1)
    m = n.model(join_heads(n, n.add("MatMul", p, v), "zeros", S))
    a = whole(m, (layout, layout, layout, "bsx"), sizes={"batch": 2})
    assert [a[c]["index"] for c in "qkv"] == [0, 1, 2]
    assert len(only(m, "attention").nodes) == len(m.graph.node)


@pytest.mark.parametrize("source", ["projection", "cache"])
@pytest.mark.parametrize("kv", [1, 3])
def test_grouped_query_heads_are_folded(kv: int, source: str) -> None:
    heads = 6
    wide = source == "projection"
    n = Net(
        q=("batch", S, heads * D),
        k=("batch", T, kv * D) if wide else ("batch", kv, T, D),
        v=("batch", T, kv * D) if wide else ("batch", kv, T, D),
    )

    def repeated(x: str) -> str:
        x = split_heads(n, x, "zeros", T, kv) if wide else x
        five = n.add(
            "Expand",
            n.add("Unsqueeze", x, n.const(ints(2))),
            n.const(ints(1, 1, heads // kv, 1, 1)),
        )
        return n.add("Reshape", five, n.const(ints(-1, heads, T, D)))

    q = split_heads(n, "q", "zeros", S, heads)
    k = n.add("Transpose", repeated("k"), perm=[0, 1, 3, 2])
    y = n.add("MatMul", n.add("Softmax", scores(n, q, k, "mul"), axis=-1), repeated("v"))
    m = n.model(
        n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.const(ints(0, 0, heads * D)))
    )
    layout = "bsx" if wide else "bhsd"
    a = whole(m, ("bsx", layout, layout, "bsx"), sizes={"batch": 2})
    assert (a["num_heads"], a["kv_heads"]) == (heads, kv)


def test_heads_repeated_in_the_other_order_are_not_folded() -> None:
    n = Net(q=(B, 6, S, D), k=(B, 3, T, D), v=(B, 3, T, D))

    def tiled(x: str) -> str:
        five = n.add(
            "Expand", n.add("Unsqueeze", x, n.const(ints(1))), n.const(ints(B, 2, 3, T, D))
        )
        return n.add("Reshape", five, n.const(ints(B, 6, T, D)))

    k, v = n.add("Transpose", tiled("k"), perm=[0, 1, 3, 2]), tiled("v")
    m = n.model(n.add("MatMul", n.add("Softmax", n.add("MatMul", "q", k), axis=-1), v))
    a = whole(m, ("bhsd", "bhsd", "bhsd", "bhsd"))
    assert (a["num_heads"], a["kv_heads"]) == (6, 6)


def test_keys_from_a_cache_that_is_also_an_output() -> None:
    n = Net(q=(B, S, X), k=(B, S, X), v=(B, S, X), past_k=(B, H, T, D), past_v=(B, H, T, D))
    k, v = (
        n.add("Concat", f"past_{c}", split_heads(n, c, "constant", S), axis=2, name=f"now_{c}")
        for c in "kv"
    )
    s = scores(
        n, split_heads(n, "q", "constant", S), n.add("Transpose", k, perm=[0, 1, 3, 2]), "mul"
    )
    y = n.add("MatMul", n.add("Softmax", s, axis=-1), v)
    m = n.model(join_heads(n, y, "constant", S), "now_k", "now_v")
    whole(m, ("bsx", "bhsd", "bhsd", "bsx"))
    assert only(m, "attention").inputs == ("q", "now_k", "now_v")


@pytest.mark.parametrize("merged_mask", [False, True])
def test_batch_and_heads_in_one_axis(merged_mask: bool) -> None:
    """nn.MultiheadAttention and Bloom: one batched product over batch * heads, perhaps with a mask
    over batch * heads.
    """
    n = Net(q=(S, B, X), k=(T, B, X), v=(T, B, X))

    def rows(x: str, length: int) -> str:
        return n.add(
            "Transpose", n.add("Reshape", x, n.const(ints(length, B * H, D))), perm=[1, 0, 2]
        )

    s = scores(n, rows("q", S), n.add("Transpose", rows("k", T), perm=[0, 2, 1]), "on q")
    if merged_mask:
        n.inputs["mask"] = (B * H, S, T)
        s = n.add("Add", s, "mask")
    y = n.add("MatMul", n.add("Softmax", s, axis=-1), rows("v", T))
    m = n.model(n.add("Reshape", n.add("Transpose", y, perm=[1, 0, 2]), n.const(ints(S, B, X))))
    a = whole(m, ("sbx", "sbx", "sbx", "sbx"))
    assert (a["num_heads"], a.get("mask_merged", False)) == (H, merged_mask)


def test_values_on_the_left_of_transposed_probabilities() -> None:
    """Convolutional attention: [batch, channels, positions] with heads inside the channels."""
    n = Net(q=(B, X, S), k=(B, X, T), v=(B, X, T))
    q, k, v = (
        n.add("Reshape", c, n.const(ints(B, H, D, length)))
        for c, length in (("q", S), ("k", T), ("v", T))
    )
    p = n.add("Softmax", scores(n, n.add("Transpose", q, perm=[0, 1, 3, 2]), k, "mul"), axis=-1)
    y = n.add("MatMul", v, n.add("Transpose", p, perm=[0, 1, 3, 2]))
    m = n.model(n.add("Reshape", y, n.const(ints(B, X, S))))
    whole(m, ("bxs", "bxs", "bxs", "bxs"))


@pytest.mark.parametrize(
    ("first", "second", "swapped"),
    [
        ("bhid,bhjd->bhij", "bhij,bhjd->bhid", False),
        ("bihd,bjhd->bhij", "bhij,bjhd->bihd", False),
        ("aecd,abcd->acbe", "acbe,aecd->abcd", True),
        ("bhid,bhdj->bhij", "bhij,bhjd->bihd", False),
    ],
)
def test_einsum(first: str, second: str, swapped: bool) -> None:
    sizes = {"B": B, "H": H, "S": S, "T": T, "D": D}
    where = {
        "bhid,bhjd->bhij": ("BHSD", "BHTD", "BHTD"),
        "bihd,bjhd->bhij": ("BSHD", "BTHD", "BTHD"),
        "aecd,abcd->acbe": ("BSHD", "BTHD", "BTHD"),
    }.get(first, ("BHSD", "BHDT", "BHTD"))
    n = Net(**{c: tuple(sizes[x] for x in axes) for c, axes in zip("qkv", where, strict=True)})
    s = n.add("Einsum", *(("k", "q") if swapped else ("q", "k")), equation=first)
    p = n.add("Softmax", n.add("Mul", s, n.const(F(0.5))), axis=-1)
    m = n.model(n.add("Einsum", p, "v", equation=second))
    names = [
        w.replace("B", "b").replace("H", "h").replace("D", "d").replace("S", "s").replace("T", "s")
        for w in where
    ]
    whole(m, (names[0], names[1], names[2], "bhsd" if second.endswith("bhid") else "bshd"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("bhid,bhjd->bhji", "bhij,bhjd->bhid"),
        ("bhid,bhjd->bhij", "bhji,bhjd->bhid"),
        ("bhid,bhid->bhid", "bhij,bhjd->bhid"),
    ],
)
def test_einsum_of_another_product_refuses(first: str, second: str) -> None:
    n = Net(q=(B, H, 4, 4), k=(B, H, 4, 4), v=(B, H, 4, 4))
    m = n.model(
        n.add(
            "Einsum",
            n.add("Softmax", n.add("Einsum", "q", "k", equation=first), axis=-1, name="p"),
            "v",
            equation=second,
        )
    )
    # softmax over queries: q and k change places, which is the truth
    if first == "bhid,bhjd->bhji":
        check_spec(m, only(m, "attention"))
    else:
        assert "Einsum" in reason(m, "attention", "n_p")


@pytest.mark.parametrize("batch", [1, B])
def test_mask_added_between_merged_and_separate_heads(batch: int) -> None:
    """BART and its kin: products over [batch * heads, ...], the mask over [batch, 1, ...]."""
    n = Net(q=(batch, S, X), k=(batch, T, X), v=(batch, T, X), mask=(batch, 1, S, T))

    def rows(x: str, length: int) -> str:
        return n.add("Reshape", split_heads(n, x, "zeros", length), n.const(ints(-1, length, D)))

    s = scores(n, rows("q", S), n.add("Transpose", rows("k", T), perm=[0, 2, 1]), "on q")
    s = n.add("Add", n.add("Reshape", s, n.const(ints(batch, H, S, T))), "mask")
    p = n.add("Softmax", n.add("Reshape", s, n.const(ints(batch * H, S, T))), axis=-1)
    y = n.add("Reshape", n.add("MatMul", p, rows("v", T)), n.const(ints(batch, H, S, D)))
    m = n.model(
        n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.const(ints(batch, S, X)))
    )
    a = whole(m)
    assert (a["num_heads"], a["mask_kind"]) == (H, "add")


@pytest.mark.parametrize("heads", [1, H])
@pytest.mark.parametrize("batch", [4, "batch"])
def test_mask_over_windows(batch: int | str, heads: int) -> None:
    """Swin's shifted windows: a mask [1, windows, 1, ...] over scores of rank 5; row b of the batch
    meets window b mod windows.
    """
    n = Net(q=(batch, H, S, D), k=(batch, H, D, S), v=(batch, H, S, D), mask=(1, 2, heads, S, S))
    s = n.add(
        "Add", n.add("Reshape", n.add("MatMul", "q", "k"), n.const(ints(-1, 2, H, S, S))), "mask"
    )
    y = n.add(
        "MatMul", n.add("Softmax", n.add("Reshape", s, n.const(ints(-1, H, S, S))), axis=-1), "v"
    )
    a = whole(n.model(y), ("bhsd", "bhds", "bhsd", "bhsd"), sizes={"batch": 6})
    assert a["mask_period"] == 2


@pytest.mark.parametrize("mask", [(2, 2, 1, S, S), (1, 2, 1, 1, S, S)])
def test_mask_over_windows_of_its_own_batch_refuses(mask: tuple[int, ...]) -> None:
    n = Net(q=(4, H, S, D), k=(4, H, D, S), v=(4, H, S, D), mask=mask)
    s = n.add(
        "Add", n.add("Reshape", n.add("MatMul", "q", "k"), n.const(ints(2, 2, H, S, S))), "mask"
    )
    p = n.add("Softmax", n.add("Reshape", s, n.const(ints(4, H, S, S))), axis=-1, name="p")
    assert reason(n.model(n.add("MatMul", p, "v")), "attention", "n_p")


def test_causal_table_sliced_to_a_cache() -> None:
    """GPT-2 with a cache: rows [keys - queries, keys) of a lower triangular table."""
    n = Net(q=("batch", H, "n", D), k=("batch", H, "t", D), v=("batch", H, "t", D))
    queries, keys = (
        n.add("Slice", n.add("Shape", c), n.const(ints(2)), n.const(ints(3))) for c in "qk"
    )
    table = n.const(np.tri(32, dtype=bool).reshape(1, 1, 32, 32))
    rows = n.add("Slice", table, n.add("Sub", keys, queries), keys, n.const(ints(2)))
    window = n.add("Slice", rows, n.const(ints(0)), keys, n.const(ints(3)))
    s = n.add(
        "Where",
        window,
        n.add("MatMul", "q", n.add("Transpose", "k", perm=[0, 1, 3, 2])),
        n.const(F(-1e9)),
    )
    m = n.model(n.add("MatMul", n.add("Softmax", s, axis=-1), "v"))
    a = whole(m, ("bhsd", "bhsd", "bhsd", "bhsd"), sizes={"batch": 2, "n": 3, "t": 8})
    assert (a["causal"], a["past"]) == (True, "kv")


def test_casts_around_softmax() -> None:
    n = Net(q=(B, H, S, D), k=(B, H, D, T), v=(B, H, T, D))
    s = n.add("Cast", n.add("MatMul", "q", "k"), to=TensorProto.FLOAT)
    p = n.add("Cast", n.add("Softmax", s, axis=-1), to=TensorProto.FLOAT16)
    m = n.model(n.add("MatMul", p, "v", name="y"), dtype=TensorProto.FLOAT16)
    whole(m, ("bhsd", "bhds", "bhsd", "bhsd"), tolerance=2e-3)
    n = Net(q=(B, H, S, D), k=(B, H, D, T), v=(B, H, T, D))
    n.types["y"] = TensorProto.FLOAT
    s = n.add(
        "Cast",
        n.add("Cast", n.add("MatMul", "q", "k"), to=TensorProto.FLOAT16),
        to=TensorProto.FLOAT,
    )
    assert "narrower" in reason(
        n.model(n.add("MatMul", n.add("Softmax", s, axis=-1, name="p"), "v", name="y")),
        "attention",
        "n_p",
    )


def test_all_dims_symbolic_but_the_heads() -> None:
    n = Net(q=("batch", "n", X), k=("batch", "t", X), v=("batch", "t", X))
    q, k, v = (
        split_heads(n, c, "zeros", 0, perm=(0, 2, 3, 1) if c == "k" else (0, 2, 1, 3))
        for c in "qkv"
    )
    y = n.add("MatMul", n.add("Softmax", scores(n, q, k, "computed"), axis=-1), v)
    whole(n.model(join_heads(n, y, "zeros", 0)), sizes={"batch": 2, "n": 3, "t": 6})


# --- operators ------------------------------------------------------------------------------------
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "add", "bool"])
@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_attention_operator(cap: float, mask: str, causal: int) -> None:
    n = Net(q=(B, S, X), k=(B, T, X), v=(B, T, X))
    heads = [split_heads(n, c, "constant", S if c == "q" else T) for c in "qkv"]
    if mask != "none":
        n.inputs["mask"] = (B, 1, S, T)
        n.types["mask"] = TensorProto.BOOL if mask == "bool" else TensorProto.FLOAT
        heads.append("mask")
    m = n.model(
        join_heads(n, n.add("Attention", *heads, is_causal=causal, softcap=cap), "constant", S),
        opset=23,
    )
    rng = np.random.default_rng(1)
    feeds: dict[str, Array] = {
        c: rng.standard_normal((B, S if c == "q" else T, X)).astype(F) for c in "qkv"
    }
    if mask != "none":
        feeds["mask"] = (
            rng.random((B, 1, S, T)) < 0.7
            if mask == "bool"
            else rng.standard_normal((B, 1, S, T)).astype(F)
        )
        if mask == "bool":
            feeds["mask"][..., 0] = True
    a = whole(m, rule="attention_op", feeds=feeds)
    assert (a["mask_kind"], a["causal"], a["num_heads"], a.get("softcap", 0.0)) == (
        mask,
        bool(causal),
        H,
        cap,
    )


def test_attention_operator_on_rank_three_and_its_guards() -> None:
    inputs: dict[str, tuple[int | str, ...]] = {
        "q": (B, S, 6 * D),
        "k": (B, T, 2 * D),
        "v": (B, T, 2 * D),
    }
    n = Net(**inputs)
    a = whole(
        n.model(
            n.add("Attention", "q", "k", "v", q_num_heads=6, kv_num_heads=2, scale=0.3), opset=23
        ),
        rule="attention_op",
    )
    assert (a["num_heads"], a["kv_heads"]) == (6, 2)
    for attrs, why in (
        ({"softcap": -2.0}, "softcap"),
        ({"qk_matmul_output_mode": 1}, "qk_matmul_output_mode"),
    ):
        n = Net(**inputs)
        assert why in reason(
            n.model(
                n.add("Attention", "q", "k", "v", name="y", q_num_heads=6, kv_num_heads=2, **attrs),
                opset=23,
            ),
            "attention_op",
            "n_y",
        )
    n = Net(**inputs, pk=(B, 2, 3, D), pv=(B, 2, 3, D))
    assert "cache" in reason(
        n.model(
            n.add(
                "Attention", "q", "k", "v", "-", "pk", "pv", name="y", q_num_heads=6, kv_num_heads=2
            ),
            opset=23,
        ),
        "attention_op",
        "n_y",
    )


def test_multi_head_attention_operator() -> None:
    n = Net(q=(B, S, X), k=(B, T, X), v=(B, T, X), bias=(B, H, S, T))
    whole(
        n.model(
            n.add("com.microsoft.MultiHeadAttention", "q", "k", "v", "-", "-", "bias", num_heads=H)
        ),
        rule="attention_op",
    )


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "why"),
    [
        ("MultiHeadAttention", "q k v - pad", {}, "padding mask"),
        ("MultiHeadAttention", "q k v b", {}, "bias of the projections"),
        ("MultiHeadAttention", "q k v b pad", {"unidirectional": 1}, "bias of the projections"),
        ("Attention", "q w b", {}, "also computes the projections"),
        ("GroupQueryAttention", "q k v - - seen total", {"kv_num_heads": H}, "key/value cache"),
    ],
)
def test_operators_that_do_more_than_attention_say_so_and_what_to_do(
    op: str, inputs: str, attrs: dict[str, int], why: str
) -> None:
    n = Net(q=(B, S, X), k=(B, T, X), v=(B, T, X), pad=(B, T), seen=(B,), total=(1,))
    n.types = {"pad": TensorProto.INT32, "seen": TensorProto.INT32, "total": TensorProto.INT32}
    n.constants = {"w": np.ones((X, 3 * X), F), "b": np.ones(3 * X, F)}
    m = n.model(n.add(f"com.microsoft.{op}", *inputs.split(), name="y", num_heads=H, **attrs))
    assert why in reason(m, "attention_op", "n_y")
    (said,) = [e for e in explanation.explain(m).anchors if e.anchor == "n_y"]
    assert said.refusals[0].rule == "attention_op" and "exporter's own file" in said.fix


def test_batches_that_only_the_result_has() -> None:
    """The heads of operands without a batch become two batches behind the chain: that Reshape is no
    layout of the result.
    """
    n = Net(q=(4, S, D), k=(4, T, D), v=(4, T, D))
    k = n.add("Transpose", "k", perm=[0, 2, 1])
    y = n.add("MatMul", n.add("Softmax", n.add("MatMul", "q", k), axis=-1), "v")
    m = n.model(n.add("Reshape", y, n.const(ints(2, 2, S, D))))
    found = only(m, "attention")
    assert found.spec.attrs["out"] == {"layout": "hsd"}
    assert [x.op for x in found.nodes] == ["Transpose", "MatMul", "Softmax", "MatMul"]
    check_spec(m, found)
