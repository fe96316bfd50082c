"""How a Fourier transform is divided into passes, and the factors that its kernels read: the
constant operand of the family `fft`, in float64 until it is stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracea_onnx.plan.kernel_families import PASSES

_F64 = npt.NDArray[np.float64]
#: What the kernels have butterflies of, the largest first.
_RADICES = (16, 8, 4, 2, 5, 3, 7, 11, 13)
#: Radices of the first pass, the best first: it makes results for 16 lanes.
_FIRST = (16, 8, 5, 4, 7, 13, 3, 2, 11)
#: The least length of what the first pass leaves, along which it has its lanes.
_LANES = 16

#: Points of the longest complex transform on a GPU: a block has two copies in its shared memory.
ON_GPU = 3072


def complex_length(length: int, *, real: bool) -> int:
    """Of the complex transform that one of this length is made by: half as long, where signal or
    result are real.
    """
    return length // 2 if real and length % 2 == 0 else length


def _factors(n: int) -> list[int]:
    """Radices whose product is n; the last one takes what none divides."""
    found = []
    for radix in _RADICES:
        while n % radix == 0:
            found.append(radix)
            n //= radix
    if found[:1] == [16] and 2 in found:  # 8 x 4 takes less than 16 x 2
        found.remove(2)
        found[:1] = [8, 4]
    return [*found, n] if n > 1 else found


def radices(n: int) -> tuple[int, ...] | None:
    """Of the passes of a complex transform of length n, 1 behind the last one; None where it has a
    prime factor that no kernel has a butterfly of.
    """
    first = next((r for r in _FIRST if n % r == 0 and n // r >= _LANES), 1)
    found = [first, *_factors(n // first)]
    if len(found) > PASSES or not {*found} <= {1, *_RADICES}:
        return None
    return tuple(found + [1] * (PASSES - len(found)))


def chirped(n: int) -> int:
    """The length of the convolution that makes a transform of any length n (Bluestein)."""
    return next(m for m in itertools.count(2 * n - 1) if m % _LANES == 0 and radices(m) is not None)


def _planes(z: npt.NDArray[np.complex128]) -> list[_F64]:
    return [z.real.reshape(-1), z.imag.reshape(-1)]


def _pairs(z: npt.NDArray[np.complex128]) -> list[_F64]:
    return [np.stack([z.real, z.imag], -1).reshape(-1)]


def tables(length: int, passes: Sequence[int], *, real: bool) -> npt.NDArray[np.float32]:
    """The operand `tables`: of each pass the roots of 1 of its radix (cosine, sine), then
    exp(-2 pi i p j / n) for 1 <= j < radix: of the first pass [j, p] in planes of real and
    imaginary parts, of others [p, j] in pairs. Where passes are longer than the complex transform:
    its chirp exp(-pi i k k / n), and the spectrum of the conjugate, in planes. Of real transforms
    of even length exp(-2 pi i k / length), in planes.
    """
    n, whole = complex_length(length, real=real), math.prod(passes)
    left, out = whole, list[_F64]()
    for number, radix in enumerate(passes):
        if number and radix == 1:
            continue
        out += _pairs(np.exp(2j * np.pi * np.arange(radix) / radix))
        count, left = left, left // radix
        turns = np.outer(np.arange(1, radix), np.arange(left))
        factors = np.exp(-2j * np.pi * (turns % count) / count)
        out += _planes(factors) if not number else _pairs(factors.T)
    if whole != n:
        wave = np.exp(-1j * np.pi * (np.arange(n) ** 2 % (2 * n)) / n)
        around = np.zeros(whole, np.complex128)
        around[:n] = wave.conj()
        around[whole - n + 1 :] = wave[:0:-1].conj()
        out += _planes(wave) + _planes(np.fft.fft(around) / whole)
    if real and length % 2 == 0:
        out += _planes(np.exp(-2j * np.pi * np.arange(n + 1) / length))
    return np.concatenate(out).astype(np.float32)
