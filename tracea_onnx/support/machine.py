"""What a machine is, in words."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tracea_onnx._version import __version__
from tracea_onnx.support.data_classes import dataclass

_PACKAGES = ("onnx", "onnxruntime", "numpy")


def processor() -> str:
    """Name, family, model and logical cores of the processor."""
    found = first_core()
    if not found:
        return name()
    return (
        f"{name()} (family {found.get('cpu family', '?')}, model {found.get('model', '?')}), "
        f"{os.cpu_count()} logical cores"
    )


def name() -> str:
    """The processor's."""
    return first_core().get("model name") or platform.processor() or platform.machine()


@cache
def first_core() -> Mapping[str, str]:
    """The system's description of the first logical core; empty without one."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    return found


def machine() -> str:
    """One line: processor, system, versions."""
    packages = ", ".join(f"{p} {v}" for p in _PACKAGES if (v := _installed(p)))
    return (
        f"{processor()}; {platform.system()} {platform.release()}; Python "
        f"{platform.python_version()}, {packages}, tracea-onnx {__version__}"
    )


def _installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def cores() -> int:
    """Logical cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that the control group of this process may use at a time; None without a bound."""
    for limit, period in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = (root / limit).read_text("ascii").split()
            most = int(words[0])
            each = int((root / period).read_text("ascii") if period else words[1])
        except (OSError, ValueError, IndexError):  # no such file, or "max"
            continue
        if most > 0 < each:
            return most / each
    return None


def usable_cores() -> int:
    """How many threads run at once."""
    return max(1, min(cores(), int(quota() or cores())))


def physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Cores of the logical ones that this process may use: those that share one are siblings."""
    try:
        siblings = {
            Path(f"{root}/cpu{k}/topology/thread_siblings_list").read_text("ascii")
            for k in os.sched_getaffinity(0)
        }
    except (OSError, AttributeError):
        return cores()
    return len(siblings)


@dataclass(frozen=True)
class Memory:
    """A level of caches: bytes of one, and how many logical cores share it."""

    level: int
    size: int
    shared: int


def caches(root: Path = Path("/sys/devices/system/cpu")) -> list[Memory]:
    """Data caches of the first core, the smallest first; none where the system does not say."""
    found = []
    for index in sorted((root / "cpu0/cache").glob("index*")):
        try:
            kind, size, level, shared = (
                (index / name).read_text("ascii").strip()
                for name in ("type", "size", "level", "shared_cpu_list")
            )
            if kind != "Instruction":
                unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
                found.append(Memory(int(level), int(size.rstrip("KM")) * unit, _count(shared)))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda m: m.level)


def _count(ranges: str) -> int:
    """How many numbers a list such as 0-3,8 has."""
    ends = [part.partition("-") for part in ranges.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
