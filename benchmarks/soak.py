"""Many threads on several sessions with changing shapes for long, and thousands of sessions made and dropped: the same bits as one thread, and nothing that grows.

    python -m benchmarks.soak [--threads 16] [--sessions 8] [--shapes 6] [--runs 100000] [--seconds 0] [--made 2000] [--backend cuda]

Each session has a model of its own, with unknown sizes. One thread computes what each session gives for each shape; then all threads run sessions and shapes in
random order, and compare every bit. Before, all of them run one session at a time, with a shape so large that all run at once: a session keeps what as many
runs at once need.
The live memory of the process (what malloc has given out, and what it mapped) is read after every thousandth run. Then sessions are made, run once and dropped,
every other one compiled anew: memory, threads and open files are read every fiftieth. The first half of both is warm-up. Exit status 1 when a result differs or
something grows: by more than 1 KiB for 1,000 runs, or by more than 1 KiB for a session.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp(prefix="soak"))

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from benchmarks.operator_draws import Draw

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Rows whose run outlasts the start of the others'.
_LARGE = 512
#: Bytes of growth that count as none: of 1,000 runs, and of one session.
_PER_THOUSAND, _PER_SESSION = 1024, 1024


def _linear(d: Draw) -> None:
    x = d.feed((3, 48))
    for n in (96, 48):
        x = d.add("Gelu", d.add("Add", d.add("MatMul", x, d.weight((48 if n == 96 else 96, n), 0.1)), d.weight((n,))))
    d.add("LayerNormalization", x, d.weight((48,)), d.weight((48,)), axis=-1)


def _image(d: Draw) -> None:
    x, c = d.feed((2, 8, 12, 12)), 8
    for n in (16, 24):
        x, c = d.add("Relu", d.add("Conv", x, d.weight((n, c, 3, 3), 0.1), d.weight((n,)), pads=[1] * 4)), n
    x = d.add("Flatten", d.add("GlobalAveragePool", x))
    d.add("Softmax", d.add("Gemm", x, d.weight((10, c)), d.weight((10,)), transB=1), axis=-1)


def _heads(d: Draw) -> None:
    x = d.feed((2, 7, 32))
    q, k, v = (d.add("MatMul", x, d.weight((32, 32), 0.2)) for _ in range(3))
    y = d.add("Attention", q, k, v, q_num_heads=4, kv_num_heads=4)
    d.add("Add", x, d.add("MatMul", y, d.weight((32, 32), 0.2)))


def _moves(d: Draw) -> None:
    x = d.feed((4, 6, 10))
    y = d.add("Mul", d.add("Sigmoid", x), x)
    y = d.add("Concat", d.add("Transpose", y, perm=[0, 2, 1]), d.add("Transpose", x, perm=[0, 2, 1]), axis=2)
    d.add("ReduceMean", d.add("Exp", d.add("Tanh", y)), d.ints(-1), keepdims=1)


_KINDS = (_linear, _image, _heads, _moves)


def model(number: int) -> ModelProto:
    """A small model whose first axis has any size."""
    d = Draw(Random(number), np.random.default_rng(number))
    _KINDS[number % len(_KINDS)](d)
    made = d.model(symbolic=False)
    for i in made.graph.input:
        i.type.tensor_type.shape.dim[0].Clear()
        i.type.tensor_type.shape.dim[0].dim_param = "n"
    return made


def inputs(of: ModelProto, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    shapes = {i.name: [d.dim_value or rows for d in i.type.tensor_type.shape.dim] for i in of.graph.input}
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def session(of: ModelProto, backend: str, threads: int) -> Any:
    import onnxruntime as ort

    from tracea_onnx import provider

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False  # it grows in steps of megabytes, whenever one more run than ever before is at work
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made = provider.create_session(of.SerializeToString(), {"backend": backend, "claim": "all"}, options)
    provider.assert_provider_selected(made)
    return made


class _Malloc(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = [(n, ctypes.c_size_t) for n in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Malloc


def live() -> int:
    """Bytes that were allocated and not freed, in all of malloc's arenas."""
    found = _libc.mallinfo2()
    return int(found.uordblks) + int(found.hblkhd)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def threads_and_files() -> tuple[int, int]:
    return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))


def slope(points: Sequence[tuple[int, int]]) -> float:
    """Bytes for each run: between the means of the first and of the last third, so that one page more or less does not decide."""
    if len(points) < 6:
        return 0.0
    third = len(points) // 3
    (x0, y0), (x1, y1) = (np.mean(np.array(part, np.float64), axis=0) for part in (points[:third], points[-third:]))
    return float((y1 - y0) / max(x1 - x0, 1.0))


def soak(args: argparse.Namespace) -> bool:
    models = [model(k) for k in range(args.sessions)]
    sessions = [session(m, args.backend, 1 + k % 2) for k, m in enumerate(models)]
    rows = [1, 2, 3, 5, 8, 13, 21, 34][: args.shapes]
    fed = [[inputs(m, n) for n in rows] for m in models]
    names = [[o.name for o in s.get_outputs()] for s in sessions]
    want = [[s.run(names[k], f) for f in fed[k]] for k, s in enumerate(sessions)]
    left, done, lock = args.runs, 0, threading.Lock()
    wrong: list[str] = []
    points: list[tuple[int, int]] = []
    began = time.monotonic()

    def work(number: int) -> None:
        nonlocal left, done
        random = Random(number)
        while not wrong:
            with lock:
                if left <= 0 or (args.seconds and time.monotonic() - began > args.seconds):
                    return
                left -= 1
            k, j = random.randrange(len(sessions)), random.randrange(len(rows))
            try:
                got = sessions[k].run(names[k], fed[k][j])
            except Exception as e:  # reported, and the end of the run
                wrong.append(f"session {k} with {rows[j]} rows: {type(e).__name__}: {e}")
                return
            if not all(np.array_equal(a, b) for a, b in zip(got, want[k][j], strict=True)):
                wrong.append(f"session {k} with {rows[j]} rows differs from one thread")
            del got
            with lock:
                done += 1
                if done % 1000 == 0:
                    points.append((done, live()))

    large = [inputs(m, _LARGE) for m in models]

    def together(number: int) -> None:
        for k, s in enumerate(sessions):
            for _ in range(3):
                gate.wait()
                s.run(names[k], large[k])

    gate = threading.Barrier(args.threads)
    for target in (together, work):
        began = time.monotonic()
        workers = [threading.Thread(target=target, args=(n,)) for n in range(args.threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    warm = [p for p in points if p[0] > done // 2]
    growth = slope(warm) * 1000
    fine = not wrong and growth <= _PER_THOUSAND
    said = wrong[0] if wrong else "all bits as one thread"
    print(f"soak: {done} runs by {args.threads} threads of {len(sessions)} sessions with {len(rows)} shapes in {time.monotonic() - began:.0f} s: {said}; "
          f"{growth:+.0f} bytes for 1,000 runs, {resident() >> 20} MiB: {'ok' if fine else 'FAILED'}", flush=True)  # fmt: skip
    return fine


def churn(args: argparse.Namespace) -> bool:
    points: list[tuple[int, int]] = []
    counts: list[tuple[int, int]] = []
    began = time.monotonic()
    base = [model(k) for k in range(len(_KINDS))]
    for number in range(args.made):
        of = base[number % len(base)]
        if number % 2:  # one that no cache holds
            of = ModelProto.FromString(of.SerializeToString())
            of.graph.initializer.append(helper.make_tensor("unused", TensorProto.FLOAT, [1], [float(number)]))
            of.graph.node.append(helper.make_node("Identity", ["unused"], ["also"]))
            of.graph.output.append(onnx.ValueInfoProto(name="also"))
            of.graph.node[0].name = f"compiled_{number}"
        made = session(of, args.backend, 2)
        made.run(None, inputs(of, 1 + number % 5))
        del made
        if number % 50 == 49:
            gc.collect()
            points.append((number, live()))
            counts.append(threads_and_files())
    half = counts[len(counts) // 2 :] or [(0, 0)]
    growth = slope(points[len(points) // 2 :])
    steady = max(c[0] for c in half) <= half[0][0] + 1 and max(c[1] for c in half) <= half[0][1] + 1
    fine = steady and growth <= _PER_SESSION
    print(f"soak: {args.made} sessions made and dropped in {time.monotonic() - began:.0f} s: {growth:+.0f} bytes for each, "
          f"threads {half[0][0]} -> {half[-1][0]}, files {half[0][1]} -> {half[-1][1]}, {resident() >> 20} MiB: {'ok' if fine else 'FAILED'}", flush=True)  # fmt: skip
    return fine


#: What malloc keeps for each thread counts as live: it keeps nothing here.
_TUNED = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0:glibc.malloc.arena_max=1"}


def main() -> int:
    if "GLIBC_TUNABLES" not in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.soak", *sys.argv[1:]], {**os.environ, **_TUNED})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--shapes", type=int, default=6)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0, help="stop the runs after so many (0: never)")
    parser.add_argument("--made", type=int, default=2000, help="sessions made and dropped")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    good = (not args.runs or soak(args)), (not args.made or churn(args))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
