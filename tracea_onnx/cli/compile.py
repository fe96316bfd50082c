"""tracea-onnx compile: a model with its compiled Plans, which the provider runs without Python and
without a compiler (EPContext).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.errors import UsageError
from tracea_onnx.pipeline.compiled_model import compile_model


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "compile", help="compile a model for programs without Python", description=__doc__
    )
    p.add_argument("model", type=Path, help="an ONNX file, optimized or not")
    p.add_argument("-o", "--output", type=Path, required=True, help="where to write")
    p.add_argument(
        "--embed", action="store_true", help="keep what is compiled in the model, not beside it"
    )
    options.add_backend(p, "what to compile for (default: auto, the provider's choice)")
    options.add_external_data(p)
    p.add_argument(
        "--provider-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the provider (repeatable), e.g. specs=trust",
    )
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    given = {} if args.backend == "auto" else {"backend": args.backend}
    for text in args.provider_option:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--provider-option {text} has no value", "write NAME=VALUE")
        given[name] = value
    made = compile_model(
        args.model, args.output, embed=args.embed, external_data=args.external_data, options=given
    )
    options.say([
        f"nodes  {made.nodes} -> {made.partitions} compiled, {made.left} left to ONNX Runtime",
        *(f"wrote {f}" for f in made.files),
    ])  # fmt: skip
    if args.json:
        options.emit(
            {
                "model": str(args.model),
                "nodes_before": made.nodes,
                "partitions": made.partitions,
                "nodes_left": made.left,
                "files": [str(f) for f in made.files],
            }
        )
    return 0
