"""The CUDA backend: family launches become generated CUDA C++, and NVRTC turns that into cubins (no GPU needed).

`kernels/cuda/emit_<name>.py` modules each hold `FAMILIES`: family name -> function from `tracea_onnx.codegen.kernel_request.Request` to kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Kernel, Request, Unfit
from tracea_onnx.codegen.size_ranges import aligned, either, ranged
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir import dims as D
from tracea_onnx.pricing import device_caps
from tracea_onnx.runtime import nvrtc as compilers
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.support.scoped_value import meanwhile

Emit = Callable[[Request], list[Kernel]]
_FOLDER = Path(__file__).resolve().parent / "cuda"
__path__ = [str(_FOLDER)]  # a package, so that Python imports what lies there, a module at a time
#: Architectures whose own instructions (wgmma, setmaxnreg) need the `a` target.
_SPECIFIC = frozenset({90, 100, 103, 120})


def emit(request: Request) -> list[Kernel]:
    """The kernels that compute one family launch; raises Unfit with a sentence when the backend has none."""
    fn = families().get(request.family)
    if fn is None:
        raise Unfit(f"the CUDA backend has no kernel for {request.family}")

    def chosen(r: Request) -> list[Kernel]:
        with kernel_choice.emitting(r), meanwhile(device_caps.present, r.caps):
            return fn(r)

    kernels = aligned(request, lambda r: ranged(r, chosen))
    tuned = [(use, ranged(numbered, chosen)) for use, numbered in kernel_choice.points(request)]
    found = either([*tuned, (D.sub(1, sum((use for use, _ in tuned), start=0)), kernels)]) if tuned else kernels
    for k in found:
        if not request.caps.launches(k.smem, k.cluster):
            device = f"the device, which has {request.caps.smem_block} for a block, and clusters of {request.caps.cluster}"
            raise Unfit(f"kernel '{k.symbol}' asks for {k.smem} bytes of shared memory and clusters of {k.cluster}: more than {device}")
    return found


@cache
def families() -> dict[str, Emit]:
    """Every family some `emit_*.py` provides."""
    found: dict[str, Emit] = {}
    for path in sorted(_FOLDER.glob("emit_*.py")):
        found |= part(path.stem).FAMILIES
    return found


def template(name: str) -> str:
    """Text of the template `kernels/cuda/<name>.cuh`."""
    return (_FOLDER / f"{name}.cuh").read_text()


def part(name: str) -> ModuleType:
    """The module `kernels/cuda/<name>.py` (code that several emitters share)."""
    return importlib.import_module(f"{__name__}.{name}")


#: Loops that wait for copies into shared memory, and the same with an end. A wrong number of bytes would let the GPU hang.
_ENDLESS = (
    (r".reg .pred p;\nagain_%=:\n", r".reg .pred p;\n.reg .u32 polls;\nmov.u32 polls, 0;\nagain_%=:\n"),
    # each poll of these takes up to 10 ms
    (r"@p bra done_%=;\nbra again_%=;\n", r"@p bra done_%=;\nadd.u32 polls, polls, 1;\nsetp.gt.u32 p, polls, 2000;\n@p trap;\nbra again_%=;\n"),
    ("  while (!done)\n    asm volatile(", "  for (u32 polls = 0; !done; polls++ < 1u << 24 ? (void)0 : __trap())\n    asm volatile("),
)


def trapping(source: str) -> str:
    """The source with waits for copies that end in a trap, which the driver reports as a failed launch. For finding faults: it costs registers and time."""
    for endless, ending in _ENDLESS:
        source = source.replace(endless, ending)
    return source


# --- compilation ----------------------------------------------------------------------------------------------------------


def target(arch: int) -> str:
    return f"sm_{arch}a" if arch in _SPECIFIC else f"sm_{arch}"


def compile(source: str, arch: int) -> bytes:  # the backend protocol's name
    """Cubin of `source` for compute capability `arch` (x 10), from the cache when it was compiled before; PTX, which the driver translates when it loads it,
    where the compiler is older than the GPU.

    Raises TraceaError with the compiler's first error when the source does not compile (a fault of the template)."""
    version, to = _nvrtc_version(), _compiled_for(arch)
    key = hashlib.sha256(repr((source, to, version)).encode()).hexdigest()
    cached = Cache().get(key)
    if cached is not None:
        return cached
    cubin = _compile(source, to)
    Cache().put(key, cubin)
    return cubin


@cache
def nvrtc() -> ctypes.CDLL:
    """The NVRTC library: the newest installed one whose kernels the driver takes."""
    found = compilers.load()
    if found is None:
        raise TraceaError("NVRTC, the CUDA run-time compiler, is not installed", 'python -m pip install "tracea-onnx[gpu]"')
    return found[1]


@cache
def _compiled_for(arch: int) -> str:
    """The compiler's --gpu-architecture: the GPU's own, else the newest that it knows before that, in PTX."""
    known = compilers.architectures(nvrtc())
    if not known or arch in known:
        return target(arch)
    version, fix = ".".join(map(str, _nvrtc_version())), 'python -m pip install -U "tracea-onnx[gpu13]"'
    older = [a for a in known if a <= arch and (a >= 90 or arch < 90)]  # what is emitted from sm_90 on needs PTX of its own
    if not older:
        raise TraceaError(f"NVRTC {version} compiles nothing that a GPU of sm_{arch} runs (it knows {', '.join(f'sm_{a}' for a in known)})", fix)
    warnings.warn(f"NVRTC {version} is older than the GPU (sm_{arch}): the driver translates its kernels when they are loaded; for faster loading: {fix}", stacklevel=2)
    return f"compute_{max(older)}"


@cache
def _nvrtc_version() -> tuple[int, int]:
    return compilers.version(nvrtc())


def _check(status: int, what: str) -> None:
    if status:
        nvrtc().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise TraceaError(f"{what} failed: {nvrtc().nvrtcGetErrorString(status).decode()}", "see `tracea-onnx doctor`")


def _compile(source: str, arch: str) -> bytes:
    lib, program = nvrtc(), ctypes.c_void_p()
    _check(lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"tracea.cu", 0, None, None), "nvrtcCreateProgram")
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-default-device"]
        status = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if status:
            size = ctypes.c_size_t()
            lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            lib.nvrtcGetProgramLog(program, log)
            first = next((line for line in log.value.decode(errors="replace").splitlines() if "error" in line), "no message")
            raise TraceaError(f"a generated CUDA kernel does not compile for {arch}: {first}", "report this")
        size, made = ctypes.c_size_t(), "PTX" if arch.startswith("compute_") else "CUBIN"
        _check(lib[f"nvrtcGet{made}Size"](program, ctypes.byref(size)), f"nvrtcGet{made}Size")
        image = ctypes.create_string_buffer(size.value)
        _check(lib[f"nvrtcGet{made}"](program, image), f"nvrtcGet{made}")
        return image.raw
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
