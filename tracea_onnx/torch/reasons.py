"""Why PyTorch runs something itself: a sentence, logged once."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator


class _LastResort(logging.Handler):
    """Prints where nobody listens: the handler that says nothing, of `tracea_onnx`, would keep
    Python from it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        above = [*logging.getLogger("tracea_onnx").handlers, *logging.getLogger().handlers]
        if logging.lastResort and all(isinstance(h, logging.NullHandler) for h in above):
            logging.lastResort.handle(record)


log = logging.getLogger("tracea_onnx.torch")
log.addHandler(_LastResort(logging.WARNING))
_said: set[str] = set()
_lock = threading.Lock()
_OPERATOR = re.compile(r"OpOverload\(op='([\w:.]+)', overload='(\w+)'\)")
_CONVERSION = re.compile(r"Error when calling function '[^']*?<function (\w+)")


class RunsInEagerError(Exception):
    """The graph or the call runs in PyTorch; the text says why."""


def once(sentence: str) -> None:
    """Log the sentence, unless it was."""
    with _lock:
        if sentence in _said:
            return
        _said.add(sentence)
    log.warning(sentence)


def forget() -> None:
    """Sentences may be logged again."""
    with _lock:
        _said.clear()


def of_conversion(error: Exception) -> str:
    """Reason why torch.export, torch.onnx or ONNX Runtime failed, in one line."""
    chain = list(_chain(error))
    for text in map(str, chain):
        if "No ONNX function found" in text and (found := _OPERATOR.search(text)):
            return f"torch.onnx has no conversion of the operator {found[1]}.{found[2]}"
        if found := _CONVERSION.search(text):
            return f"torch.onnx fails to convert an operator ({found[1]}): {_line(chain[-1])}"
    return _line(chain[-1])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["?"]
    # ONNX Runtime says first where in its sources it is
    said = re.sub(r"^/onnxruntime_src/.*?\) ", "", lines[0])
    return f"{type(error).__name__}: {said[:300]}"
