"""Errors a user can act on.

Each carries what happened, how to fix it, and the exit code of `docs/architecture.md`.
"""

from __future__ import annotations


class TraceaError(Exception):
    """Base: one clear line. `what` happened, `fix` says how to mend it."""

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        self.what, self.fix = what, fix
        super().__init__(f"{what}; {fix}" if fix else what)


class UsageError(TraceaError):
    exit_code = 2


class ModelError(TraceaError):
    """The model cannot be read, is not valid ONNX, or refers to data that is missing or outside its
    folder.
    """

    exit_code = 3


class VerificationError(TraceaError):
    exit_code = 4


class MissingFusionError(TraceaError):
    exit_code = 5
