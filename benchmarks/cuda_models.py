"""Whole models on the CUDA backend: nodes it runs, difference from ONNX Runtime's CPU provider in
fp32, milliseconds a run beside peers.

    python -m benchmarks.cuda_models [resnet50 ...] [--batch 1 32] [--peers ort eager graph compile]
    [--single] [--json FILE]

fp16 (with --single fp32, without TF32, beside PyTorch alone), inputs and outputs on the device.
ours, ort: a session with IOBinding, synchronised each run (ort: ONNX Runtime's CUDA provider, where
that build of ONNX Runtime is installed, with its CUDA graph where it can capture one, for
transformers its own optimizer before, for convolutions its channels-last layout where that is
faster). eager, graph, compile: PyTorch's own model of that name (torchvision, transformers) with
random weights, its CUDA graph, and torch.compile(mode="reduce-overhead"). Runs of all are
interleaved in rounds; medians."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tracea_onnx import provider
from tracea_onnx.support import discovery

Run = Callable[[], None]
MODELS = ("resnet50", "mobilenet_v3", "efficientnet_b0", "bert_base", "vit_b16", "gpt2")
#: Tokens of a prompt, where they are not --sequence.
_SEQUENCE = {"gpt2": 512}
_VISION = {
    "resnet50": "resnet50",
    "mobilenet_v3": "mobilenet_v3_large",
    "efficientnet_b0": "efficientnet_b0",
    "vit_b16": "vit_b_16",
}


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with fp16 weights and activations (ORT's own converter)."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(
        model, keep_io_types=False, disable_shape_infer=False
    )
    return converted


#: Kinds of model that ONNX Runtime's transformers optimizer knows.
_KINDS = {"bert_base": "bert", "gpt2": "gpt2", "vit_b16": "vit"}


def ort_model(name: str, full: onnx.ModelProto) -> bytes:
    """The fp16 model that ONNX Runtime runs best: what its transformers optimizer makes of it,
    where there is one.
    """
    if name not in _KINDS:
        return bytes(half(full).SerializeToString())
    from onnxruntime.transformers.optimizer import optimize_model

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        named = onnx.ModelProto()
        named.CopyFrom(full)
        # whose exporter's forms the models have; the optimizer looks for no others
        named.producer_name = "pytorch"
        onnx.save(named, path)
        optimized = optimize_model(
            path, model_type=_KINDS[name], num_heads=12, hidden_size=768, opt_level=0, use_gpu=True
        )
    optimized.convert_float_to_float16(keep_io_types=False)
    return bytes(optimized.model.SerializeToString())


def feeds(
    session: ort.InferenceSession, batch: int, sequence: int, rng: np.random.Generator
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for i in session.get_inputs():
        dims = [
            d if isinstance(d, int) else batch if k == 0 else sequence
            for k, d in enumerate(i.shape)
        ]
        if "int" in i.type:
            out[i.name] = (
                np.ones(dims, np.int64)
                if "mask" in i.name
                else rng.integers(0, 2 if "type" in i.name else 1000, dims)
            )
        else:
            out[i.name] = rng.standard_normal(dims).astype(np.float32)
    return out


class Bound:
    """A session with its tensors on the device. vendor: of ONNX Runtime's memory for this provider
    (None: its own CUDA memory).
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        x: Mapping[str, Any],
        shapes: list[tuple[int, ...]],
        vendor: int | None,
    ) -> None:
        place: tuple[Any, ...] = ("cuda", 0) if vendor is None else ("gpu", 0, vendor)
        self.session, self.binding = session, session.io_binding()
        self.tensors = []
        for i in session.get_inputs():
            value = x[i.name].astype(np.float16) if "float16" in i.type else x[i.name]
            self.tensors.append(ort.OrtValue.ortvalue_from_numpy(value, *place))
            self.binding.bind_ortvalue_input(i.name, self.tensors[-1])
        self.outputs = []
        for o, shape in zip(session.get_outputs(), shapes, strict=True):
            self.outputs.append(
                ort.OrtValue.ortvalue_from_shape_and_type(
                    list(shape), np.float16 if "float16" in o.type else np.float32, *place
                )
            )
            self.binding.bind_ortvalue_output(o.name, self.outputs[-1])

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def error(self, want: list[Any]) -> float:
        """Largest difference relative to each output's largest value."""
        got = [v.numpy().astype(np.float64) for v in self.outputs]
        return max(
            float(np.abs(g - w).max() / (np.abs(w).max() + 1e-30))
            for g, w in zip(got, want, strict=True)
        )


def load_libraries() -> None:
    """ONNX Runtime's CUDA provider finds CUDA's libraries where PyTorch has loaded them, or in
    pip's wheels beside it.
    """
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").cuda.init()
    elif hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def ort_bound(name: str, model: bytes, x: Mapping[str, Any], want: list[Any]) -> dict[str, Bound]:
    """Bound sessions of the CUDA provider by how they run: the faster layout as a CUDA graph, or
    plainly where it cannot be captured.
    """
    layouts = ((" nhwc", {"prefer_nhwc": "1"}), ("", {})) if name not in _KINDS else (("", {}),)
    reasons: list[str] = []
    for kind, settings in (("graph", {"enable_cuda_graph": "1"}), ("plain", {})):
        found: dict[str, Bound] = {}
        for layout, chosen in layouts:
            try:
                found[f"ort {kind}{layout}"] = _ort_session(model, x, want, settings | chosen)
            except Exception as e:
                reasons.append(f"{kind}{layout}: {str(e).splitlines()[0][:200]}")
        if found:
            times = interleaved(found, rounds=3) if len(found) > 1 else dict.fromkeys(found, 0.0)
            best = min(times, key=lambda k: times[k])
            return {best: found[best]}
    raise RuntimeError("; ".join(reasons))


def _ort_session(
    model: bytes, x: Mapping[str, Any], want: list[Any], settings: Mapping[str, str]
) -> Bound:
    """Raises where the provider cannot run the model so: a session that fell back to the CPU would
    be measured as if it were it.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model, options, providers=[("CUDAExecutionProvider", dict(settings))], enable_fallback=0
    )
    if "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError("ONNX Runtime did not load its CUDA provider")
    bound = Bound(session, x, [w.shape for w in want], None)
    for _ in range(3):
        bound()
    if bound.error(want) > 0.2:
        raise RuntimeError(f"its result differs by {bound.error(want):.1e}")
    return bound


def torch_model(
    name: str, batch: int, sequence: int, single: bool
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """PyTorch's model of that name in fp16, or in fp32, on the device, and its arguments."""
    import torch

    kind = torch.float32 if single else torch.float16
    torch.backends.cudnn.allow_tf32 = False
    if name in _VISION:
        model = (
            getattr(importlib.import_module("torchvision.models"), _VISION[name])()
            .cuda()
            .to(kind)
            .eval()
        )
        image = torch.randn(batch, 3, 224, 224, device="cuda", dtype=kind)
        if name != "vit_b16":
            model, image = (
                model.to(memory_format=torch.channels_last),
                image.contiguous(memory_format=torch.channels_last),
            )
        return model, (image,), {}
    import transformers

    ids = torch.randint(0, 1000, (batch, sequence), device="cuda")
    if name == "bert_base":
        model = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=True)
        return model.cuda().to(kind).eval(), (ids,), {"attention_mask": torch.ones_like(ids)}
    return (
        transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda().to(kind).eval(),
        (ids,),
        {"use_cache": False},
    )


def torch_run(kind: str, name: str, batch: int, sequence: int, single: bool) -> Run:
    import torch

    model, args, kw = torch_model(name, batch, sequence, single)
    if kind == "compile":
        model = torch.compile(model, mode="reduce-overhead")

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def forward() -> None:
        model(*args, **kw)

    def synchronised() -> None:
        forward()
        torch.cuda.synchronize()

    for _ in range(4):
        synchronised()
    if kind != "graph":
        return synchronised
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()

    # the graph holds addresses alone: what it reads must live on
    def replay(_read: object = (model, args, kw)) -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def interleaved(
    runs: Mapping[str, Run], rounds: int = 9, seconds: float = 0.03
) -> dict[str, float]:
    """Median milliseconds of a run of each, in rounds over all of them."""
    counts: dict[str, int] = {}
    for name, run in runs.items():
        for _ in range(3):
            run()
        began = time.perf_counter()
        for _ in range(5):
            run()
        counts[name] = max(3, int(seconds / ((time.perf_counter() - began) / 5)))
    times: dict[str, list[float]] = {n: [] for n in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            for _ in range(counts[name]):
                run()
            times[name].append((time.perf_counter() - began) / counts[name])
    return {n: float(np.median(t)) * 1e3 for n, t in times.items()}


def measure(
    name: str,
    batches: list[int],
    sequence: int,
    peers: list[str],
    single: bool,
    write: Callable[[str, dict[str, Any]], None],
) -> None:
    full = discovery.module("models", name).build()
    plain = ort.InferenceSession(full.SerializeToString(), providers=["CPUExecutionProvider"])
    converted = (full if single else half(full)).SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    began = time.perf_counter()
    session = provider.create_session(converted, {"backend": "cuda"}, options)
    load = time.perf_counter() - began
    left = [
        n.op_type
        for p in session.get_provider_graph_assignment_info()
        if p.ep_name != provider.PROVIDER_NAME
        for n in p.get_nodes()
    ]
    prepared = b""
    for batch in batches:
        x = feeds(plain, batch, sequence, np.random.default_rng(0))
        want = plain.run(None, x)
        shapes = [w.shape for w in want]
        ours = Bound(session, x, shapes, 0x10DE)
        runs: dict[str, Run] = {"ours": ours}
        failed = {}
        for kind in peers:
            try:
                if kind == "ort":
                    prepared = prepared or ort_model(name, full)
                    runs |= ort_bound(name, prepared, x, want)
                else:
                    runs[kind] = torch_run(kind, name, batch, sequence, single)
            except Exception as e:
                failed[kind] = f"{type(e).__name__}: {str(e)[:400]}"
        times = interleaved(runs)
        errors = {k: r.error(want) for k, r in runs.items() if isinstance(r, Bound)}
        row = {
            "load": load,
            "left": sorted(set(left)),
            "error": errors.pop("ours"),
            "errors": errors,
            "ms": times,
            "failed": failed,
        }
        text = ", ".join(f"{k} {v:.3f}" for k, v in times.items())
        write(
            f"{name:16s} b{batch:<3d} load {load:5.1f} s  left to ORT {len(left)}  error {row['error']:.1e}  ms: {text} {failed or ''}",
            row,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", default=list(MODELS))
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument(
        "--peers", nargs="*", default=[], choices=("ort", "eager", "graph", "compile")
    )
    parser.add_argument("--single", action="store_true", help="fp32 rather than fp16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.single and "ort" in args.peers:
        parser.error("--single is measured beside PyTorch alone")
    rows: dict[str, Any] = {}
    # this ONNX Runtime makes every tensor of a GPU with that provider's library
    if "CUDAExecutionProvider" in ort.get_available_providers():
        load_libraries()

    def write(line: str, row: dict[str, Any]) -> None:
        print(line, flush=True)
        rows[" ".join(line.split()[:2])] = row
        if args.json is not None:
            args.json.write_text(json.dumps(rows, indent=1))

    for name in args.model:
        batches = [b for b in args.batch if b == 1 or name not in _SEQUENCE]
        try:
            measure(
                name, batches, _SEQUENCE.get(name, args.sequence), args.peers, args.single, write
            )
        except Exception as e:
            print(f"{name:16s} FAIL {type(e).__name__}: {str(e)[:300]}", flush=True)
            traceback.print_exc(limit=3)


if __name__ == "__main__":
    main()
