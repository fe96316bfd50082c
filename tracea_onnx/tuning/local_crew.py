"""`--executor processes://COUNT`: so many processes of this machine, each with a GPU or with its
share of the cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

from tracea_onnx.errors import UsageError
from tracea_onnx.support import machine
from tracea_onnx.tuning import station
from tracea_onnx.tuning.crew import Crew
from tracea_onnx.tuning.station import Place


class _Processes(Crew):
    def __init__(self, places: list[Place]) -> None:
        # a thread waits for each process
        self._workers = {place: ThreadPoolExecutor(1) for place in places}

    def workers(self) -> Mapping[Place, Executor]:
        return self._workers

    def close(self) -> None:
        for place, executor in self._workers.items():
            executor.shutdown(wait=False, cancel_futures=True)
            station.end(place)


def open_crew(address: str, *, gpus: bool, threads: int) -> Crew:
    """As `crew.open_crew`."""
    count = int(address) if address.isdecimal() else 0
    cores = machine.cores()
    each = cores // max(count, 1) if not gpus else 0
    if not count or (not gpus and each < max(threads, 1)):
        raise UsageError(
            f"'{address}' processes with {max(threads, 1)} cores each do not fit {cores} cores",
            "give fewer: one for each GPU, or for each set of cores",
        )
    return _Processes(
        [
            Place(f"process {k}", str(k), ())
            if gpus
            else Place(f"process {k}", "", tuple(range(k * each, (k + 1) * each)))
            for k in range(count)
        ]
    )
