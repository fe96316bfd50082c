"""Exports small models of many architectures, with random weights, for `tools.coverage` and
`tools.corpus`.

    python -m tools.architectures FOLDER [--exporter dynamo] [--only swinv2 ...]

Needs torch, transformers, scipy, onnxscript and onnx. Each is transformers' own code with a few
narrow layers, so that it exports in seconds: what kinds of nodes it has does not depend on those.
Batches are dynamic, where the exporter follows them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A model, its inputs by their names, and which of its results are wanted (none: the first).
Made = tuple[Any, dict[str, Any], tuple[str, ...]]

_LAYERS: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_TEXT: dict[str, Any] = {**_LAYERS, "vocab_size": 99}
_SPEECH: dict[str, Any] = {
    **_LAYERS, "vocab_size": 32, "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_WINDOWS: dict[str, Any] = {
    "image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip
_CODER: dict[str, Any] = {
    "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "d_model": 64,
}  # fmt: skip
_BACKBONE: dict[str, Any] = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
}  # fmt: skip
_RESNET: dict[str, Any] = {
    "embedding_size": 16, "hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}  # fmt: skip
_VITS: dict[str, Any] = {
    "vocab_size": 38, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "ffn_dim": 64, "flow_size": 32, "spectrogram_bins": 33, "upsample_initial_channel": 32,
    "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]], "wavenet_dilation_rate": 1,
    "prior_encoder_num_wavenet_layers": 2, "posterior_encoder_num_wavenet_layers": 2,
    "prior_encoder_num_flows": 2, "duration_predictor_num_flows": 2,
    "depth_separable_num_layers": 2, "duration_predictor_filter_channels": 32,
    "use_stochastic_duration_prediction": False,
}  # fmt: skip
_BOXES = ("logits", "pred_boxes")


def _torch() -> Any:
    return importlib.import_module("torch")


def _image(side: int) -> dict[str, Any]:
    return {"pixel_values": _torch().randn(2, 3, side, side)}


def _ids(length: int) -> Any:
    return _torch().randint(3, 97, (2, length))


def _tokens(length: int = 12) -> dict[str, Any]:
    mask = _torch().ones(2, length, dtype=_torch().long)
    return {"input_ids": _ids(length), "attention_mask": mask}


def _wave(samples: int = 2000) -> dict[str, Any]:
    return {"input_values": _torch().randn(2, samples)}


def _deformable(t: Any) -> Made:
    stages = t.ResNetConfig(**_RESNET, out_features=["stage2", "stage3", "stage4"])
    config = t.DeformableDetrConfig(**_BACKBONE, **_CODER, backbone_config=stages, num_queries=10)
    return t.DeformableDetrForObjectDetection(config), _image(64), _BOXES


def _rt_detr(t: Any) -> Made:
    stages = t.RTDetrResNetConfig(**_RESNET, out_features=["stage2", "stage3", "stage4"])
    config = t.RTDetrConfig(
        backbone_config=stages, encoder_hidden_dim=32, encoder_in_channels=[32, 32, 64],
        encoder_ffn_dim=64, encoder_layers=1, encoder_attention_heads=4, d_model=32,
        decoder_in_channels=[32, 32, 32], decoder_ffn_dim=64, decoder_layers=2,
        decoder_attention_heads=4, num_queries=10, num_denoising=0, anchor_image_size=None,
    )  # fmt: skip
    return t.RTDetrForObjectDetection(config), _image(64), _BOXES


def _mask2former(t: Any) -> Made:
    stages = t.SwinConfig(
        **{**_WINDOWS, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4], "embed_dim": 16},
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = t.Mask2FormerConfig(
        **_BACKBONE, backbone_config=stages, feature_size=32, mask_feature_size=32, hidden_dim=32,
        encoder_feedforward_dim=64, encoder_layers=1, decoder_layers=2, num_attention_heads=4,
        dim_feedforward=64, num_queries=10,
    )  # fmt: skip
    model = t.Mask2FormerForUniversalSegmentation(config)
    return model, _image(64), ("class_queries_logits", "masks_queries_logits")


def _sam(t: Any) -> Made:
    config = t.SamConfig(
        vision_config={
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64,
            "patch_size": 8, "output_channels": 32, "window_size": 3, "global_attn_indexes": [1],
            "mlp_dim": 128, "num_pos_feats": 16,
        },
        prompt_encoder_config={
            "hidden_size": 32, "image_size": 64, "patch_size": 8, "mask_input_channels": 8,
        },
        mask_decoder_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 64,
            "iou_head_hidden_dim": 32,
        },
    )  # fmt: skip
    torch = _torch()
    points = {
        "input_points": torch.rand(2, 1, 3, 2) * 64,
        "input_labels": torch.ones(2, 1, 3, dtype=torch.long),
    }
    return t.SamModel(config), {**_image(64), **points}, ("pred_masks", "iou_scores")


def _two_towers(t: Any, kind: str) -> Made:
    config = getattr(t, f"{kind}Config")(
        text_config={**_TEXT, "max_position_embeddings": 16, "eos_token_id": 98},
        vision_config={**_LAYERS, "image_size": 32, "patch_size": 8},
    )
    tokens = _tokens(10) if kind == "CLIP" else {"input_ids": _ids(10)}
    wanted = ("logits_per_image", "text_embeds", "image_embeds")
    return getattr(t, f"{kind}Model")(config), {**tokens, **_image(32)}, wanted


def _depth_anything(t: Any) -> Made:
    layers = {k: v for k, v in _LAYERS.items() if k != "intermediate_size"}
    stages = t.Dinov2Config(
        **layers, image_size=56, patch_size=14, out_features=["stage1", "stage2"],
        reshape_hidden_states=False,
    )  # fmt: skip
    config = t.DepthAnythingConfig(
        backbone_config=stages, neck_hidden_sizes=[16, 32], reassemble_hidden_size=64,
        reassemble_factors=[2, 1], fusion_hidden_size=16, head_hidden_size=8, patch_size=14,
    )  # fmt: skip
    return t.DepthAnythingForDepthEstimation(config), _image(56), ()


def _whisper(t: Any) -> Made:
    config = t.WhisperConfig(
        **_CODER, vocab_size=99, max_source_positions=50, max_target_positions=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    sound = {"input_features": _torch().randn(2, 80, 100), "decoder_input_ids": _ids(7)}
    return t.WhisperModel(config), sound, ()


def _speecht5(t: Any) -> Made:
    speech = {k: v for k, v in _SPEECH.items() if k.startswith(("conv", "num_conv"))}
    coder = {k: v for k, v in _CODER.items() if k != "d_model"}
    config = t.SpeechT5Config(**speech, **coder, vocab_size=99, hidden_size=64)
    return t.SpeechT5ForSpeechToText(config), {**_wave(), "decoder_input_ids": _ids(7)}, ("logits",)


def _plain(kind: str, options: dict[str, Any], inputs: Callable[[], dict[str, Any]], *more: str,
           model: str = "Model") -> Callable[[Any], Made]:  # fmt: skip
    def make(t: Any) -> Made:
        config = getattr(t, f"{kind}Config")(**options)
        return getattr(t, f"{kind}{model}")(config), inputs(), more

    return make


_DECODER = {"model": "ForCausalLM"}
ARCHITECTURES: dict[str, Callable[[Any], Made]] = {
    "bart": _plain(
        "Bart", {**_CODER, "vocab_size": 99, "max_position_embeddings": 64},
        lambda: {**_tokens(), "decoder_input_ids": _ids(7)},
    ),
    "beit": _plain(
        "Beit", {**_TEXT, "image_size": 64, "use_relative_position_bias": True},
        lambda: _image(64),
    ),
    "clip": lambda t: _two_towers(t, "CLIP"),
    "conformer": _plain(
        "Wav2Vec2Conformer", {**_SPEECH, "position_embeddings_type": "relative"}, _wave
    ),
    "convnext": _plain(
        "ConvNextV2", {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]},
        lambda: _image(64),
    ),
    "deberta": _plain(
        "DebertaV2", {
            **_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "max_position_embeddings": 32,
        }, _tokens,
    ),
    "deformable_detr": _deformable,
    "depth_anything": _depth_anything,
    "detr": lambda t: (
        t.DetrForObjectDetection(t.DetrConfig(
            **_BACKBONE, **_CODER, num_queries=10,
            backbone_config=t.ResNetConfig(**_RESNET, out_features=["stage4"]),
        )), _image(64), _BOXES,
    ),
    "dinov2": _plain(
        "Dinov2", {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56,
            "patch_size": 14,
        }, lambda: _image(56),
    ),
    "funnel": _plain(
        "Funnel", {
            "vocab_size": 99, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128,
            "block_sizes": [1, 1], "num_decoder_layers": 1,
        }, lambda: _tokens(16),
    ),
    "gemma2": _plain(
        "Gemma2", {
            **_TEXT, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16,
            "sliding_window": 8, "attn_implementation": "eager",
        }, _tokens, "logits", **_DECODER,
    ),
    "hiera": _plain(
        "Hiera", {
            "embed_dim": 32, "image_size": [64, 64], "depths": [1, 2, 2, 1],
            "num_heads": [1, 2, 4, 8], "mask_ratio": 0.0,
        }, lambda: _image(64),
    ),
    "mamba": _plain(
        "Mamba", {"vocab_size": 99, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
        lambda: {"input_ids": _ids(6)}, "logits", **_DECODER,
    ),
    "mamba2": _plain(
        "Mamba2", {
            "vocab_size": 99, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2,
            "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4,
        }, lambda: {"input_ids": _ids(8)}, "logits", **_DECODER,
    ),
    "mask2former": _mask2former,
    "mobilevit": _plain(
        "MobileViT", {
            "image_size": 64, "hidden_sizes": [32, 48, 64],
            "neck_hidden_sizes": [8, 16, 24, 32, 48, 64, 80],
        }, lambda: _image(64),
    ),
    "modernbert": _plain(
        "ModernBert", {
            **_TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
            "sep_token_id": 2, "global_attn_every_n_layers": 2, "local_attention": 8,
        }, _tokens,
    ),
    "qwen2": _plain("Qwen2", {**_TEXT, "num_key_value_heads": 2}, _tokens, "logits", **_DECODER),
    "rtdetr": _rt_detr,
    "rwkv": _plain(
        "Rwkv", {
            "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2,
            "attention_hidden_size": 32, "intermediate_size": 64, "context_length": 16,
        }, lambda: {"input_ids": _ids(6)}, "logits", **_DECODER,
    ),
    "sam": _sam,
    "segformer": _plain(
        "Segformer", {
            "hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32,
        }, lambda: _image(64), "logits", model="ForSemanticSegmentation",
    ),
    "siglip": lambda t: _two_towers(t, "Siglip"),
    "speecht5": _speecht5,
    "swin": _plain("Swin", _WINDOWS, lambda: _image(64)),
    "swinv2": _plain("Swinv2", _WINDOWS, lambda: _image(64)),
    "t5": _plain(
        "T5", {"vocab_size": 99, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
               "num_heads": 4, "decoder_start_token_id": 0},
        lambda: {**_tokens(), "decoder_input_ids": _ids(7)},
    ),
    "vits": lambda t: (t.VitsModel(t.VitsConfig(**_VITS)), {"input_ids": _ids(12)[:1] % 37}, ()),
    "wav2vec2_stable": _plain(
        "Wav2Vec2", {**_SPEECH, "do_stable_layer_norm": True, "feat_extract_norm": "layer"},
        lambda: {**_wave(), "attention_mask": _torch().ones(2, 2000, dtype=_torch().long)},
    ),
    "wav2vec2": _plain("Wav2Vec2", _SPEECH, _wave, "logits", model="ForCTC"),
    "whisper": _whisper,
    "xlnet": _plain(
        "XLNet", {"vocab_size": 99, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
        _tokens,
    ),
    "yolos": _plain(
        "Yolos", {**_LAYERS, "image_size": [64, 64], "num_detection_tokens": 10},
        lambda: _image(64), *_BOXES, model="ForObjectDetection",
    ),
}  # fmt: skip


def export(name: str, path: Path, exporter: str) -> None:
    """Writes the model; with a batch of two where the exporter does not follow a dynamic one."""
    torch, transformers = _torch(), importlib.import_module("transformers")
    torch.manual_seed(0)
    model, inputs, wanted = ARCHITECTURES[name](transformers)
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False

    class Flat(torch.nn.Module):  # type: ignore[misc, name-defined]
        """The model with inputs by place and tensors as results."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any) -> Any:
            out = self.model(**dict(zip(inputs, args, strict=True)))
            return tuple(getattr(out, w) for w in wanted) if wanted else out[0]

    flat, args = Flat().eval(), tuple(inputs.values())
    common: dict[str, Any] = {"input_names": list(inputs)}
    if exporter == "torchscript":
        axes = {k: {0: "batch"} for k in inputs}
        torch.onnx.export(
            flat, args, str(path), dynamo=False, opset_version=17, dynamic_axes=axes, **common
        )
        return
    common |= {"dynamo": True, "opset_version": 20, "external_data": False}
    shapes = ({0: torch.export.Dim.DYNAMIC},) * len(args)
    try:
        torch.onnx.export(flat, args, str(path), dynamic_shapes=(shapes,), verbose=False, **common)
    except Exception:
        torch.onnx.export(flat, args, str(path), verbose=False, **common)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--exporter", default="torchscript", choices=("torchscript", "dynamo"))
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES), choices=ARCHITECTURES)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    failed = 0
    for name in args.only:
        try:
            export(name, args.folder / f"{name}.onnx", args.exporter)
        except Exception as e:  # an operator that the exporter lacks
            failed += 1
            print(f"{name}: {type(e).__name__}: {' '.join(str(e).split())[:200]}", file=sys.stderr)
    return int(failed == len(args.only))


if __name__ == "__main__":
    sys.exit(main())
