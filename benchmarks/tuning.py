"""What `tracea-onnx tune` gains for a model on this GPU, and how long it takes.

    python -m benchmarks.tuning [resnet50 bert_base FILE.onnx ...] [--batch 1 32] [--seconds 60]

Models of the zoo in fp16. The record goes to a folder of its own, so that what was tuned before is
neither used nor changed. `before` and `after` are whole runs as one CUDA graph, in turn.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import onnx

from benchmarks import harness
from tests.support.cuda.models import half, input_shapes
from tracea_onnx.support import discovery
from tracea_onnx.tuning import measure

MODELS = ("resnet50", "efficientnet_b0", "bert_base", "gpt2")


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--batch", nargs="*", type=int, default=[1])
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0, help="of search, for each model")
    args = parser.parse_args()
    report = harness.Report("tuning", args, device=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder
        for name in args.models:
            zoo = name in discovery.names("models")
            model = half(discovery.module("models", name).build()) if zoo else onnx.load(name)
            path = Path(folder) / f"{Path(name).stem}.onnx"
            onnx.save(model, str(path))
            for batch in args.batch:
                title = f"{Path(name).stem} b{batch}"
                shapes = input_shapes(model, batch, args.sequence)
                began = time.perf_counter()
                try:
                    found = measure.tune(
                        path, shapes, backend="cuda", budget=measure.Budget(args.seconds)
                    )
                except Exception as e:
                    report.fail(title, harness.described(e))
                    continue
                seconds = time.perf_counter() - began
                gain = found.before / found.after
                report.row(
                    title,
                    f"{found.before:.1f} -> {found.after:.1f} us ({gain:.3f}x), {found.measured} "
                    f"kernels of {len(found.launches)} kinds of launch measured, {found.kept} "
                    f"kept, {seconds:.0f} s",
                    before=found.before, after=found.after, gain=gain, measured=found.measured,
                    kinds=len(found.launches), kept=found.kept, seconds=seconds,
                )  # fmt: skip
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
