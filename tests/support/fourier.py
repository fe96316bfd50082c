"""Launches of the family `fft`, and what `numpy.fft` makes of the same numbers in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_onnx.plan import fourier_tables

Array = npt.NDArray[Any]
COMPLEX, OF_REAL, TO_REAL = range(3)


@dataclass(frozen=True)
class Fourier:
    """A launch of B x M transforms. terms: elements that are read of each signal (0: those of the
    length); bins: elements that are written (0: all). columns: signals are columns, as along an
    axis that is not the last; step: signals are frames so far apart, one behind the other.
    """

    length: int
    kind: int = OF_REAL
    inverse: bool = False
    batch: tuple[int, int] = (1, 3)
    terms: int = 0
    bins: int = 0
    window: bool = False
    columns: bool = False
    step: int = 0

    @property
    def passes(self) -> tuple[int, ...]:
        n = fourier_tables.complex_length(self.length, real=self.kind != COMPLEX)
        found = fourier_tables.radices(n) or fourier_tables.radices(fourier_tables.chirped(n))
        assert found is not None
        return found

    @property
    def _read(self) -> int:
        half = self.length // 2 + 1 if self.kind == TO_REAL else self.length
        return min(self.terms or half, self.length)

    @property
    def _written(self) -> int:
        return self.bins or self.length

    def floats(self) -> dict[str, float]:
        return {"scale": 1 / self.length if self.inverse else 1.0}

    def ints(self) -> dict[str, int]:
        (b, m), parts, out = self.batch, self._parts(OF_REAL), self._parts(TO_REAL)
        ints = {
            "kind": self.kind, "inverse": int(self.inverse), "B": b, "M": m, "N": self.length,
            "T": self._read, "K": self._written, "C": self.tables().size,
            **{f"radix{k}": radix for k, radix in enumerate(self.passes)},
        }  # fmt: skip
        for o, count, size in (("x", self._read, parts), ("y", self._written, out)):
            strides = (m * count, 1, m) if self.columns else (m * count, count, 1)
            ints |= {f"{o}_{n}": s * size for n, s in zip("bmn", strides, strict=True)}
        if self.step:
            ints |= {"x_b": self._samples() * parts, "x_m": self.step * parts}
        return ints

    def _samples(self) -> int:
        return (self.batch[1] - 1) * self.step + self._read

    def _parts(self, real: int) -> int:
        return 1 if self.kind == real else 2

    def tables(self) -> Array:
        return fourier_tables.tables(self.length, self.passes, real=self.kind != COMPLEX)

    def draw(self, rng: np.random.Generator) -> dict[str, Array]:
        """Signals and the window."""
        b, m = self.batch
        lead = (b, self._samples()) if self.step else (b, m, self._read)
        if self.columns:
            lead = (b, self._read, m)
        made: dict[str, Array] = {"x": rng.standard_normal((*lead, self._parts(OF_REAL)))}
        if self.window:
            made["window"] = rng.random(self.length) + 0.1
        return {k: v.astype(np.float32) for k, v in made.items()}

    def want(self, given: Mapping[str, Array]) -> Array:
        """In float64, [B, M, K, parts] or, of columns, [B, K, M, parts]."""
        x = given["x"].astype(np.float64)
        z: Array = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
        if self.step:
            z = np.lib.stride_tricks.sliding_window_view(z, self._read, 1)[:, :: self.step]
        z = z.swapaxes(1, 2) if self.columns else z
        if self.window:
            z = z * given["window"].astype(np.float64)[: self._read]
        if self.kind == TO_REAL:
            y = np.fft.irfft(z, self.length)[..., : self._written, None]
        else:
            f = np.fft.ifft(z, self.length) if self.inverse else np.fft.fft(z, self.length)
            y = np.stack([f.real, f.imag], -1)[..., : self._written, :]
        return y.swapaxes(1, 2) if self.columns else y

    def bound(self, want: Array) -> float:
        """Of the rounding of a sum of so many terms in f32."""
        largest = max(1e-3, float(np.abs(want).max(initial=0.0)))
        return 3e-7 * (math.sqrt(math.sqrt(self.length)) + 2) * largest


def all_kinds(length: int, **more: Any) -> list[Fourier]:
    """Transforms of one length."""
    half = length // 2 + 1
    return [
        Fourier(length, COMPLEX, **more), Fourier(length, COMPLEX, True, **more),
        Fourier(length, OF_REAL, bins=half, **more), Fourier(length, OF_REAL, **more),
        Fourier(length, OF_REAL, True, **more), Fourier(length, TO_REAL, True, **more),
    ]  # fmt: skip
