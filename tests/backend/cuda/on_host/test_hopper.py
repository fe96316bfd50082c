"""Kernels of Hopper, run on the host: tensor copies, mbarriers, wgmma and clusters."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import request
from tests.backend.cuda.on_host.launched import (
    check_convolution,
    check_gemm,
    check_matmul,
    matmul_ints,
)
from tests.backend.cuda.test_cuda_conv import conv
from tests.backend.cuda.test_cuda_gemm import gemm
from tracea_onnx.codegen.kernel_request import Kernel, Pointer
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery

_emit, _windows, _halo = (
    discovery.module("kernels", f"cuda.{n}")
    for n in ("gemm.emit", "conv.implicit_gemm", "conv.halo")
)
_Tile = discovery.module("kernels", "cuda.gemm.persistent_sm90").HopperTile
_Split = discovery.module("kernels", "cuda.gemm.cluster_splitk_sm90").SplitTile
F16, BF16 = DType.F16, DType.BF16


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k", "pad", "tile"),
    [
        (F16, 137, 72, 200, 8, _Tile(128, 64, True, 2)),
        (BF16, 65, 33, 72, 0, _Tile(128, 192, False)),
        (F16, 130, 136, 129, 7, _Tile(64, 128, True, tma=True)),
        (F16, 1, 1, 8, 0, _Tile(64, 128, True, 1, 1)),
        (F16, 70, 24, 200, 0, _Split(64, 24, True, 3, 1, 1)),
    ],
    ids=["multicast", "cooperative", "stored by TMA", "resident", "split-K of a cluster"],
)
def test_products(
    dtype: DType, m: int, n: int, k: int, pad: int, tile: Any, tmp_path: Path
) -> None:
    r = gemm(dtype, m, n, k, pad=pad)
    ldx, ldy = r.ints["ldx"], r.ints["ldy"]
    check_gemm(r, _emit._by_tile(r, tile, m, n, k, ldx, -(-k // 8) * 8, ldy, 0, 1), tmp_path)


@pytest.mark.parametrize(
    ("trans", "tile"),
    [
        ((0, 1), _Tile(64, 40, True, staging=1, panels=True)),
        ((1, 0), _Tile(64, 72, True, 1, staging=1, swap=True, multicast_a=2, panels=True)),
    ],
    ids=["b along its rows", "a along its rows, swapped, shared by a cluster"],
)
def test_batches(trans: tuple[int, int], tile: Any, tmp_path: Path) -> None:
    ints = matmul_ints(136, 40, 72, trans, 2)
    r = request("matmul", F16, ints, {"alpha": 0.5}, operands=("a", "b", "y"))
    check_matmul(r, _emit.strided(r, tile, ints, 1), trans, tmp_path)


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((1, 72, 11, 6, 40, 3, 2, 1), _Tile(128, 64, True)),
        ((3, 16, 5, 5, 8, 3, 1, 0), _Tile(128, 64, True, 2)),
    ],
    ids=["stride 2", "multicast"],
)
def test_windows_by_tensor_copies(sizes: tuple[int, ...], tile: Any, tmp_path: Path) -> None:
    n, c, h, w, oc, *more = sizes
    r = conv(F16, n, c, h, w, oc, *more)
    check_convolution(r, _windows.TensorMaps().emit(r, tile, 1), tmp_path)


@pytest.mark.parametrize("how", ["resident", "split", "multicast", "stacked"])
def test_windows_of_patches(how: str, tmp_path: Path) -> None:
    r = conv(BF16, 3, 72, 9, 6, 40, 3, 1, 1)
    tile = next(
        t
        for t in _halo.configs(r)
        if (t.weights_resident, t.split > 1, t.multicast > 1, t.stack > 1)
        == (how == "resident", how == "split", how == "multicast", how == "stacked")
    )
    check_convolution(r, _halo.emit(r, tile, 1), tmp_path)


_BYTES = {"s8": np.int8, "u8": np.uint8}
#: d [64, 24] += a [64, 32] b [24, 32]^T of bytes, in core matrices of 8 rows by 16 bytes.
_PRODUCT = """
extern "C" __global__ void product(const unsigned* a, const unsigned* b, int* d) {
  __shared__ __align__(128) unsigned left[512], right[192];
  const auto place = [](int k) { return (k / 64 * 2 + k / 4 % 2) * 32 + k / 8 % 8 * 4 + k % 4; };
  for (int k = threadIdx.x; k < 512; k += 128) left[place(k)] = a[k];
  for (int k = threadIdx.x; k < 192; k += 128) right[place(k)] = b[k];
  __syncthreads();
  const auto descriptor = [](const unsigned* p) {
    return __cvta_generic_to_shared(p) >> 4 | 8ull << 16 | 16ull << 32;
  };
  const int lane = threadIdx.x % 32;
  int s[12];
  for (int k = 0; k < 12; k++) s[k] = 0;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0;"
      "wgmma.mma_async.sync.aligned.m64n24k32.s32.LEFT.RIGHT {SUMS}, %12, %13, p;}"
      : OUTPUTS : "l"(descriptor(left)), "l"(descriptor(right)), "r"(0));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int k = 0; k < 12; k++)
    d[(threadIdx.x / 32 * 16 + lane / 4 + k / 2 % 2 * 8) * 24 + k / 4 * 8 + lane % 4 * 2 + k % 2] +=
        s[k];
}
"""


@pytest.mark.parametrize(("left", "right"), [*itertools.product(_BYTES, _BYTES)])
def test_products_of_bytes_are_exact(left: str, right: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    a, b = (
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, (rows, 32), t, endpoint=True)
        for t, rows in ((_BYTES[left], 64), (_BYTES[right], 24))
    )
    d = cuda_host.aligned(rng.integers(-(2**30), 2**30, (64, 24), np.int32))
    want = d + a.astype(np.int32) @ b.astype(np.int32).T
    source = (
        _PRODUCT.replace("LEFT", left)
        .replace("RIGHT", right)
        .replace("SUMS", ", ".join(f"%{k}" for k in range(12)))
        .replace("OUTPUTS", ", ".join(f'"+r"(s[{k}])' for k in range(12)))
    )
    places = {"a": cuda_host.aligned(a), "b": cuda_host.aligned(b), "d": d}
    kernel = Kernel(source, "product", (1, 1, 1), 128, tuple(map(Pointer, places)))
    cuda_host.run(kernel, places, tmp_path)
    np.testing.assert_array_equal(d, want)
