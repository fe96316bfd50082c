"""Sizes that nobody tunes for, against float64 and beside PyTorch eager: primes, ones, long tails,
tiny batches, strided views.

    python -m tests.support.cuda.trials.trial [--only REGEX]
    python -m tests.support.cuda.trials.trial --random 260 7     # as many of sizes drawn at random, from that seed
    python -m tests.support.cuda.trials.trial --slow             # those on which a kernel was slower once
    python -m tests.support.cuda.trials.trial --compile          # the kernels into the cache beforehand; needs no GPU

A trial is one operator of ONNX as the provider would launch it, and the operators that PyTorch
needs for the same; their float64 run is the reference. Both are timed as replays of a CUDA graph of
many calls, in turn, on inputs rotated past L2: PyTorch's time to launch, which eager mode pays on
top, is not counted. fp32 is fp32 on both sides (no TF32). Ratios are PyTorch's time over ours:
below 1 is a shape on which PyTorch is faster."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tests.support.cuda import driver as driver
from tests.support.cuda import late as cuda_late
from tests.support.cuda import older as cuda_older
from tests.support.cuda import runner as R
from tests.support.cuda.check import ROUNDOFF, poisoned
from tracea_onnx.codegen.kernel_request import Request, Unfit
from tracea_onnx.ir.abi import DType

Tensors = dict[str, Any]
#: Operands of one launch after the other: tensors, or addresses within them.
Places = Sequence[Tensors]


@dataclass(frozen=True)
class Trial:
    """inputs: what PyTorch gets. eager: what it computes with them. ours: operands of the requests
    for such inputs, and the result as PyTorch has it. roundings: how often values of that magnitude
    are rounded to the narrow type on the way; linear: results err relative to the sum of
    |products|; size: what else they err relative to, in float64. terms: products of a sum."""

    name: str
    dtype: DType
    requests: Sequence[Request]
    inputs: Callable[[], Tensors]
    eager: Callable[[Tensors], Any]
    ours: Callable[[Tensors], tuple[Places, Any]]
    roundings: float = 0.0
    linear: bool = False
    extra: Sequence[Request] = ()  # that `ours` runs
    size: Callable[[Tensors], Any] | None = None
    terms: int = 1


def random(*shape: int, dtype: DType, scale: float = 1.0) -> Any:
    t = R.torch()
    return (t.randn(shape, device="cuda", dtype=t.float32) * scale).to(R.torch_dtype(dtype))


def result(shape: Sequence[int], dtype: DType) -> Any:
    """Poisoned memory for a result."""
    t = R.torch()
    return (
        poisoned(tuple(shape), dtype)
        if dtype in ROUNDOFF
        else t.full(tuple(shape), 0x5A, device="cuda", dtype=R.torch_dtype(dtype))
    )


def _launch(trial: Trial, places: Places) -> Callable[[], None]:
    bound = [
        R.bind(r, {k: v if isinstance(v, int) else v.data_ptr() for k, v in p.items()}) for r, p in zip(trial.requests, places, strict=True)
    ]  # fmt: skip

    def call() -> None:
        for launch in bound:
            launch(R.current_stream())

    return call


def _wide(x: Any, change: Callable[[Any], Any] = lambda x: x) -> Any:
    return change(x.double()) if x.is_floating_point() else x


def check(
    trial: Trial, inputs: Tensors, call: Callable[[], None], got: Any, places: Places = ()
) -> float:
    """Worst error over its bound. places: operands that come late (`cuda_late`)."""
    t = R.torch()
    constant = {
        id(p[name])
        for r, p in zip(trial.requests, places, strict=False)
        for name in r.constant & p.keys()
    }
    cuda_late.behind(
        call,
        [x for p in places for x in p.values() if not isinstance(x, int) and id(x) not in constant],
    )
    with t.backends.cudnn.flags(enabled=False):  # it would look for its best float64 convolutions
        want = trial.eager({k: _wide(v) for k, v in inputs.items()})
        sizes = (
            trial.eager({k: _wide(v, lambda x: x.abs()) for k, v in inputs.items()}).abs()
            if trial.linear
            else None
        )
    t.cuda.synchronize()
    if not want.is_floating_point():
        return 0.0 if bool((got == want).all()) else math.inf
    if got.shape != want.shape or not bool(t.isfinite(got).all()):
        return math.inf
    u = ROUNDOFF[trial.dtype]
    magnitude = 1 + want.abs() if sizes is None else sizes
    if trial.size is not None:
        magnitude = magnitude + trial.size({k: _wide(v) for k, v in inputs.items()})
    # Tensor cores cut what each 16 terms leave, up to 2^-23 of a sum that is seldom above 4
    # magnitude / sqrt(terms) on its way: after terms / 16 of them
    summed = max(2.0**-21, 2.0**-25 * math.sqrt(trial.terms))
    bound = (
        1.01 * u * want.abs()
        + trial.roundings * u * magnitude
        + summed * (magnitude + want.abs())
        + (2.0**-24 if trial.dtype == DType.F16 else 1e-30)
    )
    return float(((got.double() - want).abs() / bound).max()) if want.numel() else 0.0


def measure(trial: Trial, timed: bool) -> tuple[float, dict[str, float | str]]:
    """Worst error over its bound, and microseconds of both where they are asked for."""
    first = trial.inputs()
    places, got = trial.ours(first)
    size = sum(x.numel() * x.element_size() for x in (*first.values(), got))
    data, calls = [first], [_launch(trial, places)]
    keep = [places]
    error = check(trial, first, calls[0], got, places)
    if not timed:
        return error, {}
    for _ in range(R.sets_for(size) - 1):
        data.append(trial.inputs())
        keep.append(trial.ours(data[-1])[0])
        calls.append(_launch(trial, keep[-1]))
    # PyTorch's, too, lie somewhere else each time: its allocator would give every call memory that
    # is still in L2
    results: list[Any] = [None] * len(data)

    def eager(i: int) -> None:
        results[i] = trial.eager(data[i])

    variants: dict[str, Callable[[int], Any]] = {"ours": lambda i: calls[i](), "eager": eager}
    return error, R.measure(variants, len(data), target_us=1500, rounds=5, most=48, least=48)


def trials() -> Iterator[Trial]:
    from tests.support.cuda.trials import axes as cuda_weird_axes
    from tests.support.cuda.trials import images as cuda_weird_images
    from tests.support.cuda.trials import move as cuda_weird_move
    from tests.support.cuda.trials import products as cuda_weird_products
    from tests.support.cuda.trials import rows as cuda_weird_rows

    return chain.from_iterable(
        m.trials()
        for m in (
            cuda_weird_products,
            cuda_weird_images,
            cuda_weird_rows,
            cuda_weird_move,
            cuda_weird_axes,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--random",
        nargs=2,
        type=int,
        metavar=("COUNT", "SEED"),
        help="sizes drawn at random instead of the listed ones",
    )
    parser.add_argument(
        "--slow",
        action="store_true",
        help="those that once were slower than PyTorch's instead of the listed ones",
    )
    parser.add_argument("--check", action="store_true", help="results alone, without times")
    parser.add_argument("--only", default="", help="regular expression: trials to take")
    parser.add_argument("--arch", type=int, help="kernels for an older device (80, 89)")
    args = parser.parse_args()
    if args.compile:
        driver.assume(90, 132)
    if args.arch:
        cuda_older.pretend_here(args.arch)
    from benchmarks import slow_shapes as cuda_weird_slow
    from tests.support.cuda.trials import drawn as cuda_weird_random

    found = (
        cuda_weird_random.trials(*args.random)
        if args.random
        else cuda_weird_slow.trials()
        if args.slow
        else trials()
    )
    chosen = [t for t in found if re.search(args.only, t.name)]
    failed = R.compile_all([r for t in chosen for r in (*t.requests, *t.extra)])
    print(
        f"{len(chosen)} trials, {len(failed)} sources do not compile", *failed.values(), flush=True
    )
    if args.compile:
        return int(bool(failed))
    t = R.torch()
    t.manual_seed(0)
    t.backends.cudnn.benchmark, t.backends.cudnn.allow_tf32 = True, False
    log = R.Log("cuda_weird.txt")
    rows: list[tuple[float, str]] = []
    wrong: list[str] = []
    for trial in chosen:
        try:
            error, times = measure(trial, not args.check)
        except Unfit as e:  # an operator that several kernels compute on such a device
            log(f"none {trial.name}: {e}")
            continue
        except Exception as e:
            wrong.append(trial.name)
            log(f"FAIL {trial.name}: {type(e).__name__}: {str(e)[:200]}")
            if "CUDA 7" in str(e) or "illegal" in str(e) or "misaligned" in str(e):
                break  # the context is lost
            continue
        if not error <= 1:
            wrong.append(trial.name)
        if args.check:
            continue
        ours, eager = times["ours"], times["eager"]
        log.record(name=trial.name, error=error, times=times)
        if isinstance(ours, float) and isinstance(eager, float):
            rows.append(
                (
                    eager / ours,
                    f"{eager / ours:6.2f}x  {ours:8.2f} us, eager {eager:8.2f} us  {trial.name}  ({error:.2f} of its bound)",
                )
            )
        else:
            wrong.append(trial.name)
            log(f"FAIL {trial.name}: {times}")
    for _, line in sorted(rows):
        log(line)
    if rows:
        log(
            f"geometric mean {math.exp(sum(math.log(r) for r, _ in rows) / len(rows)):.2f}x over {len(rows)} trials, {sum(r < 1 for r, _ in rows)} below 1"
        )
    log(f"{len(wrong)} wrong", *wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
