"""MobileNetV3-Large, as torchvision exports it: HardSwish, squeeze-excite gated by HardSigmoid."""

from __future__ import annotations

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value

Block = tuple[int, int, int, bool, str, int]
#: kernel, hidden channels, channels, squeeze-excite, activation, stride
BLOCKS: tuple[Block, ...] = (
    (3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hardswish", 2), (3, 200, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1), (3, 184, 80, False, "hardswish", 1),
    (3, 480, 112, True, "hardswish", 1), (3, 672, 112, True, "hardswish", 1),
    (5, 672, 160, True, "hardswish", 2), (5, 960, 160, True, "hardswish", 1),
    (5, 960, 160, True, "hardswish", 1),
)  # fmt: skip


def inverted_residual(net: Net, x: Value, block: Block, name: str) -> Value:
    """Expansion, depthwise, squeeze-excite, projection; a residual where shapes agree."""
    kernel, hidden, channels, excite, act, stride = block
    with net.scope(name):
        y = x if hidden == x.width else net.conv_bn(x, hidden, 1, 1, act, eps=1e-3, name="0")
        y = net.conv_bn(y, hidden, kernel, stride, act, groups=hidden, eps=1e-3, name="1")
        if excite:
            y = net.squeeze_excite(
                y, max(8, (hidden // 4 + 4) // 8 * 8), "relu", "hardsigmoid", name="2"
            )
        y = net.conv_bn(y, channels, 1, eps=1e-3, name="3")
        return net.add(y, x) if stride == 1 and x.width == channels else y


def build(
    batch: int = 1,
    image: int = 224,
    *,
    dynamic: bool = True,
    blocks: tuple[Block, ...] = BLOCKS,
    classes: int = 1000,
    folded: bool = False,
    seed: int = 3,
) -> onnx.ModelProto:
    """input [batch, 3, image, image] -> output [batch, classes]. `folded`: no batch-norm nodes."""
    b = "batch" if dynamic else batch
    net = Net("mobilenet_v3", seed=seed, folded=folded)
    x = net.input("input", [b, 3, image, image], width=3)
    x = net.conv_bn(x, 16, 3, 2, "hardswish", eps=1e-3, name="features.0")
    for k, block in enumerate(blocks):
        x = inverted_residual(net, x, block, f"features.{k + 1}")
    x = net.conv_bn(x, 6 * x.width, 1, 1, "hardswish", eps=1e-3, name=f"features.{len(blocks) + 1}")
    x = net.op("Flatten", net.global_pool(x), axis=1)
    x = net.act(net.classifier(x, 1280, name="classifier.0"), "hardswish")
    return net.model(
        [("output", net.classifier(x, classes, name="classifier.3"), np.float32, [b, classes])]
    )
