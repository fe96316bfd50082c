"""Gather and scatter by indices along an axis or by index tuples, triu and tril, one-hot."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import FaultWord, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common.epilogue import Parameter
from ..common.instantiate import instance, ints, longs, pointer
from ..common.launch import WORDS, blocks, parameters, static
from ..common.prelude import C_TYPES

_DIMS = tuple(f"{letter}{k}" for letter in "nsm" for k in range(5))


def _kernel(request: Request, given: list[Parameter], body: str, units: DimLike) -> list[Kernel]:
    grid, body = blocks(units, 256, request.sms * 32), f"pdl_begin();\n  {body}"
    header = "movement/indexed"
    return [instance(request, "indexed", header, given, grid, 256, body, dtype=DType.F32)]


def _types(request: Request) -> tuple[str, str]:
    """C++ types of the elements and of the indices."""
    i = parameters(request)
    word = WORDS[static(i["elem"], "element size")]
    return word, C_TYPES[DType(static(i["idx_dtype"], "index type"))]


def _indexed(
    request: Request, source: str, call: str, units: DimLike, sizes: tuple[str, ...] = ()
) -> list[Kernel]:
    """A kernel that moves elements of `source` to y by indices; `call`: up to its arguments."""
    i, (word, index) = parameters(request), _types(request)
    given = [
        pointer(f"const {word}", source, "from"),
        pointer(f"const {index}", "idx"),
        pointer(word, "y", "to"),
    ]
    for n in (*sizes, *_DIMS):
        given += (longs if n[0] == "s" else ints)({n: i[n]})
    fields = ", ".join(f"{{{', '.join(f'{letter}{k}' for k in range(5))}}}" for letter in "nsm")
    body = f"{call}(from, idx, to, {''.join(f'{n}, ' for n in sizes)}Dims{{{fields}}}, fault);"
    return _kernel(request, [*given, ("u32*", "fault", FaultWord())], body, units)


def _along(request: Request, source: str, scatter: str) -> list[Kernel]:
    i = parameters(request)
    return _indexed(
        request,
        source,
        f"move_along<{static(i['axis'], 'axis')}, {scatter}>",
        D.product([i[f"n{k}"] for k in range(5)]),
    )


def gather_along(request: Request) -> list[Kernel]:
    return _along(request, "x", "false")


def scatter_along(request: Request) -> list[Kernel]:
    return _along(request, "u", "true")


def scatter_tuples(request: Request) -> list[Kernel]:
    i = parameters(request)
    return _indexed(
        request,
        "u",
        f"scatter_tuples<{static(i['k'], 'number of indices')}>",
        D.mul(i["count"], i["inner"]),
        ("count", "inner"),
    )


def gather_tuples(request: Request) -> list[Kernel]:
    i = parameters(request)
    call = f"gather_tuples<{static(i['k'], 'number of indices')}>"
    return _indexed(
        request, "x", call, D.mul(i["count"], i["inner"]), ("count", "inner", "each", "step")
    )


def triangle(request: Request) -> list[Kernel]:
    i = parameters(request)
    word, total = (
        WORDS[static(i["elem"], "element size")],
        D.product([i["outer"], i["rows"], i["columns"]]),
    )
    body = f"triangle<{'true' if i['upper'] else 'false'}>(x, y, total, rows, columns, diagonal);"
    given = [
        pointer(f"const {word}", "x"),
        pointer(word, "y"),
        *longs({"total": total}),
        *ints({n: i[n] for n in ("rows", "columns", "diagonal")}),
    ]
    return _kernel(request, given, body, total)


def one_hot(request: Request) -> list[Kernel]:
    i, (word, index) = parameters(request), _types(request)
    total = D.product([i["outer"], i["depth"], i["inner"]])
    given = [
        pointer(f"const {index}", "idx"),
        pointer(f"const {word}", "values"),
        pointer(word, "y"),
        *longs({"total": total}),
        *ints({n: i[n] for n in ("depth", "inner")}),
    ]
    return _kernel(request, given, "one_hot(idx, values, y, total, depth, inner);", total)


FAMILIES = {
    "one_hot": one_hot,
    "gather_along": gather_along,
    "gather_tuples": gather_tuples,
    "scatter_along": scatter_along,
    "scatter_tuples": scatter_tuples,
    "triangle": triangle,
}
