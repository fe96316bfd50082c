"""What works on this machine, line by line, and how to mend what does not."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tracea_onnx.codegen import tuning_records
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import cuda_harness, nvrtc
from tracea_onnx.support import discovery
from tracea_onnx.support.artifact_cache import Cache


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
    yield Check(
        "python",
        sys.version_info >= (3, 11),
        platform.python_version(),
        "install Python 3.11 or newer",
    )
    yield _package("onnx", (1, 17), "python -m pip install -U onnx")
    yield _package(
        "onnxruntime",
        (1, 24),
        'python -m pip install -U "tracea-onnx[cpu]"',
        alternatives=("onnxruntime-gpu",),
    )
    yield _attempt("provider library", _library, "reinstall tracea-onnx")
    yield _attempt(
        "provider registers",
        _registers,
        "python -m pip install -U onnxruntime, then reinstall tracea-onnx",
    )
    yield _attempt("instruction set", _isa, "reinstall tracea-onnx for this kind of machine")
    yield _cache()
    yield _driver()
    yield from _gpus()
    yield _compiler()
    cupy = importlib.util.find_spec("cupy") is not None
    yield Check(
        "cupy",
        cupy,
        "installed" if cupy else "not installed",
        'for the CUDA backend: python -m pip install "tracea-onnx[gpu]"',
        required=False,
    )


def _package(
    name: str, least: tuple[int, ...], fix: str, alternatives: tuple[str, ...] = ()
) -> Check:
    for candidate in (name, *alternatives):
        try:
            text = version(candidate)
        except PackageNotFoundError:
            continue
        numbers = tuple(int(p) for p in text.split("+")[0].split(".")[:2] if p.isdigit())
        need = ".".join(map(str, least))
        return Check(
            name,
            numbers >= least,
            text if numbers >= least else f"{text} is older than {need}",
            fix,
        )
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
    from tracea_onnx.runtime.native_library import best_isa

    return best_isa()


def _cache() -> Check:
    cache = Cache()
    fault = cache.fault()
    fix = (
        f"remove {cache.folder}, or: chmod 700 {cache.folder}"
        if cache.folder
        else "set HOME or XDG_CACHE_HOME"
    )
    return Check("cache", not fault, fault or str(cache.folder), fix, required=False)


def cuda_devices() -> int:
    """Devices NVIDIA's driver offers; 0 without a driver."""
    driver, count = nvrtc.driver_library(), ctypes.c_int(0)
    return (
        count.value
        if driver is not None and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        else 0
    )


def _driver() -> Check:
    found, version = cuda_devices(), nvrtc.driver_version()
    detail = (
        f"CUDA {_dotted(version)}, {found} device{'' if found == 1 else 's'}"
        if version
        else "no CUDA device"
    )
    return Check(
        "CUDA driver",
        found > 0,
        detail,
        "for the CUDA backend: install NVIDIA's driver",
        required=False,
    )


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


#: Oldest compute capability the kernels are written for, and CUdevice_attribute's numbers of its
#: two halves.
_OLDEST_GPU, _FACTS = (8, 0), (75, 76)


def _gpus() -> Iterator[Check]:
    driver = nvrtc.driver_library()
    for k in range(cuda_devices()):
        assert driver is not None
        device, name, facts = ctypes.c_int(), ctypes.create_string_buffer(256), list[int]()
        driver.cuDeviceGet(ctypes.byref(device), k)
        driver.cuDeviceGetName(name, len(name), device)
        for attribute in _FACTS:
            value = ctypes.c_int()
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            facts.append(value.value)
        major, minor = facts
        ok = (major, minor) >= _OLDEST_GPU
        picked = (
            f"kernels for {discovery.module('kernels', 'cuda').target(major * 10 + minor)}"
            if ok
            else "older than the kernels need"
        )
        tuned = _tuned(k) if ok else 0
        record = f"; {tuned} launches tuned" if tuned else ""
        detail = f"{name.value.decode(errors='replace')}, compute capability {major}.{minor}: {picked}{record}"
        yield Check(
            f"GPU {k}",
            ok,
            detail,
            "the CUDA backend needs compute capability 8.0 or newer",
            required=False,
        )


def _tuned(k: int) -> int:
    """Launches in the record of a GPU; 0 where the native library cannot tell."""
    try:
        return len(tuning_records.load(cuda_harness.device(k)))
    except TraceaError:
        return 0


def _architectures() -> list[int]:
    """Compute capabilities x 10 of the GPUs that the kernels run on."""
    driver, found = nvrtc.driver_library(), list[int]()
    for k in range(cuda_devices()):
        assert driver is not None
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), k)
        for value, attribute in ((major, _FACTS[0]), (minor, _FACTS[1])):
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        if (major.value, minor.value) >= _OLDEST_GPU:
            found.append(major.value * 10 + minor.value)
    return found


def _compiler() -> Check:
    found, driver = nvrtc.load(), nvrtc.driver_version()
    fix = 'for the CUDA backend: python -m pip install "tracea-onnx[gpu]" (for CUDA 13: "tracea-onnx[gpu13]")'
    if found is None:
        return Check("NVRTC", False, "not found", fix, required=False)
    compiler, library = found
    number = ".".join(map(str, nvrtc.version(library)))
    if driver and compiler.major > driver // 1000:
        detail = f"{number} ({compiler.path}) is newer than the driver's CUDA {_dotted(driver)}, which does not load its kernels"
        return Check(
            "NVRTC",
            False,
            detail,
            'python -m pip install "tracea-onnx[gpu]", or update the driver',
            required=False,
        )
    unknown = [
        a for a in _architectures() if (known := nvrtc.architectures(library)) and a not in known
    ]
    if unknown:
        detail = f"{number} ({compiler.path}) is older than the GPU (sm_{unknown[0]}): the driver translates its kernels when they are loaded"
        return Check(
            "NVRTC",
            False,
            detail,
            'for faster loading: python -m pip install -U "tracea-onnx[gpu13]"',
            required=False,
        )
    why = (
        f"the newest installed that a driver of CUDA {_dotted(driver)} takes"
        if driver
        else "the newest installed; there is no driver to ask"
    )
    return Check("NVRTC", True, f"{number}, {why} ({compiler.path})", fix, required=False)
