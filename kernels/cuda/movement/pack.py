"""Packing of constants, once per session: weights with k contiguous and padded to 8, f32 biases,
folded BatchNormalization and row norms.

Packed layouts: gemm [N_total, `families.weight_pitch`]; conv2d and deconv2d [OC, KH, KW,
round_up(IC / G, 8)] (`select.channels`), and behind a conv2d's those of `grouped`; conv2d_dw [KH *
KW, round_up(C, 8)].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

from ..common.launch import uses_pdl
from ..common.prelude import prelude
from ..common.templates import template
from ..conv import grouped
from ..gemm import select

_BLOCK = 256


def _kernel(r: Request, symbol: str, count: DimLike, args: Sequence[Argument]) -> list[Kernel]:
    """The kernel of pack.cuh with these arguments, followed by `count`."""
    source = prelude(r.dtype) + template("movement/pack")
    grid, last = (D.ceildiv(count, _BLOCK), 1, 1), Int64(count)
    return [Kernel(source, symbol, grid, _BLOCK, (*args, last), pdl=uses_pdl(r))]


def _pointers(*names: str) -> list[Argument]:
    return [Pointer(name) for name in names]


def _ints(r: Request, *names: str) -> list[Argument]:
    return [Int32(r.ints.get(name, 0)) for name in names]


def pack_gemm(r: Request) -> list[Kernel]:
    n, k = select.static(r, "N"), select.static(r, "K")
    pitch = weight_pitch(k, r.dtype.size)
    args = [*_pointers("w", "scale", "packed", "gamma"), *_ints(r, "trans", "n0", "K", "gamma_add")]
    args += [Int64(n), Int64(r.ints["ldw"]), Int32(pitch), Float32(r.floats.get("alpha", 1.0))]
    return _kernel(r, "pack_gemm", n * pitch, args)


def fold_norm(r: Request) -> list[Kernel]:
    n, k = select.static(r, "N"), select.static(r, "K")
    args = [*_pointers("w", "packed", "beta", "b", "sums", "bias"), *_ints(r, "trans", "K")]
    args += [Int64(r.ints["ldw"]), Int32(weight_pitch(k, r.dtype.size))]
    args += [Float32(r.floats.get(name, 1.0)) for name in ("alpha", "unscale")]
    return _kernel(r, "fold_norm", n, args)


def _pack_conv(r: Request, together: int = 1, offset: int = 0, *, transposed: bool) -> list[Kernel]:
    """together: groups of a block-diagonal filter; offset: bytes before the packed filters."""
    oc, ic, kh, kw, g = (select.static(r, n) for n in ("OC", "IC", "KH", "KW", "G"))
    pitch = select.channels(r, together * ic // g)
    args = [*_pointers("w", "scale"), Pointer("packed", offset)]
    args += map(Int32, (oc // g, ic // g, kh, kw, pitch, int(transposed), together))
    return _kernel(r, "pack_conv", oc * kh * kw * pitch, args)


def pack_conv2d(r: Request) -> list[Kernel]:
    packed = _pack_conv(r, transposed=False)
    if grouped.widened(r):
        merged = grouped.of(r).groups
        packed += _pack_conv(r, merged, grouped.filters(r), transposed=False)
    return packed


def pack_deconv2d(r: Request) -> list[Kernel]:
    return _pack_conv(r, transposed=True)


def pack_conv2d_dw(r: Request) -> list[Kernel]:
    oc, taps = select.static(r, "OC"), select.static(r, "KH") * select.static(r, "KW")
    pitch = -(-oc // 8) * 8
    args = [*_pointers("w", "scale", "packed"), Int32(oc), Int32(taps), Int32(pitch)]
    return _kernel(r, "pack_depthwise", taps * pitch, args)


def pack_bias(r: Request) -> list[Kernel]:
    oc = select.static(r, "OC")
    args = [*_pointers("b", "scale", "shift", "packed"), Int32(oc)]
    return _kernel(r, "pack_bias", -(-oc // 32) * 32, args)


def fold_bn(r: Request) -> list[Kernel]:
    args = _pointers("gamma", "beta", "mean", "var", "scale", "shift")
    return _kernel(r, "fold_bn", r.ints["C"], [*args, Float32(r.floats.get("eps", 0.0))])


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "pack_gemm": pack_gemm,
    "pack_conv2d": pack_conv2d,
    "pack_deconv2d": pack_deconv2d,
    "pack_conv2d_dw": pack_conv2d_dw,
    "pack_bias": pack_bias,
    "fold_bn": fold_bn,
    "fold_norm": fold_norm,
}
