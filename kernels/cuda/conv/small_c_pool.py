"""Convolutions of few input channels over images of any layout, optionally fused with the max
pooling that follows (`small_c_pool.cuh`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue
from ..common.instantiate import ints, longs, wgmma
from ..cost.fitted import fitted
from ..gemm import select
from . import problem

_RELU = ACTIVATIONS.index("relu")
_STATIC = ("IC", "KH", "KW", "SH", "SW")
#: Most steps along k whose pixels fit into registers, most rows of results per warp, assumed height
#: and width of symbolic results.
_STEPS, _MOST_LINES, _USUAL = 20, 16, 112
#: Clocks: of a CTA before its first row; of a team's row besides its MMAs: least, per channel and
#: per piece of the image that a thread copies; latency of a row.
_START, _ROW, _CHANNEL, _PIECE, _LATENCY = fitted(
    "conv.small_c_pool", "start row channel piece latency"
)
#: Most bytes of shared memory of a CTA.
_SMEM = 96 * 1024


@dataclass(frozen=True)
class PoolTile:
    """across: of the four warps of a team, those along columns (the others are along rows);
    columns: output channels of a CTA; resident CTAs per SM; teams of a CTA.
    """

    across: int
    columns: int
    resident: int
    teams: int = 1


def _pooled(r: Request) -> bool:
    return r.family == "conv_pool"


def _size(r: Request) -> tuple[DimLike, DimLike]:
    """Height and width of the results."""
    height, width = ("PH", "PW") if _pooled(r) else ("OH", "OW")
    return r.ints[height], r.ints[width]


def _shape(r: Request) -> tuple[int, int]:
    """Pairs of taps of a row of the window, rounded up to a power of two; steps of 16 k."""
    ic, kh, kw = (int(r.ints[n]) for n in _STATIC[:3])
    pairs = 1 if kw <= 2 else 2 if kw <= 4 else 4
    return pairs, -(-kh * -(-ic * pairs // 4) // 2)


def _results(r: Request) -> int:
    """Columns of results per warp."""
    return 16 if not _pooled(r) else 7 if r.ints["PKW"] == 3 else 8


def _layout(r: Request, tile: PoolTile) -> dict[str, int]:
    """Layout of the rows of the image in shared memory (constants of the header)."""
    kh, kw, sh, sw = (int(r.ints[n]) for n in _STATIC[1:])
    pairs, _ = _shape(r)
    columns_each = _results(r) * (2 if _pooled(r) else 1)
    copy, ahead = _pieces(r, tile.across * columns_each * sw)
    shift = int(sw % 2 == 0 and ahead % 2 == 1 and kw < 2 * pairs)
    aligned = sw % 2 == 0 and (ahead - shift) % 2 == 0
    words = (
        (tile.across - 1) * columns_each * sw + 15 * sw + ahead - shift + 2 * pairs + 1
    ) // 2 + (not aligned)
    words = -(-words * 4 // max(copy, 4)) * max(copy, 4) // 4
    # no bank conflicts in a warp
    pitch = words + (8 * pairs - words) % 32 if pairs < 4 else words
    early = 2 if copy else 1
    return {
        "COPY": copy,
        "AHEAD": ahead,
        "SHIFT": shift,
        "PAIRS": pairs,
        "WORDS": words,
        "PITCH": pitch,
        "SLOTS": max(-(-kh // sh) + early - 1, early + 1),
    }


def _pieces(r: Request, step: int) -> tuple[int, int]:
    """Bytes of a copy, 0 if pixels are copied one by one; columns before the first pixel of a strip
    that a copy includes. step: columns from one strip to the next.
    """
    i = r.ints
    first = i["PL"] + (D.mul(i["PPL"], i["SW"]) if _pooled(r) else 0)
    if not problem.planar(r) or i["x_cs"] != 1 or not isinstance(first, int) or "x" in r.unaligned:
        return 0, 0
    whole = min(multiple_of(v) for v in (i["IW"], i["x_rs"], i["x_ns"], i["x_c"], step))
    for size in (8, 4, 2):
        if whole % size == 0:
            return 2 * size, -first % size
    return 0, 0


def _smem(r: Request, tile: PoolTile) -> int:
    ic, _, _, sh, _ = (int(r.ints[n]) for n in _STATIC)
    at = _layout(r, tile)
    rows = at["SLOTS"] * 4 // tile.across * sh * ic
    return tile.columns * (_shape(r)[1] * 32 + 16) + tile.teams * rows * at["PITCH"] * 4


def supports(r: Request) -> bool:
    i = r.ints
    if r.dtype == DType.F32 or not problem.fixed(r, *_STATIC, "DH", "DW", "OC", "G"):
        return False
    if problem.transposed(r) or i["DH"] != 1 or i["DW"] != 1 or i["G"] != 1:
        return False
    return int(i["IC"]) <= 8 and int(i["KW"]) <= 8 and _shape(r)[1] <= _STEPS and bool(configs(r))


def configs(r: Request) -> list[PoolTile]:
    """Tiles of one or two teams, with as many resident CTAs as registers and shared memory of an SM
    allow.
    """
    oc = int(r.ints["OC"])
    columns = 64 if oc > 32 else 32 if oc > 16 else 16
    finish = (
        columns // 2
        + 8 * _pooled(r)
        + (16 if r.program is not None else 8 if epilogue.residual(r) else 0)
    )
    total = r.caps.smem_block
    out = []
    for across in (4, 2, 1):
        for teams in (1, 2) if r.arch == 90 else (1,):
            tile = PoolTile(across, columns, 1, teams)
            smem, copied = _smem(r, tile), 0 if _layout(r, tile)["COPY"] else _copied(r, tile)
            registers = -(-(21 + columns // 2 + 3 * _shape(r)[1] + max(finish, copied)) // 8) * 8
            if smem <= _SMEM:
                out.append(
                    replace(
                        tile,
                        resident=max(
                            1, min(65536 // (128 * teams * registers), total // (smem + 1024))
                        ),
                    )
                )
    return out


def _copied(r: Request, tile: PoolTile) -> int:
    """Pieces or single elements of the image that a thread copies for every row."""
    at, ic = _layout(r, tile), int(r.ints["IC"])
    words = 4 // tile.across * int(r.ints["SH"]) * at["WORDS"]
    return -(-(words * ic * 4 // at["COPY"]) // 128) if at["COPY"] else 2 * ic * -(-words // 128)


def cost(r: Request, tile: PoolTile, images: int) -> float:
    """Clocks for `images` images."""
    i = r.ints
    height, width = (int(select.known(d, _USUAL)) for d in _size(r))
    strips = images * -(-width // (tile.across * _results(r))) * -(-int(i["OC"]) // tile.columns)
    lines = int(_lines(r, tile, height, strips))
    ctas = strips * -(-height // (lines * tile.teams * 4 // tile.across))
    rows = 2 * lines + int(i["PKH"]) - 2 if _pooled(r) else lines
    mma, other = (
        _shape(r)[1] * tile.columns / 2,
        _ROW + _CHANNEL * tile.columns + _PIECE * _copied(r, tile),
    )
    # teams of a CTA alternate MMAs and epilogues; independent CTAs do not
    one = max(mma, other) if tile.teams > 1 else mma + other
    row = max(_LATENCY, min(tile.resident, -(-ctas // r.sms)) * tile.teams * one)
    return -(-ctas // (tile.resident * r.sms)) * (_START + rows * row)


def choose(r: Request) -> Iterator[tuple[PoolTile, DimLike]]:
    """(tile, condition) of each kernel of a convolution to which this one applies."""
    size = _size(r)
    image = max(1, int(D.product([select.known(d, _USUAL) for d in size])))
    tiles = configs(r)

    def price(pixels: int) -> dict[PoolTile, float]:
        return {t: cost(r, t, -(-pixels // image)) for t in tiles}

    yield from select.choose(D.product([r.ints["N"], *size]), price)


def _lines(r: Request, tile: PoolTile, height: DimLike, across: DimLike) -> DimLike:
    """Rows of results per warp: at most _MOST_LINES, and so many that all CTAs are concurrent.
    across: CTAs of all images along columns and channels.
    """
    down = tile.teams * 4 // tile.across
    bands = D.maximum(
        D.ceildiv(height, down * _MOST_LINES),
        D.floordiv(tile.resident * r.sms, D.maximum(1, across)),
    )
    return D.maximum(1, D.ceildiv(D.ceildiv(height, down), D.maximum(1, bands)))


def emit(r: Request, tile: PoolTile, active: DimLike = 1) -> list[Kernel]:
    """active: 0 empties the grid."""
    i, pooled, warpgroups = r.ints, _pooled(r), r.arch == 90
    height, width = _size(r)
    down, columns = tile.teams * 4 // tile.across, -(-int(i["OC"]) // tile.columns)
    strips = D.ceildiv(width, tile.across * _results(r))
    lines = _lines(r, tile, height, D.product([i["N"], strips, columns]))
    # the stride of channels, 0 if they are contiguous; may be symbolic for planar images
    step = i.get("x_c", 0)
    relu = pooled and r.program is None and i.get("act", 0) == _RELU
    layout = _layout(r, tile)
    return problem.kernel(
        replace(r, ints={**i, "act": 0}) if relu else r,
        "conv/small_c_pool",
        ("IH", "IW", "OH", "OW", "OC", "PT", "PL", *(("PPT", "PPL") if pooled else ())),
        (D.product([i["N"], strips, D.ceildiv(height, D.mul(lines, down)), active]), columns, 1),
        128 * tile.teams,
        {
            **{n: int(i[n]) for n in _STATIC},
            **{n: int(i[n]) if pooled else 0 for n in ("PKH", "PKW")},
            **({} if pooled else {"PPT": 0, "PPL": 0}),
            "BN": tile.columns,
            "ACROSS": tile.across,
            "TEAMS": tile.teams,
            "RESIDENT": tile.resident,
            "RELU": relu,
            **{n: v for n, v in layout.items() if n != "COPY"},
        },
        more=[
            *ints({"H": height, "W": width, "lines": lines}),
            *longs({"x_c": 1 if isinstance(step, int) and step == 0 else step}),
        ],
        width=2,
        unread=("r_cs", "r_rs", "r_ns") if pooled else (),
        macros={
            "WARPGROUPS": warpgroups,
            "POOL": pooled,
            "COPY": layout["COPY"],
            **(wgmma(r.dtype, tile.columns) if warpgroups else {}),
        },
        smem=_smem(r, tile),
    )
