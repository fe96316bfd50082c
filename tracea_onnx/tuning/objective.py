"""What kernels are chosen for."""

from __future__ import annotations

from enum import StrEnum

from tracea_onnx.support import machine


class Objective(StrEnum):
    """LATENCY: the time of one run, where nothing else runs. THROUGHPUT: how many runs end in a
    second, of as many sessions as there are threads for. MEMORY: the bytes that kernels need beside
    operands, and where that is the same the time.
    """

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    MEMORY = "memory"

    def threads(self, given: int) -> int:
        """Of a session on the host. given: 0 where nobody said."""
        return 1 if self == Objective.THROUGHPUT and not given else given

    def sessions(self, threads: int) -> int:
        """How many with so many threads run at once on the host."""
        return max(1, machine.usable_cores() // threads) if self == Objective.THROUGHPUT else 1


#: How much longer a kernel may take that needs less memory, relative to the usual one.
SLACK = 0.1
