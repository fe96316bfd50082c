"""Operators that ONNX took back, against their definitions and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import run

RNG = np.random.default_rng(0)


def _image(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_affine() -> None:
    x = _image(3, 7)
    got, peer = run("Affine", {"x": x}, {}, opset=7, alpha=1.5, beta=-2.0)
    np.testing.assert_allclose(got, x * 1.5 - 2, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got, peer, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 3, 1)])
def test_image_scaler(shape: tuple[int, ...]) -> None:
    x, bias = _image(*shape), [float(b) for b in range(shape[1])]
    got, peer = run("ImageScaler", {"x": x}, {}, opset=7, scale=0.5, bias=bias)
    want = x * 0.5 + np.array(bias, np.float32)[:, None, None]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got, peer, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("scale", [None, (2, 3)])
@pytest.mark.parametrize("border", [(0, 0, 0, 0), (1, 2, 3, 1), (0, 4, 2, 0)])
def test_crop(border: tuple[int, ...], scale: Any, known: bool) -> None:
    x = _image(2, 3, 9, 11)
    left, top, right, bottom = border
    want = x[:, :, top : 9 - bottom, left : 11 - right]
    if scale is not None:
        want = x[:, :, top : top + scale[0], left : left + scale[1]]
    attrs = {} if scale is None else {"scale": list(scale)}
    got, peer = run("Crop", {"x": x}, {}, opset=7, known=known, border=list(border), **attrs)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, peer)
