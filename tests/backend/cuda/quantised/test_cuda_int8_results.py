"""8-bit products and poolings of CUDA: their text computes on the host what exact integers say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import compile_kernels, kernels_of, request
from tests.backend.cuda.quantised.test_cuda_int8 import PADDED, conv
from tests.support import int8_cases
from tests.support.cuda import runner
from tests.support.int8_cases import BF16, F16, F32, I8, I32, U8, Array, Case, gemm
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import packed_rows
from tracea_onnx.support import discovery


class Host:
    """Runs families of 8-bit products by the text of their CUDA kernels, of `tile` if given."""

    def __init__(self, folder: Path, arch: int, tile: Any = None) -> None:
        self.folder, self.arch, self.tile, self.symbols = folder, arch, tile, list[str]()

    def __call__(
        self,
        family: str,
        operands: Mapping[str, Array | None],
        ints: Mapping[str, int],
        floats: Mapping[str, float] = {},
        given: Any = None,
    ) -> None:
        places = {
            k: v if k in ("y", "packed") else cuda_host.aligned(np.asarray(v))
            for k, v in operands.items()
            if v is not None
        }
        to = ints.get("y_dtype")
        dtype = DType(to) if to in (F16, BF16) else F32
        r = request(family, dtype, ints, floats, given, places, arch=self.arch)
        forced = self.tile is not None and not family.startswith("pack")
        kernels = runner.kernels(runner.force(r, self.tile)) if forced else kernels_of(r)
        sizes = next((k.scratch for k in kernels if k.scratch), ())
        scratch = {f"scratch{k}": np.zeros(int(n), np.uint8) for k, n in enumerate(map(int, sizes))}
        for k in kernels:
            self.symbols.append(k.symbol)
            cuda_host.run(k, places | scratch, self.folder)


PRODUCTS = [
    gemm(1, 1, 1),
    gemm(3, 33, 7, x=I8, y=I8, spread=1, each_scale=False),
    gemm(17, 40, 128, wt=U8, w_zero="each", res=I8, mode=1, act="relu"),
    gemm(33, 65, 191, x=I8, wt=U8, w_zero="same", y=I32),
    gemm(70, 72, 260, y=F32, w_zero="each", res=F32, mode=2, bias=False, x_zero=False),
    gemm(129, 130, 300, res=U8, mode=1, act="clip", middle=I8, y=I8, exact=False),
    gemm(5, 64, 1030, act="silu", exact=False),
    conv(h=9, w=11, ic=3, oc=24, k=(7, 7), s=(2, 2), pads=(3, 3, 3, 3), act="relu"),
    conv(n=2, h=7, w=5, ic=64, oc=70, x=I8, y=I8, **PADDED),
    conv(n=2, h=5, w=6, ic=20, oc=40, x=I8, spread=1, wt=U8, w_zero="each", **PADDED),
    conv(h=7, w=6, ic=17, oc=5, k=(3, 2), s=(2, 1), d=(1, 2), pads=(1, 2, 0, 1), wt=U8,
         w_zero="same"),
    conv(h=5, w=5, ic=24, oc=40, g=8, spread=2, y=F32, res=F32, mode=2, **PADDED),
    conv(n=2, h=6, w=6, ic=48, oc=24, s=(2, 2), res=I8, mode=1, act="silu", spread=4),
    conv(h=2, w=2, ic=8, oc=8, k=(5, 5), pads=(4, 4, 4, 4), x_zero=False),
    conv(n=3, h=5, w=6, ic=32, oc=40, wt=U8, w_zero="each"),
    gemm(1, 3, 5, y=F16),
    gemm(70, 72, 260, y=F16, w_zero="each", wt=U8, res=F16, mode=1, act="gelu_erf", exact=False),
    gemm(33, 65, 191, y=BF16, res=BF16, mode=2, spread=1),
    conv(n=2, h=7, w=5, ic=64, oc=72, y=F16, res=F16, mode=1, act="relu", **PADDED),
    Case("conv2d_int8_dw", h=5, w=9, ic=40, y=F16, res=F16, mode=1, **PADDED),
    Case("conv2d_int8_dw", h=5, w=9, ic=37, k=(5, 5), pads=(2, 2, 2, 2), y=BF16),
    Case("conv2d_int8_dw", n=2, h=9, w=7, ic=40, s=(2, 2), x=I8, **PADDED),
    Case("conv2d_int8_dw", h=5, w=9, ic=37, k=(5, 5), pads=(2, 2, 2, 2), wt=U8, w_zero="each",
         y=I8, res=U8, mode=1),
    Case("conv2d_int8_dw", h=5, w=5, ic=7, k=(3, 1), d=(2, 1), x=I8, wt=U8, w_zero="same", y=I32),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("k", range(len(PRODUCTS)))
def test_sums_and_results(k: int, tmp_path: Path) -> None:
    """Split among blocks where that takes less time: in clusters from sm_90 on."""
    case = PRODUCTS[k]
    if case.kind == "conv2d_int8_dw":
        case = replace(case, oc=case.ic, g=case.ic)
    int8_cases.check(case, Host(tmp_path, 80 if k % 2 else 90), packed_rows)


TILES = [
    (gemm(130, 72, 304, res=U8, mode=1, middle=U8, act="relu"), (128, 64, True, 1, 3)),
    (gemm(200, 130, 128, x=I8, y=F32, act="gelu_erf", exact=False), (64, 128, True)),
    (gemm(150, 200, 272, wt=U8, y=I32), (128, 128, True)),
    (gemm(300, 256, 400, x=I8, wt=U8, y=I8, res=I8, mode=2), (128, 192, False, 2)),
    (gemm(130, 128, 304, y=F16, res=F16, mode=1, exact=False), (64, 128, True)),
    (gemm(200, 192, 128, y=F16, res=F16, mode=2, act="gelu_erf", spread=16), (128, 64, True, 1, 2)),
    (gemm(300, 256, 400, x=I8, y=BF16, res=U8, mode=1), (128, 256, False)),
    (gemm(270, 384, 272, y=F16, res=F16, mode=1), (128, 128, True)),
    (gemm(130, 136, 304, y=BF16, res=BF16, mode=1, exact=False), (64, 128, True)),
    (gemm(67, 131, 304, y=F16, exact=False, spread=1), (64, 64, True)),
    (conv(n=2, h=9, w=10, ic=64, oc=72, x_zero=False, res=U8, mode=1, **PADDED), (64, 128, True)),
    (conv(n=2, h=8, w=9, ic=144, oc=64, s=(2, 2), x=I8), (128, 64, True)),
    (conv(n=3, h=7, w=7, ic=160, oc=100, x_zero=False, s=(2, 2), y=I8, **PADDED), (64, 192, True)),
]
#: Rows, columns, which side the weight is on, split of k, sharing of copies, blocks of an SM.
SPLIT_TILES = [
    (gemm(70, 77, 1040, res=U8, mode=1, middle=U8, act="relu", x=I8, wt=U8), (64, 24, True, 3)),
    (gemm(49, 131, 528, y=F32, each_scale=False), (64, 48, False, 2, 2)),
    (gemm(49, 136, 528, y=F16, res=F16, mode=1, exact=False), (64, 48, True, 2, 2)),
    (gemm(70, 77, 1040, y=BF16, res=BF16, mode=1, act="relu"), (64, 24, True, 3)),
    (conv(h=14, w=14, ic=80, oc=96, x_zero=False, res=I8, mode=1, **PADDED), (128, 48, True, 4)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", range(len(TILES)))
def test_by_wgmma(k: int, tmp_path: Path) -> None:
    case, tile = TILES[k]
    made = discovery.module("kernels", "cuda.gemm.persistent_sm90").HopperTile(*tile)
    host = Host(tmp_path, 90, made)
    int8_cases.check(case, host, packed_rows)
    assert host.symbols == ["pack_bytes", "gemm_persistent_sm90"]


@pytest.mark.parametrize("k", range(len(SPLIT_TILES)))
def test_split_in_clusters(k: int, tmp_path: Path) -> None:
    case, tile = SPLIT_TILES[k]
    made = discovery.module("kernels", "cuda.gemm.cluster_splitk_sm90").SplitTile(*tile)
    host = Host(tmp_path, 90, made)
    int8_cases.check(case, host, packed_rows)
    assert host.symbols == ["pack_bytes", "gemm_cluster_splitk_sm90"]


@pytest.mark.parametrize("dtype", [U8, I8], ids=lambda t: t.name)
@pytest.mark.parametrize("c", [7, 48])
def test_maxima_of_bytes(dtype: DType, c: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(c)
    x = cuda_host.aligned(int8_cases.some_bytes(rng, dtype, 2, 9, 8, c))
    x[0] = np.iinfo(x.dtype).min
    y = cuda_host.aligned(np.zeros((2, 5, 4, c), x.dtype))
    ints = {"N": 2, "C": c, "IH": 9, "IW": 8, "OH": 5, "OW": 4, "KH": 3, "KW": 3, "SH": 2, "SW": 2,
            "DH": 1, "DW": 1, "PT": 1, "PL": 1, "x_cs": c, "x_rs": 8 * c, "x_ns": 72 * c, "y_cs": c,
            "y_rs": 4 * c, "y_ns": 20 * c}  # fmt: skip
    (kernel,) = kernels_of(request("pool2d", dtype, ints, operands=("x", "y")))
    compile_kernels([kernel], 90)
    cuda_host.run(kernel, {"x": x, "y": y}, tmp_path)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=np.iinfo(x.dtype).min)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(y, windows.max((-1, -2))[:, :5, :4])
