"""Images laid out again, and tensors cropped or grown around their center, against definitions in
numpy and ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import run

RNG = np.random.default_rng(0)


def _signal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("n", "c", "image", "block"),
    [(2, 3, (6, 8), (3, 2)), (1, 5, (7, 7), (7, 1)), (3, 1, (4, 4), (1, 1)), (2, 2, (9,), (3,))],
)
def test_blocks_that_tile_an_image(
    n: int, c: int, image: tuple[int, ...], block: tuple[int, ...], known: bool
) -> None:
    counts = [a // b for a, b in zip(image, block, strict=True)]
    x = _signal(n, c * int(np.prod(block)), int(np.prod(counts)))
    stored = {"image": np.array(image), "block": np.array(block)}
    got, peer = run("Col2Im", {"x": x}, stored, known=known, strides=list(block))
    blocks = x.reshape(n, c, *block, *counts)
    k = len(block)
    order = [0, 1, *(a for i in range(k) for a in (2 + k + i, 2 + i))]
    np.testing.assert_array_equal(got, blocks.transpose(order).reshape(n, c, *image))
    if k == 2:  # of one axis ONNX Runtime 1.24 reads what is not there
        np.testing.assert_array_equal(got, peer)


@pytest.mark.parametrize("kind", [np.float32, np.int8])
@pytest.mark.parametrize(
    ("shape", "to", "axes"),
    [
        ((9, 7, 3), (4, 10, 3), None),
        ((8, 8), (5, 5), None),
        ((2, 5, 8, 3), (8, 7), (1, 2)),
        ((2, 5, 8, 3), (3,), (-2,)),
        ((5,), (6,), None),
        ((6,), (1,), None),
    ],
)
def test_around_the_center(shape: Any, to: Any, axes: Any, kind: Any) -> None:
    x = (_signal(*shape) * 50).astype(kind)
    attrs: dict[str, Any] = {} if axes is None else {"axes": list(axes)}
    want = x
    for axis, size in zip(axes or range(len(shape)), to, strict=True):
        have = want.shape[axis]
        cut = max(have - size, 0) // 2
        want = np.take(want, range(cut, cut + min(have, size)), axis)
        grown = max(size - have, 0)
        pads = [(0, 0)] * want.ndim
        pads[axis] = (grown // 2, grown - grown // 2)
        want = np.pad(want, pads)
    got, peer = run("CenterCropPad", {"x": x}, {"to": np.array(to)}, known=True, **attrs)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, peer)
    got, _ = run("CenterCropPad", {"x": x}, {"to": np.array(to)}, **attrs)  # of unknown sizes
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((2, 3, 5, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ((1, 5, 3, 3), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 0]}),
        ((2, 2, 7), {"kernel_shape": [3], "strides": [2]}),
    ],
)
def test_what_a_pooling_took(shape: Any, window: dict[str, Any]) -> None:
    x, rank = _signal(*shape), len(shape) - 2
    pads, sizes = window.get("pads", [0] * 2 * rank), []
    for k, (d, taps, step) in enumerate(
        zip(shape[2:], window["kernel_shape"], window["strides"], strict=True)
    ):
        sizes.append((d - 1) * step + taps - pads[k] - pads[k + rank])
    want = np.zeros((*shape[:2], *sizes), np.float32)
    places = RNG.permutation(want.size)[: x.size].reshape(shape)
    want.reshape(-1)[places] = x
    got, peer = run("MaxUnpool", {"x": x, "places": places}, {}, known=True, **window)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, peer)


def test_a_place_outside_of_the_image_fails() -> None:
    places = np.array([[[[0, 99]]]])
    with pytest.raises(Exception, match="index"):
        run(
            "MaxUnpool",
            {"x": _signal(1, 1, 1, 2), "places": places},
            {},
            known=True,
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
