"""The first axis known at run time only, as in models exported with a dynamic batch, beside the same axis as a number, and beside PyTorch eager.

    python -m benchmarks.cuda_symbolic 480 7           # as many trials of `cuda_weird --random`, from that seed
    python -m benchmarks.cuda_symbolic --compile 480 7

Each is checked against float64 with the axis symbolic. Times as in `cuda_weird`. Ratios: the time with the axis symbolic over that with it known (above 1
is what not knowing costs), and PyTorch's time over ours with it symbolic (below 1: PyTorch is faster).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from statistics import geometric_mean
from typing import Any

from benchmarks import cuda_driver as driver
from benchmarks import cuda_runner as R
from benchmarks import cuda_weird_random
from benchmarks.cuda_weird import Places, Tensors, Trial, check
from tracea_onnx import dims as D
from tracea_onnx.cuda import Request
from tracea_onnx.dims import DimLike

#: How a family calls its first axis.
_FIRST = {
    **dict.fromkeys(("conv2d", "conv2d_dw", "deconv2d", "pool2d", "resize2d", "resize_cubic", "squeeze_excite", "global_pool"), "N"),
    **dict.fromkeys(("softmax", "reduce", "argmax", "topk", "cumsum", "gather", "gather_elements"), "outer"),
    "gemm": "M", "attention": "B", "layernorm": "rows", "groupnorm": "B", "copies": "p0_n1",
}  # fmt: skip
_SIZE = D.symbol("size")


def _axis(request: Request) -> str | None:
    """The parameter that counts the first axis; None where there is none of more than one element."""
    i, family = request.ints, request.family
    if family in _FIRST:
        return _FIRST[family]
    if family == "matmul":
        return "B0" if i["B0"] != 1 else "B1"
    if family == "copy":
        return max((f"n{k}" for k in range(6) if i[f"n{k}"] != 1), key=lambda n: int(i[f"x{n[1]}"]), default=None)
    if family in ("pointwise", "pad"):
        names = [f"n{k}" for k in range(6) if f"n{k}" in i]
        return next((n for n in names if i[n] != 1 and (family == "pointwise" or i[n] == i[f"m{n[1]}"])), None)
    return None


def symbolic(request: Request) -> tuple[Request, int] | None:
    """The request with a symbol for its first axis, and what number it was."""
    axis = _axis(request)
    if axis is None:
        return None
    ints: dict[str, DimLike] = dict(request.ints)
    value = ints[axis]
    ints[axis] = _SIZE
    if request.family == "copies":
        ints |= {name: _SIZE for name in ints if name.endswith("_n1")}
    elif request.family == "pad":
        ints[f"m{axis[1]}"] = _SIZE
    elif request.family == "copy":  # whose result is one run
        run: DimLike = 1
        for k in range(5, -1, -1):
            if request.ints[f"n{k}"] != 1:
                if D.evaluate(run, {"size": int(value)}) != request.ints[f"y{k}"]:
                    return None
                ints[f"y{k}"] = run
            run = D.mul(run, ints[f"n{k}"])
    return replace(request, ints=ints), int(value)


def _launch(requests: Sequence[Request], places: Places, sizes: dict[str, int]) -> Callable[[], None]:
    bound = [R.bind(r, {k: v if isinstance(v, int) else v.data_ptr() for k, v in p.items()}, sizes) for r, p in zip(requests, places, strict=True)]

    def call() -> None:
        for launch in bound:
            launch(R.current_stream())

    return call


def measure(trial: Trial, requests: Sequence[Request], size: int) -> tuple[float, dict[str, float | str]]:
    """Worst error over its bound, and microseconds: `known`, `symbolic` and `eager`."""
    first = trial.inputs()
    places, got = trial.ours(first)
    bytes_ = sum(x.numel() * x.element_size() for x in (*first.values(), got))
    data: list[Tensors] = [first]
    keep = [places]
    for _ in range(R.sets_for(bytes_) - 1):
        data.append(trial.inputs())
        keep.append(trial.ours(data[-1])[0])
    sides = {name: [_launch(rs, p, {"size": size}) for p in keep] for name, rs in (("known", trial.requests), ("symbolic", requests))}
    error = check(trial, first, sides["symbolic"][0], got, places)
    results: list[Any] = [None] * len(data)

    def eager(k: int) -> None:
        results[k] = trial.eager(data[k])

    variants = {name: (lambda k, calls=calls: calls[k]()) for name, calls in sides.items()}
    return error, R.measure({**variants, "eager": eager}, len(data), target_us=1200, rounds=5, most=48, least=48)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--compile", action="store_true", help="the kernels into the cache beforehand; needs no GPU")
    parser.add_argument("--only", default="", help="regular expression: trials to take")
    parser.add_argument("--seconds", type=float, default=inf, help="begin no trial after so many")
    args = parser.parse_args()
    if args.compile:
        driver.assume(90, 132)
    chosen: list[tuple[Trial, list[Request], int]] = []
    for t in cuda_weird_random.trials(args.count, args.seed):
        found = [s for s in map(symbolic, t.requests) if s is not None]
        if re.search(args.only, t.name) and len(found) == len(t.requests) and len({size for _, size in found}) == 1:
            chosen.append((t, [r for r, _ in found], found[0][1]))
    failed = R.compile_all([r for t, rs, _ in chosen for r in (*t.requests, *t.extra, *rs)])
    print(f"{len(chosen)} trials, {len(failed)} sources do not compile", *failed.values(), flush=True)
    if args.compile:
        return int(bool(failed))
    torch = R.torch()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    log, rows, wrong = R.Log("cuda_symbolic.txt"), list[tuple[float, float, str]](), list[str]()
    began = time.monotonic()
    for t, requests, size in chosen:
        if time.monotonic() - began > args.seconds:
            log(f"stopped after {args.seconds:.0f} s")
            break
        error, times = measure(t, requests, size)
        ours, known, eager = (times[name] for name in ("symbolic", "known", "eager"))
        if not error <= 1 or not (isinstance(ours, float) and isinstance(known, float) and isinstance(eager, float)):
            wrong.append(f"{t.name}: {error:.2f} of its bound, {times}")
            continue
        log.record(name=t.name, error=error, times=times)
        rows.append((eager / ours, ours / known, t.name))
        log(f"{eager / ours:6.2f}x  {ours:8.2f} us, {ours / known:.2f} of {known:.2f}, eager {eager:8.2f}  axis {size}  {t.name}")
    if rows:
        ratios, slower = [r for r, _, _ in rows], [s for _, s, _ in rows]
        log(f"{geometric_mean(ratios):.2f}x over {len(rows)} trials, {sum(r < 1 for r in ratios)} below 1")
        log(f"{geometric_mean(slower):.3f} of the time with the axis known, {max(slower):.2f} at worst")
    log(f"{len(wrong)} wrong", *wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
