"""Transposes sink through pointwise nodes: results keep every bit, and no more is transposed than
before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto

from tests.host.graph.test_canonical import unchanged
from tests.host.pipeline_models import normal, ops
from tests.host.rules.rules_oracle import find, model, node

C = 4
TO, BACK = [0, 2, 3, 1], [0, 3, 1, 2]
WEIGHTS: dict[str, npt.ArrayLike] = {
    "w": normal(C, C, 3, 3), "b": normal(C), "s": normal(1, 1, C), "k": normal(1, 5, 6, C),
    "one": np.float32(1), "v": normal(C, C, 3, 3),
}  # fmt: skip
PADS: dict[str, npt.ArrayLike] = {"pads": np.array([0, 1, 2, 0, 0, 3, 0, 0]), "zero": np.float32(0)}
CONV = [node("Conv", "x w", "c", pads=[1] * 4), node("Transpose", "c", "t", perm=TO)]


def sunk(
    nodes: Sequence[NodeProto], *outputs: str, inputs: dict[str, tuple[int, ...]] | None = None
) -> ModelProto:
    shapes = {"x": (2, C, 5, 6), **(inputs or {})}
    used = {i for n in nodes for i in n.input}
    m = model(
        nodes,
        shapes,
        outputs or ("y",),
        {k: v for k, v in (WEIGHTS | PADS).items() if k in used},
        opset=13,
    )
    return unchanged(m, {k: normal(*s, seed=3) for k, s in shapes.items()})


@pytest.mark.parametrize(
    ("middle", "last"),
    [
        ("Add(t b) a; Relu(a) r", "r"),
        ("Add(b t) a; Mul(a s) m; Add(m k) n; PRelu(n b) r", "r"),
        ("Sub(one t) a; Clip(a) r; Add(a r) q", "q"),
        ("Concat(t t t) a; Sigmoid(a) g; Mul(a g) r", "r"),
        ("Pad(t pads zero) p; Add(p b) r", "r"),
    ],
)
def test_what_lies_between_two_layouts_computes_before_them(middle: str, last: str) -> None:
    steps = [s.strip() for s in middle.split(";")]
    nodes = []
    for s in steps:
        op, rest = s.split("(")
        read, made = rest.split(")")
        nodes.append(node(op, read, made.strip(), **({"axis": -1} if op == "Concat" else {})))
    m = sunk(
        [
            *CONV,
            *nodes,
            node("Transpose", last, "u", perm=BACK),
            node("MaxPool", "u", "y", kernel_shape=[2, 2]),
        ]
    )
    assert "Transpose" not in ops(m)


def test_a_convolution_gets_its_epilogue_and_an_output_its_name() -> None:
    m = sunk([*CONV, node("Add", "t b", "a"), node("Relu", "a", "y")])
    assert ops(m) == ["Conv", "Add", "Relu", "Transpose"]
    assert [n.op for n in find(m, "conv")[1][0].nodes] == ["Conv", "Add", "Relu"]
    m = sunk([*CONV, node("Add", "t b", "a"), node("Transpose", "a", "y", perm=BACK)])
    assert ops(m) == ["Conv", "Add"]


def test_a_residual_block_keeps_no_inner_transpose() -> None:
    nodes = [
        *CONV, node("Add", "t b", "a"), node("Relu", "a", "r"),
        node("Transpose", "r", "u", perm=BACK), node("Conv", "u v", "d", pads=[1] * 4),
        node("Transpose", "d", "e", perm=TO), node("Add", "e r", "f"), node("Relu", "f", "y"),
    ]  # fmt: skip
    assert ops(sunk(nodes)) == ["Conv", "Add", "Relu", "Conv", "Add", "Relu", "Transpose"]


@pytest.mark.parametrize(
    "nodes",
    [
        # two transposes for one
        [*CONV, node("Relu", "t", "r"), node("Softmax", "t", "q"), node("Softmax", "r", "y")],
        [*CONV, node("Add", "t z", "y")],  # z would need one
        # as many, and no convolution
        [node("Relu", "x", "c"), node("Transpose", "c", "t", perm=TO), node("Add", "t b", "y")],
    ],
)
def test_where_nothing_is_won_nothing_moves(nodes: Sequence[NodeProto]) -> None:
    names = [i for n in nodes for i in n.input]
    m = sunk(
        nodes,
        *(("y", "q") if "q" in [o for n in nodes for o in n.output] else ()),
        inputs={"z": (2, 5, 6, C)} if "z" in names else None,
    )
    assert ops(m) == [n.op_type for n in nodes]


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_keep_every_bit_and_transpose_no_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    perms = [[0, 2, 1]] if seed % 2 else [[0, 2, 1], [1, 2, 0], [2, 0, 1]]
    nodes, values = [], ["x", "z"]
    for k in range(14):
        a, b = (values[int(i)] for i in rng.integers(0, len(values), 2))
        move = node("Transpose", a, f"v{k}", perm=perms[int(rng.integers(0, len(perms)))])
        nodes.append(
            [move, move, node("Add", f"{a} {b}", f"v{k}"), node("Mul", f"{a} m", f"v{k}")][
                int(rng.integers(0, 4))
            ]
        )
        values.append(f"v{k}")
    read = {i for n in nodes for i in n.input}
    outputs = [v for v in values[2:] if v not in read or v == "v5"]
    m = model(
        nodes, {"x": (3, 3, 3), "z": (3, 3, 3)}, outputs, {"m": normal(3, 1, seed=1)}, opset=13
    )
    r = unchanged(m, {"x": normal(3, 3, 3, seed=1), "z": normal(3, 3, 3, seed=2)})
    assert ops(r).count("Transpose") <= ops(m).count("Transpose")
