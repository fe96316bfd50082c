"""tracea-onnx doctor: what works on this machine; of a model, which kernels it gets and why."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_onnx.cli import options
from tracea_onnx.cli.progress import Bar
from tracea_onnx.codegen import backend as backends
from tracea_onnx.doctor import diagnosis, prescription
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline.optimizer import choose_backend


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "doctor",
        help="say what works on this machine, and how to mend what does not",
        description=__doc__,
    )
    p.add_argument(
        "model", type=Path, nargs="?", help="an ONNX file: say which kernels it gets, and why"
    )
    p.add_argument(
        "--backend",
        choices=backends.names(),
        help="one that must work: the exit code says so (default: the one that every machine has)",
    )
    p.add_argument("--quick", action="store_true", help="measure nothing, and try no kernels")
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.model is not None:
        model_file.load(args.model)  # what is wrong with it is said before anything is measured
    bar, of = Bar(), None
    try:
        found = diagnosis.run(
            args.backend, measure=not args.quick, on_progress=lambda said: bar(said, 0, 0)
        )
        if args.model is not None:
            bar("the model's kernels", 0, 0)
            of = prescription.prescribe(args.model, args.backend or choose_backend("auto"))
    finally:
        bar.done()
    width = max(len(c.name) for c in found.checks)
    lines = []
    for c in found.checks:
        mark = "ok  " if c.ok else ("FAIL" if c.required else "--  ")
        lines.append(f"{mark} {c.name:<{width}}  {c.detail}")
        if not c.ok:
            lines.append(f"{'':{width + 7}}fix: {c.fix}")
    options.say([*lines, _verdict(found, args.backend)])
    if of is not None:
        options.say(["", *of.text()])
    if args.json:
        options.emit({**found.to_json(), "model": None if of is None else of.to_json()})
    return 0 if found.ok else 1


def _verdict(found: diagnosis.Diagnosis, backend: str | None) -> str:
    if not found.ok:
        return f"{'the main job' if backend is None else backend} does not work yet"
    works = "optimizing and running on the provider work"
    return works if backend is None else f"{works}, on {backend} too"
