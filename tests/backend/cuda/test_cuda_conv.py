"""CUDA convolutions: every kind compiles without a GPU, within the hardware's limits, and tensor
maps are used only where they reach.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.backend.cuda.cuda_requests import check_kernels, compile_kernels, request
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Pointer, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import merged_groups, packed_elements, widened_elements
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
halo = discovery.module("kernels", "cuda.conv.halo")
TYPES = (DType.F16, DType.BF16, DType.F32)
GATED = {
    "type": 0,
    "n_in": 3,
    "regs": 3,
    "out": 0,
    "code": [[6, 0, 0, 1, 2, 0.0], [41, 0, 0, 0, 0, 0.0]],
}


def conv(
    dtype: DType, n: D.DimLike, c: int, h: D.DimLike, w: D.DimLike, oc: int, kernel: int = 3,
    stride: int = 1, pad: int = 1, groups: int = 1, *,
    family: str = "conv2d", res_mode: int = 0, arch: int = 90, slack: int = 0, **more: D.DimLike,
) -> Request:  # fmt: skip
    deconv = family == "deconv2d"

    def out(d: D.DimLike) -> D.DimLike:
        return (
            (d - 1) * stride + kernel - 2 * pad
            if deconv
            else D.floordiv(d + (2 * pad - kernel), stride) + 1
        )

    oh, ow = out(h), out(w)
    ints: dict[str, D.DimLike] = {
        "N": n, "IC": c, "IH": h, "IW": w, "OC": oc, "OH": oh, "OW": ow, "KH": kernel, "KW": kernel,
        "SH": stride, "SW": stride, "DH": 1, "DW": 1,
        "PT": pad, "PL": pad, "G": groups, "act": 1, "res_mode": res_mode,
    }  # fmt: skip
    for side, channels, height, width in (("x", c, h, w), ("y", oc, oh, ow), ("r", oc, oh, ow)):
        cs = -(-channels // 8) * 8 + slack
        ints |= {
            f"{side}_cs": cs,
            f"{side}_rs": D.mul(width, cs),
            f"{side}_ns": D.mul(height, D.mul(width, cs)),
        }
    return request(
        family,
        dtype,
        ints | more,
        operands=("x", "w", "bias", "y", *(["res"] if res_mode else [])),
        arch=arch,
    )


def cases() -> Iterator[tuple[str, Request]]:
    for arch in (80, 89, 90):
        for d in TYPES if arch == 90 else (DType.F16,):
            yield f"3x3 {d.name} sm_{arch}", conv(d, 64, 64, 56, 56, 64, arch=arch)
            yield f"one image {d.name} sm_{arch}", conv(d, 1, 512, 7, 7, 512, arch=arch, res_mode=1)
            yield (
                f"depthwise {d.name} sm_{arch}",
                conv(d, 2, 40, 15, 15, 40, 5, 2, 2, 40, family="conv2d_dw", arch=arch),
            )
    for d in TYPES:
        yield f"stem {d.name}", conv(d, 2, 3, 64, 64, 32, 7, 2, 3)
        yield f"1x1 with residual {d.name}", conv(d, 64, 64, 56, 56, 256, 1, 1, 0, res_mode=1)
        yield f"groups {d.name}", conv(d, 2, 20, 10, 10, 30, groups=5)
        yield f"transposed {d.name}", conv(d, 2, 64, 8, 8, 32, 4, 2, 1, family="deconv2d")
        r = conv(d, 8, 64, 28, 28, 96, o0_kind=0, o1_kind=1)
        yield f"program {d.name}", replace(r, program=GATED, operands=r.operands | {"o0", "o1"})


def planar(dtype: DType, c: int, kernel: int, stride: int, arch: int = 90) -> Request:
    """A first layer over an image whose channels lie in planes."""
    n, h, w = D.symbol("n"), 37, 61
    return conv(
        dtype,
        n,
        c,
        h,
        w,
        24,
        kernel,
        stride,
        kernel // 2,
        arch=arch,
        x_c=h * w,
        x_cs=1,
        x_rs=w,
        x_ns=c * h * w,
    )


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 89, 90])
def test_images_in_planes_have_a_kernel(arch: int) -> None:
    for dtype in (DType.F16, DType.BF16):
        for c in (1, 2, 3, 4):
            for kernel, stride in ((k, s) for k in range(1, 8) for s in (1, 2)):
                kernels = cuda.emit(planar(dtype, c, kernel, stride, arch))
                assert {k.symbol for k in kernels} == {"conv_small_c_pool"}
                check_kernels(kernels, arch)
    for kernel, stride in ((8, 1), (8, 4)):  # the most that lowering leaves in planes
        compile_kernels(cuda.emit(planar(DType.F16, 4, kernel, stride, arch)), arch)
    compile_kernels(cuda.emit(planar(DType.F16, 3, 7, 2, arch)), arch)
    compile_kernels(cuda.emit(planar(DType.BF16, 4, 3, 1, arch)), arch)


def pooled(
    dtype: DType, c: int, kernel: int, window: tuple[int, int], arch: int = 90, **more: D.DimLike
) -> Request:
    """A first layer whose result is pooled."""
    ints = dict(planar(dtype, c, kernel, 2, arch).ints)
    ints |= {"PKH": window[0], "PKW": window[1], "PPT": 1, "PPL": 1, "PH": 10, "PW": D.symbol("w")}
    return request(
        "conv_pool",
        dtype,
        {n: v for n, v in ints.items() if n != "res_mode"} | more,
        operands=("x", "w", "bias", "y"),
        arch=arch,
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("arch", [80, 89, 90])
@pytest.mark.parametrize("window", [(3, 3), (2, 2), (3, 2), (2, 3)])
def test_pooled_convolutions_compile(window: tuple[int, int], arch: int) -> None:
    compile_kernels(cuda.emit(pooled(DType.F16, 3, 7, window, arch)), arch)
    compile_kernels(cuda.emit(pooled(DType.BF16, 7, 3, window, arch, act=5)), arch)


def test_what_cannot_be_pooled() -> None:
    gated = replace(pooled(DType.F16, 3, 7, (3, 3), o0_kind=0, o1_kind=1), program=GATED)
    for r in (
        gated,
        pooled(DType.F16, 9, 3, (3, 3)),
        pooled(DType.F16, 8, 7, (3, 3)),
        pooled(DType.F16, 4, 3, (3, 3), G=2),
        pooled(DType.F16, 3, 3, (3, 3), DH=2),
    ):
        with pytest.raises(NoKernel, match="pools"):
            cuda.emit(r)
    compile_kernels(cuda.emit(replace(gated, ints={**gated.ints, "o0_kind": 1})), 90)


def test_bands_of_a_pooled_convolution_fill_the_device() -> None:
    kernels = cuda.emit(pooled(DType.F16, 3, 7, (3, 3), PH=56, PW=56))
    for n in (0, 1, 2, 4, 15, 32, 64, 100, 299):
        warps = [D.evaluate(k.grid[0], {"n": n}) * k.block // 32 for k in kernels]
        assert sum(w > 0 for w in warps) == min(n, 1), "one kernel for each size"
        assert sum(warps) > 8 * 132 or n < 4


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "r"), [pytest.param(n, r, id=n) for n, r in cases()])
def test_compiles(name: str, r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


def test_packing_compiles_and_fits() -> None:
    for d in TYPES:
        for family, ints in (
            ("pack_conv2d", {"OC": 6, "IC": 4, "KH": 3, "KW": 2, "G": 2}),
            ("pack_deconv2d", {"OC": 6, "IC": 4, "KH": 3, "KW": 2, "G": 2}),
            ("pack_conv2d_dw", {"OC": 6, "KH": 3, "KW": 2}),
        ):  # fmt: skip
            compile_kernels(cuda.emit(request(family, d, ints)), 80)


@pytest.mark.parametrize("channels", [1, 3, 8, 17, 64])
def test_packed_weights_fit_their_buffers(channels: int) -> None:
    pitch = -(-channels // 8) * 8
    assert packed_elements("pack_conv2d", OC=5, IC=channels, KH=3, KW=3, G=1) >= 5 * 9 * pitch
    assert (
        packed_elements("pack_deconv2d", OC=10, IC=2 * channels, KH=3, KW=3, G=2) >= 10 * 9 * pitch
    )
    assert packed_elements("pack_gemm", K=channels, N_total=1001) >= 1001 * pitch
    assert packed_elements("pack_conv2d_dw", OC=channels, KH=3, KW=3) >= 9 * pitch


def kernels_of(r: Request) -> list[Kernel]:
    kernels: list[Kernel] = cuda.emit(r)
    check_kernels(kernels, r.arch)
    return kernels


def resident(r: Request) -> list[bool]:
    """Of each of its kernels with a shared halo, whether weights stay in shared memory."""
    found = [k.source for k in kernels_of(r) if k.symbol == "conv_halo"]
    return ["WEIGHTS_RESIDENT = true" in source for source in found]


def hopper(r: Request) -> bool:
    return any(
        k.symbol in ("gemm_persistent_sm90", "gemm_cluster_splitk_sm90", "conv_halo")
        for k in kernels_of(r)
    )


def test_im2col_maps() -> None:
    (k,) = kernels_of(conv(DType.F16, 64, 256, 28, 28, 512, 3, 2))
    maps = [a for a in k.args if isinstance(a, TensorMap)]
    assert (
        k.symbol in ("gemm_persistent_sm90", "gemm_cluster_splitk_sm90")
        and maps[0].im2col is not None
    )
    lower, upper, channels, pixels = maps[0].im2col
    assert (lower, upper, channels) == ((-1, -1), (-2, -2), 64) and pixels % 8 == 0
    assert maps[0].element_strides == (1, 2, 2, 1)


def test_im2col_needs_fixed_corners_and_aligned_pixels() -> None:
    n, h = D.symbol("n"), D.symbol("h")
    assert hopper(conv(DType.F16, n, 256, 28, 28, 512))
    # stride 1: the corner does not depend on the height
    assert hopper(conv(DType.F16, 64, 256, h, 28, 512))
    # as many windows as fit: the last one that might
    assert hopper(conv(DType.F16, 64, 256, h, 28, 512, 3, 2))
    assert not hopper(conv(DType.F16, 64, 256, h, 28, 512, 3, 2, OH=D.symbol("other")))
    assert not hopper(conv(DType.F16, 64, 256, 28, 28, 512, slack=4))
    assert not hopper(conv(DType.F32, 64, 256, 28, 28, 512))


def test_corners_of_symbolic_images_let_as_many_windows_begin() -> None:
    corners = discovery.module("kernels", "cuda.gemm.sm90").corners
    for kernel, stride, pad in ((3, 2, 1), (2, 2, 0), (5, 3, 2), (7, 4, 3)):
        (_, top), (_, bottom) = corners(
            conv(DType.F16, 1, 64, D.symbol("h"), 28, 64, kernel, stride, pad)
        )
        for height in range(kernel, 40):
            (_, exact_top), (_, exact) = corners(
                r := conv(DType.F16, 1, 64, height, 28, 64, kernel, stride, pad)
            )
            assert top == exact_top and exact <= bottom < exact + stride, r.ints


def test_first_layers_and_small_filters_have_kernels_of_their_own() -> None:
    for arch, more in ((80, "gemm_multistage"), (90, "conv_small_c_patch")):
        for channels, symbol in ((3, "conv_small_c_pool"), (9, more)):
            r = conv(DType.F16, 8, channels, 64, 64, 32, 7, 2, 3, arch=arch)
            assert [k.symbol for k in kernels_of(r)] == [symbol]
    assert resident(conv(DType.F16, 64, 64, 56, 56, 64)) == [True]
    for other in (
        conv(DType.F16, 64, 64, 56, 56, 64, 3, 2),
        conv(DType.F16, 64, 64, 56, 56, 64, res_mode=1),
        conv(DType.F16, 64, 512, 56, 56, 64),
    ):
        assert not any(resident(other))


HALOS = [
    conv(DType.BF16, 28, 88, 19, 54, 64, 7, pad=3),
    conv(DType.F16, 64, 256, 14, 14, 256, res_mode=1), conv(DType.F16, 33, 512, 7, 7, 500),
    conv(DType.BF16, 2, 40, 31, 9, 72, 5, pad=2),
    conv(DType.F16, 1, 24, 1, 150, 33, 1, pad=0, KW=25, OW=150, PL=12),
    conv(DType.F16, 3, 64, 12, 12, 40, DH=2, DW=3, OH=10, OW=8),
    conv(DType.F16, D.symbol("n"), 128, 28, 28, 136),
    conv(DType.F16, 2, 128, D.symbol("h"), 28, 136),
]  # fmt: skip


@pytest.mark.parametrize("r", HALOS)
def test_patches_hold_what_their_tiles_read(r: Request) -> None:
    tiles = [t for t in halo.configs(r) if not t.weights_resident]
    assert tiles and {t.split for t in tiles} >= {1, 2}
    i = r.ints
    kh, kw, dh, dw, wide = (int(i[n]) for n in ("KH", "KW", "DH", "DW", "OW"))
    for t in tiles:
        per, height = t.wgmmas // t.stack, t.rows + (kh - 1) * dh
        assert t.split == 1 or t.multicast == 1
        assert (
            per * t.stack == t.wgmmas
            and t.width == wide + (kw - 1) * dw
            and t.patch_bytes % 1024 == 0
            and t.stack * height * t.width * 128 <= t.patch_bytes
        )
        assert (t.rows - 1) * t.width + wide <= per * 64, "each pixel of the tile has a row"
        last = (t.stack - 1) * height * t.width + per * 64 + (kh - 1) * dh * t.width + (kw - 1) * dw
        assert last * 128 + (t.patches - 1) * t.patch_bytes <= t.smem - 2048, (
            "no product reads beyond the block's memory"
        )
        if t.stack > 1:
            assert t.rows == i["OH"], "an image is whole where a tile has several"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", HALOS)
def test_patches_compile(r: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = [t for t in halo.configs(r) if not t.weights_resident]
    for tile in (
        tiles[0],
        tiles[-1],
        max(tiles, key=lambda t: (t.wgmmas * t.columns, t.split)),
        max(tiles, key=lambda t: (t.multicast, t.wgmmas)),
    ):
        monkeypatch.setattr(
            discovery.module("kernels", "cuda.gemm.select"),
            "choose",
            lambda *_, tile=tile: [(tile, 1)],
        )
        (k,) = cuda.emit(r)
        assert k.symbol == "conv_halo" and k.cluster == tile.split * tile.multicast
        check_kernels([k], 90)
        compile_kernels([k], 90)


def test_convolutions_whose_weights_do_not_fit_read_patches() -> None:
    assert resident(HALOS[0]) == [False]
    for other in (
        conv(DType.BF16, 28, 88, 19, 54, 64, 7, 2, 3),
        conv(DType.F32, 28, 88, 19, 54, 64, 7, pad=3),
        conv(DType.BF16, 28, 88, 19, 54, 64, 7, pad=3, arch=80),
        conv(DType.BF16, 28, 88, 19, 54, 64, 7, pad=3, slack=4),
        conv(DType.BF16, 28, 88, 19, 300, 64, 7, pad=3),
        conv(DType.BF16, 28, 88, 19, 54, 64, 1, pad=0),
    ):  # fmt: skip
        assert not resident(other)


def test_only_constant_weights_are_read_before_the_kernel_before_is_done() -> None:
    shapes = (
        conv(DType.F16, 8, 3, 64, 64, 32, 7, 2, 3),
        conv(DType.F16, 64, 64, 56, 56, 64),
        conv(DType.F16, 64, 256, 14, 14, 1024, 1, 1, 0),
        conv(DType.F16, 1, 512, 7, 7, 512),
    )
    assert {k.symbol for r in shapes for k in kernels_of(r)} == {
        "conv_small_c_pool",
        "conv_halo",
        "gemm_persistent_sm90",
        "gemm_cluster_splitk_sm90",
    }
    for r in shapes:
        for constant in (False, True):
            (k,) = kernels_of(replace(r, constant=frozenset({"w"} if constant else ())))
            assert re.search(f"bool EARLY = ({int(constant)}|{str(constant).lower()})", k.source)
            compile_kernels([k], 90)


def test_one_by_one_is_a_product() -> None:
    (k,) = kernels_of(conv(DType.F16, 64, 256, 28, 28, 512, 1, 1, 0))
    assert all(a.im2col is None for a in k.args if isinstance(a, TensorMap))


def test_output_of_a_transposed_convolution_has_a_phase_per_stride() -> None:
    kernels = kernels_of(conv(DType.F16, 2, 64, 8, 8, 32, 4, 3, 0, 2, family="deconv2d"))
    assert all(k.grid[2] == 2 * 9 for k in kernels)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(2, 2, 0), (4, 2, 1), (3, 2, 1), (5, 3, 2), (6, 3, 1)]
)
def test_phases_of_transposed_convolutions_reach_tensor_maps(
    kernel: int, stride: int, pad: int
) -> None:
    for dtype in (DType.F16, DType.BF16):
        for n in (1, 64, D.symbol("n")):
            kernels = kernels_of(
                conv(dtype, n, 64, 14, 15, 40, kernel, stride, pad, family="deconv2d")
            )
            assert all(
                k.symbol == "gemm_cluster_splitk_sm90" and k.grid[1] == stride * stride
                for k in kernels
            )
            check_kernels(kernels, 90)
    (k,) = kernels_of(
        conv(DType.F16, 2, 64, 14, 15, 40, kernel, stride, pad, family="deconv2d", res_mode=1)
    )
    compile_kernels([k], 90)
    # Of every phase, each tap takes the input that it takes of the whole convolution, and all begin
    # where the box does.
    (x,) = [a for a in k.args if isinstance(a, TensorMap) and a.pointer.operand == "x"]
    assert x.im2col is not None
    low, taps = (
        x.im2col[0][0],
        [[t for t in range(kernel) if (phase + pad - t) % stride == 0] for phase in range(stride)],
    )
    inputs = [[(phase + pad - t) // stride - low for t in ts] for phase, ts in enumerate(taps)]
    assert (
        all(i == list(range(i[0], i[0] - len(i), -1)) and i[-1] >= 0 for i in inputs)
        and min(i[-1] for i in inputs) == 0
    )


def test_other_transposed_convolutions_have_tiles() -> None:
    for more in (
        {"kernel": 2, "stride": 3},
        {"DH": 2, "DW": 2},
        {"groups": 2},
        {"slack": 4},
        {"arch": 80},
    ):
        sizes = {"kernel": 4, "stride": 2, "pad": 1, **more}
        assert {
            k.symbol
            for k in kernels_of(conv(DType.F16, 2, 64, 14, 15, 40, family="deconv2d", **sizes))
        } <= {"gemm_multistage", "gemm_splitk_reduce"}


@pytest.mark.parametrize(
    ("channels", "columns", "groups", "together"),
    [
        (4, 4, 32, 16), (8, 8, 13, 8), (16, 16, 10, 4), (24, 24, 5, 2), (48, 48, 9, 1),
        (64, 64, 4, 1), (9, 9, 16, 8), (7, 7, 3, 3), (1, 2, 64, 32), (4, 32, 8, 2),
        (300, 300, 2, 2), (3, 16, 12, 8), (100, 100, 5, 2),
    ],
)  # fmt: skip
def test_merged_groups_fill_tiles(channels: int, columns: int, groups: int, together: int) -> None:
    assert merged_groups(channels, columns, groups) == together


def grouped(
    dtype: DType,
    n: D.DimLike,
    c: int,
    size: int,
    groups: int,
    kernel: int = 3,
    stride: int = 1,
    **more: Any,
) -> Request:
    return conv(dtype, n, c, size, size, c, kernel, stride, kernel // 2, groups, **more)


def test_groups_are_merged_where_tensor_maps_reach() -> None:
    for d in (DType.F16, DType.BF16):
        for n in (1, 8, 64, D.symbol("n")):
            for c, size, groups in ((128, 56, 32), (104, 28, 13), (432, 14, 9), (1024, 7, 32)):
                assert all(
                    k.symbol != "gemm_multistage"
                    for k in kernels_of(grouped(d, n, c, size, groups))
                )
                assert all(
                    k.symbol != "gemm_multistage"
                    for k in kernels_of(grouped(d, n, c, size, groups, 3, 2, res_mode=1))
                )
    for r in (
        grouped(DType.F32, 8, 128, 56, 32), grouped(DType.F16, 8, 128, 56, 32, arch=80),
        grouped(DType.F16, 8, 128, 56, 32, slack=4),
        grouped(DType.F16, 8, 128, 56, 32, family="deconv2d"),
    ):  # fmt: skip
        assert {k.symbol for k in kernels_of(r)} <= {
            "gemm_multistage",
            "gemm_splitk_reduce",
            "conv_narrow_simt",
        }


def test_tensor_maps_begin_at_multiples_of_16_bytes() -> None:
    for channels, columns, groups in itertools.product(range(1, 40), range(1, 40), (2, 5, 12, 100)):
        together = merged_groups(channels, columns, groups)
        assert together == groups or together * channels % 8 == together * columns % 8 == 0


def test_only_sums_that_other_groups_reach_are_mended() -> None:
    for c, groups, mended in ((256, 4, False), (128, 32, True), (96, 2, True), (600, 2, True)):
        (k,) = kernels_of(grouped(DType.F16, 64, c, 28, groups))
        assert (
            ("#define MIXED 1" in k.source)
            == mended
            == ("own_x" in k.source.split("EPILOGUE_ARGUMENTS")[0])
        )
    (k,) = kernels_of(conv(DType.F16, 64, 256, 28, 28, 512))
    assert "#define MIXED 0" in k.source


@pytest.mark.parametrize("groups", [2, 9, 32])
def test_merged_groups_compile(groups: int) -> None:
    for n, stride, res in ((1, 1, 1), (64, 1, 0), (64, 2, 0), (64, 2, 1)):
        compile_kernels(
            cuda.emit(grouped(DType.F16, n, 16 * groups, 28, groups, 3, stride, res_mode=res)), 90
        )


def test_filters_of_merged_groups_follow_the_packed_ones() -> None:
    sizes = {"OC": 104, "IC": 104, "KH": 3, "KW": 3, "G": 13}
    compact, widened = cuda.emit(request("pack_conv2d", DType.F16, sizes))
    compile_kernels([compact, widened], 90)
    for k, at, count in ((compact, 0, 104 * 9 * 8), (widened, 104 * 9 * 8 * 2, 104 * 9 * 64)):
        (to,) = [a for a in k.args if isinstance(a, Pointer) and a.operand == "packed"]
        assert to.offset == at and k.grid[0] == -(-count // 256)
    assert at + count * 2 <= 2 * (
        packed_elements("pack_conv2d", **sizes) + widened_elements(**sizes)
    )
    (k,) = [
        k for k in kernels_of(grouped(DType.F16, 1, 104, 28, 13)) if k.symbol != "gemm_multistage"
    ]
    (w,) = [a for a in k.args if isinstance(a, TensorMap) and a.pointer.operand == "w"]
    assert w.pointer.offset == at and w.dims == (64, 9, 104)
    for other in (
        request("pack_conv2d", DType.F32, sizes),
        request("pack_conv2d", DType.F16, sizes, arch=80),
        request("pack_conv2d", DType.F16, sizes | {"G": 1}),
    ):
        assert len(cuda.emit(other)) == 1
    assert widened_elements(OC=96, IC=96, KH=3, KW=3, G=2) == 0


@pytest.mark.parametrize(
    ("channels", "columns", "groups", "apart"),
    [
        (4, 4, 32, (16, 16)),
        (8, 16, 16, (16, 32)),
        (16, 16, 4, (16, 16)),
        (32, 32, 4, (32, 32)),
        (64, 64, 4, (0, 0)),
        (12, 12, 16, (0, 0)),
        (3, 3, 40, (0, 0)),
    ],
)
def test_channels_that_share_no_group_with_others_that_are_merged_with_theirs(
    channels: int, columns: int, groups: int, apart: tuple[int, int]
) -> None:
    r = conv(DType.F16, 64, channels * groups, 28, 28, columns * groups, groups=groups)
    assert discovery.module("kernels", "cuda.conv.grouped").alone(r) == apart
    halos = [k.source for k in kernels_of(r) if k.symbol == "conv_halo" and apart[1]]
    wanted = {f"int GROUP_MMAS = {apart[0] // 16};", f"int GROUP_COLUMNS = {apart[1]};"}
    assert all(text in source for source in halos for text in wanted)


def test_steps_of_few_channels_have_fewer_products() -> None:
    for channels, products in ((24, 2), (32, 2), (40, 3), (64, 4), (96, 4)):
        assert (
            f"STAGE_MMAS = {products};"
            in kernels_of(conv(DType.F16, 8, channels, 56, 56, 64))[0].source
        )


def test_rows_that_strips_read_are_counted_without_going_through_them() -> None:
    """As one by one, and for an image of any height."""
    emit = discovery.module("kernels", "cuda.conv.depthwise.emit")
    for oh, ih, sh, top, depth in itertools.product(
        (1, 2, 7, 30), (0, 1, 5, 31), (1, 3), (-1, 2), (1, 4)
    ):
        heights = emit._heights(oh)
        assert set(heights) == {-(-oh // bands) for bands in range(1, oh + 1)}
        for lines in heights:
            bounds = [
                (o * sh - top, (min(o + lines, oh) - 1) * sh - top + depth)
                for o in range(0, oh, lines)
            ]
            want = sum(max(0, min(b, ih)) - max(0, min(a, ih)) for a, b in bounds)
            assert emit._rows_read(lines, oh, ih, sh, top, depth) == want
    assert emit._rows_read(1 << 20, 1 << 40, 1 << 40, 1, 1, 3) == (1 << 40) + 2 * ((1 << 20) - 1)
