"""Tuning on many workers, replayed: what `tune --executor` does with times that one worker took.

    python -m benchmarks.fleet [--recording FILE] [--workers 1 4 1000] [--devices 20]
    python -m benchmarks.fleet --record MODEL --threads 2      # records anew: minutes

The replay runs the project's own dispatcher (`tuning/fleet.py`), its proposers and its database,
with workers that take the recorded seconds and give the recorded answers, on a clock of their own
to which the dispatcher's processor time is added. With `--devices` the workers have so many kinds
of devices, one in twenty is lost and comes back a minute later, and one in fifty takes ten times as
long as the others.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.cuda.models import input_shapes
from tests.support.synthetic_crew import SyntheticCrew
from tracea_onnx.codegen import tuning_records
from tracea_onnx.codegen.tuning_records import Measured, Reported, Verdict
from tracea_onnx.support import discovery, machine
from tracea_onnx.tuning import fleet, proposers, station
from tracea_onnx.tuning.measure import Budget, Decision, Described, Launch, Tuned, Undecided
from tracea_onnx.tuning.search import WORTH, History, Kind
from tracea_onnx.tuning.station import Answer, Job, Place

RECORDING = Path(__file__).parent / "recordings" / "mobilenet_v2.json.gz"


# --- recording ------------------------------------------------------------------------------------
def record(name: str, threads: int, file: Path) -> None:
    """Every kernel of every launch on this machine's CPU, all launches at a time."""
    model = discovery.module("models", name).build()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_DATA_HOME"] = folder
        shapes = {k: list(v) for k, v in input_shapes(model, 1, 128).items()}
        data = model.SerializeToString()
        job = Job("", shapes, "cpu", 0, threads)
        place = Place("here")
        began = time.perf_counter()
        answer = station.ask(place, job, data, 600, "opened")
        opened = time.perf_counter() - began
        device, (graph, *_) = answer.value
        outcomes: dict[str, dict[str, Any]] = {kind.key: {} for kind in graph.kinds}
        questions: list[tuple[int, float]] = []

        def ask(trial: Mapping[str, str]) -> Mapping[str, Any]:
            began = time.perf_counter()
            answer = station.ask(place, job, data, 600, "tried", 0, trial)
            assert not answer.failed, answer.failed
            measured = sum(found is not None for found in answer.value.values())
            questions.append((measured, time.perf_counter() - began))
            print(f"{measured} kernels in {questions[-1][1]:.2f} s", flush=True)
            return dict(answer.value)

        names = {kind.key: sorted(kind.prices) for kind in graph.kinds}
        ask({graph.kinds[0].key: names[graph.kinds[0].key][-1]})  # prepares what later ones need
        questions.clear()
        for row in itertools.zip_longest(*names.values()):
            trial = {key: name for key, name in zip(names, row, strict=True) if name}
            for key, found in ask(trial).items():
                outcomes[key][trial[key]] = found
            few = dict(random.Random(len(questions)).sample(sorted(trial.items()), len(trial) // 8))
            ask(few)
        last = record_last(place, job, data, outcomes)
        station.end(place)
    file.parent.mkdir(exist_ok=True)
    written = {
        "date": str(date.today()), "machine": machine.processor(), "model": name,
        "threads": threads, "device": asdict(device), "opened": opened, **last,
        "questions": questions,
        "kinds": [
            {**asdict(kind), "prices": dict(kind.prices), "outcomes": outcomes[kind.key]}
            for kind in graph.kinds
        ],
    }  # fmt: skip
    text = json.dumps(written, indent=None, separators=(",", ":")) + "\n"
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def record_last(
    place: Place, job: Job, model: bytes, outcomes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Seconds of the last measurement's questions, and what gains alone."""
    best = {
        key: min((o[1] / o[0], n) for n, o in found.items() if isinstance(o, list | tuple))
        for key, found in outcomes.items()
    }
    chosen = {key: name for key, (ratio, name) in best.items() if ratio < WORTH}
    began = time.perf_counter()
    first = station.ask(place, job, model, 900, "decided", 0, chosen, list(outcomes)).value
    decided = time.perf_counter() - began
    gains: dict[str, bool] = {}
    alone: list[float] = []
    for key, name in first.chosen.items() if isinstance(first, Undecided) else ():
        began = time.perf_counter()
        gains[key] = station.ask(place, job, model, 900, "gains", 0, key, name).value
        alone.append(time.perf_counter() - began)
    return {"decided": decided, "gains": gains, "alone": alone}


# --- replay ---------------------------------------------------------------------------------------
class Recorded:
    """What one worker took."""

    def __init__(self, file: Path) -> None:
        data = json.loads(gzip.decompress(file.read_bytes()))
        self.opened, self.decided, self.gains = data["opened"], data["decided"], data["gains"]
        self.alone = statistics.median(data["alone"] or [0.0])
        self.said = f"{data['model']}, {data['threads']} threads, {data['machine']}, {data['date']}"
        count, seconds = np.array(data["questions"], float).T
        slope, base = np.polyfit(count, seconds, 1)
        #: Seconds of a question, and for each kernel that it names.
        self.base, self.each = max(float(base), 0.0), max(float(slope), 0.0)
        self.device = Reported(**data["device"])
        self.outcomes = {
            kind["key"]: {n: _outcome(o) for n, o in kind.pop("outcomes").items()}
            for kind in data["kinds"]
        }
        self.graph = Described([Kind(**kind) for kind in data["kinds"]], 0, {})
        every = itertools.chain.from_iterable(found.values() for found in self.outcomes.values())
        self.kernels = sum(outcome is not None for outcome in every)


def _outcome(found: Any) -> Any:
    return tuple(found) if isinstance(found, list) else Verdict(found) if found else None


class Device:
    """One of a kind: it takes `slow` times what was recorded, give or take a tenth."""

    def __init__(self, recorded: Recorded, on: Reported, slow: float, seed: int) -> None:
        self._recorded, self._on, self._slow = recorded, on, slow
        self._random = random.Random(seed)

    def __call__(self, what: str, arguments: Sequence[Any]) -> tuple[float, Answer]:
        r = self._recorded
        factor = self._slow * math.exp(self._random.gauss(0, 0.1))
        if what == "opened":
            return r.opened * factor, Answer((self._on, [r.graph]))
        if what == "gains":
            return r.alone * factor, Answer(r.gains.get(arguments[1], False))
        _, named, *_ = arguments
        if what == "tried":
            found = {key: r.outcomes[key][name] for key, name in named.items()}
            count = sum(one is not None for one in found.values())
            return (r.base + r.each * count if count else 0.01) * factor, Answer(found)
        times = {one: r.outcomes[one[0]][one[1]] for one in named.items()}
        if len(arguments) < 4 and r.gains:
            return r.decided * factor, Answer(Undecided(dict(named), times))
        kept = {k: Measured(n, times[k, n][1], times[k, n][0], [{}]) for k, n in named.items()}
        launches = [Launch(k.words, k.count, 1.0, 1.0, named.get(k.key, "")) for k in r.graph.kinds]
        return r.decided * factor, Answer(Decision(1.0, 1.0, launches, kept, times))


def replay(
    recorded: Recorded, crew: SyntheticCrew, proposer: str
) -> tuple[list[Tuned], float, float, int]:
    """What was found, seconds of the fleet, seconds of the dispatcher's processor, lines said."""
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder
        began = time.process_time()
        history = partial(History, resume=False)
        made = fleet.Fleet(
            crew, Job("", {}, "cpu", 0, 0), b"", proposers.make(proposer), history, said.append
        )
        found = made.tune(Budget(math.inf))
        took = time.process_time() - began
        if proposer == "grid":
            _complete(recorded, found)
    return found, crew.now(), took, sum("did not answer" in line for line in said)


def _complete(recorded: Recorded, found: Sequence[Tuned]) -> None:
    """Every kernel was recorded for every kind of device, with its own answer."""
    for one in found:
        trials = tuning_records.trials(one.device)
        made = {(t.launch, t.kernel) for t in trials}
        assert len(made) == recorded.kernels == one.measured, (len(made), one.measured)
        again = Counter((t.launch, t.kernel) for t in trials)
        assert max(again.values()) <= 2  # the second time in the last measurement


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--record", metavar="MODEL", help="of the zoo")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--recording", type=Path, default=RECORDING)
    p.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 256, 1000])
    p.add_argument("--devices", type=int, default=20)
    p.add_argument("--proposers", nargs="+", default=["grid", "bayesian"])
    args = p.parse_args()
    if args.record:
        record(args.record, args.threads, args.recording)
        return 0
    recorded = Recorded(args.recording)
    print(
        f"{recorded.said}: {recorded.kernels} kernels of {len(recorded.graph.kinds)} kinds of "
        f"launch; ready in {recorded.opened:.1f} s, a question {recorded.base:.2f} s and "
        f"{1000 * recorded.each:.0f} ms a kernel; at last {recorded.decided:.1f} s, and "
        f"{recorded.alone:.1f} s for each kernel alone"
    )
    for proposer in args.proposers:
        first = math.nan
        for count in args.workers:
            crew = SyntheticCrew(real=True)
            for k in range(count):
                crew.hire(Device(recorded, recorded.device, 1.0, k))
            found, seconds, took, _ = replay(recorded, crew, proposer)
            first = seconds if math.isnan(first) else first
            asked = sum(w.asked.count("tried") for w in crew.hired.values())
            print(
                f"{proposer}, {count} workers: {seconds:.1f} s ({first / seconds:.2f}x), "
                f"{found[0].measured} kernels in {asked} questions, {found[0].kept} kept; "
                f"dispatcher {took:.1f} s"
            )
    most = max(args.workers)
    for count in (args.devices, most):
        crew, r = SyntheticCrew(real=True), random.Random(0)
        for k in range(count):
            kind = k % args.devices
            on = Reported(f"device {kind}", "cpu", f"device {kind}", "", recorded.device.version)
            slow = 1 + kind / args.devices
            slow *= 10 if count == most and r.random() < 0.02 else 1
            goes = r.uniform(1, 60) if count == most and r.random() < 0.05 else math.inf
            crew.hire(Device(recorded, on, slow, k), goes=goes)
            if goes < math.inf:
                crew.hire(Device(recorded, on, slow, -k), comes=goes + 60)
        found, seconds, took, lost = replay(recorded, crew, "grid")
        print(
            f"{args.devices} kinds of device, {count} workers: {seconds:.1f} s, {len(found)} "
            f"records of {sum(one.measured for one in found)} kernels, {lost} questions lost and "
            f"asked again; dispatcher {took:.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
