"""Shells complete the command's words, from the scripts that it prints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tracea_onnx.cli.completion import script
from tracea_onnx.cli.main import main, parser
from tracea_onnx.codegen import backend

SHELLS = ("bash", "zsh", "fish")


def shell(name: str, *arguments: str, folder: Path) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [found, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr, done.stderr
    return done.stdout


#: What zsh does at a Tab, but that it prints what it would offer.
_ZSH = r"""
autoload -Uz compinit; compinit -u -D; source ./script.zsh
words=("${(@s: :)1}"); CURRENT=$#words
compadd() { [[ $1 == - ]] && print -rl -- ${(M)${@:2}:#${words[CURRENT]}*} }
_default() { print -rl -- * }
_bash_complete -o default -F _tracea_onnx
"""


def completed(name: str, line: str, folder: Path) -> set[str]:
    """What the shell offers at the end of the line."""
    file = folder / f"script.{name}"
    file.write_text("\n".join(script(parser(), name)) + "\n")
    if name == "fish":
        out = shell("fish", "-c", f"source {file.name}; complete -C '{line}'", folder=folder)
        return {word.split("\t")[0] for word in out.splitlines()}
    if name == "zsh":
        return set(shell("zsh", "-f", "-c", _ZSH, "zsh", line, folder=folder).split())
    words = line.split(" ")
    code = (
        f"source {file.name}; COMP_WORDS=({' '.join(w or repr('') for w in words)}); "
        f"COMP_CWORD={len(words) - 1}; _tracea_onnx; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return set(shell("bash", "--norc", "-c", code, folder=folder).split())


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tracea-onnx in", {"inspect", "inline"}),
        ("tracea-onnx explain --backend ", {"auto", *backend.names()}),
        ("tracea-onnx cache ", {"list", "size", "clear"}),
        ("tracea-onnx inline --e", {"--external-data"}),
        ("tracea-onnx --color ", {"auto", "always", "never"}),
    ],
)
def test_words_are_offered(name: str, line: str, offered: set[str], tmp_path: Path) -> None:
    assert completed(name, line, tmp_path) == offered


@pytest.mark.parametrize("name", SHELLS)
def test_files_are_offered_where_a_model_goes(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    found = completed(name, "tracea-onnx optimize ", tmp_path)
    # bash completes files itself where the function offers nothing
    assert not found if name == "bash" else "model.onnx" in found


@pytest.mark.parametrize("name", SHELLS)
def test_the_command_prints_the_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", name]) == 0
    assert capsys.readouterr().out == "\n".join(script(parser(), name)) + "\n"
