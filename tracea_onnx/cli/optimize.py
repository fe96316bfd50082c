"""tracea-onnx optimize: fuse, verify, write."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_onnx.cli import options, tune
from tracea_onnx.cli.progress import Bar
from tracea_onnx.errors import UsageError
from tracea_onnx.pipeline import optimizer, report
from tracea_onnx.rewrite import static_int8, weight_only
from tracea_onnx.verify import input_values, integer_drift, weight_drift


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "optimize",
        help="fuse what the rules find, verify the result, write it",
        description=__doc__,
    )
    p.add_argument("model", type=Path, help="an ONNX file")
    p.add_argument(
        "-o",
        "--output",
        type=Path,
        help="where to write (default: MODEL.tracea.onnx beside the model)",
    )
    options.add_backend(p)
    p.add_argument(
        "--precision",
        choices=optimizer.PRECISIONS,
        default="keep",
        help="precision kernels compute in (default: the model's own)",
    )
    p.add_argument(
        "--weights",
        choices=("keep", *weight_only.FORMATS),
        default="keep",
        help="quantise constant weights of MatMul, Gemm and Gather (default: keep them)",
    )
    p.add_argument(
        "--block",
        type=int,
        metavar="32|128",
        help="weights of a column that share a scale, 0: all (default: 0 for int8, 32 for int4)",
    )
    p.add_argument(
        "--quantize",
        type=Path,
        metavar="data.npz",
        help="make a static int8 model (QDQ), with ranges of these inputs: arrays by name, rows or "
        "one axis more are samples",
    )
    p.add_argument(
        "--calibration",
        choices=tuple(static_int8.METHODS),
        default="percentile",
        help="how --quantize finds ranges (default: percentile, 99.999 %%)",
    )
    p.add_argument(
        "--drift",
        type=float,
        help="how far an output may be from the original's, by root mean squares, until layers "
        f"stay fp32 (default: {integer_drift.LIMIT:g}; of int8 weights "
        f"{weight_drift.LIMITS['int8']:g})",
    )
    options.add_rules(p)
    p.add_argument(
        "--dry-run", action="store_true", help="show the fusions and what each saves, write nothing"
    )
    p.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare with the original before writing (default: yes)",
    )
    options.add_verification(p)
    options.add_initializer_inputs(p)
    options.add_external_data(p)
    p.add_argument(
        "--pack",
        type=Path,
        metavar="FILE",
        help="also compile the model and write the pack a program without Python loads",
    )
    p.add_argument(
        "--tune",
        nargs="?",
        const="120s",
        metavar="60s|200",
        help="then measure kernels for the written model, as `tracea-onnx tune --budget` does",
    )
    tune.add_objective(p, "--tune-objective")
    p.add_argument(
        "-v", "--verbose", action="store_true", help="show every refusal and every fusion"
    )
    options.add_json(p)
    p.set_defaults(run=run)


def default_output(model: Path) -> Path:
    """`model.onnx` becomes `model.tracea.onnx` beside it."""
    return model.parent / f"{model.stem}.tracea.onnx"


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    budget = None if args.tune is None else tune.budget(args.tune)
    if budget and (args.dry_run or args.pack):
        raise UsageError(
            "--tune measures the model that is written, after a pack was made",
            "tune first, and give --pack or --dry-run later",
        )
    output = args.output or default_output(args.model)
    bar = Bar()
    try:
        result = optimizer.optimize(
            args.model,
            output=None if args.dry_run else output,
            backend=args.backend,
            precision=args.precision,
            weights=args.weights,
            block=args.block,
            quantise=None if args.quantize is None else input_values.load_inputs(args.quantize),
            calibration=args.calibration,
            drift=args.drift,
            only=args.only,
            skip=args.skip,
            dry_run=args.dry_run,
            verify=args.verify,
            rtol=args.rtol,
            atol=args.atol,
            seed=args.seed,
            inputs=options.values(args),
            input_shapes=options.shapes(args),
            time_limit=args.time_limit,
            external_data=args.external_data,
            keep_initializer_inputs=args.keep_initializer_inputs,
            pack=None if args.dry_run else args.pack,
            providers=options.providers(args),
            progress=bar,
        )
    except optimizer.FailedVerification as e:
        bar.done()
        _show(args, e.report)
        raise
    finally:
        bar.done()
    _show(args, result.report)
    if budget:
        tune.tune(output, options.shapes(args), args.backend, budget, objective=args.tune_objective)
    return 0


def _show(args: argparse.Namespace, found: report.Report) -> None:
    lines = report.text(found, prices=args.dry_run or args.verbose, verbose=args.verbose)
    options.say(
        [
            *lines,
            *(f"wrote {f}" for f in found.files),
            f"{found.seconds:.1f} s" if found.seconds else "",
        ]
    )
    if args.json:
        options.emit(found.to_json())
