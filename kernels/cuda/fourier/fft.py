"""Fourier transforms (`fft.cuh`)."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import factor
from tracea_onnx.plan.fourier_tables import ON_GPU, complex_length
from tracea_onnx.plan.kernel_families import PASSES

from ..common.instantiate import constexprs, floats, instance, longs, pointer, unsigned
from ..common.launch import parameters, static

#: Least points of a CTA (several signals where one has fewer), and points per thread.
_POINTS, _PER_THREAD = 1024, 8


def fft(request: Request) -> list[Kernel]:
    i = parameters(request)
    length, kind = static(i["N"], "length"), static(i["kind"], "kind")
    points = complex_length(length, real=kind != 0)
    if points > ON_GPU:
        raise NoKernel(f"a Fourier transform of length {length}")
    radices = [static(i[f"radix{k}"], "radix") for k in range(PASSES)]
    # few enough that an SM holds several CTAs
    signals = max(_POINTS // points, 1)
    threads = max(32, min(256, -(-signals * points // _PER_THREAD // 32) * 32))
    lines, at, left, run = list[str](), 0, points, 1
    for k, radix in enumerate(radices):
        if k and radix == 1:
            continue
        if left % radix:
            raise NoKernel(f"a Fourier transform of length {length} by other ones")
        if radix > 1:
            lines.append(
                f"pass<{radix}, {left}, {run}, {str(k == 0).lower()}>(a, tables + {at}, b);"
                " __syncthreads(); exchange(a, b);"
            )
        left, run = left // radix, run * radix
        at += 2 * radix + 2 * left * (radix - 1)
    if left != 1:
        raise NoKernel(f"a Fourier transform of length {length} by other ones")
    strides = {n: i[n] for n in ("x_b", "x_m", "x_n", "y_b", "y_m", "y_n")}
    paired = "y" not in request.unaligned and all(
        factor(strides[n]) % 2 == 0 for n in ("y_b", "y_m", "y_n")
    )
    count = D.mul(i["B"], i["M"])
    given = [
        *(pointer("const T", o) for o in ("x", "window") if o in request.operands),
        pointer("const float", "tables"),
        pointer("T", "y"),
        *longs({"count": count, **strides}),
        *unsigned({"many": i["M"]}),
        *floats({"scale": request.floats.get("scale", 1.0)}),
    ]
    window = "" if "window" in request.operands else "const T* window = nullptr;\n  "
    body = (
        f"{window}pdl_begin();\n"
        "  transform(x, window, tables, y, count, {x_b, x_m, many}, x_n, {y_b, y_m, many}, y_n,"
        " scale,\n"
        "            [&](Complex* a, Complex* b) {\n    "
        + "\n    ".join([*lines, "return (const Complex*)a;"])
        + "\n  });"
    )
    constants = {
        "N": length, "POINTS": points, "TERMS": static(i["T"], "terms"),
        "BINS": static(i["K"], "bins"), "KIND": kind, "SIGNALS": signals, "THREADS": threads,
        "SPLIT": at, "INVERSE": bool(i["inverse"]), "PAIRED": paired,
    }  # fmt: skip
    grid = D.ceildiv(count, signals)
    return [
        instance(
            request, "fft", "fourier/fft", given, grid, threads, body, before=constexprs(constants)
        )
    ]


FAMILIES = {"fft": fft}
