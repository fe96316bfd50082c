"""The multistage GEMM and its implicit-GEMM convolution, run on the host, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.cuda.cuda_requests import request
from tests.backend.cuda.on_host.launched import check_convolution, check_matmul, matmul_ints
from tests.backend.cuda.test_cuda_conv import conv
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery

_emit, _windows, _tiles = (
    discovery.module("kernels", f"cuda.{n}")
    for n in ("gemm.emit", "conv.implicit_gemm", "gemm.multistage_sm80.tiles")
)
#: Small tiles of each type, and of each number of terms.
_TILES = {
    "f16": (DType.F16, _tiles.Tile(64, 64, 2, 2, 4)),
    "bf16": (DType.BF16, _tiles.Tile(64, 128, 2, 2, 2)),
    "f16 of a cluster": (DType.F16, _tiles.Tile(64, 64, 2, 2, 3, split=2)),
    "tf32": (DType.F32, _tiles.Tile(64, 64, 2, 2, 2, terms=1)),
    "3xtf32": (DType.F32, _tiles.Tile(64, 64, 2, 1, 2, warps_k=2, terms=3)),
    "3xtf32 by wgmma": (DType.F32, _tiles.Tile(64, 32, 4, 1, 3, terms=3, wgmma=True)),
}


@pytest.mark.parametrize("kind", _TILES)
@pytest.mark.parametrize(
    ("m", "n", "k", "trans"), [(17, 40, 72, (0, 0)), (1, 1, 1, (0, 1)), (37, 33, 131, (1, 0))]
)
def test_products(
    kind: str, m: int, n: int, k: int, trans: tuple[int, int], tmp_path: Path
) -> None:
    dtype, tile = _TILES[kind]
    ints = matmul_ints(m, n, k, trans)
    r = request("matmul", dtype, ints, {"alpha": 0.5}, operands=("a", "b", "y"))
    check_matmul(r, _emit.strided(r, tile, ints, 1), trans, tmp_path, tile.terms)


@pytest.mark.parametrize(
    ("kind", "family", "groups"),
    [
        *((kind, "conv2d", 1) for kind in _TILES),
        *((kind, "conv2d", 2) for kind in ("f16", "3xtf32")),
        *((kind, "deconv2d", 1) for kind in ("f16", "3xtf32")),
    ],
)
def test_convolutions(kind: str, family: str, groups: int, tmp_path: Path) -> None:
    dtype, tile = _TILES[kind]
    r = conv(dtype, 2, 10, 7, 5, 14, 3, 2, 1, groups, family=family)
    check_convolution(r, _windows.Tiles().emit(r, tile, 1), tmp_path, tile.terms)
