"""Options that several sub-commands share, and how they speak."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracea_onnx.cli import colour
from tracea_onnx.codegen import backend
from tracea_onnx.model_io import model_file
from tracea_onnx.support.log import printable
from tracea_onnx.verify import input_values
from tracea_onnx.verify.verification import TIME_LIMIT

Subparsers = Any  # argparse._SubParsersAction is private


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add --only and --skip."""
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="RULE",
        help="use this rule alone (repeatable); exit 5 when it fuses nothing",
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="RULE",
        help="do without this rule (repeatable)",
    )


def add_backend(
    parser: argparse.ArgumentParser, what: str = "what the fusions are priced for (default: auto)"
) -> None:
    """Add --backend, which is `what`."""
    parser.add_argument("--backend", choices=("auto", *backend.names()), default="auto", help=what)


def add_external_data(parser: argparse.ArgumentParser) -> None:
    """Add --external-data."""
    parser.add_argument(
        "--external-data",
        choices=model_file.EXTERNAL_DATA,
        default="auto",
        help="weights in a file of their own (default: as the model has them)",
    )


def add_initializer_inputs(parser: argparse.ArgumentParser) -> None:
    """Add --keep-initializer-inputs."""
    parser.add_argument(
        "--keep-initializer-inputs",
        action="store_true",
        help="leave initializers that are also inputs as they are (never fused)",
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options on what a model is run with."""
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the generated inputs (default: 0)"
    )
    parser.add_argument(
        "--load-inputs",
        type=Path,
        metavar="FILE.npz",
        help="use these inputs instead of generated ones",
    )
    add_input_shapes(parser)


def add_verification(parser: argparse.ArgumentParser) -> None:
    """Add the options on how a result is compared with the original."""
    parser.add_argument(
        "--rtol",
        type=float,
        help="relative bound (default: from the data type and the longest reduction)",
    )
    parser.add_argument("--atol", type=float, help="absolute bound (default: 0)")
    add_inputs(parser)
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=f"how long one run of a model may take (default: {TIME_LIMIT:g})",
    )
    parser.add_argument(
        "--provider",
        choices=("cpu", "tracea"),
        default="cpu",
        help="what runs the result (default: ONNX Runtime's CPU provider); "
        "tracea believes the specs of fused ops (specs=trust), to compare what they say",
    )


def add_input_shapes(parser: argparse.ArgumentParser) -> None:
    """Add --input-shape."""
    parser.add_argument(
        "--input-shape",
        action="append",
        default=[],
        metavar="NAME:1,3,224,224",
        help="shape of a generated input (repeatable)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="write the report to stdout as JSON")


def shapes(args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The shapes of --input-shape by input name."""
    return dict(input_values.parse_shape(s) for s in args.input_shape)


def values(args: argparse.Namespace) -> dict[str, Any] | None:
    """The arrays of --load-inputs by input name; None without the option."""
    return input_values.load_inputs(args.load_inputs) if args.load_inputs is not None else None


def providers(args: argparse.Namespace) -> list[str]:
    """The execution providers `--provider` stands for; ours is registered when it is among them."""
    if args.provider == "cpu":
        return ["CPUExecutionProvider"]
    from tracea_onnx.provider import PROVIDER_NAME, register

    register()
    return [PROVIDER_NAME, "CPUExecutionProvider"]


def say(lines: Sequence[str]) -> None:
    """Text for people goes to stderr."""
    print("\n".join(colour.painted(printable(line)) for line in lines), file=sys.stderr)


def emit(value: Any) -> None:
    """JSON for programs goes to stdout, before what is said later, should both be one file. A NaN
    or infinity becomes a string, since JSON has neither.
    """
    print(json.dumps(plain(value), indent=2), flush=True)


def plain(value: Any) -> Any:
    """Value that JSON can hold: a NaN or infinity becomes a string, and so do bytes, escaped where
    they are no UTF-8.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
