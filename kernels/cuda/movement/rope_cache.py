"""Queries, keys and values of a step of attention over caches (`rope_cache.cuh`)."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import FaultWord, Int32, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import multiple_of

from ..common.instantiate import instantiate, ints, longs, pointer
from ..common.launch import WORDS, blocks, parameters

_THREADS, _RESIDENT = 256, 8
#: Words of a thread where a whole cache is copied.
_EACH = 8


def rope_cache(request: Request) -> list[Kernel]:
    i, elem = parameters(request), request.dtype.size
    whole = (
        multiple_of(i["D"]) * elem % 16 == 0
        and not {"past_k", "past_v", "keys", "values"} & request.unaligned
    )
    size = 16 if whole else elem
    word = "uint4" if whole else WORDS[elem]
    index = "int" if i["at_dtype"] == DType.I32 else "i64"
    words = D.floordiv(D.mul(i["D"], elem), size)
    given = [
        *(pointer("const T", n) for n in "qkv"),
        pointer("const T", "cos", "cosines"),
        pointer("const T", "sin", "sines"),
        *(pointer(f"const {word}", n) for n in ("past_k", "past_v")),
        pointer(f"const {index}", "at"),
        *(pointer("T", n) for n in ("y", "keys", "values")),
        *ints({n: i[n] for n in ("B", "S", "H", "KVH", "P")}),
        ("int", "R", Int32(i["T"])),
        *ints({"D": i["D"], "rot": i["rot"], "words": words}),
        *longs({n: i[n] for n in (*(f"{o}_{a}" for o in "qkv" for a in "bsh"), "c_b", "c_s")}),
        *longs({n: i[n] for n in ("places", "at_add")}),
        ("u32*", "fault", FaultWord()),
    ]
    tokens, most = D.mul(i["B"], i["S"]), request.sms * _RESIDENT
    pairs = D.mul(D.add(i["H"], D.mul(2, i["KVH"])), D.sub(i["D"], D.floordiv(i["rot"], 2)))
    old = D.product([i["B"], i["KVH"], i["T"], words])
    # a cache that is written in place has nothing to copy, which only a run knows
    copying = D.minimum(blocks(old, _THREADS * _EACH, most), request.sms)
    grid = D.maximum(blocks(D.mul(tokens, pairs), _THREADS, most), copying)
    return [
        instantiate(
            request, "rope_cache", "movement/rope_cache", given, (grid, 1, 1), _THREADS,
            macros={"INDEX": index, "WORD": word},
            constants={"INTERLEAVED": bool(i["interleaved"])},
        )
    ]  # fmt: skip


FAMILIES = {"rope_cache": rope_cache}
