"""What `tracea-onnx doctor` says of CUDA: driver, GPUs, compiler."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

from tracea_onnx.codegen import tuning_records
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import cuda_harness, nvrtc
from tracea_onnx.support.check import Check

from .compiler import target


def checks() -> Iterator[Check]:
    yield _driver()
    yield from _gpus()
    yield from _clocks(_nvml())
    yield _compiler()


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


#: Oldest compute capability x 10 the kernels are written for, and CUdevice_attribute's numbers of
#: its two halves.
_OLDEST_GPU, _FACTS = 80, (75, 76)


def _devices() -> Iterator[tuple[str, int]]:
    """Name and compute capability x 10 of each GPU."""
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
        yield name.value.decode(errors="replace"), facts[0] * 10 + facts[1]


def _gpus() -> Iterator[Check]:
    for k, (name, arch) in enumerate(_devices()):
        ok = arch >= _OLDEST_GPU
        picked = f"kernels for {target(arch)}" if ok else "older than the kernels need"
        tuned = _tuned(k) if ok else 0
        record = f"; {tuned} launches tuned" if tuned else ""
        yield Check(
            f"GPU {k}",
            ok,
            f"{name}, compute capability {arch // 10}.{arch % 10}: {picked}{record}",
            "the CUDA backend needs compute capability 8.0 or newer",
            required=False,
        )


#: Of NVML: clocks by what runs at them; why clocks are lower than they could be, by bit, of which
#: the last four are faults.
_CLOCKS = {"multiprocessors": 1, "memory": 2}
_LOWERED = {
    0x2: "clocks that were set", 0x4: "the power limit", 0x8: "a slowdown by the hardware",
    0x20: "heat", 0x40: "heat", 0x80: "the power supply",
}  # fmt: skip
_FAULTS = 0x8 | 0x20 | 0x40 | 0x80


def _nvml() -> ctypes.CDLL | None:
    """NVIDIA's management library, which comes with the driver."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _clocks(nvml: ctypes.CDLL | None) -> Iterator[Check]:
    """Clocks of each GPU now, and what lowers them."""
    driver = nvrtc.driver_library()
    for k in range(cuda_devices() if nvml is not None else 0):
        assert driver is not None and nvml is not None
        device, handle = ctypes.c_int(), ctypes.c_void_p()
        place, bits = ctypes.create_string_buffer(64), ctypes.c_ulonglong()
        driver.cuDeviceGet(ctypes.byref(device), k)
        if (
            driver.cuDeviceGetPCIBusId(place, len(place), device) != 0
            or nvml.nvmlDeviceGetHandleByPciBusId_v2(place, ctypes.byref(handle)) != 0
        ):
            continue
        said = []
        for what, number in _CLOCKS.items():
            now, most = ctypes.c_uint(), ctypes.c_uint()
            if (
                nvml.nvmlDeviceGetClockInfo(handle, number, ctypes.byref(now)) == 0
                and nvml.nvmlDeviceGetMaxClockInfo(handle, number, ctypes.byref(most)) == 0
            ):
                said.append(f"{what} at {now.value} of {most.value} MHz")
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(bits))
        why = dict.fromkeys(text for bit, text in _LOWERED.items() if bits.value & bit)
        yield Check(
            f"GPU {k} clocks",
            not bits.value & _FAULTS,
            ", ".join(said) + (f"; lowered by {' and '.join(why)}" if why else ""),
            "see nvidia-smi -q -d PERFORMANCE; cool the GPU, or give it its power",
            required=False,
        )


def _tuned(k: int) -> int:
    """Launches in the record of a GPU; 0 where the native library does not know."""
    try:
        return len(tuning_records.load(cuda_harness.device(k)))
    except TraceaError:
        return 0


def _architectures() -> list[int]:
    """Compute capabilities x 10 of the GPUs that the kernels run on."""
    return [arch for _, arch in _devices() if arch >= _OLDEST_GPU]


def _compiler() -> Check:
    found, driver = nvrtc.load(), nvrtc.driver_version()
    fix = (
        'for the CUDA backend: python -m pip install "tracea-onnx[gpu]" (for CUDA 13: '
        '"tracea-onnx[gpu13]")'
    )
    if found is None:
        return Check("NVRTC", False, "not found", fix, required=False)
    compiler, library = found
    number = ".".join(map(str, nvrtc.version(library)))
    if driver and compiler.major > driver // 1000:
        detail = (
            f"{number} ({compiler.path}) is newer than the driver's CUDA {_dotted(driver)}, "
            "which does not load its kernels"
        )
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
        detail = (
            f"{number} ({compiler.path}) is older than the GPU (sm_{unknown[0]}): the "
            "driver translates its kernels when they are loaded"
        )
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
