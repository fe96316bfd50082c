"""Attention graphs piece by piece, in every spelling of scale and head split the tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto

from tests.host.rules.rules_oracle import model, node, only
from tests.host.rules.rules_oracle_attention import check_spec

B, H, S, T, D = 2, 3, 5, 7, 4
X = H * D
F = np.float32
INT_MAX = 2**63 - 1


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


class Net:
    """A graph being written: `add` appends a node, `const` a constant; both return the value's
    name.
    """

    def __init__(self, **inputs: tuple[int | str, ...]) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, npt.ArrayLike] = {}
        self.inputs: dict[str, tuple[int | str, ...]] = dict(inputs)
        self.types: dict[str, int] = {}

    def add(self, op: str, *inputs: str, name: str = "", **attrs: Any) -> str:
        out = name or f"v{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), out, **attrs))
        return out

    def const(self, value: npt.ArrayLike) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def model(self, *outputs: str, opset: int = 13, **kw: Any) -> ModelProto:
        return model(
            self.nodes, self.inputs, outputs, self.constants, opset=opset, types=self.types, **kw
        )


# --- pieces ---------------------------------------------------------------------------------------
SPLITS = ("constant", "zeros", "minus one", "tower", "slices")


def shape_tower(n: Net, x: str, *tail: int) -> str:
    """Concat of Shape(x)[0], Shape(x)[1] and constants, as TorchScript writes it."""
    shape = n.add("Shape", x)
    dims = [
        n.add("Unsqueeze", n.add("Gather", shape, n.const(np.array(k)), axis=0), n.const(ints(0)))
        for k in (0, 1)
    ]
    return n.add("Concat", *dims, *(n.const(ints(t)) for t in tail), axis=0)


def split_heads(
    n: Net, x: str, how: str, length: int, heads: int = H, *, perm: tuple[int, ...] = (0, 2, 1, 3)
) -> str:
    """[batch, length, heads * D] to the axes `perm` of [batch, length, heads, D]."""
    if how == "slices":
        shape = n.add("Shape", x)
        lead = n.add("Slice", shape, n.const(ints(0)), n.const(ints(2)), n.const(ints(0)))
        target = n.add("Concat", lead, n.const(ints(heads, D)), axis=0)
    elif how == "tower":
        target = shape_tower(n, x, heads, D)
    else:
        target = n.const(
            {
                "constant": ints(B, length, heads, D),
                "zeros": ints(0, 0, heads, D),
                "minus one": ints(-1, length, heads, D),
            }[how]
        )
    return n.add("Transpose", n.add("Reshape", x, target), perm=list(perm))


def join_heads(n: Net, y: str, how: str, length: int) -> str:
    t = n.add("Transpose", y, perm=[0, 2, 1, 3])
    target = {
        "constant": ints(B, length, X),
        "zeros": ints(0, 0, X),
        "minus one": ints(-1, length, X),
        "tower": ints(0, 0, -1),
        "slices": ints(0, -1, X),
    }[how]
    return n.add("Reshape", t, n.const(target), name="out")


SCALES = ("mul", "div", "on q", "on both", "root on both", "computed", "none")


def scores(n: Net, q: str, k: str, how: str) -> str:
    """q k^T with a factor of 0.5 (or 1 for `none`)."""
    if how in ("on q", "on both", "root on both"):
        q = n.add(
            "Mul", q, n.const(F({"on q": 0.5, "on both": 0.25, "root on both": np.sqrt(0.5)}[how]))
        )
    if how in ("on both", "root on both"):
        k = n.add("Mul", n.const(F({"on both": 2.0, "root on both": np.sqrt(0.5)}[how])), k)
    factor = ""
    if how == "computed":
        d = n.add(
            "Cast",
            n.add("Slice", n.add("Shape", q), n.const(ints(-1)), n.const(ints(INT_MAX))),
            to=TensorProto.FLOAT,
        )
        factor = n.add("Div", n.const(np.ones(1, F)), n.add("Sqrt", d))
    product = n.add("MatMul", q, k)
    if how == "mul":
        return n.add("Mul", n.const(F(0.5)), product)
    if how == "div":
        return n.add("Div", product, n.const(np.array([2.0], F)))
    return n.add("Mul", product, factor) if how == "computed" else product


def plain(
    scale: str = "mul",
    split: str = "constant",
    *,
    key_perm: bool = True,
    batch: int | str = B,
    length: int = T,
) -> tuple[Net, str]:
    """Cross attention of [B, S, X] and [B, T, X] up to the scores."""
    n = Net(q=(batch, S, X), k=(batch, length, X), v=(batch, length, X))
    q = split_heads(n, "q", split, S)
    k = (
        split_heads(n, "k", split, length, perm=(0, 2, 3, 1))
        if key_perm
        else n.add("Transpose", split_heads(n, "k", split, length), perm=[0, 1, 3, 2])
    )
    return n, scores(n, q, k, scale)


def spelled_softmax(n: Net, s: str, how: str) -> str:
    """Softmax over the last axis from its parts; `how` says what stands for the division, or that
    no maximum is subtracted.
    """
    x = s if how == "no maximum" else n.add("Sub", s, n.add("ReduceMax", s, axes=[-1]))
    e = n.add("Exp", x)
    total = n.add("ReduceSum", e, n.const(ints(-1)), name="t")
    return (
        n.add("Mul", e, n.add("Reciprocal", total))
        if how == "reciprocal"
        else n.add("Div", e, total, name="p")
    )


def close(
    n: Net,
    s: str,
    split: str = "constant",
    *,
    length: int = T,
    cleanup: bool = False,
    softmax: str = "",
    **kw: Any,
) -> ModelProto:
    """Softmax, product with v and the joined heads."""
    p = spelled_softmax(n, s, softmax) if softmax else n.add("Softmax", s, axis=-1, name="p")
    if cleanup:
        p = n.add("Where", n.add("IsNaN", p), n.const(F(0.0)), p)
    y = n.add("MatMul", p, split_heads(n, "v", split, length))
    return n.model(join_heads(n, y, split, S), **kw)


def whole(
    m: ModelProto,
    layouts: tuple[str, str, str, str] = ("bsx", "bsx", "bsx", "bsx"),
    rule: str = "attention",
    **kw: Any,
) -> dict[str, Any]:
    """The spec's attributes after the numeric check; the layouts must be those given."""
    match = only(m, rule)
    a = dict(match.spec.attrs)
    assert tuple(a[c]["layout"] for c in ("q", "k", "v", "out")) == layouts
    check_spec(m, match, **kw)
    return a
