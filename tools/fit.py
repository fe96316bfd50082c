"""Measures GEMM and convolution kernels of f32 on a GPU, and fits their efficiencies to that.

    python -m tools.fit layers MODEL:1x128 ... > layers.jsonl        # of the zoo, or a file
    python -m tools.fit measure layers.jsonl --data times.json       # needs the GPU and PyTorch
    python -m tools.fit solve tools/times/h100_fp32.json.gz --device h100 --hold-out

A layer is a launch as a session asks for it, with numbers for sizes. `measure` times every
configuration that may be worth it, each behind a small launch that reads what it wrote and writes
what it reads, as launches lie in networks: its time is what it adds to that. Weights are rotated
past L2. `solve` fits `kernels/cuda/cost/model.py`, and compares what it would choose with the best
that was measured: the regret, model by model, also of models that it was not fitted to.

`tools/times/h100_all.json.gz` also has the 16-bit launches. Kernels of 16-bit types do not go by
the model yet: chosen so they were better one by one, and up to 5 % slower in whole models.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.extents import extents
from tracea_onnx.plan.kernel_families import FAMILIES as OPERANDS
from tracea_onnx.runtime.device_caps import NUMBERS, DeviceCaps, of_request
from tracea_onnx.support import discovery

Floats = npt.NDArray[np.float64]
FAMILIES = frozenset({"gemm", "matmul", "conv2d", "deconv2d"})
#: Configurations of a kernel and of all that are timed; prices over the least up to which they are.
_EACH, _ALL, _FAR = 3, 14, 3.0
#: Bytes that the sets of inputs have together, sets at most, launches of a sample and microseconds.
_ROTATED, _SETS, _LAUNCHES, _SAMPLE = 160 << 20, 24, 36, 600
_ROUNDS = 7


def backend() -> Any:
    return discovery.module("kernels", "cuda")


def model() -> Any:
    return discovery.module("kernels", "cuda.cost.model")


# --- layers ---------------------------------------------------------------------------------------


def layers(specs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every launch of f32 that is fitted, of MODEL:BATCHxSEQUENCE..., once."""
    import onnx

    from tests.support.cuda.models import input_shapes
    from tracea_onnx.codegen import backend as backends
    from tracea_onnx.compiler import partition_compiler, plan_writer
    from tracea_onnx.ir.graph import Graph
    from tracea_onnx.plan.builder import write_pack
    from tracea_onnx.tuning import exact, measure

    def nothing(request: bytes) -> tuple[bytes, list[str]]:
        return write_pack([], partition_compiler.PRODUCER), []

    partition_compiler.compile_model = nothing
    found: dict[str, dict[str, Any]] = {}
    for spec in specs:
        name, *sizes = spec.split(":")
        made = (
            onnx.load(name) if name.endswith(".onnx") else discovery.module("models", name).build()
        )
        for request in measure.requests_of(made.SerializeToString(), {"backend": "cpu"}):
            graph = Graph(request)
            writer = plan_writer.writer(backends.get("cuda"), None)
            compiled = partition_compiler.compile_graph(graph, writer)
            for text in sizes:
                batch, sequence = map(int, text.split("x"))
                known = measure.sizes_of(graph, input_shapes(made, batch, sequence))
                for (_, plan, _), builder in zip(compiled.entries, compiled.builders, strict=True):
                    shapes = [
                        [D.evaluate(d, dict(known)) for d in exact.dims(graph, i["name"])]
                        for i in plan["inputs"]
                    ]
                    for r in builder.asked:  # type: ignore[attr-defined]
                        if r.family in FAMILIES and r.dtype == DType.F32:
                            one = kernel_choice.specialize(r, builder.sizes(shapes))
                            layer = found.setdefault(kernel_choice.cache_key(one), _written(one))
                            who = f"{Path(name).stem}:f32:{text}"
                            layer["models"][who] = layer["models"].get(who, 0) + 1
    yield from found.values()


def _written(r: Request) -> dict[str, Any]:
    sets = {n: sorted(getattr(r, n)) for n in ("operands", "unaligned", "constant")}
    ints = {k: v for k, v in r.ints.items() if v}
    request = {"family": r.family, "dtype": r.dtype.name, "ints": ints, "floats": dict(r.floats)}
    return {"request": {**request, "program": r.program, "tf32": r.tf32, **sets}, "models": {}}


def _read(layer: Mapping[str, Any], caps: DeviceCaps) -> Request:
    d = layer["request"]
    sets = {n: frozenset(d[n]) for n in ("operands", "unaligned", "constant")}
    ints = dict.fromkeys(OPERANDS[d["family"]].ints, 0) | d["ints"]
    return Request(
        d["family"], DType[d["dtype"]], ints, d["floats"], d["program"], caps=caps, tf32=d["tf32"],
        **sets,
    )  # fmt: skip


# --- measure --------------------------------------------------------------------------------------


def works(r: Request) -> tuple[dict[str, Any], dict[str, float]]:
    """By name: what every configuration of a request does, and the prices of kernels that have
    cost models of their own.
    """
    offers: dict[str, dict[str, float]] = {}
    with (
        model().collecting() as collected,
        kernel_choice.choosing(kernel_choice.Choices(offers=offers)),
    ):
        backend().emit(r)
    found = {repr(config): work for config, work in collected.items()}
    others = next(iter(offers.values()), {})
    return found, {n: price for n, price in others.items() if n not in found}


def worth(prices: Mapping[str, float], seed: int) -> list[str]:
    """The best of each kernel by price, the cheapest of all, and some others."""
    ranked = sorted(prices, key=prices.__getitem__)
    least, kinds = prices[ranked[0]], defaultdict[str, list[str]](list)
    for name in ranked:
        kinds[name.partition("(")[0]].append(name)
    found = [n for names in kinds.values() for n in names[:_EACH] if prices[n] <= 4 * least]
    found += ranked[: _ALL // 2]
    rest = [n for n in ranked if prices[n] <= _FAR * least and n not in found]
    random.Random(seed).shuffle(rest)
    return list(dict.fromkeys(found + rest))[: max(_ALL, len(set(found)))]


def prepared(given: tuple[dict[str, Any], DeviceCaps, Path]) -> dict[str, list[Kernel]]:
    """The kernels of the configurations that are worth it. Sources lie in files, by their hash."""
    layer, caps, folder = given
    r = _read(layer, caps)
    model().SLACK = _FAR  # also those that no one would choose
    found, others = works(r)
    prices = model().prices(found, caps) | others
    key, out = kernel_choice.cache_key(r), dict[str, list[Kernel]]()
    for name in worth(prices, len(prices)):
        with kernel_choice.choosing(kernel_choice.Choices(records={key: name})):
            out[name] = [replace(k, source=_kept(k.source, folder)) for k in backend().emit(r)]
    return out


def _kept(source: str, folder: Path) -> str:
    name = hashlib.sha256(source.encode()).hexdigest()[:24]
    (folder / f"{name}.{os.getpid()}").write_text(source)
    (folder / f"{name}.{os.getpid()}").rename(folder / f"{name}.cu")
    return name


def compiled(given: tuple[str, int, Path]) -> bytes:
    """A cubin; nothing where the source does not compile."""
    name, arch, folder = given
    try:
        return bytes(backend().compile((folder / f"{name}.cu").read_text(), arch))
    except Exception as e:
        print(f"{name}: {str(e)[:200]}", flush=True)
        return b""


#: Reads some of what the launch before wrote, and writes some of what the next one reads: a CTA on
#: each SM, with so much shared memory that the launches beside it find all SMs alike.
_SPACER = r"""
extern "C" __global__ void spacer(const uint4* y, long long ny, volatile uint4* x, long long nx,
                                  unsigned* sink) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const long long k = blockIdx.x * 128ll + threadIdx.x;
  if (k < ny && (y[k].x ^ y[k].y ^ y[k].z ^ y[k].w) == 0x12345678u) *sink = 1;
  if (k < nx) {
    const unsigned a = x[k].x, b = x[k].y, c = x[k].z, d = x[k].w;
    x[k].x = a; x[k].y = b; x[k].z = c; x[k].w = d;
  }
}
"""
_ROOM = 160 << 10
_WRITTEN, _SINGLE = ("y", "y_stats"), ("bias", "x_stats", "r_stats", "x_sums", "r_gamma", "r_beta")


class Arena:
    """Memory of the inputs, of the results, and of what is always f32."""

    def __init__(self, gigabytes: int = 3) -> None:
        from tests.support.cuda import runner as R

        t, size = R.torch(), gigabytes << 30
        self.inputs = {
            dtype: t.empty(size // dtype.size, dtype=R.torch_dtype(dtype), device="cuda")
            for dtype in (DType.F16, DType.F32)
        }
        for buffer in self.inputs.values():
            for part in buffer.split(1 << 28):
                part.normal_(0, 0.05)
        self.results = t.zeros(size, dtype=t.uint8, device="cuda")
        self.single = t.ones(64 << 20, device="cuda")
        self.size = size

    def sets(self, r: Request, most: int) -> list[dict[str, tuple[int, int]]]:
        """(address, bytes) of each operand, in as many sets as there is room for: of constants,
        since what launches write lies in L2.
        """
        bounds = extents(r.family, r.ints, dict.fromkeys(r.operands, 1), r.dtype.size, border=False)
        base = self.inputs[DType.F32 if r.dtype == DType.F32 else DType.F16].data_ptr()
        at = {base: 1 << 16, self.results.data_ptr(): 1 << 16}
        out: list[dict[str, tuple[int, int]]] = []
        for _ in range(most):
            places: dict[str, tuple[int, int]] = {}
            for o in sorted(r.operands):
                low, high = (D.evaluate(e, {}) for e in bounds.get(o, (0, 1 << 20)))
                if out and o not in r.constant:
                    places[o] = out[0][o]
                    continue
                if o in _SINGLE:
                    places[o] = (self.single.data_ptr(), high - low)
                    continue
                of = self.results.data_ptr() if o in _WRITTEN else base
                first = -(-(at[of] - low) // 1024) * 1024 + r.dtype.size * (o in r.unaligned)
                at[of] = first + high + (1 << 16)
                places[o] = (of + first, high - low)
            if max(at.values()) > self.size:
                break
            out.append(places)
        return out


def measure(found: Sequence[dict[str, Any]], path: Path, caps: DeviceCaps) -> None:
    """Adds the times of layers that the file has not got."""
    data: dict[str, Any] = {"device": _described(caps), "layers": {}}
    if path.exists():
        data = json.loads(path.read_text())
    keys = {kernel_choice.cache_key(_read(layer, caps)): layer for layer in found}
    todo = {key: layer for key, layer in keys.items() if key not in data["layers"]}
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool,
    ):
        folder = Path(scratch)
        kernels = list(pool.map(prepared, [(layer, caps, folder) for layer in todo.values()]))
        names = {k.source for made in kernels for ks in made.values() for k in ks}
        jobs = [(name, caps.arch, folder) for name in names]
        cubins = dict(zip(names, pool.map(compiled, jobs, chunksize=2), strict=True))
    arena = Arena()
    for (key, layer), made in zip(todo.items(), kernels, strict=True):
        made = {n: ks for n, ks in made.items() if all(cubins[k.source] for k in ks)}
        times = timed(_read(layer, caps), made, cubins, arena)
        if len(times) > 1:
            data["layers"][key] = {**layer, "times": times}
            print(f"{key[:8]} {len(times)} {min(times, key=times.__getitem__)}", flush=True)
            path.write_text(json.dumps(data))


def timed(
    r: Request, made: Mapping[str, Sequence[Kernel]], cubins: Mapping[str, bytes], arena: Arena
) -> dict[str, float]:
    """Microseconds that each configuration adds to the launches between."""
    from tests.support.cuda import runner as R

    t = R.torch()
    bounds = extents(r.family, r.ints, dict.fromkeys(r.operands, 1), r.dtype.size, border=False)
    size = sum(D.evaluate(bounds[o][1] - bounds[o][0], {}) for o in r.constant if o in bounds)
    sets = arena.sets(r, max(2, min(_SETS, -(-_ROTATED // max(size, 1)))))
    stream = t.cuda.Stream()
    reads = {"matmul": "a"}.get(r.family, "x")
    spacers = [_spacer(sets[k - 1]["y"], sets[k][reads], arena, r.sms) for k in range(len(sets))]
    graphs: dict[str, Any] = {}
    count = 0
    for name, kernels in {"": (), **made}.items():
        try:
            calls = [
                [between, *_bound(kernels, places, cubins)]
                for between, places in zip(spacers, sets, strict=True)
            ]
            if name and not count:
                count = _count(calls, stream)
                graphs[""] = _graph([c[:1] for c in calls], count, stream)
            if name:
                graphs[name] = _graph(calls, count, stream)
        except Exception as e:
            print(f"{name}: {e}", flush=True)
            t.cuda.synchronize()
    samples = defaultdict[str, list[float]](list)
    order = list(graphs)
    for k in range(_ROUNDS + 1):
        random.shuffle(order)
        for name in order:
            a, b = (t.cuda.Event(enable_timing=True) for _ in range(2))
            with t.cuda.stream(stream):
                a.record()
                graphs[name].replay()
                b.record()
            b.synchronize()
            if k:
                samples[name].append(a.elapsed_time(b) * 1e3 / count)
    base = statistics.median(samples[""])
    return {n: round(statistics.median(v) - base, 3) for n, v in samples.items() if n}


def _bound(
    kernels: Sequence[Kernel], places: Mapping[str, tuple[int, int]], cubins: Mapping[str, bytes]
) -> list[Any]:
    from tests.support.cuda import runner as R

    launch, at = R.Launch(kernels), {o: address for o, (address, _) in places.items()}
    for k, size in enumerate(next((k.scratch for k in kernels if k.scratch), ())):
        at[f"scratch{k}"], buffer = R._tensor(max(D.evaluate(size, {}), 1), 0)
        launch.keep.append(buffer)
    made = [R.call_of(k, cubins[k.source], at, {}, launch, R._tensor) for k in kernels]
    launch.calls = [c for c in made if c is not None]
    return [launch] if launch.calls else []


def _spacer(y: tuple[int, int], x: tuple[int, int], arena: Arena, sms: int) -> Any:
    from tests.support.cuda import runner as R
    from tracea_onnx.codegen.kernel_request import Int64, Pointer

    args = (Pointer("y"), Int64(_vectors(y)), Pointer("x"), Int64(_vectors(x)), Pointer("sink"))
    kernel = Kernel(_SPACER, "spacer", (sms, 1, 1), 128, args, _ROOM, pdl=True)
    at = {"y": -(-y[0] // 16) * 16, "x": -(-x[0] // 16) * 16, "sink": arena.single.data_ptr()}
    launch = R.Launch([kernel])
    cubin = R._cubin(backend(), _SPACER, 90)
    call = R.call_of(kernel, cubin, at, {}, launch, R._tensor)
    launch.calls = [] if call is None else [call]
    return launch


def _vectors(place: tuple[int, int]) -> int:
    """Of 16 bytes."""
    return max(place[1] // 16 - 1, 0)


def _count(calls: Sequence[Sequence[Any]], stream: Any) -> int:
    """How many launches a sample has."""
    stream.synchronize()
    once = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        for call in (*calls[0], *calls[1], *calls[0], *calls[1]):
            call(stream.cuda_stream)
        stream.synchronize()
        once = (time.perf_counter() - begin) / 4 * 1e6
    count = max(4, min(_LAUNCHES, int(_SAMPLE / max(once, 5.0))))
    return -(-count // len(calls)) * len(calls) if count > len(calls) else count


def _graph(calls: Sequence[Sequence[Any]], count: int, stream: Any) -> Any:
    from tests.support.cuda import runner as R

    for call in calls[0]:
        call(stream.cuda_stream)
    stream.synchronize()
    graph = R.torch().cuda.CUDAGraph()
    with R.torch().cuda.graph(graph, stream=stream):
        for k in range(count):
            for call in calls[k % len(calls)]:
                call(stream.cuda_stream)
    return graph


# --- solve ----------------------------------------------------------------------------------------

#: Least, usual and largest value of each efficiency.
_BOUNDS = {
    "fill": (20, 800, 9000), "arithmetic": (0.1, 0.7, 1.3), "latency": (100, 2000, 9000),
    "sync": (1, 50, 2000), "copy": (0.01, 2, 60), "epilogue": (0.002, 0.12, 3),
    "reduction": (0.01, 0.5, 8), "cluster": (5, 600, 6000), "launch": (300, 2000, 9000),
    "l2": (0.1, 0.7, 1.6), "dram": (0.2, 0.85, 1.2),
}  # fmt: skip


class Problem:
    """Measured layers as arrays: of each configuration its layer, time (clocks) and `Work`."""

    def __init__(self, data: Mapping[str, Any], caps: DeviceCaps) -> None:
        Work, names = model().Work, list(model().Efficiencies._fields)
        self.caps, self.names, self.layers = caps, names, list[Mapping[str, Any]]()
        rows: list[tuple[int, float, Any]] = []
        known = list[float]()
        self.configs = list[str]()
        for layer in data["layers"].values():
            made, others = works(_read(layer, caps))
            some = next(iter(made.values()), None)
            times = {n: us for n, us in layer["times"].items() if n in made or n in others}
            if some is not None and len(times) > 1:
                rows += [(len(self.layers), us, made.get(n, some)) for n, us in times.items()]
                known += [others.get(n, 0.0) for n in times]
                self.configs += times
                self.layers.append(layer)
        self.known = np.array(known)
        self.layer = np.array([k for k, _, _ in rows])
        self.time = np.array([us for _, us, _ in rows]) * caps.clock / 1000
        self.first = np.flatnonzero(np.r_[True, self.layer[1:] != self.layer[:-1]])
        self.best = np.minimum.reduceat(self.time, self.first)
        shares = np.zeros(len(self.layers))  # of the time of a model
        for name in {n for layer in self.layers for n in layer["models"]}:
            counts = [layer["models"].get(name, 0) for layer in self.layers]
            shares = np.maximum(shares, counts * self.best / (counts @ self.best))
        self.counts = 1 + _SHARE * shares
        self.kernels = sorted({w.kernel for _, _, w in rows})
        self.kernel = np.array([self.kernels.index(w.kernel) for _, _, w in rows])
        columns = {
            f: np.array([float(getattr(w, f)) for _, _, w in rows]) for f in Work._fields[1:]
        }
        self.work = SimpleNamespace(**columns)
        free = [
            (k, n) for k in range(len(self.kernels)) for n in names if n not in model().OF_DEVICE
        ]
        self.free = [*free, *((-1, n) for n in model().OF_DEVICE)]
        self.low, self.usual, self.high = np.log([_BOUNDS[n] for _, n in self.free]).T

    def table(self, x: Floats) -> dict[str, Floats]:
        """Each efficiency by kernel."""
        out = {n: np.zeros(len(self.kernels)) for n in self.names}
        for (k, n), value in zip(self.free, np.exp(x), strict=True):
            out[n][k if k >= 0 else slice(None)] = value
        return out

    def prices(self, x: Floats, more: str = "") -> Floats:
        """Clocks; with a little more of one efficiency of all kernels."""
        known = self.table(x)
        if more:
            known[more] = known[more] * math.exp(_STEP)
        of = model().Efficiencies(**{n: v[self.kernel] for n, v in known.items()})
        prices: Floats = model().time(self.work, of, self.caps)
        return np.where(self.known, self.known, prices)

    def fit(self, on: npt.NDArray[np.bool_]) -> Floats:
        """Logarithms of the efficiencies, fitted to the layers that are `on`: to the times, the
        near ones above all, and to the loss of what would be chosen.
        """
        from scipy.optimize import minimize

        ratio = np.log(self.time / self.best[self.layer])
        weight = np.exp(-3 * ratio)
        weight /= np.add.reduceat(weight, self.first)[self.layer]
        counts = on * self.counts
        excess, kernels = np.minimum(ratio, 0.7), len(self.kernels)

        def total(x: Floats, soft: float, near: float) -> tuple[float, Floats]:
            """The value and its gradient. Prices' common error of a layer counts less."""
            price = np.log(self.prices(x))
            error = price - np.log(self.time)
            error -= _COMMON * np.add.reduceat(weight * error, self.first)[self.layer]
            mean = np.add.reduceat(weight * error, self.first)[self.layer]
            value = near * float((counts[self.layer] * weight * error**2).sum())
            by_price = 2 * near * counts[self.layer] * weight * (error - _COMMON * mean)
            if soft:
                least = np.minimum.reduceat(price, self.first)[self.layer]
                share = np.exp((least - price) / soft)
                share /= np.add.reduceat(share, self.first)[self.layer]
                lost = np.add.reduceat(share * excess, self.first)
                value += float((counts * lost).sum())
                by_price -= counts[self.layer] * share * (excess - lost[self.layer]) / soft
            by: dict[str, Floats] = {}
            for n in self.names:
                each = by_price * (np.log(self.prices(x, n)) - price) / _STEP
                by[n] = np.bincount(self.kernel, each, kernels).astype(np.float64)
            slope = np.array([by[n][k] if k >= 0 else by[n].sum() for k, n in self.free])
            value += _USUAL * float(np.square(x - self.usual).sum())
            return value, slope + 2 * _USUAL * (x - self.usual)

        x: Floats = np.array(self.usual, np.float64)
        bounds = list(zip(self.low, self.high, strict=True))
        for soft, near in ((0.0, 1.0), (0.1, 0.3), (0.04, 0.1)):
            found = minimize(
                total, x, (soft, near), "L-BFGS-B", jac=True, bounds=bounds, options=_FAR_ENOUGH
            )
            x = np.array(found.x, np.float64)
        return x

    def chosen(self, prices: Floats) -> Floats:
        """Time of each layer's cheapest configuration."""
        order = np.lexsort((prices, self.layer))
        times: Floats = self.time[order[self.first]]
        return times

    def regret(self, times: Floats) -> dict[str, float]:
        """Time of all launches of a model over that of the best configurations."""
        sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
        for layer, taken, best in zip(self.layers, times, self.best, strict=True):
            for name, count in layer["models"].items():
                sums[name][0] += count * taken
                sums[name][1] += count * best
        return {name: taken / best for name, (taken, best) in sorted(sums.items())}


#: Parts that models are divided into, each of which is held out once.
_FOLDS = 5
#: How much of the common error of a layer's prices does not count, how much it costs that an
#: efficiency is not the usual one, and how much of one its derivative is taken by.
_COMMON, _USUAL, _STEP = 0.4, 1e-3, 1e-4
_FAR_ENOUGH = {"maxiter": 1000, "maxfun": 3000}
#: How much more a layer counts that takes all of a model's time.
_SHARE = 10


def solve(path: Path, device: str, held_out: bool) -> None:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    data = json.loads(text)
    caps = of_request(data["device"])
    p = Problem(data, caps)
    every = np.ones(len(p.layers), bool)
    x = p.fit(every)
    table = {n: v.tolist() for n, v in p.table(x).items()}
    file = model().FOLDER / f"{device}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    content = known | {
        "arch": caps.arch,
        "device": {n: _digits(table[n][0]) for n in model().OF_DEVICE},
        "kernels": known.get("kernels", {})  # of kernels that were not measured
        | {
            kernel: {n: _digits(table[n][k]) for n in p.names if n not in model().OF_DEVICE}
            for k, kernel in enumerate(p.kernels)
        },
    }
    file.write_text(json.dumps(content, indent=1) + "\n")
    columns = {"fitted": p.regret(p.chosen(p.prices(x)))}
    if held_out:
        columns["held out"] = _held_out(p)
    if all("present" in layer for layer in p.layers):
        columns["before"] = p.regret(np.array([x["present"] for x in p.layers]) * caps.clock / 1000)
    print("| model |", " | ".join(columns), "|\n|---|" + "---|" * len(columns))
    for name in columns["fitted"]:
        print(f"| {name} |", " | ".join(f"{c[name]:.3f}" for c in columns.values()), "|")
    means = (f"{statistics.geometric_mean(c.values()):.4f}" for c in columns.values())
    print("| geometric mean |", " | ".join(means), "|")


def _held_out(p: Problem) -> dict[str, float]:
    """The regret of each model with efficiencies that are fitted to layers of others."""
    out: dict[str, float] = {}
    whose = [{n.partition(":")[0] for n in layer["models"]} for layer in p.layers]
    names = sorted(set().union(*whose))
    for fold in range(_FOLDS):
        without = set(names[fold::_FOLDS])
        on = np.array([not without & of for of in whose])
        found = p.regret(p.chosen(p.prices(p.fit(on))))
        out |= {n: v for n, v in found.items() if n.partition(":")[0] in without}
    return out


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("layers", "measure", "solve"))
    parser.add_argument("given", nargs="+", help="models, the file of layers, or that of times")
    parser.add_argument("--data", type=Path, help="the file of times")
    parser.add_argument("--device", default="h200", help="the file of efficiencies")
    parser.add_argument("--hold-out", action="store_true", help="also fit without models")
    args = parser.parse_args()
    if args.what == "layers":
        for layer in layers(args.given):
            print(json.dumps(layer), flush=True)
    elif args.what == "measure":
        lines = Path(args.given[0]).read_text().splitlines()
        measure([json.loads(line) for line in lines], args.data, _device())
    else:
        solve(Path(args.given[0]), args.device, args.hold_out)
    return 0


def _device() -> DeviceCaps:
    from tracea_onnx.runtime import cuda_harness

    return of_request(cuda_harness.properties())


def _described(caps: DeviceCaps) -> dict[str, str]:
    """What `of_request` reads."""
    numbers = {n: str(getattr(caps, n)) for n in ("arch", "sms", *NUMBERS)}
    clusters = ",".join(f"{size}:{count}" for size, count in caps.clusters)
    return {"name": caps.name, **numbers, "clusters": clusters}


if __name__ == "__main__":
    sys.exit(main())
