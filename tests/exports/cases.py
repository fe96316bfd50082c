"""Name of each torch chain of the matrix -> how to build its module.

What must fuse stands in chains.py under the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from tests.exports import attention as a
from tests.exports import modules as m
from tests.exports.modules import Case

CASES: dict[str, Callable[[], Case]] = {
    **{f"conv_bn_{act}": partial(m.conv_act, act) for act in m.ACTIVATIONS},
    **{f"conv_bn_{act}_unfolded": partial(m.conv_act, act, preserve=True)
        for act in ("relu", "silu", "hswish_div")},
    "conv_bn_add_relu": m.conv_residual,
    "conv_bn_add_relu_swapped": partial(m.conv_residual, swapped=True),
    "conv_bn_add_relu_unfolded": partial(m.conv_residual, preserve=True),
    "conv_add_silu": m.conv_two_inputs,
    "depthwise_separable": m.depthwise_separable,
    "conv_transpose_bn_relu": m.conv_transpose,
    "conv_transpose_bn_relu_unfolded": partial(m.conv_transpose, preserve=True),
    "concat_bn_relu": m.concat_bn,
    "preactivation": m.preactivation,
    "conv1d_gelu": m.conv1d_gelu,
    "conv1d_as_2d": m.conv1d_as_2d,
    "se_pool": partial(m.squeeze_excite, "pool", F.relu, torch.sigmoid),
    "se_hard": partial(m.squeeze_excite, "pool", F.relu, F.hardsigmoid),
    "se_mean_silu": partial(m.squeeze_excite, "mean", F.silu, torch.sigmoid),
    "se_linear": m.squeeze_excite_linear,
    **{f"linear_gelu_{name}": partial(m.linear_gelu, name) for name in m.GELUS},
    "gelu_erf": partial(m.alone, F.gelu),
    "silu": partial(m.alone, F.silu),
    "mish": partial(m.alone, F.mish),
    "hardswish": partial(m.alone, F.hardswish),
    "linear_2d": partial(m.linear, "2d"),
    "linear_3d": partial(m.linear, "3d"),
    "linear_bias_first": partial(m.linear, "bias_first"),
    "linear_relu": partial(m.linear, "relu"),
    "linear_residual": partial(m.linear, "residual"),
    "gpt2_conv1d": partial(m.linear, "gpt2"),
    "mlp_gelu": partial(m.mlp, F.gelu),
    "mlp_relu": partial(m.mlp, F.relu),
    "swiglu": partial(m.swiglu, "silu"),
    "swiglu_packed": partial(m.swiglu, "packed"),
    "geglu": partial(m.swiglu, "gelu"),
    **{f"layernorm_{k}": partial(m.layer_norm, k)
        for k in ("nn", "manual", "rsqrt", "var", "skip", "skip_bias", "transposed",
            "channels_first")},
    **{f"rmsnorm_{k}": partial(m.rms_norm, k)
        for k in ("llama", "llama_fp16", "gemma", "div", "nn", "skip")},
    "groupnorm": partial(m.group_norm, "plain"),
    "groupnorm_silu_conv": partial(m.group_norm, "silu_conv"),
    "instancenorm_relu": partial(m.group_norm, "instance"),
    "embedding_norm": partial(m.embedding, "norm"),
    "embedding_bert": partial(m.embedding, "bert"),
    **{
        f"attn_eager_{k}": partial(a.eager, k)
        for k in (
            "plain", "mul", "mask", "scale_q", "sqrt_both", "bool", "finfo", "extended",
            "causal_buffer", "causal_where", "alibi", "einsum", "bmm"
        )
    },
    **{f"attn_sdpa_{k}": partial(a.sdpa, k) for k in ("plain", "mask", "bool", "causal")},
    **{f"attn_packed_{k}": partial(a.packed, k)
        for k in ("timm", "timm_eager", "chunk", "slice", "per_head")},
    **{f"attn_mha_{k}": partial(a.multihead, k)
        for k in ("self", "cross", "padding", "sequence_first", "layer")},
    **{f"attn_cross_{k}": partial(a.cross, k) for k in ("eager", "sdpa")},
    **{f"attn_gqa_{k}": partial(a.grouped, k) for k in ("expand", "sdpa", "interleave")},
    **{f"attn_cache_{k}": partial(a.cached, k) for k in ("eager", "sdpa")},
    **{f"attn_bias_{k}": partial(a.biased, k) for k in ("t5", "swin", "swin_shifted", "deberta")},
    **{f"rope_{k}": partial(a.rope, k)
        for k in ("apply", "pairs", "halves", "partial", "gptj", "full")},
}  # fmt: skip
