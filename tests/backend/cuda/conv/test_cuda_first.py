"""The CUDA kernel for few input channels, compiled by the host's compiler, its blocks run by
threads: every division, odd sizes, edges; and where it applies.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import check_kernels, compile_kernels, request, running
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
first = discovery.module("kernels", "cuda.conv.small_c_simt")

Shape = tuple[int, tuple[int, int], tuple[int, int], tuple[int, int], int, int, int, int]


def _request(
    shape: Shape, *, planes: bool = True, dtype: DType = DType.F32, arch: int = 90
) -> Request:
    """shape: channels, window, strides, dilations, padding, output channels, height, width."""
    c, (kh, kw), (sh, sw), (dh, dw), pad, oc, h, w = shape
    pt, pl = min(pad, kh - 1), min(pad, kw - 1)
    oh, ow = (h + 2 * pt - dh * (kh - 1) - 1) // sh + 1, (w + 2 * pl - dw * (kw - 1) - 1) // sw + 1
    ints: dict[str, DimLike] = {
        "N": 2,
        "IC": c,
        "IH": h,
        "IW": w,
        "OC": oc,
        "OH": oh,
        "OW": ow,
        "KH": kh,
        "KW": kw,
        "SH": sh,
        "SW": sw,
        "DH": dh,
        "DW": dw,
    }
    ints |= {"PT": pt, "PL": pl, "G": 1}
    ints |= (
        {"x_c": h * w, "x_cs": 1, "x_rs": w, "x_ns": c * h * w}
        if planes
        else {"x_c": 1, "x_cs": 4, "x_rs": 4 * w, "x_ns": 4 * h * w}
    )
    ints |= {
        f"{s}_{p}": v
        for s in "yr"
        for p, v in (
            ("cs", -(-oc // 8) * 8),
            ("rs", ow * (-(-oc // 8) * 8)),
            ("ns", oh * ow * (-(-oc // 8) * 8)),
        )
    }
    return request("conv2d", dtype, ints, operands=("x", "w", "bias", "y"), arch=arch)


SHAPES: tuple[Shape, ...] = (
    (3, (7, 7), (2, 2), (1, 1), 3, 20, 19, 23), (1, (1, 15), (1, 1), (1, 1), 7, 16, 1, 70),
    (2, (3, 3), (1, 1), (1, 1), 1, 40, 11, 13),
    (4, (5, 9), (3, 1), (1, 1), 2, 9, 14, 17), (3, (3, 3), (2, 3), (2, 2), 1, 70, 16, 21),
    (1, (11, 11), (4, 4), (1, 1), 5, 33, 30, 31),
    (2, (1, 10), (1, 5), (1, 1), 0, 8, 1, 91),
)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_output_once(tmp_path: Path, shape: Shape, planes: bool) -> None:
    rng = np.random.default_rng(0)
    r = _request(shape, planes=planes)
    i = {n: int(v) for n, v in r.ints.items() if isinstance(v, int)}
    (tile, _), *_ = first.choose(r)
    if planes:
        fitting = [t for t in first.configs(r) if first.configs(r)[t].smem <= 1 << 18]
        tile = max(fitting, key=lambda t: (t.pixels, t.groups, t.parts))
    (kernel,) = first.emit(r, tile)
    x = rng.standard_normal((2, i["IC"], i["IH"], i["IW"])).astype(np.float32)
    filters = np.zeros((i["OC"], i["KH"], i["KW"], 4), np.float32)
    filters[..., : i["IC"]] = rng.standard_normal((i["OC"], i["KH"], i["KW"], i["IC"]))
    bias = np.pad(rng.standard_normal(i["OC"]).astype(np.float32), (0, -i["OC"] % 8))
    lying = x if planes else np.full((2, i["IH"], i["IW"], 4), 7, np.float32)
    if not planes:
        lying[..., : i["IC"]] = x.transpose(0, 2, 3, 1)
    y = cuda_host.aligned(np.full((2, i["OH"], i["OW"], i["y_cs"]), np.nan, np.float32))
    given = {"x": lying, "w": filters, "bias": bias}
    cuda_host.run(kernel, {n: cuda_host.aligned(a) for n, a in given.items()} | {"y": y}, tmp_path)
    padded = np.pad(
        x.astype(np.float64),
        ((0, 0), (0, 0), (i["PT"], i["PT"] + i["SH"]), (i["PL"], i["PL"] + i["SW"])),
    )
    want = np.zeros((2, i["OH"], i["OW"], i["OC"])) + bias[: i["OC"]]
    for kh, kw in itertools.product(range(i["KH"]), range(i["KW"])):
        seen = padded[:, :, kh * i["DH"] :: i["SH"], kw * i["DW"] :: i["SW"]]
        want += np.einsum(
            "nchw,oc->nhwo",
            seen[:, :, : i["OH"], : i["OW"]],
            filters[:, kh, kw, : i["IC"]].astype(np.float64),
        )
    np.testing.assert_allclose(y[..., : i["OC"]], want, atol=1e-4)
    assert np.isnan(y[..., i["OC"] :]).all()
    assert [k.symbol for k in cuda.emit(r)] == ["conv_small_c_simt"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 89, 90])
def test_a_tile_for_all_that_lowering_leaves_in_planes(arch: int) -> None:
    """On older devices, whose tiles differ in what shared memory holds, one window in seven."""
    windows = list(
        itertools.product((1, 2, 3, 4), (1, 2, 3, 5, 7, 11, 16), (1, 2, 3, 4, 7, 8, 9, 11, 16, 32))
    )
    for c, kh, kw in windows if arch == 90 else windows[arch % 7 :: 7]:
        for stride, dilation in (
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 1),
            (1, 5),
            (4, 2),
            *([(5, 1), (8, 3)] if kh == 1 else []),
        ):
            if c * kh * kw <= first.MOST_TERMS and (max(kh, kw) - 1) * dilation <= (
                first.WIDEST_ROW if kh == 1 else first.WIDEST
            ):
                r = _request(
                    (c, (kh, kw), (stride, stride), (dilation, dilation), 0, 64, 224, 224),
                    arch=arch,
                )
                check_kernels(cuda.emit(r), arch)
    for dtype in (DType.F32, DType.F16, DType.BF16):
        compile_kernels(
            cuda.emit(
                _request((3, (11, 11), (4, 4), (1, 1), 2, 64, 224, 224), dtype=dtype, arch=arch)
            ),
            arch,
        )


@pytest.mark.parametrize("size", [40, 120, 200, 327, 600])
def test_a_launch_of_one_block_each_leaves_no_room_for_the_next(size: int) -> None:
    r = _request((3, (7, 7), (4, 4), (1, 1), 3, 16, size, size))
    (k,) = cuda.emit(r)
    blocks = evaluate(k.grid[0], {}) * evaluate(k.grid[1], {})
    assert (2 * k.smem >= 227 * 1024) == (r.sms < 2 * blocks <= 2 * r.sms)


def test_symbolic_batches() -> None:
    r = _request(SHAPES[0])
    kernels = cuda.emit(
        request(
            "conv2d",
            DType.F32,
            dict(r.ints) | {"N": symbol("n")},
            operands=("x", "w", "bias", "y"),
            arch=90,
        )
    )
    for n in (1, 3, 64, 1000):
        (k,) = running(kernels, n=n)
        assert k.symbol == "conv_small_c_simt"


def test_symbolic_lines_in_planes() -> None:
    """A sequence as long as an input says: how far apart its channels lie is known at run time
    only.
    """
    r = _request((1, (1, 10), (1, 5), (1, 1), 0, 64, 1, 400))
    length = symbol("s")
    sizes = {"IW": length, "OW": length // 5, "x_c": length, "x_rs": length, "x_ns": length}
    kernels = cuda.emit(
        request(
            "conv2d", DType.F32, dict(r.ints) | sizes, operands=("x", "w", "bias", "y"), arch=90
        )
    )
    for s in (10, 400, 16000):
        (k,) = running(kernels, s=s)
        assert k.symbol == "conv_small_c_simt"


def test_what_sizes_do_not_change_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sizes of images tiles are priced for."""
    fixed = _request(SHAPES[0])
    h, w = symbol("h"), symbol("w")
    sizes: dict[str, DimLike] = {"N": symbol("n"), "IH": h, "IW": w, "OH": h // 2, "OW": w // 2}
    r = request(
        "conv2d", DType.F32, dict(fixed.ints) | sizes, operands=("x", "w", "bias", "y"), arch=90
    )
    asked: Counter[object] = Counter()
    grid = first._grid

    def count(of: Request, tile: object) -> object:
        asked[tile] += 1
        return grid(of, tile)

    monkeypatch.setattr(first, "_grid", count)
    first._configs.cache_clear()
    assert len(list(first.choose(r))) > 1
    assert first._configs.cache_info().misses == 1
    assert asked and max(asked.values()) <= 8
