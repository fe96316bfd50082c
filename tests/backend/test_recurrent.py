"""`recurrent` and `pack_recurrent` against float64, on every instruction set of this machine.

Outputs are filled with NaN before each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import recurrent
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import ACTIVATIONS
from tracea_onnx.plan.kernel_families import MEETING, packed_elements
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

SIGMOID, TANH = ACTIVATIONS.index("sigmoid"), ACTIVATIONS.index("tanh")


def _placed(v: Any) -> Any:
    out = aligned(v.shape, v.dtype)
    out[...] = v
    return out


def _poisoned(*shape: int) -> Any:
    out = aligned(shape)
    out.fill(np.nan)
    return out


class Layer:
    """Random weights and inputs, and the launch that they are for."""

    def __init__(
        self, kind: str, sizes: tuple[int, int, int, int], *, before: int = 0, reverse: int = 0
    ) -> None:
        self.kind, self.before, self.reverse = kind, before, reverse
        self.steps, self.batch, self.directions, self.hidden = sizes
        self.gates = recurrent.GATES[kind]
        rng, rows = np.random.default_rng(sum(sizes)), self.gates * self.hidden

        def draw(*shape: int) -> Any:
            return rng.standard_normal(shape).astype(np.float32)

        self.r = draw(self.directions, rows, self.hidden) / np.float32(self.hidden**0.5)
        self.x = draw(self.steps, self.batch, self.directions, rows)
        self.bias = draw(self.directions, rows)
        self.h = draw(self.directions, self.batch, self.hidden)

    def want(self) -> list[Any]:
        """Each direction by itself, its projection given as a product with the unit matrix."""
        rows, parts = self.gates * self.hidden, []
        for d in range(self.directions):
            backward = (d == 1) != bool(self.reverse)
            feeds = {
                "X": self.x[:, :, d], "W": np.eye(rows)[None], "R": self.r[d : d + 1],
                "B": np.concatenate([np.zeros(rows), self.bias[d]])[None],
                "initial_h": self.h[d : d + 1],
            }  # fmt: skip
            attrs = {
                "direction": "reverse" if backward else "forward",
                "linear_before_reset": self.before,
            }
            parts.append(recurrent.run(self.kind, feeds, attrs))
        return [np.concatenate([p[k] for p in parts], axis=1 - k) for k in range(2)]

    def launch(self, isa: str, threads: int) -> tuple[dict[str, Any], dict[str, int]]:
        d, n, g = self.directions, self.hidden, self.gates
        first = 2 if self.kind == "GRU" and not self.before else g
        packing = {"D": d, "H": n, "G": g, "first": first}
        packed = aligned(packed_elements("pack_recurrent", **packing))
        run_kernel("pack_recurrent", {"r": _placed(self.r), "packed": packed}, packing, isa=isa,
                   threads=threads)  # fmt: skip
        units = -(-n // 32) * 32
        state = _poisoned(d * (MEETING + 4 * self.batch * units))
        state[: d * MEETING] = 0
        operands = {
            "x": _placed(self.x), "r": packed, "bias": _placed(self.bias), "h": _placed(self.h),
            "y": _poisoned(self.steps, d, self.batch, n), "y_h": _poisoned(d, self.batch, n),
            "state": state,
        }  # fmt: skip
        ints = {
            "T": self.steps, "B": self.batch, "D": d, "H": n, "G": g, "x_t": self.batch * d * g * n,
            "x_b": d * g * n, "y_t": d * self.batch * n, "y_b": n, "y_d": self.batch * n, "h_b": n,
            "h_d": self.batch * n, "bias_d": g * n, "before": self.before, "reverse": self.reverse,
            "act_f": TANH if self.kind == "RNN" else SIGMOID, "act_g": TANH, "act_h": TANH,
        }  # fmt: skip
        return operands, ints


VARIANTS = [("LSTM", 0), ("GRU", 0), ("GRU", 1), ("RNN", 0)]
#: Steps, rows, directions, units: few rows and many, units of one panel and of several.
SIZES = [(3, 1, 1, 1), (4, 1, 2, 33), (3, 2, 1, 31), (2, 5, 1, 64), (3, 30, 2, 20), (2, 1, 1, 801)]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("kind", "before"), VARIANTS)
@pytest.mark.parametrize("threads", [1, 3])
def test_layer(
    isa: str, sizes: tuple[int, int, int, int], kind: str, before: int, threads: int
) -> None:
    layer = Layer(kind, sizes, before=before, reverse=sizes[0] % 2)
    operands, ints = layer.launch(isa, threads)
    run_kernel("recurrent", operands, ints, isa=isa, threads=threads)
    y, last = layer.want()
    np.testing.assert_allclose(operands["y"], y, rtol=0, atol=1e-5)
    np.testing.assert_allclose(operands["y_h"], last, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "before"), VARIANTS)
def test_tasks_that_share_a_direction(kind: str, before: int) -> None:
    """Units are split among tasks that meet after each stage; the first of them does the work of
    the others until they begin.
    """
    layer = Layer(kind, (7, 1, 1, 300), before=before)
    operands, ints = layer.launch(isas()[0], 1)
    assert kernel_tasks("recurrent", operands, ints, threads=3) == (3 if kind != "RNN" else 2)
    y, _ = layer.want()
    for _ in range(10):
        operands, ints = layer.launch(isas()[0], 1)
        run_kernel("recurrent", operands, ints, threads=3)
        np.testing.assert_allclose(operands["y"], y, rtol=0, atol=1e-5)


def test_rows_are_split_where_there_are_enough() -> None:
    layer = Layer("LSTM", (2, 32, 1, 16))
    operands, ints = layer.launch(isas()[0], 1)
    assert kernel_tasks("recurrent", operands, ints, threads=4) == 4
    assert kernel_tasks("recurrent", operands, ints, threads=1) == 1


def test_lengths_out_of_range_are_bad_data() -> None:
    layer = Layer("LSTM", (3, 2, 1, 5))
    operands, ints = layer.launch(isas()[0], 1)
    for lens in ([4, 1], [1, -1]):
        operands["lens"] = _placed(np.array(lens, np.int32))
        with pytest.raises(TraceaError, match="recurrent reported bad data"):
            run_kernel("recurrent", operands, ints)
