"""What the host's processor is called, for tuning records."""

from __future__ import annotations

import contextlib
import os
import platform
from functools import cache
from pathlib import Path

from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class HostDevice:
    """name: of the processor. kind: everything that tells one kind of machine from another, in
    words: processor, instruction set, caches, threads that a session may use.
    """

    name: str
    kind: str
    threads: int
    isa: str
    backend: str = "cpu"


def device(isa: str, threads: int) -> HostDevice:
    """The host, with sessions of so many threads."""
    name, caches = _processor()
    return HostDevice(name, f"{name}, {isa}, {caches}, {threads} threads", threads, isa)


def usable_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _processor() -> tuple[str, str]:
    """Its name with family and model, and its caches, as far as the system says."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or platform.processor() or platform.machine()
    numbers = [found[key] for key in ("cpu family", "model", "stepping") if key in found]
    caches = []
    with contextlib.suppress(OSError):
        for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
            caches.append((index / "size").read_text().strip())
    return " ".join([name, "/".join(numbers)]).strip(), f"caches of {', '.join(caches)}"
