"""Tuning on many workers at a time (`tracea-onnx tune --executor`).

Each worker says which device it has and what there is to try on it. There is one search for each
kind of device, and its trials go to workers with that device alone: as many launches at a time as
leave every worker something to do. Answers are kept as they arrive. What a lost worker was asked is
asked of another one, up to `_TRIES` times; what is late is asked of an idle one, too, and the first
answer counts.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tracea_onnx._version import __version__
from tracea_onnx.codegen import tuning_records
from tracea_onnx.codegen.tuning_records import Reported, Verdict
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir.graph import tensor_bytes
from tracea_onnx.model_io import external, model_file
from tracea_onnx.tuning import measure, proposers, station
from tracea_onnx.tuning.crew import Crew
from tracea_onnx.tuning.measure import Budget, Decision, Described, Shapes, Tuned, Undecided
from tracea_onnx.tuning.search import History, Search
from tracea_onnx.tuning.station import Answer, Job, Place

#: How often a question is asked that loses its workers.
_TRIES = 3
#: Seconds between looks at the workers, that workers have to come (back), and between lines.
_LOOK, _COME, _SAY = 1.0, 60.0, 5.0
#: Seconds that a worker has to answer.
_PATIENCE = {"opened": 0.0, "tried": 300.0, "decided": 300.0, "gains": 300.0}
#: Times the usual time, and seconds at least, after which an answer is late.
_LATE, _LATE_S = 2.0, 5.0


@dataclass(eq=False)
class _Task:
    """A question. device: that it is for; None: whichever the worker has."""

    device: Reported | None
    what: str
    arguments: tuple[Any, ...] = ()
    lost: int = 0
    copied: bool = False
    done: bool = False


@dataclass
class _Flight:
    """A task that a worker is at since a time. left: another one was asked already."""

    place: Place
    task: _Task
    since: float
    left: bool = False


@dataclass
class _Alone:
    """Kernels that are measured alone: those that were not yet, those that gain."""

    undecided: Undecided
    left: set[str]
    good: dict[str, str] = field(default_factory=dict)


@dataclass
class _Kind:
    """A kind of device: its graphs, their searches, and what was found. turn: the graph that was
    asked about last. alone, decided: of graphs by their index.
    """

    graphs: Sequence[Described]
    searches: list[Search]
    found: Tuned
    turn: int = 0
    alone: dict[int, _Alone] = field(default_factory=dict)
    decided: set[int] = field(default_factory=set)


def tune(
    model: str,
    shapes: Shapes,
    crew: Crew,
    *,
    backend: str,
    device: int,
    threads: int,
    budget: Budget,
    proposer: proposers.Make,
    resume: bool,
    on_progress: Callable[[str], None],
) -> list[Tuned]:
    """As `measure.tune`, for every kind of device that workers have. device, threads: of a worker.

    Raises UsageError (a model that cannot be sent), TraceaError (no worker can measure it).
    """
    tuning_records.require()
    data = _whole(model)
    job = Job(hashlib.sha256(data).hexdigest(), shapes, backend, device, threads)
    history = partial(History, resume=resume)
    fleet = Fleet(crew, job, data, proposer, history, on_progress)
    return fleet.tune(budget)


def _whole(model: str) -> bytes:
    """The model as one file."""
    source = model_file.load(model)
    outside = (t for t in external.tensors(source.model) if t.data_location == t.EXTERNAL)
    size = source.model.ByteSize() + sum(map(tensor_bytes, outside))
    if size > model_file.INLINE_LIMIT:
        raise UsageError(
            f"the model has {size / 2**30:.1f} GiB, more than can be sent to workers",
            "tune it on one machine of each kind, and merge what these export",
        )
    external.load_into_memory(source, lambda _: True)
    return model_file.serialize(source.model)


class Fleet:
    """Searches of all kinds of device. history: as of `Search`."""

    def __init__(
        self,
        crew: Crew,
        job: Job,
        model: bytes,
        proposer: proposers.Make,
        history: Callable[[Any], History],
        on_progress: Callable[[str], None],
    ) -> None:
        self.kinds: dict[Reported, _Kind] = {}
        self._crew, self._job, self._model = crew, job, model
        self._proposer, self._history, self._say = proposer, history, on_progress
        self._at: dict[Place, Reported] = {}
        self._useless: dict[Place, str] = {}
        self._flights: dict[Future[Answer], _Flight] = {}
        self._again: list[_Task] = []
        self._took: dict[str, list[float]] = {}
        self._said = -math.inf
        self._asked = self._measured = 0
        self._limit = Budget(0.0, 0.0)

    def tune(self, budget: Budget) -> list[Tuned]:
        """What was found for each kind of device."""
        self._limit = Budget(self._crew.now() + budget.seconds, budget.trials)
        interrupted = False
        try:
            self._run(self._trial)
        except KeyboardInterrupt:
            interrupted = True
            self._say("interrupted: what was found is measured once more")
        for flight in self._flights.values():
            flight.task.done = flight.task.device is not None
        self._again.clear()
        self._limit = Budget(self._crew.now(), 0)
        waiting = [
            (on, _Task(on, "decided", (k, search.chosen, list(search.kinds))))
            for on, kind in self.kinds.items()
            for k, search in enumerate(kind.searches)
            if search.measured or search.unconfirmed
        ]
        for on, kind in self.kinds.items():
            kind.found.interrupted = interrupted
            asked = {task.arguments[0] for device, task in waiting if device == on}
            for k, graph in enumerate(kind.graphs):
                if k not in asked:
                    measure.recorded(graph, kind.found)
                kind.found.alone += graph.alone
        self._again += [task for _, task in waiting]
        self._run(lambda _: None)
        for on, task in waiting:
            if task.arguments[0] not in self.kinds[on].decided:
                self._say(f"{on.name}: no worker made the last measurement; tune again for it")
        if all(not k.found.launches and not k.found.alone for k in self.kinds.values()):
            raise measure.nothing_runs(self._job.backend)
        return [kind.found for kind in self.kinds.values()]

    # --- which questions there are ----------------------------------------------------------------
    def _trial(self, on: Reported) -> _Task | None:
        """The next kernels to try on a kind of device."""
        kind = self.kinds[on]
        now, budget = self._crew.now(), self._limit
        if now >= budget.seconds or self._asked >= budget.trials:
            return None
        alike = sum(device == on for device in self._at.values())
        # with those that are being measured: shares do not shrink while all workers have one
        most = math.ceil(sum(search.open for search in kind.searches) / max(alike, 1))
        for _ in kind.searches:
            k = kind.turn = (kind.turn + 1) % len(kind.searches)
            if trial := kind.searches[k].take(max(most, 1)):
                self._asked += len(trial)
                return _Task(on, "tried", (k, trial))
        return None

    def _next(self, on: Reported | None, more: Callable[[Reported], _Task | None]) -> _Task | None:
        """Next task of an idle worker with this device; without a device, the task that asks for
        it.
        """
        if on is None:
            return _Task(None, "opened")
        for task in self._again:
            if task.device == on:
                self._again.remove(task)
                return task
        return more(on) or self._late(on)

    def _late(self, on: Reported) -> _Task | None:
        """A task for this kind of device that takes others too long."""
        for flight in self._flights.values():
            task = flight.task
            if task.device == on and not (task.done or task.copied) and self._is_late(flight):
                task.copied = True
                return task
        return None

    def _is_late(self, flight: _Flight, least: float = _LATE_S) -> bool:
        took = self._took.get(flight.task.what)
        usual = statistics.median(took) if took else math.inf
        return self._crew.now() - flight.since > max(_LATE * usual, least)

    # --- asking -----------------------------------------------------------------------------------
    def _run(self, more: Callable[[Reported], _Task | None]) -> None:
        """Asks what there is to ask, until all was answered."""
        since = self._crew.now()
        while True:
            workers = self._crew.workers()
            self._look(workers.keys())
            busy = {flight.place for flight in self._flights.values()}
            done: set[Reported | None] = set()  # kinds of device with nothing to do
            for place in workers.keys() - busy - self._useless.keys():
                on = self._at.get(place)
                if on in done:
                    continue
                if task := self._next(on, more):
                    self._ask(place, workers[place], task)
                else:
                    done.add(on)
            if any(map(self._waited_for, self._flights.values())):
                since = self._crew.now()
            elif self.kinds and not self._again:
                # of kinds whose workers are all gone, which may come back
                self._again += [task for on in self.kinds if (task := more(on))]
                if not self._again:
                    return
            elif self._crew.now() - since > _COME or (
                self._useless and self._useless.keys() >= workers.keys()
            ):
                if self.kinds:
                    return
                raise self._nobody()
            for future in self._crew.wait(self._flights, _LOOK):
                self._answered(self._flights.pop(future), future)

    def _waited_for(self, flight: _Flight) -> bool:
        """Of workers that may have another kind of device, those that are not late."""
        if flight.task.device is None and self.kinds:
            past = self._crew.now() >= self._limit.seconds
            return not (past or flight.task.done or self._is_late(flight, _COME))
        return not flight.task.done

    def _nobody(self) -> TraceaError:
        for place, why in self._useless.items():
            return TraceaError(
                f"no worker can measure the model ({place.name}: {why})",
                "workers need the device, and this version of tracea-onnx",
            )
        return TraceaError("no worker came", "start workers, and tune again")

    def _ask(self, place: Place, executor: Executor, task: _Task) -> None:
        model, patience = self._crew.share(self._model), _PATIENCE[task.what]
        question = (place, self._job, model, patience, task.what, *task.arguments)
        future = executor.submit(station.ask, *question)
        self._flights[future] = _Flight(place, task, self._crew.now())

    def _look(self, there: Collection[Place]) -> None:
        """Finds workers that are gone, and those that do not answer."""
        for future, flight in list(self._flights.items()):
            gone = flight.place not in there
            age = self._crew.now() - flight.since
            if gone:
                del self._flights[future]
                future.cancel()
            late = age > station.OPENING + _PATIENCE[flight.task.what] + _COME
            if (gone or late) and not flight.left:
                flight.left = True
                self._lost(flight.task, flight.place, "it is gone" if gone else "no answer")
        for place in self._at.keys() - there:
            del self._at[place]

    def _lost(self, task: _Task, place: Place, why: str) -> None:
        """A worker did not answer."""
        if task.done or task.device is None:
            return
        task.lost += 1
        task.copied = False
        self._say(f"{place.name} did not answer ({why}): another worker is asked")
        if task.lost < _TRIES:
            self._again.append(task)
            return
        task.done = True
        if task.what == "tried":
            k, trial = task.arguments
            self.kinds[task.device].searches[k].given_up(trial)
            self._say(f"{len(trial)} kernels were not measured: {_TRIES} workers did not answer")
        elif task.what == "gains":
            self._gained(task, False)

    def _answered(self, flight: _Flight, future: Future[Answer]) -> None:
        place, task = flight.place, flight.task
        try:
            answer = future.result()
        except Exception as e:  # of every executor's own kind
            why = f"{type(e).__name__}: {str(e).strip().rpartition(chr(10))[2]}"
            if task.what == "opened":
                self._opened(place, Answer(None, why))
            elif not flight.left:
                self._lost(task, place, why)
            return
        if task.done:
            return
        task.done = True
        self._took.setdefault(task.what, []).append(self._crew.now() - flight.since)
        if task.what == "opened":
            self._opened(place, answer)
        elif task.what == "tried":
            self._tried(task, place, answer)
        elif answer.failed:
            task.done = False
            self._lost(task, place, answer.failed)
        elif task.what == "gains":
            self._gained(task, answer.value)
        else:
            self._decided(task, answer.value)

    def _decided(self, task: _Task, found: Decision | Undecided) -> None:
        """Of kernels that are undecided, each is measured alone, on whichever worker is idle."""
        assert task.device is not None
        k, kind = task.arguments[0], self.kinds[task.device]
        if isinstance(found, Decision):
            kind.decided.add(k)
            kind.searches[k].confirm(found.again)
            measure.keep(found, kind.searches[k], kind.found)
            return
        kind.alone[k] = _Alone(found, set(found.chosen))
        self._again += [_Task(task.device, "gains", (k, *one)) for one in found.chosen.items()]

    def _gained(self, task: _Task, gains: bool) -> None:
        assert task.device is not None
        k, key, name = task.arguments
        kind = self.kinds[task.device]
        alone = kind.alone[k]
        alone.left.discard(key)
        if gains:
            alone.good[key] = name
        if not alone.left:
            arguments = k, alone.good, list(kind.searches[k].kinds), alone.undecided.again
            self._again.append(_Task(task.device, "decided", arguments))

    def _opened(self, place: Place, answer: Answer) -> None:
        why = answer.failed
        if not why and answer.value[0].version != __version__:
            why = f"it has version {answer.value[0].version} of tracea-onnx, not {__version__}"
        if why:
            self._useless[place] = why
            self._say(f"{place.name} cannot measure: {why}")
            return
        on, graphs = answer.value
        self._at[place] = on
        if on not in self.kinds:
            searches = [Search(on, g.kinds, self._proposer, self._history) for g in graphs]
            found = Tuned(on, known=sum(search.known for search in searches))
            self.kinds[on] = _Kind(graphs, searches, found)
            self._say(f"{place.name} has {on.kind}")

    def _tried(self, task: _Task, place: Place, answer: Answer) -> None:
        assert task.device is not None
        k, trial = task.arguments
        kind = self.kinds[task.device]
        if answer.failed in (station.CRASH, station.HANG) and len(trial) > 1:
            rows = list(trial.items())
            halves = dict(rows[::2]), dict(rows[1::2])
            self._again += [_Task(task.device, "tried", (k, half)) for half in halves]
            return
        if answer.failed in (station.CRASH, station.HANG):
            outcomes = dict.fromkeys(trial, Verdict(answer.failed))
        elif answer.failed:
            self._useless[place], task.done = answer.failed, False
            self._lost(task, place, answer.failed)
            return
        else:
            outcomes = answer.value
        count = kind.searches[k].told(trial, outcomes)
        kind.found.measured += count
        self._measured += count
        if count and self._crew.now() - self._said > _SAY:
            self._said = self._crew.now()
            self._say(f"{self._measured} kernels on {len(self._at)} workers")
