"""What a change of the kernels makes of whole models: two checkouts in one process.

    python -m benchmarks.revisions BEFORE [NAME|FILE.onnx ...] [--batch 1 32]
                                          [--precision fp16 fp32]

BEFORE is the other checkout, with its native library. Each compiles the model into a pack by its
own code; this process loads both packs with its own native library, compares their results, and
times them in random order. Ratios are the time before over the time now (above 1: faster now).
Models whose packs are equal are not timed. Files are taken as they are.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks import harness
from tests.support.cuda.models import NVIDIA, Bound, feeds, half, typed
from tracea_onnx import provider
from tracea_onnx.support import discovery

_ROOT = Path(__file__).resolve().parents[1]
_PACK = """
import sys
from tracea_onnx import provider
from tracea_onnx.compiler.partition_compiler import PRODUCER
from tracea_onnx.plan.builder import merge_packs
try:
    from tracea_onnx.compiler.compile_requests import recording
except ImportError:  # of an earlier revision
    from tracea_onnx.compiler.partition_compiler import recording
with recording() as packs:
    provider.create_session(sys.argv[1], {"backend": "cuda"})
open(sys.argv[2], "wb").write(merge_packs(packs, PRODUCER))
"""


@dataclass(frozen=True)
class Case:
    title: str
    model: Path
    packs: dict[str, Path]


def prepared(name: str, precision: str, trees: dict[str, Path], folder: Path) -> Case:
    zoo = name in discovery.names("models")
    title = f"{name if zoo else Path(name).stem} {precision}" if zoo else Path(name).stem
    path = folder / f"{title}.onnx" if zoo else Path(name)
    if zoo:
        full = discovery.module("models", name).build()
        onnx.save(half(full) if precision == "fp16" else full, path)
    packs = {}
    for which, tree in trees.items():
        packs[which] = folder / f"{title}.{which}.pack"
        subprocess.run(
            [sys.executable, "-c", _PACK, path, packs[which]],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": f"{tree}:{os.environ.get('PYTHONPATH', '')}"},
            check=True,
            capture_output=True,
            text=True,
        )
    return Case(title, path, packs)


def timed(case: Case, batch: int, sequence: int, seconds: float, report: harness.Report) -> None:
    digests = {hashlib.sha256(p.read_bytes()).digest() for p in case.packs.values()}
    title = f"{case.title} b{batch} s{sequence}"
    if len(digests) == 1:
        report.row(title, "equal packs")
        return
    asked = provider.stats()["compile_requests"]
    made = {
        which: provider.create_session(case.model, {"backend": "cuda", "kernel_pack": str(pack)})
        for which, pack in case.packs.items()
    }
    if provider.stats()["compile_requests"] != asked:
        report.fail(title, "a pack does not have all of the model")
        return
    first = made[harness.OURS]
    x = feeds(first, batch, sequence, np.random.default_rng(0))
    x = typed(first, x)
    want = first.run(None, x)
    bound = {which: Bound(s, x, [w.shape for w in want], NVIDIA) for which, s in made.items()}
    for run in bound.values():
        for _ in range(3):  # the third run replays a graph
            run()
    error = max(run.error(want) for run in bound.values())
    samplers = {which: harness.run_sampler(run) for which, run in bound.items()}
    times = harness.interleaved(samplers, seconds=seconds)
    report.row(title, f"{times}, difference {error:.1e}", times=times, difference=error)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("models", nargs="*", help="names of the zoo, .onnx files")
    parser.add_argument("--precision", nargs="*", default=["fp16", "fp32"])
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--sequence", nargs="*", type=int, default=[128])
    parser.add_argument("--seconds", type=float, default=2.0, help="at least, for each row")
    args = parser.parse_args()
    report = harness.Report("revisions", args, device=True)
    ort.set_default_logger_severity(3)
    names = args.models or [n for n in discovery.names("models") if n != "demo"]
    wanted = [
        (name, precision)
        for name in names
        for precision in (args.precision if name in discovery.names("models") else [""])
    ]
    trees = {"before": args.before.resolve(), harness.OURS: _ROOT}
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(8) as pool:
        made = [(item, pool.submit(prepared, *item, trees, Path(scratch))) for item in wanted]
        wait([future for _, future in made])  # compilers beside would disturb what is timed
        for (name, precision), future in made:
            try:
                case: Any = future.result()
                for batch in args.batch:
                    for sequence in args.sequence:
                        timed(case, batch, sequence, args.seconds, report)
            except subprocess.CalledProcessError as e:
                report.fail(f"{name} {precision}", (e.stderr or "").strip().splitlines()[-1])
            except Exception as e:  # one model that does not run must not hide the others
                report.fail(f"{name} {precision}", harness.described(e))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
