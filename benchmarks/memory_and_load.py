"""How long a session takes to load, and what memory it holds.

    python -m benchmarks.memory_and_load [NAME|FILE.onnx ...] [--backend cpu|cuda] [--rounds 5]
    python -m benchmarks.memory_and_load --gigabytes 3 [-- OPTIONS OF optimize]

Every session is made in a process of its own: `ours` with Plans and kernels in the cache, `ours
cold` with an empty cache, `ort` by ONNX Runtime alone (with --backend cuda its CUDA provider, where
that is installed). Reported are seconds until the session is there, seconds of its first run, and
what the process then holds more than before: resident bytes, and on a GPU device memory. Models of
the zoo are fp32 on the CPU and fp16 on a GPU.

--gigabytes: the peak memory of `optimize` on a stack of linear layers with so much external data.
Mapped pages of the data files count as resident, so it is an upper bound of what the process itself
holds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import harness
from tests.support import sessions
from tests.support.cuda import driver
from tests.support.cuda.models import feeds, half, typed
from tracea_onnx.support import discovery

_NARROW, _WIDE = 4096, 8192
_LAYER = 4 * _NARROW * _WIDE
MODELS = ("resnet50", "mobilenet_v3", "bert_base", "gpt2")


def write_large(path: Path, layers: int) -> int:
    """A model of `layers` MatMul + Add + Relu with one external file, written layer by layer.

    Returns the bytes of its weights.
    """
    rng = np.random.default_rng(0)
    nodes, tensors, offset = [], [], 0
    with path.with_name(path.name + ".data").open("wb") as data:
        for k in range(layers):
            shape = (_NARROW, _WIDE) if k % 2 == 0 else (_WIDE, _NARROW)
            for name, dims in ((f"w{k}", shape), (f"b{k}", shape[1:])):
                values = rng.standard_normal(dims, dtype=np.float32)
                values *= np.float32(1.4 / np.sqrt(shape[0]))
                data.write(values.tobytes())
                t = TensorProto(
                    name=name,
                    data_type=TensorProto.FLOAT,
                    dims=dims,
                    data_location=TensorProto.EXTERNAL,
                )
                for key, value in (
                    ("location", path.name + ".data"),
                    ("offset", str(offset)),
                    ("length", str(values.nbytes)),
                ):
                    t.external_data.add(key=key, value=value)
                tensors.append(t)
                offset += values.nbytes
            before, after = ("x" if k == 0 else f"v{k - 1}"), ("y" if k == layers - 1 else f"v{k}")
            nodes.append(
                helper.make_node("MatMul", [before, f"w{k}"], [f"p{k}"], name=f"layer{k}/MatMul")
            )
            nodes.append(
                helper.make_node("Add", [f"p{k}", f"b{k}"], [f"s{k}"], name=f"layer{k}/Add")
            )
            nodes.append(helper.make_node("Relu", [f"s{k}"], [after], name=f"layer{k}/Relu"))
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", w])
        for n, w in (("x", _NARROW), ("y", _NARROW if layers % 2 == 0 else _WIDE))
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        str(path),
    )
    return offset


def optimize(arguments: list[str]) -> tuple[int, int, float]:
    """Exit code, peak resident bytes and seconds of `tracea-onnx ...` in a process of its own."""
    began = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "tracea_onnx", *arguments], os.environ
    )
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, time.perf_counter() - began


# --- one session, in this process --------------------------------------------------------------


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _taken() -> int:
    """Bytes of the GPU's memory that are in use, by whomever."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.need_context()
    status = driver.cuda().cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    driver.check(status, "asking for the memory")
    return total.value - free.value


def child(model: Path, kind: str, backend: str, batch: int, sequence: int) -> dict[str, float]:
    """What a session of ours or of ONNX Runtime's takes."""
    import onnxruntime as ort

    import tracea_onnx.provider

    gpu = backend == "cuda"
    taken, resident = _taken() if gpu else 0, _resident()
    began = time.perf_counter()
    made: Any
    if kind.startswith("ours"):
        made = tracea_onnx.provider.create_session(model, {"backend": backend})
    elif gpu:
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise RuntimeError("this ONNX Runtime has no CUDA provider")
        made = ort.InferenceSession(str(model), providers=["CUDAExecutionProvider"])
    else:
        made = sessions.session(model)
    load = time.perf_counter() - began
    x = typed(made, feeds(made, batch, sequence, np.random.default_rng(0)))
    began = time.perf_counter()
    made.run(None, x)
    return {
        "load": load, "first run": time.perf_counter() - began, "resident": _resident() - resident,
        "device": _taken() - taken if gpu else 0,
    }  # fmt: skip


class Loads:
    """Samples of the time to load one kind of session; what else a process told of it."""

    def __init__(self, kind: str, model: Path, cache: Path, args: argparse.Namespace) -> None:
        self.kind, self.model, self.cache, self.args = kind, model, cache, args
        self.told: dict[str, list[float]] = defaultdict(list)

    def __call__(self) -> float:
        with tempfile.TemporaryDirectory() as empty:
            cache = empty if self.kind == "ours cold" else str(self.cache)
            given = [self.kind, self.args.backend, str(self.args.batch), str(self.args.sequence)]
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.memory_and_load",
                    "--child",
                    str(self.model),
                    *given,
                ],
                env={**os.environ, "XDG_CACHE_HOME": cache},
                capture_output=True,
                text=True,
            )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        for what, value in told.items():
            self.told[what].append(value)
        return told["load"] * 1e6


def measure(name: str, folder: Path, args: argparse.Namespace, report: harness.Report) -> None:
    path = Path(name)
    if name in discovery.names("models"):
        full = discovery.module("models", name).build()
        path = folder / f"{name}.onnx"
        onnx.save(half(full) if args.backend == "cuda" else full, str(path))
    kinds = {k: Loads(k, path, folder / "cache", args) for k in (harness.OURS, "ours cold", "ort")}
    failed = {}
    for kind in list(kinds):
        try:
            kinds[kind]()
        except RuntimeError as e:
            failed[kind] = str(e)
            del kinds[kind]
    if harness.OURS not in kinds:
        report.fail(path.stem, failed[harness.OURS])
        return
    for loads in kinds.values():
        loads.told.clear()
    times = harness.interleaved(kinds, rounds=args.rounds)
    times.failed = failed
    report.row(path.stem, times, times=times)
    for kind, loads in kinds.items():
        found = {what: statistics.median(values) for what, values in loads.told.items()}
        text = f"loaded in {found['load']:.2f} s, first run {found['first run']:.3f} s, resident "
        text += f"{found['resident'] / 2**20:.0f} MiB, device {found['device'] / 2**20:.0f} MiB"
        report.row(f"{path.stem}, {kind}", text, **found)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, help="peak memory of optimize instead")
    parser.add_argument("--folder", type=Path, help="for the models while they are needed")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        model, kind, backend, batch, sequence = args.child
        print(json.dumps(child(Path(model), kind, backend, int(batch), int(sequence))))
        return 0
    report = harness.Report("memory_and_load", args, device=args.backend == "cuda")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.gigabytes:
            model = Path(folder) / "large.onnx"
            size = write_large(model, max(1, round(args.gigabytes * 1e9 / _LAYER)))
            options = [] if args.models == list(MODELS) else args.models
            code, peak, seconds = optimize(["optimize", str(model), "--backend", "cpu", *options])
            text = (
                f"model {size / 2**30:.2f} GiB, peak {peak / 2**30:.2f} GiB = {peak / size:.2f} x"
            )
            report.row(
                "optimize", f"{text}, {seconds:.1f} s, exit {code}",
                size=size, peak=peak, seconds=seconds, exit=code,
            )  # fmt: skip
            return code
        for name in args.models:
            try:
                measure(name, Path(folder), args, report)
            except Exception as e:
                report.fail(name, harness.described(e))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
