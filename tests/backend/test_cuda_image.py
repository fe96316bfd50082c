"""CUDA pooling and resizing: every kernel compiles without a GPU; large images are pooled in slices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.cuda_requests import compile_kernels, request
from tracea_onnx import registry
from tracea_onnx.cuda import Pointer, Request, Unfit
from tracea_onnx.dims import DimLike, evaluate, symbol
from tracea_onnx.ops import DType

cuda = registry.module("kernels", "cuda")
PAIRS = ((DType.F32, 80), (DType.BF16, 89), (DType.F16, 90))
_PITCHES = {f"{s}_{p}": v for s in "xy" for p, v in (("cs", 24), ("rs", 240), ("ns", 2400))}


def _global(dtype: DType, c: int, side: DimLike, arch: int, mode: int = 1) -> Request:
    ints: dict[str, DimLike] = {"mode": mode, "N": symbol("N"), "C": c, "H": side, "W": side, "x_cs": 1280, "x_rs": 1280 * 56, "x_ns": 1280 * 3136, "y_ns": c}
    return request("global_pool", dtype, ints, operands="xy", arch=arch)


def cases() -> Iterator[tuple[str, Request]]:
    window = {"N": 2, "C": 20, "IH": 10, "IW": 10, "OH": 5, "OW": 5, "KH": 3, "KW": 3, "SH": 2, "SW": 2, "DH": 1, "DW": 1, "PT": 1, "PL": 1, "PB": 1, "PR": 1}
    for d, arch in PAIRS:
        for mode in range(3):
            yield f"pool2d {mode}", request("pool2d", d, {"mode": mode, **window, **_PITCHES}, operands="xy", arch=arch)
        for mode in range(2):
            yield f"global_pool {mode}", _global(d, 1280, 7, arch, mode)
        yield "global_pool in slices", _global(d, 17, 56, arch)
        for mode, coord, rounding in ((0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 3), (1, 0, 0), (1, 2, 0)):
            ints = {"mode": mode, "coord": coord, "rounding": rounding, "N": 2, "C": 20, "IH": 5, "IW": 5, "OH": 10, "OW": 10, **_PITCHES}
            yield f"resize2d {mode}{coord}{rounding}", request("resize2d", d, ints, {"scale_h": 2.0, "scale_w": 2.0}, operands="xy", arch=arch)


def _excite(dtype: DType, c: int, r: int, side: DimLike, arch: int = 90, **more: DimLike) -> Request:
    pitches = {f"{s}_{p}": v for s in "xy" for p, v in (("cs", -(-c // 8) * 8), ("rs", 8 * 240), ("ns", 8 * 24000))}
    ints: dict[str, DimLike] = {"N": symbol("N"), "C": c, "R": r, "H": side, "W": side, **pitches, "act1": 1, "act2": 4, **more}
    return request("squeeze_excite", dtype, ints, operands=("x", "w1", "b1", "w2", "y"), arch=arch)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize(("c", "r", "side"), [(32, 8, 112), (5, 3, 1), (144, 6, 56), (1152, 48, 7), (2048, 128, 3), (96, 4, symbol("side"))])
def test_squeeze_excite_compiles(dtype: DType, c: int, r: int, side: DimLike) -> None:
    kernels = cuda.emit(_excite(dtype, c, r, side))
    compile_kernels(kernels, 90)
    assert len(kernels) == 1 and evaluate(kernels[0].grid[0], {"N": 3, "side": 4}) == 3 * kernels[0].cluster


def test_squeeze_excite_needs_clusters_and_vectors() -> None:
    for r in (_excite(DType.F16, 32, 8, 112, arch=89), _excite(DType.F16, 32, 8, 112, x_cs=33), _excite(DType.F16, 4096, 1024, 3)):
        with pytest.raises(Unfit, match="one launch"):
            cuda.emit(r)


@pytest.mark.parametrize("r", [pytest.param(r, id=f"{n} {r.dtype.name} sm_{r.arch}") for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


def test_large_images_are_pooled_in_slices() -> None:
    assert len(cuda.emit(_global(DType.F16, 1280, 7, 90))) == 1
    assert len(cuda.emit(_global(DType.F16, 1280, symbol("side"), 90))) == 1
    first, second = cuda.emit(_global(DType.F16, 96, 56, 90))
    slices = first.grid[1]
    assert slices == -(-3136 // 256) and evaluate(first.scratch[0], {"N": 3}) == slices * 3 * 96 * 4
    assert Pointer("scratch0") in first.args and Pointer("scratch0") in second.args


def test_blocks_of_global_pooling_cover_the_channels() -> None:
    (k,) = cuda.emit(_global(DType.F16, 1280, 7, 90))
    assert evaluate(k.grid[0], {"N": 2}) == 2 * 5
    (k,) = cuda.emit(_global(DType.F16, 17, 7, 90))
    assert evaluate(k.grid[0], {"N": 2}) == 2


def test_cubic_resizing_has_no_kernel() -> None:
    with pytest.raises(Unfit, match="mode 2"):
        cuda.emit(request("resize2d", DType.F16, {"mode": 2, "N": 1, "C": 8, "OH": 1, "OW": 1}, {"scale_h": 1.0, "scale_w": 1.0}))
