"""Attention of few query rows of heads that share keys: these rows are those of one tile of tensor cores, keys are read once, divided among the warps of the
device's blocks, and a second kernel joins what they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Int32, Kernel, Request
from tracea_onnx.cuda_source import known, overlapped, parameters, template
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_attention = registry.module("kernels", "cuda").part("_attention")
_few = registry.module("kernels", "cuda").part("_attention_few")

#: Rows of a tile, keys of a warp at a time, warps of a block, how far ahead they fetch; the widest head that fits a thread's registers.
_ROWS, _KEYS, _WARPS, _STAGES, _WIDEST = 16, 16, 8, 3, 128
#: Most blocks that share rows, where another kernel joins what they have, and its threads.
_MOST_PARTS, _JOINING = 128, 512


@dataclass(frozen=True)
class GroupTile:
    """Rows of a block; as many blocks divide the keys as fill the device."""

    rows: int = _ROWS
    spread: bool = True

    def __str__(self) -> str:
        return "group spread"


def instead(request: Request, p: Any, few: list[tuple[Any, DimLike]]) -> list[tuple[Any, DimLike]]:
    """The tiles for few rows, where keys are so many that all the device divides them and several tiles would read them: this one, if rows are whole aligned
    vectors of heads that are not too wide."""
    fits = request.arch >= 80 and request.dtype != DType.F32 and p.widest <= _WIDEST and all(_attention.access(request, p, o) * request.dtype.size == 16 for o in "qkv")
    rows = known(_few.rows_of(request))
    if not fits or rows is None:
        return few
    return [(GroupTile() if tile.spread and rows > tile.rows else tile, use) for tile, use in few]


def parts_of(request: Request, p: Any, tile: GroupTile) -> DimLike:
    """Blocks that have the same rows."""
    each = 2 if p.head + p.head_v <= _WIDEST else 1  # blocks of a multiprocessor
    fill = D.floordiv(each * request.sms, D.maximum(_few.count_of(request, _ROWS), 1))
    return D.maximum(D.minimum(_MOST_PARTS, D.minimum(fill, D.ceildiv(parameters(request)["T"], _KEYS * _WARPS))), 1)


def scratch(request: Request, p: Any, tile: GroupTile, use: DimLike) -> DimLike:
    """Bytes of what blocks have that another kernel joins."""
    return D.product([_few.count_of(request, _ROWS), parts_of(request, p, tile), _ROWS * (p.head_v + 2) * 4, use])


def kernels(request: Request, p: Any, tile: GroupTile, use: DimLike, place: str) -> list[Kernel]:
    """place: where what blocks have lies until another kernel joins it."""
    block, parts, count = 32 * _WARPS, parts_of(request, p, tile), D.mul(_few.count_of(request, _ROWS), use)
    start = f"{prelude(request.dtype)}{p.constants(request.dtype)}constexpr int ROWS = {_ROWS}, PARTS = 1"
    text = f"{start}, THREADS = {block}, WARPS = {_WARPS}, KEYS = {_KEYS}, STAGES = {_STAGES};\n"
    text += template("base", "mma", "attention", "attention_parts", "attention_warps", "attention_group") + _attention.entry(block)
    pitches, pdl = sum(-(-n // 16) * 32 + 16 for n in (p.head, p.head_v)), overlapped(request)
    smem = _WARPS * _STAGES * _KEYS * pitches  # what the warps have fits in it, too
    group = Kernel(text, "attention", (count, parts, 1), block, _attention.arguments(request, {"y": place}), smem=smem, pdl=pdl)
    text = f"{start}, THREADS = {_JOINING}, MOST_PARTS = {_MOST_PARTS};\n"
    text += template("base", "attention", "attention_parts", "attention_join") + _attention.entry(_JOINING, last="parts")
    joined = (*_attention.arguments(request, {"q": place}), Int32(parts))
    return [group, Kernel(text, "attention", (count, D.minimum(_few.rows_of(request), _ROWS), 1), _JOINING, joined, pdl=pdl)]


TILE = GroupTile
