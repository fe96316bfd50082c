"""Discrete Fourier transforms.

    y[.., k] = sum_j exp(-+2 pi i j k / n) x[.., j]

Long ones are fast transforms, short ones are GEMMs with a constant matrix: a row of the result is
the signal, and real and imaginary parts lie side by side in rows and columns of the matrix. Frames
are read where they lie, overlapping in memory, so that none is copied.
"""

from __future__ import annotations

import math

import numpy as np

from tracea_onnx.compiler.lower.axes import merge_dims, pad_rows
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.gemm import matmul
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.graph import Array
from tracea_onnx.plan import fourier_tables
from tracea_onnx.shapes.operators import result
from tracea_onnx.shapes.spectra import dft_axis, dft_dims, dft_length, frame_length, is_complex
from tracea_onnx.support.data_classes import dataclass

#: Elements of the matrix of one transform.
_MATRIX = 1 << 23
#: Elements of a GEMM's matrix that take as long as a fast transform without points, and as one
#: of its points: on a Zen 4 core; on a GPU in 32 and in 16 bits, where it is estimated.
_SIGNAL, _POINT, _GPU_POINT, _GPU_POINT_16 = 1000, 50, 240, 3600
#: The longest transform: its tables are constants of the Plan.
_LONGEST = 1 << 18


@dataclass(frozen=True)
class Transform:
    """length: of the transform. terms, bins: elements that are read of a signal and written of its
    result. real: whether the signal is; to_real: whether the result is, of half a spectrum.
    """

    length: int
    terms: int
    bins: int
    real: bool = False
    to_real: bool = False
    inverse: bool = False

    @property
    def elements(self) -> int:
        """Of the matrix of the GEMM."""
        return self.terms * (1 if self.real else 2) * self.bins * (1 if self.to_real else 2)

    @property
    def passes(self) -> tuple[int, ...] | None:
        """Radices of the fast transform that needs no longer one."""
        return fourier_tables.radices(self.points)

    @property
    def points(self) -> int:
        """Of the complex transform that it is made by."""
        return fourier_tables.complex_length(self.length, real=self.real or self.to_real)


def _passes(ctx: Lowering, t: Transform, dtype: DType) -> tuple[int, ...] | None:
    """Radices of the fast transform where it takes less time than the GEMM."""
    if "fft" not in ctx.target.families or t.length > _LONGEST:
        return None
    passes, on_gpu = t.passes, ctx.target.launch_bound
    if on_gpu and (passes is None or t.points > fourier_tables.ON_GPU):
        return None
    times = 1 if passes else 2
    passes = passes or fourier_tables.radices(fourier_tables.chirped(t.points))
    assert passes is not None
    points = times * math.prod(passes)
    if on_gpu:
        price = points * (_GPU_POINT if dtype == DType.F32 else _GPU_POINT_16)
    else:
        price = _SIGNAL + points * _POINT
    return passes if t.elements > price else None


def _fast(
    ctx: Lowering,
    t: Transform,
    passes: tuple[int, ...],
    source: View,
    window: Value | None,
    goal: View,
    lead: Dims,
    dtype: DType,
) -> None:
    """One launch: strides of `source` and `goal` are those of the axes `lead`, then of the axis of
    the transform.
    """
    rows = merge_dims(lead, [source.strides[:-1], goal.strides[:-1]])
    rows = pad_rows(rows, 2, 2)
    real, to_real = t.real, t.to_real
    tables = fourier_tables.tables(t.length, passes, real=real or to_real)
    scale = 1 / t.length if t.inverse else 1.0
    ints: dict[str, DimLike] = {
        "kind": 1 if real else 2 if to_real else 0, "inverse": int(t.inverse),
        "B": rows[0][0], "M": rows[1][0], "N": t.length, "T": t.terms, "K": t.bins,
        "C": tables.size, "x_n": source.strides[-1], "y_n": goal.strides[-1],
        **{f"{o}_{n}": rows[k][1][j] for j, o in enumerate("xy") for k, n in enumerate("bm")},
        **{f"radix{k}": radix for k, radix in enumerate(passes)},
    }  # fmt: skip
    operands = {
        "x": source.ref,
        "window": ctx.plain(window) if window is not None else None,
        "tables": ctx.plan.blob(tables),
    }
    ctx.plan.launch("fft", operands, {"y": goal.ref}, ints, {"scale": scale}, dtype=dtype)


def _known(n: DimLike, what: str) -> int:
    if not isinstance(n, int) or n < 1:
        raise Unsupported(f"the length of {what} is {n}; its matrix needs a constant")
    return n


def _wave(length: int, terms: int, bins: int) -> tuple[Array, Array]:
    """Cosine and sine of 2 pi j k / length, [terms, bins]."""
    turns = np.outer(np.arange(terms), np.arange(bins)) % length
    angles = 2 * np.pi * np.arange(length) / length
    return np.cos(angles)[turns], np.sin(angles)[turns]


def spectrum(length: int, terms: int, bins: int, *, parts: int, inverse: bool) -> Array:
    """The matrix [terms * parts, bins * 2] from a signal, real (parts 1) or complex, to its
    transform.
    """
    cos, sin = _wave(length, terms, bins)
    sin = sin if inverse else -sin
    rows = [np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts]
    out = np.stack(rows, 1) / (length if inverse else 1)
    return out.reshape(terms * parts, bins * 2)


def signal(length: int, bins: int) -> Array:
    """The matrix [bins * 2, length] from the first half of a spectrum to the real signal."""
    cos, sin = _wave(length, bins, length)
    other = np.arange(bins) * 2 % length != 0  # frequencies whose conjugates count, too
    cos, sin = (m * np.where(other, 2.0, 1.0)[:, None] / length for m in (cos, sin))
    return np.stack([cos, -sin], 1).reshape(bins * 2, length)


def _constant(ctx: Lowering, name: str, matrix: Array, dtype: DType) -> Value:
    """A matrix of the compiler's own in elements of `dtype`."""
    out = ctx.define(name, DType.F32, matrix.shape)
    out.data = np.ascontiguousarray(matrix, np.float32)
    if dtype != DType.F32:
        lower_expression(ctx, Expr(1, (), 0), [out], f"{name}\0narrow", dtype)
        out = ctx.value(f"{name}\0narrow")
        out.prepared = True
    return out


def _matrix(ctx: Lowering, op: Op, t: Transform, dtype: DType, name: str) -> Value:
    if t.elements > _MATRIX:
        raise Unsupported(
            f"the matrix of {op.kind} '{op.label}' of length {t.length} has {t.elements} elements;"
            f" at most {_MATRIX} are"
        )
    parts = 1 if t.real else 2
    matrix = (
        signal(t.length, t.length // 2 + 1)[: t.terms * 2]
        if t.to_real
        else spectrum(t.length, t.terms, t.bins, parts=parts, inverse=t.inverse)
    )
    return _constant(ctx, f"{name}\0matrix", matrix, dtype)


def _apply(ctx: Lowering, x: Value, matrix: Value, name: str) -> Value:
    """x @ matrix. Rows of x that do not chain are those of several GEMMs: a matrix that is no
    constant of the GEMM is what `gemm` takes so.
    """
    if len(merge_dims(x.shape[:-1], [ctx.strided(x).strides[:-1]])) > 1:
        matrix.view, matrix.data, matrix.prepared = ctx.strided(matrix), None, False
    return matmul(ctx, x, matrix, None, False, name)


def _is_real(ctx: Lowering, op: Op, x: Value, real: bool | None) -> bool:
    """Whether a signal is real, or complex. None: its last axis says so; else it must agree."""
    if real is None:
        return not is_complex(x.shape, f"the signal of {op.kind}")
    ctx.same(x.shape[-1], 1 if real else 2, f"parts of the numbers {op.kind} '{op.label}' takes")
    return real


def dft(ctx: Lowering, op: Op) -> None:
    """DFT along any axis."""
    x = ctx.value(op.input(0))
    ctx.require(x, "a Fourier transform")
    axis = dft_axis(ctx, op, x.rank, ctx.graph.opset())
    inverse, half = bool(op.attr("inverse", 0)), bool(op.attr("onesided", 0))
    real = _is_real(ctx, op, x, not inverse if half else None)
    shape, size = dft_dims(ctx, op, axis), _known(x.shape[axis], "the axis of DFT")
    length = _known(dft_length(ctx, op, size), "DFT")
    bins, to_real = length // 2 + 1 if half else length, half and inverse
    terms = min(size, bins if to_real else length)
    t = Transform(length, terms, length if to_real else bins, real, to_real, inverse)
    name = op.outputs[0]
    order = [k for k in range(x.rank - 1) if k != axis]
    lead = tuple(x.shape[k] for k in order)
    passes = _passes(ctx, t, x.dtype)
    if passes is not None:
        out = ctx.define(name, x.dtype, shape)
        goal = ctx.fresh(out).strides
        view = ctx.strided(x)
        if (not real and view.strides[-1] != 1) or len(
            merge_dims(lead, [[s[k] for k in order] for s in (view.strides, goal)])
        ) > 2:
            view = View(ctx.plain(x), contiguous(x.shape))
        source, to = (tuple(s[k] for k in (*order, axis)) for s in (view.strides, goal))
        to_ref = ctx.strided(out).ref
        _fast(ctx, t, passes, View(view.ref, source), None, View(to_ref, to), lead, x.dtype)
        return
    # the axis last, before real and imaginary parts
    view, parts = ctx.strided(x), 1 if real else 2
    moved = ctx.define(f"{name}\0signal", x.dtype, (*lead, terms, parts))
    moved.view = View(view.ref, tuple(view.strides[k] for k in (*order, axis, x.rank - 1)))
    rows = ctx.define(f"{name}\0rows", x.dtype, (*lead, terms * parts))
    if real:
        rows.view = View(moved.view.ref, moved.view.strides[:-1])
    elif moved.view.strides[-2:] == (2, 1):
        rows.view = View(moved.view.ref, (*moved.view.strides[:-2], 1))
    else:
        rows.view = View(ctx.plain(moved), contiguous(rows.shape))
    if axis == x.rank - 2:
        ctx.relabelled(f"{name}\0product", name)
    matrix = _matrix(ctx, op, t, x.dtype, name)
    made = ctx.strided(_apply(ctx, rows, matrix, f"{name}\0product"))
    last = shape[-1]
    assert isinstance(last, int)
    strides = [*made.strides[:-1], D.mul(made.strides[-1], last), made.strides[-1]]
    places = [*order, axis, x.rank - 1]
    out = ctx.define(name, x.dtype, shape)
    out.view = View(made.ref, tuple(strides[places.index(k)] for k in range(x.rank)))


def stft(ctx: Lowering, op: Op) -> None:
    """STFT: a transform of each frame under a window."""
    x = ctx.value(op.input(0))
    ctx.require(x, "a Fourier transform")
    if x.rank not in (2, 3):
        raise Unsupported(f"the signal of STFT has rank {x.rank}; 3 is required")
    half = bool(op.attr("onesided", 1))
    parts = 1 if x.rank == 2 or _is_real(ctx, op, x, True if half else None) else 2
    shape = result(ctx, op)
    length = _known(frame_length(ctx, op, x.shape[1]), "the frames of STFT")
    step = int(ctx.contents(op.input(1), "the frame step").reshape(-1)[0])
    t = Transform(length, length, length // 2 + 1 if half else length, real=parts == 1)
    ctx.at_least(x.shape[1], length, f"the signal of STFT '{op.label}'")
    window = ctx.optional(op.input(2))
    if window is not None:
        if window.dtype != x.dtype:
            raise Unsupported(
                f"the window '{window.name}' of STFT is of type {window.dtype.name}, and the signal"
                f" of {x.dtype.name}"
            )
        ctx.same(window.elements, length, f"the window of STFT '{op.label}' and its frames")
    name = op.outputs[0]
    source = View(ctx.plain(x), (D.mul(x.shape[1], parts), step * parts, parts))
    passes = _passes(ctx, t, x.dtype)
    if passes is not None:
        out = ctx.define(name, x.dtype, shape)
        goal = ctx.fresh(out)
        _fast(ctx, t, passes, source, window, View(goal.ref, goal.strides[:-1]), shape[:2], x.dtype)
        return
    frames = ctx.define(f"{name}\0frames", x.dtype, (*shape[:2], length * parts))
    frames.view = View(source.ref, (*source.strides[:-1], 1))
    ctx.relabelled(f"{name}\0product", name)
    matrix = _matrix(ctx, op, t, x.dtype, f"{name}\0product")
    if window is not None:
        matrix = _windowed(ctx, matrix, window, parts)
    made = ctx.strided(_apply(ctx, frames, matrix, f"{name}\0product"))
    out = ctx.define(name, x.dtype, shape)
    out.view = View(made.ref, (*made.strides[:-1], 2, 1))


def _windowed(ctx: Lowering, matrix: Value, window: Value, parts: int) -> Value:
    """diag(window) @ matrix, made once per session where the window is a constant."""
    rows, columns = matrix.shape
    length = D.floordiv(rows, parts)
    whole = ctx.define(f"{matrix.name}\0whole", matrix.dtype, (length, D.mul(columns, parts)))
    whole.view = View(ctx.plain(matrix), contiguous(whole.shape))
    column = ctx.define(f"{matrix.name}\0window", window.dtype, (length, 1))
    column.view = View(ctx.plain(window), (1, 1))
    name = f"{matrix.name}\0windowed"
    lower_expression(ctx, Expr(2, (Instr("mul", (0, 1)),), 2), [whole, column], name, matrix.dtype)
    out = ctx.define(f"{name}\0rows", matrix.dtype, matrix.shape)
    out.view = View(ctx.plain(ctx.value(name)), contiguous(matrix.shape))
    out.prepared = window.is_constant
    return out


OPS = {"DFT": dft, "STFT": stft}
