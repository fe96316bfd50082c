"""Every CUDA kernel family that is neither a product nor a convolution: checked against float64 on
the GPU, and timed against PyTorch.

python -m tests.gpu.cases.families --check [--only REGEX]      random data, poisoned outputs, odd shapes, every type
python -m tests.gpu.cases.families --time  [--only REGEX]      attention, norms, softmax, copies; CUDA graphs, interleaved, medians
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from tests.gpu.cases import attention as cuda_cases_attention
from tests.gpu.cases import image as cuda_cases_image
from tests.gpu.cases import indexed as cuda_cases_indexed
from tests.gpu.cases import move as cuda_cases_move
from tests.gpu.cases import rows as cuda_cases_rows
from tests.support.cuda import driver as driver
from tests.support.cuda import late as cuda_late
from tests.support.cuda import older as cuda_older
from tests.support.cuda import runner as R
from tests.support.cuda.case import Array, Case, poisoned
from tracea_onnx.codegen.kernel_request import Request, Unfit
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery

MODULES: tuple[ModuleType, ...] = (
    cuda_cases_rows,
    cuda_cases_move,
    cuda_cases_image,
    cuda_cases_indexed,
    cuda_cases_attention,
)


def cases() -> Iterator[Case]:
    for module in MODULES:
        for make in module.FAMILIES.values():
            yield from make(np.random.default_rng(1))


def request_of(c: Case) -> Request:
    operands = (*c.operands, *c.outputs)
    request: Request = R.request(
        c.family,
        c.dtype,
        c.ints,
        c.floats,
        c.program,
        operands,
        unaligned=c.unaligned,
        constant=c.constant,
    )
    return request if c.tile is None else R.force(request, c.tile)


def _upload(a: Array) -> tuple[int, Any]:
    """The bytes of `a` in a device buffer of their own, with 256 bytes of NaN after them: its
    address, and what keeps it.
    """
    raw = np.concatenate(
        [np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8), np.full(256, 0xFF, np.uint8)]
    )
    buffer = R.torch().from_numpy(raw).cuda()
    return buffer.data_ptr(), buffer


def place(
    c: Case, upload: Callable[[Array], tuple[int, Any]] = _upload
) -> tuple[dict[str, int], list[Any]]:
    """Addresses of the inputs, and what keeps them; arrays that are views of one array share its
    buffer.
    """
    held: dict[int, tuple[int, Any, Array]] = {}
    places: dict[str, int] = {}
    for name, a in c.operands.items():
        whole: Array = a
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        if whole.dtype != a.dtype or not a.flags.c_contiguous or not whole.flags.c_contiguous:
            whole = np.ascontiguousarray(a)
            a = whole
        key = whole.__array_interface__["data"][0]
        if key not in held:
            held[key] = *upload(whole), whole
        places[name] = held[key][0] + a.__array_interface__["data"][0] - key
    return places, list(held.values())


def run(c: Case) -> float:
    """Worst error of a case over its bound."""
    t = R.torch()
    places, keep = place(c)
    buffers = {n: _upload(poisoned(o.count, o.dtype))[1] for n, o in c.outputs.items()}
    launch = R.bind(request_of(c), places | {n: b.data_ptr() for n, b in buffers.items()}, c.env)
    fixed = [places[n] for n in c.constant & places.keys()]
    late = [
        x
        for address, x, _ in keep
        if not any(address <= f < address + x.numel() * x.element_size() for f in fixed)
    ]
    cuda_late.behind(lambda: launch(R.current_stream()), [*late, *buffers.values()])
    t.cuda.synchronize()
    worst = 0.0
    for n, o in c.outputs.items():
        raw = buffers[n].cpu().numpy()
        if not (raw[-256:] == 0xFF).all():
            raise AssertionError(f"{n} is written past its end")
        worst = max(worst, o.error(raw[:-256].view(poisoned(1, o.dtype).dtype)))
    del keep
    return worst


def check(only: str) -> int:
    log = R.Log("cuda_families_check.txt")
    hopper = driver.device()[0] == 90  # others have not its tiles
    chosen = [
        c
        for c in cases()
        if re.search(only, f"{c.family} {c.name} {c.dtype.name}") and (hopper or c.tile is None)
    ]
    failed = R.compile_all([request_of(c) for c in chosen])
    for message in failed.values():
        log("does not compile:", message)
    log(f"{len(chosen)} cases, compiled")
    passed, bad = 0, []
    worst: dict[str, float] = {}
    for c in chosen:
        name = f"{c.name} {c.dtype.name}"
        try:
            error = run(c)
        except Exception as e:
            bad.append(name)
            log(f"FAIL {name}: {type(e).__name__}: {str(e)[:200]}")
            if "CUDA 7" in str(e) or "illegal" in str(e) or "misaligned" in str(e):
                break  # the context is lost
            continue
        worst[c.family] = max(worst.get(c.family, 0.0), error)
        if error <= 1:
            passed += 1
        else:
            bad.append(name)
            log(f"FAIL {name}: {error:.3g} of its bound")
    for family, error in worst.items():
        log(f"{family}: worst {error:.3f} of its bound")
    log(f"{passed} of {len(chosen)} passed" + (f"; failed: {'; '.join(bad[:60])}" if bad else ""))
    return int(passed != len(chosen))


# --- timing -----------------------------------------------------------------------------------------------------------------
Variants = dict[str, Callable[[int], Any]]


def _ours(request: Request, sets: list[dict[str, Any]]) -> Callable[[int], Any]:
    launches = [R.bind(request, {n: x.data_ptr() for n, x in s.items()}) for s in sets]
    return lambda i: launches[i](R.current_stream())


def attention_request(b: int, h: int, s: int, d: int, causal: bool) -> Request:
    """On [B, S, H, D] operands."""
    strides = {f"{o}_{a}": v for o in "qkvy" for a, v in (("b", s * h * d), ("s", h * d), ("h", d))}
    ints = {
        "B": b,
        "H": h,
        "KVH": h,
        "S": s,
        "T": s,
        "D": d,
        "DV": d,
        "causal": int(causal),
        "past": 0,
        **strides,
    }
    request: Request = R.request(
        "attention", DType.F16, ints, {"scale": d**-0.5, "fill": 0.0}, None, "qkvy"
    )
    return request


def _attention_data(b: int, h: int, s: int, d: int) -> list[dict[str, Any]]:
    t = R.torch()
    return [
        {n: t.randn((b, s, h, d), device="cuda", dtype=t.float16) for n in "qkvy"}
        for _ in range(R.sets_for(4 * b * s * h * d * 2))
    ]


def attention_variants(b: int, h: int, s: int, d: int, causal: bool) -> tuple[Variants, int, float]:
    """Ours and PyTorch's back ends; input sets; operations."""
    t = R.torch()
    data = _attention_data(b, h, s, d)
    attention = t.nn.attention

    def torch_with(backend: Any) -> Callable[[int], Any]:
        def call(i: int) -> Any:
            with attention.sdpa_kernel(backend):
                q, k, v = (data[i][n].transpose(1, 2) for n in "qkv")
                return t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return call

    kinds = attention.SDPBackend
    variants: Variants = {"ours": _ours(attention_request(b, h, s, d, causal), data)}
    if s <= 1024:
        older = discovery.module("kernels", "cuda.attention.fa2").MmaTile(4)
        variants["ours (mma.sync)"] = _ours(
            R.force(attention_request(b, h, s, d, causal), older), data
        )
    variants |= {
        "cuDNN": torch_with(kinds.CUDNN_ATTENTION),
        "FA2": torch_with(kinds.FLASH_ATTENTION),
    }
    return variants, len(data), 4.0 * b * h * s * s * d * (0.5 if causal else 1.0)


def norm_variants(rows: int, n: int) -> tuple[Variants, int, float]:
    """LayerNorm with residual and skip output; bytes moved."""
    t = R.torch()
    sets = R.sets_for(8 * rows * n)
    data = [
        {
            **{
                o: t.randn((rows, n), device="cuda", dtype=t.float16)
                for o in ("x", "res", "y", "skip")
            },
            **{o: t.randn(n, device="cuda", dtype=t.float16) for o in ("gamma", "beta")},
        }
        for _ in range(sets)
    ]
    request = R.request(
        "layernorm", DType.F16, {"rows": rows, "N": n}, {"eps": 1e-5}, None, data[0]
    )
    f = t.nn.functional

    def peer(i: int) -> Any:
        s = data[i]["x"] + data[i]["res"]
        return f.layer_norm(s, (n,), data[i]["gamma"], data[i]["beta"]), s

    return {"ours": _ours(request, data), "torch": peer}, sets, 8.0 * rows * n


def softmax_variants(rows: int, n: int) -> tuple[Variants, int, float]:
    t = R.torch()
    sets = R.sets_for(4 * rows * n)
    data = [
        {o: t.randn((rows, n), device="cuda", dtype=t.float16) for o in "xy"} for _ in range(sets)
    ]
    request = R.request("softmax", DType.F16, {"outer": rows, "n": n, "inner": 1}, {}, None, "xy")
    return (
        {"ours": _ours(request, data), "torch": lambda i: t.softmax(data[i]["x"], 1)},
        sets,
        4.0 * rows * n,
    )


def transpose_variants(b: int, m: int, n: int) -> tuple[Variants, int, float]:
    t = R.torch()
    sets = R.sets_for(4 * b * m * n)
    data = [
        {o: t.randn((b, m, n), device="cuda", dtype=t.float16) for o in "xy"} for _ in range(sets)
    ]
    ints = {
        "elem": 2,
        "n0": 1,
        "n1": 1,
        "n2": 1,
        "n3": b,
        "n4": n,
        "n5": m,
        "x3": m * n,
        "x4": 1,
        "x5": n,
        "y3": m * n,
        "y4": m,
        "y5": 1,
    }
    request = R.request("copy", DType.F32, ints, {}, None, "xy")
    return (
        {
            "ours": _ours(request, data),
            "torch": lambda i: data[i]["x"].transpose(1, 2).contiguous(),
        },
        sets,
        4.0 * b * m * n,
    )


def copy_variants(count: int) -> tuple[Variants, int, float]:
    t = R.torch()
    sets = R.sets_for(4 * count)
    data = [{o: t.randn(count, device="cuda", dtype=t.float16) for o in "xy"} for _ in range(sets)]
    request = R.request(
        "copy",
        DType.F32,
        {"elem": 2, **{f"n{k}": 1 for k in range(5)}, "n5": count, "x5": 1, "y5": 1},
        {},
        None,
        "xy",
    )
    return (
        {"ours": _ours(request, data), "torch": lambda i: data[i]["y"].copy_(data[i]["x"])},
        sets,
        4.0 * count,
    )


def _attention_sizes() -> Iterator[tuple[int, int, int, int, bool]]:
    for d in (64, 128):
        for causal in (False, True):
            for s in (128, 256, 512, 1024, 2048, 8192):
                heads = 16 if d == 64 else 8
                yield max(1, 16384 // s if s >= 1024 else 4096 // s), heads, s, d, causal
    yield 1, 12, 128, 64, False
    yield 32, 12, 128, 64, False
    yield 1, 12, 197, 64, False
    yield 32, 12, 197, 64, False
    yield 1, 12, 512, 64, True


def time_all(only: str) -> int:
    log = R.Log("cuda_families_time.txt")
    jobs: list[tuple[str, Callable[[], tuple[Variants, int, float]], str]] = []
    for b, h, s, d, causal in _attention_sizes():
        jobs.append(
            (
                f"attention b{b} h{h} s{s} d{d} {'causal' if causal else 'full'}",
                partial(attention_variants, b, h, s, d, causal),
                "TFLOP/s",
            )
        )
    for rows, n in ((128, 768), (4096, 768), (16384, 768), (4096, 4096), (8192, 1024)):
        jobs.append((f"layernorm+res+skip {rows}x{n}", partial(norm_variants, rows, n), "GB/s"))
    for rows, n in ((1536, 128), (24576, 512), (4096, 4096), (512, 50257)):
        jobs.append((f"softmax {rows}x{n}", partial(softmax_variants, rows, n), "GB/s"))
    for b, m, n in ((32, 3136, 64), (32, 64, 3136), (12, 1024, 1024), (1, 4097, 4095)):
        jobs.append((f"transpose {b}x{m}x{n}", partial(transpose_variants, b, m, n), "GB/s"))
    jobs.append(("copy 64Mi f16", partial(copy_variants, 1 << 26), "GB/s"))
    for name, make, unit in jobs:
        if not re.search(only, name):
            continue
        try:
            variants, sets, work = make()
            times = R.measure(variants, sets, target_us=2000, rounds=5)
        except (Exception, Unfit) as e:
            log(f"{name}: {type(e).__name__}: {str(e)[:160]}")
            continue
        scale = 1e6 if unit == "TFLOP/s" else 1e3
        shown = {
            k: f"{v:.2f} µs ({work / v / scale:.0f} {unit})" if isinstance(v, float) else v
            for k, v in times.items()
        }
        peers = [v for k, v in times.items() if not k.startswith("ours") and isinstance(v, float)]
        mine = times["ours"]
        ratio = (
            f" | {min(peers) / mine:.2f}x the best peer"
            if peers and isinstance(mine, float)
            else ""
        )
        log(f"{name}: {', '.join(f'{k} {v}' for k, v in shown.items())}{ratio}")
    return 0


#: Warpgroups, blocks of a multiprocessor, what runs beside what, keys of a tile.
SWEPT: tuple[tuple[int, int, str, tuple[int, ...]], ...] = (
    (1, 1, "OVERLAP", (64, 112, 128)), (1, 1, "ALONE", (64, 112, 128, 208)), (1, 2, "FREE", (64, 112, 128)), (1, 3, "FREE", (64, 80)), (1, 4, "FREE", (64,)),
    (2, 1, "FREE", (96, 128, 176)), (2, 1, "OVERLAP", (96, 128, 176)), (2, 1, "TURNS", (96, 128)), (2, 1, "SPLIT", (64, 112, 128)), (2, 2, "FREE", (64, 80)),
    (3, 1, "FREE", (96, 112, 128)), (4, 1, "FREE", (64, 80, 96)),
)  # fmt: skip


def sweep(only: str) -> int:
    """Every tile of the warp-specialised kernel on some shapes, best first."""
    log = R.Log("cuda_attention_sweep.txt")
    emitter = discovery.module("kernels", "cuda.attention.emit")
    shapes = [
        (1, 12, 128, 64, False),
        (32, 12, 128, 64, False),
        (1, 12, 197, 64, False),
        (32, 12, 197, 64, False),
        (32, 16, 128, 64, True),
        (16, 16, 256, 64, True),
        (8, 16, 512, 64, True),
        (16, 16, 1024, 64, True),
        (2, 16, 8192, 64, False),
    ]
    shapes += [
        (8, 16, 512, 128, False),
        (2, 8, 8192, 128, False),
        (2, 8, 8192, 128, True),
        (8, 8, 2048, 128, True),
        (8, 16, 2048, 64, True),
    ]
    for b, h, s, d, causal in shapes:
        name = f"b{b} h{h} s{s} d{d} {'causal' if causal else 'full'}"
        if not re.search(only, name):
            continue
        data = _attention_data(b, h, s, d)
        variants: Variants = {}
        request = attention_request(b, h, s, d, causal)
        problem = emitter.problem(request)
        for groups, blocks, plan, widths in SWEPT:
            for keys in widths:
                tile = emitter.hopper_tile(problem, groups, keys, blocks, plan)
                if tile is None or keys > -(-s // 16) * 16:
                    continue
                try:
                    variants[f"{tile}"] = _ours(R.force(request, tile), data)
                except Exception as e:  # more registers than there are
                    log(f"{name} {tile}: {type(e).__name__}: {str(e)[:120]}")
        times = R.measure(variants, len(data), target_us=1000, rounds=3)
        ranked = sorted((v, k) for k, v in times.items() if isinstance(v, float))
        log(
            f"{name} (chosen {emitter.tiles(request, problem)[0][0]}): {', '.join(f'{k} {v:.2f}' for v, k in ranked[:8])}, worst {ranked[-1]}"
        )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--arch", type=int, help="kernels for an older device (80, 89)")
    args = parser.parse_args()
    if args.arch:
        cuda_older.pretend_here(args.arch)
    status = check(args.only) if args.check else 0
    status |= time_all(args.only) if args.time else 0
    return status | (sweep(args.only) if args.sweep else 0)


if __name__ == "__main__":
    sys.exit(main())
