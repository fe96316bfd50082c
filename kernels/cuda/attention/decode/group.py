"""Attention of few query rows of heads that share keys: these rows are those of one tile of tensor
cores, keys are read once, divided among the warps of the device's blocks, and a second kernel joins
what they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ...common.launch import known, overlapped, parameters, shared
from ...common.prelude import prelude
from ...common.templates import template
from .. import problem
from . import simt as decode_simt

#: Rows of a tile, keys of a warp at a time, warps of a block, the most stages of keys that are
#: under way; the widest head that fits a thread's registers.
_ROWS, _KEYS, _WARPS, _MOST_STAGES, _WIDEST = 16, 8, 8, 6, 128
#: Bytes of shared memory beside the stages.
_OTHER = 4096
#: Most blocks that share rows, where another kernel joins what they have; of how few tiles each has
#: a multiprocessor to itself.
_MOST_PARTS, _FEW = 128, 4


@dataclass(frozen=True)
class GroupTile:
    """Rows of a block; as many blocks divide the keys as fill the device."""

    rows: int = _ROWS
    spread: bool = True

    def __str__(self) -> str:
        return "group spread"


def fits(request: Request, p: Any) -> bool:
    """Whether rows are whole aligned vectors of heads that are not too wide."""
    return (
        request.arch >= 80
        and request.dtype != DType.F32
        and p.widest <= _WIDEST
        and all(problem.access(request, p, o) * request.dtype.size == 16 for o in "qkv")
    )


def instead(request: Request, p: Any, few: list[tuple[Any, DimLike]]) -> list[tuple[Any, DimLike]]:
    """The tiles for few rows, where several of these read the same keys and several blocks would
    divide them this one.
    """
    rows = known(decode_simt.rows_of(request))
    if rows is None or rows < 2 or not fits(request, p):
        return few
    use: DimLike = 0
    for tile, used in few:
        if tile.spread or tile.parts > 1:
            use = D.add(use, used)
    return [
        *((tile, used) for tile, used in few if not tile.spread and tile.parts == 1),
        *([(GroupTile(), use)] if use != 0 else []),
    ]


def _shares(request: Request) -> DimLike:
    """Into how many parts keys are divided at most: each has two stages of them."""
    return D.ceildiv(parameters(request)["T"], 2 * _KEYS * _WARPS)


def _residents(request: Request, p: Any) -> tuple[int, int]:
    """Blocks of a multiprocessor, and the stages that each has: two blocks, which hide each other's
    waits, where they fit and there are many (of few, which come while others leave, some
    multiprocessors would have two and others none)."""
    count = known(decode_simt.count_of(request, _ROWS))
    parts = known(_shares(request))
    many = count is not None and parts is not None and count > _FEW and count * parts > request.sms
    blocks = 2 if many and shared(request) // 2 - _OTHER >= 2 * _bytes(p) else 1
    return blocks, min(_MOST_STAGES, (shared(request) // blocks - _OTHER) // _bytes(p))


def _bytes(p: Any) -> int:
    """Of a stage."""
    pitches = (-(-int(n) // 16) * 32 + 16 for n in (p.head, p.head_v))
    return _WARPS * _KEYS * sum(pitches)


def parts_of(request: Request, p: Any, tile: GroupTile) -> DimLike:
    """Blocks that have the same rows."""
    fill = D.floordiv(
        _residents(request, p)[0] * request.sms, D.maximum(decode_simt.count_of(request, _ROWS), 1)
    )
    return D.maximum(D.minimum(_MOST_PARTS, D.minimum(fill, _shares(request))), 1)


def scratch(request: Request, p: Any, tile: GroupTile, use: DimLike) -> DimLike:
    """Bytes of what blocks have that another kernel joins."""
    return D.product(
        [
            decode_simt.count_of(request, _ROWS),
            D.add(parts_of(request, p, tile), 1),
            _ROWS * (p.head_v + 2) * 4,
            use,
        ]
    )


def kernels(request: Request, p: Any, tile: GroupTile, use: DimLike, place: str) -> list[Kernel]:
    """place: where what blocks have lies until another kernel joins it."""
    block, parts, count = (
        32 * _WARPS,
        parts_of(request, p, tile),
        D.mul(decode_simt.count_of(request, _ROWS), use),
    )
    blocks, stages = _residents(request, p)
    constants = f"constexpr int ROWS = {_ROWS}, PARTS = 1, THREADS = {block}, WARPS = {_WARPS}, KEYS = {_KEYS}, STAGES = {stages};\n"
    templates = template(
        "common/base",
        "common/mma",
        "attention/problem",
        "attention/splitkv_cluster",
        "attention/decode/group",
    )
    text = f"{prelude(request.dtype)}{p.constants(request.dtype)}{constants}{templates}"
    arguments = problem.arguments(request, {"y": place})
    group = Kernel(
        text + problem.entry(block, blocks=blocks),
        "attention",
        (count, parts, 1),
        block,
        arguments,
        smem=stages * _bytes(p),
        pdl=overlapped(request),
    )
    return [
        group,
        decode_simt.joining(
            request, p, _ROWS, count, D.mul(count, parts), known(parts) or _MOST_PARTS, place
        ),
    ]


TILE = GroupTile
