"""Runs the text of CUDA kernels on the host, instruction by instruction of their inline assembly.

    y = aligned(np.full(shape, np.nan, np.float32))
    assert not run(kernel, {"x": aligned(x), "y": y}, tmp_path)

A kernel is what a backend emits, or `Kernel(source, symbol, grid, block, args)` of any text. The
host's compiler compiles it as it is, but for shared memory and asm statements
(`tests/support/cuda/emulated/text.py`). What no table there knows is a `NoEmulation`, which names
the instruction.

- A block's threads are fibers, the blocks of a grid run one after the other, those of a cluster at
  once. Threads go on until they wait; who waits for an mbarrier goes on first.
- What the device leaves undefined is made to show. Shared memory begins as NaN, and copies are NaN
  until they end. cp.async and wgmma end when they are waited for, tensor copies when no thread can
  go on, bulk stores when they are waited for or the thread ends. Addresses are aligned to what is
  promised and no more.
- What cannot go on is an `EmulationError` of one line: threads that wait for each other, lanes of a
  warp that meet at different instructions, mbarriers with too many arrivals, addresses outside of
  shared memory or not aligned, copies that nothing waited for, and a launch that takes longer than
  `_SECONDS`.
- Sums of tensor cores are rounded at each step, where the device truncates them; they are exact for
  integers. Functions such as ex2.approx are exact but for their last bits. Fences do nothing: one
  that is missing does not show.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.cuda.emulated import text
from tracea_onnx.codegen.kernel_request import (
    FaultWord,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    TensorMap,
    Words,
)
from tracea_onnx.ir.dims import evaluate

Array = npt.NDArray[Any]
#: Of CPU time, after which a launch is given up.
_SECONDS = 60.0


class EmulationError(Exception):
    """A launch that cannot go on, and why."""


def aligned(a: Array) -> Array:
    """A copy that begins at a multiple of 64 bytes."""
    raw = np.empty(a.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out: Array = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def run(
    kernel: Kernel, places: Mapping[str, Array | int], folder: Path, env: Mapping[str, int] = {}
) -> bool:
    """Runs a launch. places: what operands are, or their addresses; null where not named. folder:
    for what is compiled. env: values of symbols. Returns whether the kernel met a fault.

    Raises EmulationError, and NoEmulation where the kernel cannot be translated.
    """
    library = text.compiled(kernel.source, folder)
    fault = ctypes.c_uint32(0)
    values: list[Any] = []
    maps: list[_Map] = []
    for a in kernel.args:
        if isinstance(a, Int32):
            values.append(ctypes.c_int32(evaluate(a.value, env)))
        elif isinstance(a, Int64):
            values.append(ctypes.c_int64(evaluate(a.value, env)))
        elif isinstance(a, Float32):
            values.append(ctypes.c_float(a.value))
        elif isinstance(a, FaultWord):
            values.append(ctypes.c_uint64(ctypes.addressof(fault)))
        elif isinstance(a, Words):
            words = (ctypes.c_uint32 * a.count)()
            values.append(ctypes.c_uint64(ctypes.addressof(words)))
        elif isinstance(a, TensorMap):
            maps.append(_map(a, _address(a.pointer, places, env), env))
            encoded = aligned(np.zeros(16, np.uint64))
            encoded[0] = ctypes.addressof(maps[-1])
            values.append(encoded)
        else:
            values.append(ctypes.c_uint64(_address(a, places, env)))
    pointers = (ctypes.c_void_p * len(values))(
        *[v.ctypes.data if isinstance(v, np.ndarray) else ctypes.addressof(v) for v in values]
    )
    grid = (ctypes.c_uint * 3)(*[evaluate(d, env) for d in kernel.grid])
    if not all(grid):
        return False
    start = library[f"start_{kernel.symbol}"]
    sizes = kernel.block, kernel.cluster, kernel.smem
    error = text.emulate().emulate(start, pointers, grid, *sizes, ctypes.c_double(_SECONDS))
    if error is not None:
        raise EmulationError(f"{kernel.symbol}: {error.decode()}")
    return bool(fault.value)


def _address(p: Pointer, places: Mapping[str, Array | int], env: Mapping[str, int]) -> int:
    if p.operand not in places:
        return 0
    place = places[p.operand]
    start = place if isinstance(place, int) else int(place.ctypes.data)
    return start + int(evaluate(p.offset, env))


class _Map(ctypes.Structure):
    """`TensorMap` of `ptx.h`."""

    _fields_ = (
        ("magic", ctypes.c_uint64), ("base", ctypes.c_uint64),
        *((name, ctypes.c_int64 * n) for name, n in (("dims", 5), ("strides", 5))),
        *((name, ctypes.c_int64 * 3) for name in ("lower", "upper")),
        *((name, ctypes.c_uint32)
          for name in ("rank", "bytes", "swizzle", "im2col", "channels", "pixels")),
        *((name, ctypes.c_uint32 * 5) for name in ("box", "steps")),
    )  # fmt: skip


def _map(m: TensorMap, base: int, env: Mapping[str, int]) -> _Map:
    """As the launcher encodes it: an empty dimension is one of 1."""
    rank = len(m.dims)
    encoded = _Map(magic=0x70616D20726F736E, base=base, rank=rank, bytes=m.dtype.size)
    encoded.swizzle = m.swizzle or 16
    encoded.dims[:rank] = [max(int(evaluate(d, env)), 1) for d in m.dims]
    encoded.strides[:rank] = [m.dtype.size, *(int(evaluate(s, env)) for s in m.strides)]
    if base % 16 or any(s % 16 for s in encoded.strides[1:rank]):
        raise EmulationError(f"a tensor map of {m.pointer.operand} that is not aligned")
    encoded.steps[:rank] = list(m.element_strides or (1,) * rank)
    if m.im2col is None:
        encoded.box[:rank] = list(m.box)
    else:
        lower, upper, encoded.channels, encoded.pixels = m.im2col
        encoded.im2col = 1
        encoded.lower[: rank - 2], encoded.upper[: rank - 2] = list(lower), list(upper)
    return encoded
