"""The command line. Text for people on stderr, `--json` on stdout, one line and an exit code for
every error.

Exit codes: 0 ok, 1 internal, 2 usage, 3 bad model, 4 verification failed, 5 a required fusion is
missing.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from tracea_onnx._version import __version__
from tracea_onnx.cli import (
    bench,
    cache,
    check,
    colour,
    compile,
    completion,
    demo,
    doctor,
    explain,
    inline,
    inspect,
    optimize,
    tune,
    verify,
)
from tracea_onnx.errors import ModelError, TraceaError, UsageError
from tracea_onnx.shapes.onnx_inference import first_line
from tracea_onnx.support import memory_bound
from tracea_onnx.support.log import printable

_COMMANDS = (
    optimize,
    explain,
    check,
    inspect,
    verify,
    compile,
    inline,
    demo,
    tune,
    bench,
    doctor,
    cache,
    completion,
)
_INTERRUPTED = 130
#: A disk, a quota or a file has no room left.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Options before the command, or behind it.
_EVERYWHERE: dict[str, dict[str, Any]] = {
    "--debug": {"action": "store_true", "help": "show the traceback of an error"},
    "--color": {
        "choices": colour.CHOICES,
        "default": "auto",
        "help": "colours (default: on a terminal, unless NO_COLOR is set, or where FORCE_COLOR is)",
    },
}


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    p = argparse.ArgumentParser(
        prog="tracea-onnx", description="Fuse ONNX models and run them faster in ONNX Runtime."
    )
    p.add_argument("--version", action="version", version=f"tracea-onnx {__version__}")
    subparsers = p.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(subparsers)
    for option, settings in _EVERYWHERE.items():
        p.add_argument(option, **settings)
        for sub in subparsers.choices.values():
            hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            sub.add_argument(option, **{**settings, **hidden})
    p.set_defaults(parser=p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no error of any kind gets out."""
    args = parser().parse_args(argv)
    colour.choose(args.color)
    memory_bound.set_bound()
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read our output has gone; that is no error of ours
        _drop(sys.stdout)
        return 0
    except KeyboardInterrupt:
        print("\ninterrupted; every file is whole: as it was, or as it was to be", file=sys.stderr)
        return _INTERRUPTED
    except TraceaError as e:
        if args.debug:
            raise
        _say(printable(_line(e)))
        return e.exit_code
    except MemoryError:
        if args.debug:
            raise
        _say("there is not enough memory for this model; free some, or use a machine with more")
        return ModelError.exit_code  # as for a model that is too large
    except Exception as e:
        if args.debug:
            raise
        if isinstance(e, OSError) and e.errno in _FULL:
            _drop(sys.stdout)
            what = printable(str(e.filename or "the output"))
            _say(f"{what} cannot be written ({e.strerror}); free some space, or write elsewhere")
            return UsageError.exit_code  # as for a file
        what = printable(f"{type(e).__name__}: {first_line(e)}")
        _say(f"internal: {what}; report this, with the output of the same command and --debug")
        return TraceaError.exit_code
    return code


def _say(error: str) -> None:
    try:
        print(colour.painted(f"error: {error}"), file=sys.stderr)
    except OSError:
        _drop(sys.stderr)  # the exit code is left


def _drop(stream: TextIO) -> None:
    """Discards buffered output: Python would try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _line(e: TraceaError) -> str:
    return " ".join(str(e).split())
