"""tracea-onnx inline: back to plain ONNX, with the same outputs bit for bit."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_onnx import infer, inline, io
from tracea_onnx.commands import options
from tracea_onnx.transform import count_nodes


def add(subparsers: options.Subparsers) -> None:
    p = subparsers.add_parser("inline", help="turn fused ops back into plain ONNX", description=__doc__)
    p.add_argument("model", type=Path)
    p.add_argument("-o", "--output", type=Path, required=True)
    p.add_argument("--external-data", choices=io.EXTERNAL_DATA, default="auto", help="weights in a file of their own (default: as the model has them)")
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    io.check_output(args.output)
    source = io.load(args.model, changed_specs=True)
    io.check_apart(source, args.output)
    before = count_nodes(source.model)
    inline.inline(source.model)
    infer.check(source.model, "the inlined model")
    files = io.save(source, args.output, external_data=args.external_data)
    after = count_nodes(source.model)
    options.say([f"nodes  {before} -> {after}", *(f"wrote {f}" for f in files)])
    if args.json:
        options.emit({"model": str(args.model), "nodes_before": before, "nodes_after": after, "files": [str(f) for f in files]})
    return 0
