"""Timing that the benchmarks share: the sampling of `tracea_onnx/bench/sampling.py`, CUDA graphs,
JSON. Results are compared before anything is timed. Pin the process from outside where other work
runs (`taskset -c 0,1`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.cuda import runner as R
from tracea_onnx.bench.sampling import CLOCKS as CLOCKS
from tracea_onnx.bench.sampling import OURS as OURS
from tracea_onnx.bench.sampling import Sampler as Sampler
from tracea_onnx.bench.sampling import Times as Times
from tracea_onnx.bench.sampling import host as host
from tracea_onnx.bench.sampling import interleaved as interleaved
from tracea_onnx.bench.sampling import median_interval as median_interval
from tracea_onnx.bench.sampling import run_sampler as run_sampler
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import cuda_harness
from tracea_onnx.support.machine import machine

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
