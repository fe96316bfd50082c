"""Colours of what the command line says: on a terminal, unless NO_COLOR (https://no-color.org) or
`--color never` says otherwise; elsewhere where FORCE_COLOR or `--color always` asks for them.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

CHOICES = ("auto", "always", "never")
_RED, _GREEN, _YELLOW, _CYAN, _BOLD = ("1;31", "32", "33", "36", "1")
#: What is coloured of a line: the first that matches.
_MARKS = tuple(
    (re.compile(pattern), code)
    for pattern, code in (
        (r"^error:", _RED),
        (r"\b(?:FAILED|BEYOND)\b", _RED),
        (r"^verification passed\b", _GREEN),
        (r"^(?:note|warning):", _YELLOW),
        (r"^ +fix:", _CYAN),
        (r"^\S.*:$", _BOLD),
    )
)
_choice = "auto"


def choose(choice: str) -> None:
    """One of CHOICES, from now on."""
    global _choice
    _choice = choice


def painted(line: str) -> str:
    """The line as stderr gets it; what it says is not changed."""
    if not _wanted(sys.stderr):
        return line
    for mark, code in _MARKS:
        if found := mark.search(line):
            before, after = line[: found.start()], line[found.end() :]
            return f"{before}\x1b[{code}m{found[0]}\x1b[0m{after}"
    return line


def _wanted(stream: TextIO) -> bool:
    if _choice != "auto":
        return _choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()
