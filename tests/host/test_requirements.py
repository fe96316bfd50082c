"""What pyproject.toml asks package indexes for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKED = dict(
    re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements-lock.txt").read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("text", PROJECT["build-system"]["requires"])
def test_build_tools_have_ranges_around_the_locked_versions(text: str) -> None:
    """A build in an environment of its own (pip's default) takes the newest version that is
    allowed.
    """
    r = Requirement(text)
    assert {s.operator for s in r.specifier} == {">=", "<"} and r.specifier.contains(LOCKED[r.name])
    (end,) = (Version(s.version) for s in r.specifier if s.operator == "<")
    locked = Version(LOCKED[r.name])
    assert end <= Version(f"{locked.major + 1}") and (
        locked.major or end <= Version(f"0.{locked.minor + 1}")
    )


def test_files_of_pins_go_together() -> None:
    """CI installs them into one environment."""
    pins = [
        pin
        for file in ROOT.glob("requirements-[!f]*.txt")  # all but those of the oldest versions
        for pin in re.findall(r"^([\w.-]+)==(\S+)", file.read_text(), re.MULTILINE)
    ]
    versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}
    assert all(versions[re.sub(r"[-_.]+", "-", n).lower()] == v for n, v in pins)
    assert {"auditwheel", "cmake", "mkdocs", "twine"} <= versions.keys()


def test_the_page_of_libraries_names_the_versions_that_are_tested() -> None:
    page = (ROOT / "docs" / "guide" / "libraries.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.endswith("| in CI |")]
    pins = (ROOT / "requirements-recipes.txt").read_text()
    for name, version, *_ in rows:
        package = re.findall(r"`([\w-]+)`", name) or re.findall(r"\[([\w-]+)\]", name)
        assert f"\n{package[0]}=={version} " in pins
    assert len(rows) == 4


def test_onnx_is_new_enough_for_its_fixes() -> None:
    """CVE-2025-51480, CVE-2026-27489, CVE-2026-34445, CVE-2026-34446 and CVE-2026-34447 are mended
    in 1.21.
    """
    (onnx,) = (r for r in map(Requirement, PROJECT["project"]["dependencies"]) if r.name == "onnx")
    assert not any(
        onnx.specifier.contains(v) for v in ("1.17.0", "1.20.1")
    ) and onnx.specifier.contains("1.21.0")


@pytest.mark.parametrize("extra", ["gpu", "gpu13"])
def test_a_gpu_takes_onnx_runtime_and_a_compiler_alone(extra: str) -> None:
    """12.8 is the first NVRTC that compiles for Blackwell."""
    runtime, nvrtc = map(Requirement, PROJECT["project"]["optional-dependencies"][extra])
    assert runtime.name == "onnxruntime" and nvrtc.name.startswith("nvidia-cuda-nvrtc")
    assert not nvrtc.specifier.contains("12.6.85") and nvrtc.specifier.contains("13.0.88")
