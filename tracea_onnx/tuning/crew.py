"""Workers of a fleet, each of them a `concurrent.futures` executor: an extension point. `open_crew`
selects the kind by the scheme of an address (`KINDS`): one file each.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.tuning.station import Place

#: Modules of this package by scheme, and the package that each needs.
KINDS = {
    "processes": ("local_crew", ""), "dask": ("dask_crew", "distributed"),
    "ray": ("ray_crew", "ray"),
}  # fmt: skip


class Crew(ABC):
    """Workers that come and go. Close it with `with`."""

    @abstractmethod
    def workers(self) -> Mapping[Place, Executor]:
        """Workers that are there now. What is submitted to one runs there, or never. Raises
        TraceaError where nothing can be asked any more.
        """

    def share(self, data: bytes) -> Any:
        """Handle that stands for the data among the arguments of `submit`."""
        return data

    def close(self) -> None:  # noqa: B027
        """Lets go of the workers."""

    def wait(self, futures: Collection[Future[Any]], seconds: float) -> Collection[Future[Any]]:
        """Futures that are done, as soon as one is."""
        if not futures:
            time.sleep(seconds)
        return concurrent.futures.wait(
            futures, seconds, return_when=concurrent.futures.FIRST_COMPLETED
        ).done

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def open_crew(address: str, *, gpus: bool, threads: int) -> Crew:
    """The workers at `processes://COUNT`, `dask://HOST:PORT` or `ray://HOST:PORT`. gpus: whether
    each has a GPU, else so many cores as `threads`. Raises UsageError, TraceaError.
    """
    try:
        parts = urlsplit(address)
        place = parts.netloc
        if parts.scheme not in KINDS or not place or parts.path.strip("/") or parts.query:
            raise ValueError
        if parts.scheme != "processes" and not (parts.hostname and parts.port):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"'{address}' names no workers",
            "write --executor processes://COUNT, dask://HOST:PORT or ray://HOST:PORT",
        ) from None
    module, package = KINDS[parts.scheme]
    try:
        if package:
            importlib.import_module(package)
    except ImportError:
        raise TraceaError(
            f"--executor {parts.scheme}://... needs the package '{package}'",
            f"install it: pip install 'tracea-onnx[{parts.scheme}]'",
        ) from None
    made = importlib.import_module(f"tracea_onnx.tuning.{module}")
    crew: Crew = made.open_crew(place, gpus=gpus, threads=threads)
    return crew
