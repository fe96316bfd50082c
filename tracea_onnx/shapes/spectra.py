"""Lengths and dims of discrete Fourier transforms."""

from __future__ import annotations

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dim_proofs import Dims
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.shapes.environment import Operator, ShapeEnv, Unsupported
from tracea_onnx.shapes.operands import axis_of, constant, need


def dft_axis(s: ShapeEnv, n: Operator, rank: int, opset: int | None = None) -> int:
    """The axis of a DFT: an attribute before opset 20, which is 1 by default, and an input since,
    by default the last one of the signal. None: the opset is not known.
    """
    if n.attr("axis") is not None:
        axis = int(n.attr("axis"))
    elif n.input(2):
        axis = constant(s, n.input(2), "the axis")
    elif opset is None and rank != 3:
        raise Unsupported("the axis of DFT depends on the opset")
    else:
        axis = 1 if opset is not None and opset < 20 else -2
    axis = axis_of(axis, rank)
    if axis == rank - 1:
        raise Unsupported("the axis of DFT is the one of real and imaginary parts")
    return axis


def is_complex(x: Dims, what: str) -> bool:
    """Whether the last axis holds real and imaginary parts."""
    if len(x) < 2 or x[-1] not in (1, 2):
        raise Unsupported(f"the last axis of {what} must have size 1 or 2, and has {x[-1:]}")
    return x[-1] == 2


def dft_length(s: ShapeEnv, n: Operator, size: DimLike) -> DimLike:
    """The length of a DFT along an axis of this size."""
    if n.input(1):
        return constant(s, n.input(1), "the length")
    half = n.attr("inverse", 0) and n.attr("onesided", 0)
    return D.mul(D.sub(size, 1), 2) if half else size


def dft_dims(s: ShapeEnv, n: Operator, axis: int) -> Dims:
    """Dims of a DFT: the axis of frequencies, then real and imaginary part."""
    x = need(s, n.input(0))
    length = dft_length(s, n, x[axis])
    inverse, half = n.attr("inverse", 0), n.attr("onesided", 0)
    bins = D.add(D.floordiv(length, 2), 1) if half and not inverse else length
    return (*x[:axis], bins, *x[axis + 1 : -1], 1 if half and inverse else 2)


def dft(s: ShapeEnv, n: Operator, _: int) -> Dims:
    """Dims of DFT."""
    return dft_dims(s, n, dft_axis(s, n, len(need(s, n.input(0)))))


def frame_length(s: ShapeEnv, n: Operator, signal: DimLike) -> DimLike:
    """The length of the frames of an STFT: an input, or that of the window or of the signal."""
    if n.input(3):
        return constant(s, n.input(3), "the frame length")
    return need(s, n.input(2))[0] if n.input(2) else signal


def stft(s: ShapeEnv, n: Operator, _: int) -> Dims:
    """Dims of STFT: [batch, frames, frequencies, 2]."""
    batch, signal, *_rest = need(s, n.input(0))
    length, step = frame_length(s, n, signal), constant(s, n.input(1), "the frame step")
    if step < 1:
        raise Unsupported(f"the frame step of STFT is {step}")
    frames = D.add(D.floordiv(D.sub(signal, length), step), 1)
    bins = D.add(D.floordiv(length, 2), 1) if n.attr("onesided", 1) else length
    return (batch, frames, bins, 2)
