"""Reductions: a thread for each result, or a workgroup whose threads join their parts as a tree."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from .shader import THREADS, Launch, Shader, parameters, static


def joined(name: str, step: str, threads: int = THREADS) -> str:
    """WGSL text of `name(thread, v)`: what the threads' v make together, by step of {0} and {1}.
    All threads call it, in any order of calls.
    """
    return f"""var<workgroup> of_{name}: array<f32, {threads}>;
fn {name}(thread: i32, v: f32) -> f32 {{
  of_{name}[thread] = v;
  workgroupBarrier();
  for (var half = {threads // 2}; half > 0; half = half / 2) {{
    if (thread < half) {{
      of_{name}[thread] = {step.format(f"of_{name}[thread]", f"of_{name}[thread + half]")};
    }}
    workgroupBarrier();
  }}
  let all = of_{name}[0];
  workgroupBarrier();
  return all;
}}
"""


#: Most elements that a thread goes over by itself where they lie side by side.
_FEW = 32


def alone(n: DimLike, inner: DimLike) -> bool:
    """Whether a thread has a row of n elements, `inner` apart: neighbours read neighbours then."""
    return inner != 1 or (isinstance(n, int) and n <= _FEW)


_SUM, _LARGEST, _LEAST, _PRODUCT = (
    ("0.0", "{0} + {1}"), ("-p.infinite", "keep_max({0}, {1})"),
    ("p.infinite", "keep_min({0}, {1})"), ("1.0", "{0} * {1}"),
)  # fmt: skip
#: By kind: first value and step, what is taken of an element, and of the whole.
_KINDS = (
    (_SUM, "x", "v"), (_SUM, "x", "v / f32(p.n)"), (_LARGEST, "x", "v"), (_LEAST, "x", "v"),
    (_PRODUCT, "x", "v"), (_SUM, "abs(x)", "v"), (_SUM, "x * x", "sqrt(v)"), (_SUM, "x * x", "v"),
    (_SUM, "x", "log(v)"),
)  # fmt: skip


def reduce(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    kind, dtype = static(p["kind"], "kind of reduction"), static(p["dtype"], "element type")
    if dtype != DType.F32 or kind >= len(_KINDS):
        raise NoKernel(
            f"the WebGPU backend has no reduction of kind {kind} and type {DType(dtype).name}"
        )
    (first, step), term, end = _KINDS[kind]
    shader.read("x")
    shader.write("y")
    shader.sizes({"n": p["n"], "inner": p["inner"]})
    shader.number("infinite", float("inf"))
    rows = D.mul(p["outer"], p["inner"])
    if alone(p["n"], p["inner"]):
        body = f"""  let base = i / p.inner * p.n * p.inner + i % p.inner;
  var v = {first};
  for (var k = 0; k < p.n; k++) {{
    let x = load_x(base + k * p.inner);
    v = {step.format("v", term)};
  }}
  store_y(i, {end});"""
        return [shader.each(body, rows)]
    body = f"""  let base = group / p.inner * p.n * p.inner + group % p.inner;
  var part = {first};
  for (var k = thread; k < p.n; k += {THREADS}) {{
    let x = load_x(base + k * p.inner);
    part = {step.format("part", term)};
  }}
  let v = all_of(thread, part);
  if (thread == 0) {{ store_y(group, {end}); }}"""
    before = joined("all_of", step)
    return [shader.launch(body, rows, before=before)]


FAMILIES = {"reduce": reduce}
