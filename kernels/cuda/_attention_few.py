"""Attention of few query rows (decoding): threads read the keys once, divided among the warps of a block and the blocks of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Kernel, Request
from tracea_onnx.cuda_source import known, overlapped, parameters, template
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike

_attention = registry.module("kernels", "cuda").part("_attention")

#: The most rows that read the same keys.
_MOST = 8
_WARPS = 8


@dataclass(frozen=True)
class FewTile:
    """rows: of a block, which read the same keys; parts: blocks of a cluster that divide them."""

    rows: int
    parts: int

    @property
    def at_once(self) -> int:
        """Keys that a thread has in flight: as many as there are registers for."""
        return 4 if self.rows <= 2 else 2

    def __str__(self) -> str:
        return f"few {self.rows}{f'/{self.parts}' if self.parts > 1 else ''}"


def _rows(request: Request) -> DimLike:
    """Of the heads that share keys."""
    i = parameters(request)
    return D.mul(D.floordiv(i["H"], D.maximum(i["KVH"], 1)), i["S"])


def _count(request: Request, rows: int) -> DimLike:
    i = parameters(request)
    return D.product([i["B"], i["KVH"], D.ceildiv(_rows(request), rows)])


def _lanes(request: Request, widest: int) -> tuple[int, int]:
    """Threads that have one key, and of how many 16 bytes each."""
    pieces = -(-widest * request.dtype.size // 16)
    lanes = next(n for n in (1, 2, 4, 8, 16, 32) if n >= min(pieces, 32))
    return lanes, -(-pieces // lanes)


def tiles(request: Request, widest: int) -> list[tuple[FewTile, DimLike]]:
    """The tiles worth having, each with whether it is for the sizes of a run; none is where rows are many."""
    rows = _rows(request)
    exact = known(rows)
    some = next(n for n in (1, 2, 4) if n >= min(4, exact or 4))
    least = 4 * _WARPS * 32 // _lanes(request, widest)[0]
    most = (1,) if request.arch < 90 else (1, 2, 4, 8) if exact is not None else (1, 8)
    few = D.less(rows, _MOST + 1)
    found = [(FewTile(some, n), D.mul(few, use)) for n, use in _attention.divided(request, _count(request, some), parameters(request)["T"], least, most)]
    return [(tile, use) for tile, use in found if use != 0]


def kernel(request: Request, p: Any, tile: FewTile, use: DimLike) -> Kernel:
    lanes, chunks = _lanes(request, p.widest)
    widths = {f"READ_{o.upper()}": _attention.access(request, p, o) for o in "qkv"}
    sizes = {"ROWS": tile.rows, "PARTS": tile.parts, "THREADS": 32 * _WARPS, "WARPS": _WARPS, "AT_ONCE": tile.at_once}
    sizes |= {"LANES": lanes, "CHUNKS": chunks, "V": 16 // request.dtype.size, **widths}
    constants = "".join(f"constexpr int {k} = {v};\n" for k, v in sizes.items())
    templates = template("base", "attention", "attention_parts", "attention_few")
    source = f"{prelude(request.dtype)}{p.constants(request.dtype)}{constants}{templates}{_attention.entry(32 * _WARPS, blocks=2)}"
    grid = (D.product([_count(request, tile.rows), tile.parts, use]), 1, 1)
    return Kernel(source, "attention", grid, 32 * _WARPS, _attention.arguments(request, {}), cluster=tile.parts, pdl=overlapped(request))
