"""GEMM of few rows with few-bit weights that stream through shared memory (`stream_rows.cuh`)."""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import multiple_of
from tracea_onnx.plan.kernel_families import NBITS_TILE
from tracea_onnx.support.data_classes import dataclass

from ...common import epilogue
from ...common.instantiate import floats, instantiate, ints, longs, pointer, sizes
from ...common.prelude import program_source
from .layout import BYTES, Layout

#: Most bytes of a CTA's weights in flight, of its rows, of its row.
_RING, _ROWS, _ROW = 64 << 10, 32 << 10, 64 << 10
#: CTAs of a multiprocessor, whose registers they fill: those of the next launch come when they end.
#: Six layers of Llama 3.2 1B take 1.28 times as long on an H200 with one, 1.09 times with one and a
#: ring of 128 KB, 1.03 times with two and rings of 96 KB.
_RESIDENT = 2
#: Most rows, warps.
_MOST, _WARPS = 8, 16


@dataclass(frozen=True)
class StreamTile:
    """rows: of x, at most; group: pieces of an item; warps that divide a tile's items; ahead: items
    of a warp in flight; smem: bytes.
    """

    rows: int
    group: int
    warps: int
    ahead: int
    smem: int


def gated(r: Request) -> bool:
    """Whether a result is computed of two columns."""
    return bool(r.ints.get("gated", 0))


def normed(r: Request) -> bool:
    """Whether rows are to be normalised first."""
    return "gamma" in r.operands


def _ctas(r: Request, n: int) -> int:
    return min(-(-n // NBITS_TILE), r.sms * _RESIDENT)


def tile(r: Request, at: Layout, n: int, rows: int) -> StreamTile | None:
    """The tile for so many rows and n columns of y, or None where the rows are too many."""
    held, k, size = next((h for h in (1, 2, 4, _MOST) if rows <= h), 0), at.k, r.dtype.size
    row_bytes = held * (-(-k // 128) * 128 + 32) * size
    vectors = k * size % 16 == 0 and not {"gamma", "beta"} & r.unaligned
    if not held or row_bytes > (_ROWS if held > 1 else _ROW) or (normed(r) and not vectors):
        return None
    subs = max(1, at.depth // at.block) if at.block else 1
    group = 2 if at.pieces > 1 else 1
    item = group * (512 + 16 * subs * (at.scale.size + (at.zeros == BYTES)))
    items, warps, halves = -(-at.pieces // group), _WARPS, 1 + gated(r)
    tiles = -(-n // NBITS_TILE)
    while warps > 1 and warps > items:
        warps //= 2
    of_warp = -(-tiles // _ctas(r, n)) * halves * -(-items // warps)
    ahead = max(2, min(of_warp, _RING // (warps * item)))
    sums = -(-8 * (warps * held * (20 * halves + 1)) // 16) * 16
    weights = k * size * len({"gamma", "beta"} & r.operands)
    smem = sums + ahead * warps * item + row_bytes + weights
    return StreamTile(held, group, warps, ahead, smem) if r.caps.launches(smem, 1) else None


def most_rows(r: Request, at: Layout, n: int) -> int:
    """The most rows that there is a tile for; 0: none."""
    return next((h for h in (_MOST, 4, 2, 1) if tile(r, at, n, h) is not None), 0)


def emit(r: Request, at: Layout, n: int, t: StreamTile) -> Kernel:
    """The kernel of a tile."""
    i = sizes(r, "M", "ldx", "ldy", "ldr")
    vector, two, text, before = 16 // r.dtype.size, gated(r), at.definitions(), r
    aligned = (
        "x" not in r.unaligned
        and (t.rows == 1 or multiple_of(i["ldx"]) % vector == 0)
        and at.k % vector == 0
    )
    if two:
        assert r.program is not None
        text, before = text + program_source(r.program, "gated"), replace(r, program=None)
    residual = epilogue.residual(before) and before.program is None
    given = [pointer("const T", "x"), *at.operands("w"), pointer("T", "y")]
    given += [*ints({"M": i["M"], "N": n})]
    given += longs({name: i[name] for name in ("ldx", "ldy", "ldr")})
    given += [pointer("const T", "res")] if residual else []
    if normed(r):
        given += [pointer("const T", o) for o in ("gamma", "beta") if o in r.operands]
        given += floats({"eps": r.floats["eps"], "plus": float(int(r.ints.get("gamma_add", 0)))})
    return instantiate(
        r,
        "stream_rows",
        "gemm/nbits/stream_rows",
        given,
        (D.mul(_ctas(r, n), D.less(0, i["M"])), 1, 1),
        32 * t.warps,
        epilogue=epilogue.epilogue(
            before, (i["ldr"],), 1, width=2, staged=residual, touched=True
        ),
        macros={
            "RESIDUAL": residual, "GATED": two, "PRENORM": normed(r),
            "BETA": "beta" in r.operands, "PRENORM_RMS": bool(r.ints.get("rms", 0)),
        },
        constants={
            "K": at.k,
            "WARPS": t.warps,
            "ROWS": t.rows,
            "GROUP": t.group,
            "AHEAD": t.ahead,
            "WHOLE": at.k % (t.group * at.depth) == 0,
            "EARLY": {"w", "gamma", "beta"} & r.operands <= r.constant,
            "ROWS_ALIGNED": aligned,
            "R_VECTOR": epilogue.vector(r, "res", (i["ldr"],)),
        },
        text=text,
        smem=t.smem,
    )  # fmt: skip
