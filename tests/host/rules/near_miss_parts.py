"""What the generators of random graphs share: weights, operand order, activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from tests.host.rules.rules_oracle import SPELLINGS, activation, model

Constants = dict[str, npt.ArrayLike]
Shapes = dict[str, Sequence[int | str]]
#: Spellings of activations that any opset from 13 on can write.
SPELT = tuple(name for name, (opset, _) in SPELLINGS.items() if opset <= 13)
#: Batch sizes; the name stands for a size the graph does not tell.
BATCHES: tuple[int | str, ...] = (1, 2, 2, "batch")
#: The last is large enough to be seen in any result.
EPSILONS = (1e-5, 1e-2, 0.5)


def weights(r: Random, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(r.randrange(1 << 30)).standard_normal(shape).astype(np.float32)


def positive(r: Random, *shape: int) -> npt.NDArray[np.float32]:
    return (np.abs(weights(r, *shape)) + 0.3).astype(np.float32)


def either(r: Random, a: str, b: str) -> str:
    """The two inputs of a node in random order."""
    return f"{a} {b}" if r.random() < 0.5 else f"{b} {a}"


def built(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, npt.ArrayLike],
    **kw: Any,
) -> ModelProto:
    """The model of `nodes`, with the inputs and constants they use."""
    used = {i for n in nodes for i in n.input}
    given, stored = (
        {k: v for k, v in inputs.items() if k in used},
        {k: v for k, v in constants.items() if k in used},
    )
    return model(nodes, given, kw.pop("outputs", ("y",)), stored, opset=kw.pop("opset", 13), **kw)


def tail(r: Random, x: str, y: str, constants: Constants) -> list[NodeProto]:
    """A random activation from `x` to `y`; its constants join `constants`."""
    nodes, more, _ = activation(r.choice(SPELT), x, y)
    constants |= more
    return nodes
