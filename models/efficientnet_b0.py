"""EfficientNet-B0, as torchvision exports it: SiLU as Sigmoid and Mul, squeeze-excite in every
block.
"""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value

Stage = tuple[int, int, int, int, int]
#: expansion, kernel, stride of the first block, channels, blocks
STAGES: tuple[Stage, ...] = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def mbconv(
    net: Net, x: Value, channels: int, kernel: int, stride: int, expansion: int, name: str
) -> Value:
    """Expansion, depthwise, squeeze-excite, projection; a residual where shapes agree."""
    with net.scope(name):
        hidden = x.width * expansion
        y = x if expansion == 1 else net.conv_bn(x, hidden, 1, 1, "silu", name="0")
        y = net.conv_bn(y, hidden, kernel, stride, "silu", groups=hidden, name="1")
        y = net.squeeze_excite(y, max(1, x.width // 4), "silu", "sigmoid", name="2")
        y = net.conv_bn(y, channels, 1, gain=0.5, name="3")
        return net.add(y, x) if stride == 1 and x.width == channels else y


def build(
    batch: int = 1, image: int = 224, *, dynamic: bool = True, stages: tuple[Stage, ...] = STAGES,
    head: int = 1280, classes: int = 1000,
    folded: bool = False, seed: int = 10,
) -> onnx.ModelProto:  # fmt: skip
    """input [batch, 3, image, image] -> output [batch, classes]. `folded`: no batch-norm nodes."""
    b = "batch" if dynamic else batch
    net = Net("efficientnet_b0", seed=seed, folded=folded)
    x = net.input("input", [b, 3, image, image], width=3)
    x = net.conv_bn(x, 32, 3, 2, "silu", name="features.0")
    for n, (expansion, kernel, stride, channels, blocks) in enumerate(stages):
        for k in range(blocks):
            x = mbconv(
                net,
                x,
                channels,
                kernel,
                stride if k == 0 else 1,
                expansion,
                f"features.{n + 1}.{k}",
            )
    x = net.conv_bn(x, head, 1, 1, "silu", name=f"features.{len(stages) + 1}")
    x = net.op("Flatten", net.global_pool(x), axis=1)
    return net.model(
        [("output", net.classifier(x, classes, name="classifier.1"), np.float32, [b, classes])]
    )
