"""Products of 8-bit integers and their packing, against exact integers and float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support import int8_cases
from tests.support.cuda.case import Case, Output, plain, stored, value
from tests.support.int8_cases import (
    BF16,
    F16,
    F32,
    I8,
    I32,
    ROUNDING,
    U8,
    Array,
    Problem,
    gemm,
)  # fmt: skip
from tests.support.int8_cases import Case as Product
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import byte_pitch, tap_pitch

Rng = np.random.Generator
_PADDED: dict[str, Any] = {"k": (3, 3), "pads": (1, 1, 1, 1)}


def packed(weight: Array, kind: str) -> Array:
    """[OC, IC / G, KH, KW] as the packing kernels of CUDA leave it."""
    oc, channels, kh, kw = weight.shape
    if kind == "conv2d_int8_dw":
        rows = np.zeros((kh * kw, tap_pitch(oc)), weight.dtype)
        rows[:, :oc] = weight.reshape(oc, -1).T
        return rows.reshape(-1)
    pitch = byte_pitch(channels) if kind == "gemm_int8" else tap_pitch(channels)
    taps = np.zeros((oc, kh * kw, pitch), weight.dtype)
    taps[..., :channels] = weight.reshape(oc, channels, -1).transpose(0, 2, 1)
    sums = weight.reshape(oc, -1).sum(axis=1, dtype=np.int32)
    return np.concatenate([taps.view(np.uint8).reshape(-1), sums.view(np.uint8)])


def _by_rows(made: Problem, pixel: int) -> Problem:
    """The same convolution with a row of a window as one pixel, of an image that is padded, with
    `pixel` bytes from pixel to pixel.
    """
    case, x, zero = made.case, made.operands["x"], made.operands["x_zero"]
    assert x is not None
    (oh, ow), (kh, kw), (sh, sw) = case.out, case.k, case.s
    height, width = (oh - 1) * sh + (kh - 1) * case.d[0] + 1, -(-((ow - 1) * sw + kw) // 16) * 16
    (top, left, *_), (h, w) = case.pads, (min(case.h, height), min(case.w, width))
    image = np.full((case.n, height + top, width + left, pixel), 0 if zero is None else zero[0])
    image[:, top : top + h, left : left + w, : case.ic] = x.reshape(
        case.n, case.h, case.w, case.ic
    )[:, :h, :w]
    image = np.ascontiguousarray(image[:, :height, :width], x.dtype)
    weight = np.zeros((case.oc, kw, pixel, kh), made.weight.dtype)
    weight[:, :, : case.ic] = made.weight.transpose(0, 3, 1, 2)
    ints = {
        **made.ints, "IC": kw * pixel, "IH": height, "IW": ow, "KW": 1, "SW": 1, "PT": 0, "PL": 0,
        "x_cs": sw * pixel, "x_rs": width * pixel, "x_ns": height * width * pixel,
    }  # fmt: skip
    weight = weight.reshape(case.oc, kw * pixel, kh, 1)
    return replace(made, ints=ints, operands={**made.operands, "x": image}, weight=weight)


def _case(product: Product, seed: int, pixel: int = 0) -> Case:
    made = int8_cases.problem(product, seed)
    made = _by_rows(made, pixel) if pixel else made
    want, slack = made.results()
    rows, pitch = made.y.shape
    bound = slack if np.any(slack) else None
    if bound is not None and product.y in (U8, I8):
        bound = np.maximum(slack, 1e-9)  # the comparison divides by it
    flat = want.reshape(rows, want.shape[-1])
    flat = flat.astype(np.float64 if product.y in ROUNDING else np.int64)
    out = Output(product.y, rows * pitch, flat.shape, [pitch, 1], flat,
                 None if bound is None else np.reshape(bound, flat.shape))  # fmt: skip
    operands = {k: v for k, v in made.operands.items() if v is not None}
    operands["w"] = packed(made.weight, product.kind)
    if product.res == BF16:
        operands["res"] = operands["res"].view(np.uint16)
    fixed = frozenset(operands) - {"x", "res"}
    return Case(
        f"{product} {seed} {pixel}", product.kind, product.floats, made.ints, operands, {"y": out},
        made.floats, constant=fixed,
    )  # fmt: skip


def products(rng: Rng) -> Iterator[Case]:
    forms = (
        (U8, I8, U8, "none"), (I8, I8, I8, "none"), (U8, U8, U8, "each"), (I8, U8, I8, "same"),
        (U8, I8, F32, "same"), (I8, I8, I32, "each"), (U8, U8, I32, "none"),
    )  # fmt: skip
    shapes = (
        (1, 1, 1), (2, 3, 5), (3, 33, 7), (5, 31, 129), (13, 97, 31), (16, 64, 64), (61, 257, 67),
        (127, 65, 128), (129, 128, 127), (257, 17, 1031), (600, 40, 304), (4096, 384, 1536),
    )  # fmt: skip
    for shape in shapes:
        for seed, (x, w, y, zero) in enumerate(forms):
            case = gemm(*shape, x=x, wt=w, y=y, w_zero=zero, spread=seed % 3,
                        each_scale=bool(seed % 2), bias=seed != 3, x_zero=seed != 2)  # fmt: skip
            yield _case(case, seed)
            yield _case(replace(case, exact=False), seed)
    for seed, act in enumerate(("none", "relu", "clip", "silu", "gelu_erf")):
        for res, mode in ((None, 0), (F32, 1), (U8, 1), (I8, 2), (F32, 2)):
            for middle in (None, U8, I8):
                y = (U8, I8, F32)[(seed + mode) % 3]
                yield _case(
                    gemm(70, 77, 130, y=y, act=act, res=res, mode=mode, middle=middle), seed
                )
    for seed, (shape, spread) in enumerate((
        ((1, 3, 5), 0), ((5, 31, 129), 0), ((13, 97, 31), 1), ((70, 77, 130), 2),
        ((129, 128, 127), 0), ((257, 200, 1031), 4), ((600, 40, 304), 0), ((2100, 768, 768), 0),
        ((4095, 768, 3072), 8), ((4096, 2304, 768), 0), ((127, 384, 1536), 0),
    )):  # fmt: skip
        for y in (F16, BF16):
            for res, mode in ((None, 0), (y, 1), (y, 2), (U8, 1)):
                act = ("none", "relu", "gelu_erf")[(seed + mode) % 3]
                more: dict[str, Any] = {"y": y, "res": res, "mode": mode, "act": act}
                case = gemm(*shape, spread=spread, exact=False, **more)
                yield _case(case, seed)


def _convolutions() -> Iterator[Product]:
    def conv(**more: Any) -> Product:
        return Product("conv2d_int8", **more)

    yield conv(h=31, w=33, ic=3, oc=64, k=(7, 7), s=(2, 2), pads=(3, 3, 3, 3), act="relu")
    yield conv(n=2, h=9, w=7, ic=64, oc=70, x=I8, y=I8, **_PADDED)
    yield conv(n=2, h=9, w=7, ic=16, oc=33, x=I8, spread=1)
    yield conv(n=3, h=5, w=6, ic=20, oc=40, wt=U8, w_zero="each", **_PADDED)
    yield conv(h=14, w=14, ic=64, oc=96, res=U8, mode=1, act="relu", middle=U8)
    yield conv(h=14, w=13, ic=17, oc=5, k=(3, 2), s=(2, 1), d=(1, 2), pads=(1, 2, 0, 1))
    yield conv(h=9, w=9, ic=24, oc=40, g=8, spread=2, **_PADDED)
    yield conv(h=8, w=9, ic=24, oc=8, g=2, x=I8, wt=U8, w_zero="same", y=I32)
    yield conv(h=2, w=2, ic=8, oc=8, k=(5, 5), pads=(4, 4, 4, 4), y=F32, res=F32, mode=2)
    yield conv(h=7, w=7, ic=304, oc=130, **_PADDED)
    yield conv(n=2, h=8, w=8, ic=48, oc=24, s=(2, 2), res=I8, mode=1, act="silu", spread=3)
    yield conv(n=8, h=14, w=14, ic=256, oc=256, **_PADDED)
    # by im2col copies
    yield conv(n=8, h=14, w=14, ic=256, oc=256, x_zero=False, res=U8, mode=1, **_PADDED)
    yield conv(n=16, h=29, w=27, ic=64, oc=72, x_zero=False, s=(2, 2), x=I8, y=I8, **_PADDED)
    yield conv(n=16, h=28, w=28, ic=208, oc=128, s=(2, 2), y=F32)
    yield conv(n=2, h=9, w=7, ic=64, oc=70, y=F16, res=F16, mode=1, **_PADDED)
    yield conv(n=16, h=28, w=28, ic=128, oc=128, x_zero=False, y=F16, res=F16, mode=1, act="relu",
               **_PADDED)  # fmt: skip

    def depthwise(ic: int, **more: Any) -> Product:
        return Product("conv2d_int8_dw", ic=ic, oc=ic, g=ic, **more)

    yield depthwise(32, h=14, w=14, act="relu", **_PADDED)
    yield depthwise(96, n=2, h=15, w=13, s=(2, 2), x=I8, **_PADDED)
    yield depthwise(37, h=9, w=20, k=(5, 5), pads=(2, 2, 2, 2), wt=U8, w_zero="each")
    yield depthwise(7, h=9, w=7, k=(5, 5), s=(2, 2), pads=(1, 1, 2, 2), y=I32)
    yield depthwise(40, h=9, w=11, k=(3, 1), d=(2, 1), x=I8, wt=U8, w_zero="same")
    yield depthwise(65, h=7, w=7, k=(7, 7), pads=(3, 3, 3, 3), y=I8, res=U8, mode=1)
    yield depthwise(48, h=9, w=7, y=F16, res=F16, mode=1, act="relu", **_PADDED)
    yield depthwise(33, h=7, w=7, k=(5, 5), pads=(2, 2, 2, 2), y=BF16)


def convolutions(rng: Rng) -> Iterator[Case]:
    for seed, case in enumerate(_convolutions()):
        yield _case(case, seed)
        yield _case(replace(case, exact=False), seed)


def window_rows(rng: Rng) -> Iterator[Case]:
    """Of few channels, with rows of windows as pixels: such pixels overlap."""
    stem: dict[str, Any] = {"k": (7, 7), "s": (2, 2), "pads": (3, 3, 3, 3)}

    def conv(**more: Any) -> Product:
        return Product("conv2d_int8", **more)

    for seed, (pixel, case) in enumerate((
        (4, conv(n=2, h=13, w=15, ic=3, oc=24, act="relu", **stem)),
        (4, conv(h=9, w=7, ic=1, oc=5, k=(5, 3), d=(2, 1), pads=(1, 2, 4, 0), x=I8, y=I8)),
        (8, conv(h=8, w=9, ic=5, oc=66, k=(2, 2), x=I8, wt=U8, w_zero="each", y=I32)),
        (3, conv(n=3, h=32, w=48, ic=3, oc=40, k=(16, 16), s=(16, 16), wt=U8, w_zero="same")),
        (4, conv(n=5, h=1, w=40, ic=2, oc=9, k=(1, 5), s=(1, 3), pads=(0, 2, 0, 3), y=F32)),
        (4, conv(n=3, h=64, w=224, ic=3, oc=64, act="relu", **stem)),
        (4, conv(n=8, h=64, w=96, ic=3, oc=128, k=(7, 7), s=(4, 4), x_zero=False)),
    )):  # fmt: skip
        yield _case(case, seed, pixel)
        yield _case(replace(case, exact=False), seed, pixel)


def packing(rng: Rng) -> Iterator[Case]:
    for dtype in (U8, I8):
        for product in (gemm(1, 7, 33), gemm(1, 130, 515), *_convolutions()):
            family, ints = int8_cases.packing(product)
            shape = product.oc, product.ic // product.g, *product.k
            weight = int8_cases.some_bytes(rng, dtype, *shape)
            want = packed(weight, product.kind).view(np.uint8)
            ints["w_dtype"] = int(dtype)
            outputs = {"packed": plain(DType.U8, want, None)}
            yield Case(f"{product.kind} {dtype.name} {shape}", family, F32, ints, {"w": weight},
                       outputs, constant=frozenset({"w"}))  # fmt: skip


def pooling(rng: Rng) -> Iterator[Case]:
    """Maxima of bytes."""
    for dtype in (U8, I8):
        for c, k, s in ((1, 3, 2), (7, 2, 2), (20, 5, 1), (64, 3, 2)):
            x = int8_cases.some_bytes(rng, dtype, 3, 13, 11, c)
            low, pad = np.iinfo(x.dtype).min, k // 2
            wide = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=low)
            windows = np.lib.stride_tricks.sliding_window_view(wide, (k, k), (1, 2))
            want = np.ascontiguousarray(windows[:, ::s, ::s].max((-1, -2)))
            _, oh, ow, _ = want.shape
            ints = {
                "N": 3, "C": c, "IH": 13, "IW": 11, "OH": oh, "OW": ow, "KH": k, "KW": k, "SH": s,
                "SW": s, "DH": 1, "DW": 1, "PT": pad, "PL": pad, "PB": pad, "PR": pad, "x_cs": c,
                "x_rs": 11 * c, "x_ns": 143 * c, "y_cs": c, "y_rs": ow * c, "y_ns": oh * ow * c,
            }  # fmt: skip
            yield Case(f"maxima of {dtype.name} {c} {k}", "pool2d", dtype, ints, {"x": x},
                       {"y": plain(dtype, want, None)})  # fmt: skip


def pooled_rows(rng: Rng) -> Iterator[Case]:
    """Convolutions of few channels and the max pooling of their results."""
    stem: dict[str, Any] = {"kind": "conv2d_int8", "act": "relu"}
    around = (3, 3, 3, 3)
    for seed, (product, k, pad) in enumerate((
        (Product(n=2, h=21, w=27, ic=3, oc=64, k=(7, 7), s=(2, 2), pads=around, **stem), 3, 1),
        (Product("conv2d_int8", h=9, w=12, ic=3, oc=16, k=(3, 3), x=I8, y=I8), 2, 0),
    )):  # fmt: skip
        case = _case(product, seed, 4)
        (oh, ow), oc, out = product.out, product.oc, case.outputs["y"]
        shape, made = (product.n, oh, ow, oc), out.want.reshape(product.n, oh, ow, oc)
        ph, pw = ((v + 2 * pad - k) // 2 + 1 for v in (oh, ow))
        wide = np.pad(made, ((0, 0), (pad, 2), (pad, 2), (0, 0)), constant_values=-1000)
        windows = np.lib.stride_tricks.sliding_window_view(wide, (k, k), (1, 2))
        want = windows[:, : 2 * ph : 2, : 2 * pw : 2].max((-1, -2))
        ints = {
            **case.ints, "PKH": k, "PKW": k, "PPT": pad, "PPL": pad, "PH": ph, "PW": pw,
            "y_cs": oc, "y_rs": pw * oc, "y_ns": ph * pw * oc,
        }  # fmt: skip
        pooled = plain(product.y, np.ascontiguousarray(want), None)
        yield Case(f"pooled {shape}", "conv_pool_int8", F32, ints, case.operands, {"y": pooled},
                   case.floats, constant=case.constant)  # fmt: skip


def images(rng: Rng) -> Iterator[Case]:
    """Floats, some on ties, as padded images of bytes."""
    for dtype, floats in ((U8, F32), (I8, F16), (I8, F32), (U8, BF16)):
        for n, c, h, w, pixel, top, left in ((2, 3, 5, 7, 4, 3, 2), (1, 1, 1, 9, 3, 0, 1)):
            x = (rng.integers(-700, 700, (n, c, h, w)) / 4).astype(np.float32)
            held = stored(x, floats)
            x = value(held, floats).astype(np.float32)
            zero = int8_cases.some_bytes(rng, dtype, 1)
            info, rows, columns = np.iinfo(zero.dtype), h + top + 1, w + left + 2
            want = np.full((n, rows, columns, pixel), zero[0])
            inside = np.clip(np.rint(x / np.float32(0.5)) + int(zero[0]), info.min, info.max)
            want[:, top : top + h, left : left + w, :c] = inside.transpose(0, 2, 3, 1)
            ints = {
                "N": n, "C": c, "H": h, "W": w, "x_n": c * h * w, "x_c": h * w, "x_h": w, "x_w": 1,
                "P": pixel, "top": top, "left": left, "rows": rows, "columns": columns,
                "y_dtype": int(dtype),
            }  # fmt: skip
            operands = {"x": held, "scale": np.full(1, 0.5, np.float32), "zero": zero}
            yield Case(f"an image of {dtype.name} {c} {pixel}", "quantise_image", floats, ints,
                       operands, {"y": plain(dtype, want, None)})  # fmt: skip


def means(rng: Rng) -> Iterator[Case]:
    """Of all pixels of bytes, as floats and as bytes."""
    for x_dtype, dtype, c, h, w in ((U8, U8, 136, 4, 2), (I8, F32, 5, 3, 3), (U8, I8, 260, 1, 16)):
        x = int8_cases.some_bytes(rng, x_dtype, 2, h, w, c)
        x_zero = int8_cases.some_bytes(rng, x_dtype, 1)
        exact = (x.astype(np.float64) - float(x_zero[0])).mean((1, 2)) / 4
        ints = {
            "N": 2, "C": c, "H": h, "W": w, "x_cs": c, "x_rs": w * c, "x_ns": h * w * c, "y_ns": c,
            "x_dtype": int(x_dtype), "y_dtype": int(dtype),
        }  # fmt: skip
        operands = {"x": x, "x_scale": np.full(1, 0.25, np.float32), "x_zero": x_zero}
        want, bound = exact, np.abs(exact) * 1e-6 + 1e-6
        if dtype != F32:
            zero = int8_cases.some_bytes(rng, dtype, 1)
            info = np.iinfo(zero.dtype)
            want = np.clip(np.rint(exact / 0.125) + int(zero[0]), info.min, info.max)
            want = want.astype(zero.dtype)
            operands |= {"y_scale": np.full(1, 0.125, np.float32), "y_zero": zero}
        made = plain(dtype, want, None if dtype != F32 else bound)
        yield Case(f"means of {x_dtype.name} {dtype.name} {c}", "global_mean_int8", F32, ints,
                   operands, {"y": made})  # fmt: skip


FAMILIES = {
    "int8": products, "int8 convolutions": convolutions, "int8 window rows": window_rows,
    "pack int8": packing, "pool int8": pooling, "images of bytes": images, "means of bytes": means,
    "pooled int8": pooled_rows,
}  # fmt: skip
