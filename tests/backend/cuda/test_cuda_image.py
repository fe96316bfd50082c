"""CUDA pooling and resizing: every kernel compiles without a GPU; large images are pooled in
slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backend.cuda.cuda_requests import compile_kernels, request, running
from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, NoKernel, Pointer, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.plan.kernel_families import weight_pitch
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
PAIRS = ((DType.F32, 80), (DType.BF16, 89), (DType.F16, 90))
_PITCHES = {f"{s}_{p}": v for s in "xy" for p, v in (("cs", 24), ("rs", 240), ("ns", 2400))}


def _global(dtype: DType, c: int, side: DimLike, arch: int, mode: int = 1) -> Request:
    ints: dict[str, DimLike] = {
        "mode": mode,
        "N": symbol("N"),
        "C": c,
        "H": side,
        "W": side,
        "x_cs": 1280,
        "x_rs": 1280 * 56,
        "x_ns": 1280 * 3136,
        "y_ns": c,
    }
    return request("global_pool", dtype, ints, operands="xy", arch=arch)


def cases() -> Iterator[tuple[str, Request]]:
    window = {
        "N": 2,
        "C": 20,
        "IH": 10,
        "IW": 10,
        "OH": 5,
        "OW": 5,
        "KH": 3,
        "KW": 3,
        "SH": 2,
        "SW": 2,
        "DH": 1,
        "DW": 1,
        "PT": 1,
        "PL": 1,
        "PB": 1,
        "PR": 1,
    }
    for d, arch in PAIRS:
        for mode in range(3):
            yield (
                f"pool2d {mode}",
                request(
                    "pool2d", d, {"mode": mode, **window, **_PITCHES}, operands="xy", arch=arch
                ),
            )
        for mode in range(2):
            yield f"global_pool {mode}", _global(d, 1280, 7, arch, mode)
        yield "global_pool in slices", _global(d, 17, 56, arch)
        for mode, coord, rounding in (
            (0, 0, 0),
            (0, 1, 1),
            (0, 2, 2),
            (0, 3, 3),
            (1, 0, 0),
            (1, 2, 0),
        ):
            ints = {
                "mode": mode,
                "coord": coord,
                "rounding": rounding,
                "N": 2,
                "C": 20,
                "IH": 5,
                "IW": 5,
                "OH": 10,
                "OW": 10,
                **_PITCHES,
            }
            yield (
                f"resize2d {mode}{coord}{rounding}",
                request(
                    "resize2d", d, ints, {"scale_h": 2.0, "scale_w": 2.0}, operands="xy", arch=arch
                ),
            )
        for coord in range(4):
            ints = {
                "coord": coord,
                "N": 2,
                "C": 20,
                "IH": 5,
                "IW": 5,
                "OH": 10,
                "OW": 10,
                **_PITCHES,
            }
            yield (
                f"resize_cubic {coord}",
                request(
                    "resize_cubic",
                    d,
                    ints,
                    {"scale_h": 2.0, "scale_w": 2.0, "a": -0.75},
                    operands="xy",
                    arch=arch,
                ),
            )


def _excite(
    dtype: DType, c: int, r: int, side: DimLike, arch: int = 90, **more: DimLike
) -> Request:
    pitches = {
        f"{s}_{p}": v
        for s in "xy"
        for p, v in (("cs", -(-c // 8) * 8), ("rs", 8 * 240), ("ns", 8 * 24000))
    }
    ints: dict[str, DimLike] = {
        "N": symbol("N"),
        "C": c,
        "R": r,
        "H": side,
        "W": side,
        **pitches,
        "act1": 1,
        "act2": 4,
        **more,
    }
    return request("squeeze_excite", dtype, ints, operands=("x", "w1", "b1", "w2", "y"), arch=arch)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize(
    ("c", "r", "side"),
    [(32, 8, 112), (5, 3, 1), (144, 6, 56), (1152, 48, 7), (2048, 128, 3), (96, 4, symbol("side"))],
)
def test_squeeze_excite_compiles(dtype: DType, c: int, r: int, side: DimLike) -> None:
    kernels = cuda.emit(_excite(dtype, c, r, side))
    compile_kernels(kernels, 90)
    assert all(k.smem <= HOPPER_SHARED for k in kernels)
    # as `pack_gemm` lays its weights out
    assert all(f"constexpr int PITCH = {weight_pitch(c, dtype.size)};" in k.source for k in kernels)


@pytest.mark.parametrize(
    ("c", "r", "side"), [(32, 8, 112), (5, 3, 1), (480, 120, 14), (1152, 48, symbol("side"))]
)
def test_one_squeeze_excite_runs(c: int, r: int, side: DimLike) -> None:
    for n in (1, 3, 7, 8, 16, 17, 33, 87, 88, 89, 500):
        (fixed,) = cuda.emit(_excite(DType.F16, c, r, side, N=n))
        grids = {
            k.source: evaluate(k.grid[0], {"N": n, "side": 4})
            for k in cuda.emit(_excite(DType.F16, c, r, side))
        }
        assert {s: g for s, g in grids.items() if g} == {
            fixed.source: evaluate(fixed.grid[0], {"side": 4})
        }
        assert evaluate(fixed.grid[0], {"side": 4}) % fixed.cluster == 0
    for empty in ({"N": 0, "side": 4}, {"N": 3, "side": 0}):
        if empty["N"] == 0 or not isinstance(side, int):
            assert not any(
                evaluate(k.grid[0], empty) for k in cuda.emit(_excite(DType.F16, c, r, side))
            )


def test_squeeze_excite_needs_clusters_and_vectors() -> None:
    for r in (
        _excite(DType.F16, 32, 8, 112, arch=89),
        _excite(DType.F16, 32, 8, 112, x_cs=33),
        _excite(DType.F16, 4096, 1024, 3),
    ):
        with pytest.raises(NoKernel, match="one launch"):
            cuda.emit(r)


def _pool(n: DimLike, dtype: DType, mode: int, window: int, side: int = 56, c: int = 64) -> Request:
    sizes = {
        "IH": side,
        "IW": side,
        "OH": side,
        "OW": side,
        "KH": window,
        "KW": window,
        "SH": 1,
        "SW": 1,
        "DH": 1,
        "DW": 1,
        "PT": window // 2,
        "PL": window // 2,
    }
    pitches = {
        f"{s}_{p}": v
        for s in "xy"
        for p, v in (("cs", c), ("rs", c * side), ("ns", c * side * side))
    }
    return request(
        "pool2d",
        dtype,
        {"mode": mode, "N": n, "C": c, **sizes, "PB": 0, "PR": 0, **pitches},
        operands="xy",
        arch=90,
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "r", [pytest.param(r, id=f"{n} {r.dtype.name} sm_{r.arch}") for n, r in cases()]
)
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


def test_large_images_are_pooled_in_slices() -> None:
    for c, side in ((1280, 7), (1280, symbol("side")), (96, 56)):
        assert len(running(cuda.emit(_global(DType.F16, c, side, 90)), N=3, side=7)) == 1
    kernels = cuda.emit(_global(DType.F16, 96, 91, 90))
    first, second = running(kernels, N=300)
    slices = first.grid[1]
    assert (
        slices == min(-(-(91 * 91) // 256), 32)
        and evaluate(kernels[0].scratch[0], {"N": 300}) == slices * 300 * 96 * 4
    )
    assert Pointer("scratch0") in first.args and Pointer("scratch0") in second.args


def test_blocks_of_global_pooling_cover_the_channels() -> None:
    for c, blocks in ((1280, 80), (17, 2)):  # 2 threads across, of 8 channels each
        (k,) = running(cuda.emit(_global(DType.F16, c, 7, 90)), N=2)
        assert evaluate(k.grid[0], {"N": 2}) == 2 * blocks
    (k,) = cuda.emit(
        replace(
            _global(DType.F16, 1280, 7, 90), ints={**_global(DType.F16, 1280, 7, 90).ints, "N": 64}
        )
    )
    assert k.grid[0] == 64 * 5


def test_every_eight_channels_of_a_resized_image_have_threads() -> None:
    for c, pitch, dtype, threads in (
        (20, 24, DType.F32, 6),
        (20, 20, DType.F32, 5),
        (20, 24, DType.F16, 3),
    ):
        pitches = {
            f"{s}_{p}": pitch * k for s in "xy" for p, k in (("cs", 1), ("rs", 64), ("ns", 64 * 64))
        }
        ints = {"mode": 1, "N": 3, "C": c, "IH": 32, "IW": 32, "OH": 64, "OW": 64, **pitches}
        (k,) = cuda.emit(
            request(
                "resize2d", dtype, ints, {"scale_h": 2.0, "scale_w": 2.0}, operands="xy", arch=90
            )
        )
        assert k.grid[0] == 3 * 64 * 64 * threads // k.block


def test_other_modes_of_resizing_have_no_kernel() -> None:
    with pytest.raises(NoKernel, match="mode 2"):
        cuda.emit(
            request(
                "resize2d",
                DType.F16,
                {"mode": 2, "N": 1, "C": 8, "OH": 1, "OW": 1},
                {"scale_h": 1.0, "scale_w": 1.0},
            )
        )
