"""fp32 models that `optimize --precision` made narrow, on the GPU: nodes it runs, drift from fp32
as verification tells it and as it is, milliseconds.

    python -m tests.gpu.precision_cases [resnet50 ...] [--types fp16 bf16] [--batch 4] [--json FILE]

Drift is the largest difference from ONNX Runtime's CPU provider on the fp32 model, relative to the
output's largest value, and the root mean square of differences relative to that of the output. Exit
code 1 where a node does not run on the GPU or the drift is above what the type allows."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import tracea_onnx
from benchmarks.cuda_models import Bound, Run, feeds, interleaved
from tracea_onnx import provider
from tracea_onnx.support import discovery

MODELS = ("resnet50", "mobilenet_v3", "bert_base", "vit_b16")
SEQUENCE = 128
#: The largest drift that is no defect: what rounding every activation of a deep network to this
#: type does.
ALLOWED = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1.5e-1}


def prepare(name: str, precision: str, batch: int, folder: str) -> dict[str, Any]:
    """Writes the model as `optimize` makes it and, for fp32, inputs and what ONNX Runtime's CPU
    provider gives for them; what verification told.
    """
    sizes = {"batch": batch, "dynamic": False} | ({"seq": SEQUENCE} if name == "bert_base" else {})
    model = discovery.module("models", name).build(**sizes)
    path = Path(folder) / f"{name}.{precision}.onnx"
    if precision == "fp32":
        onnx.save(model, str(path))
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        x = feeds(session, batch, SEQUENCE, np.random.default_rng(0))
        names = [o.name for o in session.get_outputs()]
        np.savez(
            str(path.with_suffix(".npz")),
            **{f"in:{k}": v for k, v in x.items()},
            **dict(zip(names, session.run(None, x), strict=True)),
        )
        return {}
    report = tracea_onnx.optimize(model, output=path, precision=precision, backend="cuda").report
    assert report.verify is not None and report.precision is not None
    outputs = report.verify.outputs
    return {
        "ok": report.verify.ok, "largest": max(o.max_abs for o in outputs), "rmse": max(o.rmse for o in outputs), "narrow": len(report.precision.nodes),
        "kept": len(report.precision.kept),
    }  # fmt: skip


def session_of(path: Path) -> tuple[Any, list[str], float]:
    """A session on the GPU, the operators that it left to ONNX Runtime, seconds to load."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    began = time.perf_counter()
    session = provider.create_session(path, {"backend": "cuda"}, options)
    seconds = time.perf_counter() - began
    left = [
        n.op_type
        for p in session.get_provider_graph_assignment_info()
        if p.ep_name != provider.PROVIDER_NAME
        for n in p.get_nodes()
    ]
    return session, left, seconds


def drift(got: list[Any], want: list[Any]) -> tuple[float, float]:
    pairs = [(g.astype(np.float64), w.astype(np.float64)) for g, w in zip(got, want, strict=True)]
    if not all(np.isfinite(g).all() for g, _ in pairs):
        return float("inf"), float("inf")
    return max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in pairs), max(
        float(np.sqrt(((g - w) ** 2).mean() / (w**2).mean())) for g, w in pairs
    )


def measure(
    name: str, types: list[str], folder: Path, told: Mapping[tuple[str, str], dict[str, Any]]
) -> tuple[bool, dict[str, Any]]:
    """One model in fp32 and in every narrow type: prints a line for each."""
    stored = np.load(folder / f"{name}.fp32.npz")
    x = {k[3:]: stored[k] for k in stored.files if k.startswith("in:")}
    runs: dict[str, Run] = {}
    rows: dict[str, Any] = {}
    good = True
    for kind in ("fp32", *types):
        session, left, seconds = session_of(folder / f"{name}.{kind}.onnx")
        want = [stored[o.name] for o in session.get_outputs()]
        bound = Bound(session, x, [w.shape for w in want], 0x10DE)
        for _ in range(3):  # the third run replays a graph
            bound()
        largest, rmse = drift([v.numpy() for v in bound.outputs], want)
        rows[kind] = {
            "left": left,
            "load": seconds,
            "drift": largest,
            "rmse": rmse,
            "told": told[name, kind],
        }
        good &= not left and largest <= ALLOWED[kind]
        runs[kind] = bound
    for kind, ms in interleaved(runs).items():
        row = rows[kind] | {"ms": ms}
        said = row["told"]
        text = (
            f"; verification: {said['largest']:.2e} absolute, rmse {said['rmse']:.2e}, {said['narrow']} nodes narrow, {said['kept']} kept"
            if said
            else ""
        )
        print(f"{name:14s} {kind}: left to ORT {len(row['left'])} {sorted(set(row['left']))}, drift {row['drift']:.2e} (rms {row['rmse']:.2e}), {ms:.3f} ms, "
              f"load {row['load']:.1f} s{text}", flush=True)  # fmt: skip
        rows[kind] = row
    return good, rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", default=list(MODELS))
    parser.add_argument("--types", nargs="*", default=["fp16", "bf16"], choices=("fp16", "bf16"))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    status, rows = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(m, k) for m in args.model for k in ("fp32", *args.types)]
        with ProcessPoolExecutor(len(jobs), get_context("spawn")) as pool:
            found = list(
                pool.map(
                    prepare,
                    *zip(*jobs, strict=True),
                    [args.batch] * len(jobs),
                    [folder] * len(jobs),
                )
            )
        told = dict(zip(jobs, found, strict=True))
        for name in args.model:
            try:
                good, rows[name] = measure(name, args.types, Path(folder), told)
            except Exception as e:
                good = False
                print(f"{name:14s} FAIL {type(e).__name__}: {str(e)[:300]}", flush=True)
            status |= int(not good)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1))
    print(
        "every node ran on the GPU and every drift is within its type"
        if not status
        else "NOT as it should be",
        flush=True,
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
