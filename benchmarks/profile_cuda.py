"""Where the time of a model goes on the GPU: every launch of its Plans, slowest first, beside one replay of all of them as a graph.

    python -m benchmarks.profile_cuda resnet50 --batch 1 32 [--sequence 128] [--top 30] [--json FILE]

A launch's own time is that of a graph of many of it, so its operands lie in cache and neighbours overlap as they do in the whole; the sum of
all can be above or below the replay. Models are of the zoo, in fp16.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.cuda_models import half
from benchmarks.profile_plan import evaluate
from tracea_onnx import compiler, native_cuda, provider, registry
from tracea_onnx.cuda_plan import CudaPlanBuilder
from tracea_onnx.dims import DimLike
from tracea_onnx.graph import Array, Graph
from tracea_onnx.ops import DType
from tracea_onnx.plan import Ref

_NUMPY: Mapping[int, Any] = {1: np.float32, 10: np.float16, 7: np.int64, 6: np.int32, 9: np.bool_}
#: Parameters that say little.
_DULL = ("_rs", "_ns", "_cs", "_b", "_h", "_s", "dtype")


@dataclass
class Captured:
    """A partition's Plan, its constants, and what each launch of `run` computes (family and integer parameters)."""

    plan: dict[str, Any]
    blobs: list[bytes]
    initializers: dict[str, Array]
    labels: list[tuple[str, dict[str, int]]]  # parameters as indices of the Plan's expressions


class _Traced(CudaPlanBuilder):
    """Remembers which family each launch came from."""

    def __init__(self, name: str, arch: int, sms: int, *, compile_kernels: bool) -> None:
        super().__init__(name, arch, sms, compile_kernels=compile_kernels)
        self.labels: list[tuple[str, dict[str, int]]] = []

    def _append(
        self,
        family: str,
        refs: Mapping[str, Ref | None],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float],
        program: Mapping[str, Any] | None,
        dtype: DType,
        to: list[dict[str, Any]],
    ) -> None:
        before = len(self._run)
        super()._append(family, refs, ints, floats, program, dtype, to)
        name = family + ("+program" if program is not None and "act" in ints else "") + ("+res" if refs.get("res") is not None else "")
        self.labels += [(name, {k: self.expr(v) for k, v in ints.items() if not k.endswith(_DULL)})] * (len(self._run) - before)


def capture(model: onnx.ModelProto, arch: int, sms: int) -> list[Captured]:
    """The Plans a session over this model runs."""
    found: list[Captured] = []
    real = compiler.compile_graph

    def compile_graph(graph: Graph, backend: compiler.Backend = compiler.CPU_BACKEND, *, everything: bool = False, body: bool = False) -> compiler.Compiled:
        builders: dict[str, _Traced] = {}

        def plan(name: str, probe: bool) -> CudaPlanBuilder:
            builders[name] = _Traced(name, arch, sms, compile_kernels=not probe)
            return builders[name]

        result = real(graph, compiler.Backend(backend.target, plan), everything=everything, body=body)
        found.clear()  # ONNX Runtime asks twice; what counts is the last answer
        for _, lowered, blobs in result.entries:
            constants = {b["name"]: np.array(graph.const(b["name"])) for b in lowered["buffers"] if b["kind"] == "initializer"}
            found.append(Captured(lowered, blobs, constants, builders[lowered["name"]].labels))
        return result

    compiler.compile_graph = compile_graph
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        with tempfile.TemporaryDirectory() as fresh:  # a Plan from the cache is not compiled
            provider.create_session(model.SerializeToString(), {"backend": "cuda", "cache_dir": fresh}, options)
    finally:
        compiler.compile_graph = real
    return found


def profile(part: Captured, shapes: dict[str, list[int]], replays: int) -> tuple[float, list[tuple[float, str, str]]]:
    """Microseconds of one replay, and (microseconds, family, parameters) of each launch."""
    rng = np.random.default_rng(0)
    inputs = []
    for i in part.plan["inputs"]:
        shape = shapes.get(i["name"], [1] * i["rank"])
        kind = _NUMPY[i["dtype"]]
        inputs.append(rng.standard_normal(shape).astype(kind) if np.issubdtype(kind, np.floating) else np.ones(shape, kind))
    value = evaluate(part.plan, [list(a.shape) for a in inputs])
    with native_cuda.LoadedPlan(part.plan, part.blobs, part.initializers) as loaded:
        times = loaded.time(inputs, replays)
    launched = [k for k, launch in enumerate(part.plan["run"]) if all(value[g] > 0 for g in launch["grid"])]
    rows = []
    for k, (symbol, us) in zip(launched, times.launches, strict=True):
        family, parameters = part.labels[k]
        grid = "x".join(str(value[g]) for g in part.plan["run"][k]["grid"] if value[g] > 1) or "1"
        text = " ".join(f"{n}={value[e]}" for n, e in parameters.items() if value[e] not in (0, 1))
        rows.append((us, family, f"{symbol} {grid}x{part.plan['run'][k]['block']} {text}"))
    return times.total, rows


def report(name: str, batch: int, total: float, rows: list[tuple[float, str, str]], top: int) -> None:
    by_family: dict[str, list[float]] = defaultdict(list)
    same: dict[tuple[str, str], list[float]] = defaultdict(list)
    for us, family, text in rows:
        by_family[family].append(us)
        same[family, text].append(us)
    print(f"== {name} b{batch}: replay {total:.1f} us, {len(rows)} launches of {sum(r[0] for r in rows):.1f} us")
    print("  " + ", ".join(f"{f} {len(t)}x {sum(t):.0f}" for f, t in sorted(by_family.items(), key=lambda kv: -sum(kv[1]))))
    for (family, text), t in sorted(same.items(), key=lambda kv: -sum(kv[1]))[:top]:
        print(f"  {sum(t):7.1f} = {len(t):2d} x {sum(t) / len(t):6.2f}  {family:16s} {text[:150]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+")
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    about = native_cuda.device()
    everything: dict[str, Any] = {}
    for name in args.model:
        model = half(registry.module("models", name).build())
        parts = capture(model, about.arch, about.sms)
        dims = {
            i.name: [d.dim_value if d.HasField("dim_value") else (-1, -2)[min(k, 1)] for k, d in enumerate(i.type.tensor_type.shape.dim)]
            for i in model.graph.input
        }
        for batch in args.batch:
            shapes = {n: [batch if d == -1 else args.sequence if d == -2 else d for d in s] for n, s in dims.items()}
            for part in parts:
                total, rows = profile(part, shapes, args.replays)
                report(name, batch, total, rows, args.top)
                everything[f"{name} b{batch} {part.plan['name']}"] = {"replay": total, "launches": rows}
            if args.json:
                args.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
