"""A full disk ends in one line and the exit code of an output that cannot be written. Nothing is
half written, and nothing is lost of what was there.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from tests.host.files.test_io import big, saved
from tests.host.pipeline_models import normal, run, same_bits
from tests.support.full_disk import files_of_at_most
from tracea_onnx.cli.main import main
from tracea_onnx.codegen import tuning_records, tuning_store
from tracea_onnx.codegen.tuning_records import Measured
from tracea_onnx.errors import ModelError, TraceaError, UsageError
from tracea_onnx.model_io import model_file
from tracea_onnx.runtime.device_caps import usual
from tracea_onnx.support.artifact_cache import Cache

Room = Callable[[int], None]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """The disk takes so many more bytes."""
    real = os.write

    def full_after(left: int) -> None:
        rest = [left]

        def write(fd: int, data: bytes | memoryview) -> int:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return real(fd, data)
            if not rest[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done = real(fd, memoryview(data)[: rest[0]])
            rest[0] -= done
            return done

        monkeypatch.setattr(os, "write", write)

    return full_after


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("left", [0, 100])
@pytest.mark.parametrize(
    "line",
    [
        "optimize m.onnx -o o.onnx --no-verify",
        "optimize m.onnx -o o.onnx --no-verify --external-data never",
        "optimize m.onnx -o m.onnx --no-verify",
        "inline m.onnx -o o.onnx",
        "explain m.onnx --html page.html",
        "check m.onnx --baseline b.json --update",
        "compile m.onnx -o c.onnx --backend cpu",
        "compile m.onnx -o c.onnx --backend cpu --embed",
    ],
)
def test_of_a_command(
    line: str,
    left: int,
    room: Room,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved(tmp_path)
    before = contents(tmp_path)
    monkeypatch.chdir(tmp_path)
    room(left)
    assert main(line.split()) == UsageError.exit_code
    said = [text for text in capsys.readouterr().err.splitlines() if "error" in text]
    assert len(said) == 1 and said[0].startswith("error: ")
    assert "cannot be written (No space left on device); free some space" in said[0]
    assert contents(tmp_path) == before


def test_wherever_it_comes_a_model_has_its_own_weights(room: Room, tmp_path: Path) -> None:
    path = saved(tmp_path)
    before, new = contents(tmp_path), big()
    weights = new.graph.initializer[0]
    weights.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weights), weights.name))
    feeds = {"x": normal(2, 64)}
    want, left, failed = run(new, feeds), 0, 0
    while True:
        room(left)
        try:
            model_file.save(model_file.Source(new), path, external_data="always")
            break
        except UsageError as e:
            assert "No space left on device" in str(e)
        assert contents(tmp_path) == before
        failed, left = failed + 1, left + 2000
    assert failed > 4 and sorted(contents(tmp_path)) == ["m.onnx", "m.onnx.data"]
    assert all(map(same_bits, run(onnx.load(path), feeds), want))


def test_of_a_pack_leaves_the_model_whole(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, "never")
    monkeypatch.chdir(tmp_path)
    line = "optimize m.onnx -o o.onnx --backend cpu --no-verify"
    assert main(line.split()) == 0
    after = contents(tmp_path)
    room(len(after["o.onnx"]) + 100)
    assert main([*line.split(), "--pack", "o.pack"]) == UsageError.exit_code
    assert "o.pack cannot be written (No space left" in capsys.readouterr().err
    assert contents(tmp_path) == after


@pytest.mark.parametrize("again", [False, True])
def test_of_a_compiled_model_takes_its_pack_back(
    again: bool, room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless that belongs to a model which was there before."""
    saved(tmp_path, "never")
    monkeypatch.chdir(tmp_path)
    line = "compile m.onnx -o c.onnx --backend cpu"
    assert main(line.split()) == 0
    made = contents(tmp_path)
    [pack] = (data for name, data in made.items() if name.endswith(".bin"))
    if not again:
        for name in made.keys() - {"m.onnx"}:
            (tmp_path / name).unlink()
    before = contents(tmp_path)
    room(len(pack) + 100)
    assert main(line.split()) == UsageError.exit_code
    assert contents(tmp_path) == before


def test_of_the_cache_keeps_nothing_more(room: Room, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = Cache(folder)
    assert cache.put("a", b"first")
    before = contents(folder)
    for left in (0, 20, 100):
        room(left)
        assert not cache.put("b", bytes(200)) and cache.get("b") is None
        assert not cache.put("a", bytes(200)) and cache.get("a") == b"first"
        assert contents(folder) == before


@pytest.mark.parametrize("size", [0, 4096, 20000])
def test_of_tuning_records_loses_none(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    device, one = usual(90, 132), Measured("HopperTile(bm=128)", 3.5, 4.0, [{"batch": 8}])
    with files_of_at_most(size), pytest.raises(TraceaError, match="free some space") as e:
        tuning_records.add(device, {f"{k}" * 100: one for k in range(99)})
    assert "\n" not in str(e.value)
    tuning_records.add(device, {"a": one})
    with files_of_at_most(size), pytest.raises(TraceaError, match="cannot be kept"):
        tuning_records.add(device, {f"{k}" * 100: one for k in range(99)})
    assert tuning_records.load(device) == {"a": one}
    assert not list(tmp_path.rglob("*.damaged"))
    tuning_records.add(device, {"b": replace(one, us=1.0)})
    assert tuning_records.load(device).keys() == {"a", "b"}


def test_of_a_new_database_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its tables find no room, it is not set aside as one that was damaged."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert tuning_store._own_tables()
    full = f"PRAGMA max_page_count = 1; {tuning_store._SCHEMA}"
    with monkeypatch.context() as m:
        m.setattr(tuning_store, "_SCHEMA", full)
        with pytest.raises(TraceaError, match="database or disk is full; free some space"):
            tuning_records.require()
    assert not list(tmp_path.rglob("*.damaged"))
    tuning_records.require()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full")
@pytest.mark.parametrize(
    ("line", "stream", "code"),
    [
        ("explain m.onnx --json", "stdout", UsageError.exit_code),
        ("completion bash", "stdout", UsageError.exit_code),
        ("optimize m.onnx -o o.onnx --no-verify", "stderr", UsageError.exit_code),
        ("inspect odd.onnx", "stderr", ModelError.exit_code),
    ],
)
def test_of_what_a_command_prints(line: str, stream: str, code: int, tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "odd.onnx").write_bytes(b"no model")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tracea_onnx", *line.split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == code
    if stream == "stdout":
        assert done.stderr.splitlines()[-1] == (
            "error: the output cannot be written (No space left on device); free some space, or "
            "write elsewhere"
        )
        assert done.stderr.count("rror") == 1
