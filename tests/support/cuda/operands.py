"""Operands of products and convolutions as the provider stores them, from PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.cuda import check as K
from tests.support.cuda import runner as R
from tests.support.cuda.conv_shape import Conv, pitch
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import weight_pitch, widened_elements


def packed_weight(w: Any, dtype: DType, *, trans: bool) -> Any:
    """The packed form of w ([N, K] when trans, else [K, N]) from the packing kernel itself, into
    poisoned memory.
    """
    n, k = (w.shape[0], w.shape[1]) if trans else (w.shape[1], w.shape[0])
    out = K.poisoned((n, weight_pitch(k, dtype.size)), dtype)
    K.launch(pack_gemm_request(n, k, dtype, trans), {"w": w, "packed": out})
    return out


def pack_gemm_request(n: int, k: int, dtype: DType, trans: bool) -> Request:
    return R.request(
        "pack_gemm",
        dtype,
        {"K": k, "N": n, "trans": int(trans), "ldw": k if trans else n, "N_total": n},
        {"alpha": 1.0},
        operands=("w", "packed"),
    )


def random(shape: Sequence[int], dtype: DType, scale: float = 1.0) -> Any:
    t = R.torch()
    return (t.randn(tuple(shape), device="cuda", dtype=t.float32) * scale).to(R.torch_dtype(dtype))


def padded(x: Any, columns: int, dtype: DType) -> Any:
    """Rows of x with NaN behind them up to the pitch `columns`."""
    out = K.poisoned((x.shape[0], columns), dtype)
    out[:, : x.shape[1]] = x
    return out


def conv_request(v: Conv, dtype: DType) -> Request:
    (oh, ow), (height, width) = v.out, v.results
    xc, yc = pitch(v.c, v.slack), pitch(v.oc, v.slack)
    rc = pitch(v.oc, 2 * v.slack)
    ints = {
        "N": v.n, "IC": v.c, "IH": v.h, "IW": v.w, "OC": v.oc, "OH": oh, "OW": ow,
        "KH": v.kernel[0], "KW": v.kernel[1], "SH": v.stride[0], "SW": v.stride[1],
        "DH": v.dilation[0], "DW": v.dilation[1], "PT": v.pads[0], "PL": v.pads[1], "G": v.groups,
        "x_cs": xc, "x_rs": xc * v.w, "x_ns": xc * v.w * v.h,
        "y_cs": yc, "y_rs": yc * width, "y_ns": yc * width * height, "r_cs": rc, "r_rs": rc * ow,
        "r_ns": rc * ow * oh, "act": K.act_index(v.act),
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


def pack_conv_request(v: Conv, dtype: DType, *, scaled: bool = True) -> Request:
    ints = {"OC": v.oc, "KH": v.kernel[0], "KW": v.kernel[1]}
    if not v.depthwise:
        ints |= {"IC": v.c, "G": v.groups}
    family = "pack_conv2d_dw" if v.depthwise else "pack_deconv2d" if v.transposed else "pack_conv2d"
    return R.request(family, dtype, ints, operands=["w", "packed", *(["scale"] if scaled else [])])


def packed_filter(v: Conv, w: Any, scale: Any, dtype: DType) -> Any:
    taps = v.kernel[0] * v.kernel[1]
    count = taps * pitch(v.oc) if v.depthwise else v.oc * taps * pitch(v.c // v.groups)
    if not (v.depthwise or v.transposed) and dtype != DType.F32:
        count += widened_elements(OC=v.oc, IC=v.c, KH=v.kernel[0], KW=v.kernel[1], G=v.groups)
    out = K.poisoned((count,), dtype)
    K.launch(pack_conv_request(v, dtype), {"w": w, "packed": out, "scale": scale})
    return out


def channels_last(x: Any, cs: int, dtype: DType) -> Any:
    """[N, C, H, W] stored channels last at `cs` elements per pixel, NaN in the pad channels."""
    n, c, h, w = x.shape
    out = K.poisoned((n, h, w, cs), dtype)
    out[..., :c] = x.permute(0, 2, 3, 1)
    return out
