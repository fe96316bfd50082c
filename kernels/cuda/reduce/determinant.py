"""Determinants of matrices (`determinant.cuh`)."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D

from ..common.instantiate import instance, ints, longs, pointer
from ..common.launch import parameters

_THREADS, _RESIDENT = 64, 8


def determinant(request: Request) -> list[Kernel]:
    i = parameters(request)
    grid = D.maximum(D.minimum(i["count"], request.sms * _RESIDENT), 1)
    given = [
        pointer("const T", "x"),
        pointer("T", "y"),
        pointer("double", "scratch0", "work"),
        *longs({"count": i["count"]}),
        *ints({"n": i["n"]}),
    ]
    body = f"pdl_begin();\n  determinants<{_THREADS}>(x, y, work, count, n);"
    scratch = (D.product([grid, i["n"], i["n"], 8]),)
    name = "reduce/determinant"
    return [instance(request, "determinant", name, given, grid, _THREADS, body, scratch=scratch)]


FAMILIES = {"determinant": determinant}
