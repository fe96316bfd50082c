"""Finding the fastest of some kernels by measuring few of them: Bayesian optimisation with the cost
model as its prior.

The logarithm of a kernel's time over that of what runs now is taken for normal: its mean is that of
its price over the lowest, kernels of one kind err alike. What was measured narrows all of them down
(a Gaussian process), and next is the one that can be expected to improve most on the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

#: By how much prices err, as a standard deviation of logarithms: all alike, those of one kind
#: alike, each by itself; the same for a measurement.
_ALL, _KIND, _OWN, _NOISE = 0.2, 0.08, 0.06, 0.01
#: Prices, as multiples of the lowest, and kernels that may be worth measuring.
_WORST, _MOST = 1.4, 40
#: The improvement (of a logarithm) below which none is looked for.
_LEAST = 0.003


class Search:
    """prices: of each kernel by name, a kind and its parameters as in `HopperTile(bm=128, ...)`."""

    def __init__(self, prices: Mapping[str, float]) -> None:
        self.names = sorted(
            (n for n in prices if prices[n] <= _WORST * min(prices.values())),
            key=lambda n: (prices[n], n),
        )[:_MOST]
        self.seen: dict[str, float] = {}
        self._dropped: set[str] = set()
        self._mean = np.log([prices[n] / prices[self.names[0]] for n in self.names])
        kinds = np.array([n.partition("(")[0] for n in self.names])
        self._covariance = (
            _ALL**2
            + _KIND**2 * (kinds[:, None] == kinds[None, :])
            + _OWN**2 * np.eye(len(self.names))
        )

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

    def observe(self, name: str, ratio: float) -> None:
        """A measured time over that of what runs now."""
        self.seen[name] = math.log(ratio)

    def drop(self, name: str) -> None:
        """It cannot be measured."""
        self._dropped.add(name)

    def suggest(self) -> str | None:
        """What to measure next; None where nothing promises enough."""
        if not self.seen:
            return next((n for n in self.names if n not in self._dropped), None)
        at = [k for k, n in enumerate(self.names) if n in self.seen]
        y = np.array([self.seen[self.names[k]] for k in at])
        among = self._covariance[np.ix_(at, at)] + _NOISE**2 * np.eye(len(at))
        weights = np.linalg.solve(among, self._covariance[at, :]).T
        mean = self._mean + weights @ (y - self._mean[at])
        deviation = np.sqrt(
            np.maximum(
                np.diag(self._covariance) - np.sum(weights * self._covariance[:, at], axis=1), 1e-12
            )
        )
        best = min(0.0, y.min())
        improvement = {
            n: _improvement(best - mean[k], deviation[k])
            for k, n in enumerate(self.names)
            if n not in self.seen and n not in self._dropped
        }
        name = max(improvement, key=improvement.__getitem__, default=None)
        return name if name is not None and improvement[name] >= _LEAST else None


def _improvement(gain: float, deviation: float) -> float:
    """What max(0, X) is expected to be for a normal X with this mean and standard deviation."""
    z = gain / deviation
    return gain * 0.5 * (1 + math.erf(z / math.sqrt(2))) + deviation * math.exp(
        -z * z / 2
    ) / math.sqrt(2 * math.pi)
