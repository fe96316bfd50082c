"""Gated linear units: two products of one input or one packed product, and what must not be taken
for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto

from tests.host.rules.rules_oracle import activation, check, find, model, node, only, ops, reason

K, N = 9, 6


def weights(*shape: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pair(
    act: str,
    *,
    bias: bool = False,
    gemm: bool = False,
    up_first: bool = False,
    swapped: bool = False,
    extra: Sequence[NodeProto] = (),
    outputs: Sequence[str] = ("y",),
) -> ModelProto:
    """x → gate → act, x → up, then their product y."""
    tail, constants, _ = activation(act, "gb" if bias else "gate", "a")

    def branch(name: str, letter: str) -> list[NodeProto]:
        if gemm:
            return [
                node(
                    "Gemm",
                    f"x w{letter}" + (f" b{letter}" if bias else ""),
                    f"{letter}b" if bias else name,
                    transB=1,
                )
            ]
        return [
            node("MatMul", f"x w{letter}", name),
            *([node("Add", f"{name} b{letter}", f"{letter}b")] if bias else []),
        ]

    gate, up = branch("gate", "g"), branch("up", "u")
    meet = [
        node("Mul", ("ub a" if bias else "up a") if swapped else ("a ub" if bias else "a up"), "y")
    ]
    nodes = [*up, *gate, *tail, *meet] if up_first else [*gate, *tail, *up, *meet]
    shape = (N, K) if gemm else (K, N)
    values: dict[str, npt.ArrayLike] = {
        **constants,
        "wg": weights(*shape),
        "wu": weights(*shape, seed=2),
    }
    if bias:
        values |= {"bg": weights(N, seed=3), "bu": weights(N, seed=4)}
    return model([*nodes, *extra], {"x": (5, K) if gemm else (2, 3, K)}, outputs, values)


@pytest.mark.parametrize(
    "act", ["silu", "gelu erf, half first", "gelu tanh fast", "hsigmoid", "relu"]
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("order", range(4))
def test_two_products_of_one_input(act: str, bias: bool, gemm: bool, order: int) -> None:
    m = pair(act, bias=bias, gemm=gemm, up_first=order % 2 == 1, swapped=order >= 2)
    match = only(m, "swiglu")
    assert len(match.nodes) == len(m.graph.node)
    assert match.spec.roles == ("x", "w_gate", "w_up", *(("b_gate", "b_up") if bias else ()))
    assert dict(zip(match.spec.roles, match.inputs, strict=True))["w_gate"] == "wg"
    check(m, match)


def packed(
    cut: Sequence[NodeProto],
    act: str = "silu",
    gate: str = "l",
    up: str = "r",
    *,
    extra: Sequence[NodeProto] = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> ModelProto:
    tail, constants, _ = activation(act, gate, "a")
    values = {
        **constants,
        "w": weights(K, 2 * N),
        "b": weights(2 * N),
        "zero": np.array([0]),
        "mid": np.array([N]),
        "end": np.array([2**63 - 1]),
        "axis": np.array([-1]),
    }
    nodes = [
        node("MatMul", "x w", "m"),
        node("Add", "m b", "c"),
        *cut,
        *tail,
        node("Mul", f"a {up}", "y"),
        *extra,
    ]
    used = {i for n in nodes for i in n.input}
    return model(
        nodes,
        {"x": (2, 3, K)},
        outputs,
        {k: v for k, v in values.items() if k in used},
        opset=opset,
    )


SPLIT = [node("Split", "c", "l r", axis=-1)]
SLICES = [node("Slice", "c zero mid axis", "l"), node("Slice", "c mid end axis", "r")]


@pytest.mark.parametrize("cut", [SPLIT, SLICES, SLICES[::-1]])
@pytest.mark.parametrize(("gate", "up", "split"), [("l", "r", 0), ("r", "l", 1)])
def test_packed_product(cut: Sequence[NodeProto], gate: str, up: str, split: int) -> None:
    m = packed(cut, gate=gate, up=up)
    match = only(m, "swiglu")
    assert match.spec.roles == ("x", "w", "b") and match.spec.attrs["split"] == split
    assert len(match.nodes) == len(m.graph.node)
    check(m, match)


def test_glu_of_torch_gates_with_the_second_half() -> None:
    m = packed(SPLIT, "hsigmoid", "r", "l")
    match = only(m, "swiglu")
    assert match.spec.attrs["split"] == 1
    check(m, match)


def test_split_sizes_as_attribute_and_as_number_of_outputs() -> None:
    for cut, opset in (
        (node("Split", "c", "l r", axis=2, split=[N, N]), 11),
        (node("Split", "c", "l r", axis=2, num_outputs=2), 18),
    ):
        m = packed([cut], opset=opset)
        check(m, only(m, "swiglu"))


# --- near misses ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("m", "anchor", "says"),
    [
        (
            pair("silu", extra=[node("Concat", "up up", "z", axis=0)], outputs=["y", "z"]),
            "n_gate",
            "do not meet",
        ),
        (pair("silu", outputs=["y", "a"]), "n_gate", "do not meet"),
        (
            pair("silu", up_first=True),
            "n_gate",
            "is the second branch of the gated unit of MatMul 'n_up'",
        ),
        (
            packed(SPLIT, extra=[node("Concat", "l l", "z", axis=0)], outputs=["y", "z"]),
            "n_m",
            "do not meet",
        ),
        (packed([node("Split", "c", "l r", axis=0)]), "n_m", "no second GEMM"),
        (
            packed([node("Slice", "c zero mid axis", "l"), node("Slice", "c zero mid axis", "r")]),
            "n_m",
            "no second GEMM",
        ),
        (
            packed([*SPLIT, node("Concat", "c c", "z", axis=0)], outputs=["y", "z"]),
            "n_m",
            "no second GEMM",
        ),
    ],
)
def test_near_misses_say_why(m: ModelProto, anchor: str, says: str) -> None:
    assert says in reason(m, "swiglu", anchor)


def test_products_of_different_inputs_or_widths_are_not_a_pair() -> None:
    other = model(
        [
            node("MatMul", "x a", "g"),
            node("Sigmoid", "g", "s"),
            node("MatMul", "z a", "u"),
            node("Mul", "s u", "y"),
        ],
        {"x": (2, K), "z": (2, K)},
        ["y"],
        {"a": weights(K, N)},
    )
    assert find(other, "swiglu")[1] == []
    narrow = model(
        [node("MatMul", "x a", "g"), node("MatMul", "x b", "u"), node("Mul", "g u", "y")],
        {"x": (2, K)},
        ["y"],
        {"a": weights(K, N), "b": weights(K, 1)},
    )
    assert find(narrow, "swiglu")[1] == []


def test_the_down_projection_is_left_to_its_own_rule() -> None:
    down = [node("MatMul", "y wd", "o")]
    tail, constants, _ = activation("silu", "g", "a")
    nodes = [
        node("MatMul", "x wg", "g"),
        *tail,
        node("MatMul", "x wu", "u"),
        node("Mul", "a u", "y"),
        *down,
    ]
    m = model(
        nodes,
        {"x": (2, 3, K)},
        ["o"],
        {**constants, "wg": weights(K, N), "wu": weights(K, N), "wd": weights(N, K)},
    )
    assert ops(only(m, "swiglu")) == ["MatMul", "Sigmoid", "Mul", "MatMul", "Mul"]
