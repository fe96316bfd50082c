"""Norms folded into the GEMMs around them (`folded_norm.cuh`): what family `gemm_norm` adds to the
kernels of `gemm`.
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Argument, Float32, Pointer, Request
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import PANEL

from . import templates
from .launch import reader


def normed(r: Request) -> bool:
    """Whether rows of x or of the residual are normalised."""
    return "x_stats" in r.operands or "r_stats" in r.operands


def measured(r: Request) -> bool:
    """Whether statistics of the result's rows are stored."""
    return "y_stats" in r.operands


def parameters(r: Request) -> list[tuple[str, str, Argument]]:
    """Members of `struct Epilogue`, which are kernel parameters."""
    fields: list[tuple[str, str, Argument]] = []
    if "x_stats" in r.operands:
        fields += [
            ("const float2*", "x_stats", Pointer("x_stats")),
            ("float", "x_eps", _float(r, "x_eps")),
            ("float", "unscale", _float(r, "unscale")),
        ]
        fields.append(("const float*", "x_sums", Pointer("x_sums")))
    if "r_stats" in r.operands:
        fields += [
            ("const float2*", "r_stats", Pointer("r_stats")),
            ("float", "r_eps", _float(r, "r_eps")),
        ]
        fields += [
            ("const float*", name, Pointer(name))
            for name in ("r_gamma", "r_beta")
            if name in r.operands
        ]
    if measured(r):
        fields.append(("float2*", "y_stats", Pointer("y_stats")))
    return fields


def columns(r: Request, width: int) -> list[tuple[str, str]]:
    """(name, statement that reads it) of the operands that depend on the column alone. They are
    constants, padded so that `width` values are readable.
    """
    step = min(width, 4)
    out: list[tuple[str, str]] = []
    for name in ("x_sums", "r_gamma", "r_beta"):
        if name in r.operands:
            read = [
                f"*(float{step}*)(c.{name} + {k}) = {reader(r, name)}((const "
                f"float{step}*)(e.{name} + n + {k}));"
                for k in range(0, width, step)
            ]
            out.append((name, f"if (count > 0) {{ {' '.join(read)} }}"))
    return out


def body(r: Request) -> list[str]:
    """Statements that normalise the sums (adding the bias) and the residual."""
    out: list[str] = []
    if "x_stats" in r.operands:
        shift = (
            "fmaf(norms.x.shift, c.x_sums[k], c.bias[k])"
            if not r.ints.get("x_rms", 0)
            else "c.bias[k]"
        )
        out.append(f"for (int k = 0; k < WIDTH; k++) v[k] = fmaf(v[k], norms.x.scale, {shift});")
    if "r_stats" in r.operands:
        value = (
            "r[k] * norms.residual.scale"
            if r.ints.get("r_rms", 0)
            else "fmaf(r[k], norms.residual.scale, norms.residual.shift)"
        )
        gamma, beta = ("r_gamma" in r.operands), ("r_beta" in r.operands)
        if gamma:
            value = (
                f"fmaf({value}, c.r_gamma[k], c.r_beta[k])" if beta else f"{value} * c.r_gamma[k]"
            )
        elif beta:
            value = f"{value} + c.r_beta[k]"
        out += ["float residual[WIDTH];", f"for (int k = 0; k < WIDTH; k++) residual[k] = {value};"]
    return out


def source(r: Request, n: DimLike, k: DimLike) -> str:
    """Defines NORMED, MEASURED and, where normed, `NormInputs<LANES>`, which loads the statistics
    of row m and returns its Norms. The text follows that of `Epilogue`.
    """
    text = f"#define NORMED {int(normed(r))}\n#define MEASURED {int(measured(r))}\n"
    if not normed(r):
        return text
    members, loads, makes = [], [], []
    for side, to, inner, unscale in (("x", "x", k, "e.unscale"), ("r", "residual", n, "1.f")):
        if f"{side}_stats" in r.operands:
            assert isinstance(inner, int)
            panels, rms = inner // PANEL, "true" if r.ints.get(f"{side}_rms", 0) else "false"
            members.append(f"Statistics<{panels}, LANES> {side};")
            loads.append(f"{side}.load(e.{side}_stats + (i64)m * {panels}, lane);")
            makes.append(
                f"norms.{to} = {side}.template norm<{rms}>(lane, e.{side}_eps, {unscale});"
            )
    return f"""{text}template <int LANES> struct NormInputs {{
  {" ".join(members)}
  METHOD void load(const Epilogue& e, int m, int lane) {{ {" ".join(loads)} }}
  METHOD Norms norms(const Epilogue& e, int lane) const {{
    Norms norms;
    {" ".join(makes)}
    return norms;
  }}
}};
"""


def template(r: Request) -> str:
    """Text that precedes that of the epilogue."""
    return str(templates.template("common/folded_norm")) if normed(r) or measured(r) else ""


def _float(r: Request, name: str) -> Float32:
    return Float32(float(r.floats.get(name, 0.0)))
