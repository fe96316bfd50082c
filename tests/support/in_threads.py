"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


def in_threads(work: Callable[[int], None], arguments: Iterable[int]) -> None:
    """Call `work` with each argument, in a thread of its own; the first failure fails the test."""
    failures: list[BaseException] = []

    def caught(argument: int) -> None:
        try:
            work(argument)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=caught, args=(a,)) for a in arguments]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]
