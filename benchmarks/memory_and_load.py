"""How long a session takes to load, and what memory it holds.

    python -m benchmarks.memory_and_load [NAME|FILE.onnx ...] [--backend cpu|cuda] [--rounds 5]
        [--shapes 1000] [--peer NAME=LIBRARY.so|NAME=PYTHON:PROVIDER ...]
    python -m benchmarks.memory_and_load --gigabytes 3 [-- OPTIONS OF optimize]
    python -m benchmarks.memory_and_load --vit 32x1280 [-- OPTIONS OF optimize]

Every session is made in a process of its own (`one_session.py`): `ours` with Plans and kernels in
the cache, `ours cold` with an empty one, `ort` by ONNX Runtime alone (with --backend cuda its CUDA
provider), and by each --peer: the plugin provider of a library, or a provider that the ONNX Runtime
of another Python has. Reported are seconds until the session is there and of its first run, by the
wall clock and of the processors (all threads), and what the process then holds more than before:
resident bytes, their peak, device memory. Ratios are ours over a peer's, of samples of one round:
below 1 ours takes less.

--shapes: runs of as many different batches and lengths, and what is held after 1, 10, 100 and 1000.
Models of the zoo are fp32 on the CPU and fp16 on a GPU.

--gigabytes: the peak memory of `optimize` on a stack of linear layers with so much external data.
Mapped pages of the data files count as resident, so it is an upper bound of what the process itself
holds. --vit: the time of `optimize --precision fp16` on a vision transformer of so many blocks of
that width (32x1280 is SAM's ViT-H, but for its windows), some of whose values are beyond fp16's
range, so that nodes must stay fp32.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tracea_onnx
from benchmarks import harness
from tests.support.cuda.models import half
from tracea_onnx.support import discovery

_NARROW, _WIDE = 4096, 8192
_BYTES = ("resident", "peak", "device")
_LAYER = 4 * _NARROW * _WIDE
MODELS = ("resnet50", "mobilenet_v3", "minilm", "bert_base", "gpt2")


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


def optimize(arguments: list[str]) -> tuple[int, int, float, float]:
    """Exit code, peak resident bytes, seconds and seconds of processors of `tracea-onnx ...` in a
    process of its own.
    """
    began = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "tracea_onnx", *arguments], os.environ
    )
    _, status, usage = os.wait4(pid, 0)
    seconds, processors = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, seconds, processors


def write_vit(path: Path, blocks: int, width: int, image: int) -> int:
    """A vision transformer with external data, in three of whose blocks hidden values leave fp16's
    range. Returns the bytes of its weights.
    """
    model = discovery.module("models", "vit_b16").build(
        image=image, layers=blocks, hidden=width, heads=width // 64, inner=4 * width
    )
    for k in {1, blocks // 2, blocks - 1}:
        for part, factor in (("fc1", 3e4), ("fc2", 1 / 3e4)):
            weight = next(
                t
                for t in model.graph.initializer
                if f"blocks.{k}." in t.name and part in t.name and t.name.endswith("weight")
            )
            scaled = numpy_helper.to_array(weight) * np.float32(factor)
            weight.CopyFrom(numpy_helper.from_array(scaled, weight.name))
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    onnx.save(model, str(path), save_as_external_data=True, location=f"{path.name}.data")
    return size


# --- sessions, each in a process of its own -------------------------------------------------------


def once(kind: str, model: Path, cache: Path, args: argparse.Namespace) -> dict[str, float]:
    """What one process told of its session."""
    peers = dict(p.split("=", 1) for p in args.peer)
    python, _, provider = peers.get(kind, "").rpartition(":")
    given = {
        "model": str(model),
        "kind": provider or kind.split()[0],
        **{k: vars(args)[k] for k in ("backend", "threads", "batch", "sequence", "shapes")},
    }
    with tempfile.TemporaryDirectory() as empty:
        env = {**os.environ, "XDG_CACHE_HOME": empty if kind == "ours cold" else str(cache)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        root = Path(__file__).resolve().parents[1]
        env["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [env.get("PYTHONPATH")])])
        done = subprocess.run(
            [python or sys.executable, str(root / "benchmarks/one_session.py"), json.dumps(given)],
            env=env, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1][:300])
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def measure(name: str, folder: Path, args: argparse.Namespace, report: harness.Report) -> None:
    path = Path(name)
    if name in discovery.names("models"):
        full = discovery.module("models", name).build()
        path = folder / f"{name}.onnx"
        onnx.save(half(full) if args.backend == "cuda" else full, str(path))
    kinds = [harness.OURS, "ours cold", "ort", *(p.split("=", 1)[0] for p in args.peer)]
    for kind in list(kinds):  # which fills the cache, too
        try:
            once(kind, path, folder / "cache", argparse.Namespace(**{**vars(args), "shapes": 0}))
        except RuntimeError as e:
            report.fail(f"{path.stem}, {kind}", e)
            kinds.remove(kind)
    told: dict[str, dict[str, list[float]]] = {k: defaultdict(list) for k in kinds}
    random = Random(0)
    for _ in range(args.rounds):
        for kind in random.sample(kinds, len(kinds)):
            for what, value in once(kind, path, folder / "cache", args).items():
                told[kind][what].append(value)
    for kind in kinds:
        found = {what: statistics.median(values) for what, values in told[kind].items()}
        ratios = {
            f"{mine} / {kind}": {
                what: harness.median_interval(
                    [a / b for a, b in zip(told[mine][what], values, strict=True) if b > 0]
                )
                for what, values in told[kind].items()
                if any(v > 0 for v in values)
            }
            for mine in (harness.OURS, "ours cold")
            if not kind.startswith(harness.OURS) and mine in kinds
        }
        text = ", ".join(
            f"{what} {value / 2**20:.0f} MiB" if what.split()[0] in _BYTES else
            f"{what} {value:.3f} s"
            for what, value in found.items()
        )  # fmt: skip
        report.row(f"{path.stem}, {kind}", text, **found, ratios=ratios)
        for pair, by_what in ratios.items():
            for what, (middle, low, high) in by_what.items():
                print(f"    {pair}, {what}: {middle:.3f} [{low:.3f}, {high:.3f}]")


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of a session")
    parser.add_argument("--batch", type=int, default=1, help="of the first run")
    parser.add_argument("--sequence", type=int, default=128, help="of the first run")
    parser.add_argument("--shapes", type=int, default=0, help="runs of as many more shapes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=WHAT",
        help="another provider: a library, or PYTHON:PROVIDER",
    )  # fmt: skip
    parser.add_argument("--gigabytes", type=float, help="peak memory of optimize instead")
    parser.add_argument("--vit", metavar="BLOCKSxWIDTH", help="time of optimize instead")
    parser.add_argument("--image", type=int, default=224, help="of --vit, pixels of a side")
    parser.add_argument("--folder", type=Path, help="for the models while they are needed")
    args = parser.parse_args()
    report = harness.Report("memory_and_load", args, device=args.backend == "cuda")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.gigabytes or args.vit:
            model = Path(folder) / "large.onnx"
            if args.vit:
                blocks, width = map(int, args.vit.split("x"))
                size = write_vit(model, blocks, width, args.image)
                options = ["--precision", "fp16"]
            else:
                size = write_large(model, max(1, round(args.gigabytes * 1e9 / _LAYER)))
                options = []
            options += [] if args.models == list(MODELS) else args.models
            code, peak, seconds, processors = optimize(
                ["optimize", str(model), "-o", str(model.with_name("made.onnx")),
                 "--backend", "cpu", *options]
            )  # fmt: skip
            text = (
                f"model {size / 2**30:.2f} GiB, peak {peak / 2**30:.2f} GiB = {peak / size:.2f} x"
            )
            report.row(
                "optimize", f"{text}, {seconds:.1f} s ({processors:.1f} s CPU), exit {code}",
                size=size, peak=peak, seconds=seconds, processors=processors, exit=code,
            )  # fmt: skip
            return code
        folders = [discovery.folder(kind) for kind in ("fusion_rules", "scheduler", "kernels")]
        for place in (Path(tracea_onnx.__file__).parent, *folders):
            compileall.compile_dir(place, quiet=2)  # as an installer does
        for name in args.models:
            try:
                measure(name, Path(folder), args, report)
            except Exception as e:
                report.fail(name, harness.described(e))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
