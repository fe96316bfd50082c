"""Static quantisation to 8 bits with typical data: how far the outputs drift, and which layers stay
in fp32 for it, found in one run of copies that read the float model's own values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from tracea_onnx.errors import UsageError
from tracea_onnx.model_io import external, model_file
from tracea_onnx.rewrite import static_int8
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.verify import narrow_errors, verification, weight_drift

#: How far an output may drift where nothing is said, and samples that it is measured on.
LIMIT = 0.1
_MEASURED = 8
#: Metadata of a model: layers that stayed wide, with their errors.
METADATA_WIDE = "tracea_onnx.int8_kept_wide"
_SHOWN = 8


@dataclass(frozen=True)
class Quantised:
    """Result of static quantisation: how ranges were found, from how many samples, how far an
    output may drift; nodes that read 8 bits, nodes that stay fp32 with the error that they had, the
    drift of each output, bytes of initializers before and after.
    """

    calibration: str
    samples: int
    tolerated: float
    nodes: tuple[str, ...]
    kept: dict[str, float]
    drift: dict[str, float]
    bytes_before: int
    bytes_after: int

    def text(self) -> list[str]:
        """Some lines."""
        share = self.bytes_after / max(self.bytes_before, 1)
        of = f"{self.calibration} of {self.samples} samples"
        lines = [
            f"int8: {len(self.nodes)} nodes read 8 bits ({of}); constants are {share:.2f} as large"
        ]
        lines += weight_drift.drift_text(self.drift)
        lines += _kept(self.kept)
        if self.drift and max(self.drift.values()) > self.tolerated:
            lines.append(f"  that is more than {self.tolerated:g}, and no further layer helps")
        return lines


def _kept(kept: Mapping[str, float]) -> list[str]:
    order = sorted(kept, key=lambda n: -kept[n])
    lines = [
        f"  {n} stays fp32: "
        + (
            f"in 8 bits its error was {kept[n]:.2g}"
            if math.isfinite(kept[n])
            else f"it has numbers beyond {static_int8.HUGE:g}"
        )
        for n in order[:_SHOWN]
    ]
    return lines + [f"  and {len(order) - _SHOWN} more"] * (len(order) > _SHOWN)


def notes(model: ModelProto) -> list[str]:
    """Notes from the metadata of a model about layers that stayed wide."""
    for e in model.metadata_props:
        if e.key == METADATA_WIDE:
            try:
                kept = {str(k): float(v) for k, v in json.loads(e.value).items()}
            except (ValueError, TypeError, AttributeError):
                return []
            return [line.strip() for line in _kept(kept)]
    return []


def samples(model: ModelProto, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Inputs of one run after the other. An array with one axis more than its input has a sample at
    each place along it. Where the first axis of every input is the same symbol, each row is a
    sample. Raises UsageError for data that do not fit the model.
    """
    stored = {t.name for t in model.graph.initializer}
    wanted = {i.name: i.type.tensor_type for i in model.graph.input if i.name not in stored}
    hint = "give a file of numpy arrays, named as the model's inputs"
    for name in wanted.keys() - data.keys():
        raise UsageError(f"the calibration data have no '{name}', which the model reads", hint)
    for name in data.keys() - wanted.keys():
        raise UsageError(f"the calibration data have '{name}', which is no input", hint)
    many: dict[str, bool] = {}
    for name, t in wanted.items():
        a, dims = np.asarray(data[name]), list(t.shape.dim)
        try:
            dtype = helper.tensor_dtype_to_np_dtype(t.elem_type)
        except KeyError:
            raise UsageError(
                f"input '{name}' is no tensor of a known type, and cannot be calibrated",
                "quantise the model's weights alone: --weights int8",
            ) from None
        if a.dtype != dtype:
            raise UsageError(
                f"the calibration data have '{name}' as {a.dtype}; the model reads {dtype}",
                f"convert it: array.astype('{dtype}')",
            )
        many[name] = a.ndim == len(dims) + 1
        shape = a.shape[1:] if many[name] else a.shape
        fixed = [d.dim_value if d.HasField("dim_value") else -1 for d in dims]
        if len(shape) != len(dims) or any(
            f not in (-1, n) for f, n in zip(fixed, shape, strict=True)
        ):
            asked = ", ".join(d.dim_param or str(d.dim_value or "?") for d in dims)
            raise UsageError(
                f"the calibration data have '{name}' of shape {[*a.shape]}; the model reads"
                f" [{asked}]",
                "give that shape, or samples along one more axis before it",
            )
    rows = {t.shape.dim[0].dim_param if t.shape.dim else "" for t in wanted.values()}
    if not any(many.values()) and len(rows) == 1 and "" not in rows:
        counts = {len(data[name]) for name in wanted}
        width = 1
    else:
        counts = {len(data[name]) for name in wanted if many[name]} or {1}
        width = 0
    if len(counts) != 1 or 0 in counts:
        raise UsageError(
            f"the calibration data have {' and '.join(map(str, sorted(counts)))} samples",
            "give as many of each input, and at least one",
        )

    def part(name: str, k: int) -> Any:
        a = np.asarray(data[name])
        return a[k] if many[name] else a[k : k + 1] if width else a

    return [{name: np.asarray(part(name, k)) for name in wanted} for k in range(counts.pop())]


def quantise(
    source: model_file.Source,
    data: Mapping[str, Any],
    *,
    calibration: str,
    tolerated: float | None,
    measured: bool,
    time_limit: float,
) -> Quantised:
    """Quantise `source` in place. Without `measured` nothing is compared, and all layers are of 8
    bits. Raises UsageError.
    """

    def of(model: ModelProto) -> model_file.Source:
        return model_file.Source(model, None, None)

    limit = LIMIT if tolerated is None else tolerated
    static_int8.check(source.model, calibration)
    given = samples(source.model, data)
    before = weight_drift.size(source.model)
    external.load_into_memory(source, lambda _: True)
    original = of(ModelProto())
    original.model.CopyFrom(source.model)
    plain = static_int8.prepared(source.model)
    weighted = {n.name for n in plain.graph.node if n.op_type in _WEIGHTED}
    if not weighted:
        raise UsageError(
            "the model has no convolution or matrix multiplication to quantise", "leave it as it is"
        )
    found, huge = static_int8.ranges(plain, given, calibration, time_limit)
    if weighted <= {*huge}:
        raise UsageError(
            "with the calibration data each layer of the model has numbers beyond"
            f" {static_int8.HUGE:g}",
            "give data like those that the model is made for",
        )
    made = static_int8.quantised(plain, found, huge)
    names, kept, drift = static_int8.nodes(made), dict[str, float](), dict[str, float]()

    if measured:
        references = [
            verification.measure(original, values=sample, time_limit=time_limit)
            for sample in given[:_MEASURED]
        ]
        drift = weight_drift.drifts(references, of(made))
        if weight_drift.worst(drift) > limit:
            wide, copies = static_int8.beside(plain, made)
            errors = narrow_errors.measure(references[0], of(wide), copies)

            def without(kept: Sequence[str]) -> dict[str, float]:
                nonlocal made, names
                made = static_int8.quantised(plain, found, [*huge, *kept])
                names = static_int8.nodes(made)
                return weight_drift.drifts(references, of(made))

            kept, drift = weight_drift.keep(names, errors, drift, limit, without)
    known = {n.name for n in plain.graph.node if n.op_type in static_int8.OPERATORS}
    kept |= {n: math.inf for n in huge if n in known}
    if kept:
        entry = made.metadata_props.add()
        entry.key, entry.value = (
            METADATA_WIDE,
            json.dumps({k: round(v, 6) for k, v in kept.items()}),
        )
    source.model.CopyFrom(made)
    after = weight_drift.size(source.model)
    return Quantised(calibration, len(given), limit, tuple(names), kept, drift, before, after)


_WEIGHTED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
