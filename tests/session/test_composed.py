"""Operators that lowering makes of others, against their definitions in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.support.one_node import run as _run

RNG = np.random.default_rng(0)


def _signal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), [((3, 17), -1), ((2, 5, 7), 1), ((4, 3, 1), 0)])
def test_lp_normalization(shape: tuple[int, ...], axis: int, p: int) -> None:
    x = _signal(*shape)
    x[:, 0] = 0.0
    norm = np.linalg.norm(x.astype(np.float64), p, axis, keepdims=True)
    got, peer = _run("LpNormalization", {"x": x}, {}, opset=13, axis=axis, p=p)
    want = np.where(norm == 0, 0.0, x / np.where(norm == 0, 1.0, norm))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(got, peer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (2, 3), (-1, 0), (0, 1, 2, 3)])
def test_mean_variance_normalization(axes: tuple[int, ...]) -> None:
    x = _signal(3, 5, 7, 4) * 3 + 10
    z = x.astype(np.float64)
    want = (z - z.mean(axes, keepdims=True)) / (z.std(axes, keepdims=True) + 1e-9)
    got, _ = _run("MeanVarianceNormalization", {"x": x}, {}, opset=13, axes=list(axes))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-6)


def test_a_constant_has_no_variance() -> None:
    x = np.full((2, 3, 4, 5), 2.5, np.float32)
    got, _ = _run("MeanVarianceNormalization", {"x": x}, {}, opset=13)
    np.testing.assert_array_equal(got, 0.0)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 5, 7), (1, 2, 3, 4, 5)])
def test_global_lp_pool(shape: tuple[int, ...], p: int) -> None:
    x = _signal(*shape)
    axes = tuple(range(2, len(shape)))
    want = (np.abs(x.astype(np.float64)) ** p).sum(axes, keepdims=True) ** (1 / p)
    got, peer = _run("GlobalLpPool", {"x": x}, {}, opset=13, p=p)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(got, peer, rtol=1e-5)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((2, 3, 9), {"kernel_shape": [4], "strides": [2], "pads": [1, 2]}),
        ((2, 5, 9, 8), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1]}),
        ((1, 17, 12, 13), {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 1]}),
    ],
)
def test_lp_pool(shape: tuple[int, ...], window: dict[str, list[int]], p: int) -> None:
    x = _signal(*shape)
    got, peer = _run("LpPool", {"x": x}, {}, opset=18, known=True, p=p, **window)
    rank = len(shape) - 2
    pads, strides = window.get("pads", [0] * 2 * rank), window.get("strides", [1] * rank)
    spread = window.get("dilations", [1] * rank)
    z = np.abs(x.astype(np.float64)) ** p
    z = np.pad(z, [(0, 0)] * 2 + list(zip(pads[:rank], pads[rank:], strict=True)))
    reach = [(k - 1) * d + 1 for k, d in zip(window["kernel_shape"], spread, strict=True)]
    axes = tuple(range(2, rank + 2))
    windows = np.lib.stride_tricks.sliding_window_view(z, reach, axes)
    steps = [slice(None, None, s) for s in strides]
    inner = [slice(None, None, d) for d in spread]
    summed = windows[(slice(None), slice(None), *steps, *inner)].sum(tuple(a + rank for a in axes))
    np.testing.assert_allclose(got, summed ** (1 / p), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(got, peer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "axis"), [((3, 17), -1), ((2, 5, 7), 1), ((4, 3, 1), 0)])
def test_hardmax(shape: tuple[int, ...], axis: int) -> None:
    x = np.round(_signal(*shape) * 2)  # equal ones
    got, peer = _run("Hardmax", {"x": x}, {}, opset=13, axis=axis)
    want = np.arange(shape[axis]) == np.moveaxis(x, axis, -1).argmax(-1)[..., None]
    np.testing.assert_array_equal(got, np.moveaxis(want, -1, axis))
    np.testing.assert_array_equal(got, peer)


@pytest.mark.parametrize("k", [0, 2, -3, 100])
@pytest.mark.parametrize("kind", [None, np.int64, np.int32, np.float32])
def test_eye_like(kind: Any, k: int) -> None:
    x = _signal(5, 7)
    dtype: dict[str, Any] = (
        {} if kind is None else {"dtype": int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))}
    )
    got, peer = _run("EyeLike", {"x": x}, {}, k=k, **dtype)
    assert got.dtype == peer.dtype
    np.testing.assert_array_equal(got, np.eye(5, 7, k))


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
def test_cast_like(kind: Any) -> None:
    x = _signal(3, 4) * 3
    got, peer = _run("CastLike", {"x": x}, {"like": np.zeros(1, kind)})
    assert got.dtype == peer.dtype
    np.testing.assert_array_equal(got, peer)


@pytest.mark.parametrize(("source", "to"), [(np.float64, np.float32), (np.float32, np.float64)])
def test_double_and_single_precision(source: Any, to: Any) -> None:
    with np.errstate(over="ignore"):
        x = np.array([[0.1, 1e300, -1e-300], [np.inf, np.nan, 2.0**24 + 1]]).astype(source)
    got, peer = _run("Cast", {"x": x}, {}, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(to))))
    assert got.dtype == to
    np.testing.assert_array_equal(got, peer)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 7), (1, 1, 1, 4), (2, 1, 3, 4, 5)])
def test_affine_grid(size: tuple[int, ...], corners: int) -> None:
    if corners and 1 in size[2:]:
        pytest.skip("ONNX does not say where the one center between two corners lies")
    n = len(size) - 2
    theta = _signal(size[0], n, n + 1)
    got, peer = _run(
        "AffineGrid", {"theta": theta}, {"size": np.array(size)}, align_corners=corners
    )
    assert got.shape == (size[0], *size[2:], n)
    np.testing.assert_allclose(got, peer, atol=2e-6)


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("shape", [(4, 6), (6, 4, 3), (13, 13, 2, 3), (1, 1, 5)])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_reverse_sequence(shape: tuple[int, ...], time: int, kind: Any) -> None:
    x = (_signal(*shape) * 100).astype(kind)
    lengths = RNG.integers(0, shape[time] + 1, shape[1 - time])
    # ONNX Runtime 1.24 leaves what is behind a sequence of no length as it finds it
    got, _ = _run(
        "ReverseSequence",
        {"x": x, "lengths": lengths},
        {},
        opset=10,
        time_axis=time,
        batch_axis=1 - time,
    )
    want = np.moveaxis(x, time, 0).copy()
    for b, n in enumerate(lengths):
        want[:n, b] = want[:n, b][::-1]
    np.testing.assert_array_equal(np.moveaxis(got, time, 0), want)


@pytest.mark.parametrize("length", [-1, 5])
def test_a_sequence_longer_than_its_axis_fails(length: int) -> None:
    x, lengths = _signal(4, 3), np.array([1, length, 2])
    with pytest.raises(Exception, match="index"):
        _run("ReverseSequence", {"x": x, "lengths": lengths}, {}, opset=10)
