"""Refusals: every code is used, gets the operands that its sentence names, and makes one line."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracea_onnx
from tracea_onnx.ir.refusals import Reason, Why, reason
from tracea_onnx.support import discovery

_PACKAGE = Path(tracea_onnx.__file__).parent
_SOURCES = [
    *sorted(_PACKAGE.rglob("*.py")),
    *(
        p
        for kind in ("fusion_rules", "scheduler")
        for p in sorted(discovery.folder(kind).glob("*"))
    ),
]


def operands(why: Why) -> set[str]:
    """Names of the operands of a sentence, without attributes and formats."""
    return {name for _, name, _, _ in string.Formatter().parse(why.sentence) if name}


def codes(tree: ast.AST) -> Iterator[Why]:
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "Why":
            yield Why[n.attr]


def calls() -> Iterator[tuple[str, Why, set[str]]]:
    """(place, code, names of the operands given) wherever the call names its code."""
    for path in _SOURCES:
        for n in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
            if isinstance(n, ast.Call) and getattr(n.func, "id", "") in ("Refuse", "reason"):
                given = {k.arg or "" for k in n.keywords} | ({"node"} if len(n.args) > 1 else set())
                for why in codes(n.args[0]):
                    yield f"{path.name}:{n.lineno}", why, given


def test_every_call_gives_the_operands_of_its_sentence() -> None:
    found = list(calls())
    assert len(found) > 150
    assert [(at, why.name) for at, why, given in found if not operands(why) <= given] == []


def test_every_code_is_used() -> None:
    text = [p.read_text() for p in _SOURCES if p.suffix == ".py" and p.name != "refusals.py"]
    assert set(Why) == {why for t in text for why in codes(ast.parse(t))}


@pytest.mark.parametrize("why", Why)
def test_a_sentence_is_one_line_that_holds_its_operands(why: Why) -> None:
    given = {name: k + 100 for k, name in enumerate(sorted(operands(why)))}
    text = str(Reason(why, given))
    assert "\n" not in text and not text.endswith(".") and "{" not in text
    assert all(str(v) in text for v in given.values())


def test_nodes_and_refusals_inside_a_reason_become_words() -> None:
    inner = reason(Why.RANK_UNKNOWN, value="v")
    said = reason(Why.HALVES_APART, node="Add 'a'", because=inner)
    assert str(said) == (
        "the halves of Add 'a' do not meet in one pointwise chain: the rank of 'v' is not known"
    )
    assert said.code == "halves_apart"
