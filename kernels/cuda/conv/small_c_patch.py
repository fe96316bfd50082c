"""Convolutions of few channels, in or out, in 16-bit types on Hopper, transposed ones of stride 1
too (`small_c_patch.cuh`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common.instantiate import wgmma
from ..common.launch import spread
from ..gemm import select
from . import problem

#: Input channels of one pass, units of k whose text stays small, output channels of a CTA, and
#: where there are several passes.
_MOST, _UNITS, _COLUMNS, _FEW = 64, 400, 128, 64
#: An image's height or width where it is symbolic.
_USUAL = 56
#: Clocks to start, for a tile beside its products, to copy 16 bytes for a pixel, for 64 results of
#: a warpgroup; bytes of filters a clock; how much of the time that wgmma should take it does, and
#: of the rest that no product hides; of an SM for each result at least.
_START, _TILE, _COPY, _RESULT, _BYTES = 4900.0, 520.0, 0.94, 8.1, 7.0
_MULTIPLY, _SHOWN, _STORE = 0.75, 0.8, 0.55
#: Of several passes: clocks of a turn beside them, of a wgmma (the pixels of a tap begin anywhere
#: in a line of shared memory) and of each of its columns, bytes that come in a clock.
_TURN, _WGMMA, _COLUMN, _STREAM = 7000.0, 21.0, 1.05, 17.0


@dataclass(frozen=True)
class PatchTile:
    """Output rows and columns of a tile, blocks of 64 places that it has, warpgroups of a CTA,
    its output channels, parts of the input channels that follow each other.
    """

    high: int
    wide: int
    blocks: int
    groups: int
    columns: int
    passes: int = 1


tiles = (PatchTile,)


@dataclass(frozen=True)
class _Shape:
    """Input channels, window, strides, dilations."""

    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def chunks(self) -> int:
        return -(-self.channels // 8)

    @property
    def units(self) -> int:
        return self.kernel[0] * self.kernel[1] * self.chunks

    @property
    def reach(self) -> tuple[int, int]:
        """Places of one residue that the window goes beyond an output, along both axes."""
        down, across = (
            (k - 1) * d // s
            for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True)
        )
        return down, across


@dataclass(frozen=True)
class _Patch:
    """Places of a row, of one residue, of a chunk of 8 channels, of everything."""

    pitch: int
    phase: int
    plane: int
    size: int


def _pass(s: _Shape, t: PatchTile) -> _Shape:
    """The channels of one pass; of several, chunks are copied two at a time."""
    return s if t.passes == 1 else replace(s, channels=-(-s.chunks // (2 * t.passes)) * 16)


def _patch(s: _Shape, t: PatchTile) -> _Patch:
    """s: of one pass, here and below."""
    (down, across), rows = s.reach, 64 * t.blocks
    pitch = t.wide + across
    phase = max((t.high + down) * pitch, rows + down * pitch + across)
    plane = (phase * s.stride[0] * s.stride[1] + 4) // 8 * 8 + 3  # planes begin in other banks
    return _Patch(pitch, phase, plane, s.chunks * plane + s.units % 2 * rows)


def _shape(r: Request) -> _Shape:
    kh, kw, sh, sw, dh, dw = problem.window(r)
    return _Shape(select.static(r, "IC"), (kh, kw), (sh, sw), (dh, dw))


def _smem(s: _Shape, t: PatchTile) -> int:
    # With room behind the last patch for a wgmma's two chunks as if they followed each other, which
    # is how compute-sanitizer takes them.
    return (
        min(t.passes, 2) * -(-s.units // 2) * 2 * t.columns + t.groups * 2 * _patch(s, t).size + 64
    ) * 16


def _resident(s: _Shape, t: PatchTile) -> int:
    registers = t.blocks * t.columns // 2 + t.columns // 4 + 56
    return min(
        (HOPPER_SHARED + 1024) // (_smem(s, t) + 1024),
        65536 // (registers * 128 * t.groups),
        16 // t.groups,
    )


@cache
def _tiles(s: _Shape, channels: int, high: int, wide: int) -> tuple[PatchTile, ...]:
    out = []
    for count in range(1, 5):
        columns = (-(-channels // count) + 7) // 8 * 8
        if columns > _COLUMNS:
            continue
        for blocks in (1, 2):
            options = []
            for across in range(1, -(-wide // 8) + 1):
                w = -(-wide // across)
                h = min(64 * blocks // (w + s.reach[1]), high)
                if h:
                    options.append((across * -(-high // h), h, w))
            for groups in (1, 2, 4):
                for _, h, w in sorted(options)[:2]:
                    for passes in _passes(s) if s.channels <= _MOST or count == 1 else ():
                        tile = PatchTile(h, w, blocks, groups, columns, passes)
                        one = _pass(s, tile)
                        if (
                            one.units <= _UNITS
                            and _smem(one, tile) <= HOPPER_SHARED
                            and _resident(one, tile) > 0
                        ):
                            out.append(tile)
    return tuple(out)


def _passes(s: _Shape) -> list[int]:
    """In how many the input channels may be read."""
    return [1] if s.channels <= _MOST else sorted({-(-s.chunks // step) for step in (2, 4, 6, 8)})


def supports(r: Request) -> bool:
    """16 bytes of a pixel are copied at a time: where pitches are multiples of 8 elements."""
    i = r.ints
    if r.arch != 90 or r.dtype == DType.F32:
        return False
    if not problem.fixed(r, *problem.WINDOW, "IC", "OC", "G", "PT", "PL"):
        return False
    if {"x", "w"} & r.unaligned or any(multiple_of(p) < 8 for p in problem.pitches(r, "x")):
        return False
    s = _shape(r)
    if i["G"] != 1 or s.kernel == (1, 1) or (problem.transposed(r) and s.stride != (1, 1)):
        return False
    return s.units <= _UNITS if s.channels <= _MOST else int(i["OC"]) <= _FEW


def _price(r: Request, s: _Shape, t: PatchTile, images: float) -> float:
    """Clocks."""
    high, wide = problem.about(r, _USUAL, "OH", "OW")
    tiles, across = (
        images * -(-high // t.high) * -(-wide // t.wide),
        -(-int(r.ints["OC"]) // t.columns),
    )
    if t.passes > 1:
        return _price_of_passes(r, _pass(s, t), t, tiles)
    multiply = -(-s.units // 2) * t.blocks * (16.0 + t.columns / 4) * _MULTIPLY
    copies = (
        s.chunks
        * (t.high * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0])
        * _patch(s, t).pitch
        * s.stride[1]
    )
    other = _TILE + copies * _COPY + t.blocks * t.columns * _RESULT
    resident = _resident(s, t)
    turns = -(-tiles // (max(1, r.sms * resident // across) * t.groups))
    here = max(1.0, tiles * across / r.sms)  # tiles of an SM
    together = min(resident * t.groups, here)
    filters = s.units * t.columns * 16 / _BYTES * min(resident, max(1.0, here / t.groups))
    results = images * high * wide * int(r.ints["OC"]) / r.sms
    return _START + max(
        filters + turns * max(together * (multiply + _SHOWN * other), multiply + other),
        results * _STORE,
    )


def _price_of_passes(r: Request, s: _Shape, t: PatchTile, tiles: float) -> float:
    """s: of one pass."""
    pixels = (
        (t.high * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0])
        * _patch(s, t).pitch
        * s.stride[1]
    )
    resident = _resident(s, t)
    blocks = -(-tiles // t.groups)
    here = min(resident, -(-blocks // r.sms))  # of an SM
    multiply = here * t.groups * -(-s.units // 2) * t.blocks * (_WGMMA + _COLUMN * t.columns)
    fetch = here * (t.groups * s.chunks * pixels + 2 * s.units * t.columns) * 16 / _STREAM
    return -(-blocks // (r.sms * resident)) * (_TURN + t.passes * (100.0 + max(multiply, fetch)))


def prices(r: Request, rows: int) -> dict[PatchTile, float]:
    """Clocks of tiles for so many output pixels."""
    if not supports(r):
        return {}
    s, (high, wide) = _shape(r), problem.about(r, _USUAL, "OH", "OW")
    tiles = _tiles(s, int(r.ints["OC"]), high, wide) if high and wide else ()
    return {t: _price(r, s, t, rows / (high * wide)) for t in tiles}


def _units(s: _Shape, p: _Patch, transposed: bool) -> Iterator[tuple[int, int]]:
    """Where each unit lies, and which tap and chunk it is."""
    kh, kw = s.kernel
    for tap in range(kh * kw):
        down, across = (
            (kh - 1 - tap // kw, kw - 1 - tap % kw) if transposed else (tap // kw, tap % kw)
        )
        y, x = down * s.dilation[0], across * s.dilation[1]
        phase = y % s.stride[0] * s.stride[1] + x % s.stride[1]
        for c in range(s.chunks):
            yield (
                c * p.plane + phase * p.phase + y // s.stride[0] * p.pitch + x // s.stride[1],
                tap * s.chunks + c,
            )


def _unit_of(s: _Shape, units: Sequence[int], transposed: bool) -> str:
    """Text of the function from tap * chunks + chunk to the unit."""
    if s.stride == (1, 1):
        taps = s.kernel[0] * s.kernel[1]
        tap = f"{taps - 1} - j / {s.chunks}" if transposed else f"j / {s.chunks}"
        return f"DEV int unit_of(int j) {{ return j % {s.chunks} * {taps} + {tap}; }}\n"
    table = ", ".join(map(str, units))
    return (
        f"static __constant__ u16 UNITS_OF[] = {{{table}}};\n"
        "DEV int unit_of(int j) { return UNITS_OF[j]; }\n"
    )


def emit(r: Request, tile: PatchTile, active: DimLike = 1) -> list[Kernel]:
    """active: 0 empties the grid."""
    assert supports(r)
    i, whole = r.ints, _shape(r)
    s = _pass(whole, tile)
    p, oc, transposed = _patch(s, tile), int(i["OC"]), problem.transposed(r)
    units = sorted(_units(s, p, transposed))
    offsets = [at for at, _ in units] + [p.size - 64 * tile.blocks] * (s.units % 2)
    unit_of = [0] * s.units
    for u, (_, j) in enumerate(units):
        unit_of[j] = u
    before = [
        (k - 1) * d - int(i[n]) if transposed else int(i[n])
        for k, d, n in zip(s.kernel, s.dilation, ("PT", "PL"), strict=True)
    ]
    rows_in, columns_in = (
        (n - 1) * st + (k - 1) * d + 1
        for n, k, st, d in zip((tile.high, tile.wide), s.kernel, s.stride, s.dilation, strict=True)
    )
    across = -(-oc // tile.columns)
    tiles = D.product([i["N"], D.ceildiv(i["OH"], tile.high), D.ceildiv(i["OW"], tile.wide)])
    blocks = D.minimum(D.ceildiv(tiles, tile.groups), max(1, _resident(s, tile) * r.sms // across))
    return problem.kernel(
        r,
        "conv/small_c_patch",
        ("N", "IH", "IW", "OH", "OW"),
        (D.mul(blocks, active), across, 1),
        128 * tile.groups,
        {
            "IC": whole.channels,
            "OC": oc,
            "C8": s.chunks,
            "PASSES": tile.passes,
            "TAPS": s.kernel[0] * s.kernel[1],
            "SH": s.stride[0],
            "SW": s.stride[1],
            "PT": before[0],
            "PL": before[1],
            "TILE_H": tile.high,
            "TILE_W": tile.wide,
            "PITCH": p.pitch,
            "ROWS_IN": rows_in,
            "COLUMNS_IN": columns_in,
            "PHASE": p.phase,
            "PLANE": p.plane,
            "SIZE": p.size,
            "UNITS": s.units,
            "BLOCKS": tile.blocks,
            "GROUPS": tile.groups,
            "RESIDENT": _resident(s, tile),
            "BN": tile.columns,
        },
        width=2,
        macros=wgmma(r.dtype, tile.columns),
        text=f"constexpr int OFFSETS[] = {{{', '.join(map(str, offsets))}}};\n"
        + _unit_of(s, unit_of, transposed),
        smem=spread(r, D.mul(blocks, across), _smem(s, tile)),
    )
