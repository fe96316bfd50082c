"""Quantisation as pointwise programs, bit for bit as ONNX says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.cuda.case import Array, Case, contiguous, plain
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.expr_program import compile_program
from tracea_onnx.ir.pointwise_ops import Code

_INTEGERS = (DType.U8, DType.I8, DType.U16, DType.I16)
_SIZES = (1, 7, 256, 1031, 40000)


def _case(
    name: str, expr: Expr, given: dict[str, tuple[DType, Array]], y: DType, want: Array
) -> Case:
    """Of operands that broadcast to [m, n]."""
    shape = want.shape
    ints: dict[str, int] = {"y_dtype": int(y), **{f"n{k}": 1 for k in range(4)}}
    ints |= {"n4": shape[0], "n5": shape[1]}
    for x, (dtype, v) in given.items():
        steps = [s * (d != 1) for s, d in zip(contiguous(v.shape), v.shape, strict=True)]
        ints |= {f"{x}_dtype": int(dtype), f"{x}_4": steps[0], f"{x}_5": steps[1]}
    program = compile_program(expr, type="f32", joins=False, named=False)
    operands = {k: v for k, (_, v) in given.items()}
    outputs = {"y": plain(y, want, None)}
    return Case(name, "pointwise", DType.F32, ints, operands, outputs, program=program)


def _quantised(x: Array, scale: Any, zero: Array, dtype: DType) -> Array:
    kind = numpy_type(int(dtype))
    limits = np.iinfo(kind)
    q = np.rint(x / scale) + zero.astype(np.float32)
    return np.asarray(np.clip(q, limits.min, limits.max).astype(kind))


def _ends(code: Code, dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(numpy_type(int(dtype)))
    return code.const(float(limits.min)), code.const(float(limits.max))


def quantise(rng: np.random.Generator) -> Iterator[Case]:
    """Ties, infinities, and numbers far outside; a scale for each column, and one for all."""
    for dtype in _INTEGERS:
        limits = np.iinfo(numpy_type(int(dtype)))
        for n in _SIZES:
            x = (rng.standard_normal((3, n)) * (limits.max - limits.min) / 4).astype(np.float32)
            x[0, ::3] = np.rint(x[0, ::3]) + 0.5
            x[1, ::5] = np.float32(3e38)
            x[2, ::4], x[2, 1::7] = -np.inf, np.inf
            scale = rng.uniform(0.3, 3.0, (1, n)).astype(np.float32)
            scale[0, ::2] = 1.0
            zero = rng.integers(limits.min, limits.max, (1, n)).astype(numpy_type(int(dtype)))
            code = Code(("x", "s", "z"))
            q = code.op("add", code.op("round", code.op("div", -1, -2)), -3)
            expr = code.finish(code.op("clip", q, *_ends(code, dtype)))
            given = {"x0": (DType.F32, x), "x1": (DType.F32, scale), "x2": (dtype, zero)}
            with np.errstate(over="ignore"):
                want = _quantised(x, scale, zero, dtype)
            yield _case(f"quantise {dtype.name} {n}", expr, given, dtype, want)


def chain(rng: np.random.Generator) -> Iterator[Case]:
    """q(max(dq(a) * dq(b) + dq(a), 0)), no two operations of which may be joined."""
    for dtype in _INTEGERS[:2]:
        kind = numpy_type(int(dtype))
        for n in _SIZES:
            a, b = (
                rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, (3, n)).astype(kind)
                for _ in range(2)
            )
            one, other, last = np.float32(0.0371), np.float32(0.0113), np.float32(0.0517)
            code = Code(("a", "b"))
            floats = [
                code.op("mul", code.op("sub", x, code.const(z)), code.const(float(s)))
                for x, z, s in ((-1, 3.0, one), (-2, 5.0, other))
            ]
            total = code.op("add", code.op("mul", *floats), floats[0])
            kept = code.op("max", total, code.const(0.0))
            q = code.op(
                "add",
                code.op("round", code.op("div", kept, code.const(float(last)))),
                code.const(7.0),
            )
            expr = code.finish(code.op("clip", q, *_ends(code, dtype)))
            v = (a.astype(np.float32) - np.float32(3)) * one
            u = (b.astype(np.float32) - np.float32(5)) * other
            want = _quantised(np.maximum(v * u + v, 0), last, np.array(7, np.float32), dtype)
            yield _case(
                f"chain {dtype.name} {n}", expr, {"x0": (dtype, a), "x1": (dtype, b)}, dtype, want
            )


FAMILIES = {"quantise": quantise, "quantised chain": chain}
