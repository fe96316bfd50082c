"""CUDA's driver in ctypes, as far as launches of kernels need it: the device, functions of cubins,
tensor maps, the structures of a launch.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tracea_onnx.codegen.kernel_request import TensorMap
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import evaluate

_MAP_TYPES = {DType.F32: 7, DType.F16: 6, DType.BF16: 9, DType.U8: 0, DType.I32: 3, DType.I8: 0}
_SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTION = {64: 1, 128: 2, 256: 3}


@cache
def cuda() -> C.CDLL:
    lib = C.CDLL("libcuda.so.1")
    void, u32, i32 = C.c_void_p, C.c_uint32, C.c_int
    lib.cuTensorMapEncodeTiled.argtypes = [
        void,
        i32,
        u32,
        void,
        void,
        void,
        void,
        void,
        i32,
        i32,
        i32,
        i32,
    ]
    lib.cuTensorMapEncodeIm2col.argtypes = [
        void,
        i32,
        u32,
        void,
        void,
        void,
        void,
        void,
        u32,
        u32,
        void,
        i32,
        i32,
        i32,
        i32,
    ]
    return lib


def check(status: int, what: str) -> None:
    if status:
        text = C.c_char_p()
        cuda().cuGetErrorString(status, C.byref(text))
        raise RuntimeError(f"{what}: CUDA {status} {(text.value or b'').decode()}")


@cache
def driver_version() -> int:
    v = C.c_int()
    cuda().cuDriverGetVersion(C.byref(v))
    return v.value


def need_context() -> None:
    """The device's primary context, which is PyTorch's too, is current on this thread."""
    context = C.c_void_p()
    check(cuda().cuInit(0), "starting the driver")
    check(cuda().cuCtxGetCurrent(C.byref(context)), "asking for the context")
    if not context:
        check(cuda().cuDevicePrimaryCtxRetain(C.byref(context), 0), "taking the device")
        check(cuda().cuCtxSetCurrent(context), "taking the device")


_assumed: list[tuple[int, int]] = []


def assume(arch: int, sms: int) -> None:
    """Kernels are emitted for such a device from now on, also on a machine without it."""
    _assumed[:] = [(arch, sms)]


@contextmanager
def assumed(arch: int, sms: int) -> Iterator[None]:
    before = list(_assumed)
    assume(arch, sms)
    try:
        yield
    finally:
        _assumed[:] = before


def device() -> tuple[int, int]:
    """(compute capability x 10, multiprocessors) of the first device."""
    return _assumed[0] if _assumed else _found()


@cache
def _found() -> tuple[int, int]:
    check(cuda().cuInit(0), "starting the driver")
    values = (C.c_int * 3)()
    for k, attribute in enumerate((75, 76, 16)):
        check(
            cuda().cuDeviceGetAttribute(C.byref(values, 4 * k), attribute, 0), "asking the device"
        )
    return values[0] * 10 + values[1], values[2]


class Attribute(C.Structure):
    _fields_ = (("id", C.c_int), ("pad", C.c_int), ("value", C.c_uint32 * 16))


class Config(C.Structure):
    _fields_ = (
        *((n, C.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "smem")),
        ("stream", C.c_void_p), ("attributes", C.POINTER(Attribute)), ("count", C.c_uint),
    )  # fmt: skip


_modules: dict[bytes, C.c_void_p] = {}
_shared: dict[tuple[bytes, str], int] = {}  # bytes that launches of a function may have


def function(cubin: bytes, symbol: str, smem: int) -> C.c_void_p:
    """Kernel `symbol` of a loaded cubin, whose launches may take `smem` bytes of shared memory."""
    need_context()
    if cubin not in _modules:
        module = C.c_void_p()
        check(cuda().cuModuleLoadData(C.byref(module), cubin), f"loading {symbol}")
        _modules[cubin] = module
    found = C.c_void_p()
    check(
        cuda().cuModuleGetFunction(C.byref(found), _modules[cubin], symbol.encode()),
        f"finding {symbol}",
    )
    most = _shared.get((cubin, symbol), 48 * 1024)
    if smem > most:  # launches of one kernel may ask for different amounts
        check(
            cuda().cuFuncSetAttribute(found, 8, C.c_int(smem)),
            f"{smem} bytes of shared memory for {symbol}",
        )
        _shared[cubin, symbol] = smem
    return found


def tensor_map(t: TensorMap, address: int, env: dict[str, int]) -> Any:
    """The 128 bytes, at a multiple of 64, that the driver makes of a description of the tensor at
    `address`.
    """
    raw = C.create_string_buffer(256)
    out = (C.c_char * 128).from_buffer(raw, -C.addressof(raw) % 64)
    rank = len(t.dims)
    sizes = [max(evaluate(d, env), 1) for d in t.dims]
    dims, strides = (
        (C.c_uint64 * rank)(*sizes),
        (C.c_uint64 * max(rank - 1, 1))(*[evaluate(s, env) for s in t.strides]),
    )
    steps = (C.c_uint32 * rank)(*(t.element_strides or [1] * rank))
    where, kind, swizzle, promotion = (
        C.addressof(out),
        _MAP_TYPES[t.dtype],
        _SWIZZLE[t.swizzle],
        _PROMOTION[t.l2_promotion],
    )
    if t.im2col is None:
        box = (C.c_uint32 * rank)(*t.box)
        check(
            cuda().cuTensorMapEncodeTiled(
                where, kind, rank, address, dims, strides, box, steps, 0, swizzle, promotion, 0
            ),
            f"tensor map {t} {sizes}",
        )
    else:
        lower, upper = (C.c_int * (rank - 2))(*t.im2col[0]), (C.c_int * (rank - 2))(*t.im2col[1])
        encode = cuda().cuTensorMapEncodeIm2col
        check(
            encode(
                where,
                kind,
                rank,
                address,
                dims,
                strides,
                lower,
                upper,
                t.im2col[2],
                t.im2col[3],
                steps,
                0,
                swizzle,
                promotion,
                0,
            ),
            f"im2col map {t} {sizes}",
        )
        total = t.dtype.size
        for s in sizes:
            total *= s
        # such drivers set a bit that misreads small tensors
        if driver_version() <= 13010 and total < 131072:
            (C.c_uint64 * 16).from_buffer(out)[1] &= ~(1 << 21)
    return out
