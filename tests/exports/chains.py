"""What must fuse in each chain of the matrix: fused operators by count, and how many plain nodes
may stay beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Chain:
    """fused: operator of the rewritten model -> calls (`A|B` counts either). left: plain nodes that
    no fusion is expected to take (None: any number).

    alone: operators that say a fused operator's chain in one node, which need not fuse.
    """

    fused: Mapping[str, int]
    left: int | None = 0
    alone: tuple[str, ...] = ()


_CONV = Chain({"Conv": 1})
_GEMM = Chain({"Gemm": 1})
_ATTENTION = Chain({"Attention": 1, "Gemm": 4})
_PACKED = Chain({"Attention": 1, "Gemm": 2})
_SE = Chain({"SqueezeExcite": 1})
_ROPE = Chain({"RotaryEmbedding": 1}, alone=("RotaryEmbedding",))
# what computes the tables from positions runs once for all layers
_TABLES = Chain({"RotaryEmbedding": 1}, left=None, alone=("RotaryEmbedding",))
_RMS = Chain({"RMSNorm": 1}, alone=("RMSNormalization", "SimplifiedLayerNormalization"))
_LN = Chain({"LayerNorm": 1}, alone=("LayerNormalization",))

CHAINS: dict[str, Chain] = {
    **dict.fromkeys(
        (
            "conv_bn_relu", "conv_bn_relu6", "conv_bn_leaky", "conv_bn_silu", "conv_bn_hswish",
            "conv_bn_mish", "conv_bn_gelu", "conv_bn_hswish_div",
            "conv_bn_hswish_inner", "conv_bn_hswish_mul", "conv_bn_hswish_sigmoid",
            "conv_bn_hswish_clamp", "conv_bn_relu_unfolded", "conv_bn_silu_unfolded",
            "conv_bn_hswish_div_unfolded", "conv_bn_add_relu", "conv_bn_add_relu_swapped",
            "conv_bn_add_relu_unfolded", "conv_add_silu", "conv1d_gelu",
            "conv1d_as_2d",
        ),
        _CONV,
    ),
    "depthwise_separable": Chain({"Conv": 2}),
    "conv_transpose_bn_relu": Chain({"ConvTranspose": 1}),
    "conv_transpose_bn_relu_unfolded": Chain({"ConvTranspose": 1}),
    "concat_bn_relu": Chain({"BatchNorm": 1}, left=1),
    "preactivation": Chain({"BatchNorm": 1, "Conv": 1}),
    **dict.fromkeys(("se_pool", "se_hard", "se_mean_silu", "se_linear"), _SE),
    **dict.fromkeys([f"linear_gelu_{k}"
            for k in ("erf", "python", "half_last", "tanh", "new", "fast", "cubed", "quick")],
            _GEMM),
    "gelu_erf": Chain({"Pointwise": 1}, alone=("Gelu",)),
    "silu": Chain({"Pointwise": 1}, alone=("Swish",)),
    "mish": Chain({"Pointwise": 1}, alone=("Mish",)),
    "hardswish": Chain({"Pointwise": 1}, alone=("HardSwish",)),
    "linear_2d": Chain({"Gemm": 1}, alone=("Gemm",)),
    **dict.fromkeys(("linear_3d", "linear_bias_first", "linear_relu", "linear_residual",
            "gpt2_conv1d"), _GEMM),
    "mlp_gelu": Chain({"Gemm": 2}),
    "mlp_relu": Chain({"Gemm": 2}),
    "swiglu": Chain({"SwiGLU": 1}, left=1),
    "swiglu_packed": Chain({"SwiGLU": 1}),
    "geglu": Chain({"SwiGLU": 1}, left=1),
    **dict.fromkeys(("layernorm_nn", "layernorm_manual", "layernorm_rsqrt", "layernorm_var",
            "layernorm_transposed", "layernorm_channels_first"), _LN),
    "layernorm_skip": Chain({"SkipLayerNorm": 1}),
    # either the product or the norm takes the sum
    "layernorm_skip_bias": Chain({"Gemm|SkipLayerNorm": 1}, left=2),
    **dict.fromkeys([f"rmsnorm_{k}" for k in ("llama", "llama_fp16", "gemma", "div", "nn")], _RMS),
    "rmsnorm_skip": Chain({"SkipRMSNorm": 1}),
    "groupnorm": Chain({"GroupNorm": 1}, alone=("GroupNormalization",)),
    "groupnorm_silu_conv": Chain({"GroupNorm": 1}, left=1),
    "instancenorm_relu": Chain({"InstanceNorm": 1}),
    "embedding_norm": Chain({"SkipLayerNorm|LayerNorm": 1}, left=2),
    "embedding_bert": Chain({"SkipLayerNorm|LayerNorm": 1}, left=3),
    **dict.fromkeys(
        [
            f"attn_eager_{k}"
            for k in ("plain", "mul", "mask", "scale_q", "sqrt_both", "bool", "finfo", "extended",
                "causal_buffer", "causal_where", "einsum", "bmm")
        ],
        Chain({"Attention": 1, "Gemm": 4}, left=3),  # a mask is brought to rank 4
    ),
    "attn_eager_alibi": _ATTENTION,
    **dict.fromkeys([f"attn_sdpa_{k}" for k in ("plain", "mask", "bool", "causal")], _ATTENTION),
    **dict.fromkeys([f"attn_packed_{k}"
            for k in ("timm", "timm_eager", "chunk", "slice", "per_head")], _PACKED),
    # nn.MultiheadAttention computes with the sequence first: transposes at both ends stay.
    **dict.fromkeys([f"attn_mha_{k}" for k in ("self", "padding", "sequence_first", "cross")],
        Chain({"Attention": 1, "Gemm": 1}, left=None)),
    "attn_mha_layer": Chain({"Attention": 1, "Gemm": 2, "SkipLayerNorm": 1}, left=None),
    "attn_cross_eager": _ATTENTION,
    "attn_cross_sdpa": _ATTENTION,
    **dict.fromkeys([f"attn_gqa_{k}" for k in ("expand", "sdpa", "interleave")],
        Chain({"Attention": 1, "Gemm": 1}, left=3)),
    **dict.fromkeys([f"attn_cache_{k}" for k in ("eager", "sdpa")],
        Chain({"Attention": 1, "Gemm": 4}, left=None)),
    **dict.fromkeys([f"attn_bias_{k}" for k in ("t5", "swin", "swin_shifted", "deberta")],
        Chain({"Attention": 1, "Gemm": 4}, left=None)),
    **dict.fromkeys([f"rope_{k}" for k in ("apply", "pairs", "halves", "partial")], _ROPE),
    **dict.fromkeys([f"rope_{k}" for k in ("gptj", "full")], _TABLES),
    "tf_conv_same_bn_relu6": Chain({"Conv": 1}, left=2),  # the transposes from and to channels last
    "tf_nhwc_residual": Chain({"Conv": 2}, left=2),
    "tf_nhwc_upsampling": Chain({"ConvTranspose": 1}, left=2),
    "tf_depthwise_scale_hswish": _CONV,
    "tf_depthwise_scale_mish": _CONV,
    **dict.fromkeys([f"tf_se_{k}" for k in ("pool", "swish", "reshaped", "dense")], _SE),
    "tf_dense_gelu_erf": _GEMM,
    "tf_dense_gelu_pow": _GEMM,
    "tf_gated_dense": Chain({"SwiGLU": 1}),
    "tf_layernorm_keras": _LN,
    "tf_layernorm_early": _LN,
    "tf_attention": Chain({"Attention": 1, "Gemm": 4}, left=4),
    "tf_attention_scaled_query": Chain({"Attention": 1, "Gemm": 4}, left=4),
    **dict.fromkeys([f"tf_attention_{k}" for k in ("subtracted", "prescaled", "flat", "spelled")],
        Chain({"Attention": 1, "Gemm": 4}, left=4)),
    "tf_attention_einsum": Chain({"Attention": 1}, left=8),
    "ort_fused_conv": _CONV,
    **dict.fromkeys([f"ort_gelu_{k}" for k in ("bias", "fast", "plain", "quick")],
        Chain({"Gemm": 2})),
    # Attention holds its projections, and the norm is one operator
    "ort_packed": Chain({"Gemm": 2}, left=2),
    "ort_attention": Chain({"Attention": 1, "Gemm": 3, "SkipLayerNorm": 1},
        alone=("SkipLayerNormalization",)),
    "ort_mha": Chain({"Attention": 1, "Gemm": 3, "SkipLayerNorm": 1},
        alone=("SkipLayerNormalization", "MultiHeadAttention")),
    # Whole networks: two layers each, with cross attention in decoders; Swin has two stages of two.
    **{
        f"{name}_{how}": Chain({"Attention": layers}, left=None)
        for how in ("eager", "sdpa")
        for name, layers in {
            **dict.fromkeys(
                (
                    "bert", "distilbert", "roberta", "albert", "gpt2", "llama", "qwen2", "gpt_neox",
                    "opt", "vit", "clip_vision", "clip_text",
                    "whisper_encoder", "bart_encoder",
                ),
                2,
            ),
            "whisper_decoder": 4, "bart_decoder": 4,
        }.items()
    },
    **{f"{name}_eager": Chain({"Attention": 2}, left=None)
        for name in ("gemma", "gptj", "t5_encoder", "bloom", "deberta", "dinov3", "codegen", "xglm",
            "xlm")},
    "t5_decoder_eager": Chain({"Attention": 4}, left=None),
    "swin_eager": Chain({"Attention": 4}, left=None),
    **{f"{name}_cache_{how}": Chain({"Attention": 2}, left=None) for name,
        how in (("gpt2", "sdpa"), ("llama", "eager"), ("llama", "sdpa"), ("opt", "eager"))},
}  # fmt: skip

#: Files whose chain does not fuse, and why; everything else must.
GAPS: dict[str, str] = {}
