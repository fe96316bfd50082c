"""Why each anchor was or was not fused, what would change that, and which nodes would leave the
provider.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.explain import coverage as reach
from tracea_onnx.ir.contracts import Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.pointwise_ops import POINTWISE
from tracea_onnx.ir.refusals import Refusal, Why, reason
from tracea_onnx.match import find, rule_set
from tracea_onnx.match.advice import remedy
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.pipeline.fusion_loop import FusionOptions, Progress, silent, transform
from tracea_onnx.pipeline.report import Report
from tracea_onnx.support import tables
from tracea_onnx.support.alike import Said, grouped
from tracea_onnx.verify import integer_drift

#: Operators that compute enough to be asked about, whether a rule starts at them or not.
_HEAVY = operators(Trait.HEAVY, Trait.ASKED)


@dataclass(frozen=True)
class Explanation:
    """One anchor: the rule that took it and the nodes it took, or what each rule that looked at it
    said, nearest first, and what would help.

    A `light` anchor is a pointwise or movement node that some rule may start at: left alone it
    costs little.
    """

    anchor: str
    op: str
    fused_by: str
    refusals: tuple[Refusal, ...]
    nodes: tuple[str, ...] = ()
    fix: str = ""
    light: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON of `explain --json`."""
        said = [
            {
                "rule": r.rule,
                "node": r.node or r.anchor,
                "code": r.because.code,
                "reason": r.reason,
                "near": r.near,
            }
            for r in self.refusals
        ]
        return {
            "anchor": self.anchor,
            "op": self.op,
            "fused_by": self.fused_by or None,
            "nodes": list(self.nodes),
            "nearest": said[0] if said else None,
            "fix": self.fix or None,
            "light": self.light,
            "refusals": said,
        }


@dataclass(frozen=True)
class ExplainReport:
    """The explanations, and the fused model that they are about, with functions expanded and types
    inferred.
    """

    anchors: tuple[Explanation, ...]
    model: ModelProto
    folder: Path | None
    report: Report
    coverage: reach.Coverage | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON of `explain --json`."""
        provider = None if self.coverage is None else self.coverage.to_json()
        return {
            "model": self.report.model,
            "anchors": [e.to_json() for e in self.anchors],
            "provider": provider,
            "notes": self.report.notes,
        }

    def _repr_html_(self) -> str:
        fused = [e for e in self.anchors if e.fused_by]
        left = [e for e in self.anchors if not e.fused_by and not e.light]
        chains = [(e.anchor, e.op, e.fused_by, str(len(e.nodes))) for e in fused]
        reasons = [(e.anchor, e.op, e.refusals[0].said, e.fix) for e in left]
        return tables.html(
            [
                f"{self.report.model}: {_fused(len(fused))}",
                *([[("anchor", "operator", "rule", "nodes"), *chains]] if chains else []),
                f"{len(left)} anchors were not",
                *([[("anchor", "operator", "why", "fix"), *reasons]] if reasons else []),
                *(f"note: {n}" for n in self.report.notes),
                *(self.coverage.parts() if self.coverage is not None else []),
            ]
        )


def explain(
    model: ModelProto | str | os.PathLike[str],
    *,
    backend: str = "auto",
    only: Collection[str] = (),
    skip: Collection[str] = (),
    keep_initializer_inputs: bool = False,
    rules: Sequence[Rule] | None = None,
    provider: bool = False,
    progress: Progress | None = None,
    beside: Sequence[Path] = (),
) -> ExplainReport:
    """Every node of the model at which a rule may start or that computes much, in order: first
    those that were fused.

    With `provider`, the account also names every node that would leave the provider on this
    backend, and why. Raises ModelError (unreadable model) and UsageError (options; a file of
    `beside`, which the caller is to write, is one of the model's).
    """
    backend = optimizer.choose_backend(backend)
    known = rule_set.rules() if rules is None else tuple(rules)
    find.select(known, only, skip)
    # `only` as rules to skip: asking why a rule fused nothing must not fail because it fused
    # nothing.
    skipped = tuple({*skip, *(r.name for r in known if only and r.name not in only)})
    source, where, note = optimizer.open_model(model)
    model_file.check_apart(source, None, beside)
    report = Report(where, optimizer.opset(source.model), backend, 0, notes=[note] if note else [])
    report.notes += integer_drift.notes(source.model)
    options = FusionOptions(
        backend,
        (),
        skipped,
        rules,
        keep_initializer_inputs=keep_initializer_inputs,
        expanded=True,
        on_progress=progress or silent,
    )
    transform(source, options, report)
    out = [Explanation(f.anchor, f.op, f.rule, (), f.nodes) for f in report.fused]
    chosen = find.select(known, (), skipped)
    said: dict[str, list[Refusal]] = {}
    for r in report.refused:
        said.setdefault(r.anchor, []).append(r)
    starts = {op for r in chosen for op in r.anchors}
    for graph in canonical_form.views(source.model, source.folder):
        out += [
            _unfused(graph, n, said.get(n.name, []))
            for n in graph.nodes
            if n.op in starts or n.op in _HEAVY
        ]
    found = reach.coverage(source.model, backend, source.folder) if provider else None
    return ExplainReport(tuple(out), source.model, source.folder, report, found)


def _unfused(graph: Graph, n: Node, said: Sequence[Refusal]) -> Explanation:
    order = {r.name: r.priority for r in rule_set.rules()}
    # Nearest: a special chain that almost was one; then a chain the scheduler turned down; then the
    # most general rule.
    nearest_first = sorted(
        said,
        key=lambda r: (
            not r.near,
            order.get(r.rule, 0) < 0,
            bool(r.node),
            order.get(r.rule, 0) * (-1 if r.near else 1),
            r.rule,
        ),
    )
    refusals = tuple(nearest_first)
    fix = next((r.fix for r in nearest_first if r.fix), "") or (
        remedy(graph, nearest_first[0]) if nearest_first else ""
    )
    if not refusals:
        refusals = (Refusal("", n.name, reason(Why.NO_RULE, op=n.op), False, n.name),)
    return Explanation(
        n.name, n.op, "", refusals, (n.name,), fix, n.op not in _HEAVY or n.op in POINTWISE
    )


def text(account: ExplainReport, *, everything: bool = False) -> list[str]:
    """Lines for people: fused anchors in short, unfused ones with what came nearest.

    Anchors of which the same is said are one entry. `everything` shows each, light nodes and rules
    far off, too.
    """
    fused = [e for e in account.anchors if e.fused_by]
    left = [e for e in account.anchors if not e.fused_by]
    shown = [e for e in left if everything or not e.light or any(r.near for r in e.refusals)]
    out = [
        _fused(len(fused)) + (":" if fused else ""),
        *(f"  {e.anchor}: {e.fused_by} ({len(e.nodes)} nodes)" for e in fused),
        f"{len(left)} anchors were not:",
    ]
    for head, first in grouped([_said(e, everything) for e in shown], everything=everything):
        out += [f"  {head}", *(f"    {line}" for line in first.lines)]
    if len(shown) < len(left):
        out.append(f"  and {len(left) - len(shown)} light nodes (--all shows them)")
    out += [f"note: {n}" for n in account.report.notes]
    if account.coverage is not None:
        out += ["", *reach.text(account.coverage, everything=everything)]
    return out


def _fused(count: int) -> str:
    return "1 chain was fused" if count == 1 else f"{count} chains were fused"


def _said(e: Explanation, everything: bool) -> Said:
    said = e.refusals if everything else [r for r in e.refusals if r.near] or e.refusals[:1]
    fix = [f"fix: {e.fix}"] if e.fix else []
    return Said(e.anchor, e.op, (*(r.said for r in said), *fix))
