"""Launches behind a kernel that ends late. It lets the next kernel in at once, and writes what that
one is to read, and what lies where that one is to write, at its very end: a kernel that reads or
writes before it has waited for its predecessor finds poison, or its result overwritten.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from tests.support.cuda import driver as driver
from tests.support.cuda import runner as R
from tracea_onnx.support import discovery

#: Clocks that it runs before it writes: longer than the host takes to launch the next kernels.
_SPIN = 150_000
_BLOCKS, _THREADS = 64, 256
_SOURCE = f"""
typedef unsigned long long u64;
extern "C" __global__ void late(const u64* table, int count) {{
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const long long begin = clock64();
  while (clock64() - begin < {_SPIN}) {{}}
  const u64 first = blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
  for (int c = 0; c < count; c++) {{
    const u64 to = table[3 * c], from = table[3 * c + 1], bytes = table[3 * c + 2];
    for (u64 i = first; i < bytes / 16; i += step) ((uint4*)to)[i] = ((const uint4*)from)[i];
    for (u64 i = bytes / 16 * 16 + first; i < bytes; i += step)
        ((char*)to)[i] = ((const char*)from)[i];
  }}
}}
"""


@cache
def _cubin(arch: int) -> bytes:
    cubin: bytes = discovery.module("kernels", "cuda").compile(_SOURCE, arch)
    return cubin


def behind(launch: Callable[[], None], tensors: Iterable[Any]) -> None:
    """Launches once these tensors' whole memory has been poisoned, behind the kernel that restores
    it. tensors: every operand that is not constant.
    """
    t, arch = R.torch(), driver.device()[0]
    if arch < 90:  # kernels do not overlap
        launch()
        return
    memory = {}
    for x in tensors:
        if x.numel():
            storage = x.untyped_storage()
            memory[storage.data_ptr()] = (
                t.empty(0, dtype=t.uint8, device="cuda").set_(storage),
                0xFF if x.is_floating_point() else 0,
            )
    saved = [bytes_.clone() for bytes_, _ in memory.values()]
    table = t.tensor(
        [
            [b.data_ptr(), s.data_ptr(), b.numel()]
            for (b, _), s in zip(memory.values(), saved, strict=True)
        ],
        dtype=t.int64,
        device="cuda",
    )
    for bytes_, poison in memory.values():
        bytes_.fill_(poison)
    values = (C.c_uint64(table.data_ptr()), C.c_int32(len(saved)))
    pointers = (C.c_void_p * 2)(*[C.addressof(v) for v in values])
    config = driver.Config(_BLOCKS, 1, 1, _THREADS, 1, 1, 0, R.current_stream(), None, 0)
    driver.check(
        driver.cuda().cuLaunchKernelEx(
            C.byref(config), driver.function(_cubin(arch), "late", 0), pointers, None
        ),
        "launching the late kernel",
    )
    launch()
    t.cuda.synchronize()
