"""The doctor never fails, and every ailment has a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracea_onnx.doctor import diagnosis
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import nvrtc
from tracea_onnx.support import discovery


def test_every_check_has_a_line_and_a_fix() -> None:
    checks = diagnosis.run()
    assert {
        "python",
        "onnx",
        "onnxruntime",
        "provider library",
        "provider registers",
        "instruction set",
        "cache",
        "CUDA driver",
        "NVRTC",
    } == {c.name for c in checks if not c.name.startswith("GPU ")}
    assert all(c.detail and c.fix and "\n" not in c.detail for c in checks)
    assert all(c.ok for c in checks if c.name in ("python", "onnx", "onnxruntime"))


def test_a_broken_library_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise TraceaError("the native library is missing", "reinstall it")

    def crash() -> str:
        raise OSError("cannot open shared object\nsecond line")

    monkeypatch.setattr(diagnosis, "_library", missing)
    monkeypatch.setattr(diagnosis, "_registers", crash)
    found = {c.name: c for c in diagnosis.run()}
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
