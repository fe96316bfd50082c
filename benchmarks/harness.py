"""Paired timing of two calls in one process: interleaved, alternating order, median of the ratios
with a distribution-free confidence interval.

Wall time of one call says little on a shared machine; the ratio of two calls made within
milliseconds of each other says much more. Pin the process to the cores under test from outside
(`taskset -c 0,1 python -m benchmarks.cpu_models`) and leave frequency scaling fixed where that is
possible. With one thread, `clock="cpu"` counts the calling thread's CPU time and so ignores what
other processes take; with more threads only wall time counts everything."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CLOCKS: dict[str, Callable[[], int]] = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


@dataclass(frozen=True)
class Paired:
    """`ours`, `theirs`: median milliseconds a call.

    `ratio`: median of ours / theirs over the pairs; `low`, `high`: its 95 % confidence interval.
    """

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the interval between order statistics that holds the median with 95 %
    confidence, whatever the distribution.
    """
    ordered = sorted(values)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return statistics.median(ordered), ordered[low], ordered[high]


def compare(
    ours: Callable[[int], object], theirs: Callable[[int], object], *, seconds: float = 4.0, min_pairs: int = 15, warmup: int = 3, min_sample: float = 0.004,
    clock: str = "wall",
) -> Paired:  # fmt: skip
    """Times `ours(k)` against `theirs(k)`; k counts calls, so that the callee can rotate its
    inputs.

    seconds: to spend in all (at least `min_pairs` pairs); warmup: untimed calls of each;
    min_sample: calls are repeated until a sample takes this long (s)."""
    now = CLOCKS[clock]
    began = time.perf_counter()
    for k in range(warmup):
        ours(k)
        theirs(k)

    def sample(call: Callable[[int], object], first: int) -> float:
        start = now()
        for k in range(first, first + repeats):
            call(k)
        return (now() - start) / 1e6 / repeats

    repeats = 1
    once = max(sample(ours, 0), sample(theirs, 0), 1e-4) / 1e3
    repeats = max(1, math.ceil(min_sample / once))
    a: list[float] = []
    b: list[float] = []
    while len(a) < min_pairs or time.perf_counter() - began < seconds:
        first = len(a) * repeats
        if len(a) % 2:
            a.append(sample(ours, first))
            b.append(sample(theirs, first))
        else:
            b.append(sample(theirs, first))
            a.append(sample(ours, first))
    ratio, low, high = median_interval([x / y for x, y in zip(a, b, strict=True)])
    return Paired(statistics.median(a), statistics.median(b), ratio, low, high, len(a))
