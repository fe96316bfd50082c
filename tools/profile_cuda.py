"""Where the time of a model goes on the GPU: every launch of its Plans, slowest first, beside one
replay of all of them as a graph.

    python -m tools.profile_cuda resnet50 --batch 1 32 [--sequence 128] [--top 30] [--json
    FILE]

A launch's own time is that of a graph of many of it, so its operands lie in cache and neighbours
overlap as they do in the whole; the sum of all can be above or below the replay. Models are of the
zoo, in fp16, or as `benchmarks.models` quantises them (int8:resnet50/qdq).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnx import ModelProto

from benchmarks.models import int8
from tests.support.cuda.models import half, input_shapes
from tracea_onnx.codegen import backend
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import evaluate
from tracea_onnx.runtime import cuda_harness
from tracea_onnx.support import discovery
from tracea_onnx.tuning import measure


def profile(part: measure.Part, replays: int) -> tuple[float, list[tuple[float, str, str]]]:
    """Microseconds of one replay, and (microseconds, family, parameters) of each launch."""
    value = evaluate(part.plan, [a.shape for a in part.inputs])
    with cuda_harness.LoadedPlan(part.plan, part.blobs, part.constants) as loaded:
        times = loaded.time(part.inputs, replays)
    launched = [launch for launch in part.plan["run"] if all(value[g] > 0 for g in launch["grid"])]
    rows = []
    for launch, key, (symbol, us) in zip(launched, part.asked, times.launches, strict=True):
        request = part.requests[key]
        name = (
            request.family
            + ("+program" if request.program is not None and "act" in request.ints else "")
            + ("+res" if "res" in request.operands else "")
        )
        grid = "x".join(str(value[g]) for g in launch["grid"] if value[g] > 1) or "1"
        rows.append(
            (us, name, f"{symbol} {grid}x{launch['block']} {measure.text(request, part.sizes)}")
        )
    return times.total, rows


def report(
    name: str, batch: int, total: float, rows: list[tuple[float, str, str]], top: int
) -> None:
    by_family: dict[str, list[float]] = defaultdict(list)
    same: dict[tuple[str, str], list[float]] = defaultdict(list)
    for us, family, text in rows:
        by_family[family].append(us)
        same[family, text].append(us)
    print(
        f"== {name} b{batch}: replay {total:.1f} us, {len(rows)} launches of "
        f"{sum(r[0] for r in rows):.1f} us"
    )
    print(
        "  "
        + ", ".join(
            f"{f} {len(t)}x {sum(t):.0f}"
            for f, t in sorted(by_family.items(), key=lambda kv: -sum(kv[1]))
        )
    )
    for (family, text), t in sorted(same.items(), key=lambda kv: -sum(kv[1]))[:top]:
        print(f"  {sum(t):7.1f} = {len(t):2d} x {sum(t) / len(t):6.2f}  {family:16s} {text[:150]}")


def given(name: str) -> tuple[ModelProto, dict[str, str]]:
    """A model and the provider's options with which it runs whole."""
    options, (kind, _, of) = {"backend": "cuda"}, name.partition(":")
    if kind != "int8":
        return half(discovery.module("models", name).build()), options
    return int8(of), options | {"claim": "all"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="+")
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    everything: dict[str, Any] = {}
    ort.set_default_logger_severity(4)
    for name in args.model:
        model, options = given(name)
        requests = measure.requests_of(model.SerializeToString(), options)
        for batch in args.batch:
            shapes = input_shapes(model, batch, args.sequence)
            for request in requests:
                sizes = measure.sizes_of(Graph(request), shapes)
                for part in measure.parts(backend.get("cuda"), request, sizes):
                    total, rows = profile(part, args.replays)
                    report(name, batch, total, rows, args.top)
                    everything[f"{name} b{batch} {part.plan['name']}"] = {
                        "replay": total,
                        "launches": rows,
                    }
            if args.json:
                args.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
