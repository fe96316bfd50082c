"""One line of progress on stderr, only on a terminal."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

_WIDTH = 24
_EVERY = 0.1


@dataclass
class Bar:
    """Callable with (stage, done, total); total 0 = of unknown length.

    Draws nothing when the stream is no terminal.
    """

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _last: float = 0.0
    _stage: str = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` are done; 0 of 0 where that is not known."""
        now = time.monotonic()
        if not self.stream.isatty() or (
            stage == self._stage and now - self._last < _EVERY and done < total
        ):
            return
        self._last, self._stage = now, stage
        filled = _WIDTH * done // total if total else 0
        bar = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total}" if total else "..."
        self.stream.write(f"\r\x1b[K{stage} {bar}")
        self.stream.flush()

    def done(self) -> None:
        """Leave the line empty."""
        if self._stage and self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()
