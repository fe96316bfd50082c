"""Workers that are made up, on a clock of their own: tests of fleets, and benchmarks/fleet.py."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from tracea_onnx.tuning.crew import Crew
from tracea_onnx.tuning.station import Answer, Place

#: Seconds that a worker takes for a question (`what`, its arguments), and its answer.
Work = Callable[[str, Sequence[Any]], tuple[float, Answer]]


@dataclass(eq=False)
class SyntheticWorker(Executor):
    """comes, goes: when it is there. asked: what it was asked."""

    crew: SyntheticCrew
    work: Work
    comes: float = 0.0
    goes: float = math.inf
    asked: list[str] = field(default_factory=list)

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
        what, *arguments = args[4:]
        self.asked.append(what)
        seconds, answer = self.work(what, arguments)
        return self.crew.later(self, seconds, answer)


class SyntheticCrew(Crew):
    """real: whether the time of a processor that the caller takes counts, too."""

    def __init__(self, real: bool = False) -> None:
        self.hired: dict[Place, SyntheticWorker] = {}
        self._now, self._real, self._since = 0.0, real, time.process_time()
        self._ends: list[tuple[float, int, Future[Any], Answer]] = []
        self._number = itertools.count()

    def hire(self, work: Work, comes: float = 0.0, goes: float = math.inf) -> SyntheticWorker:
        """One more."""
        worker = SyntheticWorker(self, work, comes, goes)
        self.hired[Place(f"worker {len(self.hired)}")] = worker
        return worker

    def later(self, worker: SyntheticWorker, seconds: float, answer: Answer) -> Future[Any]:
        future: Future[Any] = Future()
        end = self.now() + seconds
        if end < worker.goes:
            heapq.heappush(self._ends, (end, next(self._number), future, answer))
        return future

    def workers(self) -> Mapping[Place, Executor]:
        now = self.now()
        return {place: w for place, w in self.hired.items() if w.comes <= now < w.goes}

    def wait(self, futures: Collection[Future[Any]], seconds: float) -> Collection[Future[Any]]:
        now = self.now()
        end = max(min(now + seconds, self._ends[0][0] if self._ends else math.inf), now)
        while self._ends and self._ends[0][0] <= end:
            _, _, future, answer = heapq.heappop(self._ends)
            if not future.cancelled():
                future.set_result(answer)
        self._now, self._since = end, time.process_time()
        return [future for future in futures if future.done()]

    def now(self) -> float:
        return self._now + (time.process_time() - self._since if self._real else 0.0)
