"""Further architectures on the CUDA backend, beside PyTorch's own model in fp16 as a CUDA graph.

    python -m benchmarks.zoo FOLDER [NAME ...] [--batch 1 8]

Models are torchvision's and transformers' at their usual sizes with random weights. What FOLDER
lacks is exported into it (TorchScript exporter; Qwen2 by dynamo) and made fp16 by `optimize
--backend cuda --precision fp16`. Reported: nodes left to ONNX Runtime, the largest difference from
its CPU provider on the same file at batch 1 relative to each output's largest value, and
milliseconds a run, tensors on the device, runs interleaved in rounds, medians."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.cuda_models import Bound, Run, interleaved
from tracea_onnx import provider
from tracea_onnx.pipeline import optimizer

#: A model and its inputs for a batch of two.
Made = tuple[Any, tuple[Any, ...]]
_NVIDIA = 0x10DE


def _first(model: Any, *names: str, pick: str = "") -> Any:
    """The model as a module of positional inputs (`names` are what it calls them) and one output."""
    import torch

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any) -> Any:
            out = self.model(**dict(zip(names, args, strict=True))) if names else self.model(*args)
            return (
                getattr(out, pick)
                if pick
                else out["out"]
                if isinstance(out, dict)
                else out
                if torch.is_tensor(out)
                else out[0]
            )

    return First().eval()


def _vision(name: str, size: int = 224, *, part: str = "", **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        import torch

        where = importlib.import_module("torchvision.models" + (f".{part}" if part else ""))
        return _first(getattr(where, name)(weights=None, **options)), (
            torch.randn(2, 3, size, size),
        )

    return make


def _text(kind: str, tokens: int, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        import torch
        import transformers as t

        config = getattr(
            t,
            f"{kind.removesuffix('Encoder').removesuffix('Text')}{'Text' if kind.endswith('Text') else ''}Config",
        )(**options)
        config.use_cache = False
        model = _first(getattr(t, f"{kind}Model")(config), "input_ids", pick="last_hidden_state")
        return model, (torch.randint(3, 1000, (2, tokens)),)

    return make


def _images(
    kind: str, size: int, names: tuple[str, ...], pick: str, **options: Any
) -> Callable[[], Made]:
    def make() -> Made:
        import torch
        import transformers as t

        config = getattr(
            t, kind.replace("ForSemanticSegmentation", "").removesuffix("Model") + "Config"
        )(**options)
        return _first(getattr(t, kind)(config), *names, pick=pick), (torch.randn(2, 3, size, size),)

    return make


def _whisper() -> Made:
    import torch
    import transformers as t

    config = t.WhisperConfig(
        d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048
    )
    return _first(
        t.models.whisper.modeling_whisper.WhisperEncoder(config), pick="last_hidden_state"
    ), (torch.randn(2, 80, 3000),)


def _wav2vec() -> Made:
    import torch
    import transformers as t

    return _first(t.Wav2Vec2Model(t.Wav2Vec2Config()), "input_values", pick="last_hidden_state"), (
        torch.randn(2, 16000),
    )


ZOO: dict[str, Callable[[], Made]] = {
    "densenet121": _vision("densenet121"), "convnext_tiny": _vision("convnext_tiny"), "shufflenet": _vision("shufflenet_v2_x1_0"), "swin_t": _vision("swin_t"),
    "resnext50": _vision("resnext50_32x4d"), "regnet_y_400mf": _vision("regnet_y_400mf"), "effnet_v2_s": _vision("efficientnet_v2_s"),
    "inception": _vision("inception_v3", 299, aux_logits=False, init_weights=False),
    "deeplab": _vision("deeplabv3_mobilenet_v3_large", 256, part="segmentation", weights_backbone=None),
    "segformer": _images("SegformerForSemanticSegmentation", 512, ("pixel_values",), "logits"),
    "dinov2": _images("Dinov2Model", 224, ("pixel_values",), "last_hidden_state", hidden_size=384, num_attention_heads=6, image_size=224),
    "clip_vision": _images("CLIPVisionModel", 224, ("pixel_values",), "pooler_output"),
    "clip_text": _text("CLIPText", 77, eos_token_id=2), "roberta": _text("Roberta", 128), "t5_encoder": _text("T5Encoder", 128),
    "qwen2": _text("Qwen2", 256, vocab_size=32000, hidden_size=896, intermediate_size=4864, num_hidden_layers=4, num_attention_heads=14, num_key_value_heads=2),
    "whisper": _whisper, "wav2vec2": _wav2vec,
}  # fmt: skip
_DYNAMO = frozenset({"qwen2"})


def export(name: str, path: Path) -> None:
    import torch

    model, inputs = ZOO[name]()
    names = [f"x{k}" for k in range(len(inputs))]
    with torch.no_grad():
        if name in _DYNAMO:
            batch = torch.export.Dim("batch", min=1, max=64)
            torch.onnx.export(
                model,
                inputs,
                str(path),
                dynamo=True,
                opset_version=20,
                external_data=False,
                dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            )
        else:
            dynamic = {n: {0: "batch"} for n in (*names, "y")}
            torch.onnx.export(
                model,
                inputs,
                str(path),
                dynamo=False,
                opset_version=17,
                input_names=names,
                output_names=["y"],
                dynamic_axes=dynamic,
            )


def optimized(name: str, folder: Path) -> Path:
    """The fp16 file, made if the folder has none."""
    full, half = folder / f"{name}.onnx", folder / f"{name}.fp16.onnx"
    if not half.is_file():
        if not full.is_file():
            export(name, full)
        onnx.save(
            optimizer.optimize(
                onnx.load(str(full)), backend="cuda", precision="fp16", verify=False
            ).model,
            str(half),
        )
    return half


def feeds(session: ort.InferenceSession, batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    out: dict[str, Any] = {}
    for i in session.get_inputs():
        dims = [batch, *i.shape[1:]]
        out[i.name] = (
            rng.integers(3, 1000, dims)
            if "int" in i.type
            else rng.standard_normal(dims).astype(np.float16 if "float16" in i.type else np.float32)
        )
    return out


def graph(name: str, batch: int) -> Run:
    """PyTorch's model as a CUDA graph, channels last where it takes images."""
    import torch

    torch.backends.cudnn.benchmark = True
    made, inputs = ZOO[name]()
    model, given = (
        made.cuda().half(),
        [x[:1].expand(batch, *x.shape[1:]).contiguous().cuda() for x in inputs],
    )
    given = [x.half() if x.is_floating_point() else x for x in given]
    if given[0].ndim == 4:
        model, given[0] = (
            model.to(memory_format=torch.channels_last),
            given[0].contiguous(memory_format=torch.channels_last),
        )
    with torch.inference_mode():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(4):
                model(*given)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            model(*given)

    # the graph holds addresses alone: what it reads must live on
    def replay(_read: object = (model, given)) -> None:
        captured.replay()
        torch.cuda.synchronize()

    return replay


def measure(name: str, folder: Path, batches: list[int]) -> None:
    path = str(optimized(name, folder))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = provider.create_session(path, {"backend": "cuda"}, options)
    left = [
        n.op_type
        for p in session.get_provider_graph_assignment_info()
        if p.ep_name != provider.PROVIDER_NAME
        for n in p.get_nodes()
    ]
    x = feeds(session, 1)
    want = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, x)
    ours = Bound(session, x, [w.shape for w in want], _NVIDIA)
    ours()
    error = ours.error(want)
    for batch in batches:
        runs: dict[str, Run] = {
            "ours": Bound(
                session, feeds(session, batch), [(batch, *w.shape[1:]) for w in want], _NVIDIA
            ),
            "graph": graph(name, batch),
        }
        ms = interleaved(runs)
        times = ", ".join(f"{k} {v:.3f}" for k, v in ms.items())
        print(
            f"{name:16s} b{batch:<3d} left to ORT {len(left)}  difference {error:.1e}  ms: {times}  {ms['graph'] / ms['ours']:.2f}x",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", nargs="*", default=list(ZOO), help=", ".join(ZOO))
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 8])
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.name:
        try:
            measure(name, args.folder, args.batch)
        except Exception as e:
            print(f"{name:16s} FAIL {type(e).__name__}: {str(e)[:300]}", flush=True)


if __name__ == "__main__":
    main()
