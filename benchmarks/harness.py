"""Timing that the benchmarks share: samples in random order, medians of paired ratios, JSON.

Wall time of one call says little on a shared machine. The ratio of two samples taken within
milliseconds of each other says much more. So every round takes one sample of each variant, in an
order drawn anew, and what is reported is the median over the rounds of each peer's time over ours
(above 1: ours is faster), with a 95 % interval that assumes no distribution. Results are compared
before anything is timed. Pin the process from outside where other work runs (`taskset -c 0,1`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cuda import runner as R
from tests.support.sessions import machine
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import cuda_harness

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
    repeats = max(1, math.ceil(least * 1e6 / max(sample(3), 0.1)))
    return lambda: sample(repeats)


def run_sampler(run: Callable[[], object], *, least: float = 0.03) -> Sampler:
    """The same of a run that has its inputs."""
    return host(lambda _: run(), least=least)


# --- kernels on a GPU: replays of CUDA graphs of many calls -----------------------------------


def graph_of(fn: Callable[[int], Any], sets: int, repetitions: int) -> Any:
    """A CUDA graph of `repetitions` calls fn(i), i rotating over the input sets."""
    t = R.torch()
    side = t.cuda.Stream()
    side.wait_stream(t.cuda.current_stream())
    with t.cuda.stream(side):
        for i in range(min(sets, 2)):
            fn(i)
    t.cuda.current_stream().wait_stream(side)
    t.cuda.synchronize()
    graph = t.cuda.CUDAGraph()
    with t.cuda.graph(graph):
        for k in range(repetitions):
            fn(k % sets)
    return graph


def sets_for(bytes_per_set: int, total: int = 160 << 20, most: int = 12) -> int:
    """How many input sets make the rotation larger than the L2 cache."""
    return max(1, min(most, -(-total // max(bytes_per_set, 1))))


def on_device(
    variants: Mapping[str, Callable[[int], Any]], sets: int = 1, *, target_us: float = 2000,
    rounds: int = 9, most: int = 96, least: int = 48, warm: float = 0.0, seed: int = 0,
) -> Times:  # fmt: skip
    """Each variant fn(i) as replays of a CUDA graph of many calls, on inputs rotated past L2.

    least: calls of a graph also where they take up to ten times `target_us`: variants of as many
    calls have the same share of what a replay takes to start. warm: seconds of replays in turn
    before, after which the device's clock is that of a lasting load.
    """
    t = R.torch()
    failed: dict[str, str] = {}
    graphs: dict[str, tuple[Any, int]] = {}
    for name, fn in variants.items():
        try:
            for i in range(2):
                fn(i % sets)
            t.cuda.synchronize()
            begin = time.perf_counter()
            for i in range(4):
                fn(i % sets)
            t.cuda.synchronize()
            once = (time.perf_counter() - begin) / 4 * 1e6
            calls = int(target_us / max(once, 1.0))
            count = max(2, min(most, max(calls, min(least, 10 * calls))))
            count = max(sets, count // sets * sets)
            graphs[name] = graph_of(fn, sets, count), count
        except Exception as e:
            failed[name] = f"{type(e).__name__}: {(str(e) or '?').splitlines()[0][:140]}"
            t.cuda.synchronize()

    def sampler(graph: Any, count: int) -> Sampler:
        def sample() -> float:
            a, b = t.cuda.Event(enable_timing=True), t.cuda.Event(enable_timing=True)
            a.record()
            graph.replay()
            b.record()
            b.synchronize()
            return float(a.elapsed_time(b)) / count * 1e3

        return sample

    begin = time.perf_counter()
    while graphs:
        for graph, _ in graphs.values():
            graph.replay()
        t.cuda.synchronize()
        if time.perf_counter() - begin >= warm:
            break
    found = Times({}, {})
    if graphs:
        found = interleaved({n: sampler(*g) for n, g in graphs.items()}, rounds=rounds, seed=seed)
    found.failed = failed
    return found


# --- what is reported ---------------------------------------------------------------------------


def gpu() -> dict[str, str]:
    """The GPU as a compile request describes it; empty where there is none."""
    try:
        return cuda_harness.properties()
    except (TraceaError, OSError):
        return {}


class Report:
    """Lines to stdout, rows to a JSON file (--json), which is written after each row."""

    def __init__(self, program: str, args: argparse.Namespace, *, device: bool) -> None:
        self.path: Path | None = args.json
        self.wrong: list[str] = []
        settings = {k: v for k, v in vars(args).items() if k != "json"}
        self.content: dict[str, Any] = {
            "program": program,
            "arguments": json.loads(json.dumps(settings, default=str)),
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "gpu": gpu() if device else {},
            "rows": [],
        }
        described = self.content["gpu"].get("device", "")
        print(f"{program}: {self.content['date']}; {self.content['machine']}; {described}")

    def row(self, name: str, text: object, **values: object) -> None:
        print(f"{name}: {text}", flush=True)
        self.content["rows"].append({"name": name, **values})
        if self.path is not None:
            self.path.write_text(json.dumps(self.content, indent=1, default=vars))

    def fail(self, name: str, why: object) -> None:
        """A row without figures: a result that is wrong, or a program that stopped."""
        self.wrong.append(name)
        self.row(name, f"FAIL {why}", failed=str(why))

    def end(self) -> int:
        """The exit code."""
        if self.wrong:
            print(f"{len(self.wrong)} failed: {'; '.join(self.wrong[:20])}")
        return int(bool(self.wrong))


def parser(doc: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, help="write the rows to this file")
    return made


def described(e: Exception) -> str:
    text = str(e).strip() or "?"
    return f"{type(e).__name__}: {text.splitlines()[0][:300]}"


def geometric_mean(ratios: Sequence[float]) -> str:
    if not ratios:
        return "no ratios"
    below = sum(r < 1 for r in ratios)
    return (
        f"geometric mean {statistics.geometric_mean(ratios):.3f}, worst {min(ratios):.3f}, "
        f"best {max(ratios):.3f}, {below} of {len(ratios)} below 1"
    )
