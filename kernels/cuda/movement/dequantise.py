"""Integers of a few bits with a scale for each block, dequantised (`dequantise.cuh`)."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType

from ..common.instantiate import instantiate, longs, pointer
from ..common.launch import blocks, parameters, static
from ..common.prelude import C_TYPES

_SIZES = ("n", "inner", "count", "span", "within", "block", "zero_row", "middle")


def dequantise(request: Request) -> list[Kernel]:
    i = parameters(request)
    index, scale, result = (
        C_TYPES[DType(static(i[f"{k}_dtype"], "element type"))] for k in ("idx", "scale", "y")
    )
    macros: dict[str, bool | int | str] = {
        "BITS": static(i["bits"], "number of bits"), "SIGNED": static(i["is_signed"], "sign"),
        "INDEXED": "idx" in request.operands, "ZEROS": "zero" in request.operands,
        "INDEX": index, "SCALE": scale, "RESULT": result,
    }  # fmt: skip
    total = D.product([i["outer"], i["count"], i["inner"]])
    given = [
        pointer("const u8", "x"), (f"const {index}*", "idx", Pointer("idx")),
        pointer(f"const {scale}", "scale"), ("const u8*", "zero", Pointer("zero")),
        pointer(result, "y"), *longs({"total": total} | {n: i[n] for n in _SIZES}),
    ]  # fmt: skip
    grid = (blocks(total, 256, request.sms * 32), 1, 1)
    return [
        instantiate(
            request, "dequantise_blocks", "movement/dequantise", given, grid, 256, macros=macros
        )
    ]


FAMILIES = {"dequantise": dequantise}
