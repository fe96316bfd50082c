"""Which kernels are the fastest for a model's launches on this GPU: measured, and kept as a tuning
record (`tracea-onnx tune`).

A session over the model tells which Plans it wants. Each round compiles them with another candidate
for every launch that has several (`bayesian.Search` proposes them), and times the launches of both
in place, on what the others leave in cache, less what they take more there than in a run whose
launches overlap. What was faster is measured once more, all together, and kept if the whole model
is faster for it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from onnx import ModelProto

from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records
from tracea_onnx.codegen.backend import Backend
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.codegen.tuning_records import Measured
from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import KERNEL_FLOATS, DType
from tracea_onnx.ir.graph import Array, Graph
from tracea_onnx.plan.builder import evaluate
from tracea_onnx.runtime.device_caps import DeviceCaps
from tracea_onnx.tuning.bayesian import Search
from tracea_onnx.verify import input_values

Sizes = Mapping[str, int]
#: Replays that are timed at a time, and times that both sides have their turn: of a candidate, of
#: the result.
_REPLAYS, _TURNS, _LAST_TURNS = 20, 3, 9
#: A kernel's time over that of the one by price, the whole model's with it, and the whole model's
#: with all that are kept, below which they are.
_WORTH, _WORTH_ALONE, _WORTH_IN_ALL = 0.98, 0.999, 0.997
#: Microseconds that a launch takes at least.
_LEAST_US = 0.2
#: The largest difference of a result, relative to its largest value, that other orders of summation
#: explain.
_SAME = {DType.F32: 0.02, DType.F16: 0.25, DType.BF16: 0.5}


@dataclass
class Launch:
    """Launches of one kind: how many, microseconds of one before and after, and the kernel that was
    kept for them ("" where the one by price stays).
    """

    what: str
    count: int
    before: float
    after: float
    kernel: str


@dataclass
class Tuned:
    """What `tune` found.

    before, after: microseconds of a whole run. alone: launches without a choice for these sizes.
    kept: kernels that were added to `record`, the file. interrupted: it ended before its time
    (Ctrl-C).
    """

    device: DeviceCaps
    launches: list[Launch] = field(default_factory=list)
    alone: int = 0
    measured: int = 0
    before: float = 0.0
    after: float = 0.0
    kept: int = 0
    record: str = ""
    interrupted: bool = False


@dataclass
class Part:
    """A Plan that a session runs, with data of its own. sizes: of its symbols. asked: what each
    launch with a grid that is not empty is for (`kernel_choice.cache_key` with these sizes), and
    the requests behind these.
    """

    plan: Mapping[str, Any]
    blobs: Sequence[bytes]
    constants: Mapping[str, Array]
    inputs: Sequence[Array]
    sizes: Sizes
    asked: Sequence[str]
    requests: Mapping[str, Request]


@cache
def _backend() -> Backend:
    """The one whose kernels can be timed."""
    found = next((b for b in map(backends.get, backends.names()) if b.harness is not None), None)
    if found is None:
        raise UsageError("no backend of this installation has kernels to choose from")
    return found


def tune(
    model: str | Path,
    shapes: Mapping[str, Sequence[int]],
    *,
    device: int = 0,
    seconds: float = 120.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Measures the kernels of `model` for inputs of these shapes, and adds the fastest to the
    tuning record of this kind of GPU. What is in the bodies of control flow goes by price.

    seconds: after the model was compiled, when no other candidates are tried. Ctrl-C ends that
    time: what was found until then is measured once more, and kept. Raises UsageError (a size that
    is not known), TraceaError (no GPU, nothing that the provider runs).
    """
    try:
        result = Tuned(_backend().harness.device(device))
    except TraceaError as e:
        raise TraceaError(e.what, "see `tracea-onnx doctor`") from None
    tuning_records.require()
    requests = requests_of(model, {"backend": _backend().name, "device_id": str(device)})
    end = time.monotonic() + seconds
    for k, request in enumerate(requests):
        now = time.monotonic()
        share = now if result.interrupted else now + max(end - now, 0.0) / (len(requests) - k)
        _tune(request, sizes_of(Graph(request), shapes), device, share, result, on_progress)
    if not result.before:
        raise TraceaError(
            "the provider runs no part of this model with sizes that follow from the inputs'",
            f"see `tracea-onnx explain MODEL --backend {_backend().name}`",
        )
    return result


def requests_of(model: str | Path | bytes, options: Mapping[str, str]) -> list[ModelProto]:
    """What a session over the model, on the provider with these options, asks the compiler for, but
    for the bodies of control flow.
    """
    import onnxruntime

    from tracea_onnx import provider

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    with tempfile.TemporaryDirectory() as fresh, compile_requests.listening() as requests:
        provider.create_session(model, {**options, "cache_dir": fresh}, quiet)
    whole = (
        request for request in requests if partition_compiler.properties(request).get("body") != "1"
    )
    # ONNX Runtime asks twice; what counts is the last
    return list(
        {tuple(o.name for o in request.graph.output): request for request in whole}.values()
    )


def sizes_of(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Values of the symbols that the graph's inputs have."""
    found = input_values.bind(graph.proto.input, shapes)
    for name in graph.inputs:
        for axis, d in enumerate(graph.shape(name) or ()):
            if d is None and name in shapes:
                found[f"{name}.{axis}"] = shapes[name][axis]
            if not isinstance(d, int) and not found.keys() >= set(
                D.symbols(_dim(graph, name, axis, d))
            ):
                raise UsageError(
                    f"the size of axis {axis} of input '{name}' is not known",
                    f"give it as --input-shape {name}:{_example(graph, name)}",
                )
    return found


def _example(graph: Graph, name: str) -> str:
    return ",".join(str(d) if isinstance(d, int) else "1" for d in graph.shape(name) or ())


def _dim(graph: Graph, name: str, axis: int, d: int | str | None) -> D.DimLike:
    return (
        d
        if isinstance(d, int)
        else D.named(d, graph.symbols())
        if d
        else D.symbol(f"{name}.{axis}")
    )


# --- Plans, and what their launches take ----------------------------------------------------------


def parts(
    request: ModelProto, sizes: Sizes, choices: kernel_choice.Choices = kernel_choice.BY_PRICE
) -> Iterator[Part]:
    """The Plans that answer a request, with data for inputs of these sizes; without those whose
    inputs' sizes do not follow from them.
    """
    graph, props = Graph(request), partition_compiler.properties(request)
    writer = plan_writer.writer(_backend(), props, choices)
    compiled = partition_compiler.compile_for(graph, props, writer)
    for (_, plan, blobs), made in zip(compiled.entries, compiled.builders, strict=True):
        assert isinstance(made, BackendPlan)
        dims = [
            [_dim(graph, i["name"], axis, d) for axis, d in enumerate(graph.shape(i["name"]) or ())]
            for i in plan["inputs"]
        ]
        if not sizes.keys() >= {s for shape in dims for d in shape for s in D.symbols(d)}:
            continue
        shapes = [[D.evaluate(d, dict(sizes)) for d in shape] for shape in dims]
        data = [
            _values(i["dtype"], shape, k)
            for k, (i, shape) in enumerate(zip(plan["inputs"], shapes, strict=True))
        ]
        value, known = evaluate(plan, shapes), made.sizes(shapes)
        keys = [kernel_choice.cache_key(kernel_choice.specialize(r, known)) for r in made.asked]
        live = [
            key
            for key, launch in zip(keys, plan["run"], strict=True)
            if all(value[g] > 0 for g in launch["grid"])
        ]
        constants = {
            b["name"]: np.array(graph.const(b["name"]))
            for b in plan["buffers"]
            if b["kind"] == "initializer"
        }
        yield Part(
            plan, blobs, constants, data, known, live, dict(zip(keys, made.asked, strict=True))
        )


def _values(dtype: int, shape: Sequence[int], seed: int) -> Array:
    """Random numbers; ones of other types, which are indices, lengths or masks."""
    kind = _backend().harness.NUMPY[dtype]
    if dtype not in KERNEL_FLOATS:
        return np.ones(shape, kind)
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x.astype(bfloat16).view(np.uint16) if dtype == DType.BF16 else x.astype(kind)


@dataclass
class _Compared:
    """Microseconds that the launches of each kind take of a run on both sides, and of the whole in
    each turn.
    """

    usual: dict[str, float] = field(default_factory=dict)
    other: dict[str, float] = field(default_factory=dict)
    totals: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(b / a for a, b in self.totals) if self.totals else 1.0


def _compare(usual: Sequence[Part], other: Sequence[Part], device: int, turns: int) -> _Compared:
    """Both sides in turn, Plan by Plan."""
    found, totals, load = _Compared(), [(0.0, 0.0)] * turns, _backend().harness.LoadedPlan
    for a, b in zip(usual, other, strict=True):
        with ExitStack() as stack:
            plans = [
                stack.enter_context(load(p.plan, p.blobs, p.constants, device=device))
                for p in (a, b)
            ]
            times: list[list[Any]] = [[], []]
            for turn in range(turns):
                for side in (0, 1) if turn % 2 else (1, 0):
                    times[side].append(plans[side].time(a.inputs, _REPLAYS, within=True))
            totals = [
                (x + t.total, y + u.total) for (x, y), t, u in zip(totals, *times, strict=True)
            ]
        by_itself = [
            [statistics.median(t.launches[k][1] for t in runs) for k in range(len(part.asked))]
            for runs, part in zip(times, (a, b), strict=True)
        ]
        # where nothing overlaps it
        more = (sum(by_itself[0]) - statistics.median(t.total for t in times[0])) / max(
            len(a.asked), 1
        )
        for into, part, launches in (
            (found.usual, a, by_itself[0]),
            (found.other, b, by_itself[1]),
        ):
            for key, us in zip(part.asked, launches, strict=True):
                into[key] = into.get(key, 0.0) + max(us - max(more, 0.0), _LEAST_US)
    found.totals = totals
    return found


@dataclass
class _Subject:
    """One graph as a session compiles it: what is asked, sizes of its symbols, and the Plans with
    the kernels by price.
    """

    request: ModelProto
    sizes: Sizes
    usual: Sequence[Part]
    device: int

    def compared(self, records: kernel_choice.Records, turns: int) -> _Compared | None:
        """Times with these kernels; None where one of them does not compile or run, or where the
        Plans are others with them.
        """
        try:
            other = self._parts(records)
            if [p.plan["inputs"] for p in other] != [p.plan["inputs"] for p in self.usual]:
                return None
            return _compare(self.usual, other, self.device, turns)
        except TraceaError:
            return None

    def together(self, records: kernel_choice.Records) -> _Compared:
        """The same of kernels that ran before, for longer."""
        found = self.compared(records, _LAST_TURNS)
        if found is None:
            raise TraceaError(
                "the kernels that were the fastest one by one do not run together", "report this"
            )
        return found

    def ratios(self, trial: Mapping[str, str]) -> dict[str, float | None]:
        """Times with these kernels over those of the usual ones; None of what does not run."""
        found = self.compared(trial, _TURNS)
        if found is not None:
            return {
                key: found.other[key] / found.usual[key]
                if key in found.other and found.usual[key]
                else None
                for key in trial
            }
        if len(trial) == 1:
            return dict.fromkeys(trial)
        halves = [dict(half) for half in (list(trial.items())[::2], list(trial.items())[1::2])]
        return self.ratios(halves[0]) | self.ratios(halves[1])

    def alike(self, records: kernel_choice.Records) -> bool:
        """Whether the results are those of the usual kernels but for the order in which terms are
        added.
        """
        run = _backend().harness.run_plan
        for a, b in zip(self.usual, self._parts(records), strict=True):
            results = [
                run(p.plan, p.blobs, a.inputs, p.constants, device=self.device) for p in (a, b)
            ]
            if not all(
                _same(DType(spec["dtype"]), x, y)
                for spec, x, y in zip(a.plan["outputs"], *results, strict=True)
            ):
                return False
        return True

    def _parts(self, records: kernel_choice.Records) -> list[Part]:
        return list(
            parts(self.request, self.sizes, kernel_choice.Choices(records, sizes=[self.sizes]))
        )


def _same(kind: DType, x: Array, y: Array) -> bool:
    """Whether two results of 16 or 32 bits are nearly equal; of other types they are."""
    if kind not in _SAME:
        return True
    u, v = ((t.view(bfloat16) if kind == DType.BF16 else t).astype(np.float64) for t in (x, y))
    finite = np.isfinite(u)
    most = _SAME[kind] * np.abs(u[finite]).max(initial=0.0)
    return np.array_equal(finite, np.isfinite(v)) and bool(
        np.abs(u[finite] - v[finite]).max(initial=0.0) <= most
    )


def _tune(
    request: ModelProto,
    sizes: Sizes,
    device: int,
    end: float,
    result: Tuned,
    on_progress: Callable[[str], None],
) -> None:
    """Adds to the record and to `result` what one graph's Plans are faster with."""
    usual = list(parts(request, sizes))
    if not usual:
        return
    used = [key for part in usual for key in part.asked]
    sizes = {**sizes, **{name: size for part in usual for name, size in part.sizes.items()}}
    asked = {key: r for part in usual for key, r in part.requests.items()}
    offers = {key: _offers(key, asked[key], sizes) for key in dict.fromkeys(used)}
    searches = {key: Search(prices) for key, prices in offers.items() if len(prices) > 1}
    result.alone += sum(key not in searches for key in used)
    _compare(usual, usual, device, 1)  # what keeps anything from being measured is said here
    subject = _Subject(request, sizes, usual, device)
    try:
        _search(subject, searches, asked, end, result, on_progress)
    except KeyboardInterrupt:
        result.interrupted = True
        on_progress("interrupted: what was found is measured once more")
    chosen = {key: search.best[0] for key, search in searches.items() if search.best[1] < _WORTH}
    _keep(subject, chosen, list(searches), result)


def _search(
    subject: _Subject,
    searches: Mapping[str, Search],
    asked: Mapping[str, Request],
    end: float,
    result: Tuned,
    on_progress: Callable[[str], None],
) -> None:
    """Measures candidates for all launches at a time, until there are none or the time is over."""
    rounds = 0
    while time.monotonic() < end:
        trial = {
            key: name
            for key, search in searches.items()
            if (name := _next(search, key, asked[key], subject.sizes)) is not None
        }
        if not trial:
            break
        rounds += 1
        on_progress(f"round {rounds}: {len(trial)} of {len(searches)} kinds of launch")
        for key, ratio in subject.ratios(trial).items():
            result.measured += ratio is not None
            if ratio is None:
                searches[key].drop(trial[key])
            else:
                searches[key].observe(trial[key], ratio)


def _offers(key: str, request: Request, sizes: Sizes) -> dict[str, float]:
    """The kernels that the request could have with these sizes, and their prices."""
    offers: kernel_choice.Offers = {}
    with kernel_choice.choosing(kernel_choice.Choices(offers=offers)):
        _backend().emit(kernel_choice.specialize(request, sizes))
    return offers.get(key, {})


def _next(search: Search, key: str, request: Request, sizes: Sizes) -> str | None:
    """What to measure next of what makes a difference to the request's kernels."""
    emit, plain = _backend().emit, None
    while (name := search.suggest()) is not None:
        plain = plain or emit(request)
        with kernel_choice.choosing(kernel_choice.Choices({key: name}, sizes=[sizes])):
            if emit(request) != plain:
                break
        search.observe(name, 1.0)
    return name


def _keep(subject: _Subject, chosen: dict[str, str], keys: Sequence[str], result: Tuned) -> None:
    """Measures the chosen kernels together, and again without those that had been faster by chance.
    Where the whole is not faster, kernels that do not overlap their neighbours as well may outweigh
    the others: it is measured with each alone. keys: of launches that have a choice.
    """
    found = subject.together(chosen)
    lasting = {
        key: name
        for key, name in chosen.items()
        if found.other.get(key, np.inf) < _WORTH * found.usual[key]
    }
    if lasting != chosen:
        chosen, found = lasting, subject.together(lasting)
    if chosen and found.ratio > _WORTH_IN_ALL:
        chosen = {
            key: name
            for key, name in chosen.items()
            if subject.together({key: name}).ratio < _WORTH_ALONE
        }
        found = subject.together(chosen)
    if found.ratio > _WORTH_IN_ALL or not subject.alike(chosen):
        chosen = {}
    whole = statistics.median(a for a, _ in found.totals)
    result.before += whole
    result.after += whole * found.ratio if chosen else whole
    used = [key for part in subject.usual for key in part.asked]
    what = {
        key: text(part.requests[key], part.sizes) for part in subject.usual for key in part.asked
    }
    kept: dict[str, Measured] = {}
    for key in keys:
        count = used.count(key)
        before = found.usual[key] / count
        after = found.other[key] / count if key in chosen else before
        if key in chosen:
            kept[key] = Measured(chosen[key], after, before, [dict(subject.sizes)])
        result.launches.append(Launch(what[key], count, before, after, chosen.get(key, "")))
    result.kept += len(chosen)
    if kept:
        result.record = str(tuning_records.add(result.device, kept))


def text(request: Request, sizes: Sizes) -> str:
    """A request in a few words."""
    return tuning_records.in_words(
        kernel_choice.described(kernel_choice.specialize(request, sizes))
    )
