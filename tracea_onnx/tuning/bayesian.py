"""Finding the fastest of some kernels by measuring few of them: Bayesian optimisation with the cost
model as its prior.

The logarithm of a kernel's time over that of what runs now is taken for a Gaussian process. Its
mean is that of the kernel's price over the lowest. Kernels of one kind err alike, the more the
nearer their parameters are (Matern 5/2: numbers by their logarithms, other values by being the same
or not). What was measured narrows all of them down, and so does what similar launches and devices
have measured, the less the farther they are. Next is the one with the largest expected improvement
on the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracea_onnx.tuning.proposer import Hint, Proposer, parameters

#: By how much prices err, as a standard deviation of logarithms: all alike, those of one kind
#: alike, neighbours alike, each by itself; the same for a measurement, and for a hint at a distance
#: of 0 and of 1.
_ALL, _KIND, _NEAR, _OWN, _NOISE, _HINT, _FAR = 0.2, 0.08, 0.05, 0.035, 0.01, 0.03, 0.15
#: The distance in the space of parameters at which neighbours say little of each other: so many
#: doublings of a number; another value that is no number counts as one doubling and a half.
_LENGTH, _OTHER = 1.5, 1.5
#: The improvement (of a logarithm) below which none is looked for.
_LEAST = 0.003
#: Hints that are taken: the nearest.
_HINTS = 64


class Bayesian(Proposer):
    """As above."""

    def __init__(self, prices: Mapping[str, float], hints: Sequence[Hint] = ()) -> None:
        super().__init__(prices, hints)
        self._mean = np.log([prices[n] / prices[self.first] for n in self.names])
        self._covariance = _covariance(self.names)
        at = {n: k for k, n in enumerate(self.names)}
        near = sorted((h for h in hints if h.name in at), key=lambda h: h.distance)[:_HINTS]
        self._hints = [(at[h.name], math.log(h.ratio), _HINT + _FAR * h.distance) for h in near]

    def suggest(self) -> str | None:  # noqa: D102 -- as of `Proposer`
        if not self.seen and not self._hints:
            return next(iter(self.left), None)
        rows = [(k, self.seen[n], _NOISE) for k, n in enumerate(self.names) if n in self.seen]
        rows += self._hints
        at = [k for k, _, _ in rows]
        y, noise = (np.array([row[c] for row in rows]) for c in (1, 2))
        among = self._covariance[np.ix_(at, at)] + np.diag(noise**2)
        weights = np.linalg.solve(among, self._covariance[at, :]).T
        mean = self._mean + weights @ (y - self._mean[at])
        deviation = np.sqrt(
            np.maximum(
                np.diag(self._covariance) - np.sum(weights * self._covariance[:, at], axis=1), 1e-12
            )
        )
        best = min(0.0, *self.seen.values()) if self.seen else 0.0
        index = {n: k for k, n in enumerate(self.names)}
        improvement = {
            n: _improvement(best - mean[index[n]], deviation[index[n]]) for n in self.left
        }
        name = max(improvement, key=improvement.__getitem__, default=None)
        return name if name is not None and improvement[name] >= _LEAST else None


def _covariance(names: Sequence[str]) -> npt.NDArray[np.float64]:
    points = [parameters(n) for n in names]
    kinds = np.array([kind for kind, _ in points])
    same = kinds[:, None] == kinds[None, :]
    squared = np.zeros((len(names), len(names)))
    for p in sorted({p for _, values in points for p in values}):
        column = [values.get(p) for _, values in points]
        numeric = [
            math.log2(v)
            if isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0
            else None
            for v in column
        ]
        if all(v is not None for v in numeric):
            x = np.array(numeric, float)
            squared += (x[:, None] - x[None, :]) ** 2
        else:
            other = np.array([repr(v) for v in column])
            squared += _OTHER**2 * (other[:, None] != other[None, :])
    d = math.sqrt(5) * np.sqrt(squared) / _LENGTH
    matern = (1 + d + d**2 / 3) * np.exp(-d)
    found: npt.NDArray[np.float64] = (
        _ALL**2 + same * (_KIND**2 + _NEAR**2 * matern) + _OWN**2 * np.eye(len(names))
    )
    return found


def _improvement(gain: float, deviation: float) -> float:
    """Expected improvement: E[max(0, X)] of a normal X with this mean and standard deviation."""
    z = gain / deviation
    return gain * 0.5 * (1 + math.erf(z / math.sqrt(2))) + deviation * math.exp(
        -z * z / 2
    ) / math.sqrt(2 * math.pi)
