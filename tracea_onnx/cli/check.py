"""tracea-onnx check: whether models still fuse as a baseline says, for a repository's continuous
integration and as a pre-commit hook. Exit 5 when a fusion is gone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.errors import MissingFusionError
from tracea_onnx.pipeline.fusion_baseline import Baseline, Compared


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "check", help="fail when models fuse less than they did", description=__doc__
    )
    p.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="an ONNX file")
    p.add_argument(
        "--baseline", type=Path, required=True, metavar="FILE.json", help="what fused before"
    )
    p.add_argument(
        "--update", action="store_true", help="write what fuses now to the baseline, and exit 0"
    )
    options.add_backend(p)
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    baseline = Baseline.load(args.baseline, new=args.update)
    compared = [baseline.compare(m, backend=args.backend) for m in args.models]
    if args.update:
        baseline.models |= {c.model: c.now for c in compared}
        baseline.save()
    for c in compared:
        options.say(list(lines(c)))
    if args.json:
        options.emit([
            {
                "model": c.model,
                "nodes": c.now.nodes,
                "fusions": c.now.by_rule,
                "before": c.before and {"nodes": c.before.nodes, "fusions": c.before.by_rule},
                "worse": c.worse,
                "refused": [
                    {"rule": r.rule, "anchor": r.anchor, "code": r.because.code, "reason": r.reason}
                    for r in c.refused
                ],
            }
            for c in compared
        ])  # fmt: skip
    new, lost = [c for c in compared if c.before is None], [c for c in compared if c.worse]
    if args.update or not (new or lost):
        return 0
    what = f"{len(lost)} of {len(compared)} models lost fusions" if lost else ""
    if new:
        what += (", " if what else "") + f"{len(new)} are not in {args.baseline}"
    return _failed(what)


def _failed(what: str) -> int:
    options.say([f"error: {what}; where that is meant, run it again with --update"])
    return MissingFusionError.exit_code


def lines(c: Compared) -> Iterator[str]:
    """Lines about one model."""
    yield f"{c.model}  {sum(c.now.by_rule.values())} fusions, {c.now.nodes} nodes left"
    if c.before is None:
        yield "  not in the baseline"
        return
    if c.now.nodes != c.before.nodes:
        yield f"  {c.before.nodes} nodes in the baseline"
    for rule, n in c.before.beyond(c.now).items():
        yield f"  {rule}: {n} fewer"
    for rule, n in c.now.beyond(c.before).items():
        yield f"  {rule}: {n} more"
    if c.worse:
        for r in c.refused:
            yield f"  {r.rule} at {r.anchor}: {r.reason}"
