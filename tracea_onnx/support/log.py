"""Messages for whoever wants them: Python's logger `tracea_onnx`, and stderr as the environment
variable TRACEA_LOG says.

`logging` takes as long to import as a small model takes to load. Who has not imported it does not
listen.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

#: Levels as the provider option log_level has them, with those of `logging`.
LEVELS = {"verbose": 10, "info": 20, "warning": 30, "error": 40, "off": 100}


def info(text: str, *operands: object) -> None:
    """Logs what was read, done and written. `text` has a %s for each operand."""
    _log(LEVELS["info"], text, operands)


def debug(text: str, *operands: object) -> None:
    """Single steps: each fusion, each refusal, each look into the cache."""
    _log(LEVELS["verbose"], text, operands)


def _log(level: int, text: str, operands: tuple[object, ...]) -> None:
    if "logging" in sys.modules:
        _logger().log(level, text, *operands, stacklevel=3)


@cache
def _logger() -> logging.Logger:
    import logging

    found = logging.getLogger("tracea_onnx")
    found.addHandler(logging.NullHandler())
    return found


def to_stderr(wanted: str) -> None:
    """Also print messages, from this level on, in the form of the provider's."""
    import logging

    if wanted not in LEVELS:
        known = ", ".join(LEVELS)
        print(
            f"tracea-onnx: warning: TRACEA_LOG={wanted!r} is not one of: {known}", file=sys.stderr
        )
        return
    names = {number: name for name, number in LEVELS.items()}

    class Line(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            level = names.get(record.levelno, record.levelname.lower())
            return f"tracea-onnx: {level}: {printable(record.getMessage())}"

    handler = logging.StreamHandler()
    handler.setFormatter(Line())
    _logger().addHandler(handler)
    _logger().setLevel(LEVELS[wanted])


def printable(text: str) -> str:
    """One line without control characters: names of a model could write to the terminal, or begin
    lines of their own.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
