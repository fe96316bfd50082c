"""One line of `tracea-onnx doctor`."""

from __future__ import annotations

from collections.abc import Callable

from tracea_onnx.errors import TraceaError
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Check:
    """`required` checks decide the exit code: without them the main job does not work."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


def attempt(name: str, probe: Callable[[], str], fix: str) -> Check:
    """A check that is passed when `probe` returns its detail."""
    try:
        return Check(name, True, probe(), fix)
    except TraceaError as e:
        return Check(name, False, e.what, e.fix or fix)
    except Exception as e:
        return Check(name, False, f"{type(e).__name__}: {e}".splitlines()[0], fix)
