"""tracea-onnx doctor: what works on this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tracea_onnx.cli import options
from tracea_onnx.doctor import diagnosis


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "doctor",
        help="say what works on this machine, and how to mend what does not",
        description=__doc__,
    )
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    checks = diagnosis.run()
    width = max(len(c.name) for c in checks)
    lines = []
    for c in checks:
        mark = "ok  " if c.ok else ("FAIL" if c.required else "--  ")
        lines.append(f"{mark} {c.name:<{width}}  {c.detail}")
        if not c.ok:
            lines.append(f"{'':{width + 7}}fix: {c.fix}")
    works = all(c.ok for c in checks if c.required)
    options.say(
        [
            *lines,
            "optimizing and running on the provider work"
            if works
            else "the main job does not work yet",
        ]
    )
    if args.json:
        options.emit({"ok": works, "checks": [asdict(c) for c in checks]})
    return 0 if works else 1
