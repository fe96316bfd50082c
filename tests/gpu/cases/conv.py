"""Convolutions against float64 (PyTorch on the GPU)."""

from __future__ import annotations

import math
import re
from typing import Any

from tests.gpu.cases import conv_sizes as S
from tests.gpu.cases.gemm import TYPES, Case
from tests.support.cuda import check as K
from tests.support.cuda import runner as R
from tests.support.cuda import tiles as T
from tests.support.cuda.conv_shape import Conv, pitch
from tests.support.cuda.operands import channels_last, conv_request, packed_filter, random
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery


def reference(v: Conv, x: Any, w: Any, b: Any) -> Any:
    """float64 convolution before the epilogue."""
    t = R.torch()
    f = t.nn.functional
    oh, ow = v.out
    with t.backends.cudnn.flags(enabled=False):
        if v.transposed:
            y = f.conv_transpose2d(x, w, None, v.stride, 0, 0, v.groups, v.dilation)
            y = f.pad(y, (0, v.extra[1], 0, v.extra[0]))[
                :, :, v.pads[0] : v.pads[0] + oh, v.pads[1] : v.pads[1] + ow
            ]
        else:
            y = f.conv2d(
                f.pad(x, (v.pads[1], v.pads[3], v.pads[0], v.pads[2])),
                w,
                None,
                v.stride,
                0,
                v.dilation,
                v.groups,
            )
    return y + b.reshape(1, -1, 1, 1)


def pooled(v: Conv, x: Any) -> Any:
    """The largest of each window of the pooling; -inf where that is beyond the image."""
    if v.pool is None:
        return x
    kh, kw, top, left, bottom, right = v.pool
    padded = R.torch().nn.functional.pad(x, (left, right, top, bottom), value=-math.inf)
    height, width = v.results
    taps = [
        padded[:, :, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2]
        for i in range(kh)
        for j in range(kw)
    ]
    return R.torch().stack(taps).amax(0)


def make_wild(v: Conv, x: Any, w: Any) -> None:
    """Inf in the first group, NaN in the last one, results of the second one that overflow."""
    x[0, 0, v.h // 2, v.w // 2], x[-1, -1, 0, 0] = math.inf, math.nan
    w[v.oc // v.groups : 2 * v.oc // v.groups] *= 2e4


def tamed(got: Any, want: Any, size: Any, dtype: DType) -> tuple[Any, ...]:
    """Zeros for what must not be finite, once this is known to be so in the same places."""
    t = R.torch()
    rounded, seen = want.to(R.torch_dtype(dtype)).double(), got.double()
    wrong = ~(
        (seen == rounded)
        | (seen.isfinite() & rounded.isfinite())
        | (seen.isnan() & rounded.isnan())
    )
    if bool(wrong.any()) or not bool(rounded.isnan().any()) or not bool(rounded.isinf().any()):
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements are not finite where the reference "
            "is, or the reverse"
        )
    return tuple(t.where(rounded.isfinite(), a, 0) for a in (got, want, size))


def conv_case(v: Conv, dtype: DType, tile: Any = None, *, wild: bool = False) -> Case:
    r = conv_request(v, dtype) if tile is None else R.force(conv_request(v, dtype), tile)

    def run() -> tuple[float, float]:
        t = R.torch()
        oh, ow = v.out
        reduced = v.c // v.groups * v.kernel[0] * v.kernel[1]
        x, w = (
            random((v.n, v.c, v.h, v.w), dtype),
            random(v.weight_shape, dtype, 1 / math.sqrt(reduced)),
        )
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
            scaled = (
                (grouped * scale.reshape(v.groups, 1, v.oc // v.groups, 1, 1))
                .reshape(v.weight_shape)
                .to(w.dtype)
            )
        else:
            scaled = (w.float() * scale.reshape(v.oc, 1, 1, 1)).to(w.dtype)
        tensors: dict[str, Any] = {
            "x": x if v.planes else channels_last(x, pitch(v.c, v.slack), dtype),
            "w": packed_filter(v, w, scale, dtype), "bias": b,
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
                value = (
                    full
                    if kind == 0
                    else full[:1, :, :1, :1]
                    if kind == 1
                    else full[:1, :1, :1, :1]
                )
                keep.append(
                    channels_last(full, pitch(v.oc, 2 * v.slack), dtype)
                    if kind == 0
                    else value.contiguous()
                )
                tensors[f"o{j}"] = keep[-1]
                views.append(value.double())
            want = K.gated(pre, *views)
            size = size * (1 + views[0].abs())
        elif v.res_mode == 1:
            want = K.activation(v.act, pre + res.double(), p0, p1)
        else:
            want = K.activation(v.act, pre, p0, p1) + (res.double() if v.res_mode else 0)
        K.launch(r, tensors)
        flat = y.reshape(-1)[shift : shift + v.n * height * width * yc].reshape(
            v.n, height, width, yc
        )
        # pad channels only where a kernel says so
        written = max(
            v.oc,
            *(int(n) for k in R.kernels(r) for n in re.findall(r"\bWRITTEN = (\d+)", k.source)),
            0,
        )
        if not bool(flat[..., written:].isnan().all()) or not bool(
            y.reshape(-1)[shift + v.n * height * width * yc :].isnan().all()
        ):
            raise AssertionError("wrote beyond the last channel or pixel")
        smooth = v.act not in ("none", "relu", "leaky_relu", "clip") or v.kinds is not None
        # how much the result moves with the sum
        slope = want.abs().clamp_min(1) if v.act == "exp" else 1.2
        got, want, size = (
            flat[..., : v.oc].permute(0, 3, 1, 2),
            pooled(v, want),
            pooled(v, size * slope),
        )
        if wild:
            got, want, size = tamed(got, want, size, dtype)
        return K.compare(
            got, want, size, dtype, fast=dtype != DType.F32 and smooth, rounded=T.rounds(tile)
        )

    return (
        v.name(dtype) + (f" [{T.tile_name(tile)}]" if tile is not None else "") + " wild" * wild,
        r,
        run,
    )


def merged_tiles(v: Conv, dtype: DType) -> list[Any]:
    """Tiles of every kind that takes merged groups."""
    r = conv_request(v, dtype)
    wgmma, split_k, grouped = (
        discovery.module("kernels", f"cuda.{n}")
        for n in ("gemm.persistent_sm90", "gemm.cluster_splitk_sm90", "conv.grouped")
    )
    hopper, split, merged = wgmma.HopperTile, split_k.SplitTile, grouped.of(r)
    steps = v.kernel[0] * v.kernel[1] * merged.chunks
    tiles = [
        hopper(128, 64, True, 2),
        hopper(64, 128, True),
        hopper(128, 64, True, 1, steps, merged.count == 1),
        split(64, 24, True, 2),
        split(64, 48, False, 2, 2),
    ]
    return [*tiles, *T.halo_tiles(r, resident=True)]


def bias_case(dtype: DType, channels: int) -> Case:
    """fold_bn, then pack_bias with its scale and shift."""
    r = R.request(
        "fold_bn",
        dtype,
        {"C": channels},
        {"eps": 1e-3},
        operands=("gamma", "beta", "mean", "var", "scale", "shift"),
    )
    p = R.request("pack_bias", dtype, {"OC": channels}, operands=("b", "scale", "shift", "packed"))

    def run() -> tuple[float, float]:
        gamma, beta, mean, b = (random((channels,), dtype) for _ in range(4))
        var = random((channels,), dtype).abs()
        scale, shift, packed = (
            K.poisoned((n,), DType.F32) for n in (channels, channels, -(-channels // 32) * 32)
        )
        K.launch(
            r,
            {
                "gamma": gamma,
                "beta": beta,
                "mean": mean,
                "var": var,
                "scale": scale,
                "shift": shift,
            },
        )
        K.launch(p, {"b": b, "scale": scale, "shift": shift, "packed": packed})
        want_scale = gamma.double() / (var.double() + float(R.torch().tensor(1e-3).float())).sqrt()
        want = (b.double() - mean.double()) * want_scale + beta.double()
        if bool(packed[channels:].any()):
            raise AssertionError("the tail of a packed bias is not zero")
        size = (b.double().abs() + mean.double().abs()) * want_scale.abs() + beta.double().abs()
        return K.compare(packed[:channels], want, size, DType.F32, fast=False)

    return f"fold_bn + pack_bias {dtype.name} {channels}", r, run


def check_cases() -> list[Case]:
    cases = [bias_case(d, c) for d in TYPES for c in (1, 37, 64)]
    cases += [conv_case(v, d) for v in S.GROUPS for d in TYPES]
    half = DType.F16, DType.BF16, DType.F16, DType.F16
    cases += [
        conv_case(v, d, tile, wild=True)
        for v, d in zip(S.WILD, half, strict=True)
        for tile in (None, *merged_tiles(v, d))
    ]
    for d in TYPES:
        cases += [conv_case(v, d) for v in S.SHAPES]
        cases += [
            conv_case(v, d) for v in (*S.FIRST, *S.LINES, *(S.POOLED if d != DType.F32 else ()))
        ]
        for v in S.EVERY_TILE:
            steps = v.kernel[0] * v.kernel[1] * -(-v.c // 64)
            cases += [
                conv_case(v, d, tile)
                for tile in T.tiles(d, v.oc, steps)
                if d != DType.BF16 or v == S.EVERY_TILE[0]
            ]
        for v in S.WINDOWS:
            cases += [
                conv_case(v, d, tile) for tile in T.halo_tiles(conv_request(v, d), resident=True)
            ]
        for v in S.HALOS:
            cases += [
                conv_case(v, d, tile, wild=v.n == 3)
                for tile in T.halo_tiles(conv_request(v, d), resident=False)
            ]
    return cases
