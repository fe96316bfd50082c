"""Time of every plausible tile of a kernel: what its cost model should choose, and is fitted to.

    python -m tools.fit_tiles [gemm conv attention] [--only REGEX] --json FILE

Shapes are those of `benchmarks.layers`. Each row names the chosen tile and the times of all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import harness, layers
from tests.support.cuda import runner as R
from tests.support.cuda import tiles as T
from tests.support.cuda.conv_shape import pitch
from tests.support.cuda.trials import dense
from tests.support.cuda.trials.trial import Trial
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery

F16 = DType.F16
#: Of attention: warpgroups, CTAs of an SM, what overlaps, keys of a tile.
SWEPT: tuple[tuple[int, int, str, tuple[int, ...]], ...] = (
    (1, 1, "INTRA_WG", (64, 112, 128)), (1, 1, "SINGLE_WG", (64, 112, 128, 208)),
    (1, 2, "INTER_WG", (64, 112, 128)), (1, 3, "INTER_WG", (64, 80)), (1, 4, "INTER_WG", (64,)),
    (2, 1, "INTER_WG", (96, 128, 176)), (2, 1, "INTRA_WG", (96, 128, 176)),
    (2, 1, "PINGPONG", (96, 128)),
    (2, 1, "SPLIT_CTA", (64, 112, 128)), (2, 2, "INTER_WG", (64, 80)),
    (3, 1, "INTER_WG", (96, 112, 128)), (4, 1, "INTER_WG", (64, 80, 96)),
)  # fmt: skip
#: A trial, and its tiles by name.
Subject = tuple[Trial, dict[str, Any]]


def gemm() -> Iterator[Subject]:
    for m, n, k, act, res in layers.LINEAR:
        found = T.plausible(m, n, k, stored=n % 8 == 0)
        yield dense.linear(F16, m, n, k, act, res=res), {T.tile_name(t): t for t in found}


def conv() -> Iterator[Subject]:
    for _, v, _ in layers.convolutions((64, 8, 1)):
        (oh, ow), taps = v.out, v.kernel[0] * v.kernel[1]
        if v.groups > 1 or (v.c < 24 and taps > 1):
            continue
        trial, steps = dense.convolution(F16, v), taps * -(-v.c // 64)
        found = [
            *T.plausible(v.n * oh * ow, v.oc, taps * pitch(v.c), steps=steps, most=7),
            *T.halo_tiles(trial.requests[0], resident=True),
        ]
        yield trial, {T.tile_name(t): t for t in found}


def attention() -> Iterator[Subject]:
    emitter = discovery.module("kernels", "cuda.attention.emit")
    for b, h, s, d, causal in layers.attention():
        trial = dense.attention(F16, b, h, s, s, d, causal=causal)
        problem = emitter.problem.problem(trial.requests[0])
        found = {}
        for groups, ctas, schedule, widths in SWEPT:
            for keys in widths:
                tile = emitter.fa3.config(problem, groups, keys, ctas, schedule)
                if tile is not None and keys <= -(-s // 16) * 16:
                    found[str(tile)] = tile
        yield trial, found


FAMILIES: dict[str, Callable[[], Iterator[Subject]]] = {
    "gemm": gemm,
    "conv": conv,
    "attention": attention,
}


def measure(trial: Trial, tiles: dict[str, Any]) -> harness.Times:
    request = trial.requests[0]
    data = [trial.inputs()]
    places = [trial.ours(data[0])[0]]
    size = sum(x.numel() * x.element_size() for x in data[0].values())
    for _ in range(harness.sets_for(size) - 1):
        data.append(trial.inputs())
        places.append(trial.ours(data[-1])[0])
    requests = {harness.OURS: request} | {n: R.force(request, t) for n, t in tiles.items()}

    def launches(made: Sequence[Callable[[int], None]]) -> Callable[[int], None]:
        return lambda i: made[i](R.current_stream())

    failed, variants = {}, {}
    for name, r in requests.items():
        try:
            variants[name] = launches([R.bind_all([r], p) for p in places])
        except Exception as e:  # more registers than there are
            failed[name] = harness.described(e)
    times = harness.on_device(variants, len(places), target_us=1000, rounds=5)
    times.failed |= failed
    return times


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("family", nargs="*", default=list(FAMILIES))
    parser.add_argument("--only", default="", help="regular expression: shapes to take")
    args = parser.parse_args()
    report = harness.Report("fit_tiles", args, device=True)
    for family in args.family:
        chosen = [s for s in FAMILIES[family]() if re.search(args.only, s[0].name)]
        R.compile_all(
            r
            for trial, tiles in chosen
            for r in (
                *trial.requests,
                *trial.extra,
                *(R.force(trial.requests[0], t) for t in tiles.values()),
            )
        )
        for trial, tiles in chosen:
            try:
                times = measure(trial, tiles)
            except Exception as e:
                report.fail(trial.name, harness.described(e))
                continue
            ranked = sorted(times.us, key=lambda n: times.us[n])
            text = ", ".join(f"{n} {times.us[n]:.2f}" for n in ranked[:8])
            report.row(trial.name, text, family=family, times=times)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
