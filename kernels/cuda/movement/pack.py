"""Preparation of constants, once per session: weights with k contiguous and padded to 8, f32
biases, folded BatchNormalization and norms of rows.

Packed layouts: gemm [N_total, `families.weight_pitch`]; conv2d and deconv2d [OC, KH, KW,
round_up(IC / G, 8)] (`select.channels`), and behind a conv2d's those of `grouped`; conv2d_dw [KH *
KW, round_up(C, 8)]."""

from __future__ import annotations

from collections.abc import Callable

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import weight_pitch

from ..common.launch import declared
from ..common.prelude import prelude
from ..conv import grouped
from ..gemm import select

_BLOCK = 256
# One thread per packed element; `index` is its position.
_ELEMENT = r"""
extern "C" __global__ void __launch_bounds__(256) pack(PARAMETERS) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const i64 index = (i64)blockIdx.x * 256 + threadIdx.x;
  if (index >= count) return;
  BODY
}
"""
_GEMM = r"""
  const i64 n = index % N, k = index / N;  // neighbouring threads read neighbouring columns of [K, N]
  float v = 0.f;
  if (k < K) v = to_float(trans ? w[n * ldw + k] : w[k * ldw + n]) * alpha * (scale ? scale[n] : 1.f) * (gamma ? to_float(gamma[k]) + gamma_add : 1.f);
  from_float(packed[(n0 + n) * pitch + k], v);
"""
_FOLD_NORM = r"""
  double sum = 0.0, shift = b ? (double)to_float(b[index]) : 0.0;
  for (int k = 0; k < K; k++) {
    sum += (double)to_float(packed[index * pitch + k]);
    if (beta) shift += (double)to_float(beta[k]) * (double)to_float(trans ? w[index * ldw + k] : w[k * ldw + index]) * (double)alpha;
  }
  sums[index] = (float)(sum * (double)unscale);
  bias[index] = (float)shift;
"""
_CONV = r"""
  int c = (int)(index % pitch);
  i64 rest = index / pitch;
  const int kw = (int)(rest % KW);
  rest /= KW;
  const int kh = (int)(rest % KH), oc = (int)(rest / KH), group = oc / OCG;
  c -= group % together * ICG;  // the groups of a bundle have their filters side by side, with zeros around them
  float v = 0.f;
  if (c >= 0 && c < ICG) {
    const i64 from = transposed ? ((i64)(group * ICG + c) * OCG + oc - group * OCG) * KH * KW : ((i64)oc * ICG + c) * KH * KW;
    v = to_float(w[from + kh * KW + kw]) * (scale ? scale[oc] : 1.f);
  }
  from_float(packed[index], v);
"""
_DEPTHWISE = r"""
  const int c = (int)(index % pitch), tap = (int)(index / pitch);
  float v = 0.f;
  if (c < OC) v = to_float(w[(i64)c * taps + tap]) * (scale ? scale[c] : 1.f);
  from_float(packed[index], v);
"""
_BIAS = r"""
  float v = 0.f;
  if (index < OC) v = (b ? to_float(b[index]) : 0.f) * (scale ? scale[index] : 1.f) + (shift ? shift[index] : 0.f);
  packed[index] = v;
"""
_FOLD = r"""
  const double s = (double)to_float(gamma[index]) / sqrt((double)to_float(var[index]) + (double)eps);
  scale[index] = (float)s;
  shift[index] = (float)((double)to_float(beta[index]) - (double)to_float(mean[index]) * s);
"""


def _kernel(
    r: Request, body: str, count: DimLike, params: list[tuple[str, str, Argument]]
) -> list[Kernel]:
    parameters = [*params, ("i64", "count", Int64(count))]
    text = "\n".join([
        prelude(r.dtype), f"#define PARAMETERS {declared(r, parameters)}", _ELEMENT.replace("BODY", body),
    ])  # fmt: skip
    return [
        Kernel(
            text,
            "pack",
            (D.ceildiv(count, _BLOCK), 1, 1),
            _BLOCK,
            tuple(v for _, _, v in parameters),
            pdl=r.arch >= 90,
        )
    ]


def _weights(offset: int = 0) -> list[tuple[str, str, Argument]]:
    return [
        ("const T*", "w", Pointer("w")),
        ("const float*", "scale", Pointer("scale")),
        ("T*", "packed", Pointer("packed", offset)),
    ]


def pack_gemm(r: Request) -> list[Kernel]:
    n, k = select.static(r, "N"), select.static(r, "K")
    pitch = weight_pitch(k, r.dtype.size)
    params = [
        *_weights(),
        ("const T*", "gamma", Pointer("gamma")),
        *select.int_params(r, ("trans", "n0", "K", "gamma_add")),
    ]
    params += [
        ("i64", "N", Int64(n)),
        ("i64", "ldw", Int64(r.ints["ldw"])),
        ("int", "pitch", Int32(pitch)),
        ("float", "alpha", Float32(float(r.floats.get("alpha", 1.0)))),
    ]
    return _kernel(r, _GEMM, n * pitch, params)


def fold_norm(r: Request) -> list[Kernel]:
    n, k = select.static(r, "N"), select.static(r, "K")
    params: list[tuple[str, str, Argument]] = [
        ("const T*", name, Pointer(name)) for name in ("w", "packed", "beta", "b")
    ]
    params += [("float*", name, Pointer(name)) for name in ("sums", "bias")]
    params += [
        *select.int_params(r, ("trans", "K")),
        ("i64", "ldw", Int64(r.ints["ldw"])),
        ("int", "pitch", Int32(weight_pitch(k, r.dtype.size))),
    ]
    params += [
        ("float", name, Float32(float(r.floats.get(name, 1.0)))) for name in ("alpha", "unscale")
    ]
    return _kernel(r, _FOLD_NORM, n, params)


def _pack_conv(r: Request, together: int = 1, offset: int = 0, *, transposed: bool) -> list[Kernel]:
    """together: groups whose channels one filter covers; offset: bytes before the packed filters."""
    oc, ic, kh, kw, g = (select.static(r, n) for n in ("OC", "IC", "KH", "KW", "G"))
    pitch = select.channels(r, together * ic // g)
    values = {
        "OCG": oc // g,
        "ICG": ic // g,
        "KH": kh,
        "KW": kw,
        "pitch": pitch,
        "transposed": int(transposed),
        "together": together,
    }
    return _kernel(
        r,
        _CONV,
        oc * kh * kw * pitch,
        _weights(offset) + [("int", n, Int32(v)) for n, v in values.items()],
    )


def pack_conv2d(r: Request) -> list[Kernel]:
    packed = _pack_conv(r, transposed=False)
    return (
        packed + _pack_conv(r, grouped.of(r).groups, grouped.filters(r), transposed=False)
        if grouped.widened(r)
        else packed
    )


def pack_deconv2d(r: Request) -> list[Kernel]:
    return _pack_conv(r, transposed=True)


def pack_conv2d_dw(r: Request) -> list[Kernel]:
    oc, taps = select.static(r, "OC"), select.static(r, "KH") * select.static(r, "KW")
    pitch = -(-oc // 8) * 8
    return _kernel(
        r,
        _DEPTHWISE,
        taps * pitch,
        _weights()
        + [("int", n, Int32(v)) for n, v in (("OC", oc), ("taps", taps), ("pitch", pitch))],
    )


def pack_bias(r: Request) -> list[Kernel]:
    oc = select.static(r, "OC")
    params: list[tuple[str, str, Argument]] = [
        ("const T*", "b", Pointer("b")),
        ("const float*", "scale", Pointer("scale")),
        ("const float*", "shift", Pointer("shift")),
    ]
    return _kernel(
        r,
        _BIAS,
        -(-oc // 32) * 32,
        [*params, ("float*", "packed", Pointer("packed")), ("int", "OC", Int32(oc))],
    )


def fold_bn(r: Request) -> list[Kernel]:
    params: list[tuple[str, str, Argument]] = [
        ("const T*", n, Pointer(n)) for n in ("gamma", "beta", "mean", "var")
    ]
    params += [("float*", n, Pointer(n)) for n in ("scale", "shift")]
    return _kernel(
        r, _FOLD, r.ints["C"], [*params, ("float", "eps", Float32(float(r.floats.get("eps", 0.0))))]
    )


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "pack_gemm": pack_gemm, "pack_conv2d": pack_conv2d, "pack_deconv2d": pack_deconv2d, "pack_conv2d_dw": pack_conv2d_dw, "pack_bias": pack_bias,
    "fold_bn": fold_bn, "fold_norm": fold_norm,
}  # fmt: skip
