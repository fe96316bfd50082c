"""Hand-made CUDA Plans of real kernels, run on a GPU without ONNX Runtime. Run by
test_launcher.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen.kernel_request import Argument, Float32, Int32, Kernel, Pointer, TensorMap
from tracea_onnx.compiler.plan_writer import BackendPlan, Emitter
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.builder import Ref
from tracea_onnx.runtime import cuda_harness, device_caps
from tracea_onnx.support import discovery

F32 = DType.F32
ELEMENTWISE = r"""
#define EACH for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += gridDim.x * blockDim.x)
#if __CUDA_ARCH__ >= 900
#define WAIT asm volatile("griddepcontrol.launch_dependents;\n griddepcontrol.wait;" ::: "memory")
#else
#define WAIT
#endif
extern "C" __global__ void add(const float* a, const float* b, float* y, int n) { WAIT;
    EACH y[k] = a[k] + (b ? b[k] : 0.f); }
extern "C" __global__ void mul(const float* a, const float* b, float* y, int n) { WAIT;
    EACH y[k] = a[k] * b[k]; }
extern "C" __global__ void scale(const float* a, float* y, int n, float s) { WAIT;
    EACH y[k] = a[k] * s; }
extern "C" __global__ void add_row(const float* a, const float* b, float* y, int rows, int columns)
    {
  const int n = rows * columns;
  WAIT;
  EACH y[k] = a[k] + b[k % columns];
}
"""
SHARED = r"""
extern "C" __global__ void reverse(const float* x, float* y, int n) {
    // through all of the dynamic shared memory
  extern __shared__ float s[];
  for (int k = threadIdx.x; k < n; k += blockDim.x) s[n - 1 - k] = x[k];
  __syncthreads();
  for (int k = threadIdx.x; k < n; k += blockDim.x) y[k] = s[k];
}
"""
CLUSTER = r"""
extern "C" __global__ void ranks(float* y) {
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (!threadIdx.x) y[blockIdx.x] = float(rank + 100 * size);
}
"""
TMA = r"""
struct alignas(64) Map { unsigned long long words[16]; };
__device__ unsigned shared(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ void finish(unsigned bar) {
  asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
               "@p bra done;\nbra again;\ndone:\n}" :: "r"(bar) : "memory");
}
// A box of 8 rows of 32 floats per block; what lies outside of the tensor reads as zero.
extern "C" __global__ void tiles(const __grid_constant__ Map map, float* y, int rows, int columns) {
  __shared__ alignas(1024) float tile[8 * 32];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned bar = shared(&barrier), to = shared(tile);
  const int x0 = blockIdx.x * 32, y0 = blockIdx.y * 8;
  if (!threadIdx.x) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;"
                 :: "r"(bar) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&map), "r"(x0), "r"(y0), "r"(bar) : "memory");
  }
  __syncthreads();
  finish(bar);
  for (int k = threadIdx.x; k < 8 * 32; k += blockDim.x) {
    const int r = y0 + k / 32, c = x0 + k % 32;
    if (r < rows && c < columns) y[r * columns + c] = tile[k];
  }
}
// NHWC image with 8 float channels: 16 pixels of a 3x3, stride 1, pad 1 window at tap (1, 1), that
// is the image itself.
extern "C" __global__ void center(const __grid_constant__ Map map, float* y, int pixels) {
  __shared__ alignas(1024) float tile[16 * 8];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned bar = shared(&barrier), to = shared(tile);
  if (!threadIdx.x) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;"
                 :: "r"(bar) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.4d.im2col.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
                 :: "r"(to), "l"(&map), "r"(0), "r"(-1), "r"(-1), "r"(0), "r"(bar), "h"((short)1),
                     "h"((short)1) : "memory");
  }
  __syncthreads();
  finish(bar);
  for (int k = threadIdx.x; k < 16 * 8; k += blockDim.x)
    if (k / 8 < pixels) y[k] = tile[k];
}
"""


class Skip(Exception):
    """What a case needs is not on this machine."""


_LAUNCHES = discovery.module("kernels", "cuda.launches")


class HandPlan(BackendPlan):
    """A Plan whose launches are given directly.

    An argument is a Ref, None for an absent operand, or an argument of
    `tracea_onnx.codegen.kernel_request`.
    """

    def __init__(self, name: str) -> None:
        properties = cuda_harness.properties()
        super().__init__(
            name, Emitter(backends.get("cuda")), properties, device_caps.of_request(properties)
        )
        self.named: dict[str, Ref | None] = {}  # operands that tensor maps name

    def kernel(
        self,
        source: str,
        symbol: str,
        arguments: Sequence[Argument | Ref | None],
        grid: tuple[D.DimLike, D.DimLike, D.DimLike],
        *,
        block: int = 256,
        init: bool = False,
        **kw: Any,
    ) -> None:
        places: dict[str, Ref | None] = dict(self.named)
        converted: list[Argument] = []
        for k, a in enumerate(arguments):
            if a is None or isinstance(a, Ref):
                places[f"argument{k}"] = a
                converted.append(Pointer(f"argument{k}"))
            else:
                converted.append(a)
        (self._init if init else self._run).append(
            self._record(
                _LAUNCHES.Launch(Kernel(source, symbol, grid, block, tuple(converted), **kw)),
                places,
            )
        )

    def elementwise(
        self, symbol: str, arguments: Sequence[Argument | Ref | None], n: D.DimLike, **kw: Any
    ) -> None:
        self.kernel(
            ELEMENTWISE, symbol, arguments, (D.minimum(D.ceildiv(n, 256), 1024), 1, 1), **kw
        )

    def const(self, size: int) -> Ref:
        ref = self.arena(size)
        self.buffers[ref.buffer]["kind"] = "const"
        return ref


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + n).standard_normal(n).astype(np.float32)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def cube(name: str = "cube", *, pdl: bool = True) -> HandPlan:
    """u = x * x, y = u * x through an arena buffer."""
    b = HandPlan(name)
    x = b.add_input("x", F32, 1)
    b.define_symbol("n", 0, 0)
    n = D.symbol("n")
    u, y, t = b.add_output("u"), b.add_output("y"), b.arena(4 * n)
    b.elementwise("mul", [x, x, u, Int32(n)], n)
    b.elementwise("mul", [u, x, t, Int32(n)], n, pdl=pdl)
    b.elementwise("scale", [t, y, Int32(n), Float32(1.0)], n, pdl=pdl)
    b.finish_output("u", F32, [n])
    b.finish_output("y", F32, [n])
    return b


def plan_dynamic_shapes() -> None:
    b = cube()
    for graphs in (False, True):
        with cuda_harness.LoadedPlan(b.to_json(), b.blobs, graphs=graphs) as plan:
            for n in (
                1,
                255,
                256,
                257,
                100_003,
                0,
                7,
                1,
                1,
                100_003,
                100_003,
                3_000_001,
                3_000_001,
                3_000_001,
            ):
                x = vector(n)
                u, y = plan.run([x])
                close(u, x * x)
                close(y, x * x * x)


def plan_constants() -> None:
    w, d = vector(999, 1), vector(999, 2)
    b = HandPlan("constants")
    x, y = b.add_input("x", F32, 2), b.add_output("y")
    b.define_symbol("n", 0, 0)
    n = D.mul(D.symbol("n"), 999)
    scratch, packed = b.arena(4 * 999), b.const(4 * 999)
    b.elementwise("scale", [b.initializer("w"), scratch, Int32(999), Float32(2.0)], 999, init=True)
    b.elementwise("add", [scratch, None, packed, Int32(999)], 999, init=True)
    b.elementwise("add_row", [x, packed, y, Int32(D.symbol("n")), Int32(999)], n)
    b.elementwise("add_row", [y, b.blob(d), y, Int32(D.symbol("n")), Int32(999)], n, pdl=True)
    b.finish_output("y", F32, [D.symbol("n"), 999])
    x_ = vector(5 * 999).reshape(5, 999)
    close(cuda_harness.run_plan(b.to_json(), b.blobs, [x_], {"w": w})[0], x_ + 2 * w + d)


def plan_large_shared_memory() -> None:
    n = 40_000  # 160 kB
    b = HandPlan("shared")
    x, y = b.add_input("x", F32, 1), b.add_output("y")
    b.kernel(SHARED, "reverse", [x, y, Int32(n)], (1, 1, 1), smem=4 * n)
    b.finish_output("y", F32, [n])
    np.testing.assert_array_equal(
        cuda_harness.run_plan(b.to_json(), b.blobs, [vector(n)])[0], vector(n)[::-1]
    )


def plan_clusters() -> None:
    for size in (1, 2, 8, 16):
        b = HandPlan("clusters")
        b.add_input("x", F32, 1)
        y = b.add_output("y")
        b.kernel(CLUSTER, "ranks", [y], (32, 1, 1), cluster=size)
        b.finish_output("y", F32, [32])
        np.testing.assert_array_equal(
            cuda_harness.run_plan(b.to_json(), b.blobs, [vector(1)])[0],
            np.arange(32) % size + 100 * size,
        )


def plan_tensor_maps() -> None:
    b = HandPlan("tiles")
    x, y = b.add_input("x", F32, 2), b.add_output("y")
    b.define_symbol("rows", 0, 0)
    rows, columns = D.symbol("rows"), 100
    b.check(0, 1, columns)
    b.named = {"x": x}
    tensor_map = TensorMap(Pointer("x"), F32, (columns, rows), (4 * columns,), (32, 8), 0)
    b.kernel(
        TMA,
        "tiles",
        [tensor_map, y, Int32(rows), Int32(columns)],
        (4, D.ceildiv(rows, 8), 1),
        block=128,
    )
    b.finish_output("y", F32, [rows, columns])
    with cuda_harness.LoadedPlan(b.to_json(), b.blobs) as plan:
        for n in (1, 8, 9, 1000, 9):
            x_ = vector(n * columns).reshape(n, columns)
            np.testing.assert_array_equal(plan.run([x_])[0], x_)


def plan_im2col_maps() -> None:
    """A small image, which drivers up to 13.1 misread without the workaround; a larger one beside
    it.
    """
    for height in (4, 200):
        b = HandPlan("center")
        x, y = b.add_input("x", F32, 4), b.add_output("y")
        b.named = {"x": x}
        width = 4 if height == 4 else 200
        window = ((-1, -1), (-1, -1), 8, 16)
        tensor_map = TensorMap(
            Pointer("x"),
            F32,
            (8, width, height, 1),
            (32, 32 * width, 32 * width * height),
            (),
            0,
            window,
            (1, 1, 1, 1),
        )
        b.kernel(TMA, "center", [tensor_map, y, Int32(16)], (1, 1, 1), block=128)
        b.finish_output("y", F32, [16, 8])
        x_ = vector(8 * width * height).reshape(1, height, width, 8)
        np.testing.assert_array_equal(
            cuda_harness.run_plan(b.to_json(), b.blobs, [x_])[0], x_.reshape(-1, 8)[:16]
        )


def plan_times() -> None:
    for pdl in (False, True):
        b = cube(pdl=pdl)
        for n in (1000, 1 << 22):
            t = cuda_harness.time_plan(b.to_json(), b.blobs, [vector(n)], replays=500)
            assert t.total > 0 and len(t.launches) == 3, (pdl, n, t)


CASES = {name: case for name, case in globals().items() if name.startswith("plan_")}
