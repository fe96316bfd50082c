"""`tune --executor` on real clusters of three worker processes, which are killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.conftest import library
from tests.support.tuned_model import KERNELS, KINDS, tuned_model
from tracea_onnx.cli import main
from tracea_onnx.codegen import tuning_records
from tracea_onnx.tuning import fleet
from tracea_onnx.tuning.search import Search

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages for one another
_WORKERS = 3


@pytest.fixture(autouse=True)
def fresh_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def _program(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def dask() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Its address, and its scheduler."""
    library("distributed")
    place = f"127.0.0.1:{_port()}"
    with ExitStack() as stack:
        scheduler = stack.enter_context(
            _program("distributed.cli.dask_scheduler", "--host", f"tcp://{place}", "--no-dashboard")
        )
        stack.enter_context(
            _program(
                "distributed.cli.dask_worker",
                f"tcp://{place}",
                "--no-dashboard",
                "--nthreads",
                "1",
                "--nworkers",
                str(_WORKERS),
            )
        )
        _wait_for(place)
        yield f"dask://{place}", scheduler


@pytest.fixture(scope="module")
def ray() -> Iterator[str]:
    library("ray")
    ports = _port(), _port()
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}", f"--num-cpus={_WORKERS}",
        "--include-dashboard=false", "--disable-usage-stats",
    ]  # fmt: skip
    with _program(*command[2:]):
        _wait_for(f"127.0.0.1:{ports[1]}")
        yield f"ray://127.0.0.1:{ports[1]}"


def _wait_for(place: str) -> None:
    host, port = place.split(":")
    for _ in range(600):
        with socket.socket() as s:
            if s.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens at {place}")


def _tune(folder: Path, address: str) -> int:
    return main.main([
        "tune", str(tuned_model(folder)), "--backend", "cpu", "--threads", "1", "--input-shape",
        "x:2,3,34,37", "--proposer", "grid", "--executor", address,
    ])  # fmt: skip


def _tried() -> int:
    return len({(t.launch, t.kernel) for _, _, t in tuning_records.history()})


def _killing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workers that trials were asked of; the fourth time, the worker is killed."""
    asked: list[str] = []
    process: dict[str, Any] = {}
    real: Callable[..., None] = fleet.Fleet._ask

    def ask(self: fleet.Fleet, place: Any, executor: Any, task: Any) -> None:
        if task.what == "opened":
            process[place.name] = executor.submit(os.getpid)
        real(self, place, executor, task)
        if task.what == "tried":
            asked.append(place.name)
            if len(asked) == 4:
                os.kill(process[place.name].result(60), signal.SIGKILL)

    monkeypatch.setattr(fleet.Fleet, "_ask", ask)
    return asked


def _all_is_tried(folder: Path, address: str, asked: list[str], said: Callable[[], str]) -> None:
    assert _tune(folder, address) == 0
    err = said()
    assert f"{asked[3]} did not answer" in err
    assert f"measured {KERNELS} kernels for {KINDS} kinds of launch" in err
    assert len(set(asked)) >= _WORKERS - 1 and len(asked) > 4 and _tried() == KERNELS


def test_a_worker_of_dask_that_is_killed_costs_nothing(
    dask: tuple[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = _killing(monkeypatch)
    _all_is_tried(tmp_path, dask[0], asked, lambda: capsys.readouterr().err)


def test_a_scheduler_of_dask_that_is_killed_loses_nothing_that_was_recorded(
    dask: tuple[str, subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last of Dask's: there is none any more."""
    address, scheduler = dask
    real = Search.told
    kept: list[int] = []

    def told(*args: Any) -> int:
        kept.append(real(*args))
        if kept[-1]:
            scheduler.kill()
        return kept[-1]

    monkeypatch.setattr(Search, "told", told)
    assert _tune(tmp_path, address) == 1
    assert "no Dask scheduler answers at 127.0.0.1:" in capsys.readouterr().err
    assert _tried() == sum(kept) > 0


def test_a_worker_of_ray_that_is_killed_costs_nothing(
    ray: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = _killing(monkeypatch)
    _all_is_tried(tmp_path, ray, asked, lambda: capsys.readouterr().err)
