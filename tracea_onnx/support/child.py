"""Programs of this Python that this package starts."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """By which they import this package, wherever it lies."""
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(_ROOT), *([before] if before else [])])
    return {**os.environ, "PYTHONPATH": path}
