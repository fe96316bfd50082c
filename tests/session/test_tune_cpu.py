"""Variants of CPU kernels: every one computes the same, records choose them in sessions, and the
tuner survives those that crash or hang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.tuned_model import KERNELS, KINDS, tuned_model
from tracea_onnx import provider
from tracea_onnx.cli import main
from tracea_onnx.codegen import backend, kernel_choice, tuning_records
from tracea_onnx.codegen.tuning_records import Measured, Verdict
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime import cpu_harness, native_library
from tracea_onnx.support import discovery, machine
from tracea_onnx.tuning import at_once, exact, in_place, measure, station
from tracea_onnx.tuning.objective import Objective

pytestmark = pytest.mark.once

CPU = backend.get("cpu")
VARIANTS: Mapping[str, Mapping[str, Sequence[float]]] = discovery.module("kernels", "cpu").VARIANTS


@pytest.fixture(autouse=True)
def fresh_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def _parts(path: Path, batch: int, **options: str) -> tuple[onnx.ModelProto, list[measure.Part]]:
    (request,) = measure.requests_of(path, {"backend": "cpu", "num_threads": "2", **options})
    sizes = measure.sizes_of(Graph(request), {"x": (batch, 3, 34, 37)})
    return request, list(measure.parts(CPU, request, sizes, kernel_choice.Choices(offers={})))


@pytest.mark.parametrize("threads", [1, 3])
def test_every_variant_gives_every_bit_on_integers(tmp_path: Path, threads: int) -> None:
    """Their sums are the same in float32 and float64, so that any order of terms is right."""
    seen = set()
    for batch in (1, 5):
        _, parts = _parts(tuned_model(tmp_path), batch)
        for part in parts:
            integers = in_place._Integers(part, threads)
            for n, launch in enumerate(part.plan["run"]):
                for variant in range(1, _count(launch["k"])):
                    assert integers.same(n, variant), (launch["k"], variant)
                    seen.add(launch["k"])
    assert seen == VARIANTS.keys()


def _count(family: str) -> int:
    return int(np.prod([len(values) for values in VARIANTS.get(family, {}).values()], dtype=int))


def test_a_kernel_that_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one element."""
    _, (part,) = _parts(tuned_model(tmp_path), 1)
    real = native_library.run_kernel

    def wrong(name: str, operands: Any, *args: Any, **more: Any) -> float:
        seconds = real(name, operands, *args, **more)
        array, offset = operands["y"]
        array[offset] ^= more["variant"] == 2
        return seconds

    monkeypatch.setattr(native_library, "run_kernel", wrong)
    launch = next(n for n, row in enumerate(part.plan["run"]) if row["k"] == "gemm")
    integers = in_place._Integers(part, 1)
    assert integers.same(launch, 1) and not integers.same(launch, 2)


@pytest.mark.parametrize("batch", [2, "batch"])
def test_float64_says_what_a_plan_computes(tmp_path: Path, batch: int | str) -> None:
    """The usual kernels' results are near it; one that is off by less than two kernels may differ
    is not.
    """
    request, (part,) = _parts(tuned_model(tmp_path, batch), 2)
    found = exact.reference(Graph(request), part, part.sizes)
    assert found.results is not None, found.why
    with cpu_harness.LoadedPlan(part.plan, part.blobs, part.constants) as loaded:
        usual = loaded.run(part.inputs)
        variants = {n: 1 for n, row in enumerate(part.plan["run"]) if _count(row["k"]) > 1}
        other = loaded.run(part.inputs, variants)
    largest = np.abs(found.results[0]).max()
    assert np.abs(found.results[0] - usual[0]).max() < 1e-5 * largest
    assert found.agrees(part.plan, usual, other)
    other[0][5, 7] += np.float32(0.001 * largest)
    assert exact.same(DType.F32, usual[0], other[0])
    assert not found.agrees(part.plan, usual, other)


def test_what_is_wrong_beside_float64_is_recorded_and_never_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant of one launch that every check of single launches has passed."""
    path, real = tuned_model(tmp_path), cpu_harness.LoadedPlan.run

    def wrong(self: cpu_harness.LoadedPlan, inputs: Any, variants: Any = None) -> Any:
        results = real(self, inputs, variants)
        gemm = next(n for n, row in enumerate(self.plan["run"]) if row["k"] == "gemm")
        results[0] *= np.float32(1.001 if (variants or {}).get(gemm) else 1)
        return results

    monkeypatch.setattr(cpu_harness.LoadedPlan, "run", wrong)
    arguments = [
        "tune", str(path), "--backend", "cpu", "--threads", "1", "--input-shape", "x:2,3,34,37",
        "--proposer", "grid", "--budget", "600s",
    ]  # fmt: skip
    device = cpu_harness.device(1)
    for more in ([], ["--no-resume"]):
        assert main.main([*arguments, *more]) == 0
        trials = tuning_records.trials(device)
        bad = [t for t in trials if t.kernel.startswith("gemm(")]
        assert len(bad) == 3 and {t.verdict for t in bad} == {Verdict.WRONG}
        assert all(t.us for t in trials if t not in bad)
    # whoever else measured one to be fast
    one = bad[0]
    tuning_records.add(device, {one.launch: Measured(one.kernel, 1.0, 2.0, [])})
    assert one.launch not in tuning_records.load(device)
    assert one.launch not in tuning_records.choices(device).records


def _record(part: measure.Part, sizes: Mapping[str, int]) -> dict[str, Measured]:
    """The last variant of each launch."""
    out = {}
    for key, request in part.requests.items():
        known = kernel_choice.specialize(request, part.sizes)
        prices = CPU.configs(known, cpu_harness.device(2))
        names = [name for name in prices if name.startswith(f"{known.family}(")]
        if len(names) > 1:
            out[key] = Measured(names[-1], 1.0, 2.0, [dict(sizes)])
    return out


@pytest.mark.parametrize("batch", [3, "batch"])
def test_sessions_run_the_variants_of_the_record(tmp_path: Path, batch: int | str) -> None:
    path, x = tuned_model(tmp_path, batch), np.ones((3, 3, 34, 37), np.float32)
    request, (part,) = _parts(path, 3)
    before = provider.create_session(path, {"num_threads": "2"}).run(None, {"x": x})[0]
    record = _record(part, {"batch": 3} if batch == "batch" else {})
    assert len(record) >= len(VARIANTS)
    properties = partition_compiler.properties(request)
    tuning_records.add(CPU.device(properties), record)
    compiled = partition_compiler.compile_for(
        Graph(request), properties, plan_writer.writer_of(properties)
    )
    ((_, plan, _),) = compiled.entries
    for launch in plan["run"]:
        family = launch["k"]
        assert len(launch["i"]) == len(FAMILIES[family].ints) + (family in VARIANTS)
        if family in VARIANTS and batch != "batch":
            assert plan["exprs"][launch["i"][-1]] == ["const", _count(family) - 1]
    tuned = provider.create_session(path, {"num_threads": "2"})
    np.testing.assert_allclose(tuned.run(None, {"x": x})[0], before, rtol=1e-4, atol=1e-4)
    if batch == "batch":
        tuned.run(None, {"x": x[:1]})


def test_a_file_for_any_machine_has_no_variants(tmp_path: Path) -> None:
    request, (part,) = _parts(tuned_model(tmp_path, 3), 3)
    properties = partition_compiler.properties(request)
    tuning_records.add(CPU.device(properties), _record(part, {}))
    for gone in ("threads", "isa"):
        properties.pop(gone)
    assert CPU.device(properties) is None
    compiled = partition_compiler.compile_for(
        Graph(request), properties, plan_writer.writer_of(properties)
    )
    ((_, plan, _),) = compiled.entries
    assert all(len(row["i"]) == len(FAMILIES[row["k"]].ints) for row in plan["run"])


@pytest.mark.parametrize("variant", [-1, 16, 1 << 40])
def test_a_plan_with_a_variant_that_is_not_there_is_one_line(tmp_path: Path, variant: int) -> None:
    _, (part,) = _parts(tuned_model(tmp_path, 1), 1)
    plan = {**part.plan, "exprs": [*part.plan["exprs"], ["const", variant]]}
    launch = next(row for row in plan["run"] if row["k"] == "gemm")
    launch["i"] = [*launch["i"], len(plan["exprs"]) - 1]
    with (
        cpu_harness.LoadedPlan(plan, part.blobs, part.constants) as loaded,
        pytest.raises(TraceaError, match="'gemm' has no variant"),
    ):
        loaded.run(part.inputs)


def test_tune_measures_keeps_every_trial_and_ends_at_once_the_second_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is complete starts no worker, and so times nothing."""
    path = tuned_model(tmp_path)
    arguments = [
        "tune", str(path), "--backend", "cpu", "--threads", "1", "--input-shape", "x:2,3,34,37",
        "--proposer", "grid",
    ]  # fmt: skip
    assert main.main([*arguments, "--budget", "6"]) == 0
    device = cpu_harness.device(1)
    first = tuning_records.trials(device)
    assert 6 <= len({(t.launch, t.kernel) for t in first}) < 18
    assert {t.verdict for t in first} <= {Verdict.OK, Verdict.PRUNED}
    assert all(t.us and t.usual_us for t in first)
    assert "tune again to go on" in capsys.readouterr().err
    assert main.main([*arguments, "--budget", "600s"]) == 0
    kinds = len({t.launch for t in first})
    assert _tried(device) == 3 * kinds  # but the usual one of the four
    assert "nothing is left to try" in capsys.readouterr().err
    made, started = len(tuning_records.trials(device)), list[object]()
    monkeypatch.setattr(in_place.Worker, "_start", lambda w: started.append(w))
    for proposer in ("grid", "bayesian"):
        assert main.main([*arguments, "--budget", "600s", "--proposer", proposer]) == 0
        said = capsys.readouterr().err
        assert "nothing is left to try" in said and "round" not in said
    assert not started and len(tuning_records.trials(device)) == made


def _tried(device: tuning_records.Device) -> int:
    return len({(t.launch, t.kernel) for t in tuning_records.trials(device)})


def test_optimize_tunes_what_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tuned_model(tmp_path)
    arguments = ["optimize", str(path), "--backend", "cpu", "--input-shape", "x:2,3,34,37"]
    assert main.main([*arguments, "--tune", "1"]) == 0
    assert "kinds of launch" in capsys.readouterr().err
    assert tuning_records.trials(cpu_harness.device())
    assert main.main([*arguments, "--tune", "--dry-run"]) == 2
    assert "--tune measures the model that is written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("graph", "code", "says"),
    [
        ("(float[2, 3] x) => (float y) { y = Foo (x) }", 3, "ONNX Runtime cannot load the model: "),
        ("(float x) => (float[n, 4, 3, 3] y) { y = Conv (x, w) }", 1, "runs no part of this model"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(
    graph: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {graph}')
    if code == 1:
        model.graph.input[0].type.tensor_type.ClearField("shape")
        weights = np.ones((4, 4, 3, 3), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    assert (
        main.main(["tune", str(tmp_path / "m.onnx"), "--backend", "cpu", "--budget", "1"]) == code
    )
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ") and says in line


@pytest.mark.parametrize("budget", ["0", "-3s", "soon", "nans", "infs", "1e400"])
def test_a_budget_of_nothing_is_one_line(
    tmp_path: Path, budget: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tune", str(tmp_path / "x.onnx"), f"--budget={budget}"]) == 2
    assert f"a budget of '{budget}' leaves nothing to measure" in capsys.readouterr().err


class _Plan:
    """Stands for a loaded Plan: variant 1 of launch 0 ends the process, variant 2 never ends."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def time(self, _: object, sides: Sequence[Mapping[int, int]], turns: int) -> list[Any]:
        if sides[-1].get(0) == 1:
            os._exit(1)
        if sides[-1].get(0) == 2:
            time.sleep(60)
        if sides[-1].get(0) == 3:
            raise TraceaError("refused")
        return [len(sides), turns]


@pytest.fixture
def worker() -> Iterator[in_place.Worker]:
    part: Any = SimpleNamespace(plan={}, blobs=[], constants={}, inputs=[])
    with in_place.Worker([part], _Plan, 1) as made:
        yield made


def test_a_worker_survives_what_it_measures(worker: in_place.Worker) -> None:
    good: list[Mapping[int, int]] = [{}, {0: 4}]
    assert worker.time(0, good, 3, 60) == [2, 3]
    for variant, error in ((1, in_place.Crashed), (2, in_place.Hung), (3, TraceaError)):
        with pytest.raises(error):
            worker.time(0, [{}, {0: variant}], 3, 0.5 if variant == 2 else 60)
        assert worker.time(0, good, 3, 60) == [2, 3]


_ASKS = """
import os, signal
from types import SimpleNamespace
from tests.session.test_tune_cpu import _Plan
from tracea_onnx.tuning import in_place
part = SimpleNamespace(plan={}, blobs=[], constants={}, inputs=[])
worker = in_place.Worker([part], _Plan, 1)
worker.time(0, [{}, {0: 4}], 3, 60)
print(worker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_ends_with_the_process_that_asks_it() -> None:
    """The output is open until it has."""
    done = subprocess.run(
        [sys.executable, "-c", _ASKS], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL and int(done.stdout) > 0


_PLACE = station.Place("here", "", (0,))


@pytest.fixture
def ended() -> Iterator[None]:
    yield
    station.end(_PLACE)


@pytest.mark.slow
@pytest.mark.usefixtures("ended")
def test_a_station_starts_again_after_it_hung_and_after_it_crashed(tmp_path: Path) -> None:
    model = tuned_model(tmp_path).read_bytes()
    job = station.Job("", {"x": (2, 3, 34, 37)}, "cpu", 0, 1)
    device, (graph,) = station.ask(_PLACE, job, model, 60, "opened").value
    assert device == tuning_records.reported(cpu_harness.device(1))
    assert len(graph.kinds) == KINDS
    assert station.ask(_PLACE, job, model, 0, "tried", 0, {}).failed == station.HANG
    kind = graph.kinds[0]
    names = list(kind.prices)[:2]
    for k, name in enumerate(names):
        answer = station.ask(_PLACE, job, model, 60, "tried", 0, {kind.key: name})
        assert not answer.failed and (answer.value[kind.key] is None) == (k == 0)
    process = station._processes[_PLACE.name]
    threading.Timer(0.01, process._process.kill).start()
    assert process.ask(60, "decided", 0, {kind.key: names[1]}, [kind.key]).failed == station.CRASH
    unsized = station.ask(_PLACE, replace(job, shapes={}), model, 60, "tried", 0, {})
    assert unsized.failed.startswith("the size of axis 0 of input 'x' is not known; give it as")


@pytest.mark.slow
def test_processes_tune_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "tune", str(tuned_model(tmp_path)), "--backend", "cpu", "--threads", "1", "--input-shape",
        "x:2,3,34,37", "--proposer", "grid", "--json", "--executor",
        f"processes://{min(machine.cores(), 2)}",
    ]  # fmt: skip
    assert main.main(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert _tried(tuning_records.reported(cpu_harness.device(1))) == KERNELS
    assert found["measured"] == KERNELS and len(found["launches"]) == KINDS
    assert main.main(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["measured"] == 0 and found["known"] >= KERNELS


# --- substitutes ----------------------------------------------------------------------------------
def _families(path: Path, batch: int, threads: str = "2") -> list[tuple[str, int]]:
    """What a session's Plan runs, and in which variant."""
    request, _ = _parts(path, batch, num_threads=threads)
    properties = partition_compiler.properties(request)
    compiled = partition_compiler.compile_for(
        Graph(request), properties, plan_writer.writer_of(properties)
    )
    ((_, plan, _),) = compiled.entries
    return [
        (row["k"], plan["exprs"][row["i"][-1]][1] if row["k"] in VARIANTS else 0)
        for row in [*plan["init"], *plan["run"]]
    ]


def test_a_convolution_gets_the_substitute_of_the_record(tmp_path: Path) -> None:
    """Of Winograd's algorithm, where the sizes are known when its filters are packed."""
    path, x = tuned_model(tmp_path, 3), np.ones((3, 3, 34, 37), np.float32)
    request, (part,) = _parts(path, 3)
    before = provider.create_session(path, {"num_threads": "2"}).run(None, {"x": x})[0]
    (key,) = (key for key, r in part.requests.items() if r.family == "conv2d_wino")
    device, name = CPU.device(partition_compiler.properties(request)), "conv2d(block=2.0, split=4"
    assert "pack_conv2d_wino" in dict(_families(path, 3))
    tuning_records.add(device, {key: Measured(f"{name}, order=0)", 1.0, 2.0, [{"batch": 3}])})
    found = _families(path, 3)
    assert ("conv2d", 2) in found and not any("wino" in family for family, _ in found)
    after = provider.create_session(path, {"num_threads": "2"}).run(None, {"x": x})[0]
    assert (after != before).any()
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    symbolic = tuned_model(tmp_path)
    _, (part,) = _parts(symbolic, 3)
    known = [kernel_choice.specialize(r, part.sizes) for r in part.requests.values()]
    assert key in map(kernel_choice.cache_key, known)
    assert ("conv2d_wino", 0) in _families(symbolic, 3)


def test_substitutes_are_measured_beside_the_usual_kernels(tmp_path: Path) -> None:
    batches: tuple[tuple[int | str, int], ...] = ((2, 4), ("batch", 0))
    for batch, more in batches:
        request, _ = _parts(tuned_model(tmp_path, batch), 2)
        shapes, on = {"x": (2, 3, 34, 37)}, cpu_harness.device(1)
        with measure.opened(CPU, request, shapes, 0, on) as subject:
            (kind,) = (
                k for k in measure.described(subject).kinds if k.words.startswith("conv2d_wino")
            )
            others = [name for name in kind.prices if name.startswith("conv2d(")]
            assert len(others) == more
            subject.start()
            for name in others[:1]:
                outcome = measure.tried(subject, {kind.key: name})[kind.key]
                assert isinstance(outcome, tuple) and min(outcome) > 0
                decision = measure.decision(subject, {kind.key: name}, [kind.key])
                assert decision.again[kind.key, name][1] > 0


# --- objectives -----------------------------------------------------------------------------------
class _Timed:
    """Stands for a loaded Plan whose runs take 100, 200, ... microseconds."""

    made = 0

    def __init__(self, *_: object, **__: object) -> None:
        type(self).made += 1
        self._us = 100.0 * self.made

    def time(self, _: object, sides: Sequence[Mapping[int, int]], turns: int) -> list[Any]:
        if turns == 0:
            raise TraceaError("no time")
        return [cpu_harness.Times(self._us, [("gemm", self._us / 2)]) for _ in sides]


def test_sessions_at_once_are_as_fast_as_all_of_them() -> None:
    sessions = at_once.Sessions(_Timed, 2, {}, [], {}, threads=1)
    first, second = sessions.time([], [{}, {0: 1}], 3)
    assert first == second and first.launches == [("gemm", 75.0)]
    assert first.total == pytest.approx(1 / (1 / 100 + 1 / 200))
    with pytest.raises(TraceaError, match="no time"):
        sessions.time([], [{}], 0)


def test_throughput_is_measured_by_as_many_sessions_as_there_are_threads_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trials are no trials of one session alone, whose kernels it chooses."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    assert [Objective.THROUGHPUT.sessions(n) for n in (1, 2, 8)] == [3, 1, 1]
    kept = []
    monkeypatch.setattr(tuning_records, "add", lambda device, *_, **__: kept.append(device))
    real = measure.decision

    def faster(*args: Any) -> measure.Decision:
        found = real(*args)
        found.kept["x"] = Measured("gemm(block=2.0, split=4)", 1.0, 2.0, [])
        return found

    monkeypatch.setattr(measure, "decision", faster)
    arguments = [
        "tune",
        str(tuned_model(tmp_path)),
        "--backend",
        "cpu",
        "--objective",
        "throughput",
    ]
    assert main.main([*arguments, "--budget", "1", "--input-shape", "x:1,3,34,37"]) == 0
    said = capsys.readouterr().err
    assert "3 sessions at once: " in said and " runs/s" in said
    alone = cpu_harness.device(1)
    assert kept == [alone] and not tuning_records.trials(alone)
    assert tuning_records.trials(alone.shared(3))


def test_workers_measure_the_latency(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--executor", "processes://2", "--objective", "throughput"]
    assert main.main(["tune", "x.onnx", "--backend", "cpu", *more]) == 2
    assert "workers measure the latency, not the throughput" in capsys.readouterr().err


def _reached(folder: Path, slack: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = [
        "tune", str(tuned_model(folder, 2)), "--backend", "cpu", "--threads", "1", "--input-shape",
        "x:2,3,34,37", "--objective", "memory", "--slack", slack, "--json", "--proposer", "grid",
    ]  # fmt: skip
    assert main.main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_memory_is_saved_where_the_slack_allows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Filters of 3x3 take 9 places for each, and 16 for Winograd's algorithm. A record of what is
    faster gives way, and what was measured is not measured again.
    """
    found = _reached(tmp_path, "0", capsys)
    assert found["measured"] == KERNELS + 4
    again = _reached(tmp_path, "20", capsys)
    assert again["measured"] == 0 and found["saved"] in (0, again["saved"])
    (wino,) = (x for x in again["launches"] if x["what"].startswith("conv2d_wino"))
    assert wino["kernel"].startswith("conv2d(")
    assert again["saved"] == 4 * 48 * 40 * (16 - 9)
    assert "pack_conv2d_wino" not in dict(_families(tuned_model(tmp_path, 2), 2, threads="1"))


@pytest.mark.parametrize("slack", ["-1", "nan", "inf"])
def test_a_slack_of_nothing_is_one_line(slack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tune", "x.onnx", "--backend", "cpu", f"--slack={slack}"]) == 2
    assert f"--slack is {slack}" in capsys.readouterr().err
