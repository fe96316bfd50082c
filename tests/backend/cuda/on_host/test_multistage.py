"""The multistage GEMM and its implicit-GEMM convolution, run on the host, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import request
from tests.backend.cuda.test_cuda_conv import conv
from tests.support.cuda.case import Array, poisoned, rounding, stored, value
from tracea_onnx.codegen.kernel_request import Kernel
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery

_emit, _windows, _tiles = (
    discovery.module("kernels", f"cuda.{n}")
    for n in ("gemm.emit", "conv.implicit_gemm", "gemm.multistage_sm80.tiles")
)
F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
#: Small tiles of each type, and of each number of terms.
_TILES = {
    "f16": (F16, _tiles.Tile(64, 64, 2, 2, 4)),
    "bf16": (BF16, _tiles.Tile(64, 128, 2, 2, 2)),
    "tf32": (F32, _tiles.Tile(64, 64, 2, 2, 2, terms=1)),
    "3xtf32": (F32, _tiles.Tile(64, 64, 2, 1, 2, warps_k=2, terms=3)),
}


def _operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    return cuda_host.aligned(stored(rng.standard_normal(shape), dtype))


def _bound(want: Array, magnitude: Array, dtype: DType, terms: int) -> Array:
    """TF32 has 11 bits; each of two factors is rounded to it."""
    return rounding(want, dtype, magnitude) + (terms == 1) * 2.0**-10 * magnitude


def _run(kernels: list[Kernel], places: dict[str, Array], folder: Path) -> None:
    for k in kernels:
        places |= {
            f"scratch{j}": cuda_host.aligned(np.full(int(n), 0xFF, np.uint8))
            for j, n in enumerate(k.scratch)
            if f"scratch{j}" not in places
        }
        assert not cuda_host.run(k, places, folder)


@pytest.mark.parametrize("kind", _TILES)
@pytest.mark.parametrize(
    ("m", "n", "k", "trans"), [(17, 40, 72, (0, 0)), (1, 1, 1, (0, 1)), (37, 33, 131, (1, 0))]
)
def test_products(
    kind: str, m: int, n: int, k: int, trans: tuple[int, int], tmp_path: Path
) -> None:
    """trans: whether a, b are contiguous along rows, not along k."""
    dtype, tile = _TILES[kind]
    rng = np.random.default_rng(m)
    a, b = (
        _operand(rng, (k, m) if trans[0] else (m, k), dtype),
        _operand(rng, (k, n) if trans[1] else (n, k), dtype),
    )
    left, right = (value(x.T if t else x, dtype) for x, t in ((a, trans[0]), (b, trans[1])))
    ints = {
        "B0": 1, "B1": 1, "M": m, "N": n, "K": k, "a_0": m * k, "a_1": m * k, "b_0": n * k,
        "b_1": n * k, "a_m": 1 if trans[0] else k, "a_k": m if trans[0] else 1,
        "b_n": 1 if trans[1] else k, "b_k": n if trans[1] else 1, "y_0": m * n, "y_1": m * n,
        "ldy": n,
    }  # fmt: skip
    r = request("matmul", dtype, ints, {"alpha": 0.5}, operands=("a", "b", "y"))
    y = cuda_host.aligned(poisoned(m * n, dtype).reshape(m, n))
    r = replace(r, ints={**r.ints, "ldr": n, "r_0": m * n, "r_1": m * n})
    kernels = _emit.strided(r, tile, {s: r.ints[s] for s in _emit._MATMUL_STRIDES}, 1)
    _run(kernels, {"a": a, "b": b, "y": y}, tmp_path)
    want = 0.5 * (left @ right.T)
    error = np.abs(value(y, dtype) - want)
    assert (error <= _bound(want, 0.5 * (abs(left) @ abs(right).T), dtype, tile.terms)).all()


def _conv_kinds() -> Iterator[Any]:
    for kind in _TILES:
        for family, groups in (("conv2d", 1), ("conv2d", 2), ("deconv2d", 1)):
            if (family, groups) == ("conv2d", 1) or kind in ("f16", "3xtf32"):
                yield pytest.param(kind, family, groups, id=f"{family} {groups} {kind}")


@pytest.mark.parametrize(("kind", "family", "groups"), [*_conv_kinds()])
def test_convolutions(kind: str, family: str, groups: int, tmp_path: Path) -> None:
    dtype, tile = _TILES[kind]
    n, c, h, w, oc, stride, pad = 2, 10, 7, 5, 14, 2, 1
    r = conv(dtype, n, c, h, w, oc, 3, stride, pad, groups, family=family)
    i = {name: int(size) for name, size in r.ints.items() if isinstance(size, int)}
    rng = np.random.default_rng(groups)
    x = cuda_host.aligned(np.full((n, h, w, i["x_cs"]), np.nan))
    x[..., :c] = rng.standard_normal((n, h, w, c))
    x = cuda_host.aligned(stored(x, dtype))
    per = c // groups
    pitch = -(-per // (4 if dtype == F32 else 8)) * (4 if dtype == F32 else 8)
    filters = np.zeros((oc, 3, 3, pitch))
    filters[..., :per] = rng.standard_normal((oc, 3, 3, per))
    filters = cuda_host.aligned(stored(filters, dtype))
    bias = cuda_host.aligned(rng.standard_normal(oc).astype(np.float32))
    size = (n, i["OH"], i["OW"], i["y_cs"])
    y = cuda_host.aligned(poisoned(int(np.prod(size)), dtype).reshape(size))
    _run(_windows.Tiles().emit(r, tile, 1), {"x": x, "w": filters, "bias": bias, "y": y}, tmp_path)
    want, magnitude = np.zeros((2, n, i["OH"], i["OW"], oc))
    real_x, real_w = value(x, dtype)[..., :c], value(filters, dtype)[..., :per]
    for o in range(oc):
        first = o // (oc // groups) * per
        for oh, ow, kh, kw in np.ndindex(i["OH"], i["OW"], 3, 3):
            ih, iw = (
                (q + pad - k, stride) if family == "deconv2d" else ((q * stride - pad + k), 1)
                for q, k in ((oh, kh), (ow, kw))
            )
            if ih[0] % ih[1] or iw[0] % iw[1]:
                continue
            at = ih[0] // ih[1], iw[0] // iw[1]
            if 0 <= at[0] < h and 0 <= at[1] < w:
                products = real_x[:, at[0], at[1], first : first + per] * real_w[o, kh, kw]
                want[:, oh, ow, o] += products.sum(-1)
                magnitude[:, oh, ow, o] += abs(products).sum(-1)
    want = np.maximum(want + bias, 0)
    error = np.abs(value(y, dtype)[..., :oc] - want)
    assert (error <= _bound(want, magnitude + abs(bias), dtype, tile.terms)).all()
