"""Timing: samples in random order, medians of paired ratios.

Wall time of one call says little on a shared machine. The ratio of two samples taken within
milliseconds of each other says much more. So every round takes one sample of each variant, in an
order drawn anew, and what is reported is the median over the rounds of each peer's time over ours
(above 1: ours is faster), with a 95 % interval that assumes no distribution.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: Gives the microseconds of one call.
Sampler = Callable[[], float]
CLOCKS: dict[str, Callable[[], int]] = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}
OURS = "ours"


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the interval between order statistics that holds the median with 95 %
    confidence, whatever the distribution.
    """
    ordered = sorted(values)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return statistics.median(ordered), ordered[low], ordered[high]


@dataclass
class Times:
    """us: median microseconds of each variant. ratios: each peer's time over ours: median, low,
    high. failed: why a variant has no time.
    """

    us: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The fastest peer."""
        return min(self.ratios, key=lambda name: self.ratios[name][0], default=None)

    def __str__(self) -> str:
        parts = [f"{name} {us:.2f} us" for name, us in self.us.items()]
        if self.best is not None:
            middle, low, high = self.ratios[self.best]
            parts.append(f"{self.best} / {OURS} {middle:.3f} [{low:.3f}, {high:.3f}]")
        return ", ".join(parts + [f"{name}: {why}" for name, why in self.failed.items()])


def interleaved(
    samplers: Mapping[str, Sampler], *, rounds: int = 15, seconds: float = 0.0, seed: int = 0
) -> Times:
    """Rounds until there are so many, and until so much time has passed."""
    order, shuffle = list(samplers), random.Random(seed).shuffle
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    began = time.perf_counter()
    for name in order:
        samplers[name]()
    while len(samples[order[0]]) < rounds or time.perf_counter() - began < seconds:
        shuffle(order)
        for name in order:
            samples[name].append(samplers[name]())
    ratios = {
        name: median_interval(
            [theirs / ours for theirs, ours in zip(taken, samples[OURS], strict=True)]
        )
        for name, taken in samples.items()
        if name != OURS and OURS in samples
    }
    return Times({name: statistics.median(taken) for name, taken in samples.items()}, ratios)


def host(
    call: Callable[[int], object], *, least: float = 0.004, clock: str = "wall", warmup: int = 3
) -> Sampler:
    """Samples of `call(k)` on the host's clock. k counts calls, so that the callee can rotate its
    inputs; least: seconds that a sample takes at least. With one thread, `clock="cpu"` counts the
    calling thread's time and so ignores what other processes take.
    """
    now, count = CLOCKS[clock], 0

    def sample(repeats: int) -> float:
        nonlocal count
        start = now()
        for k in range(count, count + repeats):
            call(k)
        count += repeats
        return (now() - start) / 1e3 / repeats

    sample(warmup)
    repeats = calls_for(sample(3), least)
    return lambda: sample(repeats)


def calls_for(us: float, least: float) -> int:
    """How many calls of so many microseconds take so many seconds at least."""
    return max(1, math.ceil(least * 1e6 / max(us, 0.1)))


def run_sampler(run: Callable[[], object], *, least: float = 0.03, alone: bool = False) -> Sampler:
    """The same of a run that has its inputs. alone: it has one thread, whose time counts."""
    return host(lambda _: run(), least=least, clock="cpu" if alone else "wall")
