"""Roofline of a model's kernels: measured times below measured ceilings of the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracea_onnx.bench import rates
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records, work
from tracea_onnx.codegen.backend import Backend
from tracea_onnx.ir.graph import Graph
from tracea_onnx.support import machine
from tracea_onnx.tuning import measure

#: Times that a Plan is timed; replays of one on a GPU.
_TURNS, _REPLAYS = 15, 50
#: Operations for each byte below which a launch is drawn as if it did so many.
LEAST = 1 / 32


@dataclass(frozen=True)
class Ceiling:
    """An upper bound of launches. rate: GFLOP/s, or GB/s. holds: the bytes that a level of memory
    holds; None without an end. source: how it is known.
    """

    name: str
    rate: float
    source: str
    holds: int | None = None


@dataclass(frozen=True)
class Point:
    """Launches that are alike: how many a run has, microseconds, bytes and operations of one, and
    what bounds it, with the share of that that it reaches.
    """

    family: str
    what: str
    count: int
    us: float
    moved: int
    operations: float
    bound: str = ""
    share: float = 0.0

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.operations / max(self.moved, 1)

    @property
    def gflops(self) -> float:
        """Operations in a nanosecond."""
        return self.operations / self.us / 1e3

    @property
    def gbytes(self) -> float:
        """Bytes in a nanosecond."""
        return self.moved / self.us / 1e3


@dataclass(frozen=True)
class Roofline:
    """device: in words. arithmetic, memory: ceilings, the fastest memory first. points: the longest
    of a run first.
    """

    device: str
    threads: int
    arithmetic: Ceiling
    memory: tuple[Ceiling, ...]
    points: tuple[Point, ...]

    @property
    def total(self) -> float:
        """Microseconds of all launches of a run."""
        return sum(p.us * p.count for p in self.points)

    def to_json(self) -> dict[str, Any]:
        """JSON of the report."""
        return asdict(self)


def ceilings(backend: Backend, threads: int) -> tuple[Ceiling, tuple[Ceiling, ...]]:
    """Of arithmetic and of memory: measured on the host, by data sheets of a GPU."""
    if not backend.host:
        known = backend.target(backend.harness.device()).rates
        return (
            Ceiling("arithmetic", known.gflops, known.source),
            (Ceiling("memory", known.gbytes, known.source),),
        )
    sizes = {f"level {m.level}": m.size * max(1, threads // m.shared) for m in machine.caches()}
    return (
        Ceiling("products", rates.gemm(backend.name, threads), "fp32 GEMM, measured"),
        tuple(
            Ceiling(name, rate, "copies, read and written, measured", sizes.get(name))
            for name, rate in rates.memory(threads).items()
        ),
    )


def measured(
    model: Path,
    backend_name: str,
    shapes: Mapping[str, Sequence[int]],
    threads: int,
    on_progress: Callable[[str], None],
) -> Roofline:
    """Of a model's Plans, with the kernels that sessions get. Raises UsageError, TraceaError."""
    backend = backends.get(backend_name)
    device = backend.harness.device(threads if backend.host else 0)
    threads = device.threads if backend.host else 1
    on_progress("every launch of the model")
    found: dict[str, tuple[Point, list[float]]] = {}
    for part in plans(model, backend, shapes, threads, device):
        for key, us in zip(part.asked, _times(backend, part, threads), strict=True):
            if key not in found:
                found[key] = _point(backend, part, key), []
            found[key][1].append(us)
    if not found:
        raise measure.nothing_runs(backend.name)
    on_progress("ceilings of this device")
    arithmetic, memory = ceilings(backend, threads)
    points = [
        _bounded(point, sum(times) / len(times), len(times), arithmetic, memory)
        for point, times in found.values()
    ]
    points.sort(key=lambda p: -p.us * p.count)
    return Roofline(str(device.name), threads, arithmetic, memory, tuple(points))


def plans(
    model: Path, backend: Backend, shapes: Mapping[str, Sequence[int]], threads: int, device: Any
) -> list[measure.Part]:
    """The Plans that sessions run, with generated data."""
    known = tuning_records.choices(device)
    choices = kernel_choice.Choices(known.records, {}, known.sizes)
    options = {"num_threads": str(threads)} if backend.host else {}
    return [
        part
        for request in measure.requests_of(model, {"backend": backend.name, **options})
        for part in measure.parts(
            backend, request, measure.sizes_of(Graph(request), shapes), choices
        )
    ]


def _times(backend: Backend, part: measure.Part, threads: int) -> list[float]:
    """Microseconds of each launch, within a run of all."""
    load = backend.harness.LoadedPlan
    if backend.host:
        with load(part.plan, part.blobs, part.constants, threads=threads) as plan:
            (times,) = plan.time(part.inputs, [{}], _TURNS)
    else:
        with load(part.plan, part.blobs, part.constants) as plan:
            times = plan.time(part.inputs, _REPLAYS, within=True)
    return [us for _, us in times.launches[: len(part.asked)]]


def _point(backend: Backend, part: measure.Part, key: str) -> Point:
    request = kernel_choice.specialize(part.requests[key], part.sizes)
    # what takes several launches is shared among them
    launches = 1 if request.family in backend.families else max(1, len(backend.emit(request)))
    return Point(
        request.family, measure.text(request, part.sizes), 1, 1.0,
        work.moved(request, border=backend.host) // launches, work.operations(request) / launches,
    )  # fmt: skip


def _bounded(
    point: Point, us: float, count: int, arithmetic: Ceiling, memory: Sequence[Ceiling]
) -> Point:
    """With its times, and what bounds it: the level of memory that holds its operands, or
    arithmetic, whichever takes longer.
    """
    level = next((m for m in memory if m.holds is not None and point.moved <= m.holds), memory[-1])
    needs = {
        level.name: point.moved / level.rate / 1e3,
        arithmetic.name: point.operations / arithmetic.rate / 1e3,
    }
    bound = max(needs, key=needs.__getitem__)
    return Point(
        point.family, point.what, count, us, point.moved, point.operations, bound,
        needs[bound] / us,
    )  # fmt: skip
