"""What is found by name in the outer folders: modules, packages and their parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracea_onnx.support import discovery

CUDA = discovery.folder("kernels") / "cuda"


def test_a_backend_is_a_module_or_a_package() -> None:
    known = discovery.names("kernels")
    assert {"cpu", "cuda"} <= set(known) and list(known) == sorted(known)
    assert (
        discovery.module("kernels", "cuda.gemm.select").__package__
        == "tracea_onnx.kernels.cuda.gemm"
    )
    with pytest.raises(
        ModuleNotFoundError, match=f"no kernels called 'opencl'; there are: {', '.join(known)}"
    ):
        discovery.module("kernels", "opencl")


def test_every_template_is_named_where_it_is_used() -> None:
    templates = {str(p.relative_to(CUDA).with_suffix("").as_posix()) for p in CUDA.rglob("*.cuh")}
    text = "\n".join(p.read_text("utf-8") for p in CUDA.rglob("*.py"))
    used = {f"common/math_{how}" for how in ("exact", "fast")}
    used |= set(re.findall(r"""["']((?:\w+/)+\w+)["']""", text))
    for path in CUDA.rglob("*.cuh"):
        used |= set(re.findall(r'#include "(.*)\.cuh"', path.read_text()))
    assert templates == used


@pytest.mark.parametrize(
    "folder",
    [CUDA, *(p for p in CUDA.rglob("*") if p.is_dir() and p.name != "__pycache__")],
    ids=lambda p: p.name,
)
def test_folders_stay_small(folder: Path) -> None:
    assert sum(p.is_file() for p in folder.iterdir()) <= 25
