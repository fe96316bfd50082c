"""The doctor never fails, and every ailment has a remedy."""

from __future__ import annotations

import pytest

from tracea_onnx import doctor
from tracea_onnx.errors import TraceaError


def test_every_check_has_a_line_and_a_fix() -> None:
    checks = doctor.run()
    assert {"python", "onnx", "onnxruntime", "provider library", "provider registers", "instruction set", "cache", "CUDA driver", "NVRTC", "cupy"} == {
        c.name for c in checks
    }
    assert all(c.detail and c.fix and "\n" not in c.detail for c in checks)
    assert all(c.ok for c in checks if c.name in ("python", "onnx", "onnxruntime"))


def test_a_broken_library_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise TraceaError("the native library is missing", "reinstall it")

    def crash() -> str:
        raise OSError("cannot open shared object\nsecond line")

    monkeypatch.setattr(doctor, "_library", missing)
    monkeypatch.setattr(doctor, "_registers", crash)
    found = {c.name: c for c in doctor.run()}
    assert (found["provider library"].ok, found["provider library"].fix) == (False, "reinstall it")
    assert not found["provider registers"].ok and "second line" not in found["provider registers"].detail


def test_packages_too_old_or_missing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "1.2.3")
    assert not doctor._package("onnx", (1, 17), "upgrade").ok
    monkeypatch.setattr(doctor, "version", lambda name: "1.17.0rc1+local")
    assert doctor._package("onnx", (1, 17), "upgrade").ok
    monkeypatch.undo()
    assert doctor._package("no-such-distribution-here", (1,), "install").detail == "not installed"
