"""A case in the making, how it may end, and what a failure is told apart by."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from onnx import ModelProto

from tests.fuzz import mutations
from tests.fuzz.workers import Verdict

DecodeError: type[Exception] = import_module(
    "google.protobuf.message"
).DecodeError  # protobuf ships no types

OK, REFUSED = "ok", "refused"
#: No faults by themselves: ONNX Runtime refuses the inputs and the provider computes; the other way
#: round, with a line that says why.
ACCEPTED, DENIED = "accepted", "denied"


@dataclass
class Case:
    """One case in the making. skip: mutations left out, by number (how a finding is minimised)."""

    key: str
    folder: Path
    skip: frozenset[int] = frozenset()
    applied: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.key)

    def mutate(
        self, model: ModelProto, wanted: Sequence[mutations.Mutation] = mutations.MUTATIONS
    ) -> None:
        """A few mutations, each with random numbers of its own, so that leaving one out changes no
        other.
        """
        for _ in range(self.random.choice((1, 1, 2, 2, 3, 4))):
            at = len(self.applied)
            own = Random(f"{self.key}:{at}")
            chosen = own.choice(wanted)
            self.applied.append(chosen.__name__)
            if at not in self.skip:
                with contextlib.suppress(
                    ValueError, TypeError, OverflowError, UnicodeError, DecodeError
                ):  # what protobuf cannot hold
                    chosen(model, own)

    def write(self, data: bytes, name: str = "input.onnx") -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def feed(self, fed: Sequence[Mapping[str, Any]]) -> None:
        """Keeps what the model is fed: each set of inputs."""
        self.write(pickle.dumps(fed), "inputs.pickle")


def _signature(e: BaseException) -> str:
    """Exception type and the innermost frame of this project."""
    frames = traceback.extract_tb(e.__traceback__)
    ours = [
        f
        for f in frames
        if any(p in f.filename for p in ("tracea_onnx", "fusion_rules", "scheduler", "kernels"))
        and "site-packages" not in f.filename
    ]
    at = (ours or list(frames))[-1]
    return f"{type(e).__name__} {Path(at.filename).name}:{at.lineno} {at.name}"


def failure(status: str, e: BaseException) -> Verdict:
    return Verdict(
        status,
        f"{type(e).__name__}: {str(e)[:300]}",
        f"{status} {_signature(e)}",
        "".join(traceback.format_exception(e))[-6000:],
    )


def line_of(e: BaseException) -> str:
    """What an error of ONNX Runtime says, without where it says it."""
    return " ".join(str(e).split()).split("Status Message: ")[-1][:300]
