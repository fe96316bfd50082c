"""Runs two models on the same inputs and compares what they give, against bounds that follow from
the arithmetic.

    |a - b| <= atol + rtol * max(|a|, rms(a))

a: the reference, ONNX Runtime with its optimisations off.

By default rtol = 2 eps sqrt(K D) with K the longest reduction of the model, D how many reductions
it has, and eps of the output's type (of the coarsest type the model computes in); atol = 0. A model
that magnifies rounding errors beyond that is measured: an output may then differ by 8 times what
the original itself changes by under ONNX Runtime's own optimisations, or when its inputs change by
one rounding. Integers, booleans and strings must be equal, NaN and infinities must be in the same
places.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from tracea_onnx.canonicalize.constant_folding import RANDOM
from tracea_onnx.errors import ModelError, UsageError, VerificationError
from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import Graph, Node, subgraphs
from tracea_onnx.ir.narrow_floats import FloatFormat
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.model_io import model_file
from tracea_onnx.provider import PROVIDER_NAME, create_session
from tracea_onnx.shapes.onnx_inference import first_line
from tracea_onnx.support import deadline, log, tables
from tracea_onnx.verify import fp16_rounding
from tracea_onnx.verify import input_values as feeds


@dataclass(frozen=True)
class OutputError:
    """How far one output is from the reference. max_rel is |a - b| / |a| where |a| is at least the
    output's rms; `ok` says within bounds.
    """

    name: str
    max_abs: float
    max_rel: float
    rmse: float
    ok: bool = True
    note: str = ""


@dataclass(frozen=True)
class Verification:
    """The comparison of two models, output by output."""

    ok: bool
    inputs: dict[str, list[int]]
    outputs: tuple[OutputError, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON of `verify --json`."""
        return {
            "ok": self.ok,
            "inputs": self.inputs,
            "outputs": [asdict(o) for o in self.outputs],
            "note": self.note,
        }

    def text(self) -> list[str]:
        """One line, and one for each output that is out of bounds, or within them only as the
        original is sensitive.
        """
        worst = max((o.max_abs for o in self.outputs), default=0.0)
        relative = max((o.max_rel for o in self.outputs), default=0.0)
        out = [
            (
                f"verification {'passed' if self.ok else 'FAILED'}: largest difference {worst:.3g}"
                f" ({relative:.2g} relative) over {len(self.outputs)} outputs"
            )
        ]
        out += [
            f"  {o.name}: max_abs {o.max_abs:.3g}, max_rel {o.max_rel:.3g},"
            f" rmse {o.rmse:.3g} {o.note}".rstrip()
            for o in self.outputs
            if not o.ok or o.note
        ]
        return [*out, *([f"  {self.note}"] if self.note else [])]

    def _repr_html_(self) -> str:
        return tables.html(self.text())


@dataclass(frozen=True)
class Bounds:
    """Element bound atol + rtol * scale; without a given rtol it is 2 eps sqrt(reduction), eps
    never below `eps`.

    reduction = K D; for a result in a narrower type, whose sums are formed in fp32, just D. `flips`
    is the share of integers that may differ. `loops`: what is empty may have any dims, since those
    of a Loop's result without an iteration are what ONNX Runtime could infer.
    """

    rtol: float | None
    atol: float
    reduction: int
    eps: float
    types_only: bool = False
    flips: float = 0.0
    loops: bool = False

    def relative(self, dtype: np.dtype[Any]) -> float:
        """Rtol of an output of that type: 2 eps sqrt(K), unless one was given."""
        if self.rtol is not None:
            return self.rtol
        own = _EPS.get(dtype.name, float(np.finfo(np.float32).eps))
        return 2.0 * max(own, self.eps) * math.sqrt(self.reduction)


_EPS = {
    "float64": float(np.finfo(np.float64).eps),
    "complex128": float(np.finfo(np.float64).eps),
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}


#: Share of an integer output (classes, indices) that a narrower type may decide otherwise.
_FLIPS = 0.05


#: An optimizer of ONNX Runtime (1.31) that takes the process down at some fp16 graphs of
#: transpositions. It changes layouts, not whether a model loads.
_CRASHING = ["NchwcTransformer"]
#: Seconds that one run of a model may take.
TIME_LIMIT = 600.0


def session(
    source: model_file.Source,
    *,
    optimise: bool = False,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    in_order: bool = False,
) -> Any:
    """An ONNX Runtime session of a loaded model; external data is read from its folder.

    in_order: nodes run as they stand in the file, so that a value is free soon after its readers
    there. Raises ONNX Runtime's own errors.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if in_order:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    model, folder = model_file.with_real_paths(source)
    if folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
    if PROVIDER_NAME in providers:
        # a spec that says something else than its body shows
        return create_session(model_file.serialize(model), {"specs": "trust"}, options)
    # Without enable_fallback=0 an error is printed over several lines, and the session is tried
    # once more.
    return ort.InferenceSession(
        model_file.serialize(model),
        options,
        providers=list(providers),
        disabled_optimizers=_CRASHING if optimise else [],
        enable_fallback=0,
    )


def loads(source: model_file.Source) -> bool:
    """Whether stock ONNX Runtime loads the model with its own optimisations, as a user's session
    would.
    """
    try:
        session(source, optimise=True)
    except Exception:
        return False
    return True


@dataclass
class Reference:
    """Results of the original for one set of inputs, and the bounds of a comparison with them."""

    source: model_file.Source
    names: list[str]
    fed: dict[str, Any]
    expected: Sequence[Any]
    bounds: Bounds
    note: str = ""
    kind: FloatFormat | None = None
    time_limit: float = TIME_LIMIT

    @cached_property
    def spread(self) -> list[float]:
        """How far the original's own results move under rounding; measured when first asked for."""
        return _spread(self)


def measure(
    source: model_file.Source,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    kind: FloatFormat | None = None,
    time_limit: float = TIME_LIMIT,
) -> Reference:
    """Run the original on `values`, or on generated inputs; a result may compute in the narrower
    type `kind`.

    No run of either takes longer than `time_limit` seconds. Raises VerificationError when the
    original runs on no input that could be made, or runs too long; UsageError for bounds that are
    none.
    """
    for name, value in (("rtol", rtol), ("atol", atol), ("seed", seed), ("time_limit", time_limit)):
        if value is not None and not value >= 0:
            raise UsageError(f"{name} is {value}", "give a number that is not negative")
    try:
        oracle = session(source)
    except Exception as e:
        raise VerificationError(
            f"ONNX Runtime cannot load the original: {first_line(e)}",
            "give --no-verify to go on without verification",
        ) from None
    names = [o.name for o in oracle.get_outputs()]
    fed, expected = _reference_run(source, oracle, seed, values, shapes, time_limit)
    note = (
        "the model draws random numbers: only types and shapes were compared"
        if _is_random(source.model)
        else ""
    )
    longest, count = reductions(source)
    if kind is None:
        bounds = Bounds(rtol, atol or 0.0, longest * count, _coarsest(source.model), bool(note))
    else:
        bounds = Bounds(rtol, atol or 0.0, count, kind.eps, bool(note), _FLIPS)
    if any(n.op_type in ("Loop", "Scan") for n in _all_nodes(source.model)):
        bounds = replace(bounds, loops=True)
    return Reference(source, names, fed, expected, bounds, note, kind, time_limit)


def judge(
    reference: Reference,
    candidate: model_file.Source,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Verification:
    """Compare what `candidate` gives with the reference, on plain ONNX Runtime with every rounding
    of a narrower type that was asked for.

    Raises VerificationError when it does not run or has another interface, ModelError when the
    original, too, claims what ONNX Runtime does not load.
    """
    if reference.kind is not None and list(providers) == ["CPUExecutionProvider"]:
        candidate = fp16_rounding.insert_fp16_casts(candidate)
    try:
        other = session(candidate, providers=providers)
    except Exception as e:
        original = reference.source
        bare = replace(original, model=edit.without_claims(original.model))
        if not loads(original) or not loads(bare):
            raise ModelError(
                "ONNX Runtime does not load the result, nor the original with its optimizations"
                f" or without the dims that it claims: {first_line(e)}",
                "correct the types and dims that the model claims",
            ) from None
        raise VerificationError(
            f"ONNX Runtime cannot load the result: {first_line(e)}", "report this with the model"
        ) from None
    names = reference.names
    if names != [o.name for o in other.get_outputs()]:
        raise VerificationError(
            "the two models have different outputs", "compare models of the same interface"
        )
    accepted = {i.name for i in [*other.get_inputs(), *other.get_overridable_initializers()]}
    try:
        got = deadline.run(
            other,
            names,
            {k: v for k, v in reference.fed.items() if k in accepted},
            reference.time_limit,
        )
    except deadline.TooLong:
        raise VerificationError(
            f"the result runs longer than {reference.time_limit:g} s",
            "give a longer --time-limit, or --no-verify",
        ) from None
    except Exception as e:
        raise VerificationError(
            f"the result fails on inputs the original accepts: {first_line(e)}",
            "report this with the model",
        ) from None
    outputs = compared(reference, got)
    shown = {k: list(getattr(v, "shape", [])) for k, v in reference.fed.items()}
    found = Verification(all(o.ok for o in outputs), shown, outputs, reference.note)
    log.info("%s", found.text()[0])
    return found


def compared(reference: Reference, got: Sequence[Any]) -> tuple[OutputError, ...]:
    """Each result beside the reference's, in its order; within the bounds, or within what rounding
    does to the original itself.
    """
    outputs = tuple(
        _compare(n, a, b, reference.bounds)
        for n, a, b in zip(reference.names, reference.expected, got, strict=True)
    )
    # no rounding of the original makes up for what is not finite
    if reference.bounds.rtol is None and any(
        not o.ok and math.isfinite(o.max_abs) for o in outputs
    ):
        outputs = tuple(_excuse(o, s) for o, s in zip(outputs, reference.spread, strict=True))
    return outputs


def verify(
    reference: model_file.Source,
    candidate: model_file.Source,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Verification:
    """Compare `candidate` with `reference` on `values`, or on generated inputs.

    Raises VerificationError when the two have different inputs or outputs, or when the reference
    runs on no input that could be made.
    """
    return judge(
        measure(reference, rtol=rtol, atol=atol, seed=seed, values=values, shapes=shapes),
        candidate,
        providers,
    )


def _reference_run(
    source: model_file.Source,
    oracle: Any,
    seed: int,
    values: Mapping[str, Any] | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
    time_limit: float,
) -> tuple[dict[str, Any], Any]:
    names = [o.name for o in oracle.get_outputs()]
    if values is not None:
        missing = [i.name for i in oracle.get_inputs() if i.name not in values]
        if missing:
            raise VerificationError(
                f"the given inputs lack '{missing[0]}'", "add it to the .npz file"
            )
        known = {i.name for i in [*oracle.get_inputs(), *oracle.get_overridable_initializers()]}
        candidates = iter([{k: v for k, v in values.items() if k in known}])
    else:
        candidates = feeds.generate(source.model, folder=source.folder, seed=seed, shapes=shapes)
    failure, first = "it has no inputs", None
    for fed in candidates:
        try:
            return fed, deadline.run(oracle, names, fed, time_limit)
        except deadline.TooLong:
            fix = (
                "give smaller inputs with --input-shape or --load-inputs, a longer "
                "--time-limit, or --no-verify"
            )
            raise VerificationError(
                f"the original runs longer than {time_limit:g} s", fix
            ) from None
        except Exception as e:
            if first is None:  # the likeliest
                failure, first = first_line(e), {k: getattr(v, "shape", ()) for k, v in fed.items()}
    stored = {t.name for t in source.model.graph.initializer}
    options = (
        feeds.asked(
            [i for i in source.model.graph.input if i.name not in stored], shapes or {}, first
        )
        if values is None
        else ""
    )
    fix = (
        f"give sizes it runs with, in the form of {options}, or --load-inputs"
        if options
        else "give other values with --load-inputs"
    )
    fix += ", or --no-verify" if not shapes else ", or another --input-shape, or --no-verify"
    raise VerificationError(f"the original does not run on the inputs made for it: {failure}", fix)


def _is_random(model: ModelProto) -> bool:
    return any(
        n.op_type in RANDOM or (n.op_type == "Dropout" and len(n.input) > 2)
        for n in _all_nodes(model)
    )


def _all_nodes(model: ModelProto) -> list[Any]:
    out = [n for g in edit.graphs(model) for n in g.node]
    for f in model.functions:
        out += [*f.node, *(m for n in f.node for g in subgraphs(n) for m in g.node)]
    return out


def _coarsest(model: ModelProto) -> float:
    """eps of the coarsest float type among the model's weights and casts (0 when there is none
    below fp32).
    """
    kinds = {t.data_type for t in model_file.tensors(model)} | {
        i.type.tensor_type.elem_type for i in model.graph.input
    }
    kinds |= {
        a.i for n in _all_nodes(model) if n.op_type == "Cast" for a in n.attribute if a.name == "to"
    }
    if TensorProto.BFLOAT16 in kinds:
        return _EPS["bfloat16"]
    if TensorProto.FLOAT16 in kinds:
        return _EPS["float16"]
    return float(np.finfo(np.float32).eps) if TensorProto.FLOAT in kinds else 0.0


def reductions(source: model_file.Source) -> tuple[int, int]:
    """The longest sum any operator forms, by its weights (channels x window of a convolution, rows
    of a product), and how many sums there are.
    """
    count = 1 + sum(n.op_type in SUMS for n in _all_nodes(source.model))
    graphs = (Graph(source.model, g, folder=source.folder) for g in edit.graphs(source.model))
    return max([64, *(terms(g, n) for g in graphs for n in g.nodes)]), count


def terms(graph: Graph, n: Node) -> int:
    """Of a sum that an operator forms, by its weights; 1 where that is not known."""
    shape = graph.shape(n.input(1)) if len(n.inputs) > 1 else None
    if shape is None or not all(isinstance(d, int) for d in shape):
        return 1
    dims = [int(d) for d in shape if isinstance(d, int)]
    if n.op == "Conv":
        return math.prod(dims[1:])
    if n.op in ("MatMul", "Gemm") and len(dims) >= 2:
        return dims[-1 if n.attr("transB", 0) else -2]
    return 1


#: Operators that form sums.
SUMS = operators(Trait.SUM)


def _spread(r: Reference) -> list[float]:
    """By output, how far the original's own results move: under ONNX Runtime's optimisations, and
    when float inputs change by one rounding; where the result computes in a narrower type by one
    rounding to that, which is so much more that a single run shows it.
    """
    rng = np.random.default_rng(0)
    nudged = {k: _nudge(v, rng, 0.0 if r.kind is None else r.kind.eps) for k, v in r.fed.items()}
    runs: list[list[Any]] = []
    for optimise, inputs in ((True, (r.fed, nudged)), (False, (nudged,))):
        if runs and r.kind is not None:
            break
        # an optimisation of ONNX Runtime that fails on this model says nothing about the result
        with contextlib.suppress(Exception):
            once = session(r.source, optimise=optimise)
            for values in inputs if r.kind is None else (nudged,):
                with contextlib.suppress(Exception):
                    runs.append(deadline.run(once, r.names, values, r.time_limit))
    return [max((_gap(a, run[k]) for run in runs), default=0.0) for k, a in enumerate(r.expected)]


def excess(reference: Reference, found: Verification) -> float:
    """How many times as far from the reference as it may be the worst result is; infinite where
    that is no matter of how far.
    """
    worst = 0.0
    for k, (o, a) in enumerate(zip(found.outputs, reference.expected, strict=True)):
        if o.ok:
            continue
        kind = a.dtype if isinstance(a, np.ndarray) else np.dtype(object)
        limit = reference.bounds.relative(kind) if kind.kind == "f" else 0.0
        times = o.max_rel / limit if limit else math.inf
        measured = reference.bounds.rtol is None and math.isfinite(o.max_abs)
        if measured and (moves := _MORE * reference.spread[k]):
            times = min(times, o.max_abs / moves)
        worst = max(worst, times)
    return worst


#: How much further a result may be than the original moves by itself.
_MORE = 8.0


def _excuse(o: OutputError, spread: float) -> OutputError:
    if o.ok or o.max_abs > _MORE * spread:
        return o
    note = (
        f"ill-conditioned: the original itself moves by {spread:.2g} when its inputs are "
        f"rounded, so up to {_MORE * spread:.2g} was accepted"
    )
    return replace(o, ok=True, note=note)


def _nudge(value: Any, rng: np.random.Generator, least: float) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    eps = max(_EPS.get(value.dtype.name, float(np.finfo(np.float32).eps)), least)
    return (value * (1.0 + eps * rng.choice([-1.0, 1.0], value.shape))).astype(value.dtype)


def _gap(a: Any, b: Any) -> float:
    if (
        not isinstance(a, np.ndarray)
        or not isinstance(b, np.ndarray)
        or a.dtype.kind != "f"
        or a.shape != b.shape
        or not a.size
    ):
        return 0.0
    most = 0.0
    for x, y in _chunks(a, b, np.float64):
        gap = np.abs(x - y)
        most = max(most, float(np.max(gap[np.isfinite(gap)], initial=0.0)))
    return most


#: Elements that are compared at a time: wider copies of whole outputs would take several times what
#: the outputs do.
_CHUNK = 1 << 18


def _chunks(a: Any, b: Any, wide: Any) -> Iterator[tuple[Any, Any]]:
    """The elements of two arrays of one shape, side by side, in a wider type."""
    x, y = a.reshape(-1), b.reshape(-1)
    for k in range(0, x.size, _CHUNK):
        yield x[k : k + _CHUNK].astype(wide), y[k : k + _CHUNK].astype(wide)


def _compare(name: str, a: Any, b: Any, bounds: Bounds) -> OutputError:
    if isinstance(a, list) or isinstance(b, list) or a is None or b is None:
        return _compare_list(name, a, b, bounds)
    x, y = np.asarray(a), np.asarray(b)
    unset = bounds.loops and not x.size and not y.size
    if x.dtype != y.dtype or (x.shape != y.shape and not unset):
        return OutputError(
            name,
            math.inf,
            math.inf,
            math.inf,
            False,
            f"{x.dtype}{list(x.shape)} became {y.dtype}{list(y.shape)}",
        )
    if bounds.types_only or not x.size:
        return OutputError(name, 0.0, 0.0, 0.0)
    if x.dtype.kind in "fc" or x.dtype.name == "bfloat16":
        return _compare_floats(name, x, y, bounds)
    wrong = int(np.count_nonzero(x != y))
    gap = (
        max(float(np.max(np.abs(p - q))) for p, q in _chunks(x, y, np.float64))
        if wrong and x.dtype.kind in "iub"
        else float(wrong)
    )
    ok = wrong <= bounds.flips * x.size
    return OutputError(
        name,
        gap,
        math.inf if wrong else 0.0,
        gap,
        ok,
        f"{wrong} of {x.size} elements differ" if wrong else "",
    )


def _compare_list(name: str, a: Any, b: Any, bounds: Bounds) -> OutputError:
    if a is None and b is None:
        return OutputError(name, 0.0, 0.0, 0.0)
    if not isinstance(a, list) or not isinstance(b, list):
        return OutputError(name, math.inf, math.inf, math.inf, False, "its type changed")
    if len(a) != len(b):
        return OutputError(
            name, math.inf, math.inf, math.inf, False, "a sequence changed its length"
        )
    if any(isinstance(x, dict) for x in (*a, *b)):
        same = all(isinstance(x, dict) for x in (*a, *b)) and a == b
        return OutputError(name, 0.0, 0.0, 0.0, same, "" if same else "a map differs")
    parts = [_compare(name, x, y, bounds) for x, y in zip(a, b, strict=True)] or [
        OutputError(name, 0.0, 0.0, 0.0)
    ]
    worst = max(parts, key=lambda p: (not p.ok, p.max_rel))
    return OutputError(
        name,
        max(p.max_abs for p in parts),
        worst.max_rel,
        max(p.rmse for p in parts),
        worst.ok,
        worst.note,
    )


def _compare_floats(name: str, x: Any, y: Any, bounds: Bounds) -> OutputError:
    rtol = bounds.relative(x.dtype)
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    count, squares = 0, 0.0
    for p, q in _chunks(x, y, wide):
        infinite = np.isinf(p)
        if not (
            np.array_equal(np.isnan(p), np.isnan(q))
            and np.array_equal(infinite, np.isinf(q))
            and np.array_equal(p[infinite], q[infinite])
        ):
            return OutputError(
                name, math.inf, math.inf, math.inf, False, "NaN or infinities are in other places"
            )
        p = p[np.isfinite(p)]
        count, squares = count + p.size, squares + float(np.sum(np.abs(p) ** 2))
    if not count:
        return OutputError(name, 0.0, 0.0, 0.0)
    rms, most, steepest, error, ok = math.sqrt(squares / count), 0.0, 0.0, 0.0, True
    for p, q in _chunks(x, y, wide):
        finite = np.isfinite(p)
        p, q = p[finite], q[finite]
        gap, scale = np.abs(p - q), np.maximum(np.abs(p), rms)
        relative = np.divide(gap, scale, out=np.where(gap > 0, np.inf, 0.0), where=scale > 0)
        most, steepest = (
            max(most, float(np.max(gap, initial=0.0))),
            max(steepest, float(np.max(relative, initial=0.0))),
        )
        error += float(np.sum(gap**2))
        ok = ok and bool(np.all(gap <= bounds.atol + rtol * scale))
    return OutputError(
        name, most, steepest, math.sqrt(error / count), ok, "" if ok else f"beyond rtol {rtol:.1e}"
    )
