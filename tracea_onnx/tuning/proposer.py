"""A proposer chooses which of a launch's kernels is measured next: an extension point. `make`
selects one by name.
"""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Prices, as multiples of the lowest, and kernels that may be worth measuring.
_WORST, _MOST = 1.4, 40


@dataclass(frozen=True)
class Hint:
    """Relative time of a kernel measured elsewhere, for a similar launch or on a similar device.
    distance: how far that is, 0 for the same.
    """

    name: str
    ratio: float
    distance: float


class Proposer(ABC):
    """prices: of each kernel by name, a kind and its parameters as in `HopperTile(bm=128, ...)`."""

    def __init__(self, prices: Mapping[str, float], hints: Sequence[Hint] = ()) -> None:
        self.names = sorted(
            (n for n in prices if prices[n] <= _WORST * min(prices.values())),
            key=lambda n: (prices[n], n),
        )[:_MOST]
        self.prices, self.hints = {n: prices[n] for n in self.names}, hints
        self.seen: dict[str, float] = {}
        self._dropped: set[str] = set()
        self._begun: set[str] = set()

    @property
    def first(self) -> str:
        """The kernel with the lowest price."""
        return self.names[0]

    @property
    def best(self) -> tuple[str, float]:
        """The fastest measured kernel and its time over that of what runs now; the first before any
        was measured.
        """
        name = min(self.seen, key=self.seen.__getitem__, default=self.first)
        return name, math.exp(self.seen.get(name, 0.0))

    @property
    def ratios(self) -> dict[str, float]:
        """Measured kernels, and their times over that of what runs now."""
        return {name: math.exp(value) for name, value in self.seen.items()}

    @property
    def left(self) -> list[str]:
        """Kernels that were not tried, the cheapest first."""
        gone = self.seen.keys() | self._dropped | self._begun
        return [n for n in self.names if n not in gone]

    def begin(self, name: str) -> None:
        """Notes that the kernel is being measured."""
        self._begun.add(name)

    def observe(self, name: str, ratio: float) -> None:
        """A measured time over that of what runs now."""
        if name in self.prices:
            self.seen[name] = math.log(ratio)

    def drop(self, name: str) -> None:
        """Notes that the kernel cannot be measured."""
        self._dropped.add(name)

    @abstractmethod
    def suggest(self) -> str | None:
        """The kernel to measure next; None where none promises enough."""


def parameters(name: str) -> tuple[str, dict[str, object]]:
    """Kind and parameters of a kernel's name; those by place are called by their place."""
    kind, _, rest = name.partition("(")
    try:
        call = ast.parse(f"f({rest.removesuffix(')')})", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return name, {}
    if not isinstance(call, ast.Call):
        return name, {}
    given = [
        *((str(k), v) for k, v in enumerate(call.args)),
        *((k.arg, k.value) for k in call.keywords),
    ]
    return kind, {
        str(n): v.value if isinstance(v, ast.Constant) else ast.unparse(v) for n, v in given
    }
