"""Runs family launches on a GPU straight from their `Request`s, without ONNX Runtime: what the
provider's launcher does, in ctypes.

    launch = bind(request, {"x": x.data_ptr(), "y": y.data_ptr()})
    launch(torch.cuda.current_stream().cuda_stream)

Needs NVRTC, and for all but `bind` with memory of one's own PyTorch with CUDA (memory, streams,
graphs, references).
"""

from __future__ import annotations

import ctypes as C
import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

from tests.support.cuda import driver as driver
from tracea_onnx.codegen.kernel_request import (
    FaultWord,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    Words,
)
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime.device_caps import usual
from tracea_onnx.support import discovery

_torch: Any = None


def torch() -> Any:
    """PyTorch, once it is needed. (A module that is global can be seen through by its compiler.)"""
    global _torch
    if _torch is None:
        _torch = importlib.import_module("torch")
    return _torch


def torch_dtype(dtype: DType) -> Any:
    t = torch()
    names = {
        DType.F32: "float32",
        DType.F16: "float16",
        DType.BF16: "bfloat16",
        DType.I64: "int64",
        DType.I32: "int32",
        DType.BOOL: "bool",
        DType.U8: "uint8",
    }
    return getattr(t, names[dtype])


# --- launches


@dataclass
class Launch:
    """The bound kernels of one request; calling it enqueues them on a stream."""

    kernels: Sequence[Kernel]
    calls: list[Callable[[int], None]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)

    def __call__(self, stream: int) -> None:
        for call in self.calls:
            call(stream)


def request(
    family: str, dtype: DType, ints: Mapping[str, DimLike],
    floats: Mapping[str, float] | None = None, program: Mapping[str, Any] | None = None,
    operands: Iterable[str] = (), *, target: tuple[int, int] | None = None,
    unaligned: Iterable[str] = (), constant: Iterable[str] = (),
) -> Request:  # fmt: skip
    """A Request with the parameters that were not given set to 0, as lowering leaves them."""
    spec = FAMILIES[family]
    unknown = (set(ints) - set(spec.ints)) | (
        set(operands) - {o.rstrip("?") for o in spec.operands}
    )
    if unknown:
        raise ValueError(f"{family} has no {sorted(unknown)}")
    arch, sms = target or driver.device()
    return Request(
        family,
        dtype,
        dict(ints),
        dict(floats or {}),
        program,
        frozenset(operands),
        usual(arch, sms),
        frozenset(unaligned),
        frozenset(constant),
    )


_forced: dict[int, tuple[Request, Any]] = {}


def force(r: Request, tile: Any) -> Request:
    """A copy of `r` whose kernels use `tile` rather than the one that the backend would choose."""
    copy = replace(r)
    _forced[id(copy)] = copy, tile
    return copy


_defined: list[str] = []


def define(macro: str) -> None:
    """Kernels whose source knows this macro have it defined from now on."""
    _defined.append(macro)


def kernels(r: Request) -> list[Kernel]:
    return [
        replace(k, source="".join(f"#define {m}\n" for m in _defined if m in k.source) + k.source)
        for k in _emitted(r)
    ]


def _emitted(r: Request) -> list[Kernel]:
    backend = discovery.module("kernels", "cuda")
    if id(r) not in _forced:
        return list(backend.emit(r))
    part, name = (
        ("attention.emit", "configs")
        if r.family.startswith("attention")
        else ("gemm.select", "choose")
    )
    chooser = discovery.module("kernels", f"cuda.{part}")
    choose, tile = getattr(chooser, name), _forced[id(r)][1]
    setattr(chooser, name, lambda *_: [(tile, 1)])
    try:
        return list(backend.emit(r))
    finally:
        setattr(chooser, name, choose)


#: What each process that compiles calls first, and its arguments.
workers: tuple[Any, ...] = ()


def compile_all(requests: Iterable[Request]) -> dict[str, str]:
    """Compile every kernel of the requests in parallel; source -> error of those that do not
    compile.
    """
    todo: dict[str, int] = {}
    for r in requests:
        try:
            todo |= {k.source: r.arch for k in kernels(r)}
        except Exception as e:
            print(f"emit {r.family}: {e}", flush=True)
    failed: dict[str, str] = {}
    # Processes, not threads: a compiler may hold one lock for all of a process.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), *workers) as pool:
        for (source, arch), cubin in zip(
            todo.items(), pool.map(_compile_one, todo.items(), chunksize=4), strict=True
        ):
            if isinstance(cubin, bytes):
                _cubins[source, arch] = cubin
            else:
                failed[source] = cubin
    return failed


def _compile_one(item: tuple[str, int]) -> bytes | str:
    try:
        cubin: bytes = discovery.module("kernels", "cuda").compile(*item)
        return cubin
    except Exception as e:
        return str(e)


_cubins: dict[tuple[str, int], bytes] = {}


def _cubin(backend: Any, source: str, arch: int) -> bytes:
    if (source, arch) not in _cubins:
        _cubins[source, arch] = backend.compile(source, arch)
    return _cubins[source, arch]


#: Bytes and what each of them is -> address, and what keeps the memory.
Allocate = Callable[[int, int], tuple[int, Any]]


def _tensor(size: int, byte: int) -> tuple[int, Any]:
    buffer = torch().full((size,), byte, dtype=torch().uint8, device="cuda")
    return buffer.data_ptr(), buffer


def bind(
    r: Request,
    operands: Mapping[str, int],
    env: Mapping[str, int] | None = None,
    allocate: Allocate = _tensor,
) -> Launch:
    """Compile and bind `r` to device addresses; `env` gives the values of symbols."""
    backend, names = discovery.module("kernels", "cuda"), dict(env or {})
    launch = Launch(kernels(r))
    places = dict(operands)
    for j, size in enumerate(next((k.scratch for k in launch.kernels if k.scratch), ())):
        places[f"scratch{j}"], buffer = allocate(max(evaluate(size, names), 1), 0xA5)
        launch.keep.append(buffer)
    for k in launch.kernels:
        if min(evaluate(d, names) for d in k.grid) <= 0:  # of other sizes: not compiled
            continue
        call = call_of(k, _cubin(backend, k.source, r.arch), places, names, launch, allocate)
        if call is not None:
            launch.calls.append(call)
    return launch


def bind_all(
    requests: Sequence[Request],
    places: Sequence[Mapping[str, Any]],
    env: Mapping[str, int] | None = None,
) -> Callable[[int], None]:
    """One launch after the other, on tensors or addresses within them."""
    bound = [
        bind(r, {k: v if isinstance(v, int) else v.data_ptr() for k, v in p.items()}, env)
        for r, p in zip(requests, places, strict=True)
    ]

    def call(stream: int) -> None:
        for launch in bound:
            launch(stream)

    return call


def call_of(
    k: Kernel,
    cubin: bytes,
    places: Mapping[str, int],
    env: dict[str, int],
    launch: Launch,
    allocate: Allocate,
) -> Callable[[int], None] | None:
    grid = [evaluate(d, env) for d in k.grid]
    if min(grid) <= 0:
        return None
    if grid[0] % k.cluster:
        raise RuntimeError(f"{k.symbol}: grid {grid} against a cluster of {k.cluster}")
    values: list[Any] = []
    cleared: tuple[int, int] | None = None
    for a in k.args:
        if isinstance(a, Int32):
            value = evaluate(a.value, env)
            if abs(value) >> 31:
                raise RuntimeError(f"{k.symbol}: a size of {value} does not fit 32 bits")
            values.append(C.c_int32(value))
        elif isinstance(a, Int64):
            values.append(C.c_int64(evaluate(a.value, env)))
        elif isinstance(a, Float32):
            values.append(C.c_float(a.value))
        elif isinstance(a, FaultWord):
            address, word = allocate(4, 0)
            launch.keep.append(word)
            values.append(C.c_uint64(address))
        elif isinstance(a, Words):
            address, buffer = allocate(4 * a.count, 0)
            launch.keep.append(buffer)
            values.append(C.c_uint64(address))
            cleared = (address, 4 * a.count)
        else:
            p = a if isinstance(a, Pointer) else a.pointer
            base = places.get(p.operand, 0)
            if isinstance(a, Pointer):
                values.append(C.c_uint64(base + evaluate(p.offset, env) if base else 0))
            else:
                values.append(
                    driver.tensor_map(a, base + evaluate(p.offset, env), env)
                    if base
                    else (C.c_char * 128)()
                )
    pointers = (C.c_void_p * max(len(values), 1))(*[C.addressof(v) for v in values])
    attributes = (driver.Attribute * 2)()
    count = 0
    if k.cluster > 1:
        attributes[count].id = 4
        attributes[count].value[0], attributes[count].value[1], attributes[count].value[2] = (
            k.cluster,
            1,
            1,
        )
        count += 1
    if k.pdl and cleared is None:
        attributes[count].id = 6
        attributes[count].value[0] = 1
        count += 1
    config = driver.Config(
        grid[0], grid[1], grid[2], k.block, 1, 1, k.smem, None, attributes, count
    )
    function = driver.function(cubin, k.symbol, k.smem)
    if k.cluster > 8:
        driver.check(
            driver.cuda().cuFuncSetAttribute(function, 14, C.c_int(1)), "non-portable cluster size"
        )
    launch.keep += [values, pointers, attributes, config]

    def call(stream: int) -> None:
        config.stream = stream
        if cleared is not None:
            at, size = C.c_uint64(cleared[0]), C.c_size_t(cleared[1])
            driver.check(
                driver.cuda().cuMemsetD8Async(at, C.c_uint8(0), size, C.c_void_p(stream)),
                f"clearing the words of {k.symbol}",
            )
        driver.check(
            driver.cuda().cuLaunchKernelEx(C.byref(config), function, pointers, None),
            f"launching {k.symbol}",
        )

    return call


def current_stream() -> int:
    return int(torch().cuda.current_stream().cuda_stream)
