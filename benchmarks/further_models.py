"""Further architectures for `benchmarks.models` (`further:NAME`): torchvision's and transformers'
models at their usual sizes with random weights. They are exported (TorchScript exporter; Qwen2 by
dynamo) and made fp16 by `optimize --backend cuda --precision fp16`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from tracea_onnx.pipeline import optimizer

#: A model and its inputs for a batch of two.
Made = tuple[Any, tuple[Any, ...]]


def _first(model: Any, *names: str, pick: str = "") -> Any:
    """The model with positional inputs (`names` are what it calls them) and one output."""
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
            f"{kind.removesuffix('Encoder').removesuffix('Text')}"
            f"{'Text' if kind.endswith('Text') else ''}Config",
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
    "densenet121": _vision("densenet121"), "convnext_tiny": _vision("convnext_tiny"),
    "shufflenet": _vision("shufflenet_v2_x1_0"), "swin_t": _vision("swin_t"),
    "resnext50": _vision("resnext50_32x4d"), "regnet_y_400mf": _vision("regnet_y_400mf"),
    "effnet_v2_s": _vision("efficientnet_v2_s"),
    "inception": _vision("inception_v3", 299, aux_logits=False, init_weights=False),
    "deeplab": _vision("deeplabv3_mobilenet_v3_large", 256, part="segmentation",
        weights_backbone=None),
    "segformer": _images("SegformerForSemanticSegmentation", 512, ("pixel_values",), "logits"),
    "dinov2": _images("Dinov2Model", 224, ("pixel_values",), "last_hidden_state", hidden_size=384,
        num_attention_heads=6, image_size=224),
    "clip_vision": _images("CLIPVisionModel", 224, ("pixel_values",), "pooler_output"),
    "clip_text": _text("CLIPText", 77, eos_token_id=2), "roberta": _text("Roberta", 128),
    "t5_encoder": _text("T5Encoder", 128),
    "qwen2": _text("Qwen2", 256, vocab_size=32000, hidden_size=896, intermediate_size=4864,
        num_hidden_layers=4, num_attention_heads=14, num_key_value_heads=2),
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


def given(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """PyTorch's model in fp16 on the GPU and its inputs."""
    model, inputs = ZOO[name]()
    rows = (x[:1].expand(batch, *x.shape[1:]).contiguous().cuda() for x in inputs)
    return model.cuda().half(), tuple(x.half() if x.is_floating_point() else x for x in rows)


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
