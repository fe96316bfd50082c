"""Operators of PyTorch that do the work of a whole module in inference, in operators that have a
conversion to ONNX.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, mask: torch.Tensor | None,
    mask_type: int | None,
) -> torch.Tensor:  # fmt: skip
    """Of [batch, sequence, width]. `mask` is true where nothing is looked at: 0 [queries, keys],
    1 [batch, keys], 2 for every head.
    """
    if mask is not None:
        mask = ~mask.to(torch.bool)
        mask = mask[:, None, None, :] if mask_type == 1 else mask
    split = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v)]
    y = F.scaled_dot_product_attention(*split, attn_mask=mask)
    return y.transpose(1, 2).flatten(-2)


def _encoder_layer(
    x: torch.Tensor, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any,
    out_bias: Any, use_gelu: bool, norm_first: bool, eps: float, norm1_weight: Any, norm1_bias: Any,
    norm2_weight: Any, norm2_bias: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any,
    mask: Any = None, mask_type: Any = None,
) -> torch.Tensor:  # fmt: skip
    """nn.TransformerEncoderLayer."""

    def norm1(t: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(t, (width,), norm1_weight, norm1_bias, eps)

    def norm2(t: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(t, (width,), norm2_weight, norm2_bias, eps)

    def attention(t: torch.Tensor) -> torch.Tensor:
        q, k, v = F.linear(t, qkv_weight, qkv_bias).chunk(3, -1)
        return F.linear(_attention(q, k, v, heads, mask, mask_type), out_weight, out_bias)

    def feed_forward(t: torch.Tensor) -> torch.Tensor:
        t = F.linear(t, weight1, bias1)
        return F.linear(F.gelu(t) if use_gelu else F.relu(t), weight2, bias2)

    if norm_first:
        x = x + attention(norm1(x))
        return x + feed_forward(norm2(x))
    x = norm1(x + attention(x))
    return norm2(x + feed_forward(x))


def _multi_head_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int, heads: int,
    qkv_weight: Any, qkv_bias: Any, out_weight: Any, out_bias: Any, mask: Any = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: Any = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """nn.MultiheadAttention, which takes this path where query, key and value are one tensor."""
    q, k, v = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    y = F.linear(_attention(q, k, v, heads, mask, mask_type), out_weight, out_bias)
    if not need_weights:
        return y, None
    q, k = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k))
    scores = q @ k.transpose(-2, -1) * (width // heads) ** -0.5
    if mask is not None:
        hidden = mask.to(torch.bool)
        hidden = hidden[:, None, None, :] if mask_type == 1 else hidden
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    return y, weights.mean(1) if average_attn_weights else weights


#: By what Dynamo calls.
FAST_PATHS = {
    torch._transformer_encoder_layer_fwd: _encoder_layer,
    torch._native_multi_head_attention: _multi_head_attention,
}
