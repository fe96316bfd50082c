"""Images of 8-bit integers: `quantise_image`, and means of all pixels (`bytes.cuh`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import multiple_of

from ..common.instantiate import instance, ints, longs, pointer, sizes
from ..common.launch import blocks, static
from ..common.prelude import C_TYPES

#: Threads, warps of means, CTAs of an SM, neighbouring pixels of a thread.
_THREADS, _WARPS, _RESIDENT, _ALONG = 256, 8, 8, 4


def quantise_image(r: Request) -> list[Kernel]:
    i = r.ints
    dtype, pixel = DType(int(i["y_dtype"])), static(i["P"], "size of a pixel")
    channels = static(i["C"], "number of channels")
    along = _ALONG if multiple_of(i["columns"]) % _ALONG == 0 and "y" not in r.unaligned else 1
    threads = D.product([i["N"], i["rows"], D.floordiv(i["columns"], along)])
    given = sizes(r, "N", "H", "W", "top", "left", "rows", "columns")
    strides = sizes(r, "x_n", "x_c", "x_h", "x_w")
    names = ", ".join((*given, *strides))
    zero = [pointer("const T", "zero")] if "zero" in r.operands else []
    passed = "x, scale, zero, y" if zero else "x, scale, (const T*)0, y"
    forms = f"{pixel}, {channels}, {along}"
    return [
        instance(
            r,
            "quantise_image_of",
            "image/bytes",
            [
                pointer(f"const {C_TYPES[r.dtype]}", "x"), pointer("const float", "scale"),
                *zero, pointer("T", "y"), *ints(given), *longs(strides),
            ],
            blocks(threads, _THREADS, r.sms * _RESIDENT * 4),
            _THREADS,
            f"pdl_begin();\n  quantise_image<{forms}>({passed}, Planes{{{names}}});",
            dtype=dtype,
        )
    ]  # fmt: skip


def global_mean(r: Request) -> list[Kernel]:
    i = r.ints
    dtype, result = DType(int(i["x_dtype"])), C_TYPES[DType(int(i["y_dtype"]))]
    wide = 4 if all(multiple_of(i[n]) >= 4 for n in ("C", "x_cs", "x_rs", "x_ns")) else 1
    wide = 1 if "x" in r.unaligned else wide
    types = {"x_scale": "float", "x_zero": "T", "y_scale": "float", "y_zero": result}
    given, strides = sizes(r, "N", "C", "H", "W"), sizes(r, "x_cs", "x_rs", "x_ns", "y_ns")
    operands = [pointer(f"const {t}", o) for o, t in types.items() if o in r.operands]
    given_or_null = [o if o in r.operands else f"(const {t}*)0" for o, t in types.items()]
    passed = ", ".join(("x", *given_or_null, "y"))
    numbers = ", ".join((*given, *strides))
    return [
        instance(
            replace(r, dtype=dtype),
            "global_mean_of_bytes",
            "image/bytes",
            [
                pointer("const T", "x"),
                *operands,
                pointer(result, "y"),
                *ints(given),
                *longs(strides),
            ],
            (D.mul(i["N"], D.ceildiv(i["C"], 32 * wide)), 1, 1),
            32 * _WARPS,
            f"pdl_begin();\n  mean_of_bytes<{wide}, {_WARPS}>({passed}, Pixels{{{numbers}}});",
        )
    ]


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "quantise_image": quantise_image,
    "global_mean_int8": global_mean,
}
