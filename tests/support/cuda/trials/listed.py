"""The listed odd sizes of every kind: primes, ones, long tails, tiny batches, strided views."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from tests.support.cuda.trials import axes, images, move, products, rows
from tests.support.cuda.trials.trial import Trial


def trials() -> Iterator[Trial]:
    return chain.from_iterable(m.trials() for m in (products, images, rows, move, axes))
