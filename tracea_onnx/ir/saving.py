"""What a fusion saves, as schedulers compare it."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx.ir.refusals import Reason


@dataclass(frozen=True)
class Saving:
    """Estimated microseconds a match saves on a backend, and the parts of the estimate."""

    us: float
    bytes_removed: float = 0.0
    launches_removed: float = 0.0
    reason: Reason | None = None  # when us <= 0: why fusing would lose
