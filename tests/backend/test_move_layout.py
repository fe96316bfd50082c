"""Channels-last layout kernels: conversion both ways, zero borders, channel-slice copies.

Borders and pad channels must stay untouched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tracea_onnx.runtime.native_library import isas, run_kernel

F32 = npt.NDArray[np.float32]
ISAS = isas()
SIZES = [
    (1, 1, 1, 1),
    (2, 3, 5, 7),
    (1, 3, 33, 64),
    (2, 4, 3, 9),
    (1, 1, 8, 17),
    (2, 2, 2, 5),
    (1, 16, 9, 16),
    (2, 17, 4, 31),
    (1, 64, 7, 7),
    (1, 100, 13, 65),
    (1, 5, 1, 200),
]


def image(
    n: int, c: int, h: int, w: int, cs: int, border: int, fill: float = np.nan
) -> tuple[F32, F32]:
    """A channels-last buffer with a border on all sides, and its [N, H, W, C] interior."""
    buffer = np.full((n, h + 2 * border, w + 2 * border, cs), fill, np.float32)
    return buffer, buffer[:, border : border + h, border : border + w, :c]


def pitches(name: str, buffer: F32) -> dict[str, int]:
    return {
        f"{name}_cs": buffer.shape[3],
        f"{name}_rs": buffer.shape[2] * buffer.shape[3],
        f"{name}_ns": buffer[0].size,
    }


def at(buffer: F32, interior: F32) -> Any:
    return buffer, (interior.ctypes.data - buffer.ctypes.data) // 4


def _random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "c", "h", "w"), SIZES)
@pytest.mark.parametrize("border", [0, 2])
@pytest.mark.parametrize("extra", [0, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_to_channels_last_and_back(
    n: int, c: int, h: int, w: int, border: int, extra: int, threads: int, isa: str
) -> None:
    x = _random(c, n, c, h, w)
    buffer, inside = image(n, c, h, w, c + extra, border, fill=-9.0)
    expected = buffer.copy()
    expected[:, border : border + h, border : border + w, :c] = x.transpose(0, 2, 3, 1)
    sizes = {"N": n, "C": c, "H": h, "W": w}
    run_kernel(
        "nchw_to_nhwc",
        {"x": x, "y": at(buffer, inside)},
        sizes | pitches("y", buffer),
        isa=isa,
        threads=threads,
    )
    np.testing.assert_array_equal(buffer, expected)
    back = np.full(x.size + 3, 5.0, np.float32)
    run_kernel(
        "nhwc_to_nchw",
        {"x": at(buffer, inside), "y": back},
        sizes | pitches("x", buffer),
        isa=isa,
        threads=threads,
    )
    np.testing.assert_array_equal(back[: x.size].reshape(x.shape), x)
    assert (back[x.size :] == 5.0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 3), (0, 3, 2, 0)])
@pytest.mark.parametrize("threads", [1, 3])
def test_zero_border(pads: tuple[int, int, int, int], threads: int, isa: str) -> None:
    pt, pl, pb, pr = pads
    n, h, w, cs = 2, 5, 4, 18
    buffer = np.full((n, 3 + h + 3, 3 + w + 3, cs), 7.0, np.float32)
    expected = buffer.copy()
    expected[:, 3 - pt : 3 + h + pb, 3 - pl : 3 + w + pr] = 0
    expected[:, 3 : 3 + h, 3 : 3 + w] = 7.0
    ints = {"N": n, "H": h, "W": w, "PT": pt, "PL": pl, "PB": pb, "PR": pr}
    run_kernel(
        "zero_border",
        {"y": at(buffer, buffer[:, 3:, 3:])},
        ints | pitches("y", buffer),
        isa=isa,
        threads=threads,
    )
    np.testing.assert_array_equal(buffer, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("c", [1, 3, 16, 17, 48, 100])
@pytest.mark.parametrize("threads", [1, 4])
def test_channel_slice_copy(c: int, threads: int, isa: str) -> None:
    n, h, w = 2, 3, 5
    source, target = _random(0, n, h, w, c + 20), np.full((n, h + 2, w + 2, c + 9), 4.0, np.float32)
    expected = target.copy()
    expected[:, 1:-1, 1:-1, 3 : 3 + c] = source[..., 7 : 7 + c]
    operands = {"x": at(source, source[..., 7:]), "y": at(target, target[:, 1:, 1:, 3:])}
    run_kernel(
        "copy_nhwc",
        operands,
        {"N": n, "C": c, "H": h, "W": w} | pitches("x", source) | pitches("y", target),
        isa=isa,
        threads=threads,
    )
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_dense_copy(isa: str) -> None:
    source, target = _random(0, 2, 3, 4, 16), np.full((2, 3, 4, 16), np.nan, np.float32)
    run_kernel(
        "copy_nhwc",
        {"x": source, "y": target},
        {"N": 2, "C": 16, "H": 3, "W": 4} | pitches("x", source) | pitches("y", target),
        isa=isa,
    )
    np.testing.assert_array_equal(target, source)
