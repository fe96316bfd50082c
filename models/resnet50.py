"""ResNet-50 (v1.5: the stride is on the 3x3 convolution), as torchvision exports it with its batch
norms kept.
"""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value


def bottleneck(net: Net, x: Value, planes: int, stride: int, name: str) -> Value:
    """1x1, 3x3, 1x1 convolution with a residual; a projection where the shape changes."""
    with net.scope(name):
        y = net.conv_bn(x, planes, 1, 1, "relu", name="conv1")
        y = net.conv_bn(y, planes, 3, stride, "relu", name="conv2")
        y = net.conv_bn(y, 4 * planes, 1, name="conv3")
        if stride != 1 or x.width != 4 * planes:
            x = net.conv_bn(x, 4 * planes, 1, stride, name="downsample")
        total = net.add(y, x)
        # x is already positive, so this Relu halves nothing of its power.
        return net.op("Relu", total, power=total.power)


def build(
    batch: int = 1, image: int = 224, *, dynamic: bool = True,
    layers: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000,
    folded: bool = False, seed: int = 50,
) -> onnx.ModelProto:  # fmt: skip
    """input [batch, 3, image, image] -> output [batch, classes].

    `layers`: blocks per stage; `folded`: no batch-norm nodes.
    """
    b = "batch" if dynamic else batch
    net = Net("resnet50", seed=seed, folded=folded)
    x = net.input("input", [b, 3, image, image], width=3)
    x = net.conv_bn(x, width, 7, 2, "relu", name="conv1")
    x = net.max_pool(x, 3, 2, 1)
    for stage, blocks in enumerate(layers):
        for k in range(blocks):
            x = bottleneck(
                net, x, width << stage, 2 if k == 0 and stage > 0 else 1, f"layer{stage + 1}.{k}"
            )
    x = net.op("Flatten", net.global_pool(x), axis=1)
    return net.model([("output", net.classifier(x, classes), np.float32, [b, classes])])
