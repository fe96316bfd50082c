"""Tuning on many workers: what is asked of whom, what is kept for which device, and what is done
about workers that are lost, late or useless.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.synthetic_crew import SyntheticCrew
from tracea_onnx._version import __version__
from tracea_onnx.cli import main
from tracea_onnx.codegen import tuning_records
from tracea_onnx.codegen.tuning_records import Measured, Reported, Verdict
from tracea_onnx.errors import TraceaError
from tracea_onnx.tuning import fleet, proposers, station
from tracea_onnx.tuning.measure import Budget, Decision, Described, Tuned, Undecided
from tracea_onnx.tuning.search import History, Kind, Outcome
from tracea_onnx.tuning.station import Answer, Job

ONE = Reported("One", "cpu", "One, 4 threads, driver 1", "", __version__)
TWO = replace(ONE, name="Two", kind="Two, 4 threads, driver 1")
_PRICES = {f"T({k})": 1.0 for k in range(1, 9)}
_WHAT = {"family": "gemm", "dtype": "F32", "ints": {"M": 3}}
GRAPH = Described([Kind(key, "gemm", _WHAT, 1, _PRICES) for key in "abcd"], 1, {})


@pytest.fixture(autouse=True)
def fresh_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


class Device:
    """T(1) is what launches have; T(k) takes k tenths of its time on the first device, 10 - k on
    the second; T(3) ends the process.
    """

    def __init__(self, on: Reported = ONE, seconds: float = 1.0) -> None:
        self.on, self.seconds, self.tried = on, seconds, Counter[tuple[str, str]]()
        self.undecided = False

    def __call__(self, what: str, arguments: Sequence[Any]) -> tuple[float, Answer]:
        if what == "opened":
            return self.seconds, Answer((self.on, [GRAPH]))
        if what == "gains":
            self.tried["alone", arguments[1]] += 1
            return self.seconds, Answer(arguments[1] != "c")
        _, named, *_ = arguments
        if what == "decided":
            return self.seconds, Answer(self._decided(*arguments[1:]))
        if "T(3)" in named.values():
            return self.seconds, Answer(None, station.CRASH)
        self.tried.update(named.items())
        return self.seconds, Answer({key: self._took(name) for key, name in named.items()})

    def _took(self, name: str) -> Outcome:
        k = int(name[2:-1])
        return None if k == 1 else (10.0, float(k if self.on == ONE else 10 - k))

    def _decided(
        self, chosen: Mapping[str, str], keys: Sequence[str], again: Any = None
    ) -> Decision | Undecided:
        assert list(keys) == list("abcd")
        if self.undecided and again is None:
            return Undecided(dict(chosen), dict.fromkeys(chosen.items(), (10.0, 3.0)))
        kept = {key: Measured(name, 2.0, 10.0, [{}]) for key, name in chosen.items()}
        return Decision(40.0, 8.0, [], kept, dict.fromkeys(chosen.items(), (10.0, 2.0)))


def _tune(
    crew: SyntheticCrew, budget: Budget | None = None, said: list[str] | None = None
) -> list[Tuned]:
    job = Job("", {}, "cpu", 0, 0)
    say = (said if said is not None else []).append
    made = fleet.Fleet(crew, job, b"", proposers.make("grid"), History, say)
    return made.tune(budget or Budget())


def _names(device: Reported) -> dict[str, str]:
    return {launch: m.kernel for launch, m in tuning_records.load(device).items()}


_ALL = {(key, f"T({k})") for key in "abcd" for k in (2, 4, 5, 6, 7, 8)}


def test_every_kernel_is_measured_once_and_the_crashing_one_is_recorded() -> None:
    crew, device = SyntheticCrew(), Device()
    workers = [crew.hire(device) for _ in range(5)]
    (found,) = _tune(crew)
    assert {one for one in device.tried if one[1] != "T(1)"} == _ALL
    assert set(device.tried.values()) == {1}
    made = {(t.launch, t.kernel): t.verdict for t in tuning_records.trials(ONE)}
    assert made.keys() == _ALL | {(key, "T(3)") for key in "abcd"}
    assert all((v == Verdict.CRASH) == (name == "T(3)") for (_, name), v in made.items())
    assert found.measured == 28 and found.kept == 4 and found.device == ONE
    assert _names(ONE) == dict.fromkeys("abcd", "T(2)")
    assert all("tried" in worker.asked for worker in workers)
    assert crew.now() < 12  # of 28 + 4 + 8 questions for one launch each


def test_each_undecided_kernel_is_measured_alone_by_whoever_is_idle() -> None:
    crew, device = SyntheticCrew(), Device()
    device.undecided = True
    workers = [crew.hire(device) for _ in range(4)]
    _tune(crew)
    assert _names(ONE) == dict.fromkeys("abd", "T(2)")
    assert [device.tried["alone", key] for key in "abcd"] == [1] * 4
    assert [worker.asked.count("gains") for worker in workers] == [1] * 4


def test_what_was_tried_is_not_asked_again() -> None:
    for count in (28, 0):
        crew, device = SyntheticCrew(), Device()
        crew.hire(device)
        (found,) = _tune(crew)
        assert found.measured == count and (found.known > 0) == (count == 0)
    assert not {name for _, name in device.tried} - {"T(1)"}


def test_what_a_device_measured_is_kept_for_that_device_alone() -> None:
    crew, devices = SyntheticCrew(), [Device(ONE), Device(TWO, 3.0)]
    for k in range(6):
        crew.hire(devices[k % 2])
    found = {one.device: one for one in _tune(crew)}
    assert found.keys() == {ONE, TWO} and {one.measured for one in found.values()} == {28}
    assert _names(ONE) == dict.fromkeys("abcd", "T(2)")
    assert _names(TWO) == dict.fromkeys("abcd", "T(8)")
    for device in devices:
        assert {one for one in device.tried if one[1] != "T(1)"} == _ALL
    heads = {tuple(part["device"]) for part in tuning_records.exported()["devices"]}
    assert heads == {("cpu", f"{n}, 4 threads", "1", "", __version__) for n in ("One", "Two")}


def test_lost_workers_cost_no_kernel_and_new_ones_are_taken() -> None:
    crew, device, said = SyntheticCrew(), Device(), list[str]()
    crew.hire(device)
    crew.hire(device, goes=1.5)
    crew.hire(device, goes=2.5)
    late = crew.hire(device, comes=3.5)
    (found,) = _tune(crew, said=said)
    assert found.measured == 28 and "tried" in late.asked
    assert sum("did not answer (it is gone)" in line for line in said) == 2


def test_a_trial_that_loses_every_worker_is_given_up_and_not_recorded() -> None:
    crew, said = SyntheticCrew(), list[str]()

    class Fatal(Device):
        def hire(self, comes: float) -> None:
            self.worker = crew.hire(self, comes=comes)

        def __call__(self, what: str, arguments: Sequence[Any]) -> tuple[float, Answer]:
            if what == "tried" and arguments[1].get("a") == "T(5)":
                self.worker.goes = crew.now() + 0.5
                Fatal().hire(crew.now() + 2)
            return super().__call__(what, arguments)

    Fatal().hire(0.0)
    _tune(crew, said=said)
    lost = {(t.launch, t.kernel) for t in tuning_records.trials(ONE)}
    assert ("a", "T(5)") not in lost and ("a", "T(6)") in lost
    assert sum("did not answer" in line and "another" in line for line in said) == 3
    assert any("4 kernels were not measured: 3 workers did not answer" in line for line in said)


def test_a_straggler_is_not_waited_for() -> None:
    crew, quick, slow = SyntheticCrew(), Device(), Device(seconds=400.0)
    for _ in range(3):
        crew.hire(quick)
    straggler = crew.hire(slow)
    slow.seconds, calls = 1.0, []

    def work(what: str, arguments: Sequence[Any]) -> tuple[float, Answer]:
        seconds, answer = slow(what, arguments)
        calls.append(what)
        return (400.0 if what == "tried" else seconds), answer

    straggler.work = work
    (found,) = _tune(crew)
    assert "tried" in calls and found.measured == 28 and crew.now() < 60
    # its answer came too late to count
    assert len({(t.launch, t.kernel) for t in tuning_records.trials(ONE)}) == 28


def test_a_worker_that_never_answers_is_given_up() -> None:
    crew = SyntheticCrew()
    crew.hire(lambda what, arguments: (math.inf, Answer(None)))
    crew.hire(Device())
    (found,) = _tune(crew, Budget(100.0))
    assert found.measured == 28 and crew.now() <= 120


def test_a_useless_worker_is_said_and_left_out() -> None:
    crew, said = SyntheticCrew(), list[str]()
    crew.hire(lambda what, arguments: (1.0, Answer(None, "no GPU")))
    with pytest.raises(
        TraceaError, match=r"no worker can measure the model \(worker 0: no GPU\); workers need"
    ):
        _tune(crew, said=said)
    crew.hire(Device())
    (found,) = _tune(crew, said=said)
    assert found.measured == 28 and "worker 0 cannot measure: no GPU" in said


def test_a_worker_of_another_version_is_left_out() -> None:
    crew = SyntheticCrew()
    crew.hire(Device(replace(ONE, version="0.0")))
    with pytest.raises(TraceaError, match=r"worker 0: it has version 0\.0 of tracea-onnx, not "):
        _tune(crew)
    assert tuning_records.history() == []


def test_nobody_comes() -> None:
    crew = SyntheticCrew()
    with pytest.raises(TraceaError, match="no worker came; start workers"):
        _tune(crew)
    assert crew.now() > 30


def test_a_budget_ends_the_questions_and_not_the_last_measurement() -> None:
    crew = SyntheticCrew()
    for _ in range(2):
        crew.hire(Device())
    (found,) = _tune(crew, Budget(math.inf, trials=8))
    assert 0 < found.measured < 28 and found.kept == 4
    crew = SyntheticCrew()
    crew.hire(Device())
    tuning_records.clear()
    (found,) = _tune(crew, Budget(2.5))
    assert found.measured == 4 and crew.now() == 4.0


def test_what_was_recorded_stays_when_nothing_can_be_asked_any_more() -> None:
    class Gone(SyntheticCrew):
        def workers(self) -> Any:
            if self.now() > 3.5:
                raise TraceaError("no scheduler")
            return super().workers()

    crew, device = Gone(), Device()
    crew.hire(device)
    with pytest.raises(TraceaError, match="no scheduler"):
        _tune(crew)
    assert tuning_records.trials(ONE)
    later = SyntheticCrew()
    later.hire(device)
    (found,) = _tune(later)
    assert found.known and found.kept == 4
    assert {n for (_, name), n in device.tried.items() if name != "T(1)"} == {1}


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("dask", "'dask' names no workers; write --executor processes://COUNT, dask://HOST:PORT"),
        ("dask://host", "'dask://host' names no workers"),
        ("dask://host:x", "'dask://host:x' names no workers"),
        ("slurm://host:1", "'slurm://host:1' names no workers"),
        ("processes://0", "processes with 1 cores each do not fit"),
        ("processes://x", "processes with 1 cores each do not fit"),
        ("processes://99999", "processes with 1 cores each do not fit"),
    ],
)
def test_an_address_of_no_workers_is_one_line(
    tmp_path: Path, address: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tune", str(tmp_path / "x.onnx"), "--backend", "cpu", "--executor", address]
    assert main.main(arguments) == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(("scheme", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_one_line(
    scheme: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    arguments = ["tune", "x.onnx", "--backend", "cpu", "--executor", f"{scheme}://host:1"]
    assert main.main(arguments) == 1
    assert (
        f"error: --executor {scheme}://... needs the package '{package}'; install it: pip install "
        f"'tracea-onnx[{scheme}]'\n"
    ) in capsys.readouterr().err


def test_workers_need_a_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tune", "x.onnx", "--executor", "processes://1"]) == 2
    assert "give --backend " in capsys.readouterr().err
