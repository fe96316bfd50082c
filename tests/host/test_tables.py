"""Reports in a notebook say what they say on a terminal."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

from tests.host.pipeline_models import leaving, small_cnn
from tracea_onnx import optimize
from tracea_onnx.explain import explanation
from tracea_onnx.pipeline import report
from tracea_onnx.support import tables


class Cells(HTMLParser):
    """The text between tags, one piece each; checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def test_numbers_stand_right_and_nothing_is_markup() -> None:
    parts: list[str | tables.Table] = [
        "<b>",
        "",
        [("name", "n"), ("<i>&", "12"), ("longer", "3 us")],
    ]
    assert tables.lines(parts) == ["<b>", "", "", "name    n", "<i>&      12", "longer  3 us"]
    text = tables.html(parts)
    assert Cells(text).found == ["<b>", "name", "n", "<i>&", "12", "longer", "3 us"]
    sides = re.findall(r'<t([hd]) style="text-align: (\w+)">', text)
    assert sides == [("h", "left"), ("h", "right"), *[("d", "left"), ("d", "right")] * 2]


def test_a_result_shows_its_report() -> None:
    result = optimize(small_cnn(), backend="cpu")
    found = Cells(result._repr_html_()).found
    words = " ".join(report.text(result.report)).split()
    assert words and set(words) <= set(" ".join(found).split())
    assert result.report.verify is not None
    assert result.report.verify.text()[0] in Cells(result.report.verify._repr_html_()).found


def test_an_explanation_shows_what_is_left_and_why() -> None:
    found = explanation.explain(leaving(), backend="cpu", provider=True)
    cells = Cells(found._repr_html_()).found
    left = [e for e in found.anchors if not e.fused_by and not e.light]
    assert all(unescape(e.refusals[0].said) in cells for e in left)
    assert "no kernel computes RandomUniformLike" in cells and "conv" in cells
