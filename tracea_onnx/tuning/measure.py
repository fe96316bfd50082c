"""Finds the fastest kernels of a model's launches on this device by measuring, and keeps them as a
tuning record (`tracea-onnx tune`).

A session over the model asks for its Plans. In each round a `proposer` names one candidate for
every launch that has several kernels. Both the candidates and the present kernels are timed inside
full runs, so that caches are as in production; the overhead of timing launches without overlap is
subtracted. Before that, results are compared with float64 (`exact.py`). Every trial is recorded and
none is repeated. At the end the faster kernels are measured together, and kept if the whole model
is faster.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from onnx import ModelProto

from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records
from tracea_onnx.codegen.backend import Backend
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.codegen.tuning_records import Measured, Verdict
from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.errors import ModelError, TraceaError, UsageError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import KERNEL_FLOATS, DType
from tracea_onnx.ir.graph import Array, Graph
from tracea_onnx.plan.builder import evaluate
from tracea_onnx.runtime.host_tensors import NUMPY
from tracea_onnx.shapes.onnx_inference import first_line
from tracea_onnx.tuning import at_once, exact, in_place, proposers
from tracea_onnx.tuning.exact import Reference
from tracea_onnx.tuning.objective import SLACK, Objective
from tracea_onnx.tuning.search import PRUNED, WORTH, History, Kind, Outcome, Search
from tracea_onnx.verify import input_values

Sizes = Mapping[str, int]
Shapes = Mapping[str, Sequence[int]]
#: Replays that are timed at a time, and times that both sides have their turn: of a candidate, of
#: the result.
_REPLAYS, _TURNS, _LAST_TURNS = 20, 3, 9
#: The whole model's time over that with the kernels by price: with one kernel, and with all that
#: are kept, below which they are.
_WORTH_ALONE, _WORTH_IN_ALL = 0.999, 0.997
#: Microseconds that a launch takes at least.
_LEAST_US = 0.2


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
    """Result of `tune`.

    before, after: microseconds of a whole run. alone: launches without a choice for these sizes.
    measured: kernels that were tried. known: trials of earlier runs that were not made again. kept:
    kernels that were added to `record`, the file. interrupted: it ended before its time (Ctrl-C).
    unchecked: why float64 results of Plans are not known. saved: bytes, where memory is what
    counts. ended: by the budget, with kernels left to try. sessions: that ran at once, so that
    `before` and `after` are the microseconds from the end of a run to that of the next, whichever
    session's it is.
    """

    device: Any
    launches: list[Launch] = field(default_factory=list)
    alone: int = 0
    measured: int = 0
    known: int = 0
    before: float = 0.0
    after: float = 0.0
    kept: int = 0
    record: str = ""
    interrupted: bool = False
    unchecked: list[str] = field(default_factory=list)
    sessions: int = 1
    saved: int = 0
    ended: bool = False


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


@dataclass(frozen=True)
class Budget:
    """seconds: after the model was compiled, when no other candidates are tried. trials: how many
    are tried at most.
    """

    seconds: float = 120.0
    trials: float = math.inf


@dataclass(frozen=True)
class _Limit:
    """end: of `time.monotonic`. measured: of `Tuned`."""

    end: float
    measured: float


def tunable(name: str) -> Backend:
    """The backend, or without a name the one whose kernels can be timed."""
    for backend in map(backends.get, [name] if name else backends.names()):
        if backend.harness is not None:
            return backend
    raise UsageError("no backend of this installation has kernels to choose from")


def tune(
    model: str | Path,
    shapes: Shapes,
    *,
    backend: str = "",
    device: int = 0,
    threads: int = 0,
    budget: Budget = Budget(),
    proposer: proposers.Make = proposers.make("bayesian"),  # noqa: B008 -- holds no state
    resume: bool = True,
    objective: Objective = Objective.LATENCY,
    slack: float = SLACK,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Measures the kernels of `model` for inputs of these shapes, and adds the fastest to the
    tuning record of this kind of device. What is in the bodies of control flow goes by price.

    device: of a GPU. threads: of a session on the host; 0: as the objective has it. resume: what
    was tried before is not tried again. slack: of the memory, as of `Kind`. Ctrl-C ends the search:
    what was found until then is measured once more, and kept. Raises UsageError (a size that is not
    known), TraceaError (no GPU, nothing that the provider runs).
    """
    chosen = tunable(backend)
    if chosen.host:
        threads = objective.threads(threads)
    result = Tuned(device_of(chosen, device, threads))
    on = result.device.shared(objective.sessions(threads)) if chosen.host else result.device
    result.sessions = on.sessions if chosen.host else 1
    tuning_records.require()
    requests = asked_for(chosen, model, device, threads)
    end = time.monotonic() + budget.seconds
    for k, request in enumerate(requests):
        now, left = time.monotonic(), len(requests) - k
        share = now if result.interrupted else now + max(end - now, 0.0) / left
        most = result.measured + (budget.trials - result.measured) / left
        with opened(chosen, request, shapes, device, on) as subject:
            memory = slack if objective == Objective.MEMORY else None
            _tune(subject, proposer, resume, _Limit(share, most), result, on_progress, memory)
    if not result.launches and not result.alone:
        raise nothing_runs(chosen.name)
    return result


def nothing_runs(backend: str) -> TraceaError:
    """There is nothing to measure."""
    return TraceaError(
        "the provider runs no part of this model with sizes that follow from the inputs'",
        f"see `tracea-onnx explain MODEL --backend {backend}`",
    )


def device_of(backend: Backend, device: int, threads: int) -> Any:
    """Kind of device that records are kept for. Raises TraceaError where it cannot be used."""
    try:
        return backend.harness.device(threads if backend.host else device)
    except TraceaError as e:
        raise TraceaError(e.what, "see `tracea-onnx doctor`") from None


def asked_for(
    backend: Backend, model: str | Path | bytes, device: int, threads: int
) -> list[ModelProto]:
    """Requests of a session on this device to the compiler."""
    options = {"num_threads": str(threads)} if backend.host else {"device_id": str(device)}
    return requests_of(model, {"backend": backend.name, **options})


def opened(backend: Backend, request: ModelProto, shapes: Shapes, device: int, on: Any) -> _Subject:
    """A graph with data of these shapes. on: the device, as records know it."""
    sizes = sizes_of(Graph(request), shapes)
    kind = _HostSubject if backend.host else _Subject
    asking = kernel_choice.Choices(offers={}) if backend.host else kernel_choice.BY_PRICE
    return kind(backend, request, sizes, list(parts(backend, request, sizes, asking)), device, on)


def requests_of(model: str | Path | bytes, options: Mapping[str, str]) -> list[ModelProto]:
    """Compile requests of a session over the model, on the provider with these options, but for the
    bodies of control flow.
    """
    import onnxruntime

    from tracea_onnx import provider

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4  # errors are raised
    with tempfile.TemporaryDirectory() as fresh, compile_requests.listening() as requests:
        try:
            provider.create_session(model, {**options, "cache_dir": fresh}, quiet)
        except (TraceaError, MemoryError):
            raise
        except Exception as e:  # whatever ONNX Runtime says of the model
            raise ModelError(
                f"ONNX Runtime cannot load the model: {first_line(e)}", "export it again"
            ) from None
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
        for axis, d in enumerate(exact.dims(graph, name)):
            if d == D.symbol(f"{name}.{axis}") and name in shapes:
                found[f"{name}.{axis}"] = shapes[name][axis]
            if not found.keys() >= set(D.symbols(d)):
                raise UsageError(
                    f"the size of axis {axis} of input '{name}' is not known",
                    f"give it as --input-shape {name}:{_example(graph, name)}",
                )
    return found


def _example(graph: Graph, name: str) -> str:
    return ",".join(str(d) if isinstance(d, int) else "1" for d in graph.shape(name) or ())


# --- Plans, and what their launches take ----------------------------------------------------------


def parts(
    backend: Backend,
    request: ModelProto,
    sizes: Sizes,
    choices: kernel_choice.Choices = kernel_choice.BY_PRICE,
) -> Iterator[Part]:
    """The Plans that answer a request, with data for inputs of these sizes; without those whose
    inputs' sizes do not follow from them.
    """
    graph, props = Graph(request), partition_compiler.properties(request)
    writer = plan_writer.writer(backend, props, choices)
    compiled = partition_compiler.compile_for(graph, props, writer)
    for (_, plan, blobs), made in zip(compiled.entries, compiled.builders, strict=True):
        assert isinstance(made, BackendPlan)
        dims = [exact.dims(graph, i["name"]) for i in plan["inputs"]]
        if not sizes.keys() >= {s for shape in dims for d in shape for s in D.symbols(d)}:
            continue
        if any(axis >= len(dims[index]) for index, axis in plan["symbols"]):  # of unknown rank
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
            if all(value[g] > 0 for g in launch.get("grid", ()))
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
    kind = NUMPY[dtype]
    if dtype not in KERNEL_FLOATS:
        return np.ones(shape, kind)
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x.astype(bfloat16).view(np.uint16) if dtype == DType.BF16 else x.astype(kind)


@dataclass
class _Compared:
    """Microseconds that the launches of each kind take of a run on both sides, and of the whole in
    each turn. noise: by how much the usual ones differed from themselves, of their time; 0 where
    that was not measured.
    """

    usual: dict[str, float] = field(default_factory=dict)
    other: dict[str, float] = field(default_factory=dict)
    totals: list[tuple[float, float]] = field(default_factory=list)
    noise: float = 0.0

    @property
    def lasting(self) -> bool:
        """Whether the whole is faster, by more than twice the noise."""
        return self.ratio <= min(_WORTH_IN_ALL, 1 - 2 * self.noise)

    @property
    def ratio(self) -> float:
        return statistics.median(b / a for a, b in self.totals) if self.totals else 1.0


class _Differs(Exception):
    """The results are others."""


def _compare(
    load: Any,
    usual: Sequence[Part],
    other: Sequence[Part],
    device: int,
    turns: int,
    reference: Callable[[int], Reference] = lambda _: Reference(None),
) -> _Compared:
    """Both sides in turn, Plan by Plan, where they have the same results. load: the harness's
    `LoadedPlan`. reference: of a Plan, what they should be. Raises _Differs.
    """
    found, totals = _Compared(), [(0.0, 0.0)] * turns
    for k, (a, b) in enumerate(zip(usual, other, strict=True)):
        with ExitStack() as stack:
            plans = [
                stack.enter_context(load(p.plan, p.blobs, p.constants, device=device))
                for p in (a, b)
            ]
            results = [plan.run(a.inputs) for plan in plans]
            if not reference(k).agrees(a.plan, *results):
                raise _Differs
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
    the kernels by price. on: the device, as records know it.
    """

    backend: Backend
    request: ModelProto
    sizes: Sizes
    usual: Sequence[Part]
    device: int
    on: Any = None
    references: dict[int, Reference] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Request]:
        """Requests of each kind of launch."""
        return {key: r for part in self.usual for key, r in part.requests.items()}

    def __enter__(self) -> _Subject:
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go of what measuring took."""

    def reference(self, k: int) -> Reference:
        """Expected results of a Plan, in float64."""
        if k not in self.references:
            tf32 = partition_compiler.properties(self.request).get("tf32") == "1"
            part = self.usual[k]
            self.references[k] = exact.reference(
                Graph(self.request), part, {**self.sizes, **part.sizes}, tf32
            )
        return self.references[k]

    def start(self) -> None:
        """Raises TraceaError where nothing can be measured."""
        load = self.backend.harness.LoadedPlan
        try:
            _compare(load, self.usual, self.usual, self.device, 1)
        except _Differs:
            raise TraceaError(
                "the kernels by price give other results each time", "report this"
            ) from None

    def compared(self, records: kernel_choice.Records, turns: int) -> _Compared | Verdict:
        """Times with these kernels; a verdict where one of them does not compile or run, where
        results are others, or where the Plans are others with them.
        """
        try:
            other = list(
                parts(
                    self.backend,
                    self.request,
                    self.sizes,
                    kernel_choice.Choices(records, sizes=[self.sizes]),
                )
            )
            if [p.plan["inputs"] for p in other] != [p.plan["inputs"] for p in self.usual]:
                return Verdict.TOO_LARGE
            load = self.backend.harness.LoadedPlan
            return _compare(load, self.usual, other, self.device, turns, self.reference)
        except _Differs:
            return Verdict.WRONG
        except TraceaError:
            return Verdict.REFUSED

    def together(self, records: kernel_choice.Records) -> _Compared | None:
        """The same of kernels that ran before, for longer; None where they give wrong results
        together.
        """
        found = self.compared(records, _LAST_TURNS)
        if found == Verdict.WRONG:
            return None
        if isinstance(found, Verdict):
            raise TraceaError(
                "the kernels that were the fastest one by one do not run together", "report this"
            )
        return found

    def tried(self, trial: Mapping[str, str]) -> dict[str, tuple[float, float] | Verdict]:
        """Microseconds of a run's launches with the usual kernels and with these; a verdict for
        what does not run.
        """
        found = self.compared(trial, _TURNS)
        if not isinstance(found, Verdict):
            return {
                key: (found.usual[key], found.other[key])
                if key in found.other and found.usual[key]
                else Verdict.REFUSED
                for key in trial
            }
        if len(trial) == 1:
            return dict.fromkeys(trial, found)
        halves = [dict(half) for half in (list(trial.items())[::2], list(trial.items())[1::2])]
        return self.tried(halves[0]) | self.tried(halves[1])

    def kernels(self, request: Request) -> Mapping[str, float]:
        """The kernels that a launch could have with these sizes, and their prices."""
        return self.backend.configs(kernel_choice.specialize(request, self.sizes), self.on)

    def memory(self, key: str, names: Iterable[str]) -> dict[str, int]:
        """Bytes that a launch needs beside its operands with each of these kernels, and with the
        usual one ("").
        """
        request, found = kernel_choice.specialize(self.asked[key], self.sizes), {}
        for name in ("", *names):
            with kernel_choice.choosing(kernel_choice.Choices({key: name} if name else {})):
                found[name] = self.backend.memory(request)
        return found

    def differs(self, key: str, request: Request, name: str) -> bool:
        """Whether the launch gets another kernel with this name."""
        plain = self.backend.emit(request)
        with kernel_choice.choosing(kernel_choice.Choices({key: name}, sizes=[self.sizes])):
            return self.backend.emit(request) != plain


#: Seconds that a comparison on the host should take, and most turns of it; seconds that a trial may
#: take beside so many times what the usual kernels take, and the first, which prepares constants.
_ENOUGH, _MOST_TURNS, _PATIENCE, _TIMES, _FIRST = 0.2, 25, 20.0, 50, 600.0


class _HostSubject(_Subject):
    """Kernels in several variants, in a process of its own: Plans stay as they are, but for those
    in which another kernel is a substitute.
    """

    def __enter__(self) -> _Subject:
        self._load = self.backend.harness.LoadedPlan
        if self.on.sessions > 1:
            self._load = partial(at_once.Sessions, self._load, self.on.sessions)
        self._worker = in_place.Worker(self.usual, self._load, self.on.threads)
        self._us, self._exact = 0.0, dict[tuple[str, str], bool]()
        self._results: dict[int, list[Array]] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.__exit__(None, None, None)

    def start(self) -> None:
        found = self.compared({}, 1)
        if isinstance(found, Verdict):
            raise TraceaError(f"the kernels by price cannot be measured ({found})", "report this")
        self._us = sum(a for a, _ in found.totals)

    def tried(self, trial: Mapping[str, str]) -> dict[str, tuple[float, float] | Verdict]:
        """Twice, the second time without those that are far from the fastest."""
        rough = super().tried(trial)
        near = {
            key: trial[key]
            for key, found in rough.items()
            if not isinstance(found, Verdict) and found[1] < PRUNED * found[0]
        }
        found = self.compared(near, _LAST_TURNS) if near else Verdict.PRUNED
        if isinstance(found, Verdict):
            return rough
        return rough | {key: (found.usual[key], found.other[key]) for key in near}

    def compared(self, records: kernel_choice.Records, turns: int) -> _Compared | Verdict:
        found, totals, again = _Compared(), (0.0, 0.0), 0.0
        last = turns >= _LAST_TURNS  # what is measured to be kept, beside the usual ones twice
        if self._us:
            turns = max(turns, min(_MOST_TURNS, int(_ENOUGH * 1e6 / self._us)))
        patience = _PATIENCE + _TIMES * turns * self._us * 1e-6 if self._us else _FIRST
        try:
            if any(self._substitute(key, name) for key, name in records.items()):
                return self._beside(records, turns, patience)
            for k, part in enumerate(self.usual):
                variants = {
                    n: self._variant(part, key, records[key])
                    for n, key in enumerate(part.asked)
                    if key in records
                }
                for n, variant in variants.items():
                    if not self._right(k, n, part.asked[n], variant, records, patience):
                        return Verdict.WRONG
                if variants and not self._near(k, variants, patience):
                    return Verdict.WRONG
                sides = [{}, variants, {}] if last else [{}, variants]
                a, b, *more = self._worker.time(k, sides, turns, patience)
                totals = totals[0] + a.total, totals[1] + b.total
                again += more[0].total if more else a.total
                for into, times in ((found.usual, a), (found.other, b)):
                    for key, (_, us) in zip(part.asked, times.launches, strict=True):
                        into[key] = into.get(key, 0.0) + us
        except in_place.Crashed:
            return Verdict.CRASH
        except in_place.Hung:
            return Verdict.HANG
        except TraceaError:
            return Verdict.REFUSED
        found.totals, found.noise = [totals], abs(again / totals[0] - 1) if totals[0] else 0.0
        return found

    def _beside(
        self, records: kernel_choice.Records, turns: int, patience: float
    ) -> _Compared | Verdict:
        """The same of other Plans, turn by turn."""
        found, wholes = _Compared(), [(0.0, 0.0)] * turns
        choices = kernel_choice.Choices(records, {}, [self.sizes])
        other = list(parts(self.backend, self.request, self.sizes, choices))
        if [p.asked for p in other] != [p.asked for p in self.usual]:
            return Verdict.REFUSED
        with in_place.Worker([*self.usual, *other], self._load, self.on.threads) as worker:
            for k, part in enumerate(self.usual):
                results = [worker.run(at, {}, patience + _FIRST) for at in (k, len(other) + k)]
                if not self.reference(k).agrees(part.plan, *results):
                    return Verdict.WRONG
                sides: list[list[Any]] = [[], []]
                for turn in range(turns):
                    for side in (0, 1) if turn % 2 else (1, 0):
                        sides[side] += worker.time(len(other) * side + k, [{}], 1, patience)
                wholes = [
                    (a + x.total, b + y.total) for (a, b), x, y in zip(wholes, *sides, strict=True)
                ]
                for into, times in zip((found.usual, found.other), sides, strict=True):
                    for n, key in enumerate(part.asked):
                        us = statistics.median(t.launches[n][1] for t in times)
                        into[key] = into.get(key, 0.0) + us
        found.totals = wholes
        first, second = (statistics.median(a for a, _ in wholes[n::2] or wholes) for n in (0, 1))
        found.noise = abs(second / first - 1) if first else 0.0
        return found

    def _substitute(self, key: str, name: str) -> bool:
        """Whether a kernel of this name is one of another family than is asked for."""
        return not name.startswith(f"{self.asked[key].family}(")

    def kernels(self, request: Request) -> Mapping[str, float]:
        names = super().kernels(request)
        if not request.symbols:
            return names
        return {n: p for n, p in names.items() if n.startswith(f"{request.family}(")}

    def _right(
        self,
        part: int,
        launch: int,
        key: str,
        variant: int,
        records: kernel_choice.Records,
        patience: float,
    ) -> bool:
        known = (key, records[key])
        if known not in self._exact:
            self._exact[known] = self._worker.exact(part, launch, variant, patience)
        return self._exact[known]

    def _near(self, part: int, variants: in_place.Variants, patience: float) -> bool:
        """Whether the Plan's results with these are as near to float64 as the usual ones'."""
        if part not in self._results:
            self._results[part] = self._worker.run(part, {}, patience)
        results = self._worker.run(part, variants, patience)
        plan = self.usual[part].plan
        return self.reference(part).agrees(plan, self._results[part], results)

    def _variant(self, part: Part, key: str, name: str) -> int:
        request = kernel_choice.specialize(part.requests[key], part.sizes)
        with kernel_choice.choosing(kernel_choice.Choices({key: name})):
            return int(self.backend.variant(request))

    def differs(self, key: str, request: Request, name: str) -> bool:
        with kernel_choice.choosing(kernel_choice.Choices({key: name})):
            known = kernel_choice.specialize(request, self.sizes)
            return self._substitute(key, name) or self.backend.variant(known) != 0


@dataclass(frozen=True)
class Described:
    """The launches of a graph that have a choice, how many have none, and sizes of its symbols."""

    kinds: Sequence[Kind]
    alone: int
    sizes: Sizes


def described(subject: _Subject, slack: float | None = None) -> Described:
    """Search space of a graph. slack: as of `Kind`, where memory is what counts."""
    used = [key for part in subject.usual for key in part.asked]
    subject.sizes = dict(subject.sizes)
    for part in subject.usual:
        subject.sizes.update(part.sizes)
    kinds = [
        Kind(key, text(r, subject.sizes), _described(r, subject.sizes), used.count(key), prices)
        for key, r in subject.asked.items()
        if key in used and len(prices := subject.kernels(r)) > 1
    ]
    if slack is not None:
        kinds = [
            replace(kind, memory=subject.memory(kind.key, kind.prices), slack=slack)
            for kind in kinds
        ]
    return Described(kinds, len(used) - sum(kind.count for kind in kinds), subject.sizes)


def tried(subject: _Subject, trial: Mapping[str, str]) -> dict[str, Outcome]:
    """Times of kernels that make a difference to their launches."""
    new = differing(subject, trial)
    return {**dict.fromkeys(trial), **(subject.tried(new) if new else {})}


def differing(subject: _Subject, trial: Mapping[str, str]) -> dict[str, str]:
    """The kernels that make a difference to their launches: the others are not timed."""
    asked = subject.asked
    return {key: name for key, name in trial.items() if subject.differs(key, asked[key], name)}


def _tune(
    subject: _Subject,
    proposer: proposers.Make,
    resume: bool,
    limit: _Limit,
    result: Tuned,
    on_progress: Callable[[str], None],
    slack: float | None = None,
) -> None:
    """Adds to the record and to `result` what one graph's Plans are better with. slack: as of
    `described`. What the last measurement says may promise other kernels: then these are tried, too
    (all of them are known by then, with `resume` or without). Where nothing is left to try, nothing
    is run.
    """
    graph = described(subject, slack)
    found: tuple[Decision, Search] | None = None
    last = set[tuple[str, str]]()  # had their last measurement
    while True:
        search = Search(subject.on, graph.kinds, proposer, partial(History, resume=resume))
        if found is None:
            result.known += search.known
        _search(subject, search, limit, result, on_progress)
        chosen = search.chosen
        old = search.unconfirmed - last or (found is None and slack is not None and chosen)
        if not (search.measured or old):
            break
        last |= search.unconfirmed
        on_progress("what was found is measured once more")
        found = decision(subject, chosen, list(search.kinds), Standard(search.kinds)), search
        search.confirm(found[0].again)
        resume = True
        if result.interrupted or result.ended:
            break
    result.alone += graph.alone
    if found is not None:
        keep(*found, result)
    else:
        recorded(graph, result)


def _search(
    subject: _Subject,
    search: Search,
    limit: _Limit,
    result: Tuned,
    on_progress: Callable[[str], None],
) -> None:
    """Tries what is proposed, until nothing is, or the limit."""
    rounds = 0
    try:
        while trial := search.take():
            if new := differing(subject, trial):
                if time.monotonic() >= limit.end or result.measured >= limit.measured:
                    search.given_up(trial)
                    result.ended = True
                    break
                if not rounds:
                    subject.start()
                rounds += 1
                on_progress(f"round {rounds}: {len(new)} of {len(search.kinds)} kinds of launch")
            outcomes = subject.tried(new) if new else {}
            result.measured += search.told(trial, {**dict.fromkeys(trial), **outcomes})
    except KeyboardInterrupt:
        result.interrupted = True
        on_progress("interrupted")


@dataclass
class Decision:
    """Result of the last measurement: microseconds of a whole run before and after, the launches,
    the kernels to keep, and times of a run's launches with the usual and with the chosen kernels.
    unchecked: as of `Tuned`.
    """

    before: float
    after: float
    launches: list[Launch] = field(default_factory=list)
    kept: dict[str, Measured] = field(default_factory=dict)
    again: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)


@dataclass
class Undecided:
    """Kernels that are faster one by one, while the whole is not; `again` as of `Decision`."""

    chosen: dict[str, str]
    again: dict[tuple[str, str], tuple[float, float]]


@dataclass(frozen=True)
class Standard:
    """Criterion of a better kernel: a faster one, or as `kinds` say."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)

    def below(self, key: str, name: str) -> float:
        """A kernel's time over that of the usual one below which it is better."""
        return self.kinds[key].below(name) if key in self.kinds else WORTH

    def met(self, found: _Compared, chosen: Mapping[str, str]) -> bool:
        """Whether the whole is better with these kernels."""
        most = max((self.below(*one) for one in chosen.items()), default=0.0)
        return found.lasting or (most > 1 and found.ratio < most)


def decision(
    subject: _Subject,
    chosen: Mapping[str, str],
    keys: Sequence[str],
    standard: Standard = Standard(),
) -> Decision:
    """Measures the chosen kernels together. Where the whole is not faster, kernels that do not
    overlap their neighbours as well may outweigh the others: it is measured with each alone. keys:
    of launches that have a choice.
    """
    found = decided(subject, chosen, keys, None, standard)
    if isinstance(found, Undecided):
        good = {
            key: name for key, name in found.chosen.items() if gains(subject, key, name, standard)
        }
        found = decided(subject, good, keys, found.again, standard)
        assert isinstance(found, Decision)
    return found


def gains(subject: _Subject, key: str, name: str, standard: Standard = Standard()) -> bool:
    """Whether the whole is better with this kernel alone."""
    one = subject.together({key: name})
    return one is not None and (one.ratio < _WORTH_ALONE or standard.met(one, {key: name}))


def decided(
    subject: _Subject,
    chosen: Mapping[str, str],
    keys: Sequence[str],
    again: dict[tuple[str, str], tuple[float, float]] | None = None,
    standard: Standard = Standard(),
) -> Decision | Undecided:
    """Measures the chosen kernels together, and again without those that had been faster by chance.
    again: of `Undecided`, of whose kernels these were faster alone.
    """
    found = subject.together(chosen)
    if again is None:
        again = {
            (key, name): (found.usual[key], found.other[key])
            for key, name in chosen.items()
            if found and key in found.other
        }
        lasting = {
            key: name
            for key, name in chosen.items()
            if found is not None
            and found.other.get(key, np.inf) < standard.below(key, name) * found.usual[key]
        }
        if lasting != chosen:
            chosen, found = lasting, subject.together(lasting)
        if chosen and found is not None and not standard.met(found, chosen):
            return Undecided(dict(chosen), again)
    if found is None or not standard.met(found, chosen):
        chosen = {}
    elif any(
        found.other[key] >= max(standard.below(key, name), 1.0) * found.usual[key]
        for key, name in chosen.items()
    ):
        chosen = {}  # faster as a whole by chance: what takes longer by itself is no gain
    if found is None:
        raise TraceaError("the kernels by price give other results each time", "report this")
    whole = statistics.median(a for a, _ in found.totals)
    out = Decision(whole, whole * found.ratio if chosen else whole, again=again)
    out.unchecked = [r.why for r in subject.references.values() if r.results is None]
    used = [key for part in subject.usual for key in part.asked]
    for key in keys:
        count = used.count(key)
        before = found.usual[key] / count
        after = found.other[key] / count if key in chosen else before
        if key in chosen:
            out.kept[key] = Measured(chosen[key], after, before, [dict(subject.sizes)])
        words = text(subject.asked[key], subject.sizes)
        out.launches.append(Launch(words, count, before, after, chosen.get(key, "")))
    return out


def keep(found: Decision, search: Search, result: Tuned) -> None:
    """Adds what the last measurement says to the record and to `result`."""
    result.before += found.before
    result.after += found.after
    result.launches += found.launches
    result.kept += len(found.kept)
    result.unchecked += found.unchecked
    result.saved += sum(
        search.kinds[key].count * search.kinds[key].saves(m.kernel)
        for key, m in found.kept.items()
        if key in search.kinds
    )
    if found.kept:
        instead = any(kind.memory for kind in search.kinds.values())
        result.record = str(tuning_records.add(result.device, found.kept, instead=instead))


def recorded(graph: Described, result: Tuned) -> None:
    """Where nothing was tried, what is known of the launches; it is for these sizes, too."""
    known, sizes = tuning_records.load(result.device), dict(graph.sizes)
    found: dict[str, Measured] = {}
    for kind in graph.kinds:
        m = known.get(kind.key)
        times = (m.usual_us, m.us) if m else (0.0, 0.0)
        result.launches.append(Launch(kind.words, kind.count, *times, m.kernel if m else ""))
        if m and sizes not in m.sizes:
            found[kind.key] = Measured(m.kernel, m.us, m.usual_us, [sizes])
    if found:
        result.record = str(tuning_records.add(result.device, found))


def text(request: Request, sizes: Sizes) -> str:
    """A request in a few words."""
    return tuning_records.in_words(_described(request, sizes))


def _described(request: Request, sizes: Sizes) -> dict[str, Any]:
    return kernel_choice.described(kernel_choice.specialize(request, sizes))
