"""tracea-onnx inline: back to plain ONNX, with the same outputs bit for bit."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline.fusion_loop import count_nodes
from tracea_onnx.rewrite import inline
from tracea_onnx.shapes import onnx_inference


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "inline", help="turn fused ops back into plain ONNX", description=__doc__
    )
    p.add_argument("model", type=Path, help="an ONNX file")
    p.add_argument("-o", "--output", type=Path, required=True, help="where to write")
    options.add_external_data(p)
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    model_file.check_output(args.output)
    source = model_file.load(args.model, changed_specs=True)
    model_file.check_apart(source, args.output)
    before = count_nodes(source.model)
    inline.inline(source.model)
    onnx_inference.check(source.model, "the inlined model")
    files = model_file.save(source, args.output, external_data=args.external_data)
    after = count_nodes(source.model)
    options.say([f"nodes  {before} -> {after}", *(f"wrote {f}" for f in files)])
    if args.json:
        options.emit(
            {
                "model": str(args.model),
                "nodes_before": before,
                "nodes_after": after,
                "files": [str(f) for f in files],
            }
        )
    return 0
