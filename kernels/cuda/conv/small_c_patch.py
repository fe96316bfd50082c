"""Convolutions of few input or output channels in 16-bit types on Hopper, also transposed ones of
stride 1 (`small_c_patch.cuh`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common.instantiate import wgmma
from ..common.launch import smem_of_partial_wave
from ..cost.fitted import fitted
from ..gemm import select
from . import problem

#: Most input channels of one pass, units of k (unrolled), output channels of a CTA, output channels
#: of convolutions with several passes.
_MOST_CHANNELS, _MOST_UNITS, _MOST_COLUMNS, _MOST_MULTIPASS = 64, 400, 128, 64
#: Height and width that are assumed for symbolic ones.
_USUAL = 56
#: Clocks to start, of a tile besides its MMAs, of a copy of 16 bytes, of 64 results of a warpgroup;
#: bytes of filters a clock; factor of the ideal clocks of wgmma, share of the other clocks that
#: MMAs do not hide; least clocks of an SM per result.
_START, _TILE, _COPY, _RESULT, _BYTES = fitted("conv.small_c_patch", "start tile copy result bytes")
_MULTIPLY, _EXPOSED, _STORE = fitted("conv.small_c_patch", "multiply exposed store")
#: With several passes: clocks of a wave besides these, of a wgmma (A is not aligned to lines of
#: shared memory) and of each of its columns; bytes copied a clock.
_WAVE, _WGMMA, _COLUMN, _STREAM = fitted("conv.small_c_patch", "wave wgmma column stream")


@dataclass(frozen=True)
class PatchTile:
    """height, width: output pixels of a tile; wgmmas of 64 rows per tile; groups: warpgroups of a
    CTA; columns: output channels; passes: parts of the input channels, one after another.
    """

    height: int
    width: int
    wgmmas: int
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
        """Pixels of one stride residue by which the window extends, along both axes."""
        down, across = (
            (k - 1) * d // s
            for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True)
        )
        return down, across


@dataclass(frozen=True)
class _Patch:
    """Pixels of a row, of one stride residue, of a chunk of 8 channels; size of the patch."""

    pitch: int
    phase: int
    plane: int
    size: int


def _pass(s: _Shape, t: PatchTile) -> _Shape:
    """The shape of one pass; with several passes, chunks are copied two at a time."""
    return s if t.passes == 1 else replace(s, channels=-(-s.chunks // (2 * t.passes)) * 16)


def _patch(s: _Shape, t: PatchTile) -> _Patch:
    """The patch of a tile. s: of one pass, here and below."""
    (down, across), rows = s.reach, 64 * t.wgmmas
    pitch = t.width + across
    phase = max((t.height + down) * pitch, rows + down * pitch + across)
    plane = (phase * s.stride[0] * s.stride[1] + 4) // 8 * 8 + 3  # planes begin in other banks
    return _Patch(pitch, phase, plane, s.chunks * plane + s.units % 2 * rows)


def _shape(r: Request) -> _Shape:
    kh, kw, sh, sw, dh, dw = problem.window(r)
    return _Shape(select.static(r, "IC"), (kh, kw), (sh, sw), (dh, dw))


def _smem(s: _Shape, t: PatchTile) -> int:
    # Padding behind the last patch: compute-sanitizer assumes that the two chunks of a wgmma are
    # contiguous.
    return (
        min(t.passes, 2) * -(-s.units // 2) * 2 * t.columns + t.groups * 2 * _patch(s, t).size + 64
    ) * 16


def _resident(s: _Shape, t: PatchTile) -> int:
    registers = t.wgmmas * t.columns // 2 + t.columns // 4 + 56
    return min(
        (HOPPER_SHARED + 1024) // (_smem(s, t) + 1024),
        65536 // (registers * 128 * t.groups),
        16 // t.groups,
    )


@cache
def _tiles(s: _Shape, channels: int, height: int, width: int) -> tuple[PatchTile, ...]:
    out = []
    for count in range(1, 5):
        columns = (-(-channels // count) + 7) // 8 * 8
        if columns > _MOST_COLUMNS:
            continue
        for wgmmas in (1, 2):
            options = []
            for across in range(1, -(-width // 8) + 1):
                w = -(-width // across)
                h = min(64 * wgmmas // (w + s.reach[1]), height)
                if h:
                    options.append((across * -(-height // h), h, w))
            for groups in (1, 2, 4):
                for _, h, w in sorted(options)[:2]:
                    for passes in _passes(s) if s.channels <= _MOST_CHANNELS or count == 1 else ():
                        tile = PatchTile(h, w, wgmmas, groups, columns, passes)
                        one = _pass(s, tile)
                        if (
                            one.units <= _MOST_UNITS
                            and _smem(one, tile) <= HOPPER_SHARED
                            and _resident(one, tile) > 0
                        ):
                            out.append(tile)
    return tuple(out)


def _passes(s: _Shape) -> list[int]:
    """Numbers of passes."""
    return (
        [1]
        if s.channels <= _MOST_CHANNELS
        else sorted({-(-s.chunks // step) for step in (2, 4, 6, 8)})
    )


def supports(r: Request) -> bool:
    """Copies have 16 bytes, so pitches must be multiples of 8 elements."""
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
    return (
        s.units <= _MOST_UNITS if s.channels <= _MOST_CHANNELS else int(i["OC"]) <= _MOST_MULTIPASS
    )


def _price(r: Request, s: _Shape, t: PatchTile, images: float) -> float:
    """Clocks."""
    height, width = problem.about(r, _USUAL, "OH", "OW")
    tiles, across = (
        images * -(-height // t.height) * -(-width // t.width),
        -(-int(r.ints["OC"]) // t.columns),
    )
    if t.passes > 1:
        return _price_of_passes(r, _pass(s, t), t, tiles)
    multiply = -(-s.units // 2) * t.wgmmas * (16.0 + t.columns / 4) * _MULTIPLY
    copies = (
        s.chunks
        * (t.height * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0])
        * _patch(s, t).pitch
        * s.stride[1]
    )
    other = _TILE + copies * _COPY + t.wgmmas * t.columns * _RESULT
    resident = _resident(s, t)
    waves = -(-tiles // (max(1, r.sms * resident // across) * t.groups))
    tiles_per_sm = max(1.0, tiles * across / r.sms)
    concurrent = min(resident * t.groups, tiles_per_sm)
    filters = s.units * t.columns * 16 / _BYTES * min(resident, max(1.0, tiles_per_sm / t.groups))
    results = images * height * width * int(r.ints["OC"]) / r.sms
    return _START + max(
        filters + waves * max(concurrent * (multiply + _EXPOSED * other), multiply + other),
        results * _STORE,
    )


def _price_of_passes(r: Request, s: _Shape, t: PatchTile, tiles: float) -> float:
    """s: of one pass."""
    pixels = (
        (t.height * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0])
        * _patch(s, t).pitch
        * s.stride[1]
    )
    resident = _resident(s, t)
    ctas = -(-tiles // t.groups)
    tiles_per_sm = min(resident, -(-ctas // r.sms))
    multiply = (
        tiles_per_sm * t.groups * -(-s.units // 2) * t.wgmmas * (_WGMMA + _COLUMN * t.columns)
    )
    fetch = tiles_per_sm * (t.groups * s.chunks * pixels + 2 * s.units * t.columns) * 16 / _STREAM
    return -(-ctas // (r.sms * resident)) * (_WAVE + t.passes * (100.0 + max(multiply, fetch)))


def prices(r: Request, rows: int) -> dict[PatchTile, float]:
    """Clocks of tiles for `rows` output pixels."""
    if not supports(r):
        return {}
    s, (height, width) = _shape(r), problem.about(r, _USUAL, "OH", "OW")
    tiles = _tiles(s, int(r.ints["OC"]), height, width) if height and width else ()
    return {t: _price(r, s, t, rows / (height * width)) for t in tiles}


def _units(s: _Shape, p: _Patch, transposed: bool) -> Iterator[tuple[int, int]]:
    """(offset in the patch, tap * chunks + chunk) of each unit."""
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
    """CUDA text of the function from tap * chunks + chunk to the unit."""
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
    offsets = [at for at, _ in units] + [p.size - 64 * tile.wgmmas] * (s.units % 2)
    unit_of = [0] * s.units
    for u, (_, j) in enumerate(units):
        unit_of[j] = u
    before = [
        (k - 1) * d - int(i[n]) if transposed else int(i[n])
        for k, d, n in zip(s.kernel, s.dilation, ("PT", "PL"), strict=True)
    ]
    rows_in, columns_in = (
        (n - 1) * st + (k - 1) * d + 1
        for n, k, st, d in zip(
            (tile.height, tile.width), s.kernel, s.stride, s.dilation, strict=True
        )
    )
    across = -(-oc // tile.columns)
    tiles = D.product([i["N"], D.ceildiv(i["OH"], tile.height), D.ceildiv(i["OW"], tile.width)])
    ctas = D.minimum(D.ceildiv(tiles, tile.groups), max(1, _resident(s, tile) * r.sms // across))
    return problem.kernel(
        r,
        "conv/small_c_patch",
        ("N", "IH", "IW", "OH", "OW"),
        (D.mul(ctas, active), across, 1),
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
            "TILE_H": tile.height,
            "TILE_W": tile.width,
            "PITCH": p.pitch,
            "ROWS_IN": rows_in,
            "COLUMNS_IN": columns_in,
            "PHASE": p.phase,
            "PLANE": p.plane,
            "SIZE": p.size,
            "UNITS": s.units,
            "WGMMAS": tile.wgmmas,
            "GROUPS": tile.groups,
            "RESIDENT": _resident(s, tile),
            "BN": tile.columns,
        },
        width=2,
        macros=wgmma(r.dtype, tile.columns),
        text=f"constexpr int OFFSETS[] = {{{', '.join(map(str, offsets))}}};\n"
        + _unit_of(s, unit_of, transposed),
        smem=smem_of_partial_wave(r, D.mul(ctas, across), _smem(s, tile)),
    )
