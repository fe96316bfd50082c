"""Pooling and resizing of channels-last images."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir import dims as D

from .reduce import joined
from .shader import THREADS, Launch, Shader, parameters, static

_PITCHES = ("x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns")
#: Number, row, column and channel of a result.
_PLACE = """  let c = i % p.C; let pixel = i / p.C;
  let ow = pixel % p.OW; let oh = pixel / p.OW % p.OH; let n = pixel / (p.OW * p.OH);
  let image = n * p.x_ns + c; let to = n * p.y_ns + oh * p.y_rs + ow * p.y_cs + c;
"""


def pool2d(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    mode = static(p["mode"], "kind of pooling")
    shader.read("x")
    shader.write("y")
    names = (
        "C",
        "IH",
        "IW",
        "OH",
        "OW",
        "KH",
        "KW",
        "SH",
        "SW",
        "DH",
        "DW",
        "PT",
        "PL",
        "PB",
        "PR",
    )
    shader.sizes({k: p[k] for k in (*names, *_PITCHES)})
    shader.number("least", float("-inf"))
    largest = mode == 0
    taken = "v = keep_max(v, x);" if largest else "v = v + x;"
    # mode 2 counts what lies within the pads, which a window may run past
    counted = "h < p.IH + p.PB && w < p.IW + p.PR" if mode == 2 else "inside"
    body = f"""{_PLACE}  var v = {"p.least" if largest else "0.0"}; var count = 0.0;
  for (var a = 0; a < p.KH; a++) {{
    for (var b = 0; b < p.KW; b++) {{
      let h = oh * p.SH - p.PT + a * p.DH; let w = ow * p.SW - p.PL + b * p.DW;
      let inside = h >= 0 && h < p.IH && w >= 0 && w < p.IW;
      count = count + one({counted});
      if (inside) {{ let x = load_x(image + h * p.x_rs + w * p.x_cs); {taken} }}
    }}
  }}
  store_y(to, {"v" if largest else "v / count"});"""
    count = D.product([p[k] for k in ("N", "OH", "OW", "C")])
    return [shader.each(body, count)]


def global_pool(r: Request) -> list[Launch]:
    """A workgroup for each image and channel."""
    p, shader = parameters(r), Shader(r)
    mean = static(p["mode"], "kind of pooling") == 1
    shader.read("x")
    shader.write("y")
    shader.sizes({k: p[k] for k in ("C", "H", "W", "x_cs", "x_rs", "x_ns", "y_ns")})
    shader.number("least", float("-inf"))
    first, step = ("0.0", "{0} + {1}") if mean else ("p.least", "keep_max({0}, {1})")
    body = f"""  let c = group % p.C; let n = group / p.C;
  var v = {first};
  for (var k = thread; k < p.H * p.W; k += {THREADS}) {{
    let x = load_x(n * p.x_ns + k / p.W * p.x_rs + k % p.W * p.x_cs + c);
    v = {step.format("v", "x")};
  }}
  let all = all_of(thread, v);
  if (thread == 0) {{ store_y(n * p.y_ns + c, {"all / f32(p.H * p.W)" if mean else "all"}); }}"""
    before = joined("all_of", step)
    return [shader.launch(body, D.mul(p["N"], p["C"]), before=before)]


def resize2d(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    mode, coord, rounding = (static(p[k], k) for k in ("mode", "coord", "rounding"))
    shader.read("x")
    shader.write("y")
    shader.sizes({k: p[k] for k in ("C", "IH", "IW", "OH", "OW", *_PITCHES)})
    shader.number("scale_h", r.floats.get("scale_h", 0.0))
    shader.number("scale_w", r.floats.get("scale_w", 0.0))
    half = "(o + 0.5) / scale - 0.5"
    places = (
        half,
        "o / scale",
        "o * (f32(before - 1) / f32(max(after - 1, 1)))",
        f"select({half}, 0.0, after == 1)",
    )
    rounded = (
        "ceil(x - 0.5)", "floor(x)", "ceil(x)", "floor(x + 0.5)",
        "select(floor(x), ceil(x), scale < 1.0)",
    )  # fmt: skip
    if coord >= len(places) or rounding >= len(rounded):
        raise NoKernel("the WebGPU backend does not resize in this way")
    before = f"""fn scale_of(given: f32, before: i32, after: i32) -> f32 {{
  return select(given, f32(after) / f32(before), given == 0.0);
}}
fn place_of(at: i32, scale: f32, before: i32, after: i32) -> f32 {{
  let o = f32(at);
  return select({places[coord]}, o, before == after);
}}
fn nearest(x: f32, scale: f32, before: i32, after: i32) -> i32 {{
  return clamp(i32(select({rounded[rounding]}, x, before == after)), 0, before - 1);
}}
"""
    begin = """  let sh = scale_of(p.scale_h, p.IH, p.OH); let sw = scale_of(p.scale_w, p.IW, p.OW);
  let h = place_of(oh, sh, p.IH, p.OH); let w = place_of(ow, sw, p.IW, p.OW);
"""
    if mode == 0:
        end = """  let ih = nearest(h, sh, p.IH, p.OH); let iw = nearest(w, sw, p.IW, p.OW);
  store_y(to, load_x(image + ih * p.x_rs + iw * p.x_cs));"""
    else:
        end = """  let y = clamp(h, 0.0, f32(p.IH - 1)); let x = clamp(w, 0.0, f32(p.IW - 1));
  let top = i32(floor(y)); let left = i32(floor(x));
  let low = min(top + 1, p.IH - 1); let right = min(left + 1, p.IW - 1);
  let b = y - floor(y); let a = x - floor(x);
  let above = load_x(image + top * p.x_rs + left * p.x_cs) * (1.0 - a)
    + load_x(image + top * p.x_rs + right * p.x_cs) * a;
  let below = load_x(image + low * p.x_rs + left * p.x_cs) * (1.0 - a)
    + load_x(image + low * p.x_rs + right * p.x_cs) * a;
  store_y(to, above * (1.0 - b) + below * b);"""
    count = D.product([p[k] for k in ("N", "OH", "OW", "C")])
    return [shader.each(_PLACE + begin + end, count, before)]


FAMILIES = {"pool2d": pool2d, "global_pool": global_pool, "resize2d": resize2d}
