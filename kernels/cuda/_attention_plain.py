"""Attention in f32 without tensor cores."""

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

#: Bytes of shared memory that a block may have: of the architectures with the least, and of others.
_LEAST_SHARED, _SHARED = 99 * 1024, 163 * 1024


@dataclass(frozen=True)
class PlainTile:
    """rows, keys: of a tile, in units of 16; parts: blocks of a cluster that divide the keys."""

    rows: int
    keys: int
    parts: int

    def __str__(self) -> str:
        return f"{16 * self.rows}x{16 * self.keys}{f'/{self.parts}' if self.parts > 1 else ''}"

    def smem(self, p: Any) -> int:
        head, head_v = int(p.head), int(p.head_v)
        d, dv = -(-head // 4) * 4, -(-head_v // 64) * 64
        pitch = d + 4 + (4 if d // 4 % 2 else 0)
        rows, keys = 16 * self.rows, 16 * self.keys
        part = rows * (head_v + 2) if self.parts > 1 else 0
        return 4 * max(rows * pitch + keys * (pitch + dv + 4) + rows * (keys + 4), part)


def tiles(request: Request, p: Any) -> list[tuple[PlainTile, DimLike]]:
    """The tiles worth having, each with whether it is for the sizes of a run: the most rows of which there are tiles for every multiprocessor, else few,
    with the keys divided."""
    i = parameters(request)
    fixed = all(known(i[n]) is not None for n in "BHST")
    sizes = (4, 2, 1) if p.widest <= 128 else (2, 1)
    found: list[tuple[PlainTile, DimLike]] = []
    left: DimLike = 1  # whether no larger tile is chosen
    for rows in sizes if fixed else (sizes[0], 1):
        keys, limit = 4 if p.widest <= 128 else 2, _LEAST_SHARED if request.arch in (86, 89) or request.arch >= 120 else _SHARED
        while PlainTile(rows, keys, 1).smem(p) > limit:
            keys //= 2
        count = _attention.blocks(request, 16 * rows)
        if rows > 1:
            enough = D.less(request.sms - 1, count)
            found.append((PlainTile(rows, keys, 1), D.mul(left, enough)))
            left = D.mul(left, D.sub(1, enough))
            continue
        most = (1,) if request.arch < 90 else (1, 2, 4, 8) if fixed else (1, 4)
        found += [(PlainTile(rows, keys, n), D.mul(left, use)) for n, use in _attention.divided(request, count, i["T"], 8 * keys, most)]
    return [(tile, use) for tile, use in found if use != 0]


def kernel(request: Request, p: Any, tile: PlainTile, use: DimLike) -> Kernel:
    widths = {f"READ_{o.upper()}": _attention.access(request, p, o) for o in "qkv"}
    sizes = {"R": tile.rows, "J": tile.keys, "PARTS": tile.parts, "THREADS": 256, **widths}
    constants = "".join(f"constexpr int {k} = {v};\n" for k, v in sizes.items())
    templates = template("base", "mma", "attention", "attention_parts", "attention_fetch", "attention_simt")
    source = f"{prelude(request.dtype)}{p.constants(request.dtype)}{constants}{templates}{_attention.entry(256)}"
    grid = (D.product([_attention.blocks(request, 16 * tile.rows), tile.parts, use]), 1, 1)
    arguments = _attention.arguments(request, {})
    return Kernel(source, "attention", grid, 256, arguments, smem=tile.smem(p), cluster=tile.parts, pdl=overlapped(request))
