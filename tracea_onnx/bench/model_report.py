"""What `tracea-onnx tune report` says of a model, for people and programs: its roofline, and what
its fusions gain.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tracea_onnx.bench import plot, roofline
from tracea_onnx.bench.advantage import Advantage, Gain
from tracea_onnx.bench.roofline import Ceiling, Point, Roofline

#: Launches that have a number in the picture; families that have a colour of their own.
_NUMBERED = 12
#: The highest rate over the lowest; what is slower stands at the bottom.
_TALLEST = 5000
#: Operators of a chain that the picture names.
_ENDS = 4
_COLOURS = ("#2f7de1", "#e07b39", "#12a08a", "#b05cc8", "#c0392b", "#8a7a1f")
_OTHERS = "others"


@dataclass(frozen=True)
class ModelReport:
    """model: its file's name."""

    model: str
    roofline: Roofline
    advantage: Advantage

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "model": self.model,
            "roofline": self.roofline.to_json(),
            "fusions": self.advantage.to_json()["gains"],
        }

    def html(self) -> str:
        """Sections of a page."""
        found = self.roofline
        threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
        return (
            f"<h1>{escape(self.model)}</h1><h2>Roofline</h2><p>{escape(found.device)}, {threads}; "
            f"launches take {found.total:.0f} us of a run, one after the other. A point is a kind "
            "of launch, the larger the more of the run it takes. The lines are what this machine "
            "does, measured: GEMMs, and copies in each level of memory. Launches that mostly "
            f"move bytes stand at the left edge.</p><figure>{_roofline(found)}</figure>"
            f"{_table(_POINTS, map(_point, _numbered(found)))}"
            "<h2>What fusions gain</h2><p>Runs of a session without the fusions of a kind, over "
            "runs with them, timed in turn in random order: the median, and the interval that "
            f"holds it with 95 % confidence.</p>{_gains(self.advantage)}"
        )

    def csv(self) -> tuple[str, str]:
        """Two tables: launches, and fusions."""
        points = [
            [p.family, p.what, p.count, p.us, p.operations, p.moved, p.gflops, p.gbytes, p.bound,
             p.share]
            for p in self.roofline.points
        ]  # fmt: skip
        gains = [
            [g.fusion, g.count, g.launches, g.moved, g.leaving, g.us, g.without, *g.ratio]
            for g in self.advantage.gains
        ]
        return _csv(_POINT_FIELDS, points), _csv(_GAIN_FIELDS, gains)


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    made = csv.writer(out, lineterminator="\n")
    made.writerow(head)
    made.writerows(rows)
    return out.getvalue()


# --- tables ---------------------------------------------------------------------------------------
_POINT_FIELDS, _GAIN_FIELDS = (
    text.split()
    for text in (
        "family what count us operations bytes gflops gbytes bound share",
        "fusion count launches bytes leaving us us_without ratio low high",
    )
)
_POINTS = (
    "", "launch", "times", "us each", "of the run", "GFLOP/s", "GB/s", "flop/byte", "bound by",
    "of that",
)  # fmt: skip
_GAINS = (
    "", "fusion", "times", "launches saved", "MB saved", "nodes that leave without it", "us",
    "us without", "times as fast",
)  # fmt: skip


def _numbered(found: Roofline) -> list[tuple[int, Point, float]]:
    return [(k, p, p.us * p.count / found.total) for k, p in enumerate(found.points, 1)]


def _point(one: tuple[int, Point, float]) -> list[str]:
    k, p, part = one
    return [
        str(k), p.what, str(p.count), f"{p.us:.1f}", f"{100 * part:.1f} %", f"{p.gflops:.1f}",
        f"{p.gbytes:.1f}", f"{p.intensity:.2g}", p.bound, f"{100 * p.share:.0f} %",
    ]  # fmt: skip


def _gain(g: Gain) -> list[str]:
    middle, low, high = g.ratio
    return [
        "", g.fusion, str(g.count), str(g.launches), f"{g.moved / 1e6:.2f}", str(g.leaving),
        f"{g.us:.0f}", f"{g.without:.0f}", f"{middle:.3f} ({low:.3f} to {high:.3f})",
    ]  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(c)}</{tag}>' for c in cells)}</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(r, 'td') for r in rows)}</table>"


def _gains(found: Advantage) -> str:
    if not found.gains:
        return "<p>Nothing fuses in this model.</p>"
    picture = plot.Picture(
        "Times as fast with a fusion", "time without it over time with it",
        tuple(_short(g.fusion) for g in found.gains),
        {"measured": tuple(g.ratio for g in found.gains)},
    )  # fmt: skip
    return f"<figure>{plot.svg(picture)}</figure>{_table(_GAINS, map(_gain, found.gains))}"


def _short(fusion: str) -> str:
    """Of a long chain its ends."""
    ops = fusion.split(" + ")
    return fusion if len(ops) <= _ENDS else f"{ops[0]} + {len(ops) - 2} more + {ops[-1]}"


# --- the picture ----------------------------------------------------------------------------------
def _roofline(found: Roofline) -> str:
    text = plot.drawn((8.6, 5.0), "Roofline", lambda axes: _draw(axes, found))
    for k, p, part in _numbered(found):
        said = (
            f"{k}: {p.what}, {p.count} times {p.us:.1f} us, {100 * part:.1f} % of the run, "
            f"{p.gflops:.1f} GFLOP/s, {p.gbytes:.1f} GB/s"
        )
        group = f'<g id="launch{k}">'
        text = text.replace(group, f"{group}<title>{escape(said)}</title>", 1)
    return text


def _at(p: Point) -> tuple[float, float]:
    """Where it is drawn: what mostly moves bytes as if it did a few operations for each."""
    operations = max(p.operations, roofline.LEAST * p.moved, 1.0)
    return max(operations / max(p.moved, 1), roofline.LEAST), operations / p.us / 1e3


def _draw(axes: Any, found: Roofline) -> None:
    places = [_at(p) for p in found.points]
    top = max(found.arithmetic.rate, *(m.rate * roofline.LEAST for m in found.memory))
    slowest = min(m.rate for m in found.memory)
    right = 2 * max(top / slowest, *(x for x, _ in places))
    low = max(min(slowest * roofline.LEAST, *(y for _, y in places)) / 2, top / _TALLEST)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(roofline.LEAST * 0.8, right)
    axes.set_ylim(low, top * 2)
    for k, m in enumerate(found.memory):
        _slope(axes, m, found.arithmetic, above=k == 0)
    _roof(axes, found, right)
    colours = _colours(found)
    for (k, p, part), (x, y) in zip(_numbered(found), places, strict=True):
        y = max(y, low * 1.2)
        colour = colours.get(p.family, plot.GRID)
        size = 4 + 22 * part**0.5
        axes.plot(
            [x], [y], "o", markersize=size, color=colour, alpha=0.75, gid=f"launch{k}",
            markeredgecolor="white", markeredgewidth=0.5,
        )  # fmt: skip
        if k <= _NUMBERED:
            axes.annotate(
                str(k), (x, y), (0, -size / 2 - 8), textcoords="offset points", ha="center",
                fontsize=7, color=plot.INK,
            )  # fmt: skip
    for family, colour in colours.items():
        axes.plot([], [], "o", color=colour, label=family, markersize=5)
    if len(colours) < len({p.family for p in found.points}):
        axes.plot([], [], "o", color=plot.GRID, label=_OTHERS, markersize=5)
    axes.legend(
        loc="lower right", frameon=False, labelcolor=plot.INK, handletextpad=0.2, fontsize=8
    )
    axes.grid(True, which="major", color=plot.GRID, alpha=0.2, linewidth=0.6)
    axes.tick_params(which="both", length=0, colors=plot.INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("operations for each byte", color=plot.INK, fontsize=8)
    axes.set_ylabel("GFLOP/s", color=plot.INK, fontsize=8)
    axes.xaxis.set_major_formatter(_intensity)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")


def _intensity(x: float, _: object) -> str:
    return f"{x:g}" if x >= 1 else f"1/{1 / x:g}"


def _colours(found: Roofline) -> dict[str, str]:
    """Of the families that take most of the run."""
    times: dict[str, float] = {}
    for p in found.points:
        times[p.family] = times.get(p.family, 0.0) + p.us * p.count
    longest = sorted(times, key=times.__getitem__, reverse=True)
    return dict(zip(longest, _COLOURS, strict=False))


def _slope(axes: Any, m: Ceiling, arithmetic: Ceiling, above: bool) -> None:
    left, ridge = roofline.LEAST * 0.8, arithmetic.rate / m.rate
    axes.plot([left, ridge], [left * m.rate, arithmetic.rate], color=plot.GRID, linewidth=1)
    x = 3 * roofline.LEAST
    ends = axes.transData.transform([(x, x * m.rate), (2 * x, 2 * x * m.rate)])
    (x0, y0), (x1, y1) = ends
    axes.annotate(
        f"{m.name}, {m.rate:.0f} GB/s", (x, x * m.rate), (0, 3 if above else -9),
        textcoords="offset points", fontsize=7, color=plot.INK,
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)), rotation_mode="anchor",
    )  # fmt: skip


def _roof(axes: Any, found: Roofline, right: float) -> None:
    ceiling = found.arithmetic
    ridge = ceiling.rate / max(m.rate for m in found.memory)
    axes.plot([ridge, right], [ceiling.rate] * 2, color=plot.GRID, linewidth=1)
    axes.annotate(
        f"{ceiling.name}, {ceiling.rate:.0f} GFLOP/s", (ridge, ceiling.rate), (0, 4),
        textcoords="offset points", fontsize=7, color=plot.INK,
    )  # fmt: skip
