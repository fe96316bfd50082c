"""MobileNetV2, as torchvision exports it: inverted residuals, ReLU6 as Clip."""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value

#: expansion, channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def inverted_residual(
    net: Net, x: Value, channels: int, stride: int, expansion: int, name: str
) -> Value:
    """1x1 expansion, depthwise 3x3, linear 1x1 projection; a residual where shapes agree."""
    with net.scope(name):
        hidden = x.width * expansion
        y = x if expansion == 1 else net.conv_bn(x, hidden, 1, 1, "relu6", name="0")
        y = net.conv_bn(y, hidden, 3, stride, "relu6", groups=hidden, name="1")
        y = net.conv_bn(y, channels, 1, name="2")
        return net.add(x, y) if stride == 1 and x.width == channels else y


def build(
    batch: int = 1, image: int = 224, *, dynamic: bool = True,
    stages: tuple[tuple[int, int, int, int], ...] = STAGES, head: int = 1280, classes: int = 1000,
    folded: bool = False, seed: int = 2,
) -> onnx.ModelProto:  # fmt: skip
    """input [batch, 3, image, image] -> output [batch, classes]. `folded`: no batch-norm nodes."""
    b = "batch" if dynamic else batch
    net = Net("mobilenet_v2", seed=seed, folded=folded)
    x = net.input("input", [b, 3, image, image], width=3)
    x = net.conv_bn(x, 32, 3, 2, "relu6", name="features.0")
    n = 1
    for expansion, channels, blocks, stride in stages:
        for k in range(blocks):
            x = inverted_residual(
                net, x, channels, stride if k == 0 else 1, expansion, f"features.{n}"
            )
            n += 1
    x = net.conv_bn(x, head, 1, 1, "relu6", name=f"features.{n}")
    x = net.op("Flatten", net.global_pool(x), axis=1)
    return net.model(
        [("output", net.classifier(x, classes, name="classifier.1"), np.float32, [b, classes])]
    )
