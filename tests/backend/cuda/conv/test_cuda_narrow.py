"""Convolutions of few channels and of large windows: the kernels' text, run on the host, computes
every output once; where they are chosen.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import check_kernels, compile_kernels, request
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
narrow, patch, product = (
    discovery.module("kernels", f"cuda.{n}")
    for n in ("conv.narrow_simt", "conv.small_c_patch", "gemm.select")
)
F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
Pair = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    n: int
    c: int
    h: int
    w: int
    oc: int
    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pad: Pair = (1, 1)
    groups: int = 1
    transposed: bool = False

    @property
    def out(self) -> Pair:
        def one(n: int, k: int, s: int, d: int, p: int) -> int:
            return (
                (n - 1) * s + k - 2 * p
                if self.transposed
                else (n + 2 * p - d * (k - 1) - 1) // s + 1
            )

        oh, ow = (
            one(*v)
            for v in zip(
                (self.h, self.w), self.kernel, self.stride, self.dilation, self.pad, strict=True
            )
        )
        return oh, ow

    @property
    def family(self) -> str:
        return (
            "deconv2d"
            if self.transposed
            else "conv2d_dw"
            if self.groups == self.c == self.oc
            else "conv2d"
        )


def _request(v: Shape, dtype: DType = F32, arch: int = 90, **more: DimLike) -> Request:
    (oh, ow), (kh, kw), (sh, sw), (dh, dw) = v.out, v.kernel, v.stride, v.dilation
    ints: dict[str, DimLike] = {
        "N": v.n,
        "IC": v.c,
        "IH": v.h,
        "IW": v.w,
        "OC": v.oc,
        "OH": oh,
        "OW": ow,
        "KH": kh,
        "KW": kw,
        "SH": sh,
        "SW": sw,
        "DH": dh,
        "DW": dw,
    }
    ints |= {"PT": v.pad[0], "PL": v.pad[1], "G": v.groups}
    for side, c, h, w in (("x", v.c, v.h, v.w), ("y", v.oc, oh, ow), ("r", v.oc, oh, ow)):
        cs = -(-c // 8) * 8 + 8 * (side == "y")
        ints |= {f"{side}_cs": cs, f"{side}_rs": w * cs, f"{side}_ns": h * w * cs}
    return request(v.family, dtype, ints | more, operands=("x", "w", "bias", "y"), arch=arch)


def _lying(x: Any) -> Any:
    """Channels last, as many as a multiple of 8; pad channels hold anything."""
    n, c, h, w = x.shape
    out = np.full((n, h, w, -(-c // 8) * 8), np.nan, np.float32)
    out[..., :c] = x.transpose(0, 2, 3, 1)
    return cuda_host.aligned(out)


def _want(v: Shape, x: Any, w: Any) -> Any:
    """w: [groups, out, in, KH, KW]."""
    (oh, ow), (sh, sw), (dh, dw), (pt, pl) = v.out, v.stride, v.dilation, v.pad
    xs = x.astype(np.float64).reshape(v.n, v.groups, -1, v.h, v.w)
    if v.transposed:
        whole = np.zeros((v.n, v.oc, (v.h - 1) * sh + v.kernel[0], (v.w - 1) * sw + v.kernel[1]))
        for i, j in itertools.product(*map(range, v.kernel)):
            part = np.einsum("ngchw,goc->ngohw", xs, w[..., i, j]).reshape(v.n, v.oc, v.h, v.w)
            whole[:, :, i : i + (v.h - 1) * sh + 1 : sh, j : j + (v.w - 1) * sw + 1 : sw] += part
        return whole[:, :, pt : pt + oh, pl : pl + ow]
    xs = np.pad(xs, ((0, 0), (0, 0), (0, 0), (pt, pt + sh), (pl, pl + sw)))
    y = np.zeros((v.n, v.oc, oh, ow))
    for i, j in itertools.product(*map(range, v.kernel)):
        y += np.einsum(
            "ngchw,goc->ngohw", xs[..., i * dh :: sh, j * dw :: sw][..., :oh, :ow], w[..., i, j]
        ).reshape(v.n, v.oc, oh, ow)
    return y


def _check(v: Shape, kernel: Any, folder: Path) -> None:
    rng, inner, outer = np.random.default_rng(0), v.c // v.groups, v.oc // v.groups
    x, w = (
        rng.standard_normal((v.n, v.c, v.h, v.w)).astype(np.float32),
        rng.standard_normal((v.groups, outer, inner, *v.kernel)).astype(np.float32),
    )
    if v.family == "conv2d_dw":
        packed = np.zeros((v.kernel[0] * v.kernel[1], -(-v.oc // 8) * 8), np.float32)
        packed[:, : v.oc] = w.reshape(v.oc, -1).T
    else:
        packed = np.zeros((v.oc, *v.kernel, product.channels(_request(v), inner)), np.float32)
        packed[..., :inner] = w.transpose(0, 1, 3, 4, 2).reshape(v.oc, *v.kernel, inner)
    bias = np.pad(rng.standard_normal(v.oc).astype(np.float32), (0, -v.oc % 32))
    y = cuda_host.aligned(np.full((v.n, *v.out, -(-v.oc // 8) * 8 + 8), np.nan, np.float32))
    cuda_host.run(
        kernel,
        {"x": _lying(x), "w": cuda_host.aligned(packed), "bias": cuda_host.aligned(bias), "y": y},
        folder,
    )
    np.testing.assert_allclose(
        y[..., : v.oc].transpose(0, 3, 1, 2), _want(v, x, w) + bias[: v.oc, None, None], atol=1e-3
    )
    # pad channels only where the kernel says so
    written = max(v.oc, *map(int, re.findall(r"\bWRITTEN = (\d+)", kernel.source)), 0)
    assert np.isnan(y[..., written:]).all()


@pytest.mark.parametrize(
    ("v", "tile"),
    [
        # each phase has one tap
        (Shape(2, 5, 6, 7, 5, (4, 4), (4, 4), pad=(0, 0), transposed=True), (4, 5, 1, 1, 5, 64)),
        # phases of one to four; threads divide channels
        (Shape(1, 40, 5, 6, 5, (3, 3), (2, 2), pad=(0, 0), transposed=True), (2, 5, 4, 1, 4, 64)),
        (Shape(1, 8, 6, 5, 24, (4, 4), (2, 2), groups=4, transposed=True), (4, 6, 1, 4, 2, 64)),
        # groups of 19, the last chunk ragged
        (Shape(1, 6, 7, 9, 38, (5, 3), (2, 1), pad=(2, 0), groups=2, transposed=True),
            (2, 7, 1, 6, 3, 64)),
        (Shape(2, 12, 9, 7, 6, (5, 5), pad=(2, 2), groups=3), (2, 2, 1, 3, 4, 64)),
        # woven channels, the last ones ragged
        (Shape(1, 9, 8, 13, 19, (2, 3), (1, 2), (3, 2), (1, 2)), (2, 8, 1, 3, 4, 64)),
        (Shape(1, 9, 8, 13, 70, (1, 3), pad=(0, 1)), (1, 8, 2, 4, 4, 64)),
        (Shape(1, 5, 1, 40, 30, (1, 25), pad=(0, 12)), (4, 4, 2, 4, 2, 64)),
        # pixels apart
        (Shape(2, 13, 9, 7, 5, (1, 1), (2, 2), pad=(1, 1)), (4, 5, 2, 1, 4, 64)),
        (Shape(1, 38, 5, 9, 3, (1, 1), pad=(0, 0)), (2, 3, 8, 1, 4, 128, 2)),
        (Shape(3, 20, 7, 5, 14, (1, 1), pad=(0, 0), groups=2), (4, 7, 2, 2, 4, 64)),
        (Shape(1, 6, 11, 13, 93, (1, 1), pad=(0, 0), groups=3), (2, 8, 1, 12, 2, 64)),
        (Shape(2, 12, 9, 7, 9, groups=3), (2, 3, 2, 3, 2, 64)),
    ],
)  # fmt: skip
def test_every_output_of_few_channels_once(tmp_path: Path, v: Shape, tile: tuple[int, ...]) -> None:
    _check(v, narrow.emit(_request(v), narrow.NarrowTile(*tile))[0], tmp_path)


@pytest.mark.parametrize("arch", [80, 89, 90])
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_few_channels_and_large_windows_have_kernels(dtype: DType, arch: int) -> None:
    for v, symbols in (
        (Shape(64, 5, 28, 28, 5, (4, 4), (4, 4), pad=(0, 0), transposed=True),
            {"conv_narrow_simt"}),
        (Shape(8, 32, 27, 17, 32, (5, 5), pad=(2, 2), groups=16), {"conv_narrow_simt"}),
        (Shape(1, 96, 28, 28, 96, (31, 31), pad=(15, 15), groups=96), {"conv_depthwise_direct"}),
        (Shape(1, 64, 56, 56, 64), set()),
    ):  # fmt: skip
        for n in (v.n, symbol("n")):
            kernels = cuda.emit(_request(v, dtype, arch, N=n))
            check_kernels(kernels, arch)
            got = {k.symbol for k in kernels}
            assert (
                (symbols <= got)
                if symbols and (dtype == F32 or v.family != "conv2d")
                else "conv_depthwise_direct" not in got
            )


@pytest.mark.parametrize("dtype", [F16, F32])
def test_a_batch_that_no_size_decides_may_be_nothing(dtype: DType) -> None:
    n = symbol("n")
    v = Shape(1, 2, 1, 1, 4, (1, 1), pad=(0, 0))
    assert cuda.emit(_request(v, dtype, N=dims.floordiv(dims.mul(n, n), 4)))


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_few_channels_compile(dtype: DType) -> None:
    transposed = Shape(4, 40, 37, 23, 5, (3, 3), (2, 2), pad=(0, 0), transposed=True)
    for v in (
        transposed,
        Shape(16, 28, 85, 50, 4, stride=(2, 2), groups=4),
        Shape(1, 5, 97, 156, 256, (2, 2), dilation=(3, 3)),
    ):
        r = _request(v, dtype)
        prices = narrow.prices(r, v.n * v.out[0] * v.out[1])
        compile_kernels(narrow.emit(r, min(prices, key=prices.get)), 90)


PATCHES = (
    Shape(8, 24, 127, 127, 40, (5, 5), pad=(2, 2)), Shape(2, 17, 13, 15, 24, stride=(2, 2)),
    Shape(1, 40, 30, 31, 67, (3, 4), (1, 3), (2, 1), (2, 1)),
    Shape(1, 24, 30, 31, 64, transposed=True),
    Shape(2, 3, 40, 41, 24, (11, 11), (4, 4), pad=(5, 5)),
    Shape(2, 135, 44, 36, 9, (7, 7), pad=(3, 3)),
    Shape(1, 200, 30, 31, 20, (3, 4), (2, 1), (1, 3), (2, 1)),
)  # fmt: skip


@pytest.mark.parametrize("v", PATCHES)
def test_units_of_a_patch_lie_where_taps_meet_the_image(v: Shape) -> None:
    r = _request(v, F16)
    prices = patch.prices(r, v.n * v.out[0] * v.out[1])
    assert all((tile.passes > 1) == (v.c > 64) for tile in prices)
    for tile in prices:
        s = patch._pass(patch._shape(r), tile)
        assert s.chunks * (tile.passes - 1) * 8 < v.c <= s.chunks * tile.passes * 8
        p = patch._patch(s, tile)
        units = list(patch._units(s, p, v.transposed))
        assert [j for _, j in units] == list(range(s.units))
        for (at, j), place in itertools.product(
            units, (0, tile.width - 1, (tile.height - 1) * p.pitch + tile.width - 1)
        ):
            tap, c = divmod(j, s.chunks)
            down, across = (
                n - 1 - t if v.transposed else t
                for n, t in zip(s.kernel, divmod(tap, s.kernel[1]), strict=True)
            )
            row, column = (
                place // p.pitch * s.stride[0] + down * s.dilation[0],
                place % p.pitch * s.stride[1] + across * s.dilation[1],
            )
            phase = row % s.stride[0] * s.stride[1] + column % s.stride[1]
            assert (
                at + place
                == c * p.plane
                + phase * p.phase
                + row // s.stride[0] * p.pitch
                + column // s.stride[1]
            )
        # also of places that are not stored
        assert max(at for at, _ in units) + 64 * tile.wgmmas <= p.size


def test_patches_compile() -> None:
    for v, dtype in zip(PATCHES, (F16, BF16, F16, BF16, F16, BF16, F16), strict=True):
        for n in (v.n, symbol("n")):
            r = _request(v, dtype, N=n)
            prices = patch.prices(r, 8 * v.out[0] * v.out[1])
            kernels = patch.emit(r, min(prices, key=prices.get))
            check_kernels(kernels, 90)
        compile_kernels(kernels, 90)


def test_patches_are_for_large_windows_of_few_outputs() -> None:
    head, small = Shape(10, 40, 88, 72, 9, (7, 7), pad=(3, 3)), Shape(8, 512, 20, 20, 12)
    assert [cuda.emit(_request(v, F16))[0].symbol for v in (head, small)] == [
        "conv_small_c_patch",
        "gemm_cluster_splitk_sm90",
    ]
    assert not patch.supports(_request(Shape(1, 512, 28, 28, 512), F16))


def test_patches_need_hopper_and_aligned_pixels() -> None:
    v = PATCHES[0]
    assert patch.supports(_request(v, F16))
    (tile, *_), odd = patch.prices(_request(v, F16), 64), _request(v, F16, x_cs=27)
    assert not patch.prices(odd, 64)
    with pytest.raises(AssertionError):  # whoever chose the tile
        patch.emit(odd, tile)
    others = (
        _request(v),
        _request(v, F16, 80),
        _request(v, F16, x_cs=28),
        _request(Shape(1, 48, 9, 9, 48, groups=2), F16),
    )
    assert not any(patch.supports(r) for r in others)
    assert not patch.supports(_request(Shape(1, 24, 9, 9, 24, stride=(2, 2), transposed=True), F16))
