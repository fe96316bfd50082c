"""CUDA convolutions: correctness against float64 (`--check`), or time against cuDNN through
PyTorch.

python -m tests.gpu.cases.conv --check
python -m tests.gpu.cases.conv [--compile] [--only REGEX]
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.gpu.cases import conv_sizes as S
from tests.gpu.cases.gemm import TYPES, Case, launches, random, report
from tests.support.cuda import check as K
from tests.support.cuda import runner as R
from tests.support.cuda import tiles as T
from tests.support.cuda.conv_shape import Conv, layers, pitch
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import widened_elements
from tracea_onnx.support import discovery


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
        ints |= dict(zip(("PKH", "PKW", "PPT", "PPL"), v.pool[:4], strict=True)) | {
            "PH": height,
            "PW": width,
        }
        del ints["res_mode"]
    operands = ["x", "w", "bias", "y", *(["res"] if v.res_mode else [])]
    for j, kind in enumerate(v.kinds or ()):
        ints[f"o{j}_kind"] = kind
        operands.append(f"o{j}")
    p0, p1 = K.PARAMETERS.get(v.act, (0.0, 0.0))
    family = (
        ("deconv2d" if v.transposed else "conv2d") + "_dw" * v.depthwise
        if v.pool is None
        else "conv_pool"
    )
    program = K.GATED if v.kinds is not None else None
    return R.request(
        family,
        dtype,
        ints,
        {"p0": p0, "p1": p1},
        program,
        operands,
        unaligned=("y",) if v.slack % 8 else (),
        constant=("w", "bias"),
    )


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
    """The largest of each window of the pooling, infinitely small where that is beyond the image."""
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
            f"{int(wrong.sum())} of {wrong.numel()} elements are not finite where the reference is, or the reverse"
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


def bundle_tiles(v: Conv, dtype: DType) -> list[Any]:
    """Tiles of every kind that takes bundles of groups."""
    r = conv_request(v, dtype)
    wgmma, split_k, grouped = (
        discovery.module("kernels", f"cuda.{n}")
        for n in ("gemm.persistent_sm90", "gemm.cluster_splitk_sm90", "conv.grouped")
    )
    hopper, split, bundle = wgmma.HopperTile, split_k.SplitTile, grouped.of(r)
    steps = v.kernel[0] * v.kernel[1] * bundle.chunks
    tiles = [
        hopper(128, 64, True, 2),
        hopper(64, 128, True),
        hopper(128, 64, True, 1, steps, bundle.count == 1),
        split(64, 24, True, 2),
        split(64, 48, False, 2, 2),
    ]
    return [*tiles, *T.window_tiles(r, steps)]


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
        for tile in (None, *bundle_tiles(v, d))
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
            steps = v.kernel[0] * v.kernel[1] * -(-v.c // 64)
            cases += [conv_case(v, d, tile) for tile in T.window_tiles(conv_request(v, d), steps)]
        for v in S.SLABS:
            cases += [
                conv_case(v, d, tile, wild=v.n == 3) for tile in T.slab_tiles(conv_request(v, d))
            ]
    return cases


# --- time -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """One set of operands, channels last: ours (x, packed w, f32 bias, residual, y) and PyTorch's
    (x, w, f16 bias).
    """

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
    for _ in range(
        R.sets_for((v.n * v.h * v.w * v.c + (1 + bool(v.res_mode)) * v.n * oh * ow * v.oc) * 2)
    ):
        x, w = random((v.n, v.c, v.h, v.w), dtype), random(v.weight_shape, dtype, 0.05)
        b, scale = t.randn(-(-v.oc // 32) * 32, device="cuda"), t.ones(v.oc, device="cuda")
        res = random((v.n, v.oc, oh, ow), dtype).contiguous(memory_format=last)
        stored = t.zeros((v.n, v.h, v.w, pitch(v.c)), device="cuda", dtype=half)
        stored[..., : v.c] = x.permute(0, 2, 3, 1)
        y = t.empty((v.n, oh, ow, pitch(v.oc)), device="cuda", dtype=half)
        packed = packed_weight(v, w, scale, dtype)
        sets.append(
            Data(
                stored,
                packed,
                b,
                res,
                y,
                x.contiguous(memory_format=last),
                w.contiguous(memory_format=last),
                b[: v.oc].to(half),
            )
        )
    return sets


def peers(v: Conv, data: list[Data], compiled: bool) -> dict[str, Callable[[int], Any]]:
    t = R.torch()
    f = t.nn.functional

    def plain(x: Any, w: Any, b: Any, q: Any) -> Any:
        y = f.conv2d(x, w, b, v.stride, v.pads[:2], v.dilation, v.groups)
        y = y + q if v.res_mode else y
        return {"silu": f.silu, "relu": f.relu, "hard_swish": f.hardswish}.get(v.act, lambda z: z)(
            y
        )

    def cudnn(i: int) -> Any:
        d = data[i]
        if v.res_mode:
            return t.cudnn_convolution_add_relu(
                d.x_torch, d.w, d.res, 1.0, d.bias16, v.stride, v.pads[:2], v.dilation, v.groups
            )
        return t.cudnn_convolution_relu(
            d.x_torch, d.w, d.bias16, v.stride, v.pads[:2], v.dilation, v.groups
        )

    out: dict[str, Callable[[int], Any]] = {
        "eager": lambda i: plain(data[i].x_torch, data[i].w, data[i].bias16, data[i].res)
    }
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
    todo = [
        (group, v, times, conv_request(v, d))
        for group, v, times in layers(batches)
        if re.search(only, f"{group} {v.name(d)}")
    ]
    forced = {id(r): candidates(v, r) if tune else [] for _, v, _, r in todo}
    R.compile_all([x for _, v, _, r in todo for x in (r, pack_request(v, d), *forced[id(r)])])
    totals: dict[str, dict[str, float]] = {}
    for group, v, times, r in todo:
        try:
            data = layer_data(v)
            bound = [x.bind(r) for x in data]
            variants = {"ours": launches(bound), **peers(v, data, compiled)}
            variants |= {
                T.tile_name(R.forced_tile(f)): launches([x.bind(f) for x in data])
                for f in forced[id(r)]
            }
            result = R.measure(
                variants, len(data), target_us=1000 if tune else 1500, rounds=3 if tune else 5
            )
            (oh, ow), taps = v.out, v.kernel[0] * v.kernel[1]
            log.record(
                name=v.name(d), group=group, count=times, m=v.n * oh * ow, n=v.oc, k=taps * v.c // v.groups, steps=taps * -(-v.c // 64), residual=v.res_mode,
                times=result,
            )  # fmt: skip
            total = totals.setdefault(group, {})
            best = "cudnn" if "cudnn" in variants else "eager"
            for name in ("ours", best):
                value = result[name]
                total[name] = total.get(name, 0.0) + (
                    value * times if isinstance(value, float) else float("nan")
                )
            k = bound[0].kernels[0]
            report(
                log,
                f"{v.name(d)} [{k.symbol} grid {k.grid[0]} cluster {k.cluster} smem {k.smem}]",
                result,
            )
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
    return [
        R.force(r, t)
        for t in [
            *T.plausible(v.n * oh * ow, v.oc, taps * pitch(v.c), steps=steps, most=7),
            *T.window_tiles(r, steps),
        ]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tune", action="store_true", help="also time every plausible tile")
    parser.add_argument(
        "--compile", action="store_true", help="also torch.compile max-autotune (slow to start)"
    )
    parser.add_argument("--only", default="", help="regular expression: cases to take")
    parser.add_argument("--batches", default="64,1,8", help="batch sizes of the timed layers")
    args = parser.parse_args()
    log = R.Log(f"cuda_conv_{'check' if args.check else 'tune' if args.tune else 'time'}.txt")
    R.torch().manual_seed(0)
    if not args.check:
        time_cases(
            log, args.only, args.compile, [int(b) for b in args.batches.split(",")], args.tune
        )
        return 0
    return K.check_all(log, [c for c in check_cases() if re.search(args.only, c[0])])


if __name__ == "__main__":
    sys.exit(main())
