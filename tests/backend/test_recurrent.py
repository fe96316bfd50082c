"""`recurrent_layer` and `pack_recurrent` against float64, on every instruction set of this machine.

Outputs are filled with NaN before each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.recurrent import Layer
from tracea_onnx.errors import TraceaError
from tracea_onnx.plan.kernel_families import packed_elements
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel


def _placed(v: Any) -> Any:
    out = aligned(v.shape, v.dtype)
    out[...] = v
    return out


def _poisoned(*shape: int) -> Any:
    out = aligned(shape)
    out.fill(np.nan)
    return out


def _launch(layer: Layer, isa: str, threads: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Operands, with the weights packed, and integers."""
    d, n, g = layer.directions, layer.hidden, layer.gates
    first = 2 if layer.kind == "GRU" and not layer.before else g
    weights: dict[str, Any] = {}
    for name, v in (("w", layer.w), ("r", layer.r)):
        packing = {"D": d, "H": n, "K": v.shape[2], "G": g, "first": first}
        weights[name] = aligned(packed_elements("pack_recurrent", **packing))
        run_kernel("pack_recurrent", {"r": _placed(v), "packed": weights[name]}, packing, isa=isa,
                   threads=threads)  # fmt: skip
    operands = {
        **{k: _placed(v) for k, v in layer.operands().items()}, **weights,
        "y": _poisoned(layer.steps, d, layer.batch, n), "y_h": _poisoned(d, layer.batch, n),
    }  # fmt: skip
    return operands, layer.ints()


VARIANTS = [("LSTM", 0), ("GRU", 0), ("GRU", 1), ("RNN", 0)]
#: Steps, rows, directions, units, and inputs: few rows and many, units of one panel and of several,
#: steps around those that are projected at once.
SIZES = [
    ((3, 1, 1, 1), 1), ((4, 1, 2, 33), 5), ((3, 2, 1, 31), 40), ((2, 5, 1, 64), 3),
    ((3, 30, 2, 20), 7), ((2, 1, 1, 801), 2), ((12, 1, 2, 64), 130), ((19, 1, 1, 97), 801),
    ((18, 1, 1, 130), 31), ((25, 1, 1, 801), 802), ((13, 3, 2, 33), 4), ((14, 9, 1, 16), 6),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("sizes", "inputs"), SIZES, ids=str)
@pytest.mark.parametrize(("kind", "before"), VARIANTS)
@pytest.mark.parametrize("threads", [1, 3])
def test_layer(
    isa: str, sizes: tuple[int, int, int, int], inputs: int, kind: str, before: int, threads: int
) -> None:
    layer = Layer(kind, sizes, before=before, reverse=sizes[0] % 2, inputs=inputs)
    operands, ints = _launch(layer, isa, threads)
    run_kernel("recurrent_layer", operands, ints, isa=isa, threads=threads)
    y, last = layer.want()
    np.testing.assert_allclose(operands["y"], y, rtol=0, atol=1e-5)
    np.testing.assert_allclose(operands["y_h"], last, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "before"), VARIANTS)
def test_tasks_that_share_a_direction(kind: str, before: int) -> None:
    """Units are split among tasks that meet after each stage; the first of them does the work of
    the others until they begin.
    """
    layer = Layer(kind, (13, 1, 1, 300), before=before, inputs=290)
    operands, ints = _launch(layer, isas()[0], 1)
    assert kernel_tasks("recurrent_layer", operands, ints, threads=3) == 3
    y, _ = layer.want()
    for _ in range(10):
        operands, ints = _launch(layer, isas()[0], 1)
        run_kernel("recurrent_layer", operands, ints, threads=3)
        np.testing.assert_allclose(operands["y"], y, rtol=0, atol=1e-5)


def test_rows_are_split_where_there_are_enough() -> None:
    layer = Layer("LSTM", (2, 32, 1, 16), inputs=9)
    operands, ints = _launch(layer, isas()[0], 1)
    assert kernel_tasks("recurrent_layer", operands, ints, threads=4) == 4
    assert kernel_tasks("recurrent_layer", operands, ints, threads=1) == 1


def test_lengths_out_of_range_are_bad_data() -> None:
    layer = Layer("LSTM", (3, 2, 1, 5), inputs=4)
    operands, ints = _launch(layer, isas()[0], 1)
    for lens in ([4, 1], [1, -1]):
        operands["lens"] = _placed(np.array(lens, np.int32))
        with pytest.raises(TraceaError, match="recurrent_layer reported bad data"):
            run_kernel("recurrent_layer", operands, ints)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("threads", [1, 3])
def test_operands_that_share_memory(isa: str, threads: int) -> None:
    """As a changed Plan can have them: the length of the row lies where the first state is written,
    14 at first and then 19. No step behind the last one is read, and tasks do not wait for ever.
    """
    layer = Layer("RNN", (19, 1, 1, 300), inputs=290)
    for name in ("r", "w", "bias", "h"):
        setattr(layer, name, np.abs(getattr(layer, name)))
    operands, ints = _launch(layer, isa, 1)
    x = aligned((20, 1, 290))
    x[:19], x[19] = np.abs(layer.x), np.nan
    operands["state"].fill(0)
    operands["x"], operands["lens"] = x[:19], operands["state"].view(np.int32)[:1]
    operands["lens"][0], operands["h"].view(np.int32)[0, 0, 0] = 14, 19
    run_kernel("recurrent_layer", operands, ints, isa=isa, threads=threads)
    assert not np.isnan(operands["state"]).any()
