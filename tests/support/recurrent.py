"""LSTM, GRU and RNN in float64, as ONNX defines them, and launches of the kernel family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracea_onnx.ir.abi import ACTIVATIONS as CODES
from tracea_onnx.plan.kernel_families import PROJECTED_STEPS

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


class Layer:
    """Random weights and inputs of a launch: steps, rows, directions, units. `inputs`: of
    `recurrent_layer`, which projects them itself; 0: of `recurrent`, with their projection as x.
    """

    def __init__(
        self, kind: str, sizes: tuple[int, int, int, int], *, before: int = 0, reverse: int = 0,
        inputs: int = 0,
    ) -> None:  # fmt: skip
        self.inputs, self.kind, self.before, self.reverse = inputs, kind, before, reverse
        self.steps, self.batch, self.directions, self.hidden = sizes
        self.gates = GATES[kind]
        rng, rows = np.random.default_rng(sum(sizes)), self.gates * self.hidden

        def draw(*shape: int) -> Any:
            return rng.standard_normal(shape).astype(np.float32)

        self.r = draw(self.directions, rows, self.hidden) / np.float32(self.hidden**0.5)
        self.x = draw(self.steps, self.batch, *((inputs,) if inputs else (self.directions, rows)))
        self.w = draw(self.directions, rows, inputs) / np.float32(max(inputs, 1) ** 0.5)
        self.bias = draw(self.directions, *((2,) if inputs else ()), rows)
        self.h = draw(self.directions, self.batch, self.hidden)

    def want(self) -> list[Any]:
        """y and y_h. Each direction by itself, a projection as a product with the unit matrix."""
        rows, parts = self.gates * self.hidden, []
        for d in range(self.directions):
            backward = (d == 1) != bool(self.reverse)
            feeds = {"R": self.r[d : d + 1], "initial_h": self.h[d : d + 1]}
            if self.inputs:
                bias = self.bias[d].reshape(1, -1)
                feeds |= {"X": self.x, "W": self.w[d : d + 1], "B": bias}
            else:
                bias = np.concatenate([np.zeros(rows), self.bias[d]])[None]
                feeds |= {"X": self.x[:, :, d], "W": np.eye(rows)[None], "B": bias}
            attrs = {
                "direction": "reverse" if backward else "forward",
                "linear_before_reset": self.before,
            }
            parts.append(run(self.kind, feeds, attrs))
        return [np.concatenate([p[k] for p in parts], axis=1 - k) for k in range(2)]

    def operands(self) -> dict[str, Any]:
        """Inputs but for packed weights, and what the kernel keeps, which is NaN at first."""
        units = -(-self.hidden // 32) * 32
        gates = self.gates if self.inputs else 0
        rows = (4 + PROJECTED_STEPS * gates) * self.batch + gates
        state = np.full(self.directions * rows * units, np.nan, np.float32)
        return {"x": self.x, "bias": self.bias, "h": self.h, "state": state}

    def ints(self) -> dict[str, int]:
        """Integers of the launch."""
        d, b, n, rows = self.directions, self.batch, self.hidden, self.gates * self.hidden
        f, tanh = CODES.index("sigmoid"), CODES.index("tanh")
        width = self.inputs or d * rows
        own = {"I": self.inputs} if self.inputs else {"bias_d": rows}
        return {
            **own, "T": self.steps, "B": b, "D": d, "H": n, "G": self.gates, "x_t": b * width,
            "x_b": width, "y_t": d * b * n, "y_b": n, "y_d": b * n, "h_b": n, "h_d": b * n,
            "before": self.before, "reverse": self.reverse,
            "act_f": tanh if self.kind == "RNN" else f, "act_g": tanh, "act_h": tanh,
        }  # fmt: skip

    def rows_of_units(self, pitch: int) -> Any:
        """The weights as CUDA kernels take them: [directions, units, gates, pitch]."""
        wide = self.r.reshape(self.directions, self.gates, self.hidden, self.hidden)
        packed = np.zeros((self.directions, self.hidden, self.gates, pitch), np.float32)
        packed[..., : self.hidden] = wide.transpose(0, 2, 1, 3)
        return packed
