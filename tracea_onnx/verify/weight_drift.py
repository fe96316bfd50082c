"""Which weights can be of few bits: how far the outputs drift with them, and which nodes must keep
theirs, found in one pass over all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """What became of the weights: nodes that read quantised ones, nodes that keep theirs with the
    error that they would have had, the drift of each output, bytes of initializers before and
    after.
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
        if self.drift:
            worst = max(self.drift, key=lambda o: self.drift[o])
            lines.append(f"  the outputs drift by {self.drift[worst]:.2g} at most ('{worst}')")
        kept = sorted(self.kept, key=lambda n: -self.kept[n])
        lines += [f"  {n} keeps its weight: its error was {self.kept[n]:.2g}" for n in kept[:8]]
        return lines + [f"  and {len(kept) - 8} more"] * (len(kept) > 8)


def shrink(
    source: model_file.Source,
    form: weight_only.Format,
    measure: Callable[[], verification.Reference] | None,
) -> Weights:
    """Quantise the weights of `source` in place. Without `measure`, which runs the original, none
    are kept.
    """
    before = _size(source.model)
    plain = _copy(source)
    names, _ = weight_only.quantise(source.model, form, folder=source.folder)
    kept: dict[str, float] = {}
    drift: dict[str, float] = {}
    if measure is not None and names:
        reference = measure()
        drift, limit = _drift(reference, source), LIMITS[form.name]
        if _worst(drift) > limit:
            beside = _copy(plain)
            copies = weight_only.quantise(beside.model, form, folder=beside.folder, beside=True)[1]
            errors = narrow_errors.measure(reference, beside, copies)
            unknown = max(filter(math.isfinite, errors.values()), default=1.0)
            order = sorted(names, key=lambda n: -errors.get(n, unknown))
            squares, count = [errors.get(n, unknown) ** 2 for n in order], 0
            while _worst(drift) > limit and count < len(order):
                count = narrow_errors.enough(squares, count, _worst(drift) / limit)
                source.model.CopyFrom(plain.model)
                kept = {n: errors.get(n, unknown) for n in order[:count]}
                names, _ = weight_only.quantise(
                    source.model, form, folder=source.folder, wide=kept.keys()
                )
                drift = _drift(reference, source)
    return Weights(form.name, form.block, tuple(names), kept, drift, before, _size(source.model))


def _copy(source: model_file.Source) -> model_file.Source:
    made = model_file.Source(ModelProto(), source.folder, source.path)
    made.model.CopyFrom(source.model)
    return made


def _size(model: ModelProto) -> int:
    """Bytes of the main graph's initializers."""
    bits: dict[int, int] = {TensorProto.INT4: 4, TensorProto.INT8: 8}
    return sum(math.prod(t.dims) * bits.get(t.data_type, 32) // 8 for t in model.graph.initializer)


def _worst(drift: dict[str, float]) -> float:
    return max(drift.values(), default=0.0)


def _drift(reference: verification.Reference, source: model_file.Source) -> dict[str, float]:
    """Of each output of floats; infinite where the model does not run."""
    floats = {
        name: a
        for name, a in zip(reference.names, reference.expected, strict=True)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.size
    }
    try:
        session = verification.session(source)
        found = deadline.run(session, [*floats], reference.fed, reference.time_limit)
    except Exception:  # whatever ONNX Runtime says of it
        return dict.fromkeys(floats, math.inf)
    return {n: _relative(a, b) for (n, a), b in zip(floats.items(), found, strict=True)}


def _relative(a: Any, b: Any) -> float:
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    if not both.any():
        return 0.0
    size = math.sqrt(float(np.mean(x[both] ** 2)))
    apart = math.sqrt(float(np.mean((x[both] - y[both]) ** 2)))
    return apart / size if size else (0.0 if not apart else math.inf)
