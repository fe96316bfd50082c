"""Whole models on the CUDA backend: nodes it runs, difference from ONNX Runtime's CPU provider in fp32, milliseconds a run.

    python benchmarks/cuda_models.py [--model resnet50 ...] [--batch 1 32] [--out FILE]

Inputs and outputs stay on the device (IOBinding); times are medians over repeated batches of runs, synchronised per batch.
"""

from __future__ import annotations

import argparse
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tracea_onnx import provider, registry

ORT_GPU = ("gpu", 0, 0x10DE)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with fp16 weights and activations (ORT's own converter)."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=False, disable_shape_infer=False)
    return converted


def feeds(session: ort.InferenceSession, batch: int, sequence: int, rng: np.random.Generator) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for i in session.get_inputs():
        dims = [d if isinstance(d, int) else batch if k == 0 else sequence for k, d in enumerate(i.shape)]
        if "int" in i.type:
            out[i.name] = np.ones(dims, np.int64) if "mask" in i.name else rng.integers(0, 2 if "type" in i.name else 1000, dims)
        else:
            out[i.name] = rng.standard_normal(dims).astype(np.float32)
    return out


def run(name: str, batch: int, sequence: int, graph: bool, write: Any) -> None:
    rng = np.random.default_rng(0)
    full = registry.module("models", name).build()
    plain = ort.InferenceSession(full.SerializeToString(), providers=["CPUExecutionProvider"])
    x = feeds(plain, batch, sequence, rng)
    want = plain.run(None, x)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings = {"backend": "cuda", "enable_cuda_graph": "1" if graph else "0"}
    began = time.perf_counter()
    session = provider.create_session(half(full).SerializeToString(), settings, options)
    load = time.perf_counter() - began
    left = [n.op_type for p in session.get_provider_graph_assignment_info() if p.ep_name != "TraceaExecutionProvider" for n in p.get_nodes()]
    binding = session.io_binding()
    keep = []
    for i in session.get_inputs():
        value = x[i.name].astype(np.float16) if "float16" in i.type else x[i.name]
        keep.append(ort.OrtValue.ortvalue_from_numpy(value, *ORT_GPU))
        binding.bind_ortvalue_input(i.name, keep[-1])
    for o, w in zip(session.get_outputs(), want, strict=True):
        dtype = np.float16 if "float16" in o.type else w.dtype
        keep.append(ort.OrtValue.ortvalue_from_shape_and_type(list(w.shape), dtype, *ORT_GPU))
        binding.bind_ortvalue_output(o.name, keep[-1])
    for _ in range(3):
        session.run_with_iobinding(binding)
    got = [v.numpy() for v in keep[len(session.get_inputs()) :]]
    error = max(float(np.abs(g.astype(np.float64) - w).max() / (np.abs(w).max() + 1e-30)) for g, w in zip(got, want, strict=True))
    times = []
    for _ in range(7):
        t = time.perf_counter()
        for _ in range(20):
            session.run_with_iobinding(binding)
        times.append((time.perf_counter() - t) / 20)
    which = f"{name:16s} b{batch:<3d} {'graph' if graph else 'plain'}"
    kept = f"left to ORT {len(left):3d} {sorted(set(left))[:4]}"
    write(f"{which} load {load:6.1f} s  {kept}  error {error:.1e}  {np.median(times) * 1e3:.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=["resnet50", "mobilenet_v3", "efficientnet_b0", "bert_base", "vit_b16", "gpt2", "unet"])
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines: list[str] = []

    def write(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if args.out is not None:
            args.out.write_text("\n".join(lines) + "\n")

    for name in args.model:
        for batch in args.batch:
            for graph in (False, True):
                try:
                    run(name, batch, args.sequence, graph, write)
                except Exception as e:
                    write(f"{name:16s} b{batch:<3d} FAIL {type(e).__name__}: {str(e)[:300]}")
                    traceback.print_exc(limit=3)


if __name__ == "__main__":
    main()
