"""The run-time compiler: one that is older than the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tracea_onnx import nvrtc, registry
from tracea_onnx.errors import TraceaError

cuda = registry.module("kernels", "cuda")
SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    cuda._compiled_for.cache_clear()
    yield
    cuda._compiled_for.cache_clear()


def test_a_compiler_knows_its_architectures() -> None:
    known = nvrtc.architectures(cuda.nvrtc())
    assert known == sorted(known) and {80, 89, 90} <= set(known)
    assert cuda._compiled_for(90) == "sm_90a" and cuda._compiled_for(80) == "sm_80"


def test_a_compiler_older_than_the_gpu_makes_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "architectures", lambda _: [80, 86, 89, 90])
    with pytest.warns(UserWarning, match=r"NVRTC \d+\.\d+ is older than the GPU \(sm_120\).*pip install"):
        image = cuda.compile(SOURCE, 120)
    assert b".target sm_90" in image and b".entry twice" in image and image.endswith(b"\0")


def test_a_compiler_too_old_for_what_is_emitted_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "architectures", lambda _: [80, 86, 89])
    with pytest.raises(TraceaError, match=r"compiles nothing that a GPU of sm_100 runs \(it knows sm_80, sm_86, sm_89\)"):
        cuda.compile(SOURCE, 100)
