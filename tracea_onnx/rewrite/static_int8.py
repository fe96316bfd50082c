"""Static quantisation to 8 bits, in standard ONNX: activations between QuantizeLinear and
DequantizeLinear, weights with a scale for each output channel.

ONNX Runtime's own tool (`onnxruntime.quantization`) finds the ranges and places the operators.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from tracea_onnx.errors import UsageError
from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import opset_versions
from tracea_onnx.rewrite.mixed_precision import Copy
from tracea_onnx.shapes.onnx_inference import first_line
from tracea_onnx.support import deadline

#: How ranges of activations are found, by their names, with options of the tool. Ranges need not be
#: symmetric: results of a Relu have twice the steps so.
METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "percentile": ("Percentile", {"symmetric": False}),
    "entropy": ("Entropy", {"symmetric": False, "num_bins": 256}),
    "minmax": ("MinMax", {}),
}
#: Convolutions, GEMMs, and what lies between them and may stay in 8 bits.
OPERATORS = (
    "Add", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "Flatten", "Gather", "Gemm",
    "GlobalAveragePool", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape",
    "Resize", "Sigmoid", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
#: The largest magnitude of a tensor that may be quantised.
HUGE = 1e6
_OPSET = 13
_LARGEST = 2**31 - 2**20
_QUANTISE, _DEQUANTISE = "QuantizeLinear", "DequantizeLinear"
#: What the tool appends to the name of a graph's output, before it is quantised.
_BEFORE = "_QuantizeLinear_Input"

Sample = Mapping[str, npt.NDArray[Any]]


def check(model: ModelProto, method: str) -> None:
    """Raises UsageError for what cannot be quantised, or an unknown method."""
    if method not in METHODS:
        raise UsageError(f"calibration '{method}' is unknown", f"choose from {', '.join(METHODS)}")
    if model.ByteSize() + sum(_external(t) for t in model.graph.initializer) > _LARGEST:
        raise UsageError(
            "a model of more than 2 GiB cannot be calibrated: ONNX Runtime's tool keeps it in one"
            " message",
            "quantise its weights alone: --weights int8",
        )


def _external(t: TensorProto) -> int:
    outside = t.data_location == TensorProto.EXTERNAL
    return int(np.prod(t.dims, dtype=np.int64)) * 4 if outside else 0


class _Given:
    """A reader of the tool: one sample, once."""

    def __init__(self, sample: Sample) -> None:
        self._left: Sample | None = sample

    def get_next(self) -> dict[str, Any] | None:
        """The sample, then None."""
        sample, self._left = self._left, None
        return None if sample is None else dict(sample)


@contextlib.contextmanager
def _working() -> Iterator[Path]:
    """A folder, while the tool says nothing on stdout and in the root logger. Raises UsageError for
    whatever it raises.
    """
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tracea-int8-") as folder,
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(action="ignore"),  # of numpy: values that are all NaN
        ):
            yield Path(folder)
    except (UsageError, MemoryError, OSError):
        raise
    except Exception as e:  # its own words, an assertion's or of the library below it
        raise UsageError(
            f"ONNX Runtime's tool cannot quantise the model: {first_line(e)}",
            "quantise its weights alone: --weights int8",
        ) from e
    finally:
        root.setLevel(level)


def prepared(model: ModelProto) -> ModelProto:
    """The model (all in memory) as the tool wants it: normalisation folded into convolutions,
    shapes inferred, a name for each node. Raises UsageError where ONNX Runtime does not load it.
    """
    import onnxruntime as ort
    from onnxruntime.quantization import quant_utils

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with _working() as folder:
        given, folded = folder / "given.onnx", folder / "folded.onnx"
        onnx.save(_converted(model), given)
        try:
            options.optimized_model_filepath = str(folded)
            ort.InferenceSession(
                str(given), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as e:  # whatever it says of the model
            raise UsageError(
                f"ONNX Runtime cannot prepare the model for quantisation: {first_line(e)}",
                "quantise its weights alone: --weights int8",
            ) from None
        plain = onnx.load(folded)
        _plain_biases(plain)
        onnx.save(plain, folded)
        made: ModelProto = quant_utils.load_model_with_shape_infer(folded)
    names = {n.name for n in made.graph.node}
    for k, n in enumerate(made.graph.node):
        if not n.name:
            n.name = edit.unique(f"{n.op_type}_{k}", names)
    del made.metadata_props[:]
    made.metadata_props.extend(model.metadata_props)
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    used = {n.domain for g in edit.graphs(made) for n in g.node} | {""}
    imports = [o for o in made.opset_import if o.domain in used]
    del made.opset_import[:]
    made.opset_import.extend(imports)
    return made


def _plain_biases(model: ModelProto) -> None:
    """The tool takes a constant added in a Gemm for a number for each column, and drops what it is
    multiplied by. Other ones of one row are repeated to that; those of several become an Add.
    """
    graph, taken = model.graph, edit.all_names(model)
    stored = {t.name: t for t in graph.initializer}
    for n in [*graph.node]:
        if n.op_type != "Gemm" or len(n.input) < 3:
            continue
        weight, added = stored.get(n.input[1]), stored.get(n.input[2])
        if added is None:
            continue
        of = {a.name: a for a in n.attribute}
        beta = of["beta"].f if "beta" in of else 1.0
        values = numpy_helper.to_array(added)
        columns = values.size
        if weight is not None and len(weight.dims) == 2:
            columns = weight.dims[0 if "transB" in of and of["transB"].i else 1]
        if values.shape == (columns,) and beta == 1:
            continue
        values, name = values * values.dtype.type(beta), edit.unique(f"{added.name}/bias", taken)
        if "beta" in of:
            n.attribute.remove(of["beta"])
        if values.ndim < 2 or len(values) == 1:
            values = np.broadcast_to(values.reshape(-1), (columns,))
            n.input[2] = name
        else:
            product = edit.unique(f"{n.output[0]}/product", taken)
            graph.node.add().CopyFrom(helper.make_node("Add", [product, name], n.output[:], name))
            n.output[0] = product
            del n.input[2:]
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
    edit.sort_nodes(graph, "the model")
    edit.drop_dead(graph, edit.protected_names(model, graph))


def _converted(model: ModelProto) -> ModelProto:
    """In an opset that has scales along an axis."""
    opset = opset_versions(model.opset_import).get("", 0)
    if opset >= _OPSET:
        return model
    try:
        return version_converter.convert_version(model, _OPSET)
    except Exception as e:
        raise UsageError(
            f"static quantisation needs opset {_OPSET}, and the model's is {opset}, which cannot be"
            f" converted: {first_line(e)}",
            "export the model again in a newer opset",
        ) from None


def ranges(
    model: ModelProto, samples: Sequence[Sample], method: str, time_limit: float
) -> tuple[Any, list[str]]:
    """The tool's ranges of tensors, from runs of a prepared model; and names of nodes that must not
    be quantised, since they read or make numbers beyond `HUGE`, such as what masks are added.
    Raises UsageError where the model does not run on a sample, or not in `time_limit` seconds.
    """
    found = _calibrated(model, samples, "minmax", {}, time_limit)
    huge = {name for name, t in found.data.items() if not _fits(t)}
    for name in huge:
        del found.data[name]
    left = [n.name for n in model.graph.node if huge.intersection((*n.input, *n.output))]
    if method != "minmax" and found.data:
        found = _calibrated(model, samples, method, found.data, time_limit)
    return found, left


def _fits(t: Any) -> bool:
    return all(np.size(v) and bool(np.abs(v).max() <= HUGE) for v in t.range_value)


def _calibrated(
    model: ModelProto, samples: Sequence[Sample], method: str, known: Mapping[str, Any],
    time_limit: float,
) -> Any:  # fmt: skip
    """known: of a method with histograms, the range of each tensor that has one."""
    from onnxruntime.quantization import calibrate

    kind, options = METHODS[method]
    base: Any = getattr(calibrate, f"{kind}Calibrater")

    class Chosen(base):  # type: ignore[misc]
        def select_tensors_to_calibrate(self, model: ModelProto) -> tuple[set[str], Any]:
            tensors, infos = super().select_tensors_to_calibrate(model)
            return {t for t in tensors if t in known or not known}, infos

    with _working() as folder:
        path = folder / "model.onnx"
        onnx.save(model, path)
        calibrator = Chosen(path, list(OPERATORS), str(folder / "augmented.onnx"), **options)
        calibrator.augment_graph()
        calibrator.create_inference_session()
        calibrator.infer_session = _Limited(calibrator.infer_session, time_limit)
        if known:
            calibrator.collector = _histograms(calibrator, known)
        for k, sample in enumerate(samples):
            try:  # one by one: the tool keeps all results of what it is given at a time
                calibrator.collect_data(_Given(sample))
            except deadline.TooLong:
                raise UsageError(
                    f"the model runs longer than {time_limit:g} s on sample {k}",
                    "give a larger --time-limit",
                ) from None
            except Exception as e:
                raise UsageError(
                    f"the model cannot be calibrated with sample {k}: {first_line(e)}",
                    "give arrays of its inputs' shapes, or with samples along one more axis",
                ) from None
        return calibrator.compute_data()


class _Limited:
    """A session of the tool whose runs end after some seconds."""

    def __init__(self, session: Any, seconds: float) -> None:
        self._session, self._seconds = session, seconds
        self.get_inputs, self.get_outputs = session.get_inputs, session.get_outputs

    def run(self, names: Sequence[str] | None, fed: Mapping[str, Any]) -> list[Any]:
        """All outputs. Raises deadline.TooLong."""
        wanted = names or [o.name for o in self.get_outputs()]
        return deadline.run(self._session, wanted, fed, self._seconds)


def _histograms(calibrator: Any, known: Mapping[str, Any]) -> Any:
    """The tool's collector, with an empty histogram of each tensor's whole range: it would begin
    with the range of the first sample, and have bins of that width whatever the next ones hold.
    """
    from onnxruntime.quantization import calibrate

    own = ("method", "symmetric", "num_bins", "num_quantized_bins", "percentile", "scenario")
    made: Any = calibrate.HistogramCollector(**{name: getattr(calibrator, name) for name in own})
    for name, t in known.items():
        low, high = (np.asarray(v) for v in t.range_value)
        low, high = low.min(), high.max()
        largest = np.maximum(np.abs(low), np.abs(high))
        counts, edges = np.histogram(
            np.empty(0, largest.dtype), made.num_bins, range=(-largest, largest)
        )
        made.histogram_dict[name] = (counts, edges, low, high, largest)
    return made


def quantised(model: ModelProto, found: Any, wide: Collection[str] = ()) -> ModelProto:
    """A prepared model with 8-bit activations and weights, but for nodes named in `wide`."""
    from onnxruntime.quantization import QDQQuantizer, QuantType

    given = ModelProto()
    given.CopyFrom(model)
    with _working():
        tool = QDQQuantizer(
            given, True, False, QuantType.QInt8, QuantType.QUInt8, found, [], list(wide),
            list(OPERATORS), {},
        )  # fmt: skip
        tool.quantize_model()
    made: ModelProto = tool.model.model
    made.metadata_props.extend(e for e in model.metadata_props if e not in made.metadata_props)
    edit.sort_nodes(made.graph, "the model")  # the tool appends what it makes
    _read_floats(made, model, wide)
    return made


def _read_floats(model: ModelProto, plain: ModelProto, wide: Collection[str]) -> None:
    """Let these nodes read what was not yet quantised, where a node before them quantises it. An
    activation that the tool left to the limits of 8 bits is computed for them.
    """
    makers = {o: n for n in model.graph.node for o in n.output}
    kept = {n.name for n in model.graph.node}
    gone = {n.output[0]: n for n in plain.graph.node if n.name not in kept}
    stored, taken = {t.name for t in model.graph.initializer}, edit.all_names(model)
    made: dict[str, str] = {}
    for n in [*model.graph.node]:
        for k, name in enumerate(n.input if n.name in wide else ()):
            after = makers.get(name)
            before = makers.get(after.input[0]) if _is(after, _DEQUANTISE) else None
            if not _is(before, _QUANTISE):
                continue
            source = before.input[0]
            activation = gone.get(source.removesuffix(_BEFORE))
            if activation is not None and source not in made:
                again = model.graph.node.add()
                again.CopyFrom(activation)
                again.input[0], again.output[0] = source, edit.unique(f"{source}/wide", taken)
                made[source] = again.output[0]
                model.graph.initializer.extend(
                    t
                    for t in plain.graph.initializer
                    if t.name in activation.input and t.name not in stored
                )
                stored |= {*activation.input}
            n.input[k] = made.get(source, source)
    edit.sort_nodes(model.graph, "the model")
    edit.drop_dead(model.graph, edit.protected_names(model, model.graph))


def _is(n: NodeProto | None, kind: str) -> TypeGuard[NodeProto]:
    return n is not None and n.op_type == kind


def nodes(model: ModelProto) -> list[str]:
    """Names of those that read 8 bits, in a quantised model."""
    made = {o for n in model.graph.node if n.op_type == _DEQUANTISE for o in n.output}
    return [n.name for n in model.graph.node if n.op_type in OPERATORS and made & {*n.input}]


def beside(model: ModelProto, narrow: ModelProto) -> tuple[ModelProto, list[Copy]]:
    """The prepared model with a copy of each quantised node beside it: the copy reads the float
    model's own values, quantised.
    """
    out = ModelProto()
    out.CopyFrom(model)
    graph = out.graph
    held = {t.name for t in graph.initializer}
    graph.initializer.extend(t for t in narrow.graph.initializer if t.name not in held)
    floats = held | {o for n in graph.node for o in n.output} | {i.name for i in graph.input}
    own = (_QUANTISE, _DEQUANTISE)
    made = {o for n in narrow.graph.node if n.op_type in own for o in n.output}
    taken, names = edit.all_names(out), dict[str, str]()

    def known(name: str) -> str:
        if name in made:
            return names.setdefault(name, edit.unique(f"{name}/int8", taken))
        return name.removesuffix(_BEFORE) if name.removesuffix(_BEFORE) in floats else name

    def copied(n: NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> NodeProto:
        fresh = NodeProto()
        fresh.CopyFrom(n)
        fresh.name = edit.unique(f"{n.name}/int8", taken)
        del fresh.input[:], fresh.output[:]
        fresh.input.extend(inputs)
        fresh.output.extend(outputs)
        graph.node.append(fresh)
        return fresh

    around = [n for n in narrow.graph.node if n.op_type in own]
    for n in around:
        copied(n, [known(i) for i in n.input], [known(o) for o in n.output])
    after = {n.input[0]: n for n in around}
    copies: list[Copy] = []
    quantised_nodes = {*nodes(narrow)}
    for n in narrow.graph.node:
        if n.name not in quantised_nodes or known(n.output[0]) not in floats:
            continue
        result = [edit.unique(f"{o}/copy", taken) if o else "" for o in n.output]
        copied(n, [known(i) for i in n.input], result)
        last = result[0]
        for at in (after.get(n.output[0]), after.get(_first(after.get(n.output[0])))):
            if at is not None:
                again = edit.unique(f"{at.output[0]}/copy", taken)
                copied(at, [last, *(known(i) for i in at.input[1:])], [again])
                last = again
        copies.append(Copy(n.name, known(n.output[0]), last))
    edit.sort_nodes(graph, "the model")
    return out, copies


def _first(n: NodeProto | None) -> str:
    return "" if n is None else n.output[0]
