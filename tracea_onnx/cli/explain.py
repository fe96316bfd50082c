"""tracea-onnx explain: why each anchor was, or was not, fused, and what would leave the
provider.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.cli.progress import Bar
from tracea_onnx.codegen import backend
from tracea_onnx.errors import UsageError
from tracea_onnx.explain import explanation, html_page, node_data
from tracea_onnx.model_io import model_file


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "explain", help="say why each chain was, or was not, fused", description=__doc__
    )
    p.add_argument("model", type=Path, help="an ONNX file")
    p.add_argument(
        "--node", action="append", default=[], metavar="NAME", help="this anchor only (repeatable)"
    )
    p.add_argument(
        "--backend",
        choices=("auto", *backend.names()),
        help="price for this backend, and name every node that would leave its provider "
        "(default: no provider)",
    )
    options.add_rules(p)
    options.add_initializer_inputs(p)
    p.add_argument(
        "--all",
        action="store_true",
        help="show light nodes, and what every rule said, not the nearest only",
    )
    p.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write a page that shows the graph with its fused groups",
    )
    p.add_argument(
        "--model-explorer",
        type=Path,
        metavar="FILE",
        help="also write node data for Model Explorer: FILE with .fused.json, .reason.json and "
        ".time.json for its ending",
    )
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    overlays = {
        kind: base.with_suffix(f".{kind}.json")
        for kind in node_data.KINDS
        if (base := args.model_explorer) is not None
    }
    written = [*([args.html] if args.html is not None else []), *overlays.values()]
    for file in written:
        model_file.check_output(file)
    bar = Bar()
    try:
        found = explanation.explain(
            args.model,
            backend=args.backend or "auto",
            only=args.only,
            skip=args.skip,
            keep_initializer_inputs=args.keep_initializer_inputs,
            provider=args.backend is not None,
            progress=bar,
            beside=written,
        )
    finally:
        bar.done()
    if args.html is not None:
        model_file.write_bytes(args.html, html_page.page(found).encode())
    if overlays:
        for kind, data in node_data.node_data(found, args.model).items():
            model_file.write_bytes(overlays[kind], json.dumps(data, indent=1).encode())
    if args.node:
        unknown = sorted(set(args.node) - {e.anchor for e in found.anchors})
        if unknown:
            raise UsageError(
                f"no rule starts at a node called '{unknown[0]}'",
                "see the names: tracea-onnx explain MODEL",
            )
        found = replace(found, anchors=tuple(e for e in found.anchors if e.anchor in args.node))
    options.say(explanation.text(found, everything=args.all or bool(args.node)))
    if args.json:
        options.emit(found.to_json())
    return 0
