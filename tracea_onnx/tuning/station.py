"""A worker of a fleet. It keeps a model ready in a child process on its device, and measures there
what it is asked to. If a kernel crashes or hangs the child, that trial fails, and the next request
starts another child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tracea_onnx.codegen import tuning_records
from tracea_onnx.codegen.tuning_records import Reported
from tracea_onnx.errors import TraceaError
from tracea_onnx.support import memory_bound
from tracea_onnx.tuning import measure
from tracea_onnx.tuning.measure import Decision, Described, Undecided
from tracea_onnx.tuning.search import Outcome

#: Seconds that a process may take to have a model ready, and that it waits for a question.
OPENING, _IDLE = 600.0, 900.0


@dataclass(frozen=True)
class Place:
    """A worker by name. gpu: what CUDA_VISIBLE_DEVICES is there, "" for what it is; cores: which of
    those that it may use are its own, () for all.
    """

    name: str
    gpu: str = ""
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """A model to tune. digest: of the model; backend, device, threads: as of `measure.tune`."""

    digest: str
    shapes: Mapping[str, Sequence[int]]
    backend: str
    device: int
    threads: int


@dataclass(frozen=True)
class Answer:
    """value: what was asked for; None where the process ended ("crash"), took too long ("hang"), or
    could not do it (a line), which `failed` says.
    """

    value: Any
    failed: str = ""


CRASH, HANG = "crash", "hang"


class Station:
    """A model on a device of this machine; a context manager. graphs: what there is to try."""

    def __init__(self, model: bytes, job: Job) -> None:
        backend = measure.tunable(job.backend)
        self._on = measure.device_of(backend, job.device, job.threads)
        self._stack = ExitStack()
        self._subjects = [
            self._stack.enter_context(
                measure.opened(backend, request, job.shapes, job.device, self._on)
            )
            for request in measure.asked_for(backend, model, job.device, job.threads)
        ]
        self._started: set[int] = set()

    def __enter__(self) -> Station:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def opened(self) -> tuple[Reported, list[Described]]:
        """The device, and what there is to try for each graph."""
        found = [measure.described(subject) for subject in self._subjects]
        return tuning_records.reported(self._on), found

    def tried(self, graph: int, trial: Mapping[str, str]) -> dict[str, Outcome]:
        """As `measure.tried`."""
        return measure.tried(self._ready(graph), trial)

    def decided(self, graph: int, *what: Any) -> Decision | Undecided:
        """As `measure.decided`."""
        return measure.decided(self._ready(graph), *what)

    def gains(self, graph: int, key: str, name: str) -> bool:
        """As `measure.gains`."""
        return measure.gains(self._ready(graph), key, name)

    def _ready(self, graph: int) -> Any:
        subject = self._subjects[graph]
        if graph not in self._started:
            subject.start()
            self._started.add(graph)
        return subject


# --- the process, and what asks it ----------------------------------------------------------------
def serve(descriptor: int, cores: Sequence[int]) -> None:
    """Answers until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    memory_bound.set_bound()
    if cores and hasattr(os, "sched_setaffinity"):  # not on every system
        usable = sorted(os.sched_getaffinity(0))
        if own := [usable[k] for k in cores if k < len(usable)]:
            os.sched_setaffinity(0, own)
    with ExitStack() as stack, contextlib.suppress(EOFError, OSError):
        pipe = stack.enter_context(Connection(descriptor))
        station: Any = None
        while pipe.poll(_IDLE):
            what, *args = pipe.recv()
            try:
                if station is None:
                    station = stack.enter_context(Station(*args))
                    args = []
                pipe.send(Answer(getattr(station, what)(*args)))
            except Exception as e:
                line = str(e) if isinstance(e, TraceaError) else f"{type(e).__name__}: {e}"
                pipe.send(Answer(None, line))


class _Process:
    def __init__(self, place: Place, job: Job) -> None:
        self.job = job
        self.pipe, other = Pipe()
        serving = f"serve({other.fileno()}, {place.cores})"
        visible = {"CUDA_VISIBLE_DEVICES": place.gpu} if place.gpu else {}
        # not of multiprocessing: workers of Dask may have no children of that kind
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from tracea_onnx.tuning import station as s; s.{serving}"],
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **visible},
        )
        other.close()
        self.answer = Answer(None, CRASH)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, patience: float, *question: Any) -> Answer:
        try:
            self.pipe.send(question)
            answer = self.pipe.recv() if self.pipe.poll(patience) else Answer(None, HANG)
        except (EOFError, OSError):
            answer = Answer(None, CRASH)
        if answer.failed:
            self.stop()
        return answer

    def stop(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.wait()


_processes: dict[str, _Process] = {}
_locks: dict[str, threading.Lock] = {}


def ask(place: Place, job: Job, model: bytes, patience: float, what: str, *args: Any) -> Answer:
    """Answer of the process of a place; it is started where there is none for this job. It has
    OPENING seconds to be ready, and `patience` to answer.
    """
    with _locks.setdefault(place.name, threading.Lock()):
        process = _processes.get(place.name)
        if process is None or process.job != job or not process.alive:
            if process is not None:
                process.stop()
            process = _processes[place.name] = _Process(place, job)
            process.answer = process.ask(OPENING, "opened", model, job)
        if what == "opened" or process.answer.failed:
            return process.answer
        return process.ask(patience, what, *args)


def end(place: Place) -> None:
    """Ends the process of a place."""
    with _locks.setdefault(place.name, threading.Lock()):
        if (process := _processes.pop(place.name, None)) is not None:
            process.stop()
