"""When the command line writes in colours."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import onnx
import pytest

from tests.host.pipeline_models import small_cnn
from tracea_onnx.cli import colour
from tracea_onnx.cli.main import main

_ESCAPES = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called by tests, since pytest puts its own stderr in place before their calls."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


@pytest.mark.parametrize(
    ("options", "environment", "coloured"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, options: list[str], environment: dict[str, str], coloured: bool
) -> None:
    for line in ([*options, "inspect", "no.onnx"], ["inspect", "no.onnx", *options]):
        stream = terminal(monkeypatch)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(line) == 3
        word = "\x1b[1;31merror:\x1b[0m" if coloured else "error:"
        assert stream.getvalue().startswith(f"{word} no.onnx")


def test_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no.onnx"]) == 3 and "\x1b" not in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["inspect", "no.onnx"]) == 3 and "\x1b" in capsys.readouterr().err
    assert main(["inspect", "no.onnx", "--color", "auto"]) == 3


def test_colours_change_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(small_cnn(), str(tmp_path / "m.onnx"))
    said = []
    for choice in ("always", "never"):
        assert main(["explain", str(tmp_path / "m.onnx"), "--color", choice, "--json"]) == 0
        out, err = capsys.readouterr()
        said.append(err)
        assert "\x1b" not in out
    assert _ESCAPES.search(said[0]) and _ESCAPES.sub("", said[0]) == said[1]


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("error: x", "error:"),
        ("verification FAILED: y", "FAILED"),
        ("verification passed: y", "verification passed"),
        ("note: z", "note:"),
        ("    fix: q", "    fix:"),
        ("3 anchors were not:", "3 anchors were not:"),
    ],
)
def test_marks(monkeypatch: pytest.MonkeyPatch, line: str, mark: str) -> None:
    monkeypatch.setattr(colour, "_choice", "always")
    found = colour.painted(line)
    assert _ESCAPES.sub("", found) == line
    assert _ESCAPES.split(found)[1] == mark
    assert colour.painted("a line of a model") == "a line of a model"
