"""Every header of the CUDA kernels is one that a compiler reads by itself."""

from __future__ import annotations

import pytest

from tracea_onnx.support import discovery

CUDA = discovery.folder("kernels") / "cuda"
HEADERS = sorted(
    p.relative_to(CUDA).with_suffix("").as_posix()
    for p in CUDA.rglob("*.cuh")
    if "#pragma once" in p.read_text()
)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_compiles_by_itself(name: str) -> None:
    compiler = discovery.module("kernels", "cuda.compiler")
    templates = discovery.module("kernels", "cuda.common.templates")
    assert compiler.compile(templates.template(name, instance=True), 90)
