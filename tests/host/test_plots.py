"""Pictures of the documentation show the figures that the repository has."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools import plots
from tracea_onnx.bench.plot import Picture, svg

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason="matplotlib (the extra plot, requirements-docs.txt) is not installed",
)


def test_pictures_of_the_documentation_are_up_to_date() -> None:
    assert not list(plots.stale()), "python -m tools.plots"


def test_another_figure_is_another_picture() -> None:
    one = Picture("t", "u", ("a",), {"peer": ((1.5, 1.4, 1.6),)})
    assert one.digest() != Picture("t", "u", ("a",), {"peer": ((1.5, 1.4, 1.7),)}).digest()


def report(ratios: dict[str, list[float]]) -> dict[str, object]:
    rows: list[dict[str, object]] = [
        {"name": "small <model>", "times": {"us": {"ours": 2.0}, "ratios": ratios}},
        {"name": "it failed", "failed": "no"},
    ]
    return {"program": "p", "date": "2026-01-02", "machine": "a CPU", "gpu": {}, "rows": rows}


def test_a_report_without_peers_says_so(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(report({})))
    with pytest.raises(SystemExit, match="measure with peers"):
        plots.run([str(tmp_path / "r.json")])


@needs_matplotlib
def test_a_report_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(report({"ort": [1.5, 1.4, 1.6]})))
    assert plots.run([str(tmp_path / "r.json"), "-o", str(tmp_path / "out.svg")]) == 0
    text = (tmp_path / "out.svg").read_text("utf-8")
    words = " ".join("".join(e.itertext()) for e in ElementTree.fromstring(text).iter())
    for word in ("small <model>", "ort", "2026-01-02, a CPU"):
        assert word in words
    assert "it failed" not in words and text == svg(
        plots.measured(report({"ort": [1.5, 1.4, 1.6]}))
    )
    # nothing is loaded from elsewhere; names of namespaces are no addresses
    assert not re.search(r'href="(?!#)|url\((?!#)|@import', text)
