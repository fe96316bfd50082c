"""tracea-onnx inspect: what is in a model, and where its fused ops come from."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.explain import contents
from tracea_onnx.model_io import model_file


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "inspect",
        help="show what is in a model, and where its fused ops come from",
        description=__doc__,
    )
    p.add_argument("model", type=Path, help="an ONNX file")
    p.add_argument(
        "--all", action="store_true", help="list every fused op with the nodes it replaced"
    )
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    found = contents.inspect(model_file.load(args.model))
    options.say(contents.text(found, everything=args.all))
    if args.json:
        options.emit(found)
    return 0
