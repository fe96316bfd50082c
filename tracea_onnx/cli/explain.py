"""tracea-onnx explain: why each anchor was, or was not, fused, and what would leave the
provider.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.cli.progress import Bar
from tracea_onnx.codegen import backend
from tracea_onnx.errors import UsageError
from tracea_onnx.explain import explanation
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
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.html is not None:
        model_file.check_output(args.html)
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
            beside=[args.html] if args.html is not None else [],
        )
    finally:
        bar.done()
    if args.html is not None:
        from tracea_onnx.explain import html_page

        model_file.write_bytes(args.html, html_page.page(found).encode())
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
