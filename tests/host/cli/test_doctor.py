"""The doctor never fails, and every ailment has a remedy."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import tracea_onnx
from tracea_onnx.bench import rates
from tracea_onnx.codegen import backend as backends
from tracea_onnx.doctor import conflicts, diagnosis, smallest
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import nvrtc
from tracea_onnx.support import discovery, machine


def test_every_check_has_a_line_and_a_fix() -> None:
    checks = diagnosis.run(measure=False).checks
    assert {
        "python", "onnx", "onnxruntime", "provider library", "provider registers", "processor",
        "ONNX Runtime packages", "provider packages", "threads", "instruction set", "cache",
        "CUDA driver", "NVRTC", "WebGPU",
    } == {c.name for c in checks if not c.name.startswith("GPU ")}  # fmt: skip
    assert all(c.detail and c.fix and "\n" not in c.detail for c in checks)
    assert all(c.ok for c in checks if c.name in ("python", "onnx", "onnxruntime"))


def test_a_broken_library_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise TraceaError("the native library is missing", "reinstall it")

    def crash() -> str:
        raise OSError("cannot open shared object\nsecond line")

    monkeypatch.setattr(diagnosis, "_library", missing)
    monkeypatch.setattr(diagnosis, "_registers", crash)
    found = {c.name: c for c in diagnosis.run(measure=False).checks}
    assert (found["provider library"].ok, found["provider library"].fix) == (False, "reinstall it")
    assert (
        not found["provider registers"].ok
        and "second line" not in found["provider registers"].detail
    )


def test_packages_too_old_or_missing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "version", lambda name: "1.2.3")
    assert not diagnosis._package("onnx", (1, 17), "upgrade").ok
    monkeypatch.setattr(diagnosis, "version", lambda name: "1.17.0rc1+local")
    assert diagnosis._package("onnx", (1, 17), "upgrade").ok
    monkeypatch.undo()
    assert (
        diagnosis._package("no-such-distribution-here", (1,), "install").detail == "not installed"
    )


def test_a_backend_without_a_device_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = backends.get("cuda")
    monkeypatch.setattr(type(cuda), "probe", lambda self: backends.Probe((), "no GPU at all"))
    found = diagnosis.run("cuda", measure=False)
    lost = next(c for c in found.checks if c.name == "cuda devices")
    assert not found.ok and not lost.ok and lost.required and lost.detail == "no GPU at all"
    others = ", ".join(name for name in backends.names() if name != "cuda")
    assert lost.fix.endswith(f"another backend: {others}")
    assert diagnosis.run(measure=False).ok


def test_the_machine_is_measured_and_a_wrong_kernel_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = [smallest.Tried("gemm", 1e-7), smallest.Tried("lrn", left="no kernel")]
    monkeypatch.setattr(smallest, "run", lambda name: iter(tried))
    monkeypatch.setattr(rates, "_SECONDS", 0.001)
    found = diagnosis.run("cpu")
    assert found.ok and found.kernels == {"cpu": tried}
    assert found.rates.keys() >= {"memory GB/s", "cpu products by 1 GFLOP/s"}
    assert all(0 < rate < 1e6 for rate in found.rates.values())
    tried.append(smallest.Tried("softmax", 0.5, "its result is off by 5.0e-01"))
    found = diagnosis.run("cpu")
    (kernels,) = (c for c in found.checks if c.name == "cpu kernels")
    assert not found.ok and not kernels.ok and kernels.required
    assert kernels.detail == (
        "1 of 2 families compute what they should; softmax: its result is off by 5.0e-01"
    )


# --- conflicts ------------------------------------------------------------------------------------
def test_packages_that_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("onnxruntime_gpu", "1.31.0"), ("onnxruntime", "1.31.1"), ("onnx", "1")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("onnxruntime/__init__.py,,\n" if name != "onnx" else "")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = conflicts.wheels()
    assert not found.ok and found.detail == (
        "onnxruntime 1.31.1, onnxruntime-gpu 1.31.0 overwrite each other"
    )
    assert found.fix.startswith("python -m pip uninstall -y onnxruntime onnxruntime-gpu")
    shutil.rmtree(tmp_path / "onnxruntime_gpu-1.31.0.dist-info")
    assert conflicts.wheels().ok and conflicts.runtimes() == {"onnxruntime": "1.31.1"}


def test_a_package_with_a_library_of_another_version() -> None:
    found = conflicts.libraries(lambda name: "0.0.9")
    assert not found.ok and "onnxruntime-ep-tracea 0.0.9 beside tracea-onnx" in found.detail
    assert found.fix == "python -m pip install -U onnxruntime-ep-tracea"
    assert conflicts.libraries(lambda name: tracea_onnx.__version__).ok


@pytest.mark.parametrize(
    ("environment", "cores", "physical", "quota", "said"),
    [
        ({}, 8, 8, None, ""),
        ({"OMP_NUM_THREADS": "8"}, 8, 4, None, ""),
        ({"OMP_NUM_THREADS": "9"}, 8, 4, None, "OMP_NUM_THREADS is 9"),
        ({"MKL_NUM_THREADS": "4,2"}, 2, 2, None, "MKL_NUM_THREADS is 4"),
        ({"OMP_NUM_THREADS": "many"}, 2, 2, None, ""),
        ({}, 8, 8, 2.5, "ONNX Runtime makes 8 threads for a session, where 2 cores"),
        ({}, 8, 8, 0.5, "where 1 core can be used at once (the control group has 0.5)"),
        ({}, 8, 8, 8.0, ""),
    ],
)
def test_more_threads_than_cores(
    environment: dict[str, str], cores: int, physical: int, quota: float | None, said: str
) -> None:
    found = conflicts.threads(environment, cores, physical, quota)
    assert found.ok == (not said) and said in found.detail and found.fix and not found.required


def test_what_a_machine_has_is_read_from_the_system(tmp_path: Path) -> None:
    assert machine.quota(tmp_path) is None
    for text, cores in (("max 100000", None), ("150000 100000", 1.5), ("nonsense", None)):
        (tmp_path / "cpu.max").write_text(f"{text}\n")
        assert machine.quota(tmp_path) == cores
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert machine.quota(tmp_path) is None
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("50000\n")
    assert machine.quota(tmp_path) == 0.5
    for k, (kind, size, level, shared) in enumerate(
        (("Data", "48K", 1, "0"), ("Instruction", "32K", 1, "0"), ("Unified", "4M", 2, "0-3,8"))
    ):
        folder = tmp_path / f"cpu0/cache/index{k}"
        folder.mkdir(parents=True)
        for name, text in (
            ("type", kind), ("size", size), ("level", str(level)), ("shared_cpu_list", shared)
        ):  # fmt: skip
            (folder / name).write_text(f"{text}\n")
    assert machine.caches(tmp_path) == [
        machine.Memory(1, 48 << 10, 1), machine.Memory(2, 4 << 20, 5)
    ]  # fmt: skip
    assert machine.physical_cores(tmp_path) == machine.cores()  # it does not say
    for k in os.sched_getaffinity(0):
        folder = tmp_path / f"cpu{k}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0-255\n")
    assert machine.physical_cores(tmp_path) == 1


# --- GPUs -----------------------------------------------------------------------------------------
class _Nvml:
    """A GPU whose clocks are lowered, and the driver that has it."""

    def __init__(self, why: int) -> None:
        self.why = why

    @staticmethod
    def cuDeviceGet(device: Any, k: int) -> int:
        return 0

    cuDeviceGetPCIBusId = nvmlDeviceGetHandleByPciBusId_v2 = staticmethod(lambda *_: 0)

    @staticmethod
    def nvmlDeviceGetClockInfo(handle: Any, kind: int, to: Any) -> int:
        to._obj.value = 1000 * kind
        return 0

    @staticmethod
    def nvmlDeviceGetMaxClockInfo(handle: Any, kind: int, to: Any) -> int:
        to._obj.value = 1980 * kind
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, to: Any) -> int:
        to._obj.value = self.why
        return 0


@pytest.mark.parametrize(
    ("why", "ok", "said"),
    [
        (0, True, "multiprocessors at 1000 of 1980 MHz, memory at 2000 of 3960 MHz"),
        (0x1, True, "MHz"),
        (0x4, True, "lowered by the power limit"),
        (0x60, False, "lowered by heat"),
        (0x84, False, "lowered by the power limit and the power supply"),
    ],
)
def test_clocks_that_are_lowered(
    why: int, ok: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = discovery.module("kernels", "cuda.diagnosis")
    fake: Any = _Nvml(why)
    monkeypatch.setattr(nvrtc, "driver_library", lambda: fake)
    monkeypatch.setattr(cuda, "cuda_devices", lambda: 1)
    (found,) = cuda._clocks(fake)
    assert found.ok == ok and found.detail.endswith(said) and not found.required
    assert not list(cuda._clocks(None))


# --- which compiler -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("driver", "majors"),
    [
        (12080, [12, 11, 13, 14]),
        (13000, [13, 12, 11, 14]),
        (14000, [14, 13, 12, 11]),
        (0, [14, 13, 12, 11]),
    ],
)
def test_the_newest_compiler_the_driver_takes_comes_first(driver: int, majors: list[int]) -> None:
    found = [nvrtc.Compiler(f"{m}", m) for m in (12, 14, 11, 13)]
    assert [c.major for c in nvrtc.preferred(found, driver)] == majors


def test_wheels_are_found_in_a_fixed_order(tmp_path: Path) -> None:
    names = (
        "cuda_nvrtc/lib/libnvrtc.so.12",
        "cu13/lib/libnvrtc.so.13",
        "cu13/bin/x86_64/nvrtc64_130_0.dll",
        "cuda_nvrtc/bin/nvrtc64_120_0.dll",
    )
    wheels = tmp_path / "nvidia"
    for name in (*names, "cu13/lib/libnvrtc.so.13.0.alt", "cu13/lib/libnvrtc-builtins.so.13.0"):
        (wheels / name).parent.mkdir(parents=True, exist_ok=True)
        (wheels / name).touch()
    found = [c for c in nvrtc.installed([str(tmp_path)]) if "/" in c.path]
    assert found == [
        nvrtc.Compiler(str(wheels / n), 13 if "13" in n else 12)
        for n in (names[1], names[0], names[3], names[2])
    ]


def test_a_compiler_newer_than_the_driver_is_an_ailment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "load", lambda: (nvrtc.Compiler("/x/libnvrtc.so.13", 13), None))
    monkeypatch.setattr(nvrtc, "version", lambda _: (13, 0))
    monkeypatch.setattr(nvrtc, "driver_version", lambda: 12040)
    cuda = discovery.module("kernels", "cuda.diagnosis")
    found = cuda._compiler()
    assert (
        not found.ok
        and "13.0" in found.detail
        and "CUDA 12.4" in found.detail
        and "[gpu]" in found.fix
    )
    monkeypatch.setattr(nvrtc, "driver_version", lambda: 13010)
    monkeypatch.setattr(nvrtc, "architectures", lambda _: [80, 89, 90])
    monkeypatch.setattr(cuda, "_architectures", lambda: [90, 120])
    older = cuda._compiler()
    assert (
        not older.ok
        and "older than the GPU (sm_120)" in older.detail
        and "pip install" in older.fix
    )
    monkeypatch.setattr(cuda, "_architectures", lambda: [90])
    assert cuda._compiler().ok and "CUDA 13.1" in cuda._compiler().detail
