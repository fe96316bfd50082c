"""`--executor dask://HOST:PORT`: the workers of a Dask cluster. One that is started for a GPU sees
that one alone, and one for a set of cores those cores (docs/guide/fleet.md).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from distributed import Client

from tracea_onnx.errors import TraceaError
from tracea_onnx.tuning.crew import Crew
from tracea_onnx.tuning.station import Place

#: Seconds that the scheduler has to answer.
_PATIENCE = 10.0


class _Dask(Crew):
    def __init__(self, address: str, client: Client) -> None:
        self._address, self._client = address, client
        self._workers: dict[Place, Executor] = {}
        self._shared: dict[bytes, Any] = {}

    def workers(self) -> Mapping[Place, Executor]:
        try:
            names = self._client.sync(self._client.scheduler.ncores, callback_timeout=_PATIENCE)
        except (AttributeError, OSError, TimeoutError, RuntimeError):
            raise _gone(self._address) from None
        there = {Place(name) for name in names}
        self._workers = {place: e for place, e in self._workers.items() if place in there}
        for place in there - self._workers.keys():
            self._workers[place] = self._client.get_executor(
                workers=[place.name], allow_other_workers=False, pure=False, retries=0
            )
        return self._workers

    def share(self, data: bytes) -> Any:
        """Sent once; workers take it from each other. Sent again where all that had it are gone."""
        if self._shared.get(data) is None or self._shared[data].status != "finished":
            self._shared[data] = self._client.scatter(data, hash=False)
        return self._shared[data]

    def close(self) -> None:
        self._shared.clear()
        self._client.close(timeout=_PATIENCE)


def _gone(address: str) -> TraceaError:
    return TraceaError(
        f"no Dask scheduler answers at {address}",
        "start one with `dask scheduler`, and tune again: what was measured is kept",
    )


def open_crew(address: str, *, gpus: bool, threads: int) -> Crew:
    """As `crew.open_crew`."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what happens is said in one line
    try:
        client = Client(f"tcp://{address}", timeout=_PATIENCE, set_as_default=False)
    except (OSError, TimeoutError):
        raise _gone(address) from None
    return _Dask(address, client)
