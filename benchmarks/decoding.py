"""How long a token takes: whole decoders of random weights, step by step over a cache that is
written in place, beside PyTorch and beside the bandwidth of the memory.

    python -m benchmarks.decoding [1b 8b] [--weights fp16 int4] [--batch 1 16]
        [--keys 1024 8192 32768] [--layers N] [--no-peer] [--launches] [--json FILE]

Models have the shapes of Llama 3.2 1B and Llama 3.1 8B in fp16, with weights of fp16 or of 4 bits
in blocks of 32 (MatMulNBits), GroupQueryAttention, and a batch, a sequence and a cache of any size.
A row is a token behind so many keys for each row of the batch. `fp16` and `int4` are sessions of
this provider, one for all rows of a model. `torch` is the same fp16 decoder in PyTorch: what is
around attention compiled by torch.compile, scaled_dot_product_attention by the fastest of its
backends, all of a token one CUDA graph.

Logits are compared with PyTorch's first, those of int4 with the same weights dequantised. Times are
of the host's clock, from the start of a run to its end. The share is that of weights, scales and
the cache's keys and values in what the faster of a copy and a sum of 2 GiB moves in as much time.

--layers: so many layers of the model, and all of its head. --launches: also every launch of a model
of two layers, each on what the others leave in cache.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks import decoders, harness
from benchmarks.decoders import Numbers, Peer, Shape
from tests.support.cuda import runner as R
from tests.support.cuda.models import NVIDIA
from tests.support.sessions import left_to_ort
from tracea_onnx import provider
from tracea_onnx.codegen import backend as backends
from tracea_onnx.ir.graph import Graph
from tracea_onnx.runtime import cuda_harness
from tracea_onnx.tuning import measure

_KINDS = ("fp16", "int4")
_MOVED = 2 << 30
#: Differences of logits, of the largest, beyond these are no rounding.
_LARGEST = {"cuda": 5e-2, "cpu": 2e-4}


def bandwidth() -> dict[str, float]:
    """Bytes per microsecond of a copy, read and written, and of a sum."""
    t = R.torch()
    a, b = (t.zeros(_MOVED // 4, dtype=t.float32, device="cuda") for _ in range(2))
    out = t.empty((), device="cuda")
    runs: dict[str, Callable[[int], Any]] = {
        harness.OURS: lambda i: a.copy_(b), "sum": lambda i: t.sum(b, (0,), out=out),
    }  # fmt: skip
    us = harness.on_device(runs, least=2).us
    return {"copy": 2 * _MOVED / us[harness.OURS], "sum": _MOVED / us["sum"]}


class Memory:
    """Tensors that ONNX Runtime and PyTorch share, on the GPU or the host."""

    def __init__(self, *, gpu: bool) -> None:
        self.gpu, self.device = gpu, "cuda" if gpu else "cpu"

    def __call__(self, dims: Sequence[int], dtype: Any) -> tuple[Any, Any]:
        """A tensor as both see it."""
        if not self.gpu:
            array = np.zeros(dims, dtype)
            return ort.OrtValue.ortvalue_from_numpy(array), R.torch().from_numpy(array)
        value = ort.OrtValue.ortvalue_from_shape_and_type(list(dims), dtype, "gpu", 0, NVIDIA)
        view = {
            "shape": tuple(dims), "typestr": np.dtype(dtype).str, "version": 3,
            "data": (value.data_ptr(), False),
        }  # fmt: skip
        shared = type("Shared", (), {"__cuda_array_interface__": view})()
        return value, R.torch().as_tensor(shared, device="cuda")

    def wait(self) -> None:
        if self.gpu:
            R.torch().cuda.synchronize()


class Step:
    """What a token of each row needs: its number, a mask as long as its sequence, and the cache."""

    def __init__(self, shape: Shape, memory: Memory, batch: int, keys: int, kind: Any) -> None:
        t = R.torch()
        self.batch, self.keys, self.memory = batch, keys, memory
        self.values: dict[str, Any] = {}
        self.values["input_ids"], self.ids = memory((batch, 1), np.int64)
        self.values["attention_mask"], mask = memory((batch, keys), np.int64)
        self.ids.copy_(t.arange(batch)[:, None] * 17 + 3)
        mask.fill_(1)
        self.caches: list[Any] = []
        for layer in range(shape.layers):
            for which in ("key", "value"):
                dims = batch, shape.kv_heads, keys, shape.size
                value, view = memory(dims, kind)
                view.normal_()
                self.values[f"past_key_values.{layer}.{which}"] = value
                self.caches.append(view)
        self.position = t.tensor([keys - 1], device=memory.device)
        memory.wait()

    def session(self, session: Any, shape: Shape, kind: Any) -> tuple[Callable[[], None], Any]:
        """A run of a session, and its logits."""
        binding = session.io_binding()
        for name, value in self.values.items():
            binding.bind_ortvalue_input(name, value)
            if name.startswith("past"):
                output = name.replace("past_key_values", "present")
                binding.bind_ortvalue_output(output, value)
        logits, view = self.memory((self.batch, 1, shape.vocab), kind)
        binding.bind_ortvalue_output("logits", logits)

        def run(_kept: Any = logits) -> None:
            session.run_with_iobinding(binding)

        return run, view[:, 0]

    def peer(self, peer: Peer, *, graph: bool) -> tuple[Callable[[], None], Any]:
        """The same of PyTorch's decoder; graph: as a CUDA graph, with the fastest backend of
        attention.
        """
        t = R.torch()
        pairs = list(zip(self.caches[::2], self.caches[1::2], strict=True))
        ids = self.ids[:, 0]
        if not graph:
            with t.no_grad():
                made = peer(ids, self.position, pairs)
            return lambda: None, made
        for cache in self.caches:
            t._dynamo.mark_dynamic(cache, 2)
        kinds, found = t.nn.attention.SDPBackend, list[tuple[float, Any, Any]]()
        for kind in (kinds.FLASH_ATTENTION, kinds.CUDNN_ATTENTION, kinds.EFFICIENT_ATTENTION):
            try:
                with t.no_grad(), t.nn.attention.sdpa_kernel(kind):
                    side = t.cuda.Stream()
                    side.wait_stream(t.cuda.current_stream())
                    with t.cuda.stream(side):
                        for _ in range(3):
                            peer(ids, self.position, pairs)
                    t.cuda.current_stream().wait_stream(side)
                    t.cuda.synchronize()
                    captured = t.cuda.CUDAGraph()
                    with t.cuda.graph(captured):
                        made = peer(ids, self.position, pairs)
            except RuntimeError as e:  # a backend that has no such attention
                t.cuda.synchronize()
                print(f"{kind}: {harness.described(e)}", flush=True)
                continue
            captured.replay()
            t.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(3):
                captured.replay()
            t.cuda.synchronize()
            found.append((time.perf_counter() - began, captured, made))
        _, best, made = min(found, key=lambda f: f[0])

        def replay() -> None:
            best.replay()
            t.cuda.synchronize()

        return replay, made


def weights(numbers: Numbers, few: bool, device: str) -> Callable[[str, int, int], Any]:
    """PyTorch's weights [columns, terms] by name, terms and columns."""
    t = R.torch()
    kinds = {n: t.from_numpy(np.array(v)).to(device) for n, v in numbers.kinds.items()}

    def weight(name: str, k: int, n: int) -> Any:
        if name == "embed":
            return kinds["normal"][numbers.part(name, k * n)].reshape(n, k).clone()
        if not few:
            return kinds["normal"][numbers.part(name, k * n)].reshape(k, n).t().contiguous()
        words = kinds["bytes"][numbers.part(name, k * n // 2)]
        q = t.stack((words & 15, words >> 4), -1).reshape(n, -1, decoders.BLOCK)
        scales = kinds["scales"][numbers.part(name, k * n // decoders.BLOCK)].reshape(n, -1, 1)
        return ((q.to(scales.dtype) - 8) * scales).reshape(n, k)

    return weight


def _difference(got: Any, want: Any) -> float:
    got, want = got.float(), want.float()
    return float(((got - want).abs().max() / want.abs().max()).cpu())


def load(numbers: Numbers, kind: str, args: argparse.Namespace, report: harness.Report) -> Any:
    """A session over the model, all of whose nodes must be the provider's."""
    layers = numbers.shape.layers
    made = decoders.build(numbers, kind == "int4", max(args.keys), layers)
    path = numbers.path.parent / f"{kind}.onnx"
    onnx.save(made, path)
    began = time.perf_counter()
    session = provider.create_session(path, {"backend": args.backend, "claim": "all"})
    seconds = time.perf_counter() - began
    left = left_to_ort(session)
    text = f"loaded in {seconds:.1f} s, left to ORT {len(left)}"
    report.row(f"{kind}, {layers} layers", text, load=seconds, left=left)
    return session


def measured(
    name: str, args: argparse.Namespace, report: harness.Report, moved: float | None
) -> None:
    shape, gpu = decoders.SHAPES[name], args.backend == "cuda"
    shape = replace(shape, layers=args.layers or shape.layers)
    memory = Memory(gpu=gpu)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        numbers = Numbers(shape, Path(folder), single=not gpu)
        sessions = {kind: load(numbers, kind, args, report) for kind in args.weights}
        for kind in args.weights:
            if not _agrees(f"{name} {kind}", sessions[kind], numbers, kind, memory, args, report):
                del sessions[kind]
            _freed(memory)
        compiled = None
        if gpu and not args.no_peer:
            wrap = partial(R.torch().compile, dynamic=None)
            compiled = _peer(numbers, "fp16", memory, args, wrap)
        for batch in args.batch:
            for keys in args.keys:
                try:
                    step = Step(shape, memory, batch, keys, numbers.dtype.type)
                    _row(name, step, shape, sessions, compiled, report, moved, args)
                    del step
                except Exception as e:
                    report.fail(f"{name} b{batch} {keys} keys", harness.described(e))
                    if any(word in str(e) for word in ("CUDA 7", "illegal", "misaligned")):
                        raise  # the context is lost
                _freed(memory)
        for kind in args.weights if args.launches and gpu else ():
            small = decoders.build(numbers, kind == "int4", max(args.keys), min(shape.layers, 2))
            path = Path(folder) / f"{kind}-small.onnx"
            onnx.save(small, path)
            _launches(f"{name} {kind}", path, shape, args, report)


def _peer(
    numbers: Numbers, kind: str, memory: Memory, args: argparse.Namespace,
    wrap: Callable[[Any], Any] = lambda part: part,
) -> Peer:  # fmt: skip
    given = weights(numbers, kind == "int4", memory.device)
    dtype = R.torch().float16 if memory.gpu else R.torch().float32
    return Peer(numbers.shape, given, wrap, memory.device, dtype, max(args.keys))


def _agrees(
    title: str, session: Any, numbers: Numbers, kind: str, memory: Memory, args: argparse.Namespace,
    report: harness.Report,
) -> bool:  # fmt: skip
    """Whether logits are those of PyTorch's decoder, of each batch behind the fewest keys."""
    peer = _peer(numbers, kind, memory, args)
    for batch in args.batch:
        step = Step(numbers.shape, memory, batch, min(args.keys), numbers.dtype.type)
        run, got = step.session(session, numbers.shape, numbers.dtype.type)
        worst = 0.0
        for _ in range(3):  # the third run replays a graph
            run()
            memory.wait()
            worst = max(worst, _difference(got, step.peer(peer, graph=False)[1]))
        name = f"{title} b{batch} {step.keys} keys, logits"
        if not worst <= _LARGEST[args.backend]:
            report.fail(name, f"differs by {worst:.1e}")
            return False
        report.row(name, f"difference {worst:.1e}", difference=worst)
    return True


def _freed(memory: Memory) -> None:
    gc.collect()
    if memory.gpu:
        R.torch().cuda.empty_cache()


def _row(
    name: str, step: Step, shape: Shape, sessions: dict[str, Any], compiled: Peer | None,
    report: harness.Report, moved: float | None, args: argparse.Namespace,
) -> None:  # fmt: skip
    kind_of = np.float16 if step.memory.gpu else np.float32
    runs = {kind: step.session(s, shape, kind_of) for kind, s in sessions.items()}
    for run, _ in runs.values():
        for _ in range(3):
            run()
    failed: dict[str, str] = {}
    error: float | None = None
    if compiled is not None:
        try:
            runs["torch"] = step.peer(compiled, graph=True)
            runs["torch"][0]()
        except Exception as e:
            failed["torch"] = harness.described(e)
    if "torch" in runs and "fp16" in runs:
        error = _difference(runs["fp16"][1], runs["torch"][1])
        if not error <= _LARGEST[args.backend]:
            report.fail(f"{name} fp16 b{step.batch} {step.keys} keys", f"differs by {error:.1e}")
            return
    samplers = {n: harness.run_sampler(run) for n, (run, _) in runs.items()}
    item = np.dtype(kind_of).itemsize
    cache = shape.cache_bytes(step.batch, step.keys, item)
    for kind in sessions:
        others = [n for n in ("fp16", "torch") if n in runs and n != kind]
        sides: dict[str, harness.Sampler] = {n: samplers[n] for n in others}
        sides[harness.OURS] = samplers[kind]
        times = harness.interleaved(sides, rounds=args.rounds)
        times.failed = failed
        us = times.us[harness.OURS]
        size = shape.weight_bytes(item, few=kind == "int4") + cache
        share = size / us / moved if moved else None
        text = f"{us / 1e3:.3f} ms, {size / 1e9:.2f} GB, {size / us / 1e3:.0f} GB/s"
        text += f", {share:.1%} of the bandwidth" if share else ""
        for other, (middle, low, high) in times.ratios.items():
            text += f", {other} / {kind} {middle:.3f} [{low:.3f}, {high:.3f}]"
        text += "".join(f", {other}: {why}" for other, why in failed.items())
        peer_share = (
            (shape.weight_bytes(item, few=False) + cache) / times.us["torch"] / moved
            if moved and "torch" in times.us
            else None
        )
        text += f", torch at {peer_share:.1%}" if peer_share else ""
        report.row(
            f"{name} {kind} b{step.batch} {step.keys} keys", text, ms=us / 1e3, bytes=size,
            share=share, torch_share=peer_share, times=times, layers=shape.layers, difference=error,
        )  # fmt: skip


def _launches(
    title: str, path: Path, shape: Shape, args: argparse.Namespace, report: harness.Report
) -> None:
    """Microseconds of every launch of a run."""
    (request,) = measure.requests_of(path, {"backend": "cuda", "claim": "all"})
    for batch in args.batch:
        for keys in args.keys:
            dims: dict[str, Sequence[int]] = {
                "input_ids": (batch, 1), "attention_mask": (batch, keys),
            }  # fmt: skip
            for k in range(2):
                for w in ("key", "value"):
                    cache = batch, shape.kv_heads, keys, shape.size
                    dims[f"past_key_values.{k}.{w}"] = cache
            sizes = measure.sizes_of(Graph(request), dims)
            for part in measure.parts(backends.get("cuda"), request, sizes):
                with cuda_harness.LoadedPlan(part.plan, part.blobs, part.constants) as loaded:
                    times = loaded.time(part.inputs, 30, within=True)
                asked = [part.requests[key].family for key in part.asked]
                rows = [
                    (family, symbol, us)
                    for family, (symbol, us) in zip(asked, times.launches, strict=True)
                ]
                name = f"{title} b{batch} {keys} keys, 2 layers"
                each = ", ".join(f"{family} {us:.1f}" for family, _, us in rows)
                text = f"{times.total:.1f} us, {len(rows)} launches: {each}"
                report.row(name, text, total=times.total, launches=rows)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("models", nargs="*", default=["1b", "8b"], help=" ".join(decoders.SHAPES))
    parser.add_argument("--weights", nargs="*", choices=_KINDS, default=list(_KINDS))
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--keys", nargs="*", type=int, default=[1024, 8192, 32768])
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--launches", action="store_true")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--folder", type=Path, help="of the weights while it runs")
    args = parser.parse_args()
    gpu = args.backend == "cuda"
    report, moved = harness.Report("decoding", args, device=gpu), None
    if gpu:
        found = bandwidth()
        moved = max(found.values())
        text = ", ".join(f"{n} {v / 1e3:.0f} GB/s" for n, v in found.items())
        report.row("bandwidth", text, **{n: v / 1e3 for n, v in found.items()})
        t = R.torch()
        for module in ("torch._dynamo", "torch._inductor.config"):
            importlib.import_module(module)
        t._dynamo.config.automatic_dynamic_shapes = False
        t._dynamo.config.recompile_limit = 64
        t._inductor.config.coordinate_descent_tuning = True
    for name in args.models:
        try:
            measured(name, args, report, moved)
        except Exception as e:
            report.fail(name, harness.described(e))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
