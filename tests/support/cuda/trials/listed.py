"""The listed odd sizes of every kind: primes, ones, long tails, tiny batches, strided views."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from tests.support.cuda.trials import axes, dense, images, move, rows
from tests.support.cuda.trials.trial import Trial


def trials() -> Iterator[Trial]:
    return chain.from_iterable(m.trials() for m in (dense, images, rows, move, axes))
