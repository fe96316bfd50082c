"""Convolutions of channels-last images: as implicit GEMM, depthwise and transposed."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from .epilogue import epilogue
from .gemm import tiled
from .shader import Launch, Shader, parameters

_SIZES = (
    "IH", "IW", "OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL",
    "x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns", "r_cs", "r_rs", "r_ns",
)  # fmt: skip

#: Where pixel number m of the result lies, and the result of its channel oc.
_PUT = """fn put_at(m: i32, oc: i32, sum: f32) {
  let ow = m % p.OW; let oh = m / p.OW % p.OH; let n = m / (p.OW * p.OH);
  let at = n * p.r_ns + oh * p.r_rs + ow * p.r_cs + oc;
  store_y(n * p.y_ns + oh * p.y_rs + ow * p.y_cs + oc, finish(sum, m, oc, at));
}
"""


def _begin(r: Request) -> tuple[Shader, dict[str, DimLike], str]:
    p, shader = parameters(r), Shader(r)
    if p.get("x_c", 0) not in (0, 1):
        raise NoKernel("the WebGPU convolution reads images whose channels lie side by side")
    shader.read("x")
    shader.read("w")
    shader.write("y")
    shader.sizes({k: p[k] for k in _SIZES})
    return shader, p, epilogue(shader, p, "at") + _PUT


def conv2d(r: Request) -> list[Launch]:
    """Rows are pixels of the result, terms are those of a window, [KH, KW, IC / G]; a batch is a
    group.
    """
    shader, p, before = _begin(r)
    groups = p["G"]
    depth, width = D.floordiv(p["IC"], groups), D.floordiv(p["OC"], groups)
    shader.sizes({"depth": depth})
    before += """struct Row { at: i32, h: i32, w: i32 }
struct Term { h: i32, w: i32, c: i32 }
fn row_of(g: i32, m: i32) -> Row {
  let n = m / (p.OW * p.OH);
  return Row(n * p.x_ns + g * p.depth, m / p.OW % p.OH * p.SH - p.PT, m % p.OW * p.SW - p.PL);
}
fn term_of(k: i32) -> Term {
  let tap = k / p.depth;
  return Term(tap / p.KW * p.DH, tap % p.KW * p.DW, k % p.depth);
}
fn left_of(row: Row, term: Term) -> f32 {
  let h = row.h + term.h; let w = row.w + term.w;
  if (h < 0 || h >= p.IH || w < 0 || w >= p.IW) { return 0.0; }
  return load_x(row.at + h * p.x_rs + w * p.x_cs + term.c);
}
fn right_of(g: i32, k: i32, n: i32) -> f32 {
  return load_w((g * p.terms + k) * p.columns + n);
}
fn put(g: i32, m: i32, n: i32, sum: f32) { put_at(m, g * p.columns + n, sum); }
"""
    pixels = D.product([p["N"], p["OH"], p["OW"]])
    return [tiled(shader, before, pixels, width, D.product([p["KH"], p["KW"], depth]), groups)]


def conv2d_dw(r: Request) -> list[Launch]:
    """A thread for each result; neighbours have neighbouring channels."""
    shader, p, before = _begin(r)
    shader.sizes({"OC": p["OC"]})
    body = """  let oc = i % p.OC; let m = i / p.OC;
  let left = m % p.OW * p.SW - p.PL; let top = m / p.OW % p.OH * p.SH - p.PT;
  let image = m / (p.OW * p.OH) * p.x_ns + oc;
  var sum = 0.0;
  for (var a = 0; a < p.KH; a++) {
    let h = top + a * p.DH;
    if (h < 0 || h >= p.IH) { continue; }
    for (var b = 0; b < p.KW; b++) {
      let w = left + b * p.DW;
      if (w < 0 || w >= p.IW) { continue; }
      sum = fma(load_x(image + h * p.x_rs + w * p.x_cs), load_w((a * p.KW + b) * p.OC + oc), sum);
    }
  }
  put_at(m, oc, sum);"""
    if p["G"] != p["OC"]:
        raise NoKernel("the WebGPU depthwise convolution has as many results as channels")
    return [shader.each(body, D.product([p[k] for k in ("N", "OH", "OW", "OC")]), before)]


def deconv2d(r: Request) -> list[Launch]:
    """A thread for each result looks for the pixels whose windows reach it."""
    shader, p, before = _begin(r)
    groups = p["G"]
    depth, width = D.floordiv(p["IC"], groups), D.floordiv(p["OC"], groups)
    shader.sizes({"OC": p["OC"], "depth": depth, "width": width})
    body = """  let oc = i % p.OC; let m = i / p.OC;
  let g = oc / p.width; let column = oc % p.width;
  let right = m % p.OW + p.PL; let low = m / p.OW % p.OH + p.PT;
  let image = m / (p.OW * p.OH) * p.x_ns + g * p.depth;
  var sum = 0.0;
  for (var a = 0; a < p.KH; a++) {
    let h = low - a * p.DH;
    if (h < 0 || h % p.SH != 0 || h / p.SH >= p.IH) { continue; }
    for (var b = 0; b < p.KW; b++) {
      let w = right - b * p.DW;
      if (w < 0 || w % p.SW != 0 || w / p.SW >= p.IW) { continue; }
      let x = image + h / p.SH * p.x_rs + w / p.SW * p.x_cs;
      let tap = (g * p.KH + a) * p.KW + b;
      for (var c = 0; c < p.depth; c++) {
        sum = fma(load_x(x + c), load_w((tap * p.depth + c) * p.width + column), sum);
      }
    }
  }
  put_at(m, oc, sum);"""
    return [shader.each(body, D.product([p[k] for k in ("N", "OH", "OW", "OC")]), before)]


FAMILIES = {"conv2d": conv2d, "conv2d_dw": conv2d_dw, "deconv2d": deconv2d}
