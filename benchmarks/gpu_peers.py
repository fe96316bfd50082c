"""Peers of whole models on a GPU, each as its users would run it at its best.

ort: ONNX Runtime's CUDA provider with its CUDA graph where it can capture one; for transformers the
model that its own optimizer makes, for convolutions the faster of its two layouts. tensorrt: its
TensorRT provider in fp16, where TensorRT is installed. eager, graph, compile: PyTorch's own model
with random weights; its CUDA graph; torch.compile(mode="max-autotune") with constants folded
(`freezing`). cuDNN searches for its fastest convolutions in all of these.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from benchmarks import further_models, harness
from tests.support.cuda.models import Bound, half

NAMES = ("ort", "tensorrt", "eager", "graph", "compile")
Run = Callable[[], None]
_VISION = {
    "resnet50": "resnet50",
    "mobilenet_v3": "mobilenet_v3_large",
    "efficientnet_b0": "efficientnet_b0",
    "vit_b16": "vit_b_16",
}
#: Kinds of model that ONNX Runtime's transformers optimizer knows.
_KINDS = {"bert_base": "bert", "gpt2": "gpt2", "vit_b16": "vit"}
#: A result of ONNX Runtime's that differs by more is not timed.
_LARGEST = 0.2


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


def load_libraries() -> None:
    """ONNX Runtime's CUDA provider finds CUDA's libraries where PyTorch has loaded them, or in
    pip's wheels beside it. This ONNX Runtime makes every tensor of a GPU with that provider's
    library, so it is loaded before any session.
    """
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return
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
                found[f"ort {kind}{layout}"] = _ort_session(
                    "CUDAExecutionProvider", model, x, want, settings | chosen
                )
            except Exception as e:
                reasons.append(f"{kind}{layout}: {str(e).splitlines()[0][:200]}")
        if found:
            samplers = {k: harness.run_sampler(run) for k, run in found.items()}
            times = harness.interleaved(samplers, rounds=3).us
            best = min(times, key=lambda k: times[k])
            return {best: found[best]}
    raise RuntimeError("; ".join(reasons))


def tensorrt_bound(model: bytes, x: Mapping[str, Any], want: list[Any]) -> dict[str, Bound]:
    """ONNX Runtime's TensorRT provider on the fp32 model, which it makes fp16 itself."""
    if importlib.util.find_spec("tensorrt") is None:
        raise RuntimeError("not installed: pip install tensorrt")
    importlib.import_module("tensorrt")
    settings = {"trt_fp16_enable": "1", "trt_cuda_graph_enable": "1"}
    return {"tensorrt": _ort_session("TensorrtExecutionProvider", model, x, want, settings)}


def _ort_session(
    provider: str, model: bytes, x: Mapping[str, Any], want: list[Any], settings: Mapping[str, str]
) -> Bound:
    """Raises where the provider cannot run the model so: a session that fell back to the CPU would
    be measured as if it were it.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model, options, providers=[(provider, dict(settings))], enable_fallback=0
    )
    if provider not in session.get_providers():
        raise RuntimeError(f"ONNX Runtime did not load its {provider}")
    bound = Bound(session, x, [w.shape for w in want], None)
    for _ in range(3):
        bound()
    if bound.error(want) > _LARGEST:
        raise RuntimeError(f"its result differs by {bound.error(want):.1e}")
    return bound


def torch_model(
    name: str, batch: int, sequence: int, single: bool
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """PyTorch's model of that name in fp16, or in fp32, on the device, and its arguments. Images
    and convolutions are channels last.
    """
    import torch

    kind = torch.float32 if single else torch.float16
    last = torch.channels_last
    if name.startswith("further:"):
        model, args = further_models.given(name.partition(":")[2], batch)
        if args[0].ndim == 4:
            return model.to(memory_format=last), (args[0].contiguous(memory_format=last),), {}
        return model, args, {}
    if name in _VISION:
        made = getattr(importlib.import_module("torchvision.models"), _VISION[name])()
        model = made.cuda().to(kind).eval()
        image = torch.randn(batch, 3, 224, 224, device="cuda", dtype=kind)
        if name != "vit_b16":
            model, image = model.to(memory_format=last), image.contiguous(memory_format=last)
        return model, (image,), {}
    if name not in ("bert_base", "gpt2"):
        raise RuntimeError("PyTorch has no model of that name")
    import transformers

    ids = torch.randint(0, 1000, (batch, sequence), device="cuda")
    if name == "bert_base":
        model = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=True)
        return model.cuda().to(kind).eval(), (ids,), {"attention_mask": torch.ones_like(ids)}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    return model.cuda().to(kind).eval(), (ids,), {"use_cache": False}


def torch_run(kind: str, name: str, batch: int, sequence: int, single: bool) -> Run:
    import torch

    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    model, args, kw = torch_model(name, batch, sequence, single)
    if kind == "compile":
        vars(importlib.import_module("torch._inductor.config"))  # loaded before it is set
        torch._inductor.config.freezing = True
        model = torch.compile(model, mode="max-autotune")

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
