"""A nano one-stage detector in the manner of YOLOv8n: CSP blocks with SiLU, SPPF, a two-way feature
pyramid, distribution-focal boxes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tracea_onnx.model_io.builder import Net, Value

BINS = 16


def conv(
    net: Net, x: Value, channels: int, kernel: int = 1, stride: int = 1, *, name: str
) -> Value:
    """Convolution, batch norm and SiLU."""
    return net.conv_bn(x, channels, kernel, stride, "silu", eps=1e-3, name=name)


def csp(net: Net, x: Value, channels: int, blocks: int, *, shortcut: bool, name: str) -> Value:
    """Split the channels in two, send one half through `blocks` bottlenecks, concatenate every
    stage, mix by a 1x1 convolution.
    """
    half = channels // 2
    with net.scope(name):
        y = conv(net, x, channels, name="cv1")
        parts = net.split("Split", [y, np.asarray([half, half], np.int64)], 2, width=half, axis=1)
        for k in range(blocks):
            with net.scope(f"m.{k}"):
                z = conv(net, conv(net, parts[-1], half, 3, name="cv1"), half, 3, name="cv2")
                parts.append(net.add(parts[-1], z) if shortcut else z)
        return conv(net, net.concat(parts), channels, name="cv2")


def sppf(net: Net, x: Value, name: str) -> Value:
    """Three chained 5x5 max pools, concatenated with their input between two 1x1 convolutions."""
    with net.scope(name):
        parts = [conv(net, x, x.width // 2, name="cv1")]
        for _ in range(3):
            parts.append(net.max_pool(parts[-1], 5, 1, 2))
        return conv(net, net.concat(parts), x.width, name="cv2")


def upsample(net: Net, x: Value) -> Value:
    """Twice the height and width, by nearest neighbours."""
    scales = np.asarray([1, 1, 2, 2], np.float32)
    return net.op(
        "Resize",
        x,
        None,
        scales,
        coordinate_transformation_mode="asymmetric",
        cubic_coeff_a=-0.75,
        mode="nearest",
        nearest_mode="floor",
    )


def boxes(net: Net, x: Value, anchors: int, grid: Sequence[int], strides: Sequence[int]) -> Value:
    """[batch, 4 * BINS, anchors] logits over distances -> [batch, 4, anchors] centre x, centre y,
    width, height in pixels.
    """
    f32, i64 = np.float32, np.int64
    with net.scope("dfl"):
        y = net.transpose(net.reshape(x, [-1, 4, BINS, anchors]), 0, 2, 1, 3)
        y = net.op("Softmax", y, axis=1, width=BINS)
        bins = net.parameter("conv.weight", np.arange(BINS, dtype=f32).reshape(1, BINS, 1, 1))
        y = net.op(
            "Conv",
            y,
            bins,
            dilations=[1, 1],
            group=1,
            kernel_shape=[1, 1],
            pads=[0] * 4,
            strides=[1, 1],
        )
        y = net.reshape(y, [-1, 4, anchors])
    axis, one = np.asarray([1], i64), np.asarray([1], i64)
    left_top = net.op("Slice", y, np.asarray([0], i64), np.asarray([2], i64), axis, one)
    right_bottom = net.op("Slice", y, np.asarray([2], i64), np.asarray([4], i64), axis, one)
    points = [
        np.stack(np.meshgrid(np.arange(g) + 0.5, np.arange(g) + 0.5), 0).reshape(2, -1)
        for g in grid
    ]
    centers = net.constant(np.concatenate(points, 1)[None], f32)
    low, high = net.op("Sub", centers, left_top), net.op("Add", centers, right_bottom)
    middle = net.op("Div", net.op("Add", low, high), np.asarray(2, f32))
    size = net.op("Sub", high, low)
    scale = np.concatenate([np.full(g * g, s, f32) for g, s in zip(grid, strides, strict=True)])[
        None
    ]
    return net.op("Mul", net.op("Concat", middle, size, axis=1), scale)


def detect(
    net: Net, maps: Sequence[Value], classes: int, grid: Sequence[int], strides: Sequence[int]
) -> Value:
    """Per level a box branch and a class branch; all levels joined: [batch, 4 + classes,
    anchors].
    """
    box_width, class_width = (
        max(16, maps[0].width // 4, 4 * BINS),
        max(maps[0].width, min(classes, 100)),
    )
    flat = []
    for k, x in enumerate(maps):
        with net.scope(f"cv.{k}"):
            b = conv(net, conv(net, x, box_width, 3, name="box.0"), box_width, 3, name="box.1")
            c = conv(net, conv(net, x, class_width, 3, name="cls.0"), class_width, 3, name="cls.1")
            y = net.concat(
                [net.conv(b, 4 * BINS, name="box.2"), net.conv(c, classes, name="cls.2")]
            )
            flat.append(net.reshape(y, [-1, y.width, grid[k] * grid[k]]))
    box, scores = net.split(
        "Split", [net.concat(flat, 2), np.asarray([4 * BINS, classes], np.int64)], 2, axis=1
    )
    anchors = sum(g * g for g in grid)
    return net.op(
        "Concat", boxes(net, box, anchors, grid, strides), net.op("Sigmoid", scores), axis=1
    )


def build(
    batch: int = 1,
    image: int = 640,
    *,
    dynamic: bool = True,
    width: int = 16,
    depth: int = 1,
    classes: int = 80,
    folded: bool = True,
    seed: int = 8,
) -> onnx.ModelProto:
    """images [batch, 3, image, image] -> output0 [batch, 4 + classes, anchors].

    `image` is a multiple of 32; the smallest level has (image / 32)^2 anchors.
    """
    if image % 32:
        raise ValueError(f"image is {image}; it must be a multiple of 32")
    b = "batch" if dynamic else batch
    net = Net("yolo_nano", seed=seed, folded=folded)
    x = net.input("images", [b, 3, image, image], width=3)
    x = conv(net, x, width, 3, 2, name="model.0")
    x = csp(
        net,
        conv(net, x, 2 * width, 3, 2, name="model.1"),
        2 * width,
        depth,
        shortcut=True,
        name="model.2",
    )
    p3 = csp(
        net,
        conv(net, x, 4 * width, 3, 2, name="model.3"),
        4 * width,
        2 * depth,
        shortcut=True,
        name="model.4",
    )
    p4 = csp(
        net,
        conv(net, p3, 8 * width, 3, 2, name="model.5"),
        8 * width,
        2 * depth,
        shortcut=True,
        name="model.6",
    )
    p5 = csp(
        net,
        conv(net, p4, 16 * width, 3, 2, name="model.7"),
        16 * width,
        depth,
        shortcut=True,
        name="model.8",
    )
    p5 = sppf(net, p5, "model.9")
    n4 = csp(
        net, net.concat([upsample(net, p5), p4]), 8 * width, depth, shortcut=False, name="model.12"
    )
    n3 = csp(
        net, net.concat([upsample(net, n4), p3]), 4 * width, depth, shortcut=False, name="model.15"
    )
    n4 = csp(
        net,
        net.concat([conv(net, n3, 4 * width, 3, 2, name="model.16"), n4]),
        8 * width,
        depth,
        shortcut=False,
        name="model.18",
    )
    n5 = csp(
        net,
        net.concat([conv(net, n4, 8 * width, 3, 2, name="model.19"), p5]),
        16 * width,
        depth,
        shortcut=False,
        name="model.21",
    )
    strides = (8, 16, 32)
    grid = [image // s for s in strides]
    with net.scope("model.22"):
        y = detect(net, [n3, n4, n5], classes, grid, strides)
    return net.model([("output0", y, np.float32, [b, 4 + classes, sum(g * g for g in grid)])])
