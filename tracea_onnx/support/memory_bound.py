"""How much memory a process may allocate."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def set_bound() -> None:
    """Let allocations fail beyond the machine's memory: the system would kill this process or
    others later, without a word.
    """
    if not sys.platform.startswith("linux"):
        return
    import resource

    def kibibytes(file: str, *keys: str) -> int:
        found = dict(line.split(":", 1) for line in Path(file).read_text().splitlines())
        return sum(int(found[key].split()[0]) for key in keys)

    with contextlib.suppress(OSError, ValueError, KeyError):
        # What is mapped already may be far more than there is: sanitizers reserve terabytes.
        most = 1024 * (
            kibibytes("/proc/meminfo", "MemTotal", "SwapTotal")
            + kibibytes("/proc/self/status", "VmData")
        )
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        lowest = min([most, *(value for value in limits if value != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_DATA, (lowest, limits[1]))
