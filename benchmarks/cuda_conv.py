"""CUDA convolutions: correctness against float64 (`--check`), or time against cuDNN through PyTorch.

python -m benchmarks.cuda_conv --check
python -m benchmarks.cuda_conv [--compile] [--only REGEX]
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import cuda_check as K
from benchmarks import cuda_runner as R
from benchmarks import cuda_tiles as T
from benchmarks.cuda_conv_shapes import Conv, layers, pitch
from benchmarks.cuda_gemm import TYPES, Case, launches, random, report
from tracea_onnx import registry
from tracea_onnx.cuda import Request
from tracea_onnx.families import widened_elements
from tracea_onnx.ops import ACTIVATIONS, DType


def conv_request(v: Conv, dtype: DType) -> Request:
    (oh, ow), (height, width) = v.out, v.results
    xc, yc = pitch(v.c, v.slack), pitch(v.oc, v.slack)
    rc = pitch(v.oc, 2 * v.slack)
    ints = {
        "N": v.n, "IC": v.c, "IH": v.h, "IW": v.w, "OC": v.oc, "OH": oh, "OW": ow, "KH": v.kernel[0], "KW": v.kernel[1], "SH": v.stride[0], "SW": v.stride[1],
        "DH": v.dilation[0], "DW": v.dilation[1], "PT": v.pads[0], "PL": v.pads[1], "G": v.groups, "x_cs": xc, "x_rs": xc * v.w, "x_ns": xc * v.w * v.h,
        "y_cs": yc, "y_rs": yc * width, "y_ns": yc * width * height, "r_cs": rc, "r_rs": rc * ow, "r_ns": rc * ow * oh, "act": K.act_index(v.act),
        "res_mode": v.res_mode,
    }  # fmt: skip
    if v.planes:
        ints |= {"x_c": v.h * v.w, "x_cs": 1, "x_rs": v.w, "x_ns": v.c * v.h * v.w}
    if v.pool is not None:
        ints |= dict(zip(("PKH", "PKW", "PPT", "PPL"), v.pool[:4], strict=True)) | {"PH": height, "PW": width}
        del ints["res_mode"]
    operands = ["x", "w", "bias", "y", *(["res"] if v.res_mode else [])]
    for j, kind in enumerate(v.kinds or ()):
        ints[f"o{j}_kind"] = kind
        operands.append(f"o{j}")
    p0, p1 = K.PARAMETERS.get(v.act, (0.0, 0.0))
    family = ("deconv2d" if v.transposed else "conv2d") + "_dw" * v.depthwise if v.pool is None else "conv_pool"
    program = K.GATED if v.kinds is not None else None
    return R.request(family, dtype, ints, {"p0": p0, "p1": p1}, program, operands, unaligned=("y",) if v.slack % 8 else (), constant=("w", "bias"))


def pack_request(v: Conv, dtype: DType, *, scaled: bool = True) -> Request:
    ints = {"OC": v.oc, "KH": v.kernel[0], "KW": v.kernel[1]}
    if not v.depthwise:
        ints |= {"IC": v.c, "G": v.groups}
    family = "pack_conv2d_dw" if v.depthwise else "pack_deconv2d" if v.transposed else "pack_conv2d"
    return R.request(family, dtype, ints, operands=["w", "packed", *(["scale"] if scaled else [])])


def packed_weight(v: Conv, w: Any, scale: Any, dtype: DType) -> Any:
    taps = v.kernel[0] * v.kernel[1]
    count = taps * pitch(v.oc) if v.depthwise else v.oc * taps * pitch(v.c // v.groups)
    if not (v.depthwise or v.transposed) and dtype != DType.F32:
        count += widened_elements(OC=v.oc, IC=v.c, KH=v.kernel[0], KW=v.kernel[1], G=v.groups)
    out = K.poisoned((count,), dtype)
    K.launch(pack_request(v, dtype), {"w": w, "packed": out, "scale": scale})
    return out


def channels_last(x: Any, cs: int, dtype: DType) -> Any:
    """[N, C, H, W] stored channels last at `cs` elements per pixel, NaN in the pad channels."""
    n, c, h, w = x.shape
    out = K.poisoned((n, h, w, cs), dtype)
    out[..., :c] = x.permute(0, 2, 3, 1)
    return out


def reference(v: Conv, x: Any, w: Any, b: Any) -> Any:
    """float64 convolution before the epilogue."""
    t = R.torch()
    f = t.nn.functional
    oh, ow = v.out
    with t.backends.cudnn.flags(enabled=False):
        if v.transposed:
            y = f.conv_transpose2d(x, w, None, v.stride, 0, 0, v.groups, v.dilation)
            y = f.pad(y, (0, v.extra[1], 0, v.extra[0]))[:, :, v.pads[0] : v.pads[0] + oh, v.pads[1] : v.pads[1] + ow]
        else:
            y = f.conv2d(f.pad(x, (v.pads[1], v.pads[3], v.pads[0], v.pads[2])), w, None, v.stride, 0, v.dilation, v.groups)
    return y + b.reshape(1, -1, 1, 1)


def pooled(v: Conv, x: Any) -> Any:
    """The largest of each window of the pooling, infinitely small where that is beyond the image."""
    if v.pool is None:
        return x
    kh, kw, top, left, bottom, right = v.pool
    padded = R.torch().nn.functional.pad(x, (left, right, top, bottom), value=-math.inf)
    height, width = v.results
    taps = [padded[:, :, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2] for i in range(kh) for j in range(kw)]
    return R.torch().stack(taps).amax(0)


def make_wild(v: Conv, x: Any, w: Any) -> None:
    """Inf in the first group, NaN in the last one, results of the second one that overflow."""
    x[0, 0, v.h // 2, v.w // 2], x[-1, -1, 0, 0] = math.inf, math.nan
    w[v.oc // v.groups : 2 * v.oc // v.groups] *= 2e4


def tamed(got: Any, want: Any, size: Any, dtype: DType) -> tuple[Any, ...]:
    """Zeros for what must not be finite, once this is known to be so in the same places."""
    t = R.torch()
    rounded, seen = want.to(R.torch_dtype(dtype)).double(), got.double()
    wrong = ~((seen == rounded) | (seen.isfinite() & rounded.isfinite()) | (seen.isnan() & rounded.isnan()))
    if bool(wrong.any()) or not bool(rounded.isnan().any()) or not bool(rounded.isinf().any()):
        raise AssertionError(f"{int(wrong.sum())} of {wrong.numel()} elements are not finite where the reference is, or the reverse")
    return tuple(t.where(rounded.isfinite(), a, 0) for a in (got, want, size))


def conv_case(v: Conv, dtype: DType, tile: Any = None, *, wild: bool = False) -> Case:
    r = conv_request(v, dtype) if tile is None else R.force(conv_request(v, dtype), tile)

    def run() -> tuple[float, float]:
        t = R.torch()
        oh, ow = v.out
        reduced = v.c // v.groups * v.kernel[0] * v.kernel[1]
        x, w = random((v.n, v.c, v.h, v.w), dtype), random(v.weight_shape, dtype, 1 / math.sqrt(reduced))
        if wild:
            make_wild(v, x, w)
        b, scale = t.randn(-(-v.oc // 32) * 32, device="cuda"), t.rand(v.oc, device="cuda") + 0.5
        res = random((v.n, v.oc, oh, ow), dtype)
        yc, (height, width) = pitch(v.oc, v.slack), v.results
        y = K.poisoned((v.n * height * width + 1, yc), dtype)
        shift = 1 if v.slack % 8 else 0
        # The packing kernel multiplies in f32 and rounds once; so does this.
        if v.transposed:
            grouped = w.float().reshape(v.groups, v.c // v.groups, v.oc // v.groups, *v.kernel)
            scaled = (grouped * scale.reshape(v.groups, 1, v.oc // v.groups, 1, 1)).reshape(v.weight_shape).to(w.dtype)
        else:
            scaled = (w.float() * scale.reshape(v.oc, 1, 1, 1)).to(w.dtype)
        tensors: dict[str, Any] = {
            "x": x if v.planes else channels_last(x, pitch(v.c, v.slack), dtype), "w": packed_weight(v, w, scale, dtype), "bias": b,
            "y": y.data_ptr() + shift * dtype.size,
        }  # fmt: skip
        stored = channels_last(res, pitch(v.oc, 2 * v.slack), dtype)
        if v.res_mode:
            tensors["res"] = stored
        pre = reference(v, x.double(), scaled.double(), b[: v.oc].double())
        size = reference(v, x.double().abs(), scaled.double().abs(), b[: v.oc].double().abs())
        p0, p1 = K.PARAMETERS.get(v.act, (0.0, 0.0))
        if v.kinds is not None:
            views, keep = [], []
            for j, kind in enumerate(v.kinds):
                full = random((v.n, v.oc, oh, ow), dtype)
                value = full if kind == 0 else full[:1, :, :1, :1] if kind == 1 else full[:1, :1, :1, :1]
                keep.append(channels_last(full, pitch(v.oc, 2 * v.slack), dtype) if kind == 0 else value.contiguous())
                tensors[f"o{j}"] = keep[-1]
                views.append(value.double())
            want = K.gated(pre, *views)
            size = size * (1 + views[0].abs())
        elif v.res_mode == 1:
            want = K.activation(v.act, pre + res.double(), p0, p1)
        else:
            want = K.activation(v.act, pre, p0, p1) + (res.double() if v.res_mode else 0)
        K.launch(r, tensors)
        flat = y.reshape(-1)[shift : shift + v.n * height * width * yc].reshape(v.n, height, width, yc)
        written = max(v.oc, *(int(n) for k in R.kernels(r) for n in re.findall(r"\bWRITTEN = (\d+)", k.source)), 0)  # pad channels only where a kernel says so
        if not bool(flat[..., written:].isnan().all()) or not bool(y.reshape(-1)[shift + v.n * height * width * yc :].isnan().all()):
            raise AssertionError("wrote beyond the last channel or pixel")
        smooth = v.act not in ("none", "relu", "leaky_relu", "clip") or v.kinds is not None
        slope = want.abs().clamp_min(1) if v.act == "exp" else 1.2  # how much the result moves with the sum
        got, want, size = flat[..., : v.oc].permute(0, 3, 1, 2), pooled(v, want), pooled(v, size * slope)
        if wild:
            got, want, size = tamed(got, want, size, dtype)
        return K.compare(got, want, size, dtype, fast=dtype != DType.F32 and smooth, rounded=T.rounds(tile))

    return v.name(dtype) + (f" [{T.tile_name(tile)}]" if tile is not None else "") + " wild" * wild, r, run


def bundle_tiles(v: Conv, dtype: DType) -> list[Any]:
    """Tiles of every kind that takes bundles of groups."""
    backend, r = registry.module("kernels", "cuda"), conv_request(v, dtype)
    hopper, split, bundle = backend.part("_wgmma").HopperTile, backend.part("_split").SplitTile, backend.part("_bundles").of(r)
    steps = v.kernel[0] * v.kernel[1] * bundle.chunks
    tiles = [hopper(128, 64, True, 2), hopper(64, 128, True), hopper(128, 64, True, 1, steps, bundle.count == 1), split(64, 24, True, 2), split(64, 48, False, 2, 2)]
    return [*tiles, *T.window_tiles(r, steps)]


def bias_case(dtype: DType, channels: int) -> Case:
    """fold_bn, then pack_bias with its scale and shift."""
    r = R.request("fold_bn", dtype, {"C": channels}, {"eps": 1e-3}, operands=("gamma", "beta", "mean", "var", "scale", "shift"))
    p = R.request("pack_bias", dtype, {"OC": channels}, operands=("b", "scale", "shift", "packed"))

    def run() -> tuple[float, float]:
        gamma, beta, mean, b = (random((channels,), dtype) for _ in range(4))
        var = random((channels,), dtype).abs()
        scale, shift, packed = (K.poisoned((n,), DType.F32) for n in (channels, channels, -(-channels // 32) * 32))
        K.launch(r, {"gamma": gamma, "beta": beta, "mean": mean, "var": var, "scale": scale, "shift": shift})
        K.launch(p, {"b": b, "scale": scale, "shift": shift, "packed": packed})
        want_scale = gamma.double() / (var.double() + float(R.torch().tensor(1e-3).float())).sqrt()
        want = (b.double() - mean.double()) * want_scale + beta.double()
        if bool(packed[channels:].any()):
            raise AssertionError("the tail of a packed bias is not zero")
        size = (b.double().abs() + mean.double().abs()) * want_scale.abs() + beta.double().abs()
        return K.compare(packed[:channels], want, size, DType.F32, fast=False)

    return f"fold_bn + pack_bias {dtype.name} {channels}", r, run


def check_cases() -> list[Case]:
    one, none = (1, 1), (0, 0, 0, 0)
    shapes = [
        Conv(2, 64, 14, 14, 64), Conv(1, 3, 33, 35, 20, (7, 7), (2, 2), one, (3, 3, 3, 3)),
        Conv(2, 3, 16, 18, 16, (3, 3), (2, 2), one, (0, 0, 1, 1), act="silu"),
        Conv(1, 1, 9, 7, 1, act="none"), Conv(3, 5, 11, 13, 7, (3, 2), (2, 3), (2, 1), (1, 0, 2, 1)), Conv(1, 32, 1, 50, 24, (1, 5), one, (1, 2), (0, 4, 0, 4)),
        Conv(2, 40, 15, 15, 72, (5, 5), one, one, (2, 2, 2, 2), act="hard_swish"), Conv(2, 64, 12, 12, 128, (1, 1), one, one, none, res_mode=1),
        Conv(2, 64, 13, 13, 128, (1, 1), (2, 2), one, none), Conv(1, 17, 8, 8, 19, (1, 1), one, one, none, res_mode=2), Conv(1, 512, 7, 7, 512, act="relu"),
        Conv(1, 2048, 7, 7, 512, (1, 1), one, one, none), Conv(2, 64, 10, 10, 64, res_mode=1), Conv(2, 64, 10, 10, 64, act="silu", res_mode=2, slack=8),
        Conv(2, 24, 9, 9, 40, slack=3), Conv(2, 24, 9, 9, 40, slack=4, res_mode=1), Conv(2, 32, 9, 10, 48, kinds=(0, 1, 0)),
        Conv(2, 32, 9, 10, 48, kinds=(1, 3, 0), slack=8),
        Conv(1, 32, 9, 10, 45, (1, 1), one, one, none, kinds=(1, 0, 1)), Conv(2, 32, 10, 10, 64, groups=4), Conv(2, 20, 10, 10, 30, groups=5, res_mode=1),
        Conv(1, 16, 9, 9, 32, groups=16), Conv(2, 64, 9, 9, 64, groups=8, stride=(2, 2)), Conv(1, 256, 6, 6, 256, groups=2, kinds=(1, 3, 0)),
        Conv(2, 64, 28, 28, 64, dilation=(2, 2), pads=(2, 2, 2, 2)), Conv(2, 192, 8, 8, 128), Conv(8, 128, 28, 28, 128), Conv(4, 64, 56, 56, 64, res_mode=1),
        Conv(4, 256, 14, 14, 256, (3, 3), (2, 2)), Conv(4, 320, 9, 11, 264, pads=(1, 0, 0, 1)), Conv(16, 64, 28, 28, 256, (1, 1), one, one, none, res_mode=1),
        Conv(16, 256, 28, 28, 128, (1, 1), (2, 2), one, none), Conv(1, 128, 64, 64, 3, act="sigmoid"), Conv(1, 96, 40, 40, 96),
        Conv(2, 48, 40, 40, 80, stride=(2, 2)),
        *[Conv(1, 16, 6, 6, 24, act=act) for act in ACTIVATIONS],
        # depthwise
        Conv(2, 64, 14, 14, 64, groups=64), Conv(1, 7, 9, 11, 7, groups=7, act="silu"),
        Conv(2, 40, 15, 13, 40, (5, 5), (2, 2), one, (2, 2, 2, 2), 40, act="hard_swish"),
        Conv(1, 96, 10, 10, 96, (3, 3), one, (2, 2), (2, 2, 2, 2), 96, res_mode=1), Conv(1, 24, 8, 8, 24, (7, 7), one, one, (3, 3, 3, 3), 24, kinds=(1, 3, 0)),
        Conv(1, 32, 1, 40, 32, (1, 31), one, one, (0, 15, 0, 15), 32), Conv(1, 33, 8, 8, 33, groups=33, stride=(2, 2), pads=(0, 0, 1, 1), slack=3, res_mode=2),
        # few channels of few rows, more channels than a thread's kernel usually takes
        Conv(9, 6, 1, 397, 48, (1, 9), pads=(0, 4, 0, 4)), Conv(2, 5, 3, 161, 20, (3, 7), (1, 2), one, (1, 3, 1, 3), act="silu"), Conv(1, 4, 2, 99, 70, slack=3),
        Conv(2, 272, 9, 8, 6, (4, 4), (2, 2), one, (1, 1, 1, 1), transposed=True), Conv(1, 41, 33, 30, 28, (5, 5), pads=(2, 2, 2, 2)),
        Conv(1, 500, 9, 9, 5, pads=(1, 0, 0, 1)),
        # depthwise in strips
        Conv(16, 96, 28, 27, 96, (5, 5), one, one, (2, 2, 2, 2), 96, act="silu"), Conv(40, 33, 56, 57, 33, groups=33, stride=(2, 2), slack=3, res_mode=2),
        Conv(9, 72, 61, 50, 72, groups=72, dilation=(2, 2), kinds=(1, 3, 0)), Conv(8, 48, 40, 41, 48, (7, 7), one, one, (3, 3, 3, 3), 48, act="hard_swish"),
        Conv(33, 200, 14, 13, 200, (5, 3), (2, 1), one, (1, 2, 3, 0), 200, res_mode=1), Conv(32, 64, 80, 81, 64, groups=64, act="none"),
        Conv(2, 20, 15, 13, 40, groups=20), Conv(16, 48, 56, 57, 144, groups=48, stride=(2, 2), act="silu"), Conv(1, 9, 6, 7, 18, groups=9, slack=3, res_mode=1),
        Conv(1, 24, 20, 21, 24, (31, 31), pads=(15, 15, 15, 15), groups=24),
        Conv(1, 200, 1, 3000, 200, (1, 31), (1, 2), (1, 4), (0, 120, 0, 0), 200),
        # transposed
        Conv(2, 64, 8, 8, 32, (2, 2), (2, 2), one, none, transposed=True), Conv(2, 16, 7, 9, 24, (4, 4), (2, 2), one, (1, 1, 1, 1), transposed=True),
        Conv(1, 5, 6, 5, 7, (3, 3), (2, 3), (1, 2), (1, 0, 0, 1), transposed=True, extra=(1, 2)),
        Conv(1, 16, 6, 6, 16, groups=4, transposed=True, stride=(3, 3)),
        Conv(1, 12, 5, 5, 12, (3, 3), (1, 1), (2, 2), groups=12, transposed=True), Conv(1, 8, 5, 5, 8, (1, 1), (2, 2), one, none, transposed=True, res_mode=1),
        Conv(1, 8, 5, 6, 16, (3, 3), (2, 2), (2, 2), none, transposed=True, act="none"),
        Conv(2, 128, 14, 14, 64, (2, 2), (2, 2), one, none, transposed=True, kinds=(1, 3, 0)),
        Conv(3, 67, 13, 9, 131, (3, 3), (2, 2), one, (1, 1, 1, 1), transposed=True, extra=(1, 1), res_mode=2),
        Conv(1, 96, 1, 67, 40, (1, 16), (1, 8), one, (0, 4, 0, 4), transposed=True, slack=3), Conv(2, 40, 7, 6, 56, (5, 4), (3, 2), one, (2, 1, 0, 1), transposed=True),
        Conv(2, 24, 9, 7, 24, (4, 4), (2, 2), one, (1, 1, 1, 1), 24, True), Conv(1, 7, 6, 5, 14, (3, 3), (2, 2), one, none, 7, True, (1, 0), act="silu"),
    ]  # fmt: skip
    first = [  # of few channels
        Conv(2, 3, 224, 224, 64, (7, 7), (2, 2), one, (3, 3, 3, 3), planes=True), Conv(3, 3, 37, 61, 24, (3, 3), (2, 2), planes=True, act="silu"),
        Conv(2, 4, 23, 29, 33, (5, 8), (3, 4), one, (2, 3, 1, 4), planes=True), Conv(1, 1, 31, 33, 6, (5, 5), planes=True, pads=none),
        Conv(2, 2, 9, 17, 16, (1, 3), (2, 1), planes=True, pads=(0, 1, 0, 1), kinds=(1, 0, 3)), Conv(0, 3, 9, 17, 16, planes=True),
        Conv(1, 3, 1, 1, 70, planes=True),
    ]  # fmt: skip
    lines = [  # and large windows
        Conv(2, 1, 1, 91, 20, (1, 10), (1, 5), one, none, planes=True), Conv(1, 3, 1, 70, 33, (1, 25), one, one, (0, 12, 0, 12), planes=True, act="silu", res_mode=1),
        Conv(1, 3, 40, 43, 24, (11, 11), (4, 4), one, (2, 2, 2, 2), planes=True, kinds=(0, 1, 3)),
        Conv(2, 2, 21, 19, 6, (9, 3), pads=(4, 1, 4, 1), planes=True, slack=3),
    ]  # fmt: skip
    both = [  # and pooled
        Conv(2, 3, 224, 224, 64, (7, 7), (2, 2), one, (3, 3, 3, 3), planes=True, pool=(3, 3, 1, 1, 1, 1)),
        Conv(3, 3, 37, 61, 24, (3, 3), (2, 2), planes=True, act="silu", pool=(3, 3, 1, 1, 1, 1)),
        Conv(2, 1, 28, 28, 6, (5, 5), pads=none, planes=True, pool=(2, 2, *none)),
        Conv(1, 8, 23, 29, 33, (5, 5), (1, 3), one, (2, 3, 1, 4), act="none", pool=(3, 2, 2, 0, 1, 1)),
        Conv(3, 5, 17, 71, 70, (2, 7), (3, 1), slack=3, pool=(2, 3, 1, 2, 0, 1)), Conv(0, 3, 9, 17, 16, planes=True, pool=(2, 2, *none)),
        Conv(1, 3, 1, 47, 40, (1, 7), (1, 2), one, (0, 3, 0, 3), planes=True, pool=(3, 3, 1, 1, 1, 1)),
        Conv(1, 4, 60, 131, 16, (7, 7), (2, 2), one, (3, 3, 3, 3), planes=True, act="hard_swish", kinds=(1, 3, 1), pool=(3, 3, 0, 0, 1, 1)),
    ]  # fmt: skip
    every_tile = [
        Conv(3, 64, 13, 17, 136), Conv(2, 96, 15, 11, 72, (3, 2), (2, 1), (1, 2), (1, 0, 2, 1), res_mode=1),
        Conv(5, 200, 6, 7, 264, act="silu", kinds=(1, 3, 0)),
        Conv(2, 320, 13, 13, 328, (1, 1), (2, 2), one, none, slack=8, res_mode=2),
    ]  # fmt: skip
    windows = [
        Conv(3, 64, 13, 17, 136), Conv(2, 96, 21, 20, 64, (3, 2), one, (2, 1), (1, 0, 2, 1), act="silu", kinds=(1, 0, 3)), Conv(5, 64, 56, 56, 64),
        Conv(1, 40, 1, 100, 72, (1, 5), one, one, (0, 2, 0, 2), slack=8), Conv(2, 128, 7, 9, 24, (2, 2), one, one, none),
    ]  # fmt: skip
    slabs = [
        Conv(3, 88, 19, 54, 64, (7, 7), pads=(3, 3, 3, 3)), Conv(5, 40, 9, 11, 72, (5, 5), pads=(2, 2, 2, 2), act="silu"), Conv(3, 512, 7, 7, 512, res_mode=2),
        Conv(2, 96, 9, 20, 45, (3, 2), one, (2, 1), (1, 0, 2, 1), act="silu", kinds=(1, 0, 3)), Conv(3, 256, 14, 14, 256, res_mode=1),
        Conv(1, 200, 1, 150, 33, (1, 25), pads=(0, 12, 0, 12)), Conv(2, 64, 60, 60, 40, (9, 9), pads=(4, 4, 4, 4), slack=8),
        Conv(3, 128, 10, 10, 128, (4, 4), one, one, (2, 1, 1, 2)), Conv(21, 104, 6, 6, 96, (5, 5), pads=(2, 2, 2, 2)),
    ]  # fmt: skip
    groups = [  # whose bundles have odd sizes, end within a tile, or are all the image has
        Conv(2, 96, 15, 11, 96, (3, 2), (2, 1), (1, 2), (1, 0, 2, 1), 48, res_mode=1), Conv(1, 72, 9, 10, 72, groups=3, res_mode=2),
        Conv(8, 120, 7, 7, 240, groups=5, act="silu", kinds=(1, 3, 0)), Conv(2, 40, 9, 9, 30, groups=10), Conv(2, 36, 9, 9, 192, groups=12),
        Conv(2, 24, 9, 9, 40, groups=8), Conv(3, 144, 8, 9, 144, groups=16), Conv(2, 300, 9, 9, 300, groups=2), Conv(2, 48, 20, 20, 48, groups=6, slack=4),
        Conv(2, 96, 9, 9, 96, (1, 1), one, one, none, 3, slack=8), Conv(1, 768, 1, 50, 768, (1, 128), one, one, (0, 64, 0, 64), 16),
        Conv(3, 128, 13, 12, 128, groups=4), Conv(2, 64, 30, 31, 128, groups=8, stride=(2, 2)), Conv(5, 48, 9, 9, 48, groups=3), Conv(2, 24, 20, 20, 48),
    ]  # fmt: skip
    wild = [
        Conv(3, 64, 13, 11, 64, groups=16, act="none"), Conv(2, 40, 9, 9, 30, groups=10, act="none"), Conv(2, 144, 9, 11, 144, groups=3),
        Conv(2, 128, 9, 11, 128, groups=4),
    ]  # fmt: skip
    cases = [bias_case(d, c) for d in TYPES for c in (1, 37, 64)]
    cases += [conv_case(v, d) for v in groups for d in TYPES]
    half = DType.F16, DType.BF16, DType.F16, DType.F16
    cases += [conv_case(v, d, tile, wild=True) for v, d in zip(wild, half, strict=True) for tile in (None, *bundle_tiles(v, d))]
    for d in TYPES:
        cases += [conv_case(v, d) for v in shapes]
        cases += [conv_case(v, d) for v in (*first, *lines, *(both if d != DType.F32 else ()))]
        for v in every_tile:
            steps = v.kernel[0] * v.kernel[1] * -(-v.c // 64)
            cases += [conv_case(v, d, tile) for tile in T.tiles(d, v.oc, steps) if d != DType.BF16 or v == every_tile[0]]
        for v in windows:
            steps = v.kernel[0] * v.kernel[1] * -(-v.c // 64)
            cases += [conv_case(v, d, tile) for tile in T.window_tiles(conv_request(v, d), steps)]
        for v in slabs:
            cases += [conv_case(v, d, tile, wild=v.n == 3) for tile in T.slab_tiles(conv_request(v, d))]
    return cases


# --- time -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """One set of operands, channels last: ours (x, packed w, f32 bias, residual, y) and PyTorch's (x, w, f16 bias)."""

    x: Any
    packed: Any
    bias: Any
    res: Any
    y: Any
    x_torch: Any
    w: Any
    bias16: Any

    def bind(self, r: Request) -> R.Launch:
        places = {"x": self.x, "w": self.packed, "bias": self.bias, "res": self.res, "y": self.y}
        return R.bind(r, {k: v.data_ptr() for k, v in places.items()})


def layer_data(v: Conv, dtype: DType = DType.F16) -> list[Data]:
    t = R.torch()
    (oh, ow), last, half = v.out, t.channels_last, R.torch_dtype(dtype)
    sets = []
    for _ in range(R.sets_for((v.n * v.h * v.w * v.c + (1 + bool(v.res_mode)) * v.n * oh * ow * v.oc) * 2)):
        x, w = random((v.n, v.c, v.h, v.w), dtype), random(v.weight_shape, dtype, 0.05)
        b, scale = t.randn(-(-v.oc // 32) * 32, device="cuda"), t.ones(v.oc, device="cuda")
        res = random((v.n, v.oc, oh, ow), dtype).contiguous(memory_format=last)
        stored = t.zeros((v.n, v.h, v.w, pitch(v.c)), device="cuda", dtype=half)
        stored[..., : v.c] = x.permute(0, 2, 3, 1)
        y = t.empty((v.n, oh, ow, pitch(v.oc)), device="cuda", dtype=half)
        packed = packed_weight(v, w, scale, dtype)
        sets.append(Data(stored, packed, b, res, y, x.contiguous(memory_format=last), w.contiguous(memory_format=last), b[: v.oc].to(half)))
    return sets


def peers(v: Conv, data: list[Data], compiled: bool) -> dict[str, Callable[[int], Any]]:
    t = R.torch()
    f = t.nn.functional

    def plain(x: Any, w: Any, b: Any, q: Any) -> Any:
        y = f.conv2d(x, w, b, v.stride, v.pads[:2], v.dilation, v.groups)
        y = y + q if v.res_mode else y
        return {"silu": f.silu, "relu": f.relu, "hard_swish": f.hardswish}.get(v.act, lambda z: z)(y)

    def cudnn(i: int) -> Any:
        d = data[i]
        if v.res_mode:
            return t.cudnn_convolution_add_relu(d.x_torch, d.w, d.res, 1.0, d.bias16, v.stride, v.pads[:2], v.dilation, v.groups)
        return t.cudnn_convolution_relu(d.x_torch, d.w, d.bias16, v.stride, v.pads[:2], v.dilation, v.groups)

    out: dict[str, Callable[[int], Any]] = {"eager": lambda i: plain(data[i].x_torch, data[i].w, data[i].bias16, data[i].res)}
    if v.act == "relu":
        out["cudnn"] = cudnn
    if compiled:
        fast = t.compile(plain, mode="max-autotune-no-cudagraphs")
        out["compile"] = lambda i: fast(data[i].x_torch, data[i].w, data[i].bias16, data[i].res)
    return out


def time_cases(log: R.Log, only: str, compiled: bool, batches: Sequence[int], tune: bool) -> None:
    """Every layer against its peers; with `tune` also every plausible tile of it."""
    R.torch().backends.cudnn.benchmark = True
    d = DType.F16
    todo = [(group, v, times, conv_request(v, d)) for group, v, times in layers(batches) if re.search(only, f"{group} {v.name(d)}")]
    forced = {id(r): candidates(v, r) if tune else [] for _, v, _, r in todo}
    R.compile_all([x for _, v, _, r in todo for x in (r, pack_request(v, d), *forced[id(r)])])
    totals: dict[str, dict[str, float]] = {}
    for group, v, times, r in todo:
        try:
            data = layer_data(v)
            bound = [x.bind(r) for x in data]
            variants = {"ours": launches(bound), **peers(v, data, compiled)}
            variants |= {T.tile_name(R.forced_tile(f)): launches([x.bind(f) for x in data]) for f in forced[id(r)]}
            result = R.measure(variants, len(data), target_us=1000 if tune else 1500, rounds=3 if tune else 5)
            (oh, ow), taps = v.out, v.kernel[0] * v.kernel[1]
            log.record(
                name=v.name(d), group=group, count=times, m=v.n * oh * ow, n=v.oc, k=taps * v.c // v.groups, steps=taps * -(-v.c // 64), residual=v.res_mode,
                times=result,
            )  # fmt: skip
            total = totals.setdefault(group, {})
            best = "cudnn" if "cudnn" in variants else "eager"
            for name in ("ours", best):
                value = result[name]
                total[name] = total.get(name, 0.0) + (value * times if isinstance(value, float) else float("nan"))
            k = bound[0].kernels[0]
            report(log, f"{v.name(d)} [{k.symbol} grid {k.grid[0]} cluster {k.cluster} smem {k.smem}]", result)
            del data, bound, variants
        except Exception as e:
            log(f"{v.name(d)}: {type(e).__name__}: {str(e)[:200]}")
    for group, total in totals.items():
        log(f"{group}, sum over its layers in us: { ({k: round(x, 1) for k, x in total.items()}) }")


def candidates(v: Conv, r: Request) -> list[Request]:
    if v.groups > 1:
        return []
    (oh, ow), taps = v.out, v.kernel[0] * v.kernel[1]
    steps = taps * -(-v.c // 64)
    if v.c < 24 and taps > 1:
        return []
    return [R.force(r, t) for t in [*T.plausible(v.n * oh * ow, v.oc, taps * pitch(v.c), steps=steps, most=7), *T.window_tiles(r, steps)]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tune", action="store_true", help="also time every plausible tile")
    parser.add_argument("--compile", action="store_true", help="also torch.compile max-autotune (slow to start)")
    parser.add_argument("--only", default="", help="regular expression: cases to take")
    parser.add_argument("--batches", default="64,1,8", help="batch sizes of the timed layers")
    args = parser.parse_args()
    log = R.Log(f"cuda_conv_{'check' if args.check else 'tune' if args.tune else 'time'}.txt")
    R.torch().manual_seed(0)
    if not args.check:
        time_cases(log, args.only, args.compile, [int(b) for b in args.batches.split(",")], args.tune)
        return 0
    return K.check_all(log, [c for c in check_cases() if re.search(args.only, c[0])])


if __name__ == "__main__":
    sys.exit(main())
