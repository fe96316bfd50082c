"""Weights of 2, 4 or 8 bits as MatMulNBits holds them, and what they are in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Weights:
    """values [n, blocks * block] (unsigned; those past k count for nothing), scales and zeros of
    each block [n, blocks].
    """

    k: int
    n: int
    bits: int
    block: int
    values: U8
    scales: npt.NDArray[np.float32]
    zeros: npt.NDArray[Any] | None  # as MatMulNBits takes them: packed, or floats
    zero_values: npt.NDArray[Any]

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    @staticmethod
    def together(values: U8, bits: int) -> U8:
        """Values one behind the other from the lowest bits of each byte on; rows begin bytes."""
        per = 8 // bits
        rows = np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, -values.shape[-1] % per)])
        parts = rows.reshape(*rows.shape[:-1], -1, per).astype(np.uint8)
        shifts = np.arange(per, dtype=np.uint8) * np.uint8(bits)
        return np.asarray(np.bitwise_or.reduce(parts << shifts, axis=-1), np.uint8)

    @property
    def blobs(self) -> U8:
        """[n, blocks, bytes]."""
        return self.together(self.values, self.bits).reshape(self.n, self.blocks, -1)

    def _scaled(self, zeros: npt.NDArray[Any], sign: int) -> npt.NDArray[np.float64]:
        values = self.values.reshape(self.n, self.blocks, self.block).astype(np.float64)
        scaled = (values + sign * zeros[..., None]) * self.scales[..., None].astype(np.float64)
        return np.asarray(scaled.reshape(self.n, -1)[:, : self.k].T)

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """[k, n]."""
        return self._scaled(self.zero_values.astype(np.float64), -1)

    @property
    def largest(self) -> npt.NDArray[np.float64]:
        """What each of them adds to a sum in which values and zeros are apart."""
        return self._scaled(np.abs(self.zero_values).astype(np.float64), 1)


def weights(seed: int, k: int, n: int, bits: int, block: int, zeros: str) -> Weights:
    """zeros: none, packed or float."""
    rng, blocks = np.random.default_rng(seed), -(-k // block)
    values = rng.integers(0, 1 << bits, (n, blocks * block)).astype(np.uint8)
    scales = rng.uniform(0.001, 0.1, (n, blocks)).astype(np.float32)
    if zeros == "none":
        middle = np.full((n, blocks), 1 << (bits - 1), np.uint8)
        return Weights(k, n, bits, block, values, scales, None, middle)
    if zeros == "packed":
        each = rng.integers(0, 1 << bits, (n, blocks)).astype(np.uint8)
        return Weights(k, n, bits, block, values, scales, Weights.together(each, bits), each)
    floats = rng.uniform(0, 1 << bits, (n, blocks)).astype(np.float32)
    return Weights(k, n, bits, block, values, scales, floats, floats)
