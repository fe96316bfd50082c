"""What works on this machine, line by line, and how to mend what does not."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tracea_onnx.cache import Cache
from tracea_onnx.errors import TraceaError


@dataclass(frozen=True)
class Check:
    """One line. `required` checks decide the exit code: without them the main job does not work."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


def run() -> list[Check]:
    """Every check, in order; none raises."""
    return list(_checks())


def _checks() -> Iterator[Check]:
    yield Check("python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or newer")
    yield _package("onnx", (1, 17), "python -m pip install -U onnx")
    yield _package("onnxruntime", (1, 24), 'python -m pip install -U "tracea-onnx[cpu]"', alternatives=("onnxruntime-gpu",))
    yield _attempt("provider library", _library, "reinstall tracea-onnx")
    yield _attempt("provider registers", _registers, "python -m pip install -U onnxruntime, then reinstall tracea-onnx")
    yield _attempt("instruction set", _isa, "reinstall tracea-onnx for this kind of machine")
    yield _cache()
    found = cuda_devices()
    yield Check("CUDA driver", found > 0, f"{found} devices" if found else "no CUDA device", "for the CUDA backend: install NVIDIA's driver", required=False)
    nvrtc = nvrtc_path()
    yield Check("NVRTC", nvrtc is not None, nvrtc or "not found", 'for the CUDA backend: python -m pip install "tracea-onnx[gpu]"', required=False)
    cupy = importlib.util.find_spec("cupy") is not None
    yield Check("cupy", cupy, "installed" if cupy else "not installed", 'for the CUDA backend: python -m pip install "tracea-onnx[gpu]"', required=False)


def _package(name: str, least: tuple[int, ...], fix: str, alternatives: tuple[str, ...] = ()) -> Check:
    for candidate in (name, *alternatives):
        try:
            text = version(candidate)
        except PackageNotFoundError:
            continue
        numbers = tuple(int(p) for p in text.split("+")[0].split(".")[:2] if p.isdigit())
        need = ".".join(map(str, least))
        return Check(name, numbers >= least, text if numbers >= least else f"{text} is older than {need}", fix)
    return Check(name, False, "not installed", fix)


def _attempt(name: str, probe: Callable[[], str], fix: str) -> Check:
    try:
        return Check(name, True, probe(), fix)
    except TraceaError as e:
        return Check(name, False, e.what, e.fix or fix)
    except Exception as e:
        return Check(name, False, f"{type(e).__name__}: {e}".splitlines()[0], fix)


def _library() -> str:
    from tracea_onnx.provider import library_path

    path = library_path()
    ctypes.CDLL(path)
    return path


def _registers() -> str:
    from tracea_onnx.provider import PROVIDER_NAME, register

    register()
    return PROVIDER_NAME


def _isa() -> str:
    from tracea_onnx.native import best_isa

    return best_isa()


def _cache() -> Check:
    cache = Cache()
    fault = cache.fault()
    fix = f"remove {cache.folder}, or: chmod 700 {cache.folder}"
    return Check("cache", not fault, fault or str(cache.folder), fix, required=False)


def cuda_devices() -> int:
    """Devices NVIDIA's driver offers; 0 without a driver."""
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in names:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0


def nvrtc_path() -> str | None:
    """NVIDIA's run-time compiler: from its wheel, or from a CUDA toolkit."""
    spec = importlib.util.find_spec("nvidia")
    for base in spec.submodule_search_locations or [] if spec is not None else []:
        found = sorted(Path(base).glob("**/libnvrtc.so.*")) + sorted(Path(base).glob("**/nvrtc64_*.dll"))
        if found:
            return str(found[0])
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None
