"""Pictures of measured times: how many times as fast as its peers each model is.

    python -m tools.plots                                  # the pictures of docs/
    python -m tools.plots models.json -o models.svg        # of what benchmarks/ wrote with --json

Needs the extra `plot`. The pictures of docs/ come from `benchmarks/results/`;
`tests/host/test_plots.py` fails where one is older than its figures.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.pages import RESULTS, ROOT

#: A ratio, and the interval that it lies in.
Ratio = tuple[float, float, float]
_COLOURS = ("#2f7de1", "#e07b39", "#12a08a", "#b05cc8")
_INK, _GRID = "#4a535d", "#8b95a1"
#: For systems in dark mode.
_DARK = {_INK: "#c3cad2", "#ffffff": "#1b1f24"}


@dataclass(frozen=True)
class Picture:
    """names: rows from top to bottom. series: for each row its ratio, or None."""

    title: str
    under: str
    names: tuple[str, ...]
    series: dict[str, tuple[Ratio | None, ...]]

    def digest(self) -> str:
        """Of everything that is drawn."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def _published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def _under(found: dict[str, Any]) -> str:
    return f"{found['date']}, {found['machine']}"


def _cpu() -> Picture:
    """Ratios there are of the provider's time."""
    found = _published("models/cpu")
    rows = [row for table in found["tables"][:2] for row in table["rows"]]
    rows.sort(key=lambda row: row[3][0])

    def inverse(ratio: Sequence[float]) -> Ratio:
        middle, low, high = ratio
        return 1 / middle, 1 / high, 1 / low

    return Picture(
        "Times as fast as ONNX Runtime's CPU provider",
        _under(found),
        tuple(row[0] for row in rows),
        {
            name: tuple(inverse(row[column]) for row in rows)
            for name, column in (("1 thread", 3), ("2 threads", 6))
        },
    )


def _cuda() -> Picture:
    """Milliseconds there are of ours and of each peer."""
    found = _published("models/cuda")
    table = found["tables"][0]
    columns = [c["name"] for c in table["columns"]]
    names, model = [], ""
    for row in table["rows"]:
        model = row[0] or model
        names.append(f"{model}, batch {row[1]}")
    peers = ("ORT CUDA", "PyTorch graph", "torch.compile")
    return Picture(
        "Times as fast as each peer, fp16",
        _under(found),
        tuple(names),
        {
            peer: tuple(
                (x := row[columns.index(peer)] / row[columns.index("ours")], x, x)
                for row in table["rows"]
            )
            for peer in peers
        },
    )


#: The pictures of docs/ by file name.
PICTURES: dict[str, Callable[[], Picture]] = {
    "benchmarks-cpu.svg": _cpu,
    "benchmarks-cuda.svg": _cuda,
}


def measured(report: dict[str, Any]) -> Picture:
    """Of a file that a program of `benchmarks/` wrote."""
    rows = [r for r in report["rows"] if r.get("times") and r["times"]["ratios"]]
    if not rows:
        raise SystemExit("error: no row of the file has times of a peer; measure with peers")
    peers = list(dict.fromkeys(p for r in rows for p in r["times"]["ratios"]))

    def ratio(row: dict[str, Any], peer: str) -> Ratio | None:
        found = row["times"]["ratios"].get(peer)
        return None if found is None else (found[0], found[1], found[2])

    machine = report["gpu"].get("device", "") or report["machine"]
    return Picture(
        "Times as fast as each peer",
        f"{report['date']}, {machine}",
        tuple(r["name"] for r in rows),
        {peer: tuple(ratio(r, peer) for r in rows) for peer in peers},
    )


def svg(picture: Picture) -> str:
    """The picture, which follows the dark mode of the system."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        raise SystemExit(
            'error: pictures need matplotlib; python -m pip install "tracea-onnx[plot]"'
        ) from None
    figures: Any = importlib.import_module("matplotlib.figure")
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "tracea-onnx",
        "font.family": "sans-serif",
        "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
        "font.size": 9,
    }
    with matplotlib.rc_context(style):
        figure = figures.Figure(figsize=(7.6, 1.3 + 0.24 * len(picture.names)))
        _draw(figure.subplots(), picture)
        out = io.StringIO()
        figure.savefig(
            out, format="svg", bbox_inches="tight", pad_inches=0.15,
            metadata={"Date": None, "Creator": None, "Title": picture.title},
        )  # fmt: skip
    return _finished(out.getvalue(), picture)


def _draw(axes: Any, picture: Picture) -> None:
    count, most = len(picture.series), 1.0
    for k, (name, ratios) in enumerate(picture.series.items()):
        at = [
            (row + (k - (count - 1) / 2) * 0.22, *r)
            for row, r in enumerate(ratios)
            if r is not None
        ]
        y, middle, low, high = zip(*at, strict=True)
        most = max(most, *high)
        axes.hlines(y, 1, middle, color=_COLOURS[k % 4], linewidth=1, alpha=0.45)
        axes.hlines(y, low, high, color=_COLOURS[k % 4], linewidth=2.4)
        axes.plot(middle, y, "o", color=_COLOURS[k % 4], markersize=4, label=name)
    axes.axvline(1, color=_GRID, linewidth=1)
    axes.set_yticks(range(len(picture.names)), picture.names)
    axes.set_ylim(len(picture.names) - 0.4, -0.6)
    axes.set_xlim(min(0.9, axes.get_xlim()[0]), most * 1.04)
    axes.xaxis.grid(True, color=_GRID, alpha=0.25, linewidth=0.6)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[:].set_visible(False)
    axes.set_title(picture.title, loc="left", color=_INK, fontsize=11, fontweight="bold", pad=26)
    axes.set_xlabel(picture.under, color=_INK, fontsize=8, loc="left")
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=count, frameon=False,
        labelcolor=_INK, handletextpad=0.2, columnspacing=1.4,
    )  # fmt: skip


def _finished(text: str, picture: Picture) -> str:
    """As one element: without the prologue, with the digest and the colours of dark mode."""
    text = re.sub(r"[ \t]+$", "", text[text.index("<svg") :], flags=re.MULTILINE)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in _DARK.items()
        for kind in ("fill", "stroke")
    )
    head = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
    end = text.index(">") + 1
    return f"{text[:end]}\n<!-- figures: {picture.digest()} -->\n{head}{text[end:]}"


def stale() -> Iterator[str]:
    """Pictures of docs/ that show other figures than `benchmarks/results/` has."""
    for name, make in PICTURES.items():
        file = ROOT / "docs" / name
        if not file.exists() or f"figures: {make().digest()} " not in file.read_text("utf-8"):
            yield name


def run(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("file", type=Path, nargs="?", help="what a benchmark wrote with --json")
    p.add_argument("-o", "--output", type=Path, help="where to write (default: FILE.svg)")
    args = p.parse_args(argv)
    if args.file is None:
        for name, make in PICTURES.items():
            (ROOT / "docs" / name).write_text(svg(make()), "utf-8")
    else:
        picture = measured(json.loads(args.file.read_text("utf-8")))
        (args.output or args.file.with_suffix(".svg")).write_text(svg(picture), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run())
