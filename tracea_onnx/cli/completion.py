"""tracea-onnx completion: print what lets a shell complete this command. In .bashrc: source
<(tracea-onnx completion bash); in .zshrc the same with zsh; for fish write it to
~/.config/fish/completions/tracea-onnx.fish.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tracea_onnx.cli import options

_NAME = "tracea-onnx"


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "completion", help="print what lets a shell complete this command", description=__doc__
    )
    p.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    print("\n".join(script(args.parser, args.shell)))
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> Iterator[str]:
    """Lines that the shell reads."""
    if shell == "fish":
        return _fish(parser)
    return _bash(parser, zsh=shell == "zsh")


def _commands(parser: argparse.ArgumentParser) -> dict[str, tuple[str, list[argparse.Action]]]:
    """Each command's help and arguments; those before any command are of ""."""
    (found,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {a.dest: a.help or "" for a in found._choices_actions}
    top = [a for a in parser._actions if a is not found]
    return {"": ("", top), **{n: (helps[n], p._actions) for n, p in found.choices.items()}}


def _bash(parser: argparse.ArgumentParser, *, zsh: bool) -> Iterator[str]:
    """Words of the command so far, or of the option in front; else files."""
    commands = _commands(parser)
    names = " ".join(filter(None, commands))
    if zsh:
        yield "autoload -Uz compinit bashcompinit"
        yield "(( $+functions[compdef] )) || compinit"
        yield "bashcompinit"
    yield "_tracea_onnx() {"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '  local command="" offers="" word'
    yield '  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do'
    yield f'    case "$word" in {names.replace(" ", "|")}) command=$word; break;; esac'
    yield "  done"
    yield '  case "$command:$before" in'
    values: dict[str, list[str]] = {}
    for name, (_, actions) in commands.items():
        for a in actions:
            if a.option_strings and a.nargs != 0:
                words = " ".join(map(str, a.choices or ()))
                values.setdefault(words, []).extend(f"{name}:{o}" for o in a.option_strings)
    for words, places in values.items():
        yield f'    {"|".join(places)}) offers="{words}";;'
    yield '    *) case "$command:$current" in'
    for name, (_, actions) in commands.items():
        spelled = " ".join(o for a in actions for o in a.option_strings)
        yield f'      {name}:-*) offers="{spelled}";;'
        chosen = [str(c) for a in actions if not a.option_strings for c in a.choices or ()]
        words = " ".join(chosen) if name else names
        if words:
            yield f'      {name}:*) offers="{words}";;'
    yield "    esac;;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$offers" -- "$current"))'
    yield "}"
    yield f"complete -o default -F _tracea_onnx {_NAME}"


def _fish(parser: argparse.ArgumentParser) -> Iterator[str]:
    for name, (said, actions) in _commands(parser).items():
        here = f"__fish_seen_subcommand_from {name}" if name else "__fish_use_subcommand"
        if name:
            yield f"complete -c {_NAME} -f -n __fish_use_subcommand -a {name} -d {_quoted(said)}"
        for a in actions:
            if a.option_strings or a.choices is not None:
                yield f"complete -c {_NAME} -n {_quoted(here)}{_fish_action(a)}"


def _fish_action(action: argparse.Action) -> str:
    out = "".join(
        f" -l {o[2:]}" if o.startswith("--") else f" -s {o[1:]}" for o in action.option_strings
    )
    if action.choices is not None:
        out += (" -x" if out else " -f") + f" -a {_quoted(' '.join(map(str, action.choices)))}"
    elif action.nargs != 0:
        out += " -r -F" if action.type is Path else " -x"
    shown = action.help if action.help not in (None, argparse.SUPPRESS) else ""
    return out + (f" -d {_quoted(shown)}" if shown else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
