"""The documentation says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools import pages
from tracea_onnx import provider


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
        for name in re.findall(r'\boption\(session, "(\w+)"\)', file.read_text("utf-8"))
    }
    assert read == {o.name for o in provider.OPTIONS}


def test_all_figures_are_shown() -> None:
    text = "".join(p.read_text("utf-8") for p in pages.pages())
    shown = set(re.findall(r"<!-- generated: results ([\w-]+) -->", text))
    assert shown == {p.stem for p in pages.RESULTS.glob("*.json")}


@pytest.mark.parametrize("file", sorted(pages.RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_figures_say_when_and_where_they_were_measured(file: Path) -> None:
    found = json.loads(file.read_text("utf-8"))
    assert found["date"] and found["machine"]
    assert all(len(row) == len(t["columns"]) for t in found["tables"] for row in t["rows"])


def test_lines_of_prose_are_short() -> None:
    """Tables and what is generated may be wider."""
    written = [p for p in pages.pages() if p.stem != "benchmarks"]
    for page in (*written, pages.ROOT / "README.md", pages.ROOT / "CONTRIBUTING.md"):
        prose = re.sub(r"<!-- generated.*?<!-- end -->", "", page.read_text("utf-8"), flags=re.S)
        long = [t for t in prose.splitlines() if len(t) > 100 and not t.startswith("|")]
        assert not long, page
