"""Many threads on several sessions with changing shapes for long, and thousands of sessions made
and dropped: the same bits as one thread, and nothing that grows.

    python -m tools.soak [--threads 16] [--sessions 8] [--shapes 6] [--runs 100000] [--seconds
    0] [--made 2000] [--backend cuda]

Each session has a model of its own, with unknown sizes. One thread computes what each session gives
for each shape; then all threads run sessions and shapes in random order, and compare every bit.
Before, a session meets as many runs at once as it has threads: it keeps what these need. On the CPU
the shapes of that warm-up are so large that the runs overlap. On a GPU each stream context prepares
its launches for each shape, so all threads run every shape of every session at once: the models end
in a Loop of ONNX Runtime's, whose trips (an input, 0 in the measured runs) hold a run until all
others have begun.

After every thousand runs all threads rest, and the live memory of the process is read: what malloc
has given out, and what it and the provider have mapped. A thousand runs of the same models on stock
ONNX Runtime's CPU provider follow, and the memory is read again, so that what ONNX Runtime, Python
and this program keep by themselves stands beside it. Then sessions are made, run once and dropped,
every other one compiled anew, fifty of ours and fifty of stock ONNX Runtime in turn; between them
memory, threads, open files, mappings and temporary files are counted. The first half of both is
warm-up; growth is the Theil-Sen slope of the second, with its 95 % interval. ONNX Runtime's
telemetry, a thread that allocates when it likes, is off.

Exit status 1 when a result differs or something grows: ours alone by more than 1 KiB for 1,000
runs, or by more than 1 KiB for a session; or when the library counts more objects than before, or
the process has more threads, files, mappings or temporary files.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from tools.fuzz.operator_draws import Draw

#: Rows of large runs, seconds that one takes at least, and how often all are begun at once at most.
_LARGE, _LARGEST, _TURN, _TURNS = 512, 1 << 16, 0.01, 20
#: Trips of a Loop, whose body the provider runs, that takes some tens of milliseconds on a GPU.
_TRIPS = 300
#: Bytes of growth that count as none: of 1,000 runs, and of one session.
_PER_THOUSAND, _PER_SESSION = 1024, 1024
#: Runs, and sessions, between two readings.
_RUNS, _MADE = 1000, 50


def _linear(d: Draw) -> None:
    x = d.feed((3, 48))
    for n in (96, 48):
        x = d.add(
            "Gelu",
            d.add(
                "Add", d.add("MatMul", x, d.weight((48 if n == 96 else 96, n), 0.1)), d.weight((n,))
            ),
        )
    d.add("LayerNormalization", x, d.weight((48,)), d.weight((48,)), axis=-1)


def _image(d: Draw) -> None:
    x, c = d.feed((2, 8, 12, 12)), 8
    for n in (16, 24):
        x, c = (
            d.add(
                "Relu", d.add("Conv", x, d.weight((n, c, 3, 3), 0.1), d.weight((n,)), pads=[1] * 4)
            ),
            n,
        )
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
    y = d.add(
        "Concat",
        d.add("Transpose", y, perm=[0, 2, 1]),
        d.add("Transpose", x, perm=[0, 2, 1]),
        axis=2,
    )
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


def waiting(of: ModelProto) -> ModelProto:
    """The model with a Loop after its first output: the input `trips` says how long a run lasts."""
    made: ModelProto = ModelProto.FromString(of.SerializeToString())
    int64, boolean = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes"]),
            helper.make_node("Identity", ["rows"], ["kept"]),
        ],
        "wait",
        [
            helper.make_tensor_value_info(n, t, s)
            for n, t, s in (("trip", int64, []), ("going", boolean, []), ("rows", int64, [1]))
        ],
        [
            helper.make_tensor_value_info("goes", boolean, []),
            helper.make_tensor_value_info("kept", int64, [1]),
        ],
    )
    made.graph.node.append(
        helper.make_node("Shape", [made.graph.output[0].name], ["waits_for"], end=1)
    )
    made.graph.node.append(
        helper.make_node("Loop", ["trips", "", "waits_for"], ["waited"], body=body)
    )
    made.graph.input.append(helper.make_tensor_value_info("trips", int64, []))
    made.graph.output.append(helper.make_tensor_value_info("waited", int64, [1]))
    return made


def inputs(of: ModelProto, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    shapes = {
        i.name: [d.dim_value or rows for d in i.type.tensor_type.shape.dim] for i in of.graph.input
    }
    return {
        k: rng.standard_normal(s).astype(np.float32) if k != "trips" else np.array(0)
        for k, s in shapes.items()
    }


def session(of: ModelProto, backend: str, threads: int) -> Any:
    """backend: of the provider, or "stock" for ONNX Runtime's CPU provider alone."""
    import onnxruntime as ort

    from tracea_onnx import provider

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # it grows in steps of megabytes, whenever one more run than ever before is at work
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if backend == "stock":
        return ort.InferenceSession(
            of.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    made = provider.create_session(
        of.SerializeToString(), {"backend": backend, "claim": "all"}, options
    )
    provider.assert_provider_selected(made)
    return made


# --- what is held


class _Malloc(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = [
        (n, ctypes.c_size_t)
        for n in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Malloc


def counters() -> dict[str, int]:
    """What the provider's library holds, without the prefix `live_`."""
    from tracea_onnx import provider

    return {
        k.removeprefix("live_"): v for k, v in provider.stats().items() if k.startswith("live_")
    }


def live() -> int:
    """Bytes that were allocated and not freed, in all of malloc's arenas, and those that the
    provider has mapped by itself.
    """
    gc.collect()
    mapped = counters()["mapped"]
    found = _libc.mallinfo2()
    return int(found.uordblks) + int(found.hblkhd) + mapped


def of_process() -> dict[str, int]:
    """Threads, open files, mappings and temporary files."""
    own = Path("/proc/self")
    return {
        "threads": len(list((own / "task").iterdir())),
        "files": len(list((own / "fd").iterdir())),
        "mappings": len((own / "maps").read_text().splitlines()),
        "temporary files": sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
    }


@dataclass(frozen=True)
class Slope:
    """Growth for one unit of x, and its 95 % interval."""

    middle: float
    low: float
    high: float

    def times(self, n: float) -> Slope:
        return Slope(self.middle * n, self.low * n, self.high * n)

    def __str__(self) -> str:
        return f"{self.middle:+.0f} [{self.low:+.0f}, {self.high:+.0f}]"


def slope(points: Sequence[tuple[int, int]]) -> Slope:
    """Theil-Sen: the median of the slopes between all pairs of points, and Sen's interval of it.

    One step, however high, does not decide.
    """
    found = sorted(
        (y1 - y0) / (x1 - x0) for k, (x0, y0) in enumerate(points) for x1, y1 in points[k + 1 :]
    )
    if not found:
        return Slope(0.0, 0.0, 0.0)
    n = len(points)
    reach = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = (
        max(0, math.floor((len(found) - reach) / 2)),
        min(len(found) - 1, math.ceil((len(found) + reach) / 2)),
    )
    return Slope(float(np.median(found)), found[low], found[high])


@dataclass
class Growth:
    """Live bytes after so many units: read right before each part, and right after it."""

    points: list[tuple[int, int]] = field(default_factory=list)

    def add(self, units: int, grown: int) -> None:
        x, y = self.points[-1] if self.points else (0, 0)
        self.points.append((x + units, y + grown))

    def late(self) -> list[tuple[int, int]]:
        return self.points[len(self.points) // 2 :]


class Crew:
    """Threads that work together, rest, and work again: none is made or ended between two readings
    of memory.
    """

    def __init__(self, threads: int) -> None:
        self.work: Callable[[int], None] | None = None
        self._begin, self._end = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
        self._all = [threading.Thread(target=self._serve, args=(n,)) for n in range(threads)]
        for t in self._all:
            t.start()

    def _serve(self, number: int) -> None:
        while True:
            self._begin.wait()
            if self.work is None:
                return
            try:
                self.work(number)
            finally:
                self._end.wait()

    def do(self, work: Callable[[int], None]) -> None:
        self.work = work
        self._begin.wait()
        self._end.wait()

    def dismiss(self) -> None:
        self.work = None
        self._begin.wait()
        for t in self._all:
            t.join()


# --- runs


def _large(s: Any, m: ModelProto) -> dict[str, Any]:
    """Inputs whose run takes longer than the turn that a processor gives a thread."""
    rows = _LARGE
    while True:
        fed = inputs(m, rows)
        began = time.monotonic()
        s.run(None, fed)
        if time.monotonic() - began > _TURN or rows >= _LARGEST:
            return fed
        rows *= 2


def _warm(
    crew: Crew, sessions: Sequence[Any], models: Sequence[ModelProto], threads: int, backend: str
) -> None:
    """Lets all threads run each session at once, until it has what as many runs need.

    On one processor, which each run gives to the next before it has ended.
    """
    allowed = os.sched_getaffinity(0)
    for s, m in zip(sessions, models, strict=True):
        before = counters()["states"]
        fed, gate = _large(s, m), threading.Barrier(threads)

        def run(_: int, s: Any = s, fed: Any = fed, gate: Any = gate) -> None:
            os.sched_setaffinity(0, {min(allowed)})
            gate.wait()
            s.run(None, fed)
            os.sched_setaffinity(0, allowed)

        for turn in range(_TURNS):
            crew.do(run)
            if counters()["states"] - before >= threads or (backend == "stock" and turn == 2):
                break


def _warm_contexts(
    crew: Crew, sessions: Sequence[Any], fed: Sequence[Sequence[dict[str, Any]]], threads: int
) -> None:
    """Lets every stream context of each session meet every shape, twice: the second run records a
    graph.
    """
    for s, of_session in zip(sessions, fed, strict=True):
        before = counters()["prepared"]
        for shape in of_session:
            held, gate = {**shape, "trips": np.array(_TRIPS)}, threading.Barrier(threads)

            def run(_: int, s: Any = s, held: Any = held, gate: Any = gate) -> None:
                for _ in range(2):
                    gate.wait()
                    s.run(None, held)

            crew.do(run)
        print(
            f"soak: {counters()['prepared'] - before} launch lists prepared of {threads} contexts "
            f"for {len(of_session)} shapes",
            flush=True,
        )


def soak(args: argparse.Namespace) -> bool:
    models = [
        waiting(model(k)) if args.backend == "cuda" else model(k) for k in range(args.sessions)
    ]
    rows = [1, 2, 3, 5, 8, 13, 21, 34][: args.shapes]
    fed = [[inputs(m, n) for n in rows] for m in models]
    legs = {
        leg: [session(m, leg, 1 + k % 2) for k, m in enumerate(models)]
        for leg in (args.backend, "stock")
    }
    growth = {leg: Growth() for leg in legs}
    randoms = [Random(n) for n in range(args.threads)]
    wrong: list[str] = []
    each = max(1, _RUNS // args.threads)

    def work(number: int, leg: str) -> None:
        for _ in range(each):
            k, j = randoms[number].randrange(len(models)), randoms[number].randrange(len(rows))
            try:
                got = legs[leg][k].run(None, fed[k][j])
                same = leg == "stock" or all(
                    np.array_equal(a, b) for a, b in zip(got, want[leg][k][j], strict=True)
                )
            except Exception as e:  # reported, and the end of the runs
                wrong.append(f"session {k} with {rows[j]} rows: {type(e).__name__}: {e}")
                return
            if not same:
                wrong.append(f"session {k} with {rows[j]} rows differs from one thread")

    crew = Crew(args.threads)
    for leg, sessions in legs.items():
        if args.backend == "cuda":
            _warm_contexts(crew, sessions, fed, args.threads)
        else:
            _warm(crew, sessions, models, args.threads, leg)
    want = {
        leg: [[s.run(None, f) for f in fed[k]] for k, s in enumerate(sessions)]
        for leg, sessions in legs.items()
    }
    began, done, halves = time.monotonic(), 0, {0: counters()}
    while (
        done < args.runs
        and not wrong
        and not (args.seconds and time.monotonic() - began > args.seconds)
    ):
        for leg in legs:
            before = live()
            crew.do(lambda n, leg=leg: work(n, leg))  # type: ignore[misc]
            growth[leg].add(each * args.threads, live() - before)
        done += each * args.threads
        halves[done] = counters()
    took, after = time.monotonic() - began, counters()
    half = halves[min(halves, key=lambda n: abs(n - done / 2))]
    crew.dismiss()
    ours, stock = (slope(growth[leg].late()).times(1000) for leg in legs)
    more = {k: (half[k], after[k]) for k in _HELD if after[k] > half[k]}
    fine = not wrong and not more and ours.middle <= _PER_THOUSAND
    said = wrong[0] if wrong else "all bits as one thread"
    who = f"{args.threads} threads of {len(models)} sessions with {len(rows)} shapes"
    print(
        f"soak: {done} runs by {who} in {took:.0f} s, as many of stock ONNX Runtime among them: "
        f"{said}"
    )
    print(
        f"soak: bytes for 1,000 runs {ours} (bar {_PER_THOUSAND}), stock ONNX Runtime {stock}; of "
        f"{len(growth[args.backend].late())} readings each"
    )
    print(
        "soak: held after half of them -> in the end: "
        + ", ".join(f"{k} {half[k]} -> {v}" for k, v in after.items() if v or half[k])
    )
    print(
        f"soak: runs {'ok' if fine else 'FAILED'}" + (f": more {', '.join(more)}" if more else ""),
        flush=True,
    )
    return fine


#: Counters that must not grow with runs once all that run at once have met. Others fill up slowly,
#: to a bound: what a run needs for each shape, recorded graphs.
_HELD = ("sessions", "partitions", "bounds", "states", "stream_contexts", "modules")


# --- sessions


def _unlike(of: ModelProto, number: int) -> ModelProto:
    """A model that no cache holds."""
    of = ModelProto.FromString(of.SerializeToString())
    of.graph.initializer.append(
        helper.make_tensor("unused", TensorProto.FLOAT, [1], [float(number)])
    )
    of.graph.node.append(helper.make_node("Identity", ["unused"], ["also"]))
    of.graph.output.append(onnx.ValueInfoProto(name="also"))
    of.graph.node[0].name = f"compiled_{number}"
    return of


def churn(args: argparse.Namespace) -> bool:
    legs = (args.backend, "stock")
    growth = {leg: Growth() for leg in legs}
    seen: list[dict[str, int]] = []
    base = [model(k) for k in range(len(_KINDS))]
    fed = [[inputs(m, 1 + n) for n in range(5)] for m in base]
    began, first = time.monotonic(), {**of_process(), **counters()}
    for start in range(0, args.made, _MADE):
        for leg in legs:
            before = live()
            for number in range(start, min(start + _MADE, args.made)):
                of = base[number % len(base)]
                made = session(_unlike(of, number) if number % 2 else of, leg, 2)
                made.run(None, fed[number % len(base)][number % 5])
                del made
            growth[leg].add(min(_MADE, args.made - start), live() - before)
        seen.append({**of_process(), **counters()})
    took = time.monotonic() - began
    ours, stock = (slope(growth[leg].late()) for leg in legs)
    half, last = seen[len(seen) // 2], seen[-1]
    must = {k: v for k, v in last.items() if k not in ("memory", "mapped", "pool_blocks")}
    more = {k: (half[k], v) for k, v in must.items() if v > half[k] + _SLACK.get(k, 0)}
    fine = not more and ours.middle <= _PER_SESSION
    print(
        f"soak: {args.made} sessions made and dropped in {took:.0f} s, as many of stock ONNX "
        "Runtime among them"
    )
    print(
        f"soak: bytes for each {ours} (bar {_PER_SESSION}), stock ONNX Runtime {stock}; of "
        f"{len(growth[args.backend].late())} readings each"
    )
    print(
        "soak: first, after half of them, in the end: "
        + ", ".join(f"{k} {first[k]}, {half[k]}, {v}" for k, v in last.items() if v or half[k])
    )
    print(
        f"soak: sessions {'ok' if fine else 'FAILED'}"
        + (f": more {', '.join(more)}" if more else ""),
        flush=True,
    )
    return fine


#: By how many these differ from one reading to the next: malloc's mappings come and go, and a
#: cubin's name goes when the next one is loaded.
_SLACK = {"mappings": 16, "modules": 4, "threads": 1, "files": 1}

#: What malloc keeps for each thread counts as live: it keeps nothing here.
_TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0:glibc.malloc.arena_max=1"
}


def _in_a_folder_of_its_own(arguments: Sequence[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    try:
        own = {
            "TMPDIR": str(folder / "temporary"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_DATA_HOME": str(folder / "data"),
        }
        Path(own["TMPDIR"]).mkdir()
        environment = {
            "OPENBLAS_NUM_THREADS": "1",
            **os.environ,
            **_TUNED,
            **own,
            "TRACEA_SOAK": str(os.getpid()),
        }
        return subprocess.run(
            [sys.executable, "-m", "tools.soak", *arguments], env=environment
        ).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--shapes", type=int, default=6)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument(
        "--seconds", type=float, default=0, help="stop the runs after so many (0: never)"
    )
    parser.add_argument("--made", type=int, default=2000, help="sessions made and dropped")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    if os.environ.get("TRACEA_SOAK") != str(os.getppid()):
        return _in_a_folder_of_its_own(sys.argv[1:])
    import onnxruntime as ort

    ort.disable_telemetry_events()
    good = (not args.runs or soak(args)), (not args.made or churn(args))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
