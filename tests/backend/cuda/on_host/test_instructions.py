"""What the emulation of CUDA on the host makes of single instructions, and of launches that cannot
go on.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.support.cuda.emulated.inline_assembly import NoEmulation
from tracea_onnx.codegen.kernel_request import Kernel, Pointer

_BYTES = {"s8": np.int8, "u8": np.uint8}
#: d [16, 8] += a [16, 32] b [8, 32]^T of bytes; a and b are read by ldmatrix.
_PRODUCT = """
extern "C" __global__ void product(const uint4* a, const uint4* b, int* d) {
  __shared__ uint4 rows[48];
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  rows[lane] = a[lane];
  if (lane < 16) rows[32 + lane] = b[lane];
  __syncwarp();
  // Matrices of 8 rows by 16 bytes: rows 0 and 8 of a, then the other half of k.
  const unsigned at_a = __cvta_generic_to_shared(&rows[(lane % 16) * 2 + lane / 16]),
                 at_b = __cvta_generic_to_shared(&rows[32 + lane % 8 * 2 + lane / 8 % 2]);
  unsigned x[4], y[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at_a) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
      : "=r"(y[0]), "=r"(y[1]) : "r"(at_b) : "memory");
  int* const upper = d + g * 8 + t * 2, *lower = upper + 64;
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.LEFT.RIGHT.s32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(upper[0]), "+r"(upper[1]), "+r"(lower[0]), "+r"(lower[1])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}
"""


def _kernel(source: str, *operands: str, block: int = 32) -> Kernel:
    symbol = source.split("void ")[1].split("(")[0]
    return Kernel(source, symbol, (1, 1, 1), block, tuple(map(Pointer, operands)))


@pytest.mark.parametrize(("left", "right"), [*itertools.product(_BYTES, _BYTES)])
def test_products_of_bytes_are_exact(left: str, right: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    a, b = (
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, (rows, 32), t, endpoint=True)
        for t, rows in ((_BYTES[left], 16), (_BYTES[right], 8))
    )
    a[3], b[5] = np.iinfo(a.dtype).min, np.iinfo(b.dtype).max
    d = cuda_host.aligned(rng.integers(-(2**30), 2**30, (16, 8), np.int32))
    want = d + a.astype(np.int32) @ b.astype(np.int32).T
    source = _PRODUCT.replace("LEFT", left).replace("RIGHT", right)
    places = {"a": cuda_host.aligned(a), "b": cuda_host.aligned(b), "d": d}
    cuda_host.run(_kernel(source, *places), places, tmp_path)
    np.testing.assert_array_equal(d, want)


_STOPS = {
    "wait for a barrier": "if (threadIdx.x < 40) __syncthreads(); else named(1, 64);",
    "__shfl_xor_sync where other lanes of the warp are at __ballot_sync": (
        "threadIdx.x % 32 < 9 ? __ballot_sync(~0u, 1) : __shfl_xor_sync(~0u, 1u, 1);"
    ),
    "which is not a multiple of 16": (
        'unsigned v[4]; asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), '
        '"=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(1028 + 16 * threadIdx.x));'
    ),
    "is not in shared memory": (
        'asm volatile("st.shared.u32 [%0], %1;" :: "r"(threadIdx.x * 65536), "r"(1));'
    ),
    "has not ended within its time": "for (volatile int k = 0; k < 1; k = 0);",
}


@pytest.mark.parametrize("why", _STOPS)
def test_a_launch_that_cannot_go_on_says_why(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_host, "_SECONDS", 0.5)
    source = (
        "static __device__ void named(int id, int threads) {\n"
        '  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads));\n}\n'
        f'extern "C" __global__ void stops(int* d) {{ {_STOPS[why]} }}'
    )
    kernel = Kernel(source, "stops", (1, 1, 1), 64, (Pointer("d"),))
    with pytest.raises(cuda_host.EmulationError, match=why) as error:
        cuda_host.run(kernel, {}, tmp_path)
    assert "\n" not in str(error.value)


def test_an_unknown_instruction_is_named(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void f(int* d) { asm("frobnicate.u32 %0, 1;" : "=r"(*d)); }'
    with pytest.raises(NoEmulation, match=r"frobnicate\.u32"):
        cuda_host.run(_kernel(source, "d"), {}, tmp_path)
