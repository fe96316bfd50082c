"""A small image classifier for `tracea-onnx demo`: conv-bn-act, depthwise, squeeze-excite,
residual, gemm; built in well under a second.
"""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value


def block(net: Net, x: Value, channels: int, stride: int, name: str) -> Value:
    """Expansion, depthwise 3x3, squeeze-excite, projection, residual: SiLU throughout."""
    with net.scope(name):
        hidden = 4 * x.width
        y = net.conv_bn(x, hidden, 1, 1, "silu", name="expand")
        y = net.conv_bn(y, hidden, 3, stride, "silu", groups=hidden, name="depthwise")
        y = net.squeeze_excite(y, hidden // 8, "silu", "sigmoid")
        y = net.conv_bn(y, channels, 1, name="project")
        return net.add(y, x) if stride == 1 and x.width == channels else y


def build(
    batch: int = 1, image: int = 128, *, dynamic: bool = True, classes: int = 100, seed: int = 1
) -> onnx.ModelProto:
    """input [batch, 3, image, image] -> output [batch, classes], class probabilities."""
    b = "batch" if dynamic else batch
    net = Net("demo", seed=seed)
    x = net.input("input", [b, 3, image, image], width=3)
    x = net.conv_bn(x, 32, 3, 2, "relu", name="stem")
    y = net.conv_bn(x, 32, 3, 1, "relu", name="res.0")
    y = net.conv_bn(y, 32, 3, 1, name="res.1")
    x = net.act(net.add(y, x), "relu")
    for k, (channels, stride) in enumerate(((48, 2), (48, 1), (96, 2), (96, 1))):
        x = block(net, x, channels, stride, f"block.{k}")
    x = net.conv_bn(x, 384, 1, 1, "hardswish", name="head")
    x = net.op("Flatten", net.global_pool(x), axis=1)
    x = net.act(net.classifier(x, 256, name="fc1"), "relu")
    x = net.op("Softmax", net.classifier(x, classes, name="fc2"), axis=1)
    return net.model([("output", x, np.float32, [b, classes])])
