"""What follows a GEMM: bias, residual, and activation or program."""

from __future__ import annotations

from tracea_onnx.compiler.lower.epilogue_kinds import CHANNEL, FULL, ROW
from tracea_onnx.ir.dims import DimLike

from .programs import activation, program
from .shader import Shader, static


def activated(shader: Shader, at: str) -> tuple[str, list[str]]:
    """WGSL text of `activate`, and lines that apply it to `v` and add the residual before or behind
    it. at: the place in the residual.
    """
    mode = static(shader.request.ints.get("res_mode", 0), "residual") if shader.has("res") else 0
    lines = []
    if mode:
        shader.read("res")
        lines.append(f"  let residual = load_res({at});")
    if mode == 1:
        lines.append("  v = v + residual;")
    lines.append("  v = activate(v);")
    if mode == 2:
        lines.append("  v = v + residual;")
    return activation(shader), lines


def epilogue(shader: Shader, sizes: dict[str, DimLike], full: str) -> str:
    """WGSL text of `finish(sum, row, column, at)`; `at` is the place in the residual. full: the
    place in operand {0} of a program that is as large as the result.
    """
    r = shader.request
    lines: list[str] = []
    if shader.has("bias"):
        shader.read("bias")
        lines.append("  v = v + load_bias(column);")
    if r.program is not None:
        values = ["v"]
        for k in range(int(r.program["n_in"]) - 1):
            name, kind = f"o{k}", static(sizes[f"o{k}_kind"], "kind of operand")
            shader.read(name)
            if kind == FULL and "{0}" in full:
                shader.size(f"{name}_ld", sizes[f"{name}_ld"])
            place = {FULL: full.format(name), CHANNEL: "column", ROW: "row"}.get(kind, "0")
            values.append(f"load_{name}({place})")
        text = program(shader, r.program)
        lines.append(f"  v = compute({', '.join(values)});")
    else:
        text, after = activated(shader, "at")
        lines += after
    body = "\n".join(lines)
    return (
        f"{text}fn finish(sum: f32, row: i32, column: i32, at: i32) -> f32 {{\n"
        f"  var v = sum;\n{body}\n  return v;\n}}\n"
    )
