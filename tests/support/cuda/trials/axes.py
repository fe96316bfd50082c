"""What memory bounds, once more: other axes, element types, views, and tensors so small that the
launch is most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.support.cuda import runner as R
from tests.support.cuda.trials import move as M
from tests.support.cuda.trials import rows as W
from tests.support.cuda.trials.trial import Places, Tensors, Trial, random, result
from tracea_onnx.compiler.lower.ops import padding
from tracea_onnx.compiler.lower.value import contiguous
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import compile_program

F16, BF16, F32, I64, I32, U8, BOOL = (
    DType.F16,
    DType.BF16,
    DType.F32,
    DType.I64,
    DType.I32,
    DType.U8,
    DType.BOOL,
)
View = Callable[[Any], Any]
#: An operand of a pointwise program: its type, its shape in memory, how that is looked at.
Seen = tuple[DType, tuple[int, ...], View]

_COPY = Expr(1, (Instr("copy", (0,)),), 1)
_WHERE = Expr(3, (Instr("where", (0, 1, 2)),), 3)
_LESS = Expr(2, (Instr("lt", (0, 1)),), 2)


def _same(x: Any) -> Any:
    return x


def _some(*shape: int, dtype: DType) -> Any:
    return (
        random(*shape, dtype=F32) > 0
        if dtype == BOOL
        else random(*shape, dtype=dtype, scale=100.0 if dtype in (I64, I32, U8) else 1.0)
    )


def pointwise(
    what: str, expr: Expr, eager: Callable[..., Any], operands: Sequence[Seen], out: DType
) -> Trial:
    seen = [look(np.empty(shape, np.int8)) for _, shape, look in operands]
    shape = np.broadcast_shapes(*(s.shape for s in seen))
    lead = [1] * (6 - len(shape))
    ints: dict[str, DimLike] = {f"n{k}": d for k, d in enumerate([*lead, *shape])} | {
        "y_dtype": int(out)
    }
    for j, ((dtype, _, _), s) in enumerate(zip(operands, seen, strict=True)):
        ints |= {
            f"x{j}_{k}": d
            for k, d in enumerate([*[0] * len(lead), *np.broadcast_to(s, shape).strides])
        } | {f"x{j}_dtype": int(dtype)}
    names = [f"x{j}" for j in range(len(operands))]
    moved = [n for n, (_, _, look) in zip(names, operands, strict=True) if look is not _same]
    program = compile_program(expr, type="i64" if out in (I64, I32) else "f32")
    r = R.request("pointwise", F32, ints, None, program, (*names, "y"), unaligned=moved)

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result(shape, out)
        return [{**x, "y": y}], y

    def inputs() -> Tensors:
        return {
            n: look(_some(*s, dtype=dtype))
            for n, (dtype, s, look) in zip(names, operands, strict=True)
        }

    text = " ".join(f"{dtype.name} {'x'.join(map(str, s))}" for dtype, s, _ in operands)
    return Trial(
        f"pointwise {what} {out.name} of {text}",
        out,
        [r],
        inputs,
        lambda x: eager(*x.values()),
        ours,
    )


def cast(source: DType, to: DType, *shape: int) -> Trial:
    return pointwise("cast", _COPY, lambda x: x.to(R.torch_dtype(to)), [(source, shape, _same)], to)


def where(dtype: DType, *shapes: tuple[int, ...]) -> Trial:
    return pointwise(
        "where",
        _WHERE,
        lambda c, a, b: R.torch().where(c, a, b),
        [(d, s, _same) for d, s in zip((BOOL, dtype, dtype), shapes, strict=True)],
        dtype,
    )


def plus(dtype: DType, *shapes: tuple[int, ...]) -> Trial:
    return pointwise("add", W._ADD, lambda a, b: a + b, [(dtype, s, _same) for s in shapes], dtype)


def padded(
    dtype: DType,
    shape: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    mode: str = "constant",
) -> Trial:
    whole = tuple(n + a + b for n, a, b in zip(shape, before, after, strict=True))
    rows = padding.merged(
        list(zip(shape, whole, before, strict=True)), contiguous(shape), contiguous(whole)
    )
    ints = padding.numbers(rows, dtype, padding.MODES[mode], 0)

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result(whole, dtype)
        return [{**x, "y": y}], y

    pads = [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]
    name = f"{mode} pad {dtype.name} {'x'.join(map(str, shape))} to {'x'.join(map(str, whole))}"
    r = R.request("pad", F32, ints, operands=("x", "y"))
    # PyTorch mirrors the last axes alone
    held = (
        len(pads)
        if mode == "constant"
        else 2 * sum(b + a > 0 for b, a in zip(before, after, strict=True))
    )
    return Trial(
        name,
        dtype,
        [r],
        lambda: {"x": _some(*shape, dtype=dtype)},
        lambda x: R.torch().nn.functional.pad(x["x"], pads[:held], mode),
        ours,
    )


def mirrored(dtype: DType, c: int, h: int, w: int, pad: int) -> Trial:
    """Images padded with their reflections."""
    return padded(dtype, (1, c, h, w), (0, 0, pad, pad), (0, 0, pad, pad), "reflect")


def gather(
    dtype: DType, shape: tuple[int, ...], axis: int, count: int, index: DType = I64
) -> Trial:
    """Along one axis."""
    outer, inner = (int(np.prod(part)) for part in (shape[:axis], shape[axis + 1 :]))
    ints = {
        "elem": dtype.size,
        "outer": outer,
        "n": shape[axis],
        "inner": inner,
        "count": count,
        "idx_dtype": int(index),
    }
    r = R.request("gather", F32, ints, operands=("x", "idx", "y"))

    def inputs() -> Tensors:
        t = R.torch()
        return {
            "x": _some(*shape, dtype=dtype),
            "idx": t.randint(0, shape[axis], (count,), device="cuda", dtype=R.torch_dtype(index)),
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((*shape[:axis], count, *shape[axis + 1 :]), dtype)
        return [{**x, "y": y}], y

    name = f"gather {dtype.name} {count} of {'x'.join(map(str, shape))} axis {axis} by {index.name}"
    return Trial(
        name, dtype, [r], inputs, lambda x: R.torch().index_select(x["x"], axis, x["idx"]), ours
    )


def gather_elements(dtype: DType, outer: int, n: int, inner: int, count: int) -> Trial:
    ints = {
        "elem": dtype.size,
        "outer": outer,
        "n": n,
        "inner": inner,
        "count": count,
        "idx_dtype": int(I64),
    }
    r = R.request("gather_elements", F32, ints, operands=("x", "idx", "y"))

    def inputs() -> Tensors:
        return {
            "x": _some(outer, n, inner, dtype=dtype),
            "idx": R.torch().randint(0, n, (outer, count, inner), device="cuda"),
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((outer, count, inner), dtype)
        return [{**x, "y": y}], y

    name = f"gather elements {dtype.name} {outer}x{count}x{inner} of {n} axis 1"
    return Trial(name, dtype, [r], inputs, lambda x: R.torch().gather(x["x"], 1, x["idx"]), ours)


def view(what: str, dtype: DType, shape: tuple[int, ...], look: View) -> Trial:
    return M.view(what, dtype, shape, look)


def _wide(x: Any, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(x, shape) if isinstance(x, np.ndarray) else x.expand(shape)


def _copies() -> Iterator[Trial]:
    for dtype in (U8, F16, F32, I64):
        yield view("transpose", dtype, (257, 263), lambda x: x.T)
        yield view("heads", dtype, (3, 197, 12, 64), lambda x: x.swapaxes(1, 2))
        yield view("every other row", dtype, (1021, 1031), lambda x: x[::2])
        yield view("every third element", dtype, (1021, 1031), lambda x: x[:, ::3])
        yield view("rows repeated", dtype, (1021, 1, 131), lambda x: _wide(x, (1021, 5, 131)))
        yield view("half the columns", dtype, (4001, 66), lambda x: x[:, 33:])
        yield view("columns", dtype, (509, 3 * 768), lambda x: x[:, 768:1536])
        yield M.concat(dtype, 2003, (33, 31))
        yield M.concat(dtype, 513, (384, 384))
        yield M.concat(dtype, 1, (1000, 24))
        if dtype in (F16, F32):
            yield mirrored(dtype, 31, 57, 63, 1)
        yield padded(dtype, (1, 61, 57, 53), (0, 0, 1, 1), (0, 0, 1, 1))
        yield padded(dtype, (7, 1000), (0, 0), (0, 24))
        yield gather(dtype, (30011, 64), 0, 1021)
        yield gather(dtype, (131, 1031, 3), 1, 257)
        yield gather(dtype, (1021, 1031), 1, 129)
        yield gather_elements(dtype, 13, 131, 67, 61)
    yield gather(F32, (30522, 768), 0, 4096)
    yield gather(F16, (50257, 768), 0, 8192)
    yield gather(BF16, (32003, 2048), 0, 127, I32)
    yield gather(F32, (100003,), 0, 50021)
    yield gather(F32, (512, 768), 0, 1)
    yield M.concat(F16, 4001, (17, 31))
    yield M.concat(F16, 1021, (131, 127))
    yield mirrored(F32, 61, 57, 53, 1)
    yield mirrored(F16, 3, 511, 509, 7)
    yield mirrored(F32, 37, 53, 61, 3)
    yield view(
        "to depth",
        F16,
        (1, 3, 256, 2, 256, 2),
        lambda x: (
            x.transpose(0, 3, 5, 1, 2, 4)
            if isinstance(x, np.ndarray)
            else x.permute(0, 3, 5, 1, 2, 4)
        ),
    )
    yield view("last three transposed", F32, (131, 7, 5, 3), lambda x: x.swapaxes(1, 3))
    yield view("transpose", F16, (7, 5), lambda x: x.T)
    yield view("transpose", F32, (100003, 4), lambda x: x.T)
    yield view("transpose", F16, (12, 197, 64), lambda x: x.swapaxes(1, 2))


def _pointwise() -> Iterator[Trial]:
    for dtype in (F16, F32, I64):
        yield plus(dtype, (513, 1000), (1000,))
        yield plus(dtype, (513, 1001), (513, 1))
        yield plus(dtype, (31, 1, 257), (129, 1))
        yield plus(dtype, (3, 5), (3, 5))
        yield where(dtype, (12, 197, 197), (12, 197, 197), (1,))
        yield where(dtype, (197, 197), (12, 197, 197), (1, 1, 1))
    for source, to in (
        (F32, F16),
        (F16, F32),
        (F32, BF16),
        (I64, F32),
        (I64, I32),
        (BOOL, F32),
        (F32, BOOL),
        (U8, F16),
    ):
        yield cast(source, to, 1021, 1031)
    yield cast(F32, F16, 3, 224, 224)
    yield pointwise(
        "less", _LESS, lambda a, b: a < b, [(F32, (1021, 1), _same), (F32, (1031,), _same)], BOOL
    )
    yield pointwise(
        "less", _LESS, lambda a, b: a < b, [(I64, (1, 4001), _same), (I64, (501, 1), _same)], BOOL
    )


def _rows() -> Iterator[Trial]:
    for dtype in (F16, F32):
        for outer, n, inner in (
            (1, 1000, 1),
            (64, 1000, 1),
            (1536, 197, 1),
            (8191, 16, 1),
            (4001, 21, 1),
            (257, 10, 1),
            (3, 21, 4001),
            (8, 80, 80),
        ):
            yield W.softmax(dtype, outer, n, inner)
        yield W.softmax(dtype, 513, 1000, log=True)
        yield W.softmax(dtype, 2003, 20, log=True)
        for rows, n in ((1, 768), (197, 768), (3001, 96), (20011, 33), (513, 1025), (31, 3001)):
            yield W.layernorm(dtype, rows, n)
        yield W.layernorm(dtype, 127, 1001, rms=True)
        for kind, outer, n, inner in (
            ("mean", 3, 197, 768), ("mean", 197, 768, 1), ("max", 1, 257, 4001),
            ("sum", 20011, 12, 1), ("sum", 12, 1, 20011), ("max", 257, 49, 31), ("mean", 1, 5, 7),
        ):  # fmt: skip
            yield W.reduction(dtype, kind, outer, n, inner)
        yield W.argmax(dtype, 64, 1000)
        yield W.argmax(dtype, 3, 21, 4001)
        yield W.argmax(dtype, 1, 10)
        for rows, n, k in (
            (1, 8400, 300), (16, 33600, 300), (1, 24000, 300), (1, 672000, 100), (4096, 64, 6),
            (1021, 8, 2), (64, 1000, 5), (3, 50257, 50), (300, 1031, 1031),
        ):  # fmt: skip
            yield W.topk(dtype, rows, n, k)
        yield M.pool(dtype, 0, 1, 64, 112, 112, 3, 2, 1)
        yield M.pool(dtype, 2, 1, 131, 29, 31, 3, 1, 1)
        yield M.global_pool(dtype, 1, 320, 7, 7)
        yield M.resize(dtype, 1, 64, 33, 31, 66, 62)
    for dtype in (I64, F32, F16):
        yield W.cumsum(dtype, 1, 100003)
        yield W.cumsum(dtype, 1, 1024)
        yield W.cumsum(dtype, 3, 20011)
        yield W.cumsum(dtype, 1, 400009)
    yield W.reduction(I64, "sum", 131, 1031)
    yield W.reduction(I64, "max", 1, 100003)


def trials() -> Iterator[Trial]:
    yield from _copies()
    yield from _pointwise()
    yield from _rows()
