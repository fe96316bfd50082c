"""Fitted constants of kernels whose prices are formulas of their own: those that do not go by
`model.py`. Each module says what its constants mean, the file of a device what they are there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from .model import FOLDER

#: The device that they were fitted to measurements on: there is no file of them for others.
_DEVICE = "h200"


@cache
def _known() -> Mapping[str, Mapping[str, Any]]:
    known: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / f"{_DEVICE}.json").read_text())[
        "fitted"
    ]
    return known


def fitted(kernel: str, names: str) -> tuple[float, ...]:
    """The constants of a kernel by their names, which spaces separate."""
    return groups(kernel, names)


def groups(kernel: str, names: str) -> tuple[Any, ...]:
    """The same of lists of constants, and of constants by name."""
    known = _known()[kernel]
    return tuple(known[name] for name in names.split())


def table(kernel: str, name: str) -> Mapping[int, Any]:
    """A constant for each of some numbers, such as the bytes of a copy."""
    return {int(k): v for k, v in groups(kernel, name)[0].items()}
