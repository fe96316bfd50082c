"""How fast single kernels are on a GPU, beside the fastest library calls for the same.

    python -m benchmarks.kernels [gemm conv attention rows] [--compile] [--only REGEX]
    python -m benchmarks.kernels --shapes odd|slow|drawn [--count 264 --seed 7]    # beside eager
    python -m benchmarks.kernels --shapes drawn --symbolic one|several            # sizes as symbols

Each case is compared with PyTorch in float64, then timed: CUDA graphs of many calls, replayed in
random order, on inputs rotated past L2, so that no side pays for launching. Peers: `eager` PyTorch
with cuDNN's search; `library`: one call of cuBLAS or cuDNN with the epilogue that it can fuse (bias
and GELU, bias, or residual; never SiLU); for attention cuDNN, FlashAttention 2, and FlashAttention
3 where `flash_attn_interface` can be imported; with --compile torch.compile under max-autotune
(its CUDA graphs are ours). fp32 is fp32 on both sides. A ratio is a peer's time over ours.

--shapes: layers of well-known networks (`layers`), listed odd sizes, sizes on which a kernel was
slower once, or sizes drawn at random. --symbolic adds our kernels for sizes known at run time
only, of the first axis or of several.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import harness, layers, slow_shapes
from tests.support.cuda import runner as R
from tests.support.cuda.conv_shape import Conv
from tests.support.cuda.trials import dense, drawn, listed, move, rows, symbolic
from tests.support.cuda.trials.symbolic import Sizes
from tests.support.cuda.trials.trial import Tensors, Trial, check
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir.abi import DType

F16 = DType.F16
Peer = Callable[[Tensors], Any]


@dataclass(frozen=True)
class Case:
    """ours: our launches and what PyTorch computes eagerly. flops: of one call. count: how often
    the network has this layer.
    """

    group: str
    ours: Trial
    peers: Mapping[str, Peer] = field(default_factory=dict)
    flops: float = 0.0
    count: int = 1


def gemm() -> Iterator[Case]:
    for m, n, k, act, res in layers.LINEAR:

        def library(x: Tensors, act: str = act, res: bool = res) -> Any:
            if act == "gelu_erf":
                return R.torch()._addmm_activation(x["b"], x["x"], x["w"].T, use_gelu=True)
            return R.torch().addmm(x["res"] if res else x["b"], x["x"], x["w"].T)

        trial = dense.linear(F16, m, n, k, act, res=res)
        yield Case(f"gemm M={m}", trial, {"library": library}, 2.0 * m * n * k)


def conv(batches: tuple[int, ...]) -> Iterator[Case]:
    for group, v, count in layers.convolutions(batches):

        def library(x: Tensors, v: Conv = v) -> Any:
            t, place = R.torch(), (v.stride, v.pads[:2], v.dilation, v.groups)
            if v.res_mode:
                return t.cudnn_convolution_add_relu(x["x"], x["w"], x["res"], 1.0, x["b"], *place)
            return t.cudnn_convolution_relu(x["x"], x["w"], x["b"], *place)

        (oh, ow), taps = v.out, v.kernel[0] * v.kernel[1]
        flops = 2.0 * v.n * oh * ow * v.oc * taps * v.c / v.groups
        peers = {"library": library} if v.act == "relu" else {}
        yield Case(f"conv {group}", dense.convolution(F16, v), peers, flops, count)


def attention() -> Iterator[Case]:
    def sdpa(x: Tensors, backend: str, causal: bool) -> Any:
        attention = R.torch().nn.attention
        with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
            return R.torch().nn.functional.scaled_dot_product_attention(
                x["q"], x["k"], x["v"], is_causal=causal
            )

    def fa3(x: Tensors, causal: bool) -> Any:
        interface = importlib.import_module("flash_attn_interface")
        q, k, v = (x[o].transpose(1, 2) for o in "qkv")
        return interface.flash_attn_func(q, k, v, causal=causal)

    for b, h, s, d, causal in layers.attention():
        peers: dict[str, Peer] = {
            "cuDNN": partial(sdpa, backend="CUDNN_ATTENTION", causal=causal),
            "FA2": partial(sdpa, backend="FLASH_ATTENTION", causal=causal),
            "FA3": partial(fa3, causal=causal),
        }
        flops = 4.0 * b * h * s * s * d * (0.5 if causal else 1.0)
        group = f"attention head {d}{' causal' * causal}"
        yield Case(group, dense.attention(F16, b, h, s, s, d, causal=causal), peers, flops)


def memory_bound() -> Iterator[Case]:
    for m, n in ((128, 768), (4096, 768), (16384, 768), (4096, 4096), (8192, 1024)):
        yield Case("layer norm", rows.layernorm(F16, m, n, residual=True))
    for m, n in ((1536, 128), (24576, 512), (4096, 4096), (512, 50257)):
        yield Case("softmax", rows.softmax(F16, m, n))
    for b, m, n in ((32, 3136, 64), (32, 64, 3136), (12, 1024, 1024), (1, 4097, 4095)):
        transposed = move.view("transpose", F16, (b, m, n), lambda x: x.swapaxes(1, 2))
        yield Case("transpose", transposed)


def cases(args: argparse.Namespace) -> Iterator[Case]:
    families: dict[str, Callable[[], Iterator[Case]]] = {
        "gemm": gemm,
        "conv": partial(conv, tuple(args.batches)),
        "attention": attention,
        "rows": memory_bound,
    }
    if args.shapes == "layers":
        for family in args.family or families:
            yield from families[family]()
        return
    made: dict[str, Callable[[], Iterator[Trial]]] = {
        "odd": listed.trials,
        "slow": slow_shapes.trials,
        "drawn": partial(drawn.trials, args.count, args.seed),
    }
    for trial in made[args.shapes]():
        yield Case(trial.requests[0].family, trial)


def with_symbols(trial: Trial, args: argparse.Namespace) -> tuple[list[Request], Sizes] | None:
    return symbolic.of_trial(trial, args.symbolic == "several") if args.symbolic else None


def measure(case: Case, args: argparse.Namespace) -> tuple[float, int, harness.Times]:
    """Worst error over its bound, bytes of all operands, times."""
    trial, inputs = case.ours, [case.ours.inputs()]
    places, got = trial.ours(inputs[0])
    kept, launches = [places], [R.bind_all(trial.requests, places)]
    stream = R.current_stream
    error = check(trial, inputs[0], lambda: launches[0](stream()), got, places)
    size = sum(x.numel() * x.element_size() for x in (*inputs[0].values(), got))
    for _ in range(harness.sets_for(size) - 1):
        inputs.append(trial.inputs())
        kept.append(trial.ours(inputs[-1])[0])
        launches.append(R.bind_all(trial.requests, kept[-1]))
    variants: dict[str, Callable[[int], Any]] = {
        harness.OURS: lambda i: launches[i](R.current_stream())
    }
    unknown = with_symbols(trial, args)
    if unknown is not None:
        requests, env = unknown
        bound = [R.bind_all(requests, p, env) for p in kept]
        error = max(error, check(trial, inputs[0], lambda: bound[0](stream()), got, kept[0]))
        variants["symbolic"] = lambda i: bound[i](R.current_stream())
    # PyTorch's results, too, lie somewhere else each time: its allocator would give every call
    # memory that is still in L2
    results: dict[str, list[Any]] = defaultdict(lambda: [None] * len(inputs))

    def peer(name: str, call: Peer, i: int) -> None:
        results[name][i] = call(inputs[i])

    peers = {"eager": trial.eager, **case.peers}
    if args.compile:
        mode = "max-autotune-no-cudagraphs"
        peers["compile"] = R.torch().compile(trial.eager, mode=mode, dynamic=False)
    variants |= {name: partial(peer, name, call) for name, call in peers.items()}
    return error, size, harness.on_device(variants, len(inputs), warm=args.warm)


def run(chosen: list[Case], args: argparse.Namespace, report: harness.Report) -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    symbols: list[float] = []
    for case in chosen:
        name = case.ours.name
        try:
            error, size, times = measure(case, args)
        except NoKernel as e:  # an operator that takes several kernels on such a device
            report.row(name, f"none: {e}")
            continue
        except Exception as e:
            report.fail(name, harness.described(e))
            if any(word in str(e) for word in ("CUDA 7", "illegal", "misaligned")):
                break  # the context is lost
            continue
        if not error <= 1 or harness.OURS not in times.us:
            report.fail(name, f"{error:.2f} of its bound, {times}")
            continue
        ours = times.us[harness.OURS]
        rate = (
            f"{case.flops / ours / 1e6:.0f} TFLOP/s"
            if case.flops
            else f"{size / ours / 1e3:.0f} GB/s"
        )
        if "symbolic" in times.ratios:
            symbols.append(times.ratios.pop("symbolic")[0])
        report.row(
            name, f"{times}, {rate}", group=case.group, count=case.count, error=error,
            bytes=size, flops=case.flops, times=times,
        )  # fmt: skip
        if times.best is not None:
            groups[case.group].append(times.ratios[times.best][0])
            for side, us in enumerate((ours, times.us[times.best])):
                totals[case.group][side] += us * case.count
    for group, ratios in groups.items():
        mine, theirs = totals[group]
        text = f"{harness.geometric_mean(ratios)}; sums {mine:.1f} us, best peers {theirs:.1f} us"
        report.row(group, text, ratios=ratios, totals=totals[group])
    every = [r for ratios in groups.values() for r in ratios]
    report.row("all", f"best peer / ours: {harness.geometric_mean(every)}", ratios=every)
    if symbols:
        mean = math.exp(sum(map(math.log, symbols)) / len(symbols))
        text = f"{mean:.3f} of the time with sizes known, {max(symbols):.2f} at worst"
        report.row("symbolic", text, ratios=symbols)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("family", nargs="*", help="of layers: gemm conv attention rows")
    parser.add_argument("--shapes", choices=("layers", "odd", "slow", "drawn"), default="layers")
    parser.add_argument("--count", type=int, default=264, help="of sizes drawn at random")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--symbolic", choices=("one", "several"))
    parser.add_argument("--compile", action="store_true", help="also torch.compile (slow to start)")
    parser.add_argument("--batches", nargs="*", type=int, default=[64, 8, 1], help="convolutions'")
    parser.add_argument(
        "--warm", type=float, default=0.0,
        help="seconds of a case before it is timed: the clock of a lasting load",
    )  # fmt: skip
    parser.add_argument("--only", default="", help="regular expression: cases to take")
    args = parser.parse_args()
    if set(args.family) - {"gemm", "conv", "attention", "rows"}:
        parser.error("families are gemm, conv, attention and rows")
    chosen = [c for c in cases(args) if re.search(args.only, f"{c.group} {c.ours.name}")]
    made = [with_symbols(c.ours, args) for c in chosen]
    R.compile_all(
        [
            *(r for c in chosen for r in (*c.ours.requests, *c.ours.extra)),
            *(r for m in made if m is not None for r in m[0]),
        ]
    )
    t = R.torch()
    t.manual_seed(0)
    t.backends.cudnn.benchmark, t.backends.cudnn.allow_tf32 = True, False
    report = harness.Report("kernels", args, device=True)
    run(chosen, args, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
