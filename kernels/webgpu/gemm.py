"""GEMM: tiles in workgroup memory, a block of results in each thread's registers.

The same loop computes GEMMs and convolutions (`conv.py`): these differ in how a row, a
term and a column are found (`row_of`, `term_of`, `left_of`, `right_of`), and in where results go
(`put`).
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from .epilogue import activated, epilogue
from .shader import THREADS, Launch, Shader, parameters

#: Threads along each side of a tile, and terms of a step.
_SIDE, _STEP = 16, 16


def tiled(
    shader: Shader, before: str, rows: DimLike, columns: DimLike, terms: DimLike, batch: DimLike
) -> Launch:
    """A GEMM of `batch` matrices of rows by terms and terms by columns. before: WGSL with

    struct Row, fn row_of(b: i32, m: i32) -> Row; struct Term, fn term_of(k: i32) -> Term;
    fn left_of(row: Row, term: Term) -> f32; fn right_of(b: i32, k: i32, n: i32) -> f32;
    fn put(b: i32, m: i32, n: i32, sum: f32)
    """
    # a result of few rows or columns has tiles of 16 along that side
    tm = 1 if isinstance(rows, int) and rows <= _SIDE else 4
    tn = 1 if isinstance(columns, int) and columns <= _SIDE else 4
    bm, bn = tm * _SIDE, tn * _SIDE
    down, across = D.ceildiv(rows, bm), D.ceildiv(columns, bn)
    shader.sizes(
        {
            "rows": rows,
            "columns": columns,
            "terms": terms,
            "down": down,
            "across": across,
            "each": tm,
            "each_puts": _SIDE * bn,
        }
    )
    sums = "".join(f"  var s{a}{b} = 0.0;\n" for a in range(tm) for b in range(tn))
    own_rows = "".join(
        f"  let row{j} = row_of(b, min(m0 + {j * THREADS // _STEP} + thread / {_STEP}, "
        "p.rows - 1));\n"
        for j in range(bm * _STEP // THREADS)
    )
    loads = "".join(
        f"    left[k * {bm + 1} + {j * THREADS // _STEP} + thread / {_STEP}] = "
        f"select(0.0, left_of(row{j}, term), inside);\n"
        for j in range(bm * _STEP // THREADS)
    )
    loads_b = "".join(
        f"    {{ let at = thread + {j * THREADS}; let n = at % {bn}; let kb = at / {bn}; "
        f"right[at] = 0.0; if (k0 + kb < p.terms && n0 + n < p.columns) "
        f"{{ right[at] = right_of(b, k0 + kb, n0 + n); }} }}\n"
        for j in range(bn * _STEP // THREADS)
    )
    reads = "".join(
        f"      let a{a} = left[j * {bm + 1} + ty + {a * _SIDE}];\n" for a in range(tm)
    ) + "".join(f"      let b{b} = right[j * {bn} + tx + {b * _SIDE}];\n" for b in range(tn))
    products = "".join(
        f"      s{a}{b} = fma(a{a}, b{b}, s{a}{b});\n" for a in range(tm) for b in range(tn)
    )
    # A row of results of each thread at a time goes through memory: what `put` does is in the text
    # once, and neighbouring threads put neighbouring columns.
    chosen = "".join(
        f"    right[ty * {bn} + tx + {b * _SIDE}] = {_picked([f's{a}{b}' for a in range(tm)])};\n"
        for b in range(tn)
    )
    body = f"""  let b = group / (p.down * p.across); let tile = group % (p.down * p.across);
  let m0 = tile / p.across * {bm}; let n0 = tile % p.across * {bn};
  let tx = thread % {_SIDE}; let ty = thread / {_SIDE}; let k = thread % {_STEP};
{own_rows}{sums}  for (var k0 = 0; k0 < p.terms; k0 += {_STEP}) {{
    let inside = k0 + k < p.terms;
    let term = term_of(min(k0 + k, p.terms - 1));
{loads}{loads_b}    workgroupBarrier();
    for (var j = 0; j < {_STEP}; j++) {{
{reads}{products}    }}
    workgroupBarrier();
  }}
  for (var a = 0; a < p.each; a++) {{
{chosen}    workgroupBarrier();
    for (var at = thread; at < p.each_puts; at += {THREADS}) {{
      let m = m0 + a * {_SIDE} + at / {bn}; let n = n0 + at % {bn};
      if (m < p.rows && n < p.columns) {{ put(b, m, n, right[at]); }}
    }}
    workgroupBarrier();
  }}"""
    memory = (
        f"var<workgroup> left: array<f32, {_STEP * (bm + 1)}>;\n"
        f"var<workgroup> right: array<f32, {_STEP * bn}>;\n"
    )
    groups = D.product([batch, down, across])
    return shader.launch(body, groups, before=memory + before)


def _picked(values: list[str]) -> str:
    """The one of number `a`."""
    text = values[0]
    for k, value in enumerate(values[1:], 1):
        text = f"select({text}, {value}, a == {k})"
    return text


def gemm(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    shader.read("x")
    shader.read("w")
    shader.write("y")
    shader.sizes({k: p[k] for k in ("ldx", "ldr", "ldy")})
    finish = epilogue(shader, p, "row * p.{0}_ld + column")
    before = f"""{finish}struct Row {{ at: i32 }}
struct Term {{ k: i32 }}
fn row_of(b: i32, m: i32) -> Row {{ return Row(m * p.ldx); }}
fn term_of(k: i32) -> Term {{ return Term(k); }}
fn left_of(row: Row, term: Term) -> f32 {{ return load_x(row.at + term.k); }}
fn right_of(b: i32, k: i32, n: i32) -> f32 {{ return load_w(k * p.columns + n); }}
fn put(b: i32, m: i32, n: i32, sum: f32) {{
  store_y(m * p.ldy + n, finish(sum, m, n, m * p.ldr + n));
}}
"""
    return [tiled(shader, before, p["M"], p["N"], p["K"], 1)]


def matmul(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    shader.read("a")
    shader.read("b")
    shader.write("y")
    names = ("B1", "a_0", "a_1", "a_m", "a_k", "b_0", "b_1", "b_k", "b_n", "y_0", "y_1", "ldy")
    shader.sizes({k: p[k] for k in names})
    shader.number("alpha", r.floats.get("alpha", 0.0))
    lines = ["  var v = p.alpha * sum;"]
    if shader.has("bias"):
        shader.read("bias")
        lines.append("  v = v + load_bias(n);")
    if shader.has("res"):
        own = any(p[k] != 0 for k in ("r_0", "r_1", "ldr"))
        pitches = ("r_0", "r_1", "ldr") if own else ("y_0", "y_1", "ldy")
        shader.sizes({f"res_{j}": p[k] for j, k in enumerate(pitches)})
    act, after = activated(shader, "b0 * p.res_0 + b1 * p.res_1 + m * p.res_2 + n")
    steps = "\n".join((*lines, *after))
    before = f"""{act}struct Row {{ at: i32 }}
struct Term {{ at: i32 }}
fn row_of(b: i32, m: i32) -> Row {{
  return Row(b / p.B1 * p.a_0 + b % p.B1 * p.a_1 + m * p.a_m);
}}
fn term_of(k: i32) -> Term {{ return Term(k * p.a_k); }}
fn left_of(row: Row, term: Term) -> f32 {{ return load_a(row.at + term.at); }}
fn right_of(b: i32, k: i32, n: i32) -> f32 {{
  return load_b(b / p.B1 * p.b_0 + b % p.B1 * p.b_1 + k * p.b_k + n * p.b_n);
}}
fn put(b: i32, m: i32, n: i32, sum: f32) {{
  let b0 = b / p.B1; let b1 = b % p.B1;
{steps}
  store_y(b0 * p.y_0 + b1 * p.y_1 + m * p.ldy + n, v);
}}
"""
    batch = D.mul(p["B0"], p["B1"])
    return [tiled(shader, before, p["M"], p["N"], p["K"], batch)]


FAMILIES = {"gemm": gemm, "matmul": matmul}
