"""Weights as kernels read them, and batch normalisation folded into them; once per session.

A matrix [K, N] lies row by row. Filters of a group are such a matrix, of windows [KH, KW, IC / G]
by OC / G columns; depthwise ones lie [KH, KW, OC].
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D

from .shader import Launch, Shader, parameters


def pack_gemm(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    shader.read("w")
    value = "p.alpha * load_w(select(k * p.ldw + n, n * p.ldw + k, p.transposed != 0))"
    for name, at in (("scale", "n"), ("gamma", "k")):
        if shader.has(name):
            shader.read(name)
            added = " + f32(p.gamma_add)" if name == "gamma" else ""
            value += f" * (load_{name}({at}){added})"
    shader.write("packed")
    shader.sizes({k: p[k] for k in ("N", "ldw", "n0", "N_total", "gamma_add")})
    shader.size("transposed", p["trans"])
    shader.number("alpha", r.floats.get("alpha", 0.0))
    body = f"""  let n = i % p.N; let k = i / p.N;
  store_packed(k * p.N_total + p.n0 + n, {value});"""
    return [shader.each(body, D.mul(p["K"], p["N"]))]


def _filters(r: Request, place: str, transposed: bool = False) -> list[Launch]:
    """w: [OC, IC / G, KH * KW], or of a transposed convolution [G, IC / G, OC / G, KH * KW]."""
    p, shader = parameters(r), Shader(r)
    groups, channels = p.get("G", 1), p.get("IC", 1)
    shader.read("w")
    value = "load_w(i)"
    if shader.has("scale"):
        shader.read("scale")
        value += " * load_scale(g * p.columns + oc)"
    shader.write("packed")
    taps, depth = D.mul(p["KH"], p["KW"]), D.floordiv(channels, groups)
    columns = D.floordiv(p["OC"], groups)
    shader.sizes({"taps": taps, "depth": depth, "columns": columns, "OC": p["OC"]})
    order = (
        "let oc = i / p.taps % p.columns; let ic = i / (p.taps * p.columns) % p.depth; "
        if transposed
        else "let ic = i / p.taps % p.depth; let oc = i / (p.taps * p.depth) % p.columns; "
    )
    body = f"""  let tap = i % p.taps; {order}let g = i / (p.taps * p.depth * p.columns);
  store_packed({place}, {value});"""
    return [shader.each(body, D.product([taps, depth, p["OC"]]))]


def pack_conv2d(r: Request) -> list[Launch]:
    return _filters(r, "((g * p.taps + tap) * p.depth + ic) * p.columns + oc")


def pack_conv2d_dw(r: Request) -> list[Launch]:
    return _filters(r, "tap * p.OC + oc")


def pack_deconv2d(r: Request) -> list[Launch]:
    return _filters(r, "((g * p.taps + tap) * p.depth + ic) * p.columns + oc", transposed=True)


def pack_bias(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    value = "0.0"
    for name, text in (
        ("b", "load_b(i)"),
        ("scale", "{} * load_scale(i)"),
        ("shift", "{} + load_shift(i)"),
    ):
        if shader.has(name):
            shader.read(name)
            value = text.format(value)
    shader.write("packed")
    return [shader.each(f"  store_packed(i, {value});", p["OC"])]


def fold_bn(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    for name in ("gamma", "beta", "mean", "var"):
        shader.read(name)
    shader.write("scale")
    shader.write("shift")
    shader.number("eps", r.floats.get("eps", 0.0))
    body = """  let scaled = load_gamma(i) / sqrt(load_var(i) + p.eps);
  store_scale(i, scaled);
  store_shift(i, load_beta(i) - load_mean(i) * scaled);"""
    return [shader.each(body, p["C"])]


FAMILIES = {
    "pack_gemm": pack_gemm, "pack_conv2d": pack_conv2d, "pack_conv2d_dw": pack_conv2d_dw,
    "pack_deconv2d": pack_deconv2d, "pack_bias": pack_bias, "fold_bn": fold_bn,
}  # fmt: skip
