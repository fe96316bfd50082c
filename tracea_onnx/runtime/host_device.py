"""What the host's processor is called, for tuning records."""

from __future__ import annotations

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
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
                break
    except OSError:
        pass
    sizes = []
    for level in ("LEVEL1_DCACHE", "LEVEL2_CACHE", "LEVEL3_CACHE"):
        try:
            sizes.append(os.sysconf(f"SC_{level}_SIZE") >> 10)
        except (AttributeError, ValueError, OSError):
            sizes.append(0)
    return name, f"caches of {'/'.join(map(str, sizes))} KiB"
