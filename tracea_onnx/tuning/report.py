"""Reports of tuning: a page with the learning curve of every kind of launch, every trial as CSV,
the fastest kernels as JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import accumulate

from tracea_onnx.codegen import tuning_records
from tracea_onnx.codegen.tuning_records import Trial
from tracea_onnx.support.data_classes import dataclass

#: Size of a curve; ratios above the highest are drawn at the top.
_WIDTH, _HEIGHT, _HIGHEST = 360, 90, 1.6
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
svg { width: 100%; max-width: 40rem; }
.axis { stroke: currentColor; opacity: .4; } .best { stroke: #2a7de1; fill: none; stroke-width: 2; }
circle { fill: currentColor; opacity: .5; } text { font-size: 9px; fill: currentColor; }
code { overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figure svg { width: auto; max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
th, td { text-align: right; padding: .15rem .6rem; white-space: nowrap; }
th:nth-child(2), td:nth-child(2) { text-align: left; white-space: normal; min-width: 16rem; }
tr:nth-child(even) td { background: color-mix(in srgb, currentColor 6%, transparent); }
"""


@dataclass(frozen=True)
class Kind:
    """A kind of launch on a device: what it computes, and its trials in their order."""

    device: str
    launch: str
    what: str
    trials: tuple[Trial, ...]

    @property
    def timed(self) -> list[tuple[str, float]]:
        """Kernels that were measured, and their time over that of the one by price."""
        return [(t.kernel, t.ratio) for t in self.trials if t.ratio is not None]

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest of them; None where none was."""
        return min(self.timed, key=lambda one: one[1], default=None)


def kinds() -> list[Kind]:
    """All that were tried."""
    found: dict[tuple[str, str, str], list[Trial]] = {}
    for device, what, t in tuning_records.history():
        found.setdefault((device, t.launch, what), []).append(t)
    return [Kind(*key, tuple(trials)) for key, trials in found.items()]


def as_csv(found: Sequence[Kind]) -> str:
    """Every trial."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["device", "launch", "what", "kernel", "verdict", "us", "usual_us", "at"])
    for kind in found:
        for t in kind.trials:
            rows.writerow(
                [kind.device, t.launch, kind.what, t.kernel, t.verdict, t.us, t.usual_us, t.at]
            )
    return out.getvalue()


def as_json(found: Sequence[Kind]) -> str:
    """The fastest kernel of each kind of launch."""
    rows = [
        {
            "device": kind.device, "launch": kind.launch, "what": kind.what,
            "kernel": kind.best[0], "ratio": kind.best[1], "trials": len(kind.trials),
        }
        for kind in found
        if kind.best is not None
    ]  # fmt: skip
    return json.dumps(rows, indent=1)


def as_html(found: Sequence[Kind], more: str = "") -> str:
    """One page that needs no other file. more: sections that come first."""
    devices = dict.fromkeys(kind.device for kind in found)
    body = "".join(
        f"<h2>{escape(device)}</h2>{''.join(_section(k) for k in found if k.device == device)}"
        for device in devices
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Tuning</title>'
        f"<style>{_STYLE}</style>{more}<h1>Tuning</h1><p>Times are relative to the kernel by "
        "price: below 1 is faster. A point is a trial, the line the best so far.</p>"
        f"{body or '<p>Nothing was tried yet.</p>'}</html>"
    )


def _section(kind: Kind) -> str:
    verdicts = Counter(str(t.verdict) for t in kind.trials)
    ends = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    best = ""
    if kind.best is not None:
        best = f": <code>{escape(kind.best[0])}</code> takes {kind.best[1]:.3f} of the time"
    return (
        f"<section><h3>{escape(kind.what or kind.launch[:16])}</h3>"
        f"<p>{len(kind.trials)} trials ({escape(ends)}){best}</p>{_curve(kind.timed)}</section>"
    )


def _curve(timed: Sequence[tuple[str, float]]) -> str:
    if not timed:
        return ""
    ratios = [min(ratio, _HIGHEST) for _, ratio in timed]
    low, high = min([*ratios, 0.95]), max([*ratios, 1.05])
    step = _WIDTH / max(len(ratios), 2)

    def at(k: float, ratio: float) -> tuple[float, float]:
        return 30 + step * (k + 0.5), 5 + _HEIGHT * (high - ratio) / (high - low)

    points = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{escape(name)}: {ratio:.3f}</title>'
        "</circle>"
        for k, (name, ratio) in enumerate(timed)
        for x, y in [at(k, ratios[k])]
    )
    best = " ".join(
        f"{x:.1f},{y:.1f}"
        for x, y in (
            at(k, ratio)
            for k, ratio in enumerate(accumulate([min(1.0, ratios[0]), *ratios[1:]], min))
        )
    )
    one = at(0, 1.0)[1]
    return (
        f'<svg viewBox="0 0 {_WIDTH + 40} {_HEIGHT + 10}" role="img" '
        f'aria-label="best so far of {len(ratios)} trials">'
        f'<line class="axis" x1="30" x2="{_WIDTH + 30}" y1="{one:.1f}" y2="{one:.1f}"/>'
        f'<text x="2" y="{one + 3:.1f}">1.0</text>'
        f'<text x="2" y="{at(0, low)[1]:.1f}">{low:.2f}</text>'
        f'<polyline class="best" points="{best}"/>{points}</svg>'
    )


#: What a report is written as, by the end of the file's name.
FORMATS: Mapping[str, Callable[[Sequence[Kind]], str]] = {
    ".html": as_html, ".csv": as_csv, ".json": as_json,
}  # fmt: skip
