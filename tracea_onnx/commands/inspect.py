"""tracea-onnx inspect: what is in a model, and where its fused ops come from."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_onnx import inspect_model, io
from tracea_onnx.commands import options


def add(subparsers: options.Subparsers) -> None:
    p = subparsers.add_parser("inspect", help="show what is in a model, and where its fused ops come from", description=__doc__)
    p.add_argument("model", type=Path)
    p.add_argument("--all", action="store_true", help="list every fused op with the nodes it replaced")
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = inspect_model.inspect(io.load(args.model))
    options.say(inspect_model.text(found, everything=args.all))
    if args.json:
        options.emit(found)
    return 0
