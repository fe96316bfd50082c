"""Which NVRTC, CUDA's run-time compiler, makes the kernels: of those installed, the newest the
driver takes.

A driver loads cubins of its own CUDA major version and of older ones, not of newer ones. Wheels
come before a toolkit of the system.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tracea_onnx.support.data_classes import dataclass

_WHEELS = (
    "nvidia/*/lib/libnvrtc.so.*",
    "nvidia/*/bin/nvrtc64_*.dll",
    "nvidia/*/bin/*/nvrtc64_*.dll",
)
_SYSTEM = tuple((f"libnvrtc.so.{major}", major) for major in (14, 13, 12))


@dataclass(frozen=True)
class Compiler:
    """A library that may be loaded, and its CUDA major version."""

    path: str
    major: int


def preferred(found: Iterable[Compiler], driver: int) -> list[Compiler]:
    """In the order in which to try them, for a driver of CUDA version `driver` (x 1000; 0 without
    one): first the newest it takes, then what is newer.
    """
    takes = driver // 1000 if driver else sys.maxsize
    return sorted(found, key=lambda c: (c.major > takes, c.major if c.major > takes else -c.major))


def installed(folders: Sequence[str] | None = None) -> list[Compiler]:
    """NVRTC libraries of pip's wheels under `folders` (default: Python's path), by folder and name,
    then what the system's loader may know.
    """
    out: list[Compiler] = []
    for folder in sys.path if folders is None else folders:
        for pattern in _WHEELS:
            for path in sorted(Path(folder or ".").glob(pattern)):
                version = re.fullmatch(r"libnvrtc\.so\.(\d+)|nvrtc64_(\d+?)\d?_0\.dll", path.name)
                if version is not None:
                    out.append(Compiler(str(path), int(version[1] or version[2])))
    return [*dict.fromkeys(out), *(Compiler(name, major) for name, major in _SYSTEM)]


def load(driver: int | None = None) -> tuple[Compiler, ctypes.CDLL] | None:
    """The one to use, loaded; None when none is installed."""
    for compiler in preferred(installed(), driver_version() if driver is None else driver):
        try:
            for builtins in (
                Path(compiler.path).parent.glob("libnvrtc-builtins.so.*")
                if "/" in compiler.path
                else ()
            ):
                # NVRTC opens it by its bare name, which works once it is loaded
                ctypes.CDLL(str(builtins))
            return compiler, ctypes.CDLL(compiler.path)
        except OSError:
            continue
    return None


@cache
def chosen() -> Compiler | None:
    """The one that would be loaded, as far as files tell, without loading it; None without one."""
    return next(
        (c for c in preferred(installed(), driver_version()) if Path(c.path).is_file()), None
    )


def present() -> str:
    """Version of the chosen compiler: "12.8" of a wheel, "12" of a toolkit; "" without one."""
    compiler = chosen()
    if compiler is None:
        return ""
    versions = sorted(
        p.name.split(".so.")[1] for p in Path(compiler.path).parent.glob("libnvrtc-builtins.so.*")
    )
    return versions[-1] if versions else str(compiler.major)


def version(library: ctypes.CDLL) -> tuple[int, int]:
    """The library's version, major and minor."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def architectures(library: ctypes.CDLL) -> list[int]:
    """Architectures that it compiles for, ascending; empty where it does not say."""
    count = ctypes.c_int()
    if library.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        return []
    found = (ctypes.c_int * max(count.value, 1))()
    return sorted(found[: count.value]) if not library.nvrtcGetSupportedArchs(found) else []


def _driver() -> ctypes.CDLL | None:
    for name in ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def driver_library() -> ctypes.CDLL | None:
    """NVIDIA's driver, initialised: a process that has called this must not fork and use CUDA in
    the child.
    """
    driver = _driver()
    return driver if driver is not None and driver.cuInit(0) == 0 else None


def driver_version() -> int:
    """The CUDA version the driver takes, x 1000 (12080 is 12.8); 0 without a driver.

    Initialises nothing.
    """
    driver, value = _driver(), ctypes.c_int(0)
    if driver is not None and driver.cuDriverGetVersion(ctypes.byref(value)) == 0:
        return value.value
    return 0
