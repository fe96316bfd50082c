"""tracea-onnx verify: run two models on the same inputs and compare; with --bisect, find the fused ops at fault."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tracea_onnx import bisect, io, report, rewrite, surgery
from tracea_onnx import verify as verification
from tracea_onnx.commands import options
from tracea_onnx.errors import UsageError, VerificationError


def add(subparsers: options.Subparsers) -> None:
    p = subparsers.add_parser("verify", help="compare two models on the same inputs", description=__doc__)
    p.add_argument("reference", type=Path)
    p.add_argument("candidate", type=Path)
    options.add_verification(p)
    p.add_argument("--bisect", action="store_true", help="where the two differ, find the smallest set of fused ops at fault")
    p.add_argument("-o", "--output", type=Path, help="with --bisect: write the candidate with those turned back into plain nodes")
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.output is not None:
        if not args.bisect:
            raise UsageError("--output goes with --bisect", "add --bisect")
        io.check_output(args.output)
    original, candidate, providers = io.load(args.reference), io.load(args.candidate), options.providers(args)
    if args.output is not None:
        io.check_apart(original, None, [args.output])
        io.check_apart(candidate, args.output)
    reference = verification.measure(
        original,
        rtol=args.rtol,
        atol=args.atol,
        seed=args.seed,
        values=options.values(args),
        shapes=options.shapes(args),
        time_limit=args.time_limit,
    )
    if not args.bisect:
        found: verification.Verification | None = verification.judge(reference, candidate, providers)
        wrong, faults = "" if found is None else bisect.fault(found), None
    else:
        found, wrong = bisect.judge(reference, candidate, providers)
        faults = _bisect(args, reference, candidate, wrong, providers) if wrong else None
    options.say(report.verification_text(found) if found is not None else [f"verification FAILED: {wrong}"])
    if wrong and args.bisect:
        options.say([f"{f['name']} ({f['rule']}) from {', '.join(f['nodes'])}" for f in faults] if faults else ["no fused op is at fault"])
    if args.json:
        shown = None if found is None else found.to_json()
        options.emit({"reference": str(args.reference), "candidate": str(args.candidate), "verify": shown, "at_fault": faults})
    return VerificationError.exit_code if wrong else 0


def _bisect(args: argparse.Namespace, reference: verification.Reference, candidate: io.Source, wrong: str, providers: list[str]) -> list[dict[str, Any]] | None:
    known = {bisect.call_of(n): {e.key: e.value for e in n.metadata_props} for g in surgery.graphs(candidate.model) for n in g.node}
    guilty = bisect.revert(reference, candidate, wrong, providers)
    if guilty is None:
        return None
    if args.output is not None:
        io.save(candidate, args.output)
    return [
        {"name": c[0], "outputs": list(c[1]), "rule": known[c].get(rewrite.METADATA_RULE, ""), "nodes": rewrite.read_nodes(known[c].get(rewrite.METADATA_NODES, ""))}
        for c in guilty.calls
    ]
