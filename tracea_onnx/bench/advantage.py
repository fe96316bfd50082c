"""Measures what each kind of fusion gains: sessions with and without it, timed in turn."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracea_onnx import provider
from tracea_onnx.bench import sampling
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import kernel_choice, tuning_records, work
from tracea_onnx.codegen.backend import Backend
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import model_file
from tracea_onnx.tuning import measure
from tracea_onnx.verify import verification

#: All fusions at once.
ALL = "all of them"
#: Samples of each side at least.
_ROUNDS = 15


@dataclass(frozen=True)
class Gain:
    """Gain of one kind of fusion: how many there are, launches and bytes of the provider that they
    save in a run, nodes that leave the provider without them, microseconds of a run with and
    without them, and their ratio with its interval.
    """

    fusion: str
    count: int
    launches: int
    moved: int
    leaving: int
    us: float
    without: float
    ratio: tuple[float, float, float]


@dataclass(frozen=True)
class Advantage:
    """gains: of each kind of fusion in the model, and of all of them."""

    gains: tuple[Gain, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON of the report."""
        return asdict(self)


@dataclass(frozen=True)
class _Work:
    """Of a run: launches and bytes."""

    launches: int
    moved: int


@dataclass(frozen=True)
class _Session:
    """A sampler of its runs, and how many nodes the provider has."""

    sample: sampling.Sampler
    nodes: int


def measured(
    model: Path,
    backend_name: str,
    shapes: Mapping[str, Sequence[int]],
    threads: int,
    seconds: float,
    on_progress: Callable[[str], None],
) -> Advantage:
    """Of the fusions of sessions over the model. seconds: that timing takes.
    Raises TraceaError, also where the results of a session are wrong.
    """
    backend = backends.get(backend_name)
    device = backend.harness.device(threads if backend.host else 0)
    options = {"num_threads": str(device.threads)} if backend.host else {}
    requests = measure.requests_of(model, {"backend": backend.name, **options})
    fusions = Counter(
        partition_compiler.fusion(match)
        for request in requests
        for match in partition_compiler.choose(Graph(request), backend.target(None).rates)
    )
    if not fusions:
        return Advantage(())
    known = {name: tuple(shape) for name, shape in shapes.items()}
    reference = verification.measure(model_file.load(model), shapes=known)
    with tempfile.TemporaryDirectory(prefix="tracea-advantage-") as folder:

        def session(name: str, left_out: Sequence[str]) -> _Session:
            on_progress(f"a session without {name}" if name else "a session with every fusion")
            with partition_compiler.without(left_out):
                return _session(model, backend.name, {**options, "cache_dir": folder}, reference)

        whole, usual = _work(backend, requests, shapes, device), session("", ())
        cases = [(ALL, tuple(fusions))] if len(fusions) > 1 else []
        cases += [(name, (name,)) for name in fusions]
        gains = []
        for name, left_out in cases:
            with partition_compiler.without(left_out):
                other = _work(backend, requests, shapes, device)
            apart = session(name, left_out)
            times = sampling.interleaved(
                {sampling.OURS: usual.sample, "without": apart.sample},
                rounds=_ROUNDS, seconds=seconds / len(cases),
            )  # fmt: skip
            ours, theirs = times.us[sampling.OURS], times.us["without"]
            saved = other.launches - whole.launches, other.moved - whole.moved
            leaving, fused = usual.nodes - apart.nodes, sum(fusions[one] for one in left_out)
            ratio = times.ratios["without"]
            gains.append(Gain(name, fused, *saved, leaving, ours, theirs, ratio))
    return Advantage(tuple(sorted(gains, key=lambda g: -g.ratio[0])))


def _session(
    model: Path, backend: str, options: Mapping[str, str], reference: verification.Reference
) -> _Session:
    """Runs a session over the model, whose results are those of the model."""
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    threads = options.get("num_threads")
    if threads:
        quiet.intra_op_num_threads = int(threads)
    with tempfile.TemporaryDirectory(dir=options["cache_dir"]) as fresh:
        made = provider.create_session(
            model, {"backend": backend, **options, "cache_dir": fresh}, quiet
        )
    fed = {i.name: reference.fed[i.name] for i in made.get_inputs()}
    wrong = [
        e for e in verification.compared(reference, made.run(reference.names, fed)) if not e.ok
    ]
    if wrong:
        raise TraceaError(
            f"the provider's result '{wrong[0].name}' is wrong by {wrong[0].max_abs:.3g}",
            "see `tracea-onnx verify MODEL --provider`",
        )
    nodes = len(provider.assigned_nodes(made))
    # others' work is no part of one thread's time
    sample = sampling.run_sampler(lambda: made.run(None, fed), alone=threads == "1")
    return _Session(sample, nodes)


def _work(
    backend: Backend, requests: Sequence[Any], shapes: Mapping[str, Sequence[int]], device: Any
) -> _Work:
    known = tuning_records.choices(device)
    choices = kernel_choice.Choices(known.records, {}, known.sizes)
    launches = moved = 0
    for request in requests:
        for part in measure.parts(
            backend, request, measure.sizes_of(Graph(request), shapes), choices
        ):
            launches += len(part.asked)
            moved += sum(
                work.moved(
                    kernel_choice.specialize(part.requests[key], part.sizes), border=backend.host
                )
                for key in part.asked
            )
    return _Work(launches, moved)
