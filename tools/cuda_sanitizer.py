"""Small cases of every CUDA kernel for compute-sanitizer, through the driver alone (PyTorch and
NVRTC are slow under it).

    python -m tools.cuda_sanitizer --compile     # beforehand, into the cache; needs no GPU
    compute-sanitizer --tool memcheck --padding 4096 python -m tools.cuda_sanitizer [--part 0/4]
    compute-sanitizer --tool racecheck python -m tools.cuda_sanitizer --racecheck [--only REGEX]

The cases are those of `tests/gpu/cases`.

Every operand is an allocation of its own with no byte to spare, and every result is compared with
float64. Kernels are emitted for a device of few multiprocessors, so that a block has several tiles
of a small problem. `--planted` runs two kernels that are wrong instead, which the tools must find,
and two that are right, `handed` and `handed_by_all`: racecheck (2025.3) reports the first, as it
does not know that __syncwarp orders what a warp's threads did before one of them arrives at an
mbarrier. It also lets no warp past a wait for a cluster before all have come to it. `--racecheck`
makes kernels that live with both: every thread arrives for itself, and every warp waits at once.
"""

from __future__ import annotations

import argparse
import ctypes as C
import re
import sys
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from tests.gpu.cases import (
    attention,
    blocks,
    caches,
    fourier,
    image,
    indexed,
    int8,
    move,
    nbits,
    quantised,
    recurrent,
    rows,
    small_channels,
    small_convs,
    small_gemms,
)
from tests.gpu.gpu import FEW
from tests.support.cuda import driver as driver
from tests.support.cuda import runner as R
from tests.support.cuda.case import Array, Case, poisoned
from tests.support.cuda.launch_case import place, request_of
from tracea_onnx.codegen.kernel_request import Int32, Kernel, Pointer, Request
from tracea_onnx.support import discovery

ARCH, MANY = 90, 132
#: Cases of the families that are neither a product nor attention, by family, name and type: each
#: template in each of its forms.
CHOSEN = "|".join((
    (r"softmax softmax "
    r"(4x1021x1|7x1000x1|3x4096x1|2x40000x1|2x64x33|900x3x1|5x40x1|11x96x1|70x5x3|1x50021x1|"
    r"2x20001x3) log=0 F16"), "softmax softmax 5x17x1 log=1 F32",
    (r"layernorm layernorm "
    r"(3x1|5x17|4x768|3x3072|2x5000|1x40000|3x1031|6x127|2x50021|270x96|4200x33|40x801) .*F16"),
    "layernorm layernorm 5x256 .*F32",
    r"layernorm_sum layernorm_sum (2x5x768|1x7x17|3x4x5000) F16",
    (r"groupnorm(_nhwc)? groupnorm(_nhwc)? "
    r"(2x16/2x33x31|1x320/32x9x8|1x6/6x3x1|1x32/8x131x127|1x3/1x67x173) F16"),
    "rope rope .*F16",
    (r"reduce reduce (sum 2x5000x1|mean 3x17x1|max 3x40x35|sum 2x9x3|sum 4x256x1|l1 1x40009x1|min "
    r"1x700x40|mean 3x41x133|sum 1x9001x70) F16"), "reduce reduce sum I64",
    r"argmax argmax (2x3000x1|2x40x5|3x17x1|2x40009x1|1x700x40|3x41x133) min=0 last=1 F16",
    r"cumsum cumsum F16 (2x3001x1|5x40x7|300x9x3|1x40009x1|3x700x40|7x260x1|5x7x70|3x20x45) .*",
    "cumsum cumsum I64 (1x40009x1|5x40x7) .*",
    r"copy copy .* (2|8)B", "copy copy symbolic", r"gather(_elements)? .* by (11|5) 2B F32",
    "gather gather out of range", "fill fill 1003 x 2B", "store_ints store_ints I64",
    "range range F32",
    r"(nchw_to_nhwc|nhwc_to_nchw|copy_nhwc) \w+ (2x3x5x7|3x100x3x1|2x65x8x8|1x17x1x1) F16",
    "zero_border .* F16",
    (r"squeeze_excite squeeze_excite (1x5x2x3 to 3|2x83x5x1 to 17|35x480x7x5 to 120|37x960x3x3 to "
    r"240) F16"), "squeeze_excite squeeze_excite 2x1152x7x7 to 48 early F16",
    "squeeze_excite squeeze_excite 150x208x6x6 to 13 no bias early F16",
    "squeeze_excite squeeze_excite 3x96x20x24 to 4 F32",
    r"pool2d pool2d mode=[01] (2x64x15x13 3x3|1x16x9x11 3x2|4x70x61x63 3x2|1x8x5x5 5x5) F16",
    r"global_pool global_pool mode=1 (1x5x3x1|3x100x33x37|1x1280x7x7|70x40x5x9) F16",
    r"resize(2d|_cubic) resize(2d|_cubic) mode=[012] coord=0 rounding=0 7x6->3x13 F16",
    r"pointwise pointwise (\(|transposed|F16 to I64|i64 add|i32 by).* F32",
    r"indexed (gather_along|scatter_along|(scatter|gather)_tuples|one_hot|triangle) .*(2|8)B F32",
    r"sampled grid_sample [012] [012] [01] 5 F16", r"sampled lrn 5 5 F32",
    r"topk topk .* (F16|I32)", r"copies copies .* (1|2|4)B",
    "pointwise pointwise (columns|run|steps|backwards|short|constant|transposed|both) .*F32",
    r"pointwise_nhwc pointwise_nhwc \w+ (1x20x3x3|3x7x4x1) F16",
))  # fmt: skip
#: Families whose form depends on how many multiprocessors there are.
_WHOLE_DEVICE = frozenset({"squeeze_excite", "groupnorm", "groupnorm_nhwc"})


def jobs(only: str, families: str) -> Iterator[tuple[Case, Request]]:
    """The cases with their requests, each for the device that suits its family."""
    driver.assume(ARCH, FEW)
    whole = (
        *(small_gemms, small_convs, small_channels),
        *(blocks, caches, fourier, int8, nbits, quantised, recurrent),
    )
    makers = {n: make for module in whole for n, make in module.FAMILIES.items()}
    makers["attention"] = attention.forms
    chosen = {n: m for module in (rows, move, image, indexed) for n, m in module.FAMILIES.items()}
    for maker, make in chain(makers.items(), chosen.items()):
        if not re.search(families, maker):
            continue
        driver.assume(ARCH, FEW)
        for c in list(make(np.random.default_rng(1))):
            name = f"{c.family} {c.name} {c.dtype.name}"
            if maker in chosen and not re.fullmatch(CHOSEN, name):
                continue
            driver.assume(ARCH, MANY if c.family in _WHOLE_DEVICE else FEW)
            if re.search(only, name):
                yield c, request_of(c)


# --- the driver's memory


class Memory:
    """Device memory of the driver, no byte more than asked for, freed together."""

    def __init__(self) -> None:
        driver.need_context()
        self.held: list[C.c_uint64] = []

    def upload(self, a: Array) -> tuple[int, Any]:
        raw = np.frombuffer(np.ascontiguousarray(a).tobytes() or b"\0", np.uint8)
        place = C.c_uint64()
        driver.check(
            driver.cuda().cuMemAlloc_v2(C.byref(place), C.c_size_t(raw.size)), "allocating"
        )
        self.held.append(place)
        driver.check(
            driver.cuda().cuMemcpyHtoD_v2(place, C.c_void_p(raw.ctypes.data), C.c_size_t(raw.size)),
            "copying to the device",
        )
        return place.value, place

    def allocate(self, size: int, byte: int) -> tuple[int, Any]:
        return self.upload(np.full(size, byte, np.uint8))

    def download(self, address: int, a: Array) -> None:
        driver.check(
            driver.cuda().cuMemcpyDtoH_v2(
                C.c_void_p(a.ctypes.data), C.c_uint64(address), C.c_size_t(a.nbytes)
            ),
            "copying from the device",
        )

    def free(self) -> None:
        for held in self.held:
            driver.check(driver.cuda().cuMemFree_v2(held), "freeing")
        self.held.clear()


def run(c: Case, r: Request) -> float:
    """Worst error over its bound."""
    memory = Memory()
    places, _ = place(c, memory.upload)
    results = {n: poisoned(o.count, o.dtype) for n, o in c.outputs.items()}
    places |= {n: memory.upload(a)[0] for n, a in results.items()}
    R.bind(r, places, c.env, memory.allocate)(0)
    driver.check(driver.cuda().cuCtxSynchronize(), "running")
    for n, a in results.items():
        memory.download(places[n], a)
    memory.free()
    return max(o.error(results[n]) for n, o in c.outputs.items())


PLANTED = r"""
extern "C" __global__ void beyond(float* y, int n) { y[blockIdx.x * blockDim.x + threadIdx.x] = n;
    }  // one element more than there is
extern "C" __global__ void race(float* y, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = s[63 - threadIdx.x] + n;  // no barrier
}
static __device__ __forceinline__ void arrive(unsigned b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
static __device__ __forceinline__ void wait(unsigned b, unsigned parity) {
  asm volatile("{\n.reg .pred p;\nagain_%=:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again_%=;\n}"
               ::"r"(b), "r"(parity) : "memory");
}
// One warp hands 32 numbers after the other to another; `arrivals` threads of each tell that they
// are done.
static __device__ __forceinline__ void hand(float* y, int n, int arrivals) {
  __shared__ float s[32];
  __shared__ __align__(8) unsigned long long barriers[2];
  const unsigned full = (unsigned)__cvta_generic_to_shared(barriers), empty = full + 8,
      lane = threadIdx.x & 31;
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %2;\nmbarrier.init.shared::cta.b64 [%1], %2;"
                 ::"r"(full), "r"(empty), "r"(arrivals) : "memory");
  __syncthreads();
  float sum = 0.f;
  for (int k = 0; k < 8; k++) {
    if (threadIdx.x < 32) {
      wait(empty, k & 1 ^ 1);
      s[lane] = n * k;
    } else {
      wait(full, k & 1);
      sum += s[lane ^ 5];
    }
    __syncwarp();
    if (lane < arrivals) arrive(threadIdx.x < 32 ? full : empty);
  }
  if (threadIdx.x >= 32) y[lane] = sum;
}
extern "C" __global__ void handed(float* y, int n) { hand(y, n, 1); }
extern "C" __global__ void handed_by_all(float* y, int n) { hand(y, n, 32); }
"""


def planted() -> None:
    args = (Pointer("y"), Int32(1))
    for symbol, count in (("beyond", 63), ("race", 64), ("handed", 64), ("handed_by_all", 64)):
        memory = Memory()
        launch = R.Launch([])
        place = memory.upload(np.zeros(count, np.float32))[0]
        cubin = discovery.module("kernels", "cuda").compile(PLANTED, ARCH)
        call = R.call_of(
            Kernel(PLANTED, symbol, (1, 1, 1), 64, args),
            cubin,
            {"y": place},
            {},
            launch,
            memory.allocate,
        )
        assert call is not None
        call(0)
        print(
            f"planted {symbol}: synchronising gave {driver.cuda().cuCtxSynchronize()}", flush=True
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--planted", action="store_true")
    parser.add_argument(
        "--racecheck",
        action="store_true",
        help="compile the kernels so that racecheck can judge them",
    )
    parser.add_argument("--part", default="0/1", help="k/n: every n-th case from the k-th on")
    parser.add_argument("--only", default="", help="regular expression: cases to take")
    parser.add_argument(
        "--families", default="", help="regular expression: makers of cases, by their names"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    if args.planted:
        planted()
        return 0
    if args.racecheck:
        R.define("RACECHECK")
    if not args.compile:
        # before the cases are made: the tool waits for the driver only so long
        driver.need_context()
    begin = time.perf_counter()
    todo = list(jobs(args.only, args.families))
    if args.compile:
        discovery.module("kernels", "cuda").compile(PLANTED, ARCH)
        failed = R.compile_all([r for _, r in todo])
        print(
            f"{len(todo)} cases, {len({k.source for _, r in todo for k in R.kernels(r)})} "
            f"sources, {len(failed)} do not compile",
            *failed.values(),
        )
        return int(bool(failed))
    mine = todo[part::parts]
    done, wrong = 0, []
    for c, r in mine:
        if time.perf_counter() - begin > args.seconds:
            break
        name = f"{c.family} {c.name} {c.dtype.name}"
        before = time.perf_counter()
        try:
            error = run(c, r)
        except Exception as e:
            wrong.append(name)
            print(f"FAIL {name}: {type(e).__name__}: {e}", flush=True)
            break  # the context is lost
        done += 1
        if not error <= 1:
            wrong.append(name)
        symbols = ",".join(sorted({k.symbol for k in R.kernels(r)}))
        print(
            f"{'ok  ' if error <= 1 else 'FAIL'} {name} [{symbols}]: {error:.3f} of its bound, "
            f"{time.perf_counter() - before:.1f} s",
            flush=True,
        )
    print(
        f"part {args.part}: {done} of {len(mine)} cases ran in {time.perf_counter() - begin:.0f} "
        f"s, {len(wrong)} wrong",
        *wrong,
        sep="; ",
        flush=True,
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
