"""`--executor ray://HOST:PORT`: a Ray cluster. Every GPU of it, or every set of so many cores, gets
an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tracea_onnx.errors import TraceaError
from tracea_onnx.tuning.crew import Crew
from tracea_onnx.tuning.station import Place


class _Actor:
    """The actor in a worker."""

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class _Worker(Executor):
    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def submit(self, function: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = self.actor.run.remote(function, *args).future()
        return future


class _Ray(Crew):
    def __init__(self, address: str, gpus: bool, threads: int) -> None:
        self._address, self._gpus, self._threads = address, gpus, threads
        self._workers: dict[Place, _Worker] = {}

    def workers(self) -> Mapping[Place, Executor]:
        try:
            nodes = {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}
        except Exception as e:
            raise _gone(self._address) from e
        there = {place: node for node, all_ in nodes.items() for place in self._places(node, all_)}
        self._workers = {place: w for place, w in self._workers.items() if place in there}
        for place in there.keys() - self._workers.keys():
            self._workers[place] = _Worker(self._actor(there[place], place))
        return self._workers

    def _places(self, node: str, resources: Mapping[str, float]) -> list[Place]:
        if self._gpus:
            return [Place(f"{node[:12]} GPU {k}") for k in range(int(resources.get("GPU", 0)))]
        cores = int(resources.get("CPU", 0))
        each = self._threads or cores
        return [
            Place(f"{node[:12]} cores {k}", "", tuple(range(k * each, (k + 1) * each)))
            for k in range(cores // each if each else 0)
        ]

    def _actor(self, node: str, place: Place) -> Any:
        # restarted where it ended, and where its node is; what ran then is asked for again
        return ray.remote(_Actor).options(
            num_gpus=1 if self._gpus else 0,
            num_cpus=0 if self._gpus else len(place.cores),
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote()  # fmt: skip

    def share(self, data: bytes) -> Any:
        return ray.put(data)

    def close(self) -> None:
        for worker in self._workers.values():
            ray.kill(worker.actor)
        ray.shutdown()


def _gone(address: str) -> TraceaError:
    return TraceaError(
        f"no Ray cluster answers at {address}",
        "start one with `ray start --head`, and tune again: what was measured is kept",
    )


def open_crew(address: str, *, gpus: bool, threads: int) -> Crew:
    """As `crew.open_crew`."""
    try:
        ray.init(f"ray://{address}", log_to_driver=False, logging_level="ERROR")
    except Exception as e:
        raise _gone(address) from e
    return _Ray(address, gpus, threads)
