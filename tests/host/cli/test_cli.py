"""The command line as a user meets it: exit codes, one-line errors, JSON on stdout and text on
stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.host.pipeline_models import copy, normal, parse, run, same_bits, small_cnn
from tracea_onnx.cli import options
from tracea_onnx.cli.main import main
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import fusion_loop, optimizer

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "cnn.onnx"
    onnx.save(small_cnn(), str(path))
    return path


def test_optimize_writes_beside_the_model_and_reports(model: Path, capsys: Captured) -> None:
    assert main(["optimize", str(model), "--json", "--backend", "cpu"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (
        found["nodes_after"] < found["nodes_before"]
        and found["verify"]["ok"]
        and found["files"] == [str(model.with_name("cnn.tracea.onnx"))]
    )
    assert "nodes  8 ->" in err and "verification passed" in err and "\x1b" not in err
    feeds = {"image": normal(2, 3, 8, 8)}
    assert same_bits(run(small_cnn(), feeds), run(onnx.load(found["files"][0]), feeds))


def test_the_way_round_optimize_inspect_inline_verify(
    model: Path, tmp_path: Path, capsys: Captured
) -> None:
    fused, plain = tmp_path / "f.onnx", tmp_path / "p.onnx"
    assert main(["optimize", str(model), "-o", str(fused)]) == 0
    assert main(["inspect", str(fused), "--all"]) == 0
    assert "\n    from Conv_a, Relu_r" in capsys.readouterr().err
    assert main(["inspect", str(fused), "--json"]) == 0
    assert main(["inline", str(fused), "-o", str(plain)]) == 0
    capsys.readouterr()
    assert main(["verify", str(model), str(plain), "--json", "--input-shape", "image:3,3,8,8"]) == 0
    found = json.loads(capsys.readouterr().out)["verify"]
    assert (
        found["ok"]
        and found["inputs"] == {"image": [3, 3, 8, 8]}
        and found["outputs"][0]["max_abs"] == 0
    )
    assert "ai.tracea" not in {n.domain for n in onnx.load(str(plain)).graph.node}


def test_a_dry_run_shows_prices_and_writes_nothing(model: Path, capsys: Captured) -> None:
    assert main(["optimize", str(model), "--dry-run"]) == 0
    assert " us" in capsys.readouterr().err and [p.name for p in model.parent.iterdir()] == [
        "cnn.onnx"
    ]


def test_explain(model: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["explain", str(model), "--json"]) == 0
    out, err = capsys.readouterr()
    keys = {"anchor", "op", "fused_by", "nodes", "nearest", "fix", "light", "refusals"}
    assert (
        "were fused" in err
        and all(keys == a.keys() for a in json.loads(out)["anchors"])
        and json.loads(out)["provider"] is None
    )
    assert (
        main(
            [
                "explain",
                str(model),
                "--backend",
                "cuda",
                "--html",
                str(tmp_path / "p.html"),
                "--json",
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert (
        "on the provider (cuda)" in err
        and json.loads(out)["provider"]["backend"] == "cuda"
        and "<canvas" in (tmp_path / "p.html").read_text()
    )
    assert main(["explain", str(model), "--node", "nobody"]) == 2
    assert main(["explain", str(model), "--html", str(tmp_path / "no" / "p.html")]) == 2


def test_verify_fails_with_4_and_says_by_how_much(
    model: Path, tmp_path: Path, capsys: Captured
) -> None:
    other = copy(small_cnn())
    other.graph.initializer[3].CopyFrom(
        onnx.numpy_helper.from_array(normal(5, 7, seed=99), other.graph.initializer[3].name)
    )
    onnx.save(other, str(tmp_path / "other.onnx"))
    assert main(["verify", str(model), str(tmp_path / "other.onnx"), "--json"]) == 4
    out, err = capsys.readouterr()
    assert not json.loads(out)["verify"]["ok"] and "FAILED" in err and "scores" in err


def test_a_failed_verification_writes_nothing(
    model: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = fusion_loop.transform

    def spoil(source: model_file.Source, *rest: object) -> None:
        honest(source, *rest)  # type: ignore[arg-type]
        weights = next(t for t in source.model.graph.initializer if t.name == "b3")
        weights.CopyFrom(onnx.numpy_helper.from_array(normal(5, seed=7), "b3"))

    monkeypatch.setattr(optimizer, "transform", spoil)
    assert main(["optimize", str(model), "-o", str(tmp_path / "o.onnx"), "--json"]) == 4
    out, err = capsys.readouterr()
    assert (
        not (tmp_path / "o.onnx").exists()
        and json.loads(out)["verify"]["ok"] is False
        and "error: the optimized model is wrong: output 'scores'" in err
    )


def test_given_inputs(model: Path, tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "i.npz", image=normal(5, 3, 8, 8))
    assert main(["optimize", str(model), "--load-inputs", str(tmp_path / "i.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verify"]["inputs"] == {"image": [5, 3, 8, 8]}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["optimize", "none.onnx"], 3),
        (["optimize", "bad.onnx"], 3),
        (["optimize", "cyclic.onnx"], 3),
        (["optimize", "unknown.onnx"], 3),
        (["inspect", "bad.onnx"], 3),
        (["explain", "bad.onnx"], 3),
        (["inline", "bad.onnx", "-o", "x.onnx"], 3),
        (["verify", "cnn.onnx", "bad.onnx"], 3),
        (["optimize", "cnn.onnx", "-o", "no/such/folder/x.onnx"], 2),
        (["optimize", "cnn.onnx", "-o", "."], 2),
        (["optimize", "."], 3),
        (["optimize", "pointless.onnx"], 3),
        (["optimize", "cnn.onnx", "-o", "pipe"], 2),
        (["optimize", "cnn.onnx", "--pack", "pipe"], 2),
        (["explain", "cnn.onnx", "--html", "pipe"], 2),
        (["optimize", "cnn.onnx", "--rtol", "nan"], 2),
        (["optimize", "cnn.onnx", "--seed", "-1"], 2),
        (["verify", "cnn.onnx", "cnn.onnx", "--atol", "-1"], 2),
        (["optimize", "cnn.onnx", "--only", "typo"], 2),
        (["optimize", "cnn.onnx", "--skip", "typo"], 2),
        (["optimize", "cnn.onnx", "--input-shape", "image=1"], 2),
        (["optimize", "cnn.onnx", "--input-shape", "picture:1"], 2),
        (["optimize", "cnn.onnx", "--load-inputs", "none.npz"], 2),
        (["optimize", "cnn.onnx", "--precision", "fp16"], 0),
        (["optimize", "cnn.onnx", "--precision", "bf16"], 0),
        (["optimize", "cnn.onnx", "--only", "attention"], 5),
        (["optimize", "cnn.onnx", "--input-shape", "image:0,3,8,8", "--rtol", "0"], 0),
    ],
)
def test_every_error_is_one_line_with_its_exit_code(
    model: Path, arguments: list[str], code: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    Path("bad.onnx").write_bytes(b"\x08\x08 nonsense \xff\xff")
    onnx.save(
        parse("g (float[3] x) => (float[3] y) { a = Add (x, b) b = Relu (a) y = Neg (b) }"),
        "cyclic.onnx",
    )
    onnx.save(parse("g (float[3] x) => (float[3] y) { y = Frobnicate (x) }"), "unknown.onnx")
    onnx.save(parse("g (float[3] x) => () { y = Relu (x) }"), "pointless.onnx")
    os.mkfifo("pipe")
    before = sorted(p.name for p in Path().iterdir())
    assert main(arguments) == code
    assert Path("pipe").is_fifo()
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    if code:
        assert len(err.strip().splitlines()) == 1 and err.startswith("error: ") and "; " in err
        assert sorted(p.name for p in Path().iterdir()) == before


def test_an_internal_error_is_one_line_unless_debugging(
    model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr(optimizer, "optimize", explode)
    assert main(["optimize", str(model)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: internal: ZeroDivisionError: oh;") and len(err.splitlines()) == 1
    with pytest.raises(ZeroDivisionError):
        main(["optimize", str(model), "--debug"])


def test_ctrl_c_behind_the_model_says_nothing_wrong_about_it(
    model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is there when its pack is compiled."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizer, "_pack", interrupted)
    written, pack = model.with_name("out.onnx"), model.with_name("out.pack")
    assert main(["optimize", str(model), "-o", str(written), "--pack", str(pack)]) == 130
    assert written.exists() and not pack.exists()
    onnx.checker.check_model(str(written))
    assert (
        capsys.readouterr().err.strip().splitlines()[-1]
        == "interrupted; every file is whole: as it was, or as it was to be"
    )


def test_cache_commands(tmp_path: Path, capsys: Captured) -> None:
    from tracea_onnx.support.artifact_cache import Cache

    Cache(tmp_path / "c").put("k", b"data")
    for action in ("list", "size", "clear"):
        assert main(["cache", action, "--folder", str(tmp_path / "c"), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["entries"]) == 1
    assert main(["cache", "size", "--folder", str(tmp_path / "c"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 0
    (tmp_path / "f").write_text("")
    assert main(["cache", "list", "--folder", str(tmp_path / "f")]) == 2


def test_doctor_speaks_and_its_exit_code_is_its_verdict(capsys: Captured) -> None:
    code = main(["doctor", "--quick", "--json"])
    said = capsys.readouterr()
    found = json.loads(said.out)
    fixes = [line.strip() for line in said.err.splitlines() if line.strip().startswith("fix: ")]
    # each on a line of its own
    assert fixes == [f"fix: {c['fix']}" for c in found["checks"] if not c["ok"]]
    assert found["ok"] == all(c["ok"] for c in found["checks"] if c["required"]) and code == (
        0 if found["ok"] else 1
    )


def test_usage_errors_and_help_come_from_argparse(capsys: Captured) -> None:
    for arguments, code in (
        ([], 2),
        (["optimise"], 2),
        (["optimize"], 2),
        (["--version"], 0),
        (["optimize", "--help"], 0),
    ):
        with pytest.raises(SystemExit) as e:
            main(arguments)
        assert e.value.code == code
    assert "--keep-initializer-inputs" in capsys.readouterr().out


def test_the_module_runs_as_a_program_and_survives_a_closed_pipe(model: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-m", "tracea_onnx", "inspect", str(model), "--json"],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and json.loads(done.stdout)["nodes"] == 8
    with subprocess.Popen(
        [sys.executable, "-m", "tracea_onnx", "inspect", str(model), "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as p:
        assert p.stdout is not None and p.stderr is not None
        p.stdout.close()
        assert b"Traceback" not in p.stderr.read()
    assert p.returncode == 0


def test_external_data_options(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "e.onnx"
    assert main(["optimize", str(model), "-o", str(out), "--external-data", "always"]) == 0
    assert out.with_name("e.onnx.data").is_file()
    assert (
        main(["optimize", str(out), "-o", str(tmp_path / "n.onnx"), "--external-data", "never"])
        == 0
    )
    assert model_file.load(tmp_path / "n.onnx").model.graph.initializer[0].HasField("raw_data")


def test_bytes_that_are_no_text_are_json() -> None:
    assert options.plain({"attribute": [b"\xffa", float("nan")]}) == {
        "attribute": ["\\xffa", "nan"]
    }
