"""Squeeze-and-excitation in its exporters' forms, and near misses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto

from tests.host.rules.rules_oracle import activation, check, model, node, only, reason

C, S = 6, 3


def weights(*shape: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def excite(
    *,
    pool: str = "mean",
    kind: str = "conv",
    act1: str = "relu",
    gate: Sequence[NodeProto] | None = None,
    bias: bool = True,
    swapped: bool = False,
    shape: Sequence[int | str] = (2, C, 5, 4),
    extra: Sequence[NodeProto] = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    mul: str = "x",
    overridable: Sequence[str] = (),
    conv: dict[str, Any] | None = None,
) -> ModelProto:
    first = {
        "global": [node("GlobalAveragePool", "x", "p")],
        "mean": [node("ReduceMean", "x", "p", axes=[2, 3], keepdims=1)],
        "mean input": [node("ReduceMean", "x axes", "p")],
        "wrong axes": [node("ReduceMean", "x", "p", axes=[1, 2], keepdims=1)],
    }[pool]
    values: dict[str, npt.ArrayLike] = {
        "axes": np.array([-1, -2]),
        "flat": np.array([0, C]),
        "image": np.array([0, C, 1, 1]),
    }
    values |= {"b1": weights(S, seed=3), "b2": weights(C, seed=4)}
    tail, constants, _ = activation(act1, "h", "a")
    b1, b2 = (" b1", " b2") if bias else ("", "")
    if kind == "conv":
        values |= {"w1": weights(S, C, 1, 1), "w2": weights(C, S, 1, 1, seed=2)}
        body = [
            node("Conv", "p w1" + b1, "h", **(conv or {})),
            *tail,
            node("Conv", "a w2" + b2, "g"),
        ]
        before = after = []
    else:
        trans = kind == "gemm"
        values |= {
            "w1": weights(*((S, C) if trans else (C, S))),
            "w2": weights(*((C, S) if trans else (S, C)), seed=2),
        }
        before, after = [node("Reshape", "p flat", "v")], [node("Reshape", "s image", "k")]
        if trans:
            body = [
                node("Gemm", "v w1" + b1, "h", transB=1),
                *tail,
                node("Gemm", "a w2" + b2, "g", transB=1),
            ]
        else:
            body = [
                node("MatMul", "v w1", "h0"),
                node("Add", "h0 b1", "h"),
                *tail,
                node("MatMul", "a w2", "g0"),
                node("Add", "b2 g0", "g"),
            ]
    last = [node("Sigmoid", "g", "s")] if gate is None else list(gate)
    factor = "k" if after else "s"
    nodes = [
        *first,
        *before,
        *body,
        *last,
        *after,
        node("Mul", f"{factor} {mul}" if swapped else f"{mul} {factor}", "y"),
        *extra,
    ]
    used = {i for n in nodes for i in n.input}
    inputs: dict[str, Sequence[int | str]] = {"x": shape, **({"z": shape} if mul == "z" else {})}
    return model(
        nodes,
        inputs,
        outputs,
        {k: v for k, v in (values | constants).items() if k in used},
        opset=opset,
        overridable=overridable,
    )


@pytest.mark.parametrize("pool", ["mean", "global"])
@pytest.mark.parametrize("kind", ["conv", "gemm", "matmul"])
@pytest.mark.parametrize("act1", ["relu", "silu", "hswish mul"])
@pytest.mark.parametrize("swapped", [False, True])
def test_each_form(pool: str, kind: str, act1: str, swapped: bool) -> None:
    m = excite(pool=pool, kind=kind, act1=act1, swapped=swapped, shape=("n", C, 5, 4))
    match = only(m, "squeeze_excite")
    assert len(match.nodes) == len(m.graph.node)
    assert match.spec.roles == ("x", "w1", "b1", "w2", "b2")
    check(m, match, sizes={"n": 3})


def test_hard_sigmoid_gates_and_no_bias() -> None:
    spelled = [
        node("Add", "g three", "t"),
        node("Clip", "t zero six", "u"),
        node("Div", "u six", "s"),
    ]
    _, constants, _ = activation("hswish div inside", "g", "s")
    for gate in ([node("HardSigmoid", "g", "s", alpha=1 / 6)], spelled):
        m = excite(gate=gate, bias=False)
        if gate is spelled:
            from onnx import numpy_helper

            m.graph.initializer.extend(
                numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()
            )
        match = only(m, "squeeze_excite")
        assert match.spec.roles == ("x", "w1", "w2")
        check(m, match)


def test_mean_with_axes_as_input() -> None:
    m = excite(pool="mean input", opset=18)
    check(m, only(m, "squeeze_excite"))


@pytest.mark.parametrize(
    ("m", "says"),
    [
        (excite(pool="wrong axes", shape=(2, C, C, 1)), "not over height and width"),
        (excite(mul="z"), "does not multiply the gate with 'x'"),
        (
            excite(extra=[node("Exp", "s", "e")], outputs=["y", "e"]),
            "'s' inside the chain is read by 2",
        ),
        (
            excite(extra=[node("Exp", "p", "e")], outputs=["y", "e"]),
            "'p' inside the chain is read by 2",
        ),
        (
            excite(extra=[node("Exp", "h", "e")], outputs=["y", "e"]),
            "'h' inside the chain is read by 2 nodes",
        ),
        (excite(outputs=["y", "s"]), "'s' inside the chain is a graph output"),
        (excite(overridable=["w1"]), "the weight 'w1' of Conv 'n_h' is not constant"),
        (excite(conv={"pads": [1, 1, 1, 1]}), "not a plain 1x1 convolution"),
        (excite(gate=[node("Softmax", "g", "s", axis=1)]), "Softmax 'n_s' does not multiply"),
    ],
)
def test_near_misses_say_why(m: ModelProto, says: str) -> None:
    assert says in reason(m, "squeeze_excite", "n_p")
