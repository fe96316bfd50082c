"""Texts of the kernels' templates."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]


@cache
def template(*names: str) -> str:
    """The texts `kernels/cuda/<name>.cuh`, one after the other; a name has its folders:
    `gemm/persistent_sm90`.
    """
    return "\n".join((_FOLDER / f"{name}.cuh").read_text() for name in names)
