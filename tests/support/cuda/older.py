"""Kernels for older devices, run on this one: as PTX, which the driver translates."""

from __future__ import annotations

import ctypes as C
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.cuda import driver as driver
from tests.support.cuda import runner as R
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.plan.builder import PlanBuilder
from tracea_onnx.runtime import nvrtc
from tracea_onnx.support import discovery


def compile_to_ptx(source: str, arch: int) -> bytes:
    """PTX of `source` for compute capability `arch` (x 10), or where CUDA's assembler is installed
    what that makes of it, as the driver loads it.
    """
    found = nvrtc.load()
    assert found is not None
    lib, program, size = found[1], C.c_void_p(), C.c_size_t()
    options = [f"--gpu-architecture=compute_{arch}".encode(), b"--std=c++17", b"-default-device"]
    lib.nvrtcCreateProgram(C.byref(program), source.encode(), b"tracea.cu", 0, None, None)
    if lib.nvrtcCompileProgram(program, len(options), (C.c_char_p * len(options))(*options)):
        raise RuntimeError(f"does not compile for compute_{arch}: {source[:80]}")
    lib.nvrtcGetPTXSize(program, C.byref(size))
    ptx = C.create_string_buffer(size.value)
    lib.nvrtcGetPTX(program, ptx)
    lib.nvrtcDestroyProgram(C.byref(program))
    assembler = shutil.which("ptxas", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    return ptx.raw if assembler is None else _assembled(assembler, ptx.value)


def _assembled(assembler: str, ptx: bytes) -> bytes:
    """A cubin for Hopper, which the driver need not translate, one kernel after the other."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "cubin"
        subprocess.run(
            [assembler, "-arch=sm_90", "-o", str(cubin), "-"],
            input=ptx,
            check=True,
            capture_output=True,
        )
        return cubin.read_bytes()


def _compiling(arch: int) -> None:
    vars(discovery.module("kernels", "cuda"))["compile"] = compile_to_ptx
    R.workers = (_compiling, (arch,))


def pretend(arch: int) -> None:
    """From now on requests, and sessions of this process and those that it forks, are made for a
    device of compute capability `arch` (x 10) with this one's multiprocessors. Shared memory is the
    older device's; times mean nothing.
    """
    # Plans are cached by the device that asks for them
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    _compiling(arch)
    asked = plan_writer.writer_of

    def writer_of(props: Mapping[str, str]) -> plan_writer.Writer:
        made = asked(
            {
                "backend": props.get("backend", "cpu"),
                "arch": str(arch),
                "sms": props.get("sms", "132"),
                "tf32": props.get("tf32", "0"),
            }
        )
        if props.get("backend", "cpu") == "cpu":
            return made

        def plan(name: str, probe: bool) -> PlanBuilder:
            empty = made.plan(name, probe)
            whole = empty.to_json
            vars(empty)["to_json"] = lambda: {**whole(), "arch": int(props["arch"])}
            return empty

        return plan_writer.Writer(made.target, plan)

    partition_compiler.__dict__["writer_of"] = writer_of


def pretend_here(arch: int) -> None:
    """As `pretend`, for benchmarks that launch kernels themselves."""
    pretend(arch)
    driver.assume(arch, 132)
