"""Small convolutions and packed constants with references in numpy: every kernel of them and each
of its forms once, for tools under which PyTorch is too slow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.gpu.cases.small_gemms import (
    ACTIVATIONS,
    Rng,
    bounded,
    case_of,
    drawn,
    filled,
    silu,
    with_tile,
)
from tests.support.cuda import operands as O
from tests.support.cuda import runner as R
from tests.support.cuda import tiles as T
from tests.support.cuda.case import Array, Case, Output, plain, rounding, stored, value
from tests.support.cuda.conv_shape import Conv, pitch
from tests.support.cuda.driver import device
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import merged_groups
from tracea_onnx.support import discovery

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
_wgmma, _split, _costs = (
    discovery.module("kernels", f"cuda.{n}")
    for n in ("gemm.persistent_sm90", "gemm.cluster_splitk_sm90", "gemm.multistage_sm80.tiles")
)


def _windows(v: Conv, x: Array) -> Iterator[tuple[int, int, Array]]:
    """Each filter tap and what it sees of x [N, H, W, C] at every output pixel."""
    oh, ow = v.out
    padded = np.pad(x, ((0, 0), (v.pads[0], v.pads[2]), (v.pads[1], v.pads[3]), (0, 0)))
    for kh, kw in itertools.product(range(v.kernel[0]), range(v.kernel[1])):
        top, left = kh * v.dilation[0], kw * v.dilation[1]
        yield (
            kh,
            kw,
            padded[
                :,
                top : top + (oh - 1) * v.stride[0] + 1 : v.stride[0],
                left : left + (ow - 1) * v.stride[1] + 1 : v.stride[1],
            ],
        )


def _convolved(v: Conv, x: Array, w: Array) -> Array:
    """[N, OH, OW, OC] of x [N, H, W, C] and ONNX's weight."""
    oh, ow = v.out
    out = np.zeros((v.n, oh, ow, v.oc))
    ic, oc = v.c // v.groups, v.oc // v.groups
    for g in range(v.groups):
        xs, ys = slice(g * ic, (g + 1) * ic), slice(g * oc, (g + 1) * oc)
        if v.transposed:
            whole = np.zeros(
                (v.n, oh + v.pads[0] + v.pads[2] + 64, ow + v.pads[1] + v.pads[3] + 64, oc)
            )
            for kh, kw in itertools.product(range(v.kernel[0]), range(v.kernel[1])):
                rows = slice(
                    kh * v.dilation[0],
                    kh * v.dilation[0] + (v.h - 1) * v.stride[0] + 1,
                    v.stride[0],
                )
                columns = slice(
                    kw * v.dilation[1],
                    kw * v.dilation[1] + (v.w - 1) * v.stride[1] + 1,
                    v.stride[1],
                )
                whole[:, rows, columns] += x[..., xs] @ w[xs, :, kh, kw]
            out[..., ys] = whole[:, v.pads[0] : v.pads[0] + oh, v.pads[1] : v.pads[1] + ow]
        else:
            for kh, kw, seen in _windows(v, x[..., xs]):
                out[..., ys] += seen @ w[ys, :, kh, kw].T
    return out


def _packed(v: Conv, w: Array, dtype: DType) -> Array:
    taps = v.kernel[0] * v.kernel[1]
    if v.depthwise:
        flat = stored(np.zeros((taps, pitch(v.oc))), dtype)
        flat[:, : v.oc] = w.reshape(v.oc, taps).T
        return flat
    ic, oc = v.c // v.groups, v.oc // v.groups
    packed = stored(
        np.zeros((v.oc, *v.kernel, -(-ic // 4) * 4 if dtype == F32 and taps > 1 else pitch(ic))),
        dtype,
    )
    rows = (
        w.reshape(v.groups, ic, oc, *v.kernel).swapaxes(1, 2).reshape(v.oc, ic, *v.kernel)
        if v.transposed
        else w
    )
    packed[..., :ic] = rows.transpose(0, 2, 3, 1)
    together = merged_groups(ic, oc, v.groups)
    if v.transposed or dtype == F32 or together == 1:
        return packed
    wide = stored(np.zeros((v.oc, *v.kernel, pitch(together * ic))), dtype)
    for o in range(v.oc):
        at = o // oc % together * ic
        wide[o, ..., at : at + ic] = packed[o, ..., :ic]
    return np.concatenate([packed.ravel(), wide.ravel()])


def _pooled(v: Conv, x: Array) -> Array:
    if v.pool is None:
        return x
    kh, kw, top, left, bottom, right = v.pool
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=-np.inf)
    height, width = v.results
    taps = [
        padded[:, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2]
        for i in range(kh)
        for j in range(kw)
    ]
    return np.asarray(np.max(taps, axis=0))


def conv(rng: Rng, v: Conv, dtype: DType) -> Case:
    (oh, ow), (height, width) = v.out, v.results
    x, vx = drawn(rng, (v.n, v.h, v.w, v.c), dtype)
    w, vw = drawn(rng, v.weight_shape, dtype, (v.c // v.groups * v.kernel[0] * v.kernel[1]) ** -0.5)
    b = rng.standard_normal(-(-v.oc // 32) * 32).astype(np.float32)
    r = O.conv_request(v, dtype)
    image = (
        np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        if v.planes
        else filled((v.n, v.h, v.w, pitch(v.c, v.slack)), v.c, x, dtype)
    )
    operands = {"x": image, "w": _packed(v, w, dtype), "bias": b}
    pre, size = (
        _convolved(v, vx, vw) + b[: v.oc],
        _convolved(v, np.abs(vx), np.abs(vw)) + np.abs(b[: v.oc]),
    )
    if v.kinds is not None:
        views = []
        for j, kind in enumerate(v.kinds):
            full, f = drawn(rng, (v.n, oh, ow, v.oc), dtype)
            part = (
                (slice(None),) * 4
                if kind == 0
                else (slice(0, 1),) * 3 + (slice(None) if kind == 1 else slice(0, 1),)
            )
            operands[f"o{j}"] = (
                filled((v.n, oh, ow, pitch(v.oc, 2 * v.slack)), v.oc, full, dtype)
                if kind == 0
                else np.ascontiguousarray(full[part])
            )
            views.append(f[part])
        want, size = silu(pre * views[0] + views[1]) + views[2], size * (1 + np.abs(views[0]))
    else:
        want = ACTIVATIONS[v.act](pre)
        if v.res_mode:
            res, f = drawn(rng, (v.n, oh, ow, v.oc), dtype)
            operands["res"] = filled((v.n, oh, ow, pitch(v.oc, 2 * v.slack)), v.oc, res, dtype)
            want = ACTIVATIONS[v.act](pre + f) if v.res_mode == 1 else want + f
    yc = pitch(v.oc, v.slack)
    want, size = _pooled(v, want), _pooled(v, size)
    strides = [height * width * yc, width * yc, yc, 1]
    out = Output(
        dtype,
        v.n * height * width * yc,
        want.shape,
        strides,
        want,
        bounded(want, size, dtype, v.act == "silu" or v.kinds is not None),
    )
    return case_of(v.name(dtype).replace(f" {dtype.name}", ""), r, operands, {"y": out})


def packs(rng: Rng, dtype: DType) -> Iterator[Case]:
    """The kernels that prepare constants."""
    n, k = 37, 21
    w, v = drawn(rng, (k, n), dtype)
    want = np.zeros((n, 24))
    want[:, :k] = v.T
    yield case_of(
        "pack_gemm",
        O.pack_gemm_request(n, k, dtype, False),
        {"w": w},
        {"packed": plain(dtype, want, rounding(want, dtype, 0))},
    )
    n, k = 37, 64
    (w, v), (gain, vg), (offset, vo), (add, va) = (
        drawn(rng, shape, dtype) for shape in ((n, k), (k,), (k,), (n,))
    )
    sizes = {"K": k, "N": n, "trans": 1, "ldw": k}
    r = R.request(
        "pack_gemm",
        dtype,
        {**sizes, "N_total": n},
        {"alpha": 0.5},
        operands=("w", "packed", "gamma"),
    )
    yield case_of(
        "pack_gemm gamma",
        r,
        {"w": w, "gamma": gain},
        {"packed": plain(dtype, 0.5 * v * vg, rounding(0.5 * v * vg, dtype, np.abs(v * vg)))},
    )
    r = R.request(
        "fold_norm",
        dtype,
        sizes,
        {"alpha": 1.0, "unscale": 2.0},
        operands=("w", "packed", "beta", "b", "sums", "bias"),
    )
    sums, bias = 2 * v.sum(-1), va + v @ vo
    outputs = {
        "sums": plain(F32, sums, rounding(sums, F32, 0)),
        "bias": plain(F32, bias, rounding(bias, F32, 0)),
    }
    yield case_of("fold_norm", r, {"w": w, "packed": w, "beta": offset, "b": add}, outputs)
    for c in (
        Conv(1, 10, 5, 5, 14, groups=2),
        Conv(1, 11, 5, 5, 11, groups=11),
        Conv(1, 10, 5, 5, 14, groups=2, transposed=True),
    ):
        w, v = drawn(rng, c.weight_shape, dtype)
        want = value(_packed(c, w, dtype), dtype)
        yield case_of(
            f"pack {c.name(dtype)}",
            O.pack_conv_request(c, dtype, scaled=False),
            {"w": w},
            {"packed": plain(dtype, want, rounding(want, dtype, 0))},
        )
    channels = 37
    gamma, beta, mean, b = (drawn(rng, (channels,), dtype) for _ in range(4))
    var = stored(np.abs(rng.standard_normal(channels)) + 0.1, dtype)
    scale = gamma[1] / np.sqrt(value(var, dtype) + np.float32(1e-3))
    shift = beta[1] - mean[1] * scale
    r = R.request(
        "fold_bn",
        dtype,
        {"C": channels},
        {"eps": 1e-3},
        operands=("gamma", "beta", "mean", "var", "scale", "shift"),
    )
    outputs = {
        "scale": plain(F32, scale, rounding(scale, F32, np.abs(scale))),
        "shift": plain(F32, shift, rounding(shift, F32, np.abs(scale) + np.abs(shift))),
    }
    yield case_of(
        "fold_bn", r, {"gamma": gamma[0], "beta": beta[0], "mean": mean[0], "var": var}, outputs
    )
    tail = np.concatenate([b[1], np.zeros(64 - channels)])
    r = R.request("pack_bias", dtype, {"OC": channels}, operands=("b", "packed"))
    yield case_of("pack_bias", r, {"b": b[0]}, {"packed": plain(F32, tail, rounding(tail, F32, 0))})


def convolutions(rng: Rng) -> Iterator[Case]:
    """Every kernel for convolutions."""
    one, none = (1, 1), (0, 0, 0, 0)
    hopper, split = _wgmma.HopperTile, _split.SplitTile
    image = Conv(3, 72, 13, 11, 136)
    for tile in (
        hopper(128, 128, True, 1),
        hopper(64, 256, True, 2),
        hopper(128, 192, False, 1),
        hopper(128, 64, True, 1, 18),
    ):
        yield with_tile(conv(rng, image, F16), tile)
    yield with_tile(
        conv(rng, Conv(2, 96, 15, 11, 72, (3, 2), (2, 1), (1, 2), (1, 0, 2, 1), res_mode=1), BF16),
        hopper(128, 64, True, 2),
    )
    for tile in (
        split(64, 64, False, 4, 1, 2),
        split(128, 64, True, 2, 2, 1),
        split(192, 80, True, 2, 1, 1),
    ):
        yield with_tile(conv(rng, image, F16), tile)
    yield with_tile(
        conv(
            rng,
            Conv(
                2, 96, 9, 11, 72, (3, 2), (2, 1), (1, 2), (1, 0, 2, 1), act="silu", kinds=(0, 1, 0)
            ),
            F16,
        ),
        split(128, 64, False, 2, 1, 1),
    )
    for v in (
        Conv(2, 64, 13, 17, 136),
        Conv(2, 96, 9, 20, 64, (3, 2), one, (2, 1), (1, 0, 2, 1), act="silu", kinds=(1, 0, 3)),
    ):
        for tile in T.halo_tiles(O.conv_request(v, F16), resident=True):
            yield with_tile(conv(rng, v, F16), tile)
    for v in (
        Conv(5, 88, 9, 11, 72, (5, 5), pads=(2, 2, 2, 2), res_mode=1),
        Conv(2, 144, 6, 6, 45, (3, 2), one, (2, 1), (1, 0, 2, 1), act="silu", kinds=(1, 0, 3)),
    ):
        for tile in T.halo_tiles(O.conv_request(v, F16), resident=False):
            yield with_tile(conv(rng, v, F16), tile)
    merged = (
        Conv(3, 48, 11, 9, 48, groups=12),
        Conv(2, 72, 9, 10, 72, groups=3, act="silu", kinds=(1, 0, 3)),
        Conv(1, 40, 9, 11, 320, (3, 2), groups=10),
    )
    for v, dtype in zip(merged, (F16, BF16, F16), strict=True):
        halo = T.halo_tiles(O.conv_request(v, dtype), resident=True)
        tiles = (
            hopper(128, 64, True, 2),
            hopper(128, 64, True, 1, v.kernel[0] * v.kernel[1]),
            split(64, 24, True, 2, 1, 1),
            split(64, 48, False, 2, 2, 1),
        )
        for tile in (*tiles, *halo):
            yield with_tile(conv(rng, v, dtype), tile)
    yield with_tile(
        conv(rng, Conv(2, 192, 9, 7, 192, groups=2, res_mode=1), F16), hopper(64, 128, True, 2)
    )
    if device()[0] == 90:
        for t in _costs.tiles(F32, arch=90):
            if t.wgmma:
                yield with_tile(
                    conv(
                        rng,
                        Conv(
                            2,
                            36,
                            9,
                            7,
                            70,
                            (3, 2),
                            (2, 1),
                            (1, 2),
                            (1, 0, 2, 1),
                            act="silu",
                            res_mode=1,
                        ),
                        F32,
                    ),
                    t,
                )
    yield conv(rng, Conv(2, 3, 33, 35, 20, (7, 7), (2, 2), one, (3, 3, 3, 3)), F16)
    yield conv(rng, Conv(2, 3, 33, 35, 20, (7, 7), (2, 2), one, (3, 3, 3, 3), planes=True), F16)
    yield conv(
        rng,
        Conv(1, 3, 17, 19, 40, (3, 3), (1, 1), one, (0, 0, 1, 1), planes=True, act="silu"),
        BF16,
    )
    yield conv(rng, Conv(2, 3, 19, 40, 16, (3, 3), (2, 2), planes=True), F16)
    for size, pool in (
        ((61, 64), (3, 3, 1, 1, 1, 1)),
        ((29, 35), (2, 2, 0, 0, 0, 0)),
        ((30, 36), (3, 2, 0, 1, 1, 0)),
    ):
        yield conv(
            rng,
            Conv(2, 3, *size, 64, (7, 7), (2, 2), one, (3, 3, 3, 3), planes=True, pool=pool),
            F16,
        )
    yield conv(rng, Conv(1, 5, 33, 37, 20, act="silu", pool=(3, 3, 0, 0, 1, 1)), BF16)
    yield conv(
        rng, Conv(2, 3, 33, 35, 20, (7, 7), (2, 2), one, (3, 3, 3, 3), planes=True, res_mode=1), F32
    )
    yield conv(rng, Conv(1, 3, 17, 19, 70, act="silu", slack=3), F32)
    yield conv(
        rng, Conv(2, 2, 1, 91, 24, (1, 10), (1, 5), one, none, planes=True, kinds=(0, 1, 3)), F16
    )
    yield conv(rng, Conv(1, 1, 40, 43, 24, (11, 11), (4, 4), one, (2, 2, 2, 2), planes=True), BF16)
    yield conv(rng, Conv(1, 7, 19, 17, 13, (5, 3), (2, 1), (2, 1), (1, 2, 3, 0)), F16)
    yield conv(rng, Conv(3, 5, 11, 13, 7, (3, 2), (2, 3), (2, 1), (1, 0, 2, 1)), F32)
    yield conv(rng, Conv(2, 20, 10, 10, 30, groups=5, res_mode=1), F16)
    yield conv(rng, Conv(1, 17, 9, 7, 19, (3, 3), pads=(0, 1, 2, 0), slack=3), F16)
    yield conv(rng, Conv(1, 61, 5, 7, 31, (1, 1), (2, 2), one, none), F16)
    yield conv(
        rng,
        Conv(1, 5, 6, 5, 7, (3, 3), (2, 3), (1, 2), (1, 0, 0, 1), transposed=True, extra=(1, 2)),
        F16,
    )
    yield conv(rng, Conv(1, 16, 6, 6, 16, groups=4, transposed=True, stride=(3, 3)), F32)
    for channels in (1, 3, 19):
        v = Conv(
            2, 33, 5, 6, channels, (5, 4), (2, 3), (1, 1), (1, 0, 2, 1), transposed=True,
            extra=(1, 2), act="silu", kinds=(0, 1, 3),
        )  # fmt: skip
        yield conv(rng, v, F32)
        yield conv(rng, replace(v, kernel=(2, 2), kinds=None, res_mode=1, extra=(0, 0)), F32)
    transposed = Conv(2, 136, 7, 9, 72, (4, 4), (2, 2), one, (1, 1, 1, 1), transposed=True)
    for tile in (
        split(64, 64, False),
        split(64, 40, True, 4),
        split(128, 64, True, 2, 2, 1),
        split(128, 72, False, 1, 1, 2),
    ):
        yield with_tile(conv(rng, transposed, F16), tile)
    yield conv(
        rng,
        Conv(
            1,
            40,
            5,
            8,
            24,
            (3, 3),
            (2, 2),
            one,
            (1, 1, 1, 1),
            transposed=True,
            extra=(1, 1),
            res_mode=1,
        ),
        BF16,
    )
    yield conv(
        rng,
        Conv(
            2,
            32,
            1,
            21,
            19,
            (1, 16),
            (1, 8),
            one,
            (0, 4, 0, 4),
            transposed=True,
            slack=3,
            act="silu",
            kinds=(0, 1, 3),
        ),
        F16,
    )
    for dtype in (F16, F32):
        yield conv(rng, Conv(1, 7, 9, 11, 7, groups=7, act="silu"), dtype)
        yield conv(
            rng,
            Conv(1, 33, 8, 8, 33, groups=33, stride=(2, 2), pads=(0, 0, 1, 1), slack=3, res_mode=2),
            dtype,
        )
        # strips
        yield conv(
            rng, Conv(6, 98, 28, 27, 98, (5, 5), one, one, (2, 2, 2, 2), 98, act="silu"), dtype
        )
        yield conv(rng, Conv(2, 20, 15, 13, 60, groups=20, stride=(2, 1), act="silu"), dtype)
        yield conv(rng, Conv(1, 20, 9, 7, 20, (4, 4), (2, 2), one, (1, 1, 1, 1), 20, True), dtype)
        yield conv(
            rng,
            Conv(1, 5, 9, 7, 10, (3, 3), (2, 2), one, (1, 1, 1, 1), 5, True, (1, 1), res_mode=1),
            dtype,
        )
        yield conv(rng, Conv(20, 48, 40, 41, 96, groups=48), dtype)  # strips
        yield conv(rng, Conv(1, 12, 9, 11, 12, (13, 3), pads=(6, 1, 6, 1), groups=12), dtype)
    # strips
    yield conv(rng, Conv(40, 33, 56, 57, 33, groups=33, stride=(2, 2), slack=3, res_mode=2), F16)
    yield conv(rng, Conv(2, 64, 61, 50, 64, groups=64, dilation=(2, 2), kinds=(1, 3, 0)), F16)


FAMILIES = {
    "convolutions": convolutions,
    "packs": lambda rng: itertools.chain(packs(rng, F16), packs(rng, F32)),
}
