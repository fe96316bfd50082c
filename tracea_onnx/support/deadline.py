"""Runs of ONNX Runtime that end after a given time: a Loop may go round 2^60 times."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any


class TooLong(Exception):
    """The run took longer than it was given."""


def run(session: Any, names: Sequence[str], feeds: Mapping[str, Any], seconds: float) -> list[Any]:
    """The values of `names` when an ONNX Runtime session runs on `feeds`.

    Raises TooLong after `seconds`, and ONNX Runtime's own errors. A single operator is not
    interrupted: the time is looked at between operators, those of bodies included.
    """
    import onnxruntime as ort

    options = ort.RunOptions()
    options.log_severity_level = 4
    timer = threading.Timer(seconds, lambda: setattr(options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        results: list[Any] = session.run(list(names), dict(feeds), options)
        return results
    except Exception:
        if options.terminate:
            raise TooLong from None
        raise
    finally:
        timer.cancel()
