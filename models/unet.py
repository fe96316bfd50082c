"""A U-Net for segmentation: two 3x3 convolutions per level with group norm and SiLU, max-pool down,
ConvTranspose up, skips by Concat.
"""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value


def double_conv(net: Net, x: Value, channels: int, groups: int, name: str) -> Value:
    """Twice 3x3 convolution, normalisation, activation: GroupNorm and SiLU, or BatchNorm and ReLU
    when `groups` is 0.
    """
    with net.scope(name):
        for k in ("0", "1"):
            if groups:
                with net.scope(k):
                    x = net.act(
                        net.group_norm(net.conv(x, channels, 3, bias=False), groups), "silu"
                    )
            else:
                x = net.conv_bn(x, channels, 3, 1, "relu", name=k)
        return x


def build(
    batch: int = 1,
    image: int = 256,
    *,
    dynamic: bool = True,
    width: int = 32,
    levels: int = 4,
    groups: int = 8,
    classes: int = 2,
    seed: int = 4,
) -> onnx.ModelProto:
    """input [batch, 3, image, image] -> output [batch, classes, image, image].

    `image` is a multiple of 2 ** levels; `groups` 0 means batch norm.
    """
    if image % (1 << levels):
        raise ValueError(f"image is {image}; it must be a multiple of {1 << levels}")
    b = "batch" if dynamic else batch
    net = Net("unet", seed=seed)
    x = net.input("input", [b, 3, image, image], width=3)
    skips = []
    for k in range(levels):
        x = double_conv(net, x, width << k, groups, f"down.{k}")
        skips.append(x)
        x = net.max_pool(x, 2, 2)
    x = double_conv(net, x, width << levels, groups, "middle")
    for k, skip in reversed(list(enumerate(skips))):
        x = net.concat([skip, net.conv_transpose(x, width << k, name=f"up.{k}.transpose")])
        x = double_conv(net, x, width << k, groups, f"up.{k}")
    return net.model(
        [("output", net.conv(x, classes, name="out"), np.float32, [b, classes, image, image])]
    )
