"""What a fusion saves, as schedulers compare it."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx.ir.refusals import Reason


@dataclass(frozen=True)
class Saving:
    """Estimated microseconds a match saves on a backend."""

    us: float
    reason: Reason | None = None  # when us <= 0: why fusing would lose
