"""Rotary embedding rule: every spelling means what its spec says, and near misses refuse with a
sentence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper, shape_inference

from tests.host.rules.rules_oracle import find, model, node, only, reason
from tests.host.rules.rules_oracle_attention import check_spec

B, H, S, D = 2, 3, 5, 8
INT_MAX = 2**63 - 1


def build(
    nodes: list[NodeProto],
    *,
    table: tuple[int | str, ...] = ("batch", 1, S, D),
    shape: tuple[int | str, ...] = ("batch", H, S, D),
    outputs: tuple[str, ...] = ("y",),
    **kw: Any,
) -> ModelProto:
    d = shape[-1]
    assert isinstance(d, int)
    constants = {
        "zero": np.array([0]),
        "half": np.array([D // 2]),
        "end": np.array([INT_MAX]),
        "last": np.array([-1]),
        "one": np.array([1]),
        "two": np.array([2]),
        "rot": np.array([D]),
        "sizes": np.array([D // 2, D // 2]),
        "flat": np.array([0, 0, 0, D]) if len(shape) == 4 else np.array([0]),
        "uneven": np.array([D // 2 - 1]),
        "second": np.array([2]),
    }
    used = {i for n in nodes for i in n.input}
    return model(
        nodes,
        {"x": shape, "cos": table, "sin": table},
        outputs,
        {k: v for k, v in constants.items() if k in used},
        opset=kw.pop("opset", 17),
        **kw,
    )


def halves(split: str, x: str = "x") -> list[NodeProto]:
    """x1 and x2 of `x`."""
    if split == "split":
        return [node("Split", f"{x} sizes", "x1 x2", axis=-1)]
    if split == "slice":
        return [
            node("Slice", f"{x} zero half last", "x1"),
            node("Slice", f"{x} half end last one", "x2"),
        ]
    return [
        node("Slice", f"{x} zero end last two", "x1"),
        node("Slice", f"{x} one end last two", "x2"),
    ]


def rotate_half(split: str = "slice", *, swap: bool = False, x: str = "x") -> list[NodeProto]:
    tail = (
        [node("Mul", f"cos {x}", "a"), node("Mul", "sin r", "b"), node("Add", "b a", "y")]
        if swap
        else [node("Mul", f"{x} cos", "a"), node("Mul", "r sin", "b"), node("Add", "a b", "y")]
    )
    return [*halves(split, x), node("Neg", "x2", "n"), node("Concat", "n x1", "r", axis=-1), *tail]


def products(split: str) -> list[NodeProto]:
    out = [
        *halves(split),
        node("Mul", "x1 cos", "a"),
        node("Mul", "x2 sin", "b"),
        node("Mul", "x2 cos", "c"),
        node("Mul", "sin x1", "d"),
        node("Sub", "a b", "p"),
        node("Add", "c d", "q"),
    ]
    if split != "interleaved":
        return [*out, node("Concat", "p q", "y", axis=-1)]
    return [
        *out,
        node("Unsqueeze", "p last", "p1"),
        node("Unsqueeze", "q last", "q1"),
        node("Concat", "p1 q1", "pq", axis=-1),
        node("Reshape", "pq flat", "y"),
    ]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("split", ["split", "slice"])
def test_rotate_half(split: str, swap: bool) -> None:
    m = build(rotate_half(split, swap=swap))
    match = only(m, "rope")
    assert match.spec.attrs == {"layout": "bhsd", "interleaved": False, "rot": D}
    assert match.inputs == ("x", "cos", "sin")
    check_spec(m, match, sizes={"batch": B})


@pytest.mark.parametrize("split", ["split", "slice", "interleaved"])
def test_four_products(split: str) -> None:
    m = build(products(split), table=("batch", 1, S, D // 2))
    match = only(m, "rope")
    assert match.spec.attrs["interleaved"] == (split == "interleaved")
    assert len(match.nodes) == len(m.graph.node)
    check_spec(m, match, sizes={"batch": B})


@pytest.mark.parametrize(
    ("table", "layout"),
    [
        (("batch", 1, S, D), "bhsd"),
        ((1, 1, S, D), "bhsd"),
        ((S, D), "bhsd"),
        ((1, S, D), "bhsd"),
        (("batch", H, 1, D), "bshd"),
        ((1, H, 1, D), "bshd"),
    ],
)
def test_tables_tell_the_layout(table: tuple[int | str, ...], layout: str) -> None:
    m = build(rotate_half(), table=table)
    match = only(m, "rope")
    assert match.spec.attrs["layout"] == layout
    check_spec(m, match, sizes={"batch": B})


@pytest.mark.parametrize("split", ["split", "slice"])
def test_only_a_part_of_each_head_is_rotated(split: str) -> None:
    first = (
        [node("Split", "x parts", "h t", axis=-1)]
        if split == "split"
        else [node("Slice", "x zero rot last", "h"), node("Slice", "x rot end last", "t")]
    )
    nodes = [*first, *rotate_half(x="h"), node("Concat", "y t", "z", axis=-1)]
    m = build(nodes, shape=("batch", H, S, D + 3), outputs=("z",), overridable=())
    if split == "split":
        m.graph.initializer.append(numpy_helper.from_array(np.array([D, 3]), "parts"))
        m = shape_inference.infer_shapes(m, data_prop=True)
    match = only(m, "rope")
    assert match.inputs[0] == "x"
    assert match.outputs == ("z",)
    assert match.spec.attrs["rot"] == D
    check_spec(m, match, sizes={"batch": B})


def test_queries_and_keys_share_their_tables() -> None:
    second = [
        node(
            n.op_type,
            " ".join(
                {"x": "w"}.get(i, i)
                if i in ("x", "cos", "sin", "zero", "half", "end", "last", "one")
                else "k" + i
                for i in n.input
            ),
            "k" + n.output[0],
        )
        for n in rotate_half()
    ]
    for a, b in zip(rotate_half(), second, strict=True):
        b.attribute.extend(a.attribute)
    m = build([*rotate_half(), node("Relu", "x", "w"), *second], outputs=("y", "ky"))
    _, matches, _ = find(m, "rope")
    assert [x.inputs for x in matches] == [("x", "cos", "sin"), ("w", "cos", "sin")]


def changed(**change: NodeProto) -> list[NodeProto]:
    return [change.get(n.output[0], n) for n in rotate_half()]


NEAR_MISSES: dict[str, tuple[list[NodeProto], dict[str, Any], str]] = {
    "first half negated": (
        changed(n=node("Neg", "x1", "n"), r=node("Concat", "n x2", "r", axis=-1)),
        {},
        "negated second half",
    ),
    "halves not swapped": (changed(r=node("Concat", "x1 n", "r", axis=-1)), {}, "negated half"),
    "wrong axis": (changed(x1=node("Slice", "x zero half two", "x1")), {}, ""),
    "uneven halves": (
        changed(
            x1=node("Slice", "x zero uneven last", "x1"),
            x2=node("Slice", "x uneven end last", "x2"),
        ),
        {},
        "",
    ),
    "rotated value read twice": (
        [*rotate_half(), node("Relu", "r", "extra")],
        {"outputs": ("y", "extra")},
        "not multiplied",
    ),
    "product exposed": (rotate_half(), {"outputs": ("y", "a")}, "output"),
    "product subtracted": (
        changed(y=node("Sub", "a b", "y")),
        {},
        "not multiplied by one table and added",
    ),
    "other value times cosine": (changed(a=node("Mul", "r cos", "a")), {}, ""),
    "tables per head": (
        rotate_half(),
        {"table": ("batch", H, S, D)},
        "one row per position for all heads",
    ),
    "tables of half width": (
        changed(a=node("Mul", "x2 cos", "a")),
        {"table": ("batch", 1, S, D // 2), "outputs": ("r",)},
        "",
    ),
    "rank three": (
        rotate_half(),
        {"shape": ("batch", S, D), "table": ("batch", S, D)},
        "is not known to be",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_refuse(name: str) -> None:
    nodes, kw, why = NEAR_MISSES[name]
    if name == "wrong axis" or name == "uneven halves":
        kw = {**kw, "outputs": ("r",)}
        nodes = [n for n in nodes if n.output[0] in ("x1", "x2", "n", "r")]
        if name == "wrong axis":
            nodes[0] = node("Slice", "x zero half second", "x1")
            nodes = [*nodes[:1], node("Slice", "x half end second one", "x2"), *nodes[2:]]
    m = build(nodes, **kw)
    assert why in reason(m, "rope", "n_r")


def test_interleaved_pairs_beside_a_contiguous_concat_refuse() -> None:
    nodes = [n for n in products("interleaved") if n.output[0] not in ("p1", "q1", "pq", "y")]
    m = build([*nodes, node("Concat", "p q", "y", axis=-1)], table=("batch", 1, S, D // 2))
    assert "do not rotate" in reason(m, "rope", "n_y")


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("op", ["RotaryEmbedding", "com.microsoft.RotaryEmbedding"])
def test_operator_with_position_ids(op: str, rank: int, interleaved: int) -> None:
    rng = np.random.default_rng(0)
    shape = (B, H, S, D) if rank == 4 else (B, S, H * D)
    inputs = "x cos sin ids" if op == "RotaryEmbedding" else "x ids cos sin"
    attrs = {"num_heads": H} if rank == 3 else {}
    tables = {"x": shape, "cos": (9, D // 2), "sin": (9, D // 2), "ids": (B, S)}
    m = model(
        [node(op, inputs, "y", interleaved=interleaved, **attrs)],
        tables,
        ["y"],
        {},
        opset=23,
        types={"ids": 7},
    )
    match = only(m, "rope")
    assert match.spec.roles == ("x", "cos", "sin", "pos")
    feeds: dict[str, Any] = {
        k: rng.standard_normal(v).astype(np.float32) for k, v in tables.items()
    }
    check_spec(m, match, feeds=feeds | {"ids": rng.integers(0, 9, (B, S))})


def test_operator_with_tables_per_position() -> None:
    m = model(
        [node("RotaryEmbedding", "x cos sin", "y", interleaved=1)],
        {"x": (B, H, S, D), "cos": (B, S, D // 2), "sin": (B, S, D // 2)},
        ["y"],
        {},
        opset=23,
    )
    match = only(m, "rope")
    assert match.spec.attrs == {"layout": "bhsd", "interleaved": True, "rot": D}
    check_spec(m, match)


@pytest.mark.parametrize(
    ("attrs", "inputs", "ids", "says"),
    [
        ({"is_packed_batching": 1}, "x ids cos sin", (B, S), "is_packed_batching"),
        ({"scale": 0.5}, "x ids cos sin", (B, S), "scale"),
        ({}, "x ids cos sin", (1,), "not known to be [batch, sequence]"),
        (
            {"rotary_embedding_dim": 4, "num_heads": H},
            "x ids cos sin",
            (B, S),
            "half the rotated elements",
        ),
    ],
)
def test_operators_that_refuse(
    attrs: dict[str, Any], inputs: str, ids: tuple[int, ...], says: str
) -> None:
    tables = {"x": (B, H, S, D), "cos": (9, D // 2), "sin": (9, D // 2), "ids": ids}
    assert says in reason(
        model(
            [node("com.microsoft.RotaryEmbedding", inputs, "y", **attrs)],
            tables,
            ["y"],
            {},
            types={"ids": 7},
        ),
        "rope",
        "n_y",
    )


def test_pairs_times_tables_of_full_width() -> None:
    pairs = halves("interleaved")
    nodes = [
        *pairs,
        node("Neg", "x2", "n"),
        node("Unsqueeze", "n last", "n1"),
        node("Unsqueeze", "x1 last", "p1"),
        node("Concat", "n1 p1", "np", axis=-1),
    ]
    nodes += [
        node("Reshape", "np flat", "r"),
        node("Mul", "x cos", "a"),
        node("Mul", "r sin", "b"),
        node("Add", "a b", "y"),
    ]
    m = build(nodes)
    match = only(m, "rope")
    assert match.spec.attrs == {"layout": "bhsd", "interleaved": True, "rot": D}
    check_spec(m, match, sizes={"batch": B})
