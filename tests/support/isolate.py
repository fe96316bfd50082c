"""Runs many items in forked worker processes: a crash or a hang costs one item, not the run."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lost:
    """What became of an item whose worker died or ran out of time."""

    reason: str


@dataclass
class _Worker:
    process: ForkProcess
    pipe: Connection
    index: int
    started: float


def _serve(items: Sequence[Item], work: Callable[[Item], Result], pipe: Connection) -> None:
    while (index := pipe.recv()) is not None:
        pipe.send(work(items[index]))
    pipe.close()
    os._exit(0)  # skip atexit: native libraries under test must not decide how the worker ends


def run_each(
    items: Sequence[Item], work: Callable[[Item], Result], *, jobs: int = 1, timeout: float = 120.0
) -> Iterator[tuple[Item, Result | Lost]]:
    """Yields (item, work(item) or Lost) as they finish; `work` catches its own exceptions. Fork
    keeps `items` in memory: nothing is sent but indices.

    The caller must not have started threads of native libraries that do not survive a fork (import
    onnxruntime inside `work`).
    """
    context = multiprocessing.get_context("fork")
    todo = iter(range(len(items)))
    workers: list[_Worker] = []

    def start(index: int) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(items, work, theirs), daemon=True)
        process.start()
        theirs.close()
        ours.send(index)
        workers.append(_Worker(process, ours, index, time.monotonic()))

    def stop(worker: _Worker) -> None:
        workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()

    for _ in range(jobs):
        if (first := next(todo, None)) is not None:
            start(first)
    while workers:
        ready = wait([w.pipe for w in workers], timeout=1.0)
        for worker in list(workers):
            item = items[worker.index]
            if worker.pipe in ready:
                try:
                    result: Result | Lost = worker.pipe.recv()
                except EOFError:
                    worker.process.join()
                    result = Lost(f"the process died with status {worker.process.exitcode}")
            elif time.monotonic() - worker.started > timeout:
                result = Lost(f"no result within {timeout:.0f} s")
            else:
                continue
            following = next(todo, None)
            if isinstance(result, Lost) or following is None:
                stop(worker)
                if following is not None:
                    start(following)
            else:
                worker.index, worker.started = following, time.monotonic()
                worker.pipe.send(following)
            yield item, result
