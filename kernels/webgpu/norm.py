"""Norms of rows and of groups of channels, and softmax: a workgroup for each row."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from .movement import row_function
from .programs import activation
from .reduce import alone, joined
from .shader import THREADS, Launch, Shader, parameters, static

_SUMS = joined("sum_of", "{0} + {1}")


def _rows(
    shader: Shader, p: dict[str, DimLike], value: str, before: str, count: DimLike, begin: str = ""
) -> Launch:
    """Rows of a norm, whose element j before it is `value`; written to y and, if it is there, to
    skip.
    """
    rms = static(p["rms"], "kind of norm")
    shader.write("y")
    lines = ["  let at = group * p.N + j;", f"    let s = {value};"]
    if shader.has("skip"):
        shader.write("skip")
        lines.append("    store_skip(at, s);")
    scaled = "(s - mean) * factor"
    if shader.has("gamma"):
        shader.read("gamma")
        added = " + 1.0" if static(p["gamma_add"], "gamma") else ""
        scaled += f" * (load_gamma(j){added})"
    if shader.has("beta") and not rms:
        shader.read("beta")
        scaled += " + load_beta(j)"
    lines.append(f"    store_y(at, {scaled});")
    shader.sizes({"N": p["N"]})
    shader.number("eps", shader.request.floats.get("eps", 0.0))
    stored = "\n  ".join(lines)
    loop = f"for (var j = thread; j < p.N; j += {THREADS})"
    mean = "0.0" if rms else "sum_of(thread, total) / f32(p.N)"
    body = f"""{begin}  var total = 0.0;
  {loop} {{ total = total + {value}; }}
  let mean = {mean};
  var squares = 0.0;
  {loop} {{ let s = {value} - mean; squares = fma(s, s, squares); }}
  let factor = 1.0 / sqrt(sum_of(thread, squares) / f32(p.N) + p.eps);
  {loop} {{
  {stored}
  }}"""
    return shader.launch(body, count, before=_SUMS + before)


def layernorm(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    shader.read("x")
    value = "load_x(group * p.N + j)"
    for name, at in (("res", "group * p.N + j"), ("xbias", "j")):
        if shader.has(name):
            shader.read(name)
            value += f" + load_{name}({at})"
    return [_rows(shader, p, f"({value})", "", p["rows"])]


def layernorm_sum(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    terms: list[str] = []
    rows: list[str] = []
    functions: list[str] = []
    shader.sizes({"inner": p["inner"]})
    for k in range(4):
        name, index = f"x{k}", f"i{k}"
        if not shader.has(name):
            continue
        shader.read(name)
        shader.sizes({f"{name}_{s}": p[f"{name}_{s}"] for s in ("o", "i", "lo", "hi")})
        place = f"outer * p.{name}_o + (s - p.{name}_lo) * p.{name}_i"
        seen = f"s >= p.{name}_lo && s < p.{name}_hi"
        if shader.has(index):
            dtype = DType(static(p[f"{index}_dtype"], "type of indices"))
            shader.read(index, dtype)
            shader.sizes({f"{name}_n": p[f"{name}_n"], f"{name}_ld": p[f"{name}_ld"]})
            functions.append(row_function(dtype, index).replace("row_of", f"row_of_{k}"))
            rows.append(
                f"  var r{k} = 0;\n  if ({seen}) {{ r{k} = row_of_{k}({place}, p.{name}_n); }}\n"
                f"  if (r{k} < 0) {{ fault(); r{k} = 0; }}\n  let a{k} = r{k} * p.{name}_ld;\n"
            )
        else:
            rows.append(f"  let a{k} = select(0, {place}, {seen});\n")
        rows.append(f"  let seen{k} = {seen};\n")
        functions.append(
            f"fn term_{k}(at: i32, seen: bool) -> f32 {{\n"
            f"  if (seen) {{ return load_{name}(at); }}\n  return 0.0;\n}}\n"
        )
        terms.append(f"term_{k}(a{k} + j, seen{k})")
    if any(shader.has(f"i{k}") for k in range(4)):
        shader.fault()
    begin = "  let outer = group / p.inner; let s = group % p.inner;\n" + "".join(rows)
    count = D.mul(p["outer"], p["inner"])
    return [_rows(shader, p, f"({' + '.join(terms)})", "".join(functions), count, begin)]


def softmax(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    shader.read("x")
    shader.write("y")
    shader.sizes({"n": p["n"], "inner": p["inner"]})
    shader.number("least", float("-inf"))
    end = (
        "x - largest - log(total)"
        if static(p["log"], "kind of softmax")
        else "exp(x - largest) / total"
    )
    rows = D.mul(p["outer"], p["inner"])
    if alone(p["n"], p["inner"]):
        body = f"""  let base = i / p.inner * p.n * p.inner + i % p.inner;
  var largest = p.least;
  for (var k = 0; k < p.n; k++) {{ largest = keep_max(largest, load_x(base + k * p.inner)); }}
  var total = 0.0;
  for (var k = 0; k < p.n; k++) {{ total = total + exp(load_x(base + k * p.inner) - largest); }}
  for (var k = 0; k < p.n; k++) {{
    let at = base + k * p.inner; let x = load_x(at); store_y(at, {end});
  }}"""
        return [shader.each(body, rows)]
    loop = f"for (var k = thread; k < p.n; k += {THREADS})"
    body = f"""  let base = group / p.inner * p.n * p.inner + group % p.inner;
  var most = p.least;
  {loop} {{ most = keep_max(most, load_x(base + k * p.inner)); }}
  let largest = largest_of(thread, most);
  var part = 0.0;
  {loop} {{ part = part + exp(load_x(base + k * p.inner) - largest); }}
  let total = sum_of(thread, part);
  {loop} {{ let x = load_x(base + k * p.inner); store_y(base + k * p.inner, {end}); }}"""
    before = _SUMS + joined("largest_of", "keep_max({0}, {1})")
    return [shader.launch(body, rows, before=before)]


def _groups(r: Request, last: bool) -> list[Launch]:
    """A workgroup for each image and group of channels."""
    p, shader = parameters(r), Shader(r)
    images, pixels = (p["N"], D.mul(p["H"], p["W"])) if last else (p["B"], p["inner"])
    shader.read("x")
    shader.write("y")
    shader.sizes({"C": p["C"], "G": p["G"], "each": D.floordiv(p["C"], p["G"]), "pixels": pixels})
    if last:
        names = ("W", "x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns")
        shader.sizes({k: p[k] for k in names})
        at = "n * p.{0}_ns + q / p.W * p.{0}_rs + q % p.W * p.{0}_cs + c"
        find = "let c = g * p.each + k % p.each; let q = k / p.each;"
    else:
        at = "(n * p.C + c) * p.pixels + q"
        find = "let c = g * p.each + k / p.pixels; let q = k % p.pixels;"
    shader.number("eps", r.floats.get("eps", 0.0))
    scaled = "(x - mean) * factor"
    for name, text in (("gamma", " * load_gamma(c)"), ("beta", " + load_beta(c)")):
        if shader.has(name):
            shader.read(name)
            scaled += text
    act = activation(shader)
    loop = f"for (var k = thread; k < p.each * p.pixels; k += {THREADS})"
    load = f"{find} let x = load_x({at.format('x')});"
    body = f"""  let g = group % p.G; let n = group / p.G;
  let count = f32(p.each * p.pixels);
  var total = 0.0;
  {loop} {{ {load} total = total + x; }}
  let mean = sum_of(thread, total) / count;
  var squares = 0.0;
  {loop} {{ {load} squares = fma(x - mean, x - mean, squares); }}
  let factor = 1.0 / sqrt(sum_of(thread, squares) / count + p.eps);
  {loop} {{ {load} store_y({at.format("y")}, activate({scaled})); }}"""
    groups = D.mul(images, p["G"])
    return [shader.launch(body, groups, before=act + _SUMS)]


def groupnorm(r: Request) -> list[Launch]:
    return _groups(r, last=False)


def groupnorm_nhwc(r: Request) -> list[Launch]:
    return _groups(r, last=True)


FAMILIES = {
    "layernorm": layernorm, "layernorm_sum": layernorm_sum, "softmax": softmax,
    "groupnorm": groupnorm, "groupnorm_nhwc": groupnorm_nhwc,
}  # fmt: skip
