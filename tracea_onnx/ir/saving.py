"""What a fusion saves, as schedulers compare it."""

from __future__ import annotations

from tracea_onnx.ir.refusals import Reason
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Saving:
    """Estimated microseconds a match saves on a backend."""

    us: float
    reason: Reason | None = None  # when us <= 0: why fusing would lose
