"""Depthwise convolutions of 8-bit integers (`int8.cuh`): `conv2d_int8_dw`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Int32, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import tap_pitch

from ...common.epilogue import Parameter
from ...common.instantiate import instantiate, ints, longs, pointer, sizes
from ...gemm import select
from ...gemm.int8 import requantise
from ...gemm.int8.requantise import dtype
from .. import problem

_THREADS, _PIXELS = 128, 4
_SIZES = ("N", "IH", "IW", "OH", "OW", *problem.WINDOW, "PT", "PL")


def convolution(r: Request) -> list[Kernel]:
    i, channels = r.ints, select.static(r, "OC")
    taps = select.static(r, "KH") * select.static(r, "KW")
    parameters: list[Parameter] = [
        pointer("const T", "x"),
        pointer("const Weight", "w"),
        pointer("Result", "y"),
        pointer("const T", "x_zero", "zero_x"),
        pointer("const Weight", "w_zero", "zero_w"),
        ("int", "zeros_w", Int32(i.get("w_zeros", 1))),
        *ints({**sizes(r, *_SIZES), "C": channels, "pitch": tap_pitch(channels)}),
        *longs(sizes(r, *(f"{s}_{p}" for s in "xyr" for p in ("cs", "rs", "ns")))),
    ]
    # the kernel takes zero points off itself
    given = replace(r, operands=r.operands - {"x_zero", "w_zero"})
    epilogue = requantise.epilogue(given, taps, 0, problem.pitches(r, "r"))
    units = D.product(
        [i["N"], i["OH"], D.ceildiv(i["OW"], _PIXELS), -(-channels // requantise.WIDTH)]
    )
    size = dtype(r, "y", DType.F32).size
    return [
        instantiate(
            replace(r, dtype=dtype(r, "x")),
            "conv_depthwise_bytes",
            "conv/depthwise/int8",
            parameters,
            (D.ceildiv(units, _THREADS), 1, 1),
            _THREADS,
            epilogue=epilogue,
            constants={
                "PIXELS": _PIXELS,
                "X_VECTOR": requantise.aligned(r, "x", 1, *problem.pitches(r, "x")),
                "Y_VECTOR": requantise.aligned(r, "y", size, *problem.pitches(r, "y")),
            },
        )
    ]


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {"conv2d_int8_dw": convolution}
