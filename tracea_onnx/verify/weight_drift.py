"""Which weights can have few bits: how far the outputs drift with them, and which nodes must keep
theirs, found in one pass over all weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from tracea_onnx.model_io import model_file
from tracea_onnx.rewrite import weight_only
from tracea_onnx.support import deadline
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.verify import narrow_errors, verification

#: How far an output may drift: the root mean square of the differences over that of its values.
LIMITS = {"int8": 0.02, "int4": 0.1}


@dataclass(frozen=True)
class Weights:
    """Result of weight-only quantisation: nodes that read quantised ones, nodes that keep theirs
    with the error that they would have had, the drift of each output, bytes of initializers before
    and after.
    """

    format: str
    block: int
    nodes: tuple[str, ...]
    kept: dict[str, float]
    drift: dict[str, float]
    bytes_before: int
    bytes_after: int

    def text(self) -> list[str]:
        """Some lines."""
        share = self.bytes_after / max(self.bytes_before, 1)
        count = len(self.nodes)
        lines = [
            f"{self.format} weights: {count} nodes read them; constants are {share:.2f} as large"
        ]
        lines += drift_text(self.drift)
        kept = sorted(self.kept, key=lambda n: -self.kept[n])
        lines += [f"  {n} keeps its weight: its error was {self.kept[n]:.2g}" for n in kept[:8]]
        return lines + [f"  and {len(kept) - 8} more"] * (len(kept) > 8)


def shrink(
    source: model_file.Source,
    form: weight_only.Format,
    measure: Callable[[], verification.Reference] | None,
    limit: float | None = None,
) -> Weights:
    """Quantise the weights of `source` in place. Without `measure`, which runs the original, none
    are kept. limit: of the drift (None: that of the format).
    """
    before = size(source.model)
    plain = _copy(source)
    names, _ = weight_only.quantise(source.model, form, folder=source.folder)
    kept: dict[str, float] = {}
    drift: dict[str, float] = {}
    if measure is not None and names:
        reference = measure()
        drift, limit = drifts([reference], source), LIMITS[form.name] if limit is None else limit
        if worst(drift) > limit:
            beside = _copy(plain)
            copies = weight_only.quantise(beside.model, form, folder=beside.folder, beside=True)[1]
            errors = narrow_errors.measure(reference, beside, copies)

            def without(kept: Sequence[str]) -> dict[str, float]:
                nonlocal names
                source.model.CopyFrom(plain.model)
                names, _ = weight_only.quantise(source.model, form, folder=source.folder, wide=kept)
                return drifts([reference], source)

            kept, drift = keep(names, errors, drift, limit, without)
    return Weights(form.name, form.block, tuple(names), kept, drift, before, size(source.model))


def keep(
    names: Sequence[str],
    errors: Mapping[str, float],
    drift: dict[str, float],
    limit: float,
    without: Callable[[Sequence[str]], dict[str, float]],
) -> tuple[dict[str, float], dict[str, float]]:
    """The nodes of the largest errors, as many as must keep their precision for a drift within the
    limit, and the drift that is left; `without` quantises all others, and measures.
    """
    unknown = max(filter(math.isfinite, errors.values()), default=1.0)
    order = sorted(names, key=lambda n: -errors.get(n, unknown))
    squares, count = [errors.get(n, unknown) ** 2 for n in order], 0
    while worst(drift) > limit and count < len(order):
        count = narrow_errors.enough(squares, count, worst(drift) / limit)
        drift = without(order[:count])
    return {n: errors.get(n, unknown) for n in order[:count]}, drift


def _copy(source: model_file.Source) -> model_file.Source:
    made = model_file.Source(ModelProto(), source.folder, source.path)
    made.model.CopyFrom(source.model)
    return made


def size(model: ModelProto) -> int:
    """Bytes of the main graph's initializers."""
    bits: dict[int, int] = {TensorProto.INT4: 4, TensorProto.INT8: 8, TensorProto.UINT8: 8}
    return sum(math.prod(t.dims) * bits.get(t.data_type, 32) // 8 for t in model.graph.initializer)


def worst(drift: Mapping[str, float]) -> float:
    """The largest drift."""
    return max(drift.values(), default=0.0)


def drift_text(drift: Mapping[str, float]) -> list[str]:
    """A line on the output that drifts most."""
    if not drift:
        return []
    name = max(drift, key=lambda o: drift[o])
    return [f"  the outputs drift by {drift[name]:.2g} at most ('{name}')"]


def drifts(
    references: Sequence[verification.Reference], source: model_file.Source
) -> dict[str, float]:
    """Of each output of floats, over all references; infinite where the model does not run."""
    squares: dict[str, tuple[float, float]] = {}
    try:
        session = verification.session(source)
        for reference in references:
            floats = {
                name: a
                for name, a in zip(reference.names, reference.expected, strict=True)
                if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.size
            }
            squares |= {n: squares.get(n, (0.0, 0.0)) for n in floats}
            found = deadline.run(session, [*floats], reference.fed, reference.time_limit)
            for (n, a), b in zip(floats.items(), found, strict=True):
                apart, whole = _squares(a, b)
                squares[n] = squares[n][0] + apart, squares[n][1] + whole
    except Exception:  # whatever ONNX Runtime says of it
        return dict.fromkeys(squares or {""}, math.inf)
    return {
        n: math.sqrt(apart / whole) if whole else (0.0 if not apart else math.inf)
        for n, (apart, whole) in squares.items()
    }


def _squares(a: Any, b: Any) -> tuple[float, float]:
    """Sums of squares of the differences, and of the values."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    return float(np.sum((x[both] - y[both]) ** 2)), float(np.sum(x[both] ** 2))
