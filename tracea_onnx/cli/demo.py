"""tracea-onnx demo: optimize a small model that ships with the project, run it on the provider,
compare with ONNX Runtime.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tracea_onnx.cli import options
from tracea_onnx.cli.progress import Bar
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import optimizer, report
from tracea_onnx.support import discovery
from tracea_onnx.verify import verification

_SECONDS = 3.0


def add(subparsers: options.Subparsers) -> None:
    """Add the command and its options."""
    p = subparsers.add_parser(
        "demo",
        help="optimize a small model, run it on the provider, show the speed-up",
        description=__doc__,
    )
    p.add_argument("--threads", type=int, default=1, help="threads of both sessions (default: 1)")
    options.add_json(p)
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from tracea_onnx.provider import assert_provider_selected, create_session, register

    register()
    model = discovery.module("models", "demo").build()
    bar = Bar()
    with tempfile.TemporaryDirectory() as folder:
        original, optimized = Path(folder) / "demo.onnx", Path(folder) / "demo.tracea.onnx"
        model_file.save(model_file.Source(model), original)
        result = optimizer.optimize(original, output=optimized, progress=bar)
        bar.done()
        ours = create_session(optimized, session_options=_options(args.threads))
        assert_provider_selected(ours)
        theirs = _stock(original, args.threads)
        reference = model_file.load(original)
        checked = verification.verify(
            reference,
            model_file.load(optimized),
            providers=["TraceaExecutionProvider", "CPUExecutionProvider"],
        )
        feeds = _feeds(theirs)
        seconds = _paired(lambda: ours.run(None, feeds), lambda: theirs.run(None, feeds))
    result.report.model, result.report.files = "demo", []
    worst = max(o.max_abs for o in checked.outputs)
    options.say(
        [
            *report.text(result.report, verbose=True),
            "",
            (
                f"on the provider: largest difference from ONNX Runtime {worst:.2g} "
                f"({'within' if checked.ok else 'BEYOND'} bounds)"
            ),
            (
                f"time per run ({args.threads} threads): ONNX Runtime {seconds[1] * 1e3:.2f} ms, "
                f"tracea {seconds[0] * 1e3:.2f} ms"
            ),
            f"speed-up {seconds[1] / seconds[0]:.2f}x",
        ]
    )
    if args.json:
        timing = {
            "ort_ms": seconds[1] * 1e3,
            "tracea_ms": seconds[0] * 1e3,
            "speedup": seconds[1] / seconds[0],
        }
        options.emit({**result.report.to_json(), "provider": checked.to_json(), "timing": timing})
    return 0 if checked.ok else 4


def _options(threads: int) -> Any:
    import onnxruntime as ort

    out = ort.SessionOptions()
    out.intra_op_num_threads = threads
    return out


def _stock(path: Path, threads: int) -> Any:
    import onnxruntime as ort

    return ort.InferenceSession(str(path), _options(threads), providers=["CPUExecutionProvider"])


def _feeds(session: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        i.name: rng.standard_normal([d if isinstance(d, int) else 1 for d in i.shape]).astype(
            np.float32
        )
        for i in session.get_inputs()
    }


def _paired(a: Callable[[], object], b: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of both, run in turn so that whatever else the machine does hits both
    alike.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for f in (a, b, a, b):
        f()
    until = time.perf_counter() + _SECONDS
    while time.perf_counter() < until or len(times[0]) < 5:
        for f, out in ((a, times[0]), (b, times[1])):
            start = time.perf_counter()
            f()
            out.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])
