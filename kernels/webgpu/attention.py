"""Attention with online softmax: a workgroup has a tile of rows of one head, and goes over the keys
in tiles.
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType

from .shader import SHARED, THREADS, Launch, Shader, parameters, static

_STRIDES = tuple(f"{o}_{a}" for o in "qkvy" for a in "bsh")
#: Rows and keys of a tile, the largest first.
_TILES = ((16, 16), (8, 16), (8, 8), (4, 8), (4, 4), (2, 4), (1, 4))


def attention(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    width, result = (static(p[k], "size of heads") for k in ("D", "DV"))
    for name in ("lens", "sink"):
        if shader.has(name):
            raise NoKernel(f"the WebGPU attention takes no {name}")
    if p["window"] != 0 or p["smooth"] != 0:
        raise NoKernel("the WebGPU attention sees all keys, or those that came before")
    words = SHARED // 4
    fit = [
        t for t in _TILES if t[0] * width + t[1] * max(width, result) + t[0] * (t[1] + 3) <= words
    ]
    if not fit:
        raise NoKernel(f"heads of {width} and {result} elements are too large for WebGPU's memory")
    rows, keys = fit[0]
    for name in "qkv":
        shader.read(name)
    shader.write("y")
    shader.sizes({k: p[k] for k in ("H", "S", "T", *_STRIDES)})
    shader.sizes({"shared_by": D.floordiv(p["H"], p["KVH"]), "tiles": D.ceildiv(p["S"], rows)})
    for name, value in (
        ("scale", r.floats.get("scale", 0.0)), ("softcap", r.floats.get("softcap", 0.0)),
        ("fill", r.floats.get("fill", 0.0)), ("least", float("-inf")), ("nan", float("nan")),
    ):  # fmt: skip
        shader.number(name, value)
    kind, causal = static(p["mask_kind"], "kind of mask"), static(p["causal"], "causality")
    steps = []
    if r.floats.get("softcap", 0.0):
        steps.append("s = p.softcap * tanh_(s / p.softcap);")
    if kind:
        shader.read("mask", DType.F32 if kind == 1 else DType.BOOL)
        shader.sizes({k: p[k] for k in ("m_b", "m_h", "m_q", "m_k")})
        at = "load_mask(b * p.m_b + h * p.m_h + row * p.m_q + key * p.m_k)"
        steps.append(
            f"s = s + {at};"
            if kind == 1
            else f"if ({at} {'==' if kind == 2 else '!='} 0u) {{ s = p.fill; }}"
        )
    if causal:
        shader.size("past", p["past"])
        steps.append("if (key > row + p.past) { s = p.least; }")
    clears = static(p["nan_to_zero"], "masked rows")
    finished = "acc{0} / total[a]"
    if clears:
        finished = (
            f"select({finished}, 0.0, total[a] == 0.0{' || is_nan(total[a])' * (clears == 1)})"
        )
    else:
        finished = f"select({finished}, p.nan, total[a] == 0.0)"
    held = -(-rows * result // THREADS)
    sums = "".join(f"  var acc{j} = 0.0;\n" for j in range(held))
    adds = "".join(
        f"    {{ let e = thread + {j * THREADS}; if (e < {rows * result}) {{ "
        f"let a = e / {result}; let c = e % {result}; "
        f"acc{j} = acc{j} * shrink[a]; for (var t = 0; t < {keys}; t++) {{ "
        f"acc{j} = fma(scores[a * {keys} + t], side[t * {result} + c], acc{j}); }} }} }}\n"
        for j in range(held)
    )
    puts = "".join(
        f"  {{ let e = thread + {j * THREADS}; let a = e / {result}; "
        f"if (e < {rows * result} && s0 + a < p.S) {{ "
        f"store_y(b * p.y_b + (s0 + a) * p.y_s + h * p.y_h + e % {result}, {finished.format(j)}); "
        "} }\n"
        for j in range(held)
    )
    masked = "\n        ".join(steps)

    def load(name: str, size: int) -> str:
        return (
            f"    for (var e = thread; e < {keys * size}; e += {THREADS}) {{ "
            f"let key = t0 + e / {size}; side[e] = 0.0; if (key < p.T) {{ "
            f"side[e] = load_{name}(b * p.{name}_b + key * p.{name}_s + kh * p.{name}_h + "
            f"e % {size}); }} }}\n"
        )

    before = f"""var<workgroup> query: array<f32, {rows * width}>;
var<workgroup> side: array<f32, {keys * max(width, result)}>;
var<workgroup> scores: array<f32, {rows * keys}>;
var<workgroup> most: array<f32, {rows}>;
var<workgroup> total: array<f32, {rows}>;
var<workgroup> shrink: array<f32, {rows}>;
fn is_least(v: f32) -> bool {{ return bitcast<u32>(v) == 0xff800000u; }}
"""
    body = f"""  let tile = group % p.tiles; let h = group / p.tiles % p.H;
  let b = group / (p.tiles * p.H);
  let s0 = tile * {rows}; let kh = h / p.shared_by;
  for (var e = thread; e < {rows * width}; e += {THREADS}) {{
    let row = s0 + e / {width}; query[e] = 0.0;
    if (row < p.S) {{
      query[e] = p.scale * load_q(b * p.q_b + row * p.q_s + h * p.q_h + e % {width});
    }}
  }}
  if (thread < {rows}) {{ most[thread] = p.least; total[thread] = 0.0; }}
{sums}  for (var t0 = 0; t0 < p.T; t0 += {keys}) {{
{load("k", width)}    workgroupBarrier();
    for (var e = thread; e < {rows * keys}; e += {THREADS}) {{
      let row = s0 + e / {keys}; let key = t0 + e % {keys};
      var s = 0.0;
      for (var d = 0; d < {width}; d++) {{
        s = fma(query[e / {keys} * {width} + d], side[e % {keys} * {width} + d], s);
      }}
      if (key >= p.T || row >= p.S) {{ s = p.least; }} else {{
        {masked}
      }}
      scores[e] = s;
    }}
    workgroupBarrier();
{load("v", result)}    if (thread < {rows}) {{
      var largest = most[thread];
      for (var t = 0; t < {keys}; t++) {{
        largest = keep_max(largest, scores[thread * {keys} + t]);
      }}
      let base = select(largest, 0.0, is_least(largest));
      let shrunk = exp(most[thread] - base);
      var sum = total[thread] * shrunk;
      for (var t = 0; t < {keys}; t++) {{
        let weight = exp(scores[thread * {keys} + t] - base);
        scores[thread * {keys} + t] = weight;
        sum = sum + weight;
      }}
      most[thread] = largest; total[thread] = sum; shrink[thread] = shrunk;
    }}
    workgroupBarrier();
{adds}    workgroupBarrier();
  }}
{puts}"""
    groups = D.product([p["B"], p["H"], D.ceildiv(p["S"], rows)])
    return [shader.launch(body, groups, before=before)]


FAMILIES = {"attention": attention}
