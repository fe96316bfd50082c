"""The run-time compiler: one that is older than the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.cuda.cuda_requests import attention
from tests.backend.cuda.test_cuda_caps import _excite
from tests.backend.cuda.test_cuda_gemm import gemm
from tracea_onnx.compiler import plan_writer
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime import nvrtc
from tracea_onnx.support import discovery

cuda, compiler = discovery.module("kernels", "cuda"), discovery.module("kernels", "cuda.compiler")
SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    compiler._compiled_for.cache_clear()
    yield
    compiler._compiled_for.cache_clear()


def test_a_compiler_knows_its_architectures() -> None:
    known = nvrtc.architectures(compiler.nvrtc())
    assert known == sorted(known) and {80, 89, 90} <= set(known)
    assert compiler._compiled_for(90) == "sm_90a" and compiler._compiled_for(80) == "sm_80"


def test_a_compiler_older_than_the_gpu_makes_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "architectures", lambda _: [80, 86, 89, 90])
    with pytest.warns(
        UserWarning, match=r"NVRTC \d+\.\d+ is older than the GPU \(sm_120\).*pip install"
    ):
        image = cuda.compile(SOURCE, 120)
    assert b".target sm_90" in image and b".entry twice" in image and image.endswith(b"\0")


def test_a_compiler_too_old_for_what_is_emitted_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvrtc, "architectures", lambda _: [80, 86, 89])
    with pytest.raises(
        TraceaError,
        match=r"compiles nothing that a GPU of sm_100 runs \(it knows sm_80, sm_86, sm_89\)",
    ):
        cuda.compile(SOURCE, 100)


def test_waits_for_copies_can_be_given_an_end() -> None:
    """Every kind of wait that kernels have: of tensor copies, and of what blocks of a cluster
    push.
    """
    excite = _excite(2, 32, 8, 112)
    sources = {
        k.source
        for r in (gemm(DType.F16, 512, 512, 512), attention(DType.F16, 64, s=512, t=512), excite)
        for k in cuda.emit(r)
    }
    waiting = [s for s in sources if "mbarrier.try_wait" in s]
    assert (
        len(waiting) >= 3
        and any("bra again_" in s for s in waiting)
        and any("while (!done)" in s for s in waiting)
    )
    for source in waiting:
        made = cuda.trapping(source)
        assert "while (!done)" not in made
        ptx = compiler._compile(made, "compute_90a").decode()
        assert ptx.count("mbarrier.try_wait") == ptx.count("trap;") > 0
    plain = (
        next(s for s in sources if "mbarrier.try_wait" not in s)
        if len(waiting) < len(sources)
        else SOURCE
    )
    assert cuda.trapping(plain) == plain


def test_plans_of_sessions_that_wait_for_each_launch_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []

    def compile_nothing(source: str, arch: int) -> bytes:
        compiled.append(source)
        return b"cubin"

    monkeypatch.setattr(cuda, "compile", compile_nothing)
    for traps in ("0", "1"):
        plan = plan_writer.writer_of({"backend": "cuda", "arch": "90", "traps": traps}).plan(
            "p", False
        )
        source = 'while (!done)\n    asm volatile("");'
        plan._code, plan.blobs = {f"  {source}": 0}, [b""]  # type: ignore[attr-defined]
        plan.to_json()
    assert (
        compiled[0] == f"  {source}" and compiled[1] == cuda.trapping(f"  {source}") != compiled[0]
    )
