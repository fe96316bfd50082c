"""`bench` prints no figure of a program whose result is wrong, and says what it left out."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest

from tests.host.pipeline_models import parse, small_cnn
from tracea_onnx.bench import comparison, round_functions, rounds
from tracea_onnx.bench.comparison import Comparison, Settings
from tracea_onnx.cli.main import main

pytestmark = pytest.mark.once

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "cnn.onnx"
    onnx.save(small_cnn(), str(path))
    return path


#: A Python that runs the worker with another peer in the place of ours and of ONNX Runtime's.
_OTHER = """#!{python}
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
honest = worker._ort_cpu
def other(given, inputs):
    {before}
    steps = honest(given, inputs)
    yield next(steps)
    pairs, note = next(steps)
    def run(of, runs=[]):
        runs.append(1)
        {each}
        of()
    yield [
        (lambda run_=run_: run(run_), lambda read=read: [{result} for v in read()])
        for run_, read in pairs
    ], note
worker.PEERS["ours"] = worker.PEERS["ort-cpu"] = other
worker.main()
"""


@pytest.fixture
def other(tmp_path: Path) -> Any:
    def make(before: str = "pass", each: str = "pass", result: str = "v") -> dict[str, str]:
        path = tmp_path / "other"
        path.write_text(
            _OTHER.format(python=sys.executable, before=before, each=each, result=result)
        )
        path.chmod(0o700)
        return {"ort-cpu": str(path), "ours": str(path)}

    return make


def compared(model: Path, python: dict[str, str], whose: str) -> Comparison:
    settings = Settings("cpu", seconds=0.01, pythons={whose: python[whose]})
    return comparison.compare(model, ["ort-cpu"], settings)


def test_every_batch_is_measured(model: Path, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "r.json"
    arguments = ["--against", "ort-cpu", "--batch", "1,3", "--seconds", "0.01"]
    assert main(["bench", str(model), *arguments, "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["ok"] and not found["wrong"] and [r["batch"] for r in found["rows"]] == [1, 3]
    for row in found["rows"]:
        assert row["inputs"]["image"][0] == row["batch"]
        for name in ("ours", "ort-cpu"):
            one = row["programs"][name]
            assert 0 < one["low"] <= one["high"] and one["us"] > 0 and one["difference"] < 1e-5
            assert one["peak"] is None or one["peak"] > 1 << 20
        low, high = row["programs"]["ort-cpu"]["ratio"][1:]
        assert 0 < low <= high and row["programs"]["ours"]["ratio"] is None
    said = capsys.readouterr().err
    assert said.startswith("batch 1: ours is ") and "nodes on the provider" in said


def test_throughput_counts_what_all_sessions_do(model: Path, capsys: Captured) -> None:
    arguments = ["--mode", "throughput", "--sessions", "3", "--threads", "1", "--seconds", "0.01"]
    assert main(["bench", str(model), "--backend", "cpu", *arguments]) == 0
    said = capsys.readouterr().err
    assert "3 sessions of 1 thread each" in said and "a second" in said


def test_the_processors_time_is_no_longer_than_that_of_the_clock(model: Path) -> None:
    settings = Settings("cpu", seconds=0.01, clock="cpu")
    found = comparison.compare(model, ["ort-cpu"], settings)
    assert found.ok and "processor time" in str(found.settings)
    assert all(0 < m.low <= m.high for m in found.rows[0].programs.values() if m.low and m.high)


def test_a_busy_machine_is_named() -> None:
    found = Comparison("m", Settings("cpu"))
    found.rows.append(comparison.Row(None, {}, {"ours": comparison.Measured(waited=0.04)}))
    assert not any("other work" in line for line in found.text())
    found.rows[0].programs["ours"].waited = 0.3
    assert any("waited 30% of its time for a core" in line for line in found.text())
    found.settings = replace(found.settings, clock="cpu")
    assert not any("other work" in line for line in found.text())


@pytest.mark.parametrize("whose", ["ours", "ort-cpu"])
def test_a_wrong_result_is_said_first_and_has_no_figures(
    model: Path, other: Any, whose: str
) -> None:
    found = compared(model, other(result="v * 1.01"), whose)
    assert not found.ok
    assert found.text()[0].startswith(f"{whose} is WRONG: output 'scores' differs by")
    wrong = found.rows[0].programs[whose]
    assert wrong.us is None and all(m.ratio is None for m in found.rows[0].programs.values())
    assert not any(line.startswith(f"{whose} ") for line in found.text()[1:])
    assert found.picture() is None


def test_a_result_that_is_wrong_behind_the_timing_has_no_figures(model: Path, other: Any) -> None:
    later = other(each="worker.late = len(runs) > 9", result="v * (1 + worker.late)")
    found = compared(model, later, "ort-cpu")
    assert found.text()[0].startswith("ort-cpu is WRONG: output 'scores' differs by")
    assert found.rows[0].programs["ort-cpu"].us is None
    ours = found.rows[0].programs["ours"]
    assert ours.us is not None and not found.ok


def test_another_number_of_outputs_is_wrong(model: Path, other: Any) -> None:
    found = compared(model, other(result="v for _ in range(2)"), "ort-cpu")
    assert "it gives 2 outputs, not 1" in found.text()[0]


def test_what_is_not_installed_is_left_out(model: Path, other: Any, capsys: Captured) -> None:
    python = other(before="raise worker.Missing('no such package')")["ort-cpu"]
    arguments = ["--backend", "cpu", "--python", f"ort-cpu={python}", "--seconds", "0.01"]
    assert main(["bench", str(model), *arguments]) == 1  # there was nothing else
    said = capsys.readouterr().err
    assert "ort-cpu was left out: no such package; python -m pip install onnxruntime\n" in said
    found = Comparison("m", Settings("cpu"))
    found.unavailable["torch"] = "why"
    found.rows.append(comparison.Row(None, {}, {
        "ours": comparison.Measured(us=1.0, low=1.0, high=1.0),
        "ort-cpu": comparison.Measured(us=2.0, low=2.0, high=2.0, ratio=(2.0, 1.9, 2.1)),
    }))  # fmt: skip
    assert found.ok and found.text()[0] == "ours is 2.000 times as fast as ort-cpu [1.900, 2.100]"
    assert "torch was left out: why" in found.text()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"before": "raise ValueError('bad\\nmodel')"}, "ValueError: bad"),
        ({"before": "os.kill(os.getpid(), 11)"}, "signal 11"),
        ({"each": "len(runs) > 5 and os.kill(os.getpid(), 11)"}, "signal 11"),
    ],
)
def test_a_peer_that_does_not_run_stops_nothing(
    model: Path, other: Any, how: dict[str, str], said: str
) -> None:
    found = compared(model, other(**how), "ort-cpu")
    assert not found.ok and said in found.text()[0] and "\n" not in found.text()[0]
    assert found.rows[0].programs["ours"].us is not None
    assert found.rows[0].programs["ort-cpu"].us is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["none.onnx"], 3, "does not exist"),
        (
            ["cnn.onnx", "--against", "ort-gpu"],
            2,
            "there is no peer 'ort-gpu'; choose from ort-cpu",
        ),
        (["cnn.onnx", "--against", ","], 2, "there is no peer to compare with"),
        (["static.onnx", "--batch", "1,2"], 2, "first axis, and this one's is fixed"),
        (["cnn.onnx", "--batch", "1,0"], 2, "--batch has '0'"),
        (["cnn.onnx", "--batch", "two"], 2, "--batch has 'two'"),
        (["cnn.onnx", "--threads", "0"], 2, "--threads is 0"),
        (["cnn.onnx", "--runs", "0"], 2, "--runs is 0"),
        (["cnn.onnx", "--clock", "cpu", "--threads", "2"], 2, "--clock cpu counts the time of all"),
        (["rounds", "--batch", "1"], 2, "--batch is for a model; leave it out of rounds"),
        (["rounds", "--against", "nobody"], 2, "there is no peer 'nobody'"),
        (["cnn.onnx", "--sessions", "-1"], 2, "--sessions is -1"),
        (["cnn.onnx", "--seconds", "nan"], 2, "--seconds nan"),
        (["cnn.onnx", "--python", "torch"], 2, "--python torch names no program"),
        (["cnn.onnx", "--python", "nobody=/bin/sh"], 2, "there is no peer 'nobody'"),
        (["cnn.onnx", "--json", "no/such/folder.json"], 2, "does not exist"),
        (["cnn.onnx", "--json", "cnn.onnx"], 2, "cnn.onnx"),
        (["cnn.onnx", "--input-shape", "picture:1"], 2, "no input called 'picture'"),
        (["lists.onnx"], 1, "input 'x' is no tensor"),
    ],
)
def test_bad_input_is_one_line(
    model: Path, arguments: list[str], code: int, said: str, capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(model.parent)
    onnx.save(parse("g (float[1,3] x) => (float[1,3] y) { y = Relu (x) }"), "static.onnx")
    onnx.save(parse("g (seq(float[2]) x) => (int64 y) { y = SequenceLength (x) }"), "lists.onnx")
    before = {p.name: p.read_bytes() for p in Path().iterdir()}
    assert main(["bench", *arguments]) == code
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and len(err.splitlines()) == 1 and said in err
    assert before == {p.name: p.read_bytes() for p in Path().iterdir()}


# --- rounds ---------------------------------------------------------------------------------------
SMALL = rounds.Round(
    "product", "a small product", {"x": (64, 64)}, {"w": (64, 64)}, "y = MatMul(x, w)", 64, 5e5
)


def played(chosen: rounds.Round, python: dict[str, str] | None = None) -> rounds.Verdicts:
    settings = Settings("cpu", seconds=0.01, pythons=python or {})
    return rounds.play(["ort-cpu"], settings, chosen=[chosen])


def test_a_round_has_a_verdict_by_measurement() -> None:
    found = played(SMALL)
    assert found.ok and found.most > 1
    said = found.text()[0]
    assert said.startswith("round 1: a small product: ") and "against ort-cpu" in said
    assert found.to_json()["verdicts"][0] == said
    for ratio, word in (
        ((1.2, 1.1, 1.3), "won"),
        ((1.0, 0.9, 1.1), "drawn"),
        ((0.9, 0.8, 0.99), "lost"),
    ):
        found.rows[0].programs["ort-cpu"].ratio = ratio
        assert found.verdict(found.rows[0]).startswith(f"{word} against ort-cpu")


def test_no_figure_is_above_what_the_device_can_do() -> None:
    found = played(replace(SMALL, operations=1e15))
    assert not found.ok and "GFLOP/s are more than this device reaches" in found.text()[0]
    assert all(m.us is None and m.ratio is None for m in found.rows[0].programs.values())
    assert "round 1: a small product: not measured" in found.text()


def test_a_round_is_compared_with_float64(other: Any) -> None:
    found = played(SMALL, {"ours": other(result="v * 1.0001")["ours"]})
    assert not found.ok
    assert found.text()[0].startswith("ours at a small product is WRONG: it is off by 1.0e-04")


@pytest.mark.parametrize("r", rounds.rounds(large=True), ids=lambda r: str(r.name))
def test_rounds_of_a_gpu_are_those_of_a_cpu_at_other_sizes(r: rounds.Round) -> None:
    (same,) = (s for s in rounds.rounds(large=False) if s.name == r.name)
    assert (r.nodes, r.inputs.keys()) == (same.nodes, same.inputs.keys())
    assert r.operations > 4 * same.operations and r.name in round_functions.FUNCTIONS


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib (plot) is not installed"
)
def test_a_plot_has_every_batch_and_peer(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.svg"
    arguments = ["--backend", "cpu", "--batch", "1,2", "--seconds", "0.01", "--plot", str(file)]
    assert main(["bench", str(model), *arguments]) == 0
    words = " ".join("".join(e.itertext()) for e in ElementTree.parse(file).iter())
    for word in ("cnn.onnx: times as fast as each peer", "batch 1", "batch 2", "ort-cpu"):
        assert word in words


def test_a_plot_without_matplotlib_is_an_error_before_anything_is_timed(
    model: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", str(model), "--plot", str(tmp_path / "p.svg")]) == 2
    assert "pictures need matplotlib" in capsys.readouterr().err
