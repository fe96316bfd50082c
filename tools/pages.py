"""Writes the generated parts of the documentation: python -m tools.pages [--check]

A part lies between `<!-- generated: KIND [ARGUMENT] -->` and `<!-- end -->` in a page of `docs/`.
Its text comes from the code (options, refusals, errors, specs), or from figures in
`benchmarks/results/` (`results NAME`). `tests/host/test_pages.py` fails where a page is out of
date.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tracea_onnx import errors, provider
from tracea_onnx.cli import main
from tracea_onnx.ir.refusals import Advice, Why
from tracea_onnx.match import spec_table
from tracea_onnx.support import discovery

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_PART = re.compile(r"(<!-- generated: (\w+) ?([\w/-]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """The pages that may have generated parts."""
    return sorted((ROOT / "docs").rglob("*.md"))


def render(page: str) -> str:
    """The text of a page with all its parts made anew."""
    return _PART.sub(
        lambda m: m[1] + "\n" + "\n".join(KINDS[m[2]](*m[3].split())) + "\n\n" + m[4], page
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


# --- from the code ----------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    """A section for each command, with a table of its arguments."""
    (subparsers,) = (a for a in main.parser()._actions if isinstance(a, argparse._SubParsersAction))
    helps = {a.dest: a.help or "" for a in subparsers._choices_actions}
    for name, command in subparsers.choices.items():
        yield from (f"### {name}", "", f"{_sentence(helps[name])}", "")
        yield from _table(("argument", "what it does"), map(_argument, _visible(command)))
        yield ""


def _visible(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (
        a
        for a in command._actions
        if a.help != argparse.SUPPRESS and not isinstance(a, argparse._HelpAction)
    )


def _argument(action: argparse.Action) -> tuple[str, str]:
    value = str(action.metavar or (action.dest if not action.option_strings else ""))
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    elif action.option_strings and action.nargs != 0 and not action.metavar:
        value = action.dest.upper()
    if action.nargs == 0:
        value = ""
    spelled = ", ".join(action.option_strings)
    return f"`{f'{spelled} {value}'.strip()}`", _sentence(action.help or "")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _provider_options() -> Iterator[str]:
    return _table(
        ("option", "values", "default", "what it does"),
        (
            (f"`{o.name}`", o.values, o.default and f"`{o.default}`", _sentence(o.help))
            for o in provider.OPTIONS
        ),
    )


#: The errors that users see, one for each exit code.
_ERRORS: tuple[type[errors.TraceaError], ...] = (
    errors.TraceaError,
    errors.UsageError,
    errors.ModelError,
    errors.VerificationError,
    errors.MissingFusionError,
)


def _exit_codes() -> Iterator[str]:
    rows = [("0", "The command did what it was asked to do.")]
    rows += [(str(k.exit_code), " ".join((k.__doc__ or "").split())) for k in _ERRORS]
    return _table(("code", "meaning"), [*rows, ("130", "Ctrl-C ended the command.")])


def _refusals() -> Iterator[str]:
    """Refusals that a user can lift, by what lifts them; then the others."""
    words = {
        Advice.CONSTANT: "an operand is not constant: `explain` names the option of the exporter",
        Advice.SHAPES: "a shape is not known: `explain` names the node where shapes are lost",
        Advice.OUTPUT: "a value is an output of the model: leave it out if nobody needs it",
        Advice.NONE: "nothing in the model: no kernel computes this chain as one",
    }
    for advice in (a for a in Advice if a is not Advice.NONE):
        whys = [w for w in Why if w.advice is advice]
        yield from (f"**{_sentence(words.get(advice, advice.value))}**", "")
        yield from (f"- `{w.name.lower()}`: {_plain(w.sentence)}" for w in whys)
        yield ""
    yield from (f"**{_sentence(words[Advice.NONE])}**", "")
    yield from (
        f"- `{w.name.lower()}`: {_plain(w.sentence)}"
        for w in Why
        if w.advice is Advice.NONE and w.near and w is not Why.UNREAD  # a sentence of its own
    )


def _plain(template: str) -> str:
    """A template with its operands as names in italics."""
    return re.sub(r"\{(\w+)[^}]*\}", r"*\1*", template)


def _error_lines() -> Iterator[str]:
    """What the commands and the Python functions raise, by exit code; operands are `…`."""
    kinds = {k.__name__: k for k in _ERRORS}
    lines: dict[str, set[tuple[str, str]]] = {name: set() for name in kinds}
    for file in sorted((ROOT / "tracea_onnx").rglob("*.py")):
        if file.parent.name == "runtime":  # what tests and the tuner drive kernels with
            continue
        tree = ast.parse(file.read_text("utf-8"))
        texts = {
            t.id: _text(node.value, {})
            for node in tree.body
            if isinstance(node, ast.Assign)
            for t in node.targets
            if isinstance(t, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in kinds and len(node.args) == 2:
                what, fix = (_text(a, texts) for a in node.args)
                if what.strip("…: ") and fix.strip("… "):
                    lines[node.func.id].add((what, fix))
    for name, kind in kinds.items():
        if lines[name]:
            yield from (f"### Exit code {kind.exit_code}", "")
            yield from _table(("message", "what to do"), sorted(lines[name]))
            yield ""


def _text(node: ast.expr, known: dict[str, str]) -> str:
    """A string of the source; what is only known at run time becomes `…`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v, known) for v in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, known) if isinstance(node.value, ast.Name) else "…"
    return known.get(node.id, "…") or "…" if isinstance(node, ast.Name) else "…"


def _rules() -> Iterator[str]:
    """The rules of each file, with the first paragraph of its docstring."""
    rows = []
    for name in discovery.names("fusion_rules"):
        m = discovery.module("fusion_rules", name)
        rules = [m.RULE] if hasattr(m, "RULE") else m.RULES
        doc = " ".join((m.__doc__ or "").split("\n\n")[0].split())
        rows.append((", ".join(f"`{r.name}`" for r in rules), doc))
    return _table(("rule", "chain"), rows)


def _specs() -> Iterator[str]:
    return _table(("op", "roles", "attributes"), map(_spec, spec_table.OPS.values()))


def _spec(op: type[spec_table.Attributes]) -> tuple[str, str, str]:
    roles = [*op.roles, *(f"{r}?" for r in op.optional), *(["e*"] if op.extras else [])]
    optional = {n for n in op.forms() if getattr(op, n, 0) in (None, ())}
    attrs = [f"{n}?" if n in optional else n for n in op.forms()]
    return f"`{op.op}`", ", ".join(roles) or "x0, x1, ...", ", ".join(attrs)


# --- from measurements ------------------------------------------------------------------------


def _results(name: str) -> Iterator[str]:
    """The tables of one claim, where and when they were measured, what was lost.

    `columns` have names and formats of a cell: of a number, or of a list that is spread over it. A
    text stands as it is, and null leaves the cell empty. What a program of `benchmarks/` wrote
    with --json will do, too.
    """
    found = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    if "program" in found:
        found = _measured(found)
    yield ", ".join(str(found[k]) for k in ("date", "machine", "versions") if found.get(k)) + "."
    if found.get("commands"):
        yield from ("", *(f"    {command}" for command in found["commands"]))
    for table in found["tables"]:
        yield ""
        if table.get("title"):
            yield from (table["title"], "")
        formats = [c.get("format", "{}") for c in table["columns"]]
        yield from _table(
            [c["name"] for c in table["columns"]],
            ([_cell(v, f) for v, f in zip(row, formats, strict=True)] for row in table["rows"]),
        )
    for head in ("losses", "notes"):
        if found.get(head):
            yield ""
            yield from (f"- **Loss**: {n}" if head == "losses" else f"- {n}" for n in found[head])


def _measured(report: dict[str, Any]) -> dict[str, Any]:
    """The rows of `benchmarks.harness.Report` that have times, as a table: microseconds of each
    variant, and each peer's time over ours.
    """
    rows = [r for r in report["rows"] if r.get("times")]
    variants = list(dict.fromkeys(v for r in rows for v in r["times"]["us"]))
    peers = list(dict.fromkeys(v for r in rows for v in r["times"]["ratios"]))
    return {
        "date": report["date"],
        "machine": report["gpu"].get("device", "") or report["machine"],
        "versions": report["machine"] if report["gpu"] else "",
        "commands": [f"python -m {report['program']}"],
        "tables": [
            {
                "columns": [
                    {"name": "name"},
                    *({"name": f"{v}, us", "format": "{:.2f}"} for v in variants),
                    *({"name": f"{v} / ours", "format": "{:.3f} [{:.3f}, {:.3f}]"} for v in peers),
                ],
                "rows": [
                    [
                        r["name"],
                        *(r["times"]["us"].get(v) for v in variants),
                        *(r["times"]["ratios"].get(v) for v in peers),
                    ]
                    for r in rows
                ],
            }
        ],
        "losses": [
            f"{r['name']}: {v} is faster" for r in rows for v in peers
            if r["times"]["ratios"].get(v, [1])[0] < 1
        ],
    }  # fmt: skip


def _cell(value: Any, form: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return form.format(*value) if isinstance(value, list) else form.format(value)


KINDS: dict[str, Callable[..., Iterator[str]]] = {
    "commands": _commands,
    "provider_options": _provider_options,
    "exit_codes": _exit_codes,
    "refusals": _refusals,
    "error_lines": _error_lines,
    "rules": _rules,
    "specs": _specs,
    "results": _results,
}


def run(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument(
        "--check", action="store_true", help="write nothing; 1 where a page would change"
    )
    check = p.parse_args(argv).check
    stale = [page for page in pages() if render(page.read_text("utf-8")) != page.read_text("utf-8")]
    for page in stale:
        print(page.relative_to(ROOT))
        if not check:
            page.write_text(render(page.read_text("utf-8")), "utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(run())
