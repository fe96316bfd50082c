"""Proposers that learn nothing: every kernel by price, and at random."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tracea_onnx.tuning.proposer import Hint, Proposer


class Grid(Proposer):
    """All, the cheapest first."""

    def suggest(self) -> str | None:  # noqa: D102 -- as of `Proposer`
        return next(iter(self.left), None)


class Random(Proposer):
    """All, in an order that is the same every time."""

    def __init__(self, prices: Mapping[str, float], hints: Sequence[Hint] = ()) -> None:
        super().__init__(prices, hints)
        self._order = random.Random(0).sample(self.names, len(self.names))

    def suggest(self) -> str | None:  # noqa: D102 -- as of `Proposer`
        left = set(self.left)
        return next((n for n in self._order if n in left), None)
