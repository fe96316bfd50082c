"""CUDA kernels for elements found by indices along an axis or by tuples, for triangles of matrices
and for indices as rows of one and zeros.
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Fault,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common.launch import WORDS, blocks, overlapped, parameters, static
from ..common.prelude import C_TYPES, prelude
from ..common.templates import template

_DIMS = tuple(f"{letter}{k}" for letter in "nsm" for k in range(5))


def _kernel(
    request: Request, parameters_: str, body: str, units: DimLike, args: tuple[Argument, ...]
) -> list[Kernel]:
    source = f"""{prelude(DType.F32)}{template("common/base", "movement/indexed")}
extern "C" __global__ void __launch_bounds__(256) indexed({parameters_}) {{
  after_previous();
  {body}
}}
"""
    return [
        Kernel(
            source,
            "indexed",
            (blocks(units, 256, request.sms * 32), 1, 1),
            256,
            args,
            pdl=overlapped(request),
        )
    ]


def _indexed(
    request: Request, source: str, call: str, units: DimLike, sizes: tuple[str, ...] = ()
) -> list[Kernel]:
    """A kernel that moves elements of `source` to y by indices: `call` up to what it takes of both."""
    i = parameters(request)
    word, index = (
        WORDS[static(i["elem"], "element size")],
        C_TYPES[DType(static(i["idx_dtype"], "index type"))],
    )
    declared = ", ".join(f"{'i64' if n[0] == 's' else 'int'} {n}" for n in (*sizes, *_DIMS))
    fields = ", ".join(f"{{{', '.join(f'{letter}{k}' for k in range(5))}}}" for letter in "nsm")
    body = f"{call}(from, idx, to, {''.join(f'{n}, ' for n in sizes)}Dims{{{fields}}}, fault);"
    args: tuple[Argument, ...] = (Pointer(source), Pointer("idx"), Pointer("y"))
    args += tuple(Int64(i[n]) if n[0] == "s" else Int32(i[n]) for n in (*sizes, *_DIMS))
    return _kernel(
        request,
        f"const {word}* from, const {index}* idx, {word}* to, {declared}, u32* fault",
        body,
        units,
        (*args, Fault()),
    )


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
    args: tuple[Argument, ...] = (
        Pointer("x"),
        Pointer("y"),
        Int64(total),
        Int32(i["rows"]),
        Int32(i["columns"]),
        Int32(i["diagonal"]),
    )
    return _kernel(
        request,
        f"const {word}* x, {word}* y, i64 total, int rows, int columns, int diagonal",
        body,
        total,
        args,
    )


def one_hot(request: Request) -> list[Kernel]:
    i = parameters(request)
    word, index = (
        WORDS[static(i["elem"], "element size")],
        C_TYPES[DType(static(i["idx_dtype"], "index type"))],
    )
    total = D.product([i["outer"], i["depth"], i["inner"]])
    args: tuple[Argument, ...] = (
        Pointer("idx"),
        Pointer("values"),
        Pointer("y"),
        Int64(total),
        Int32(i["depth"]),
        Int32(i["inner"]),
    )
    declared = (
        f"const {index}* idx, const {word}* values, {word}* y, i64 total, int depth, int inner"
    )
    return _kernel(request, declared, "one_hot(idx, values, y, total, depth, inner);", total, args)


FAMILIES = {
    "one_hot": one_hot, "gather_along": gather_along, "gather_tuples": gather_tuples, "scatter_along": scatter_along, "scatter_tuples": scatter_tuples,
    "triangle": triangle,
}  # fmt: skip
