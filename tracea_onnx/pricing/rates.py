"""What the cost model must know of a device."""

from __future__ import annotations

from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Rates:
    """gflops and gbytes are sustained, for one session; launch is the cost of a node in
    microseconds.
    """

    gflops: float
    gbytes: float
    launch: float
    source: str
