"""Discrete Fourier transforms as products with constant matrices.

    y[.., k] = sum_j exp(-+2 pi i j k / n) x[.., j]

A row of the product is the signal, or a frame of it where it lies: frames overlap in memory, so
that none is copied. Real and imaginary parts lie side by side in rows and columns of the matrix.
"""

from __future__ import annotations

import math

import numpy as np

from tracea_onnx.compiler.lower.axes import merge_dims
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.gemm import product
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.graph import Array
from tracea_onnx.shapes.operators import result
from tracea_onnx.shapes.spectra import dft_axis, dft_dims, dft_length, frame_length, is_complex

#: Elements of the matrices of one transform. Longer ones read more of them than an FFT computes.
_MATRIX = 1 << 23
#: A product with so many times n log2(n) elements takes no longer than ONNX Runtime's FFT of length
#: n (150 on a Zen 5 core; vectors half as long take half of it).
_FFT = 80
#: The shortest transform that is halved: two passes over its rows and its result cost less than
#: half the product.
_HALVED = 160


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


def _affordable(ctx: Lowering, op: Op, length: int, elements: int) -> None:
    """Refuse matrices that are too large, or slower on a CPU than an FFT, which ONNX Runtime has
    for powers of two.
    """
    if elements > _MATRIX:
        raise Unsupported(
            f"the matrices of {op.kind} '{op.label}' of length {length} have {elements} elements;"
            f" at most {_MATRIX} are"
        )
    fast = not length & (length - 1) and not ctx.target.launch_bound
    if fast and elements > _FFT * length * math.log2(max(length, 2)):
        raise Unsupported(
            f"ONNX Runtime's FFT of {op.kind} '{op.label}' of length {length} takes less time than"
            f" products with matrices of {elements} elements"
        )


def _apply(ctx: Lowering, x: Value, matrix: Value, name: str) -> Value:
    """x @ matrix. Rows of x that do not chain are those of several products: a matrix that is no
    constant of the product is what `gemm` takes so.
    """
    if len(merge_dims(x.shape[:-1], [ctx.strided(x).strides[:-1]])) > 1:
        matrix.view, matrix.data, matrix.prepared = ctx.strided(matrix), None, False
    return product(ctx, x, matrix, None, False, name)


def _halved(ctx: Lowering, length: int) -> bool:
    """Whether a real transform is two of half as many terms: not on a GPU, whose launches cost
    more than the arithmetic.
    """
    return length % 2 == 0 and length >= _HALVED and not ctx.target.launch_bound


def _half_elements(ctx: Lowering, length: int) -> int:
    """Elements of the matrices of `_half_spectrum`."""
    h = length // 2
    if not _halved(ctx, length):
        return length * 2 * (h + 1)
    return h * 2 * ((h + 1) // 2) + _half_elements(ctx, h)


def _half_spectrum(ctx: Lowering, x: Value, window: Value | None, name: str) -> Value:
    """Half the spectrum of real rows [.., n] under a window, as [.., 2 (n / 2 + 1)]. Even and odd
    frequencies of a long one need half the terms each:

        y[2 m + p] = sum_{j < n / 2} exp(-2 pi i j (2 m + p) / n) (x[j] + (-1)^p x[j + n / 2])
    """
    lead, length = x.shape[:-1], x.shape[-1]
    assert isinstance(length, int)
    h, size = length // 2, x.dtype.size
    terms = h if _halved(ctx, length) else length
    matrix = spectrum(length, terms, h + 1, parts=1, inverse=False)
    if terms == length:
        whole = _constant(ctx, f"{name}\0matrix", matrix, x.dtype)
        whole = whole if window is None else _windowed(ctx, whole, window, 1)
        return _apply(ctx, x, whole, name)

    def sides(v: Value) -> list[Value]:
        view, made = ctx.strided(v), []
        for k in range(2):
            side = ctx.define(f"{name}\0{v.name}\0{k}", v.dtype, (*v.shape[:-1], h))
            side.view = View(view.ref.at(D.mul(k * h * size, view.strides[-1])), view.strides)
            made.append(side)
        return made

    out = ctx.define(name, x.dtype, (*lead, 2 * (h + 1)))
    to, operands = ctx.new_plain(out), [*sides(x), *(sides(window) if window is not None else ())]
    for p, sign in enumerate(("add", "sub")):
        weighted = (Instr("mul", (0, 2)), Instr("mul", (1, 3)), Instr(sign, (4, 5)))
        expr = Expr(2, (Instr(sign, (0, 1)),), 2) if window is None else Expr(4, weighted, 6)
        lower_expression(ctx, expr, operands, f"{name}\0{sign}", x.dtype)
        folded, made = ctx.value(f"{name}\0{sign}"), f"{name}\0half{p}"
        part = matrix.reshape(h, h + 1, 2)[:, p::2]
        bins = part.shape[1]
        if p == 0:
            half = _half_spectrum(ctx, folded, None, made)
        else:
            constant = _constant(ctx, f"{name}\0odd", part.reshape(h, 2 * bins), x.dtype)
            half = product(ctx, folded, constant, None, False, made)
        # a real and an imaginary part are one element of twice the size
        source, goal = View(ctx.plain(half), (bins, 1)), View(to.at(2 * p * size), (h + 1, 2))
        ctx.copy(source, goal, (D.product(lead), bins), DType.I64, whole=False)
    return out


def dft(ctx: Lowering, op: Op) -> None:
    """DFT: a GEMM with a constant matrix of cosines and sines."""
    x = ctx.value(op.input(0))
    ctx.require(x, "a Fourier transform")
    axis = dft_axis(ctx, op, x.rank, ctx.graph.opset())
    parts = 1 + is_complex(x.shape, "the signal of DFT")
    inverse, half = bool(op.attr("inverse", 0)), bool(op.attr("onesided", 0))
    if half and inverse != (parts == 2):
        raise Unsupported("a DFT of one side takes a real signal, and its inverse a complex one")
    shape, size = dft_dims(ctx, op, axis), _known(x.shape[axis], "the axis of DFT")
    length = _known(dft_length(ctx, op, size), "DFT")
    bins = length // 2 + 1 if half else length
    terms = min(size, bins if half and inverse else length)
    columns = length if half and inverse else 2 * bins
    real = half and not inverse and terms == length
    elements = _half_elements(ctx, length) if real else terms * parts * columns
    _affordable(ctx, op, length, elements)
    name = op.outputs[0]
    # the axis last, before real and imaginary parts
    order = [k for k in range(x.rank - 1) if k != axis]
    view = ctx.strided(x)
    lead = tuple(x.shape[k] for k in order)
    moved = ctx.define(f"{name}\0signal", x.dtype, (*lead, terms, parts))
    moved.view = View(view.ref, tuple(view.strides[k] for k in (*order, axis, x.rank - 1)))
    rows = ctx.define(f"{name}\0rows", x.dtype, (*lead, terms * parts))
    if parts == 1:
        rows.view = View(moved.view.ref, moved.view.strides[:-1])
    elif moved.view.strides[-2:] == (2, 1):
        rows.view = View(moved.view.ref, (*moved.view.strides[:-2], 1))
    else:
        rows.view = View(ctx.plain(moved), contiguous(rows.shape))
    if axis == x.rank - 2:
        ctx.relabelled(f"{name}\0product", name)
    if real:
        made = ctx.strided(_half_spectrum(ctx, rows, None, f"{name}\0product"))
    else:
        matrix = (
            signal(length, bins)[: terms * 2]
            if half and inverse
            else spectrum(length, terms, bins, parts=parts, inverse=inverse)
        )
        constant = _constant(ctx, f"{name}\0matrix", matrix, x.dtype)
        made = ctx.strided(_apply(ctx, rows, constant, f"{name}\0product"))
    last = shape[-1]
    assert isinstance(last, int)
    strides = [*made.strides[:-1], D.mul(made.strides[-1], last), made.strides[-1]]
    places = [*order, axis, x.rank - 1]
    out = ctx.define(name, x.dtype, shape)
    out.view = View(made.ref, tuple(strides[places.index(k)] for k in range(x.rank)))


def stft(ctx: Lowering, op: Op) -> None:
    """STFT: a strided convolution with windowed cosines and sines."""
    x = ctx.value(op.input(0))
    ctx.require(x, "a Fourier transform")
    if x.rank not in (2, 3):
        raise Unsupported(f"the signal of STFT has rank {x.rank}; 3 is required")
    parts = 1 if x.rank == 2 else 1 + is_complex(x.shape, "the signal of STFT")
    half = bool(op.attr("onesided", 1))
    if half and parts == 2:
        raise Unsupported("an STFT of one side takes a real signal")
    shape = result(ctx, op)
    length = _known(frame_length(ctx, op, x.shape[1]), "the frames of STFT")
    step = int(ctx.contents(op.input(1), "the frame step").reshape(-1)[0])
    bins = length // 2 + 1 if half else length
    elements = _half_elements(ctx, length) if half else length * parts * 2 * bins
    _affordable(ctx, op, length, elements)
    ctx.at_least(x.shape[1], length, f"the signal of STFT '{op.label}'")
    window = ctx.optional(op.input(2))
    if window is not None:
        if not window.is_constant or window.dtype != x.dtype:
            raise Unsupported(
                f"the window '{window.name}' of STFT is no constant of the signal's type"
            )
        ctx.same(window.elements, length, f"the window of STFT '{op.label}' and its frames")
    name = op.outputs[0]
    frames = ctx.define(f"{name}\0frames", x.dtype, (shape[0], shape[1], length * parts))
    frames.view = View(ctx.plain(x), (D.mul(x.shape[1], parts), step * parts, 1))
    ctx.relabelled(f"{name}\0product", name)
    if half:
        made = ctx.strided(_half_spectrum(ctx, frames, window, f"{name}\0product"))
    else:
        full = spectrum(length, length, bins, parts=parts, inverse=False)
        matrix = _constant(ctx, f"{name}\0matrix", full, x.dtype)
        matrix = matrix if window is None else _windowed(ctx, matrix, window, parts)
        made = ctx.strided(_apply(ctx, frames, matrix, f"{name}\0product"))
    out = ctx.define(name, x.dtype, shape)
    out.view = View(made.ref, (*made.strides[:-1], 2, 1))


def _windowed(ctx: Lowering, matrix: Value, window: Value, parts: int) -> Value:
    """diag(window) @ matrix, made once per session."""
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
    out.prepared = True
    return out


OPS = {"DFT": dft, "STFT": stft}
