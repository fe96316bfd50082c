"""LSTM, GRU and RNN in float64, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
}
#: Which of alpha and beta an activation has, and what they are where they are not given.
PARAMETERS: dict[str, tuple[float, ...]] = {
    "Elu": (1.0,),
    "LeakyRelu": (0.01,),
    "HardSigmoid": (0.2, 0.5),
}


def _activations(kind: str, directions: int, attrs: Mapping[str, Any]) -> list[Any]:
    lists = [list(attrs.get(f"activation_{k}", ())) for k in ("alpha", "beta")]
    made = []
    for name in attrs.get("activations") or DEFAULTS[kind] * directions:
        given = [
            rest.pop(0) if rest else default
            for rest, default in zip(lists, PARAMETERS.get(name, ()), strict=False)
        ]
        a, b = (*given, 0.0, 0.0)[:2]
        made.append(lambda x, f=ACTIVATIONS[name], a=a, b=b: f(x, a, b))
    return made


def run(kind: str, feeds: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Y, Y_h and Y_c (zeros but for LSTM) of inputs by ONNX's names."""
    given: dict[str, Any] = {
        k: np.asarray(v, np.int64 if k == "sequence_lens" else np.float64) for k, v in feeds.items()
    }
    x, w, r = given["X"], given["W"], given["R"]
    batch_first = bool(attrs.get("layout", 0))
    x = np.swapaxes(x, 0, 1) if batch_first else x
    (steps, batch, _), (directions, _, hidden) = x.shape, r.shape
    gates = GATES[kind]

    def state(name: str) -> Any:
        v = given.get(name)
        v = np.zeros((directions, batch, hidden)) if v is None else v
        return np.swapaxes(v, 0, 1) if batch_first and name in given else v

    h, c = state("initial_h").copy(), state("initial_c").copy()
    bias = given.get("B", np.zeros((directions, 2 * gates * hidden)))
    peephole = given.get("P", np.zeros((directions, 3 * hidden)))
    lens = given.get("sequence_lens", np.full(batch, steps))
    acts = _activations(kind, directions, attrs)
    limit = attrs.get("clip", np.inf)
    y = np.zeros((steps, directions, batch, hidden))

    def cell(d: int, b: int, v: Any) -> None:
        each = len(DEFAULTS[kind])
        f, *others = acts[d * each : (d + 1) * each]

        def clip(value: Any) -> Any:
            return np.clip(value, -limit, limit)

        old = h[d, b]
        inner = (w[d] @ v + bias[d, : gates * hidden]).reshape(gates, hidden)
        own = bias[d, gates * hidden :].reshape(gates, hidden)
        wide = r[d].reshape(gates, hidden, hidden)
        if kind == "RNN":
            h[d, b] = f(clip(inner[0] + wide[0] @ old + own[0]))
        elif kind == "GRU":
            z = f(clip(inner[0] + wide[0] @ old + own[0]))
            reset = f(clip(inner[1] + wide[1] @ old + own[1]))
            if attrs.get("linear_before_reset", 0):
                made = inner[2] + reset * (wide[2] @ old + own[2])
            else:
                made = inner[2] + wide[2] @ (reset * old) + own[2]
            h[d, b] = (1 - z) * others[0](clip(made)) + z * old
        else:
            p = peephole[d].reshape(3, hidden)
            i, o, forget, new = inner + wide @ old + own
            i = f(clip(i + p[0] * c[d, b]))
            forget = 1 - i if attrs.get("input_forget", 0) else f(clip(forget + p[2] * c[d, b]))
            c[d, b] = forget * c[d, b] + i * others[0](clip(new))
            h[d, b] = f(clip(o + p[1] * c[d, b])) * others[1](c[d, b])

    for d in range(directions):
        backward = d == 1 or attrs.get("direction") == "reverse"
        for b in range(batch):
            order: Sequence[int] = range(int(lens[b]))
            for t in reversed(order) if backward else order:
                cell(d, b, x[t, b])
                y[t, d, b] = h[d, b]
    # the last state of a row of no steps, as ONNX Runtime has it
    h[:, lens == 0], c[:, lens == 0] = 0, 0
    if batch_first:
        return y.transpose(2, 0, 1, 3), np.swapaxes(h, 0, 1), np.swapaxes(c, 0, 1)
    return y, h, c
