"""Caches of keys and values that new rows are written into (`cache.cuh`)."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import FaultWord, Kernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import multiple_of

from ..common.instantiate import instantiate, ints, longs, pointer
from ..common.launch import WORDS, parameters, static

#: Words of a thread where a whole cache is copied.
_EACH = 8


def cache_write(request: Request) -> list[Kernel]:
    i = parameters(request)
    elem = static(i["elem"], "element size")
    row = multiple_of(i["D"]) * elem
    pitches = (multiple_of(i[f"x_{a}"]) * elem for a in "bsh")
    whole = not {"past", "x", "y"} & request.unaligned and all(n % 16 == 0 for n in (row, *pitches))
    size = 16 if whole else elem
    each = size // elem
    word = "uint4" if whole else WORDS[elem]
    index = "int" if i["at_dtype"] == DType.I32 else "i64"
    words = D.floordiv(i["D"], each)
    given = [
        (f"const {word}*", "past", Pointer("past")),
        pointer(f"const {word}", "x"),
        pointer(f"const {index}", "at"),
        pointer(word, "y"),
        *ints({n: i[n] for n in ("H", "S", "P", "T")} | {"words": words}),
        *longs({f"x_{a}": D.floordiv(i[f"x_{a}"], each) for a in "bsh"}),
        *longs({"at_add": i["at_add"]}),
        *ints({n: i[n] for n in ("keep", "circular")}),
        ("u32*", "fault", FaultWord()),
    ]
    parts = D.maximum(D.ceildiv(D.mul(i["T"], words), 256 * _EACH), 1)
    grid = (D.mul(i["B"], i["H"]), D.minimum(parts, 1024), 1)
    macros = {"WORD": word}
    return [instantiate(request, "cache_write", "movement/cache", given, grid, 256, macros=macros)]


FAMILIES = {"cache_write": cache_write}
