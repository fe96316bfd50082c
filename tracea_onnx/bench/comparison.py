"""A model on the provider beside its peers: all results are compared, then all are timed in random
order.

Results are compared with those of ONNX Runtime without its optimisations (`verify/verification.py`
has the bounds). What differs is not timed.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tracea_onnx.bench import batches, program, sampling
from tracea_onnx.bench.plot import Picture
from tracea_onnx.bench.program import Program
from tracea_onnx.bench.sampling import OURS
from tracea_onnx.codegen import backend as backends
from tracea_onnx.errors import UsageError
from tracea_onnx.model_io import model_file
from tracea_onnx.support import tables
from tracea_onnx.support.machine import machine
from tracea_onnx.verify import verification

LATENCY, THROUGHPUT = "latency", "throughput"
MODES = (LATENCY, THROUGHPUT)
Ratio = tuple[float, float, float]
#: Rounds at least; where they take longer than so many times the seconds that were asked for less,
#: but no less than the fewest.
_ROUNDS, _PATIENCE, _FEWEST = 15, 4, 5
#: Share of the time that a program may wait for a core.
_BUSY = 0.05


@dataclass(frozen=True)
class Settings:
    """sessions: how many run at once, of so many `threads` each. seconds: of timing for each batch
    at least. runs: samples of each program at least. clock: of single runs, as
    `sampling.CLOCKS` calls them. pythons: of peers that have one of their own.
    """

    backend: str
    mode: str = LATENCY
    sessions: int = 1
    threads: int = 1
    seconds: float = 5.0
    runs: int | None = None
    clock: str = "wall"
    seed: int = 0
    pythons: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        sessions = f"{self.sessions} session{'s' * (self.sessions > 1)}"
        said = f"{self.mode}, {sessions} of {self.threads} thread{'s' * (self.threads > 1)} each"
        return said if self.clock == "wall" else f"{said}, processor time"


@dataclass
class Measured:
    """One program at one batch.

    us: median of the samples, each the time by the runs of all sessions. low, high: the 5th and
    95th of 100 single runs. ratio: its time over ours, with a 95 % interval. load: seconds. memory:
    bytes that the process has more behind the first runs than before it loaded the model, peak:
    the most that it ever had. waited: the share of the time in which its threads waited for a core.
    difference: from the reference, relative to the output's largest
    value. wrong: what differs by more than the bounds; then nothing was timed. failed: why there
    is nothing else.
    """

    version: str = ""
    note: str = ""
    load: float = 0.0
    memory: int | None = None
    device_memory: int | None = None
    peak: int | None = None
    difference: float = 0.0
    us: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: Ratio | None = None
    waited: float = 0.0
    wrong: str = ""
    failed: str = ""


@dataclass
class Row:
    """Of one batch; None where the model was run as it is. name: of the model among several."""

    batch: int | None
    inputs: dict[str, list[int]]
    programs: dict[str, Measured]
    name: str = ""

    @property
    def per_run(self) -> int:
        """Items."""
        return self.batch or 1

    @property
    def title(self) -> str:
        """Empty where one model was run as it is."""
        return self.name if self.batch is None else f"batch {self.batch}"


@dataclass(frozen=True)
class Task:
    """The task that all programs run. fault: what of their results is wrong, or "". more: of the
    request to a program. operations: floating-point ones of a run; most: GFLOP/s that no program
    can reach.
    """

    model: Path
    fed: Mapping[str, Any]
    expected: Sequence[Any]
    fault: Callable[[Sequence[Any]], str]
    batch: int | None = None
    name: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    operations: float = 0.0
    most: float = math.inf


@dataclass
class Comparison:
    """Result of `compare`. unavailable: peers that this machine does not have, and why."""

    model: str
    settings: Settings
    rows: list[Row] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    date: str = field(default_factory=lambda: date.today().isoformat())
    machine: str = field(default_factory=machine)

    def _all(self) -> Iterator[tuple[Row, str, Measured]]:
        for row in self.rows:
            for name, found in row.programs.items():
                yield row, name, found

    @property
    def wrong(self) -> list[str]:
        """Programs whose result is wrong, ours first."""
        found = [
            (name != OURS, f"{_titled(name, row)} is WRONG: {m.wrong}")
            for row, name, m in self._all()
            if m.wrong
        ]
        return [text for _, text in sorted(found)]

    @property
    def failed(self) -> list[str]:
        """Programs that do not run the model, ours first."""
        found: dict[tuple[bool, str, str], list[str]] = {}
        for row, name, m in self._all():
            if m.failed:
                found.setdefault((name != OURS, name, m.failed), []).append(row.title)
        return [
            f"{name}{' at ' * bool(titles[0])}{', '.join(titles)} failed: {why}"
            for (_, name, why), titles in sorted(found.items())
        ]

    @property
    def ok(self) -> bool:
        """Whether all results were right, and at each batch ours and a peer were timed."""
        return not self.wrong and all(
            OURS in (timed := [n for n, m in row.programs.items() if m.us is not None])
            and len(timed) > 1
            for row in self.rows
        )

    def to_json(self) -> dict[str, Any]:
        """JSON of `bench --json`."""
        return {**asdict(self), "ok": self.ok, "wrong": self.wrong, "failed": self.failed}

    def picture(self) -> Picture | None:
        """Each batch beside each peer; None where nothing was timed."""
        rows = [row for row in self.rows if any(m.ratio for m in row.programs.values())]
        peers = list(dict.fromkeys(n for row in rows for n, m in row.programs.items() if m.ratio))
        if not rows:
            return None
        return Picture(
            f"{self.model}: times as fast as each peer",
            f"{self.settings}; {self.date}, {self.machine.partition(';')[0]}",
            tuple(row.title or "as it is" for row in rows),
            {
                peer: tuple(m.ratio if (m := row.programs.get(peer)) else None for row in rows)
                for peer in peers
            },
        )

    def verdicts(self) -> Iterator[str]:
        """Ours beside the peers of each row, in words."""
        for row in self.rows:
            yield from _verdict(row)

    def text(self) -> list[str]:
        """Wrong results first, then the verdict, then a table for each batch."""
        lines = [*self.wrong, *(f for f in self.failed if f.startswith(OURS))]
        lines += self.verdicts()
        lines += [f for f in self.failed if not f.startswith(OURS)]
        lines += [f"{name} was left out: {why}" for name, why in self.unavailable.items()]
        waited = max((m.waited for _, _, m in self._all()), default=0.0)
        if waited > _BUSY and self.settings.clock == "wall":
            lines.append(
                f"other work on this machine: a program waited {waited:.0%} of its time for a core,"
                " so these figures say little; with one thread --clock cpu does not count that"
            )
        lines += ["", f"{self.model}, {self.settings}", self.machine]
        for row in self.rows:
            shapes = ", ".join(
                f"{k} {'x'.join(map(str, v)) or 'scalar'}" for k, v in row.inputs.items()
            )
            lines += ["", f"{row.title}{': ' * bool(row.title)}{shapes}"]
            timed = [(n, m) for n, m in row.programs.items() if m.us is not None]
            if timed:
                lines += tables.table(
                    [
                        _HEAD[self.settings.mode],
                        *(_cells(self.settings.mode, row, *x) for x in timed),
                    ]
                )
            lines += [f"  {n}: {m.version}{f'; {m.note}' if m.note else ''}" for n, m in timed]
        return lines


def _titled(name: str, row: Row) -> str:
    return f"{name} at {row.title}" if row.title else name


def _verdict(row: Row) -> Iterator[str]:
    """Ours beside each peer, in words."""
    head = f"{row.title}: " if row.title else ""
    said = []
    for name, m in row.programs.items():
        if m.ratio is not None:
            middle, low, high = m.ratio
            if low <= 1 <= high:
                said.append(f"as fast as {name} within the spread [{low:.3f}, {high:.3f}]")
            else:
                said.append(f"{middle:.3f} times as fast as {name} [{low:.3f}, {high:.3f}]")
    if said:
        yield f"{head}ours is {'; '.join(said)}"


_SPREAD, _MORE = ("p5", "p95"), ("/ ours", "95 %", "load s", "memory MiB", "peak MiB", "difference")
_HEAD = {
    LATENCY: ("", "ms", *_SPREAD, *_MORE),
    THROUGHPUT: ("", "a second", "ms of a run", *_SPREAD, *_MORE),
}


def _cells(mode: str, row: Row, name: str, m: Measured) -> tuple[str, ...]:
    assert m.us is not None and m.low is not None and m.high is not None
    rate = [f"{row.per_run * 1e6 / m.us:.1f}"] if mode == THROUGHPUT else []
    spread = [f"{v / 1e3:.3f}" for v in (m.us, m.low, m.high)]
    ratio = (
        ["1", ""]
        if m.ratio is None
        else [f"{m.ratio[0]:.3f}", "[{1:.3f}, {2:.3f}]".format(*m.ratio)]
    )
    memory = m.memory if m.device_memory is None else m.device_memory
    sizes = ["-" if v is None else f"{v / 2**20:.1f}" for v in (memory, m.peak)]
    return (name, *rate, *spread, *ratio, f"{m.load:.2f}", *sizes, f"{m.difference:.1e}")


def check_peers(peers: Sequence[str], settings: Settings) -> None:
    """Raises UsageError for one that there is not, and where there is none."""
    known = f"choose from {', '.join(program.PEERS)}"
    for name in (*peers, *(p for p in settings.pythons if p != OURS)):
        if name not in program.PEERS:
            raise UsageError(f"there is no peer '{name}'", known)
    if not peers:
        raise UsageError("there is no peer to compare with", known)


def compare(
    model: Path,
    peers: Sequence[str],
    settings: Settings,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, Any] | None = None,
    batch: Sequence[int] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Measures the model beside the peers, at each batch.

    Raises ModelError, VerificationError (the model does not run on any input), UsageError (an
    unknown peer, a batch of a model whose batch is fixed).
    """
    check_peers(peers, settings)
    source = model_file.load(model)
    found = Comparison(model.name, settings)
    first = verification.measure(source, seed=settings.seed, values=values, shapes=shapes)
    references: list[tuple[int | None, verification.Reference]] = [(None, first)]
    if batch:
        sizes, symbol = _free(source, first, values)
        references = [
            (b, verification.measure(
                source, seed=settings.seed,
                shapes=batches.shapes_at(source.model, {**sizes, symbol: b}),
            ))
            for b in batch
        ]  # fmt: skip
    for b, r in references:
        task = Task(model, r.fed, r.expected, partial(_fault, r), b)
        found.rows.append(measure(task, peers, settings, found.unavailable, on_progress))
    return found


def _free(
    source: model_file.Source, first: verification.Reference, values: Mapping[str, Any] | None
) -> tuple[batches.Sizes, str]:
    """The sizes of the model's free dims in the first run, and the name of its batch."""
    symbol = batches.batch_symbol(source.model)
    if symbol is None:
        raise UsageError(
            "--batch is for models whose inputs have one free first axis, and this one's is fixed",
            "export it with a dynamic batch, or leave out --batch",
        )
    if values is not None:
        raise UsageError("--load-inputs has one batch", "leave out --batch or --load-inputs")
    return batches.sizes_of(source.model, batches.shapes_of(first.fed)), symbol


def measure(
    task: Task,
    peers: Sequence[str],
    settings: Settings,
    unavailable: dict[str, str],
    on_progress: Callable[[str], None],
) -> Row:
    """Loads, compares and times all programs; the unavailable ones are left out, and added to."""
    shapes = {k: list(v) for k, v in batches.shapes_of(task.fed).items()}
    row, device = Row(task.batch, shapes, {}, task.name), not backends.get(settings.backend).on_host
    head = f"{row.title}: ".removeprefix(": ")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracea-bench-")))
        request = {
            "model": str(task.model.resolve()),
            "inputs": str(program.inputs_file(folder, task.fed)),
            "names": list(task.fed),
            "shapes": [list(np.shape(v)) for v in task.expected],
            "backend": settings.backend,
            "threads": settings.threads,
            "sessions": settings.sessions,
            "clock": settings.clock,
            **task.more,
        }
        running: dict[str, Program] = {}
        for name in (OURS, *peers):
            if name in unavailable:
                continue
            on_progress(f"{head}{name} loads the model")
            row.programs[name] = measured = Measured()
            asked = {
                **request,
                "device": device and name not in program.ON_HOST,
                "outputs": str(folder / f"{name}.npz"),
            }
            try:
                started = stack.enter_context(Program(name, asked, settings.pythons.get(name)))
                measured.version, measured.note = started.version, started.note
                measured.load, measured.memory = started.load, started.memory
                measured.device_memory = started.device_memory
                _compare(task, measured, started)
            except program.Unavailable as e:
                unavailable[name] = str(e)
                del row.programs[name]
            except program.Failed as e:
                measured.failed = str(e)
            else:
                if not measured.wrong:
                    running[name] = started
        if running:
            on_progress(f"{head}timing {', '.join(running)}")
            _time(task, row, running, settings)
    return row


def _compare(task: Task, measured: Measured, started: Program) -> None:
    """The results of the last run with those that are right."""
    results = started.results()
    measured.difference = max(measured.difference, _difference(task.expected, results))
    measured.wrong = task.fault(results)
    if measured.wrong:
        started.close()


def _time(task: Task, row: Row, running: Mapping[str, Program], settings: Settings) -> None:
    """Times what runs. A program that stops on the way, or whose last result is wrong, has no
    figures.
    """
    left = dict(running)
    while left:
        try:
            began = time.perf_counter()
            for p in left.values():
                p.sample()
            fit = int(_PATIENCE * settings.seconds / (time.perf_counter() - began))
            times = sampling.interleaved(
                {name: p.sample for name, p in left.items()},
                rounds=settings.runs or max(_FEWEST, min(_ROUNDS, fit)),
                seconds=settings.seconds,
                seed=settings.seed,
            )
            break
        except program.Failed as e:
            stopped = next(n for n, p in left.items() if not p.alive)
            row.programs[stopped].failed = str(e)
            del left[stopped]
    else:
        return
    for name, p in left.items():
        measured = row.programs[name]
        try:
            _compare(task, measured, p)
        except program.Failed as e:
            measured.failed = str(e)
            continue
        fast = task.operations / times.us[name] / 1e3  # GFLOP/s
        if fast > task.most:
            measured.wrong = (
                f"{fast:.0f} GFLOP/s are more than this device reaches, {task.most:.0f} at most"
            )
        if not measured.wrong:
            measured.us, measured.peak = times.us[name], p.peak
            measured.waited = statistics.fmean(p.waited)
            measured.low, measured.high = (float(v) for v in np.percentile(p.taken, (5, 95)))
    for name in left:
        if row.programs[name].us is not None and row.programs.get(OURS, Measured()).us is not None:
            row.programs[name].ratio = times.ratios.get(name)


def _fault(reference: verification.Reference, results: Sequence[Any]) -> str:
    """Description of results that are out of bounds, or ""."""
    if len(results) != len(reference.names):
        return f"it gives {len(results)} outputs, not {len(reference.names)}"
    for o in verification.compared(reference, results):
        if not o.ok:
            return f"output '{o.name}' differs by {o.max_abs:.3g} {o.note}".rstrip()
    return ""


def _difference(expected: Sequence[Any], results: Sequence[Any]) -> float:
    """The largest of an output, relative to its largest value."""
    worst = 0.0
    for a, b in zip(expected, results, strict=False):
        if getattr(a, "dtype", np.dtype(object)).kind == "f" and np.shape(a) == b.shape and a.size:
            wide = a.astype(np.float64)
            apart = np.abs(wide - b.astype(np.float64))
            worst = max(worst, float(np.nanmax(apart, initial=0) / (np.nanmax(np.abs(wide)) or 1)))
    return worst
