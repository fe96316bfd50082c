"""From a model to its fused form: expand functions, then canonicalise, match, price, schedule and
rewrite until nothing is left to fuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx import ModelProto

from tracea_onnx.canonicalize import canonical_form, constant_folding
from tracea_onnx.codegen import backend as backends
from tracea_onnx.ir import edit, narrow_floats
from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.refusals import Refusal, Why, reason
from tracea_onnx.ir.saving import Saving
from tracea_onnx.match import find, rule_set
from tracea_onnx.match.advice import remedy
from tracea_onnx.model_io import function_calls, model_file
from tracea_onnx.pipeline.report import Fused, Report
from tracea_onnx.pricing import cost_model
from tracea_onnx.rewrite import fused_calls, mixed_precision
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.support import discovery, log

_ROUNDS = 8
#: Called with the stage's name, how much is done and of how much (0 when unknown).
Progress = Callable[[str, int, int], None]


def silent(_stage: str, _done: int, _all: int) -> None:
    """Progress nobody watches."""


#: A rule and the outputs of what it fused: names a fusion across runs.
Fusion = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class FusionOptions:
    """Options of a transformation. With `dry_run` nothing is rewritten; with `expanded` the user's
    functions stay expanded.

    `budget` limits constant folding. `precision` is the type to compute in; nodes named in `wide`
    stay fp32 all the same; with `beside` all do, and narrow copies stand beside them. `avoid` says
    of fusions why they must not be made.
    """

    backend: str
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    rules: Sequence[Rule] | None = None
    scheduler: str = "priority"
    keep_initializer_inputs: bool = False
    dry_run: bool = False
    expanded: bool = False
    budget: constant_folding.Budget = field(default_factory=constant_folding.Budget)
    precision: str = "keep"
    wide: frozenset[str] = frozenset()
    beside: bool = False
    avoid: Mapping[Fusion, str] = field(default_factory=dict)
    on_progress: Progress = silent


def transform(source: model_file.Source, options: FusionOptions, report: Report) -> None:
    """Fuse what the rules find in `source.model`, in place; `report` receives nodes, fusions,
    refusals and notes.
    """
    work = source.model
    typed = onnx_inference.user_types(work)
    report.fused, report.refused, report.nodes_before = [], [], count_nodes(work)
    calls = [] if work.training_info else function_calls.expand(work, report.notes)
    _fuse(source, options, report, typed)
    if options.precision != "keep" and not options.dry_run and not work.training_info:
        kind = narrow_floats.FORMATS[options.precision]
        report.precision = mixed_precision.narrow(
            work, kind, typed, folder=source.folder, wide=options.wide, beside=options.beside
        )
        if options.beside:
            return
        _fuse(source, options, report, typed)
    if options.expanded:
        return
    left = calls if options.dry_run else function_calls.restore(work, calls)
    if left:
        report.nodes_before += sum(len(e.nodes) - 1 for e in left)
        report.notes.append(
            f"{len(left)} calls of the model's own functions were expanded: fusions take part of"
            " them"
        )
    onnx_inference.restore_types(work, typed)
    report.nodes_after = count_nodes(work) - (
        sum(len(f.nodes) - 1 for f in report.fused) if options.dry_run else 0
    )


def _fuse(
    source: model_file.Source, options: FusionOptions, report: Report, typed: onnx_inference.Types
) -> None:
    work = source.model
    for _ in range(_ROUNDS):
        # Each round infers types anew: a fused call can tell more than the nodes it replaced, and a
        # second run must find nothing.
        canonical_form.canonicalise(
            work,
            folder=source.folder,
            typed=typed,
            keep_initializer_inputs=options.keep_initializer_inputs,
            budget=options.budget,
            notes=report.notes,
        )
        fused, refused = _round(work, source.folder, options)
        report.fused += fused
        report.refused = _nearest(report.refused, refused)
        _log_round(fused, refused)
        if options.dry_run or not fused:
            break


def _log_round(fused: Sequence[Fused], refused: Sequence[Refusal]) -> None:
    for f in fused:
        log.debug("%s fused %s: %s us", f.rule, ", ".join(f.nodes), f.saved_us)
    near = [r for r in refused if r.near]
    for r in near:
        log.debug("%s did not fuse at %s: %s", r.rule, r.anchor, r.reason)
    if fused or near:
        rules = Counter(f.rule for f in fused)
        applied = ", ".join(f"{rule} {n}" for rule, n in sorted(rules.items()))
        log.info("rules applied: %s; chains refused: %s", applied or "none", len(near))


def _nearest(earlier: Sequence[Refusal], now: Sequence[Refusal]) -> list[Refusal]:
    """The rules' refusals at the anchors that are left.

    A rule that came near before a neighbour fused part of its chain said more then than it does
    now.
    """
    near = {(r.anchor, r.rule): r for r in earlier if r.near}
    return [near.get((r.anchor, r.rule), r) if not r.near else r for r in now]


def _round(
    model: ModelProto, folder: Path | None, options: FusionOptions
) -> tuple[list[Fused], list[Refusal]]:
    """Match, price, schedule and rewrite every graph of the model once.

    Chains that lost to a neighbour get their chance in the next round.
    """
    known = {r.name: r for r in (rule_set.rules() if options.rules is None else options.rules)}
    policy = discovery.module("scheduler", options.scheduler).schedule
    rates = backends.usual_target(options.backend).rates
    parts: list[tuple[list[Fused], list[Refusal]]] = []
    total, done = count_nodes(model), 0

    def step() -> None:
        nonlocal done
        done += 1
        options.on_progress("match", done, total)

    # rewriting a graph makes new messages of its nodes, with the bodies in them
    for graph in canonical_form.views_inner_first(model, folder):
        proto = graph.proto
        found, refusals = find.find(
            graph,
            options.only,
            options.skip,
            rules=options.rules,
            progress=step,
            failed=lambda _: None,
        )
        odd = [m for m in found if not fused_calls.writable(m.spec)]
        found = [m for m in found if all(m is not o for o in odd)]
        infinite = reason(Why.NOT_FINITE)
        refusals += [Refusal(m.rule, m.anchor.name, infinite) for m in odd]
        matches = [m for m in found if (m.rule, m.outputs) not in options.avoid]
        refusals += [
            Refusal(
                m.rule,
                m.anchor.name,
                reason(Why.TURNED_BACK, fault=options.avoid[m.rule, m.outputs]),
            )
            for m in found
            if (m.rule, m.outputs) in options.avoid
        ]
        priced: list[tuple[Match, Saving, int]] = [
            (m, cost_model.price(graph, m, rates), known[m.rule].priority) for m in matches
        ]
        chosen, left = policy(graph, priced)
        fused = [
            Fused(
                m.rule,
                known[m.rule].op,
                tuple(n.name for n in m.nodes),
                m.outputs,
                s.us,
                m.anchor.name,
            )
            for m, s in chosen
        ]
        parts.append(
            (fused, [replace(r, fix=remedy(graph, r)) if r.near else r for r in (*refusals, *left)])
        )
        if chosen and not options.dry_run:
            fused_calls.apply(model, graph, [(m, known[m.rule].op) for m, _ in chosen])
            edit.drop_dead(proto, edit.protected_names(model, proto))
            edit.drop_value_info(proto)
    return [f for part, _ in reversed(parts) for f in part], [
        r for _, part in reversed(parts) for r in part
    ]


def count_nodes(model: ModelProto) -> int:
    """Nodes of the main graph and of control-flow bodies, not those inside functions."""
    return sum(len(g.node) for g in edit.graphs(model))
