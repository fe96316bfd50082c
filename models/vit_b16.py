"""ViT-B/16, as timm exports it: packed QKV, the query scaled before the GEMM, pre-norm
blocks.
"""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value


def attention(net: Net, x: Value, tokens: int, heads: int) -> Value:
    """Packed QKV projection, reshaped to [3, batch, heads, tokens, size] and taken apart by
    Gather.
    """
    size = x.width // heads
    qkv = net.linear(x, 3 * x.width, name="qkv")
    qkv = net.transpose(net.reshape(qkv, [-1, tokens, 3, heads, size]), 2, 0, 3, 1, 4)
    q, k, v = (net.op("Gather", qkv, np.asarray(n, np.int64), axis=0) for n in range(3))
    q = net.op("Mul", q, np.asarray(size**-0.5, np.float32))
    scores = net.op("Softmax", net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2)), axis=-1)
    y = net.reshape(net.transpose(net.op("MatMul", scores, v), 0, 2, 1, 3), [-1, tokens, x.width])
    return net.linear(Value(y.tensor, x.width, 0.2), x.width, name="proj")


def build(
    batch: int = 1, image: int = 224, *, dynamic: bool = True, layers: int = 12, hidden: int = 768,
    heads: int = 12, inner: int = 3072, patch: int = 16,
    classes: int = 1000, seed: int = 16,
) -> onnx.ModelProto:  # fmt: skip
    """pixel_values [batch, 3, image, image] -> logits [batch, classes]; image / patch squared
    patches and one class token.
    """
    b = "batch" if dynamic else batch
    patches = (image // patch) ** 2
    net = Net("vit_b16", seed=seed)
    x = net.input("pixel_values", [b, 3, image, image], width=3)
    first = net.op("Gather", net.op("Shape", x), np.asarray([0], np.int64), axis=0)
    x = net.conv(x, hidden, patch, patch, pad=0, name="patch_embed.proj")
    x = net.transpose(net.reshape(x, [0, hidden, patches]), 0, 2, 1)
    token = net.normal("cls_token", (1, 1, hidden), 1.0)
    wide = net.op("Concat", first, np.asarray([-1, -1], np.int64), axis=0)
    # Expand has no -1: tracing replaces it by 1, which broadcasts to the same shape.
    wide = net.op(
        "Where",
        net.op("Equal", wide, np.asarray([-1, -1, -1], np.int64)),
        np.asarray([1, 1, 1], np.int64),
        wide,
    )
    x = net.op("Concat", net.op("Expand", token, wide), x, axis=1, width=hidden)
    x = net.add(x, net.normal("pos_embed", (1, patches + 1, hidden), 0.3))
    for k in range(layers):
        with net.scope(f"blocks.{k}"):
            x = net.add(
                x, attention(net, net.layer_norm(x, eps=1e-6, name="norm1"), patches + 1, heads)
            )
            y = net.act(
                net.linear(net.layer_norm(x, eps=1e-6, name="norm2"), inner, name="mlp.fc1"), "gelu"
            )
            x = net.add(x, net.linear(y, hidden, name="mlp.fc2"))
    x = net.op("Gather", net.layer_norm(x, eps=1e-6, name="norm"), np.asarray(0, np.int64), axis=1)
    return net.model(
        [("logits", net.classifier(x, classes, name="head"), np.float32, [b, classes])]
    )
