"""The page of `explain --html`: what is in it, its contrast, and (where there is a Chromium) that
it works in a browser, by keys alone.
"""

from __future__ import annotations

import colorsys
import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from tests.host.pipeline_models import RULES, leaving, parse, small_cnn
from tracea_onnx.explain import explanation, html_page
from tracea_onnx.explain.layout import HEIGHT, WIDTH, layout

_VOID = ("meta", "br", "input")


class Page(HTMLParser):
    """Tags with their attributes, a check that they nest, and the embedded data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
        assert found
        self.data: dict[str, Any] = json.loads(found[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def page(model: ModelProto, **options: Any) -> str:
    return html_page.page(explanation.explain(model, backend="cpu", **options))


def branches() -> ModelProto:
    return parse(
        "g (float[3] x, bool c) => (float[3] y) { y = If (c) <then_branch = t () => (float[3] u) "
        "{ s = Add (x, x) u = Relu (s) },"
        " else_branch = e () => (float[3] v) { v = Neg (x) }> }"
    )


def test_the_page_holds_everything_and_nothing_from_elsewhere() -> None:
    text = page(leaving(), provider=True)
    found = Page(text)
    (graph,) = found.data["graphs"]
    (fused,) = (b for b in graph["boxes"] if b["kind"] == "fused")
    assert "Fused by conv, saves about" in fused["says"][0]
    assert fused["nodes"] == ["Conv_a", "Relu_y"] and fused["values"] == ["y [1, 4, 8, 8]"]
    gone = [b["leaves"] for b in graph["boxes"] if "leaves" in b]
    assert len(gone) == 2 and "no kernel computes RandomUniformLike" in gone
    names = {b["name"] for b in graph["boxes"]}
    listed = {a["data-go"] for _, a in found.tags if "data-go" in a}
    assert listed and listed <= names
    for a, b, *curves in graph["edges"]:
        assert graph["curves"][curves[0]][0] == graph["boxes"][a]["x"]
        assert graph["curves"][curves[-1]][-2] == graph["boxes"][b]["x"]
    assert not re.search(r"https?:|<link|src=|@import|url\(", text) and "{{" not in text
    assert "default-src 'none'" in text  # a browser would load nothing, whatever names say


def test_what_is_said_of_many_nodes_is_said_once() -> None:
    nodes = "".join(f"y{k} = LRN <size = 3> (x{k}) " for k in range(4))
    of = ", ".join(f"float[1, 3, 8, 8] {{}}{k}" for k in range(4))
    m = parse(f"g ({of.format(*'xxxx')}) => ({of.format(*'yyyy')}) {{ {nodes} }}")
    text = page(m)
    said = explanation.explain(m, backend="cpu").anchors[0].refusals[0].said
    assert text.count(f"<span>{escape(said)}</span>") == 1 and "<summary>3 more</summary>" in text
    listed = [a["data-go"] for _, a in Page(text).tags if "data-go" in a]
    assert listed == [f"LRN_y{k}" for k in range(4)]


def test_controls_have_names() -> None:
    tags = Page(page(branches(), provider=True)).tags
    for tag, a in tags:
        if tag in ("input", "select", "canvas", "aside", "section"):
            assert a.get("aria-label") or a.get("aria-hidden"), (tag, a)
    ids = {a["id"] for _, a in tags if "id" in a}
    for key in ("aria-describedby", "aria-controls", "aria-labelledby"):
        assert {a[key] for _, a in tags if key in a} <= ids


def test_names_are_escaped() -> None:
    m = small_cnn()
    m.graph.node[0].name, m.graph.name = "</script><script>&\"'", "<b>"
    text = page(m, rules=RULES)
    assert text.count("</script>") == 2 and "<b></title>" not in text
    names = {n for b in Page(text).data["graphs"][0]["boxes"] for n in b.get("nodes", [b["name"]])}
    assert m.graph.node[0].name in names


def test_bodies_are_drawn_too() -> None:
    found = Page(page(branches(), rules=RULES))
    titles = [g["title"] for g in found.data["graphs"]]
    assert titles[0] == "main graph" and sorted(titles[1:]) == ["body e", "body t"]
    assert [t for t, _ in found.tags].count("option") == 3


# --- layout ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(8))
def test_boxes_do_not_overlap_and_values_run_downwards(seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = [f"b{k}" for k in range(int(rng.integers(2, 80)))]
    edges = sorted(
        {
            (boxes[a], boxes[b])
            for b in range(1, len(boxes))
            for a in rng.integers(max(0, b - 30), b, size=int(rng.integers(1, 4)))
        }
    )
    sources = [b for b in boxes if all(b != to for _, to in edges)][1:]
    found = layout(boxes, edges, sources)
    rows: dict[float, list[float]] = {}
    for x, y in found.at.values():
        rows.setdefault(y, []).append(x)
        assert WIDTH / 2 <= x <= found.size[0] - WIDTH / 2 and 0 <= y <= found.size[1] - HEIGHT
    assert all(b - a >= WIDTH for row in rows.values() for a, b in pairwise(sorted(row)))
    for (a, b), way in zip(edges, found.ways, strict=True):
        curves = [found.curves[k] for k in way]
        assert all(c[0][1] < c[3][1] for c in curves)
        assert all(c[3] == d[0] for c, d in pairwise(curves))  # they meet
        assert curves[0][0] == (found.at[a][0], found.at[a][1] + HEIGHT)
        assert curves[-1][3] == found.at[b]


def test_a_deep_drawing_stands_straight() -> None:
    """Blocks that lean to one side do not lead the next ones there."""
    boxes, edges = ["x0"], []
    for k in range(200):
        a, b, c, x = f"a{k}", f"b{k}", f"c{k}", f"x{k + 1}"
        boxes += [a, b, c, x]
        edges += [(f"x{k}", a), (f"x{k}", b), (f"x{k}", x), (b, c), (a, c), (c, x)]
    assert layout(boxes, edges, []).size[0] < 6 * WIDTH


# --- contrast -------------------------------------------------------------------------------------
def _themes() -> list[dict[str, str]]:
    """Colours of the light theme, and of the dark one."""
    css = html_page._file("page.css")
    light = dict(re.findall(r"--([\w-]+): ([#\w%]+);", css[: css.index("@media")]))
    dark = css[css.index("@media (prefers-color-scheme: dark)") :]
    found = re.findall(r"--([\w-]+): ([#\w%]+);", dark[: dark.index("\n}")])
    return [light, light | dict(found)]


def _luminance(rgb: tuple[float, ...]) -> float:
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", _themes(), ids=["light", "dark"])
def test_texts_and_marks_stand_out(theme: dict[str, str]) -> None:
    def rgb(name: str) -> tuple[float, ...]:
        return tuple(int(theme[name][k : k + 2], 16) / 255 for k in (1, 3, 5))

    for ground in ("back", "side", "box"):
        for ink in ("text", "soft"):
            assert _contrast(rgb(ink), rgb(ground)) >= 4.5, (ink, ground)
    for ink in ("warn", "gone", "focus"):
        assert _contrast(rgb(ink), rgb("back")) >= 4.5 and _contrast(rgb(ink), rgb("side")) >= 4.5
    assert _contrast(rgb("edge"), rgb("back")) >= 3
    light, saturation = (int(theme[k].rstrip("%")) / 100 for k in ("fill-l", "fill-s"))
    for hue in range(0, 360, 10):
        fill = colorsys.hls_to_rgb(hue / 360, light, saturation)
        assert _contrast(rgb("label"), fill) >= 4.5, hue


# --- in a browser ---------------------------------------------------------------------------------
_BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
#: Runs in the page, and leaves `result` there.
_VISIT = """
<script>
const errors = [];
// Frames are timers: virtual time runs no others.
window.requestAnimationFrame = (f) => setTimeout(() => f(performance.now()), 16);
window.cancelAnimationFrame = clearTimeout;
addEventListener("error", (e) => errors.push(e.message));
addEventListener("DOMContentLoaded", async () => {
  const result = {};
  const settle = () => new Promise((done) => setTimeout(done, 400));
  const key = (name, more = {}) => document.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", {key: name, bubbles: true, cancelable: true, ...more}));
  const say = () => detail.hidden ? "" : detail.querySelector(".name").textContent;
  await settle();
  result.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  result.ground = [...pen.getImageData(3, 3, 1, 1).data];
  canvas.focus();
  key("Home"); result.home = say();
  key("ArrowDown"); result.down = say();
  key("ArrowDown"); result.further = say();
  key("ArrowUp"); result.up = say();
  key("End"); result.end = say();
  await settle();
  result.centred = [chosen.x - view.x - wide / view.k / 2,
    chosen.y + HEIGHT / 2 - view.y - high / view.k / 2].map(Math.round);
  key("Enter"); result.inside = document.activeElement === detail;
  key("Escape"); result.closed = say() === "" && document.activeElement === canvas;
  key("/"); result.searching = document.activeElement.id;
  $("#find").value = "RandomUniformLike";
  $("#find").dispatchEvent(new Event("input", {bubbles: true}));
  result.hits = $("#hits").textContent;
  key("Enter"); result.hit = say();
  key("Escape"); result.cleared = $("#find").value === "" && hits === null;
  const before = view.k;
  key("+"); result.nearer = view.k > before;
  key("0"); result.fits = view.k <= 1 && wide / view.k >= graph.size[0];
  key("?"); result.help = $("#about").open; $("#about").close();
  $("[data-rule]").click(); result.shown = [...hits].map((b) => b.kind);
  $("[data-rule]").click(); result.all = hits === null;
  $("[data-go]").click(); result.gone = say();
  key("Escape");
  const mouse = (kind) => canvas.dispatchEvent(new PointerEvent(kind, {pointerId: 1, bubbles: true,
    clientX: 0, clientY: 0, ...at}));
  const b = graph.boxes.find((b) => b.kind === "fused"), r = canvas.getBoundingClientRect();
  canvas.setPointerCapture = () => {};
  const at = {clientX: r.left + (b.x - view.x) * view.k, clientY: r.top + (b.y + 9 - view.y) *
    view.k};
  mouse("pointermove"); result.tip = tip.textContent;
  mouse("pointerdown"); mouse("pointerup"); result.clicked = say();
  result.wide = document.documentElement.scrollWidth <= innerWidth;
  result.errors = errors;
  document.documentElement.dataset.result = JSON.stringify(result);
});
</script>
"""


def visit(text: str, folder: Path, *, dark: bool = False, width: int = 1200) -> dict[str, Any]:
    """What the visitor found in the page."""
    if _BROWSER is None:
        pytest.skip("no Chromium is installed, which this test would show the page to")
    file = folder / "page.html"
    file.write_text(text.replace("</head>", f"{_VISIT}</head>"), encoding="utf-8")
    done = subprocess.run(
        [
            _BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},800",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'data-result="(.*?)"', done.stdout)
    assert found, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result


@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 600)])
def test_the_page_works_by_keys_and_by_mouse(tmp_path: Path, dark: bool, width: int) -> None:
    text = page(leaving(), provider=True)
    boxes = Page(text).data["graphs"][0]["boxes"]
    names = [b["name"] for b in boxes]
    fused = next(b["name"] for b in boxes if b["kind"] == "fused")
    found = visit(text, tmp_path, dark=dark, width=width)
    assert found["errors"] == []
    ground = _themes()[dark]["back"]
    assert found["dark"] is dark and found["ground"][:3] == list(bytes.fromhex(ground[1:]))
    assert found["home"] in names and found["down"] in names and found["end"] in names
    assert found["home"] != found["down"] != found["further"] and found["up"] == found["down"]
    assert found["centred"] == [0, 0]
    assert found["inside"] and found["closed"] and found["searching"] == "find"
    assert found["hits"].startswith("1 found") and found["hit"] == "RandomUniformLike_h"
    for key in ("cleared", "nearer", "fits", "help", "all", "wide"):
        assert found[key], key
    assert found["shown"] == ["fused"] and found["gone"] in names
    assert fused in found["tip"] and found["clicked"] == fused


def test_a_hostile_name_runs_nothing(tmp_path: Path) -> None:
    m = leaving()
    evil = "<img src=x onerror=\"errors.push('ran')\"><script>errors.push('ran')</script>"
    for n in m.graph.node:
        n.name = evil + n.op_type
    found = visit(page(m, provider=True), tmp_path)
    assert found["errors"] == [] and escape(evil) not in found["home"]
