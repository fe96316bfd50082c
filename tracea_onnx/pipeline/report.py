"""What `optimize` did, as stable JSON keys and as a short table for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tracea_onnx.ir.refusals import Refusal
from tracea_onnx.rewrite.mixed_precision import Narrowed
from tracea_onnx.support import tables
from tracea_onnx.support.alike import Said, grouped
from tracea_onnx.verify.integer_drift import Quantised
from tracea_onnx.verify.verification import Verification
from tracea_onnx.verify.weight_drift import Weights


@dataclass(frozen=True)
class Fused:
    """One fusion: the rule, the fused op, the names of the nodes it replaced, its outputs, the
    estimated saving, the anchor among the nodes.
    """

    rule: str
    op: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    saved_us: float
    anchor: str


@dataclass
class Report:
    """Report of `optimize`.

    - `model`, `opset`, `backend`: what was optimized, and for what.
    - `nodes_before`, `nodes_after`: nodes of the main graph and of control-flow bodies.
    - `fused`: each fusion with its rule, the nodes it replaced, and the microseconds it should
      save.
    - `refused`: each refusal with its rule, anchor, code and sentence.
    - `verify`: the comparison with the original; None without one.
    - `precision`: what became narrow; None without `precision`.
    - `weights`: which were quantised, and how far each output drifts; None without `weights`.
    - `quantised`: what became of 8 bits, and what did not; None without `quantise`.
    - `seconds`: wall time of the whole run.
    - `notes`, `files`: what is odd about the model, and what was written.

    `to_json()` gives the same as JSON values, as `--json` writes it.
    """

    model: str
    opset: int
    backend: str
    nodes_before: int
    nodes_after: int = 0
    fused: list[Fused] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    verify: Verification | None = None
    precision: Narrowed | None = None
    weights: Weights | None = None
    quantised: Quantised | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON of `optimize --json`."""
        return {
            "model": self.model,
            "opset": self.opset,
            "backend": self.backend,
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "fused": [asdict(f) for f in self.fused],
            "refused": [
                {
                    "rule": r.rule,
                    "anchor": r.anchor,
                    "code": r.because.code,
                    "reason": r.reason,
                    "node": r.node or r.anchor,
                    "fix": r.fix or None,
                }
                for r in self.refused
                if r.near
            ],
            "verify": None if self.verify is None else self.verify.to_json(),
            "precision": None if self.precision is None else self.precision.to_json(),
            "weights": None if self.weights is None else asdict(self.weights),
            "quantised": None if self.quantised is None else asdict(self.quantised),
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
            "files": self.files,
        }

    def _repr_html_(self) -> str:
        return tables.html(_parts(self))


_SHOWN = 8


def text(report: Report, *, prices: bool = False, verbose: bool = False) -> list[str]:
    """The report as lines. `prices` lists each fusion with its saving; `verbose` every refusal."""
    return tables.lines(_parts(report, prices=prices, verbose=verbose))


def _parts(
    report: Report, *, prices: bool = False, verbose: bool = False
) -> list[str | tables.Table]:
    out: list[str | tables.Table] = [
        f"{report.model}  opset {report.opset}  backend {report.backend}",
        f"nodes  {report.nodes_before} -> {report.nodes_after}",
    ]
    if report.fused:
        count = Counter(f.rule for f in report.fused)
        saved = {rule: sum(f.saved_us for f in report.fused if f.rule == rule) for rule in count}
        replaced = {
            rule: sum(len(f.nodes) for f in report.fused if f.rule == rule) for rule in count
        }
        rows = [("rule", "fusions", "nodes", "saves")]
        rows += [
            (r, str(count[r]), str(replaced[r]), f"{saved[r]:.1f} us")
            for r in sorted(count, key=lambda r: -saved[r])
        ]
        out.append(rows)
        if prices:
            dearest = sorted(report.fused, key=lambda f: -f.saved_us)
            chains = [(f"{f.saved_us:.1f} us", f.rule, _chain(f)) for f in dearest]
            out.append([("saves", "rule", "chain"), *chains])
    else:
        out.append("nothing was fused")
    near = [r for r in report.refused if r.near]
    if near:
        said = grouped([Said(r.anchor, r.rule, (r.reason,)) for r in near], everything=verbose)
        shown = said if verbose else said[:_SHOWN]
        out += [
            "",
            "1 chain was not fused:" if len(near) == 1 else f"{len(near)} chains were not fused:",
            *(f"  {head}: {first.lines[0]}" for head, first in shown),
        ]
        if len(said) > len(shown):
            out.append(
                f"  and for {len(said) - len(shown)} other reasons: tracea-onnx explain"
                f" {report.model}"
            )
    if report.precision is not None:
        out += ["", *_precision_text(report.precision, verbose)]
    if report.weights is not None:
        out += ["", *report.weights.text()]
    if report.quantised is not None:
        out += ["", *report.quantised.text()]
    if report.verify is not None:
        out += ["", *report.verify.text()]
    return [*out, *(f"note: {n}" for n in report.notes)]


def _precision_text(p: Narrowed, verbose: bool) -> list[str]:
    out = [
        f"{p.kind.name}: {len(p.nodes)} nodes compute in it"
        + (f"; {len(p.kept)} layers stay fp32:" if p.kept else "")
    ]
    shown = list(p.kept.items()) if verbose else list(p.kept.items())[:_SHOWN]
    out += [f"  {name}: {reason}" for name, reason in shown]
    out += [f"  and {len(p.kept) - len(shown)} more"] if len(p.kept) > len(shown) else []
    return out + (
        [
            (
                f"  {len(p.clamped)} constants were clamped to the largest finite value:"
                f" {', '.join(p.clamped[:_SHOWN])}"
            )
        ]
        if p.clamped
        else []
    )


def _chain(f: Fused) -> str:
    names = (
        list(f.nodes)
        if len(f.nodes) <= 4
        else [*f.nodes[:2], f"... {len(f.nodes) - 3} ...", f.nodes[-1]]
    )
    return " + ".join(names)
