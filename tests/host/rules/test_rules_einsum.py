"""Linear layers spelled as Einsum."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from tests.host.rules.rules_oracle import check, model, node, only, reason

W, B = np.arange(20.0).reshape(4, 5) / 20, np.arange(5.0)


def build(equation: str, *after: NodeProto, outputs: tuple[str, ...] = ("y",)) -> ModelProto:
    first = node("Einsum", "x w", "s" if after else "y", equation=equation)
    used = {i for n in (first, *after) for i in n.input}
    constants = {"w": W.T if ",ed" in equation else W, "b": B}
    return model(
        [first, *after],
        {"x": ("n", 3, 4)},
        outputs,
        {k: v for k, v in constants.items() if k in used},
    )


@pytest.mark.parametrize("equation", ["bsd,de->bse", "bsd,ed->bse", "b s d, d e -> b s e"])
def test_bias_and_activation_fuse(equation: str) -> None:
    m = build(equation, node("Add", "s b", "z"), node("Relu", "z", "y"))
    match = only(m, "einsum_linear")
    assert match.spec.roles == ("x", "w", "b")
    check(m, match, sizes={"n": 2})


@pytest.mark.parametrize("equation", ["bsd,de->bes", "bsd,de->bde", "bsd,dd->bsd", "...d,de->...e"])
def test_no_linear_layer(equation: str) -> None:
    m = build(equation, node("Relu", "s", "y"))
    assert "is not a plain linear layer" in reason(m, "einsum_linear", "n_s")


def test_alone() -> None:
    assert "nothing after" in reason(build("bsd,de->bse"), "einsum_linear", "n_y")


def test_a_graph_output_ends_the_chain() -> None:
    m = build("bsd,de->bse", node("Relu", "s", "y"), outputs=("y", "s"))
    assert "graph output" in reason(m, "einsum_linear", "n_s")
