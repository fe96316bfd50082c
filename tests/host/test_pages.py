"""The documentation says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tracea_onnx
from benchmarks import harness
from tools import pages
from tracea_onnx import provider

FIGURES = sorted(
    str(p.relative_to(pages.RESULTS).with_suffix("")) for p in pages.RESULTS.rglob("*.json")
)


@pytest.mark.parametrize("page", pages.pages(), ids=lambda p: str(p.relative_to(pages.ROOT)))
def test_generated_parts_are_up_to_date(page: Path) -> None:
    """`python -m tools.pages` writes them."""
    text = page.read_text("utf-8")
    assert pages.render(text) == text
    assert text.count("<!-- generated: ") == text.count("<!-- end -->")


def test_provider_options_are_those_that_the_native_side_reads() -> None:
    read = {
        name
        for file in (pages.ROOT / "tracea_onnx" / "ep").rglob("*.cc")
        for name in re.findall(r'\boption(?:_or)?\(session, "(\w+)"', file.read_text("utf-8"))
    }
    assert read == {o.name for o in provider.OPTIONS}


def test_public_names_are_in_the_reference() -> None:
    text = (pages.ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    named = set(re.findall(r"\w+", text))
    assert set(tracea_onnx.__all__) - {"__version__"} <= named


def test_all_figures_are_shown() -> None:
    text = "".join(p.read_text("utf-8") for p in pages.pages())
    shown = set(re.findall(r"<!-- generated: results ([\w/-]+) -->", text))
    assert shown == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_say_when_and_where_they_were_measured(name: str) -> None:
    found = json.loads((pages.RESULTS / f"{name}.json").read_text("utf-8"))
    assert found["date"] and found["machine"]


def test_what_a_benchmark_writes_makes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    args = harness.parser("").parse_args(["--json", str(tmp_path / "new.json")])
    report = harness.Report("benchmarks.models", args, device=False)
    report.row("a", "", times=harness.Times({"ours": 2.0, "ort": 3.0}, {"ort": (1.5, 1.4, 1.6)}))
    report.row("b", "", times=harness.Times({"ours": 2.0, "ort": 1.0}, {"ort": (0.5, 0.4, 0.6)}))
    text = pages.render("<!-- generated: results new -->\n<!-- end -->")
    assert "| a | 2.00 | 3.00 | 1.500 [1.400, 1.600] |" in text
    assert "- **Loss**: b: ort is faster" in text


def test_lines_of_prose_are_short() -> None:
    """Tables and what is generated may be wider."""
    for page in (*pages.pages(), pages.ROOT / "README.md", pages.ROOT / "CONTRIBUTING.md"):
        prose = re.sub(r"<!-- generated.*?<!-- end -->", "", page.read_text("utf-8"), flags=re.S)
        long = [t for t in prose.splitlines() if len(t) > 100 and not t.startswith("|")]
        assert not long, page
