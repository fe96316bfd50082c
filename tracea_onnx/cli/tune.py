"""tracea-onnx tune: measure which kernels are the fastest for a model on this GPU.

Sessions on this kind of GPU use what was found from then on.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.errors import UsageError
from tracea_onnx.model_io import model_file
from tracea_onnx.support.tables import table
from tracea_onnx.tuning import measure

#: The exit status of a program that Ctrl-C ended.
_INTERRUPTED = 130


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "tune",
        help="measure which kernels are the fastest for a model on this GPU, and remember",
        description=__doc__,
    )
    p.add_argument("model", type=Path, help="an ONNX file")
    options.add_input_shapes(p)
    p.add_argument("--device-id", type=int, default=0, metavar="N", help="the GPU (default: 0)")
    p.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        help="after which no more kernels are tried (default: 120)",
    )
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if not args.seconds > 0:
        raise UsageError(f"--seconds {args.seconds:g} leaves no time to measure", "give more")
    model_file.load(args.model)  # what is wrong with the model, in this tool's words
    found = measure.tune(
        args.model,
        options.shapes(args),
        device=args.device_id,
        seconds=args.seconds,
        on_progress=lambda line: options.say([line]),
    )
    changed = [x for x in found.launches if x.kernel]
    rows = [
        ("launch", "times", "us before", "us after", "kernel"),
        *((x.what, str(x.count), f"{x.before:.2f}", f"{x.after:.2f}", x.kernel) for x in changed),
    ]
    lines = [
        *(table(rows) if changed else []),
        (
            f"{found.device.name}: measured {found.measured} kernels for {len(found.launches)} "
            "kinds "
            f"of launch ({found.alone} launches have one alone)"
        ),
        f"whole run: {found.before:.1f} -> {found.after:.1f} us",
        f"kept {found.kept} in {found.record}; sessions on this kind of GPU use them"
        if found.kept
        else "the kernels by price stay: none was worth a change",
    ]
    options.say(lines)
    if args.json:
        options.emit(asdict(found))
    return _INTERRUPTED if found.interrupted else 0
