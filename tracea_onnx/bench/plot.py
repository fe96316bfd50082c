"""Pictures of measured times: how many times as fast as its peers each row is, as SVG."""

from __future__ import annotations

import hashlib
import importlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracea_onnx.errors import UsageError

#: A ratio, and the interval that it lies in.
Ratio = tuple[float, float, float]
_COLOURS = ("#2f7de1", "#e07b39", "#12a08a", "#b05cc8")
INK, GRID = "#4a535d", "#8b95a1"
#: For systems in dark mode.
_DARK = {INK: "#c3cad2", "#ffffff": "#1b1f24"}


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


def library() -> Any:
    """matplotlib. Raises UsageError where it is not installed."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError:
        raise UsageError(
            "pictures need matplotlib", 'python -m pip install "tracea-onnx[plot]"'
        ) from None


def svg(picture: Picture) -> str:
    """The picture, which follows the dark mode of the system."""
    size = 7.6, 1.3 + 0.24 * len(picture.names)
    text = drawn(size, picture.title, lambda axes: _draw(axes, picture))
    end = text.index(">") + 1
    return f"{text[:end]}\n<!-- figures: {picture.digest()} -->{text[end:]}"


def drawn(size: tuple[float, float], title: str, draw: Callable[[Any], None]) -> str:
    """A picture of this size in inches, as one SVG element that follows the dark mode of the
    system. draw: onto axes of matplotlib.
    """
    matplotlib = library()
    figures: Any = importlib.import_module("matplotlib.figure")
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "tracea-onnx",
        "font.family": "sans-serif",
        "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
        "font.size": 9,
    }
    with matplotlib.rc_context(style):
        figure = figures.Figure(figsize=size)
        draw(figure.subplots())
        out = io.StringIO()
        figure.savefig(
            out, format="svg", bbox_inches="tight", pad_inches=0.15,
            metadata={"Date": None, "Creator": None, "Title": title},
        )  # fmt: skip
    return _finished(out.getvalue())


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
    axes.axvline(1, color=GRID, linewidth=1)
    axes.set_yticks(range(len(picture.names)), picture.names)
    axes.set_ylim(len(picture.names) - 0.4, -0.6)
    axes.set_xlim(min(0.9, axes.get_xlim()[0]), most * 1.04)
    axes.xaxis.grid(True, color=GRID, alpha=0.25, linewidth=0.6)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    axes.set_title(picture.title, loc="left", color=INK, fontsize=11, fontweight="bold", pad=26)
    axes.set_xlabel(picture.under, color=INK, fontsize=8, loc="left")
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=count, frameon=False,
        labelcolor=INK, handletextpad=0.2, columnspacing=1.4,
    )  # fmt: skip


def _finished(text: str) -> str:
    """As one element: without the prologue, with the colours of dark mode."""
    text = re.sub(r"[ \t]+$", "", text[text.index("<svg") :], flags=re.MULTILINE)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in _DARK.items()
        for kind in ("fill", "stroke")
    )
    head = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
    end = text.index(">") + 1
    return f"{text[:end]}\n{head}{text[end:]}"
