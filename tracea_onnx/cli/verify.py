"""tracea-onnx verify: run two models on the same inputs and compare; with --bisect, find the fused
ops at fault.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tracea_onnx.cli import options
from tracea_onnx.errors import UsageError, VerificationError
from tracea_onnx.ir import edit
from tracea_onnx.model_io import model_file
from tracea_onnx.rewrite import fused_calls
from tracea_onnx.verify import delta_debugging
from tracea_onnx.verify import verification as verification


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "verify", help="compare two models on the same inputs", description=__doc__
    )
    p.add_argument("reference", type=Path, help="the model to compare with")
    p.add_argument("candidate", type=Path, help="the model that should give the same results")
    options.add_verification(p)
    p.add_argument(
        "--bisect",
        action="store_true",
        help="where the two differ, find the smallest set of fused ops at fault",
    )
    p.add_argument(
        "-o",
        "--output",
        type=Path,
        help="with --bisect: write the candidate with those turned back into plain nodes",
    )
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.output is not None:
        if not args.bisect:
            raise UsageError("--output goes with --bisect", "add --bisect")
        model_file.check_output(args.output)
    original, candidate, providers = (
        model_file.load(args.reference),
        model_file.load(args.candidate),
        options.providers(args),
    )
    if args.output is not None:
        model_file.check_apart(original, None, [args.output])
        model_file.check_apart(candidate, args.output)
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
        found: verification.Verification | None = verification.judge(
            reference, candidate, providers
        )
        wrong, faults = "" if found is None else delta_debugging.fault(found), None
    else:
        found, wrong = delta_debugging.judge(reference, candidate, providers)
        faults = _bisect(args, reference, candidate, wrong, providers) if wrong else None
    options.say(found.text() if found is not None else [f"verification FAILED: {wrong}"])
    if wrong and args.bisect:
        options.say(
            [f"{f['name']} ({f['rule']}) from {', '.join(f['nodes'])}" for f in faults]
            if faults
            else ["no fused op is at fault"]
        )
    if args.json:
        shown = None if found is None else found.to_json()
        options.emit(
            {
                "reference": str(args.reference),
                "candidate": str(args.candidate),
                "verify": shown,
                "at_fault": faults,
            }
        )
    return VerificationError.exit_code if wrong else 0


def _bisect(
    args: argparse.Namespace,
    reference: verification.Reference,
    candidate: model_file.Source,
    wrong: str,
    providers: list[str],
) -> list[dict[str, Any]] | None:
    known = {
        delta_debugging.call_of(n): {e.key: e.value for e in n.metadata_props}
        for g in edit.graphs(candidate.model)
        for n in g.node
    }
    guilty = delta_debugging.revert(reference, candidate, wrong, providers)
    if guilty is None:
        return None
    if args.output is not None:
        model_file.save(candidate, args.output)
    return [
        {
            "name": c[0],
            "outputs": list(c[1]),
            "rule": known[c].get(fused_calls.METADATA_RULE, ""),
            "nodes": fused_calls.read_nodes(known[c].get(fused_calls.METADATA_NODES, "")),
        }
        for c in guilty.calls
    ]
