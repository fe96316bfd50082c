"""Errors a user can act on.

Each carries what happened, how to fix it, and the exit code of the
command line (`docs/reference/options.md`).
"""

from __future__ import annotations


class TraceaError(Exception):
    """Any other error: `what` happened, and `fix` says how to mend it."""

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        self.what, self.fix = what, fix
        super().__init__(f"{what}; {fix}" if fix else what)


class UsageError(TraceaError):
    """A command or a call asks for what does not exist or cannot be had."""

    exit_code = 2


class ModelError(TraceaError):
    """The model cannot be read, is not valid ONNX, or refers to data that is missing or outside its
    folder.
    """

    exit_code = 3


class VerificationError(TraceaError):
    """Results differ from the original's by more than their bounds, or cannot be compared."""

    exit_code = 4


class MissingFusionError(TraceaError):
    """A rule of `--only` fused nothing, or less fuses than the baseline of `check` says."""

    exit_code = 5
