"""tracea-onnx bench: how fast a model is on the provider, beside its peers.

Each runs in a process of its own. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tracea_onnx.bench import comparison, plot, program, rounds, sampling
from tracea_onnx.bench.comparison import Comparison, Settings
from tracea_onnx.cli import options
from tracea_onnx.cli.progress import Bar
from tracea_onnx.codegen import backend as backends
from tracea_onnx.errors import UsageError
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline.optimizer import choose_backend
from tracea_onnx.support.machine import usable_cores

#: What stands in place of a file.
_ROUNDS = "rounds"


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "bench", help="time a model on the provider beside its peers", description=__doc__
    )
    p.add_argument(
        "model",
        type=Path,
        help=f"an ONNX file; {_ROUNDS}: five chains beside PyTorch, compared with float64",
    )
    p.add_argument(
        "--against",
        metavar="PEER,PEER",
        help=f"what to compare with, of {', '.join(program.PEERS)} (default: ort-cpu, on a GPU "
        "ort-cuda; of rounds torch,torch-compile)",
    )
    options.add_backend(p, "what the provider runs on (default: auto)")
    p.add_argument(
        "--mode",
        choices=comparison.MODES,
        default=comparison.LATENCY,
        help="one run at a time on all cores, or a run on each core (default: latency)",
    )
    p.add_argument("--sessions", type=int, metavar="N", help="how many sessions run at once")
    p.add_argument("--threads", type=int, metavar="N", help="threads of each session")
    p.add_argument(
        "--batch", metavar="1,2,4,8", help="batches to run, of a model whose first axis is free"
    )
    p.add_argument(
        "--seconds", type=float, default=5.0, help="of timing for each batch, at least (default: 5)"
    )
    p.add_argument(
        "--runs",
        type=int,
        metavar="N",
        help="samples of each program, at least (default: 15, and 5 where a run is long)",
    )
    p.add_argument(
        "--clock",
        choices=tuple(sampling.CLOCKS),
        default="wall",
        help="what times single runs; the second is the processor's time, for one session of one "
        "thread on a machine with other work (default: wall)",
    )
    options.add_inputs(p)
    p.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="the Python that has this peer's packages (repeatable)",
    )
    p.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the ratios")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    backend = choose_backend(args.backend)
    settings = Settings(
        backend, args.mode, *_parallel(args), seconds=args.seconds, runs=args.runs,
        clock=args.clock, seed=args.seed,
        pythons=dict(_python(text) for text in args.python),
    )  # fmt: skip
    alone = (settings.sessions, settings.threads) == (1, 1) and backends.get(backend).host
    if args.clock != "wall" and not alone:
        raise UsageError(
            f"--clock {args.clock} counts the time of all threads",
            "give --sessions 1 --threads 1, or leave it out",
        )
    if not args.seconds > 0:
        raise UsageError(f"--seconds {args.seconds:g} leaves no time to measure", "give more")
    for file in (args.plot, args.json):
        if file is not None:
            model_file.check_output(file)
    if args.plot is not None:
        plot.library()
    bar = Bar()

    def progress(said: str) -> None:
        bar(said, 0, 0)

    try:
        found = (_rounds if args.model == Path(_ROUNDS) else _model)(args, settings, progress)
    finally:
        bar.done()
    options.say(found.text())
    if args.json is not None:
        made = json.dumps(options.plain(found.to_json()), indent=1)
        model_file.write_bytes(args.json, f"{made}\n".encode())
    if args.plot is not None:
        drawn = found.picture()
        if drawn is None:
            options.say([f"{args.plot} was not written: there is nothing to draw"])
        else:
            model_file.write_bytes(args.plot, plot.svg(drawn).encode())
    return 0 if found.ok else 1


def _model(
    args: argparse.Namespace, settings: Settings, progress: Callable[[str], None]
) -> Comparison:
    default = "ort-cpu" if backends.get(settings.backend).on_host else "ort-cuda"
    batch = [_positive("--batch", text) for text in _split(args.batch or "")]
    written = [file for file in (args.plot, args.json) if file is not None]
    model_file.check_apart(model_file.load(args.model), None, written)
    return comparison.compare(
        args.model, _peers(args, default), settings, shapes=options.shapes(args),
        values=options.values(args), batch=batch, on_progress=progress,
    )  # fmt: skip


def _rounds(
    args: argparse.Namespace, settings: Settings, progress: Callable[[str], None]
) -> Comparison:
    given = {"batch": args.batch, "input-shape": args.input_shape, "load-inputs": args.load_inputs}
    for name, value in given.items():
        if value:
            raise UsageError(f"--{name} is for a model", f"leave it out of {_ROUNDS}")
    return rounds.play(_peers(args, "torch,torch-compile"), settings, progress)


def _peers(args: argparse.Namespace, default: str) -> list[str]:
    return list(dict.fromkeys(_split(default if args.against is None else args.against)))


def _split(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _positive(option: str, text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < number < 1 << 31:
        raise UsageError(f"{option} has '{text}'", "give numbers from 1 on")
    return number


def _python(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not os.access(path, os.X_OK):
        raise UsageError(f"--python {text} names no program", "write PEER=PATH")
    return name, path


def _parallel(args: argparse.Namespace) -> tuple[int, int]:
    """Sessions, and threads of each: together all cores, unless both are given."""
    for name in ("sessions", "threads", "runs"):
        value = getattr(args, name)
        if value is not None and not 1 <= value <= 1024:
            raise UsageError(f"--{name} is {value}", "give a number from 1 to 1024")
    usable = usable_cores()
    if args.sessions is None:
        if args.mode == comparison.LATENCY:
            return 1, args.threads or usable
        threads = args.threads or 1
        return max(1, usable // threads), threads
    return args.sessions, args.threads or max(1, usable // args.sessions)
