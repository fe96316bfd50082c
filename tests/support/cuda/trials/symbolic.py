"""Sizes known at run time only, as in models exported with a dynamic batch, beside the same sizes
as numbers, and beside PyTorch eager.

    python -m tests.support.cuda.trials.symbolic 480 7             # as many trials of `cuda_weird --random`, from that seed, of which the first axis is symbolic
    python -m tests.support.cuda.trials.symbolic --several 480 7   # batch and sequence or the images' sides, too
    python -m tests.support.cuda.trials.symbolic --compile 480 7

Each is checked against float64 with symbols. Times as in `cuda_weird`. Ratios: the time with
symbols over that with numbers (above 1 is what not knowing costs), and PyTorch's time over ours
with symbols (below 1: PyTorch is faster). Results are printed as they come, and a summary when the
time is up."""

from __future__ import annotations

import argparse
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from tests.support.cuda import driver as driver
from tests.support.cuda import runner as R
from tests.support.cuda.trials import drawn as cuda_weird_random
from tests.support.cuda.trials.trial import Places, Tensors, Trial, check
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

#: How a family calls its first axis.
_FIRST = {
    **dict.fromkeys(("conv2d", "conv2d_dw", "deconv2d", "pool2d", "resize2d", "resize_cubic", "squeeze_excite", "global_pool"), "N"),
    **dict.fromkeys(("softmax", "reduce", "argmax", "topk", "cumsum", "gather", "gather_elements"), "outer"),
    "gemm": "M", "attention": "B", "layernorm": "rows", "groupnorm": "B", "copies": "p0_n1",
}  # fmt: skip
#: Axes that are symbolic beside the first: of images their sides, of attention its sequences.
_SIDES = {
    **dict.fromkeys(("conv2d", "conv2d_dw", "deconv2d", "pool2d", "resize2d", "resize_cubic"), ("IH", "IW", "OH", "OW")),
    "global_pool": ("H", "W"), "groupnorm": ("inner",), "attention": ("S", "T"), "matmul": ("M", "N", "K"), "softmax": ("n",),
}  # fmt: skip
_SIZE, _ROWS = D.symbol("size"), D.symbol("rows")
#: Values of symbols.
Sizes = dict[str, int]


def _axis(request: Request) -> str | None:
    """The parameter that counts the first axis; None where there is none of more than one element."""
    i, family = request.ints, request.family
    if family in _FIRST:
        return _FIRST[family]
    if family == "matmul":
        return "B0" if i["B0"] != 1 else "B1"
    if family == "copy":
        return max(
            (f"n{k}" for k in range(6) if i[f"n{k}"] != 1),
            key=lambda n: int(i[f"x{n[1]}"]),
            default=None,
        )
    if family in ("pointwise", "pad"):
        names = [f"n{k}" for k in range(6) if f"n{k}" in i]
        return next(
            (n for n in names if i[n] != 1 and (family == "pointwise" or i[n] == i[f"m{n[1]}"])),
            None,
        )
    return None


def symbolic(request: Request, several: bool = False) -> tuple[Request, Sizes] | None:
    """The request with a symbol for its first axis, and what number it was. several: for other axes
    as well, and for the first the product of two where nothing else is symbolic."""
    axis = _axis(request)
    if axis is None:
        return None
    ints: dict[str, DimLike] = dict(request.ints)
    sizes, first = {"size": int(request.ints[axis])}, _SIZE
    sides = _SIDES.get(request.family, ()) if several else ()
    if several and not sides:
        part = next((b for b in (32, 16, 8, 4, 3, 2, 5, 7) if sizes["size"] % b == 0), 1)
        sizes, first = {"size": part, "rows": sizes["size"] // part}, D.mul(_SIZE, _ROWS)  # type: ignore[assignment]
    ints[axis] = first
    if request.family == "copies":
        ints |= {name: first for name in ints if name.endswith("_n1")}
    elif request.family == "pad":
        ints[f"m{axis[1]}"] = first
    elif request.family == "copy":  # whose result is one run
        run: DimLike = 1
        for k in range(5, -1, -1):
            if request.ints[f"n{k}"] != 1:
                if D.evaluate(run, sizes) != request.ints[f"y{k}"]:
                    return None
                ints[f"y{k}"] = run
            run = D.mul(run, ints[f"n{k}"])
    for name in sides:
        ints[name] = _side(request, ints, name)
        sizes[name] = int(request.ints[name])
    if sides:
        _pitches(ints, sizes)
    return replace(request, ints=ints), sizes


def _side(request: Request, ints: dict[str, DimLike], name: str) -> DimLike:
    """A symbol, or what a window of that stride leaves of one."""
    i = request.ints
    if name in ("OH", "OW") and "KH" in i:
        side, begin = name[1], int(i["PT" if name == "OH" else "PL"])
        span, stride = (int(i["K" + side]) - 1) * int(i["D" + side]) + 1, int(i["S" + side])
        before, after = int(i["I" + side]), int(i[name])
        if not request.family.startswith("deconv"):
            # pads behind, or less than none where the last windows do not fit
            end = (after - 1) * stride + span - begin - before
            return D.add(D.floordiv(D.add(ints["I" + side], begin + max(end, 0) - span), stride), 1)
        return D.add(D.mul(D.sub(ints["I" + side], 1), stride), after - (before - 1) * stride)
    same = {"T": "S", "N": "M", "K": "M"}.get(name)
    if same and i[name] == i[same]:
        return ints[same]
    return ints[name] if same and name != "T" else D.symbol(name)


def _pitches(ints: dict[str, DimLike], sizes: Sizes) -> None:
    """Strides as products of symbols, where they are those of packed rows and images."""
    for outer, inner, n in (
        ("x_rs", "x_cs", "IW"), ("x_ns", "x_rs", "IH"), ("x_rs", "x_cs", "W"), ("x_ns", "x_rs", "H"), ("y_rs", "y_cs", "OW"), ("y_ns", "y_rs", "OH"),
        ("y_rs", "y_cs", "W"), ("y_ns", "y_rs", "H"), ("q_b", "q_s", "S"), ("k_b", "k_s", "T"), ("v_b", "v_s", "T"), ("y_b", "y_s", "S"), ("m_q", "m_k", "T"),
        ("a_m", "a_k", "K"), ("a_k", "a_m", "M"), ("a_1", "a_m", "M"), ("a_1", "a_k", "K"), ("b_k", "b_n", "N"), ("b_n", "b_k", "K"), ("b_1", "b_k", "K"),
        ("b_1", "b_n", "N"),
    ):  # fmt: skip
        if ints.get(outer, 0) not in (0, 1) and inner in ints and n in ints:
            run = D.mul(ints[inner], ints[n])
            if D.evaluate(run, sizes) == D.evaluate(ints[outer], sizes):
                ints[outer] = run


def _launch(requests: Sequence[Request], places: Places, sizes: Sizes) -> Callable[[], None]:
    bound = [
        R.bind(r, {k: v if isinstance(v, int) else v.data_ptr() for k, v in p.items()}, sizes)
        for r, p in zip(requests, places, strict=True)
    ]

    def call() -> None:
        for launch in bound:
            launch(R.current_stream())

    return call


def measure(
    trial: Trial, requests: Sequence[Request], symbols: Sizes
) -> tuple[float, dict[str, float | str]]:
    """Worst error over its bound, and microseconds: `known`, `symbolic` and `eager`."""
    first = trial.inputs()
    places, got = trial.ours(first)
    bytes_ = sum(x.numel() * x.element_size() for x in (*first.values(), got))
    data: list[Tensors] = [first]
    keep = [places]
    for _ in range(R.sets_for(bytes_) - 1):
        data.append(trial.inputs())
        keep.append(trial.ours(data[-1])[0])
    sides = {
        name: [_launch(rs, p, symbols) for p in keep]
        for name, rs in (("known", trial.requests), ("symbolic", requests))
    }
    error = check(trial, first, sides["symbolic"][0], got, places)
    results: list[Any] = [None] * len(data)

    def eager(k: int) -> None:
        results[k] = trial.eager(data[k])

    variants = {name: (lambda k, calls=calls: calls[k]()) for name, calls in sides.items()}
    return error, R.measure(
        {**variants, "eager": eager}, len(data), target_us=1200, rounds=5, most=48, least=48
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--compile", action="store_true", help="the kernels into the cache beforehand; needs no GPU"
    )
    parser.add_argument("--several", action="store_true", help="more axes than the first")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="stop once that time is up, compiling included",
    )
    parser.add_argument("--only", default="", help="regular expression: trials to take")
    args = parser.parse_args()
    begin = time.monotonic()
    if args.compile:
        driver.assume(90, 132)
    chosen: list[tuple[Trial, list[Request], Sizes]] = []
    for t in cuda_weird_random.trials(args.count, args.seed):
        found = [s for s in (symbolic(r, args.several) for r in t.requests) if s is not None]
        if (
            re.search(args.only, t.name)
            and len(found) == len(t.requests)
            and all(sizes == found[0][1] for _, sizes in found)
        ):
            chosen.append((t, [r for r, _ in found], found[0][1]))
    failed = R.compile_all([r for t, rs, _ in chosen for r in (*t.requests, *t.extra, *rs)])
    print(
        f"{len(chosen)} trials, {len(failed)} sources do not compile", *failed.values(), flush=True
    )
    if args.compile:
        return int(bool(failed))
    torch = R.torch()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    log, rows, wrong = R.Log("cuda_symbolic.txt"), list[tuple[float, float, str]](), list[str]()
    stopped = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    for t, requests, sizes in chosen:
        if stopped or time.monotonic() - begin > args.seconds:
            break
        try:
            error, times = measure(t, requests, sizes)
        except Exception as e:
            wrong.append(f"{t.name}: {type(e).__name__}: {str(e)[:200]}")
            log(f"FAIL {wrong[-1]}")
            if "CUDA 7" in str(e) or "illegal" in str(e) or "misaligned" in str(e):
                break  # the context is lost
            continue
        ours, known, eager = (times[name] for name in ("symbolic", "known", "eager"))
        if not error <= 1 or not (
            isinstance(ours, float) and isinstance(known, float) and isinstance(eager, float)
        ):
            wrong.append(f"{t.name}: {error:.2f} of its bound, {times}")
            log(f"FAIL {wrong[-1]}")
            continue
        log.record(name=t.name, sizes=sizes, error=error, times=times)
        line = f"{eager / ours:6.2f}x  {ours:8.2f} us, {ours / known:.2f} of {known:.2f}, eager {eager:8.2f}  {sizes}  {t.name}"
        log(line)
        rows.append((ours / known, eager / ours, line))
    log(f"{len(rows) + len(wrong)} of {len(chosen)} trials run; those that lose most by symbols:")
    for _, _, line in sorted(rows, reverse=True)[:20]:
        log(line)
    if rows:
        slower, ratios = [s for s, _, _ in rows], [r for _, r, _ in rows]
        log(
            f"{geometric_mean(ratios):.2f}x over {len(rows)} trials, {sum(r < 1 for r in ratios)} below 1"
        )
        log(
            f"{geometric_mean(slower):.3f} of the time with sizes known, {max(slower):.2f} at worst"
        )
    log(f"{len(wrong)} wrong", *wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
