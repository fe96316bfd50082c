"""NVRTC turns generated CUDA C++ into cubins; no GPU is needed."""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from functools import cache

from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import nvrtc as compilers
from tracea_onnx.support.artifact_cache import Cache

#: Architectures whose own instructions (wgmma, setmaxnreg) need the `a` target.
_SPECIFIC = frozenset({90, 100, 103, 120})
#: Loops that wait for copies into shared memory, and the same with an end. A wrong number of bytes
#: would let the GPU hang.
_ENDLESS = (
    (
        r".reg .pred p;\nagain_%=:\n",
        r".reg .pred p;\n.reg .u32 polls;\nmov.u32 polls, 0;\nagain_%=:\n",
    ),
    # each poll of these takes up to 10 ms
    (
        r"@p bra done_%=;\nbra again_%=;\n",
        (
            r"@p bra done_%=;\nadd.u32 polls, polls, 1;\nsetp.gt.u32 p, polls, 2000;\n@p "
            r"trap;\nbra "
            r"again_%=;\n"
        ),
    ),
    (
        "  while (!done)\n    asm volatile(",
        "  for (u32 polls = 0; !done; polls++ < 1u << 24 ? (void)0 : __trap())\n    asm volatile(",
    ),
)


def trapping(source: str) -> str:
    """The source with waits for copies that end in a trap, which the driver reports as a failed
    launch. For finding faults: it costs registers and time.
    """
    for endless, ending in _ENDLESS:
        source = source.replace(endless, ending)
    return source


def target(arch: int) -> str:
    return f"sm_{arch}a" if arch in _SPECIFIC else f"sm_{arch}"


def compile(source: str, arch: int) -> bytes:  # the backend protocol's name
    """Cubin of `source` for compute capability `arch` (x 10), from the cache when it was compiled
    before; PTX, which the driver translates when it loads it, where the compiler is older than the
    GPU.

    Raises TraceaError with the compiler's first error when the source does not compile (a fault of
    the template).
    """
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
        raise TraceaError(
            "NVRTC, the CUDA run-time compiler, is not installed",
            'python -m pip install "tracea-onnx[gpu]"',
        )
    return found[1]


@cache
def _compiled_for(arch: int) -> str:
    """The compiler's --gpu-architecture: the GPU's own, else the newest that it knows before that,
    in PTX.
    """
    known = compilers.architectures(nvrtc())
    if not known or arch in known:
        return target(arch)
    version, fix = (
        ".".join(map(str, _nvrtc_version())),
        'python -m pip install -U "tracea-onnx[gpu13]"',
    )
    # what is emitted from sm_90 on needs PTX of its own
    older = [a for a in known if a <= arch and (a >= 90 or arch < 90)]
    if not older:
        raise TraceaError(
            f"NVRTC {version} compiles nothing that a GPU of sm_{arch} runs (it knows "
            f"{', '.join(f'sm_{a}' for a in known)})",
            fix,
        )
    warnings.warn(
        f"NVRTC {version} is older than the GPU (sm_{arch}): the driver translates its kernels "
        f"when they are loaded; for faster loading: {fix}",
        stacklevel=2,
    )
    return f"compute_{max(older)}"


@cache
def _nvrtc_version() -> tuple[int, int]:
    return compilers.version(nvrtc())


def _check(status: int, what: str) -> None:
    if status:
        nvrtc().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise TraceaError(
            f"{what} failed: {nvrtc().nvrtcGetErrorString(status).decode()}",
            "see `tracea-onnx doctor`",
        )


def _compile(source: str, arch: str) -> bytes:
    lib, program = nvrtc(), ctypes.c_void_p()
    _check(
        lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"tracea.cu", 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-default-device"]
        status = lib.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        if status:
            size = ctypes.c_size_t()
            lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            lib.nvrtcGetProgramLog(program, log)
            first = next(
                (
                    line
                    for line in log.value.decode(errors="replace").splitlines()
                    if "error" in line
                ),
                "no message",
            )
            raise TraceaError(
                f"a generated CUDA kernel does not compile for {arch}: {first}", "report this"
            )
        size, made = ctypes.c_size_t(), "PTX" if arch.startswith("compute_") else "CUBIN"
        _check(lib[f"nvrtcGet{made}Size"](program, ctypes.byref(size)), f"nvrtcGet{made}Size")
        image = ctypes.create_string_buffer(size.value)
        _check(lib[f"nvrtcGet{made}"](program, image), f"nvrtcGet{made}")
        return image.raw
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
