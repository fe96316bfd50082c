"""Random attention layers and rotary position embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from tests.host.rules.attention.attention_graphs import F, Net, ints
from tests.host.rules.near_miss_parts import Constants, Shapes, built, either
from tests.host.rules.rules_oracle import node

_JOINS = ("constant", "zeros", "minus one")


@dataclass(frozen=True)
class _Sizes:
    """Batch, heads, queries, keys, elements of a head; often equal, so that a wrong axis still
    makes a valid graph.
    """

    b: int
    h: int
    s: int
    t: int
    d: int

    @property
    def x(self) -> int:
        return self.h * self.d


def _sizes(r: Random) -> _Sizes:
    if r.random() < 0.3:
        n = r.choice((2, 3))
        return _Sizes(r.choice((1, n)), n, n, n, r.choice((2, n)))
    return _Sizes(
        r.choice((1, 2)), r.choice((2, 3)), r.choice((3, 4)), r.choice((3, 4, 5)), r.choice((2, 4))
    )


def _heads(r: Random, n: Net, x: str, z: _Sizes, length: int, *, keys: bool = False) -> str:
    """[batch, length, heads * elements] as [batch, heads, length, elements], or with the last two
    axes swapped for `keys`.
    """
    target = {
        "constant": ints(z.b, length, z.h, z.d),
        "zeros": ints(0, 0, z.h, z.d),
        "minus one": ints(-1, length, z.h, z.d),
    }[r.choice(_JOINS)]
    split = n.add("Reshape", x, n.const(target))
    if keys and r.random() < 0.5:
        return n.add("Transpose", split, perm=[0, 2, 3, 1])
    moved = n.add("Transpose", split, perm=[0, 2, 1, 3])
    return n.add("Transpose", moved, perm=[0, 1, 3, 2]) if keys else moved


def _packed(r: Random, n: Net, z: _Sizes) -> tuple[str, str, str]:
    """Queries, keys (transposed) and values out of one projection."""
    n.inputs["x"] = (z.b, z.s, 3 * z.x)
    if r.random() < 0.5:
        whole = n.add(
            "Transpose",
            n.add("Reshape", "x", n.const(ints(z.b, z.s, 3, z.h, z.d))),
            perm=[2, 0, 3, 1, 4],
        )
        q, k, v = (n.add("Gather", whole, n.const(np.array(i)), axis=0) for i in range(3))
        return q, n.add("Transpose", k, perm=[0, 1, 3, 2]), v
    n.nodes.append(node("Split", f"x {n.const(ints(z.x, z.x, z.x))}", "xq xk xv", axis=2))
    return (
        _heads(r, n, "xq", z, z.s),
        _heads(r, n, "xk", z, z.s, keys=True),
        _heads(r, n, "xv", z, z.s),
    )


def _repeated(n: Net, x: str, z: _Sizes, count: int) -> str:
    """[batch, count, keys, elements] with each head repeated until there are as many as the queries
    have.
    """
    wide = n.add(
        "Expand",
        n.add("Unsqueeze", x, n.const(ints(2))),
        n.const(ints(z.b, count, z.h // count, z.t, z.d)),
    )
    return n.add("Reshape", wide, n.const(ints(z.b, z.h, z.t, z.d)))


def _operands(r: Random, n: Net, z: _Sizes) -> tuple[str, str, str, str]:
    """(query, transposed keys, values, how the result is joined) in one of the layouts exporters
    use.
    """
    kind = r.choice(("split", "split", "split", "packed", "plain", "flat", "grouped"))
    if kind == "packed":
        return *_packed(r, n, z), "heads"
    if kind == "plain":
        n.inputs |= {
            "q": (z.b, z.h, z.s, z.d),
            "k": (z.b, z.h, z.t, z.d),
            "v": (z.b, z.h, z.t, z.d),
        }
        return "q", n.add("Transpose", "k", perm=[0, 1, 3, 2]), "v", r.choice(("heads", "none"))
    if kind == "flat":  # batch and heads are one axis
        n.inputs |= {"q": (z.h, z.s, z.d), "k": (z.h, z.t, z.d), "v": (z.h, z.t, z.d)}
        return "q", n.add("Transpose", "k", perm=[0, 2, 1]), "v", "none"
    if kind == "grouped":
        count = r.choice([c for c in (1, 2) if z.h % c == 0])
        n.inputs |= {"q": (z.b, z.s, z.x), "k": (z.b, count, z.t, z.d), "v": (z.b, count, z.t, z.d)}
        keys = n.add("Transpose", _repeated(n, "k", z, count), perm=[0, 1, 3, 2])
        return _heads(r, n, "q", z, z.s), keys, _repeated(n, "v", z, count), "heads"
    n.inputs |= {"q": (z.b, z.s, z.x), "k": (z.b, z.t, z.x), "v": (z.b, z.t, z.x)}
    return (
        _heads(r, n, "q", z, z.s),
        _heads(r, n, "k", z, z.t, keys=True),
        _heads(r, n, "v", z, z.t),
        "heads",
    )


def _scaled(r: Random, n: Net, q: str, k: str) -> str:
    how = r.choice(("mul", "div", "on q", "on both", "none"))
    if how in ("on q", "on both"):
        q = n.add("Mul", *r.sample((q, n.const(F(0.5 if how == "on q" else np.sqrt(0.5)))), 2))
    if how == "on both":
        k = n.add("Mul", *r.sample((k, n.const(F(np.sqrt(0.5)))), 2))
    product = n.add("MatMul", q, k)
    if how == "mul":
        return n.add(
            "Mul", *r.sample((product, n.const(r.choice((F(0.5), np.array([0.3], F))))), 2)
        )
    return n.add("Div", product, n.const(F(2.0))) if how == "div" else product


def _shaped(r: Random, n: Net, z: _Sizes, s: str, rank: int) -> str:
    """Scores as they are, capped, or with a factor for each head."""
    how = r.choice((*["none"] * 6, "capped", "factors"))
    if how == "capped":
        return n.add(
            "Mul", *r.sample((n.add("Tanh", n.add("Div", s, n.const(F(2.0)))), n.const(F(2.0))), 2)
        )
    if how == "factors" and rank == 4:
        return n.add(
            "Mul", *r.sample((s, n.const(np.linspace(0.5, 2, z.h).astype(F).reshape(z.h, 1, 1))), 2)
        )
    return s


def _masked(r: Random, n: Net, z: _Sizes, s: str, rank: int, t: int) -> str:
    kind = r.choice(("none", "add", "row", "where", "drop", "causal", "causal add"))
    lead = (1,) * (rank - 2)
    if kind in ("add", "row"):
        n.inputs["mask"] = (*lead[:-1], r.choice((1, z.h)), z.s if kind == "row" else 1, t)
        return n.add("Add", *r.sample((s, "mask"), 2))
    if kind in ("where", "drop"):
        n.inputs["mask"], n.types["mask"] = (
            (z.b, 1, z.s, t)[-rank:] if rank == 4 else (1, z.s, t),
            int(TensorProto.BOOL),
        )
        fill = n.const(F(r.choice((-np.inf, -3.4e38, -1e9))))
        return n.add("Where", "mask", *((s, fill) if kind == "where" else (fill, s)))
    if kind == "causal":
        return n.add("Where", n.const(np.tri(z.s, t, dtype=bool)), s, n.const(F(-np.inf)))
    if kind == "causal add":
        return n.add(
            "Add",
            *r.sample(
                (s, n.const(np.where(np.tri(z.s, t, dtype=bool), F(0), F(-1e9)).astype(F))), 2
            ),
        )
    return s


def attention(r: Random) -> ModelProto:
    z, n = _sizes(r), Net()
    q, k, v, join = _operands(r, n, z)
    rank, t = (
        (3, z.t)
        if join == "none" and len(n.inputs["q"]) == 3
        else (4, z.s if "x" in n.inputs else z.t)
    )
    s = _masked(r, n, z, _shaped(r, n, z, _scaled(r, n, q, k), rank), rank, t)
    p = n.add("Softmax", s, axis=r.choice((-1, rank - 1)), name="p")
    if r.random() < 0.2:
        p = n.add("Where", n.add("IsNaN", p), n.const(F(0.0)), p)
    if join == "none":
        return n.model(n.add("MatMul", p, v, name="y"))
    y = n.add("Transpose", n.add("MatMul", p, v), perm=[0, 2, 1, 3])
    target = {
        "constant": ints(z.b, z.s, z.x),
        "zeros": ints(0, 0, z.x),
        "minus one": ints(-1, z.s, z.x),
    }[r.choice(_JOINS)]
    return n.model(n.add("Reshape", y, n.const(target), name="y"))


def attention_operator(r: Random) -> ModelProto:
    z = _sizes(r)
    n = Net(q=(z.b, z.s, z.x), k=(z.b, z.t, z.x), v=(z.b, z.t, z.x))
    attrs: dict[str, Any] = {"scale": r.choice((0.5, 0.3))} if r.random() < 0.5 else {}
    kind = r.choice(("flat", *["heads"] * 4, "grouped", "microsoft"))
    if r.random() < 0.4:
        n.inputs["mask"] = (
            r.choice(((z.b, 1, z.s, z.t), (1, z.h, z.s, z.t), (z.s, z.t)))
            if kind != "microsoft"
            else (1, z.h, z.s, z.t)
        )
        if kind != "microsoft" and r.random() < 0.4:
            n.types["mask"] = int(TensorProto.BOOL)
    mask = ["mask"] if "mask" in n.inputs else []
    causal = int(not mask and r.random() < 0.5)
    if kind == "microsoft":
        y = n.add(
            "com.microsoft.MultiHeadAttention",
            "q",
            "k",
            "v",
            *(["-", "-", "mask"] if mask else []),
            num_heads=z.h,
            **attrs,
        )
    elif kind == "flat":
        y = n.add(
            "Attention",
            "q",
            "k",
            "v",
            *mask,
            q_num_heads=z.h,
            kv_num_heads=z.h,
            is_causal=causal,
            **attrs,
        )
    elif kind == "grouped":
        count = r.choice([c for c in (1, 2) if z.h % c == 0])
        n.inputs |= {"k": (z.b, z.t, count * z.d), "v": (z.b, z.t, count * z.d)}
        y = n.add(
            "Attention",
            "q",
            "k",
            "v",
            *mask,
            q_num_heads=z.h,
            kv_num_heads=count,
            is_causal=causal,
            **attrs,
        )
    else:
        y = n.add(
            "Attention",
            *(_heads(r, n, c, z, z.s if c == "q" else z.t) for c in "qkv"),
            *mask,
            is_causal=causal,
            **attrs,
        )
        y = n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.const(ints(0, 0, z.x)))
    return n.model(n.add("Identity", y, name="named"), opset=23)


def _rotary_operator(r: Random, d: int) -> ModelProto:
    h, s = r.choice((2, 3)), r.choice((2, 3))
    flat, placed = r.random() < 0.4, r.random() < 0.6
    x = (2, s, h * d) if flat else (2, h, s, d)
    attrs: dict[str, Any] = {"interleaved": r.choice((0, 1))} | ({"num_heads": h} if flat else {})
    if r.random() < 0.5:
        inputs: Shapes = {"x": x, "pos": (2, s), "cos": (8, d // 2), "sin": (8, d // 2)}
        nodes = [node("com.microsoft.RotaryEmbedding", "x pos cos sin", "y", **attrs)]
        return built(nodes, inputs, {}, types={"pos": TensorProto.INT64})
    if placed:
        inputs = {"x": x, "cos": (8, d // 2), "sin": (8, d // 2), "pos": (2, s)}
        return built(
            [node("RotaryEmbedding", "x cos sin pos", "y", **attrs)],
            inputs,
            {},
            opset=23,
            types={"pos": TensorProto.INT64},
        )
    return built(
        [node("RotaryEmbedding", "x cos sin", "y", **attrs)],
        {"x": x, "cos": (2, s, d // 2), "sin": (2, s, d // 2)},
        {},
        opset=23,
    )


def rope(r: Random) -> ModelProto:
    d, kind, part = (
        r.choice((4, 4, 6)),
        r.choice(("half", "half", "products", "pairs", "half pairs", "operator")),
        r.random() < 0.2,
    )
    if kind == "operator":
        return _rotary_operator(r, d)
    h, s = r.choice(((2, 3), (3, 3), (3, 2), (1, 3)))
    low, high, x = "x1", "x2", "xr" if part else "x"
    width = d if kind.startswith("half") else d // 2
    heads_last = r.random() < 0.25  # [batch, sequence, heads, elements]
    shape = (2, s, h, d + 2 * part) if heads_last else (2, h, s, d + 2 * part)
    tables: tuple[tuple[int, ...], ...] = (
        ((2, s, 1, width), (1, s, 1, width))
        if heads_last
        else ((2, 1, s, width), (1, 1, s, width), (s, width))
    )
    table = r.choice(tables)
    ends: Constants = {
        "zero": ints(0),
        "half": ints(d // 2),
        "end": ints(2**31 - 1),
        "last": ints(-1),
        "two": ints(2),
        "one": ints(1),
    }
    ends |= {"flat": ints(0, 0, 0, d), "rot": ints(d), "halves": ints(d // 2, d // 2)}
    nodes = (
        [node("Slice", "x zero rot last", "xr"), node("Slice", "x rot end last", "xp")]
        if part
        else []
    )
    if kind.endswith("pairs"):
        nodes += [
            node("Slice", f"{x} zero end last two", low),
            node("Slice", f"{x} one end last two", high),
        ]
    elif r.random() < 0.4:
        nodes += [node("Split", f"{x} halves", f"{low} {high}", axis=-1)]
    else:
        nodes += [
            node("Slice", f"{x} zero half last", low),
            node("Slice", f"{x} half end last", high),
        ]

    def joined(a: str, b: str, y: str) -> list[NodeProto]:
        if not kind.endswith("pairs"):
            return [node("Concat", f"{a} {b}", y, axis=-1)]
        made = [node("Unsqueeze", f"{c} last", f"{c}1") for c in (a, b)]
        return [*made, node("Concat", f"{a}1 {b}1", "j", axis=-1), node("Reshape", "j flat", y)]

    out = "yr" if part else "y"
    if kind.startswith("half"):
        nodes += [
            node("Neg", high, "n"),
            *joined("n", low, "r"),
            node("Mul", either(r, x, "cos"), "a"),
            node("Mul", either(r, "r", "sin"), "b"),
        ]
        nodes += [node("Add", either(r, "a", "b"), out)]
    else:
        nodes += [
            node("Mul", either(r, low, "cos"), "a"),
            node("Mul", either(r, high, "sin"), "b"),
            node("Sub", "a b", "p"),
        ]
        nodes += [
            node("Mul", either(r, high, "cos"), "c"),
            node("Mul", either(r, low, "sin"), "e"),
            node("Add", either(r, "c", "e"), "q"),
            *joined("p", "q", out),
        ]
    if part:
        nodes.append(node("Concat", "yr xp", "y", axis=-1))
    return built(nodes, {"x": shape, "cos": table, "sin": table}, ends)


#: rule -> a random graph that it fuses
BASES: dict[str, Callable[[Random], ModelProto]] = {
    "rope": rope,
    "attention": attention,
    "attention_op": attention_operator,
}
