"""Products on Hopper (`persistent_sm90.cuh`): tiles, tensor maps and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt

from tracea_onnx.codegen.kernel_request import (
    HOPPER_SHARED,
    Argument,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import epilogue, folded_norm
from ..common.prelude import prelude
from ..common.templates import template
from ..conv import grouped as _grouped

_PANEL, _FREE = 64 * 128, (0.0, 0.0)


@dataclass(frozen=True)
class HopperTile:
    """Rows and columns of one tile. ping: each consumer warpgroup has tiles of its own; cluster:
    blocks that share tiles of B; kept: steps of k for which a block keeps its columns of B (0:
    copied with every tile); tma: results leave by TMA; staging: 64 x 64 buffers of each warpgroup
    for the residual or for results; column: bytes of the epilogue's operands of one column, which
    each warpgroup keeps. Of batches: swap: y's columns are the rows of a tile; beside: blocks along
    columns of tiles that share tiles of A; panels: columns of B are copied by 64."""

    bm: int
    bn: int
    ping: bool
    cluster: int = 1
    kept: int = 0
    tma: bool = False
    staging: int = 0
    column: int = 0
    swap: bool = False
    beside: int = 1
    panels: bool = False

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.cluster * self.beside

    clustered = blocks

    @property
    def stage(self) -> int:
        return (
            self.bm + (0 if self.kept else -(-self.bn // 64) * 64 if self.panels else self.bn)
        ) * 128

    @property
    def stages(self) -> int:
        return min(8, (HOPPER_SHARED - self._fixed) // self.stage)

    @property
    def _fixed(self) -> int:
        return (
            2048 + 2 * (self.staging * _PANEL + self.column * self.bn) + self.kept * self.bn * 128
        )

    @property
    def smem(self) -> int:
        return self.stages * self.stage + self._fixed


@cache
def staged(t: HopperTile, residual: bool, vector: bool = True, column: int = 0) -> HopperTile:
    """The tile with its buffers.

    Of a residual all panels of a tile may fly while it is multiplied; vector: rows of the result
    begin at multiples of 16 bytes.
    """
    t = replace(t, column=column)
    if residual:
        return replace(t, staging=max(2, min(4, t.bm * t.bn // 4096 // (1 if t.ping else 2))))
    if vector and not t.tma:
        return t
    two = replace(t, staging=2)
    return two if t.tma and two.stages >= min(t.stages, 6) else replace(t, staging=1)


_SHAPES = (
    (128, 128, True),
    (64, 256, True),
    (64, 192, True),
    (64, 128, True),
    (128, 64, True),
    (128, 192, False),
)
TILES = tuple(HopperTile(bm, bn, ping, cluster) for bm, bn, ping in _SHAPES for cluster in (1, 2))
#: A tile whose sums leave no registers for another way of storing, and so many steps of k that
#: finishing it hides behind the next one. In whole models on a hot device, copies of B that two
#: blocks share gained nothing on it, and with an activation that needs the special functions it was
#: slower than the others.
_WIDE, _WIDE_STEPS = HopperTile(128, 192, True, tma=True), 8
#: The cost model, fitted to measurements on an H200. Flops a clock of one multiprocessor (f16);
#: bytes a clock from L2 and to memory, for the whole chip; clocks until a copy comes, to start a
#: kernel and a cluster, between the tiles of a block, to finish 64 x 64 results of one warpgroup,
#: more with an activation that needs the special functions.
_FLOPS, _CHIP_BYTES, _MEMORY_BYTES, _LATENCY = 3199.0, 4656.0, 3631.0, 2246.0
_START, _CLUSTER, _EDGE, _PANEL_CLOCKS, _SMOOTH = 1682.0, 5330.0, 262.0, 567.0, 349.0
#: What results that leave by TMA save of the clocks of several turns, and cost at the end.
_TMA_GAIN, _TMA_LATENCY = 0.93, 586.0
#: Clocks of a linear layer more between launches that wait for each other, comparable with
#: `cluster_splitk_sm90.between`.
BETWEEN = 5418.0
#: Of batches: rows of tiles, whether each warpgroup has tiles of its own, and most columns, with so
#: many where the epilogue takes registers beside the sums.
_BATCHED = (
    (64, True, 256, 256),
    (128, True, 192, 128),
    (128, False, 256, 256),
    (256, False, 192, 128),
)
# blocks down and along
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
#: Clocks to start, more for clusters of four, of eight and where blocks share A, between the tiles
#: of a block, more where its warpgroups share them, to finish 64 x 64 results of one warpgroup,
#: more where these lie across y's rows, until a copy comes; flops a clock; bytes a clock from L2,
#: read from memory and written to it; how much more of y is written where tiles' rows do not begin
#: at multiples of 128 bytes (of a tile's columns), and y's not at multiples of 32; the share of
#: tiles' bytes that a last turn which is not full does not save.
(
    _BATCH_START,
    _BATCH_FOUR,
    _BATCH_EIGHT,
    _BATCH_BESIDE,
    _BATCH_EDGE,
    _BATCH_TOGETHER,
    _BATCH_LATENCY,
) = 3678.0, 235.0, 337.0, 347.0, 442.0, 677.0, 3056.0
_BATCH_PANEL, _BATCH_SWAP, _BATCH_FLOPS, _BATCH_CHIP, _BATCH_READ, _BATCH_WRITE = (
    356.0,
    145.0,
    3712.0,
    8304.0,
    2611.0,
    2464.0,
)
_LINES, _SECTORS, _LAST_TURN = 21.8, 0.487, 0.68
#: How much longer L2 takes for rows of 128 bytes that cross its lines of 128, and for those that
#: begin within a sector of 32.
_CROSSED, _CUT = 0.32, 0.87
#: Bytes of a weight that L2 may still hold; bytes a clock that one multiprocessor reads of a larger
#: one, from memory.
CACHED, STREAM_BYTES = 32 << 20, 30.8


def candidates(n: int, steps: int, sms: int, bundles: int = 1) -> list[HopperTile]:
    kept = (
        HopperTile(bm, bn, ping, 1, steps)
        for bm, bn, ping in _SHAPES
        if ping and -(-n // bn) * bundles <= sms // 2
    )
    tiles = [*TILES, *(t for t in kept if staged(t, True).stages >= 3)]
    return [
        *tiles,
        *(replace(t, tma=True) for t in tiles),
        *((_WIDE,) if steps >= _WIDE_STEPS else ()),
    ]


def tile_cost(
    t: HopperTile, m: int, n: int, steps: int, sms: int, residual: bool = False, smooth: bool = False, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0,
) -> float:  # fmt: skip
    """Clocks, comparable with `cluster_splitk_sm90.tile_cost`. smooth: the epilogue needs special
    functions. bundles: of n columns each; pixel: clocks to copy a step of one row and of one
    filter; made: as for `grouped.made`; crossed: `crossed` of A."""
    tiles_m, tiles_n = -(-m // (t.bm * t.cluster)), -(-n // t.bn) * bundles
    n *= bundles
    turns = (
        -(-tiles_m // (sms // tiles_n)) if t.kept else -(-(tiles_m * tiles_n) // (sms // t.cluster))
    )
    copied = (t.bm * crossed + (0 if t.kept else t.bn / t.cluster)) * 128
    # few products at a time
    multiply = (
        made
        * 2.0
        * t.bm
        * t.bn
        * 64
        / _FLOPS
        * (1.11 if t.bn * t.bm // (64 if t.ping else 128) < 128 else 1.0)
    )
    copies = t.bm * pixel[0] + (0.0 if t.kept else t.bn / t.cluster * pixel[1])
    step = max(
        multiply,
        min(tiles_m * tiles_n * t.cluster, sms) * copied / _CHIP_BYTES,
        _LATENCY / staged(t, residual).stages,
        copies,
    )
    if n * steps * 128 > CACHED:
        step = max(step, t.bn / t.cluster * 128 / STREAM_BYTES)
    finish = t.bm * t.bn / 4096 * (1 if t.ping else 0.5) * (_PANEL_CLOCKS + _SMOOTH * smooth)
    tile = steps * step + _EDGE
    if t.ping:  # the second warpgroup begins one tile later
        body = max(
            turns * tile + finish,
            -(-turns // 2) * (tile + finish) + (tile if turns % 2 == 0 else 0.0),
        )
    else:
        body = turns * (tile + finish)
    if t.tma:
        body = body * (_TMA_GAIN if turns >= 3 else 1.0) + _TMA_LATENCY
    memory = (n * steps * 128 + m * n * 2 * (1 + residual)) / _MEMORY_BYTES
    return (
        _START
        + max(body, memory)
        + (_CLUSTER if t.cluster > 1 else 0.0)
        + (steps * t.bn * pixel[1] if t.kept else 0.0)
    )


def prices(
    m: int, n: int, steps: int, sms: int, residual: bool, smooth: bool, panels: bool, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0, wide: bool = False,
) -> dict[HopperTile, float]:  # fmt: skip
    """Clocks of every tile for m x n with `steps` steps of k. panels: tiles must be a multiple of
    64 columns wide, as all are. bundles: of n columns each, whose results leave by TMA only if
    whole panels of 64 columns are theirs. wide: whether _WIDE, which was measured on products of
    matrices, is among them."""
    tiles = (
        t
        for t in candidates(n, steps, sms, bundles)
        if not t.tma or not (residual or (bundles > 1 and n % 64))
    )
    tiles = (t for t in tiles if t != _WIDE or (wide and not smooth and n % 8 == 0))
    return {
        t: tile_cost(t, m, n, steps, sms, residual, smooth, bundles, pixel, made, crossed)
        for t in tiles
    }


def matrix_product(
    r: Request,
    tile: HopperTile,
    m: DimLike,
    n: int,
    k: int,
    ldx: DimLike,
    ldw: int,
    ldy: DimLike,
    ldr: DimLike,
    active: DimLike,
) -> Kernel:
    """y[m, n] = epilogue(x[m, :] . w[n, :])."""
    params: list[tuple[str, str, Argument]] = [
        ("int", "M", Int32(m)),
        ("int", "N", Int32(n)),
        ("int", "K", Int32(k)),
        ("i64", "ldr", Int64(ldr)),
    ]
    a = matrix(r, "x", m, k, ldx, (tile.bm, 64))
    b = matrix(r, "w", n, k, ldw, (tile.bn // tile.cluster, 64))
    return product(
        r,
        tile,
        source=0,
        a=a,
        b=b,
        rows=m,
        columns=n,
        ldy=ldy,
        ldr=ldr,
        params=params,
        active=active,
        depth=k,
    )


def batched_tiles(
    m: int, n: int, across: tuple[bool, bool], plain: bool = True
) -> Iterator[HopperTile]:
    """Tiles worth a thought for products of two run-time operands. plain: the epilogue takes no
    registers.
    """
    for swap in (False, True) if plain else (False,):
        (left, right), panels = ((n, max(m, 1)), across[0]) if swap else ((m, n), across[1])
        for rows, ping, *most in _BATCHED:
            if rows > 64 and left <= rows - 64:
                continue
            least = -(-right // most[not plain])
            for cluster, beside in _CLUSTERS:
                # columns of which blocks copy parts, or that are so many bytes of y
                by = max(8 if panels else 8 * cluster, 8 if swap else 16)
                widths = {
                    w
                    for parts in range(least, least + 3)
                    for u in (by, 64)
                    if (w := -(-right // (u * parts)) * u) <= most[not plain]
                }
                for width in sorted(widths):
                    if beside <= max(1, 2 * -(-right // width) - 2) and cluster <= max(
                        1, 2 * -(-left // rows) - 2
                    ):
                        yield HopperTile(
                            rows,
                            width,
                            ping,
                            cluster,
                            staging=1,
                            swap=swap,
                            beside=beside,
                            panels=panels,
                        )


def crossed(pitch: DimLike) -> float:
    """How many times as long as at multiples of 128 bytes rows take to copy that lie `pitch`
    elements of two bytes apart.
    """
    apart = 2 * multiple_of(pitch)
    return 1.0 if apart >= 128 else 1.0 + _CROSSED if apart >= 32 else 1.0 + _CUT


def batched_cost(
    t: HopperTile, m: int, n: int, k: int, batch: int, sms: int, crossed: tuple[float, float]
) -> float:
    """Clocks of `batch` products of two run-time operands, comparable with
    `cluster_splitk_sm90.batched_cost`. crossed: `crossed` of A and B.
    """
    left, right = (n, m) if t.swap else (m, n)
    first, second = crossed[::-1] if t.swap else crossed
    tiles, steps = (
        -(-left // (t.bm * t.cluster)) * -(-right // (t.bn * t.beside)) * batch,
        (k - 1) // 64 + last_products(k) / 4,
    )
    clusters = _clusters(t, sms)
    turns = -(-tiles // clusters)
    multiply = (
        2.0
        * t.bm
        * t.bn
        * 64
        / _BATCH_FLOPS
        * (1.11 if t.bn * t.bm // (64 if t.ping else 128) < 128 else 1.0)
    )
    tile = steps * max(multiply, _BATCH_LATENCY / t.stages) + _BATCH_EDGE
    finish = t.bm * t.bn / 4096 * (1 if t.ping else 0.5) * (_BATCH_PANEL + _BATCH_SWAP * t.swap)
    if t.ping:
        body = max(
            turns * tile + finish,
            -(-turns // 2) * (tile + finish) + (tile if turns % 2 == 0 else 0.0),
        )
    else:
        body = turns * (tile + finish + _BATCH_TOGETHER)
    copied = (
        (tiles + _LAST_TURN * (turns * clusters - tiles)) * t.blocks * steps * 128 / _BATCH_CHIP
    )
    copied *= t.bm * first / t.beside + (t.stage / 128 - t.bm) * second / t.cluster
    wide = t.bm if t.swap else t.bn
    written = 1.0 + _LINES / wide * (wide % 64 > 0) + _SECTORS * (n % 16 > 0)
    memory = 2 * batch * (m * k + n * k) / _BATCH_READ + 2 * batch * m * n / _BATCH_WRITE * written
    return (
        _BATCH_START
        + sqrt(body**2 + copied**2 + memory**2)
        + _BATCH_FOUR * (t.blocks > 2)
        + _BATCH_EIGHT * (t.blocks > 4)
        + _BATCH_BESIDE * (t.beside > 1)
    )


@cache
def batched_prices(
    m: int, n: int, k: int, batch: int, sms: int, across: tuple[bool, bool], crossed: tuple[float, float], plain: bool
) -> dict[HopperTile, float]:  # fmt: skip
    """Clocks of the tiles for `batch` products of two run-time operands, whose rows of y begin at
    multiples of 16 bytes. across: operands that are contiguous along their rows; crossed: as for
    `batched_cost`; plain: as for `batched_tiles`."""
    return {
        t: batched_cost(t, m, n, k, batch, sms, crossed) for t in batched_tiles(m, n, across, plain)
    }


def batched_product(
    r: Request,
    tile: HopperTile,
    i: Mapping[str, DimLike],
    across: tuple[bool, bool],
    active: DimLike,
) -> Kernel:
    """`matmul` of operands that tensor maps reach, with strides `i`."""
    m, n, k, b0, b1 = (r.ints[name] for name in ("M", "N", "K", "B0", "B1"))
    sizes = (("M", n if tile.swap else m), ("N", m if tile.swap else n), ("K", k))
    params: list[tuple[str, str, Argument]] = [("int", name, Int32(v)) for name, v in sizes]
    params += [
        ("int", "B1", Int32(b1)),
        ("int", "matrices", Int32(D.mul(b0, b1))),
        ("i64", "ldr", Int64(i["ldr"])),
    ]
    params += [("i64", s, Int64(i[s])) for s in ("y_0", "y_1")]
    swap = tile.swap
    left, right = [(("a", m), ("b", n)), (("b", n), ("a", m))][swap]
    maps = [
        batched_map(r, o, (rows, k), i, across[o == "b"], own, parts)
        for (o, rows), own, parts in ((left, tile.bm, tile.beside), (right, tile.bn, tile.cluster))
    ]
    for name, (o, _) in (("a", left), ("b", right)):
        params += [
            ("int", f"{name}_moves_{axis}", Int32(D.less(0, i[f"{o}_{axis}"]))) for axis in (0, 1)
        ]
    return product(
        r, tile, source=2, a=maps[0], b=maps[1], rows=left[1], columns=right[1], ldy=i["ldy"], ldr=i["ldr"], params=params, active=active,
        across=(across[1], across[0]) if swap else across, batch=D.mul(b0, b1), depth=k,
    )  # fmt: skip


def batched_map(
    r: Request,
    operand: str,
    sizes: tuple[DimLike, DimLike],
    i: Mapping[str, DimLike],
    turned: bool,
    own: int,
    parts: int = 1,
) -> TensorMap:
    """Matrices of `sizes` rows and k of a batch, with strides `i`, of which `parts` blocks copy
    `own` rows, or 64 where they are `turned`: contiguous along their rows."""
    pitch = i[f"{operand}_{'k' if turned else 'm' if operand == 'a' else 'n'}"]
    strides = (pitch, i[f"{operand}_1"], i[f"{operand}_0"])
    return TensorMap(
        Pointer(operand), r.dtype, (*(sizes if turned else sizes[::-1]), r.ints["B1"], r.ints["B0"]), tuple(D.maximum(D.mul(s, 2), 16) for s in strides),
        (64, (64 if turned else own) // parts, 1, 1),
    )  # fmt: skip


def corners(r: Request) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Lower and upper corner (W, H) of the im2col box of a convolution; None when they are symbolic
    or out of what a tensor map holds.
    """
    i = r.ints
    upper = [
        _upper(i[f"I{a}"], i[f"O{a}"], i[f"S{a}"], i[p]) for a, p in (("W", "PL"), ("H", "PT"))
    ]
    steps = [i["SW"], i["SH"], (i["KW"] - 1) * i["DW"], (i["KH"] - 1) * i["DH"], i["PL"], i["PT"]]
    if any(not isinstance(v, int) for v in (*upper, *steps)):
        return None
    low = (-int(steps[4]), -int(steps[5]))
    high = (int(upper[0]), int(upper[1]))
    if (
        not all(-128 <= v <= 127 for v in (*low, *high))
        or max(int(s) for s in steps[:2]) > 8
        or max(int(s) for s in steps[2:4]) > 255
    ):
        return None
    return low, high


def _upper(size: DimLike, count: DimLike, stride: DimLike, before: DimLike) -> DimLike:
    """Where the last window begins, counted from the last pixel; for windows as many as fit a
    symbolic size, where the last one of any size may.
    """
    last = D.sub(count, 1)
    if isinstance(last, D.Dim) and last.op == "floordiv" and last.args[1] == stride:
        return D.sub(D.sub(last.args[0], size) + 1, before)
    return D.sub(D.sub(D.mul(last, stride) + 1, size), before)


def image_maps(
    r: Request, pixels: int, filters: int
) -> tuple[TensorMap, TensorMap, list[tuple[str, str, Argument]]]:
    """Tensor maps of a convolution's pixels and filters, that many in one copy, and the sizes its
    kernel needs; `corners` must not be None.
    """
    i = r.ints
    box = corners(r)
    assert box is not None
    oc, taps, bundle = int(i["OC"]), int(i["KH"]) * int(i["KW"]), _grouped.of(r)
    x = TensorMap(
        Pointer("x"), r.dtype, (int(i["IC"]), i["IW"], i["IH"], i["N"]), tuple(D.mul(i[f"x_{p}"], 2) for p in ("cs", "rs", "ns")), (), 128,
        (box[0], box[1], 64, pixels), (1, int(i["SW"]), int(i["SH"]), 1),
    )  # fmt: skip
    strides = (bundle.pitch * 2, taps * bundle.pitch * 2)
    w = TensorMap(
        Pointer("w", _grouped.filters(r)),
        r.dtype,
        (bundle.pitch, taps, oc),
        strides,
        (64, 1, filters),
    )
    params: list[tuple[str, str, Argument]] = [("int", "chunks", Int32(bundle.chunks))]
    params += [
        ("int", n, Int32(i[n]))
        for n in ("OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL")
    ]
    return x, w, params + _grouped.parameters(r)


def convolution(r: Request, tile: HopperTile, rows: DimLike, active: DimLike) -> Kernel:
    """A convolution whose output pixels follow each other."""
    i, oc = r.ints, int(r.ints["OC"])
    a, b, sizes = image_maps(r, tile.bm, tile.bn // tile.cluster)
    params: list[tuple[str, str, Argument]] = [
        ("int", "M", Int32(rows)),
        ("int", "N", Int32(oc)),
        ("i64", "ldr", Int64(i.get("r_cs", 0))),
        *sizes,
    ]
    r = replace(r, ints={**i, **{f"o{k}_ld": i.get("r_cs", 0) for k in range(4)}})
    return product(
        r,
        tile,
        source=1,
        a=a,
        b=b,
        rows=rows,
        columns=oc,
        ldy=i["y_cs"],
        ldr=i.get("r_cs", 0),
        params=params,
        active=active,
    )


def able(r: Request, pitches: Sequence[DimLike], operands: Sequence[str]) -> bool:
    """Whether every operand can be a tensor map: 16-byte aligned with pitches of 16-byte multiples,
    16-bit types, Hopper.
    """
    return (
        r.arch == 90
        and r.dtype in (DType.F16, DType.BF16)
        and not set(operands) & r.unaligned
        and all(multiple_of(p) * 2 >= 16 for p in pitches)
    )


def matrix(
    r: Request, operand: str, rows: DimLike, columns: DimLike, pitch: DimLike, box: tuple[int, int]
) -> TensorMap:
    """Row-major [rows, columns]; box = (rows, columns) of one copy."""
    return TensorMap(
        Pointer(operand), r.dtype, (columns, rows), (D.mul(pitch, 2),), (box[1], box[0])
    )


def product(
    r: Request, tile: HopperTile, *, source: int, a: TensorMap, b: TensorMap, rows: DimLike, columns: DimLike, ldy: DimLike, ldr: DimLike,
    params: Sequence[tuple[str, str, Argument]], active: DimLike = 1, across: tuple[bool, bool] = (False, False), batch: DimLike = 1,
    depth: DimLike = 0,
) -> Kernel:  # fmt: skip
    """The kernel. params: sizes that the source needs. batch: matrices, across: operands that are
    contiguous along their rows (source 2); depth: k of matrices."""
    residual = r.program is None and epilogue.residual(r)
    pitches = (ldy, r.ints.get("y_0", 0), r.ints.get("y_1", 0)) if source == 2 else (ldy,)
    vector, normed = epilogue.vector(r, "y", pitches), folded_norm.normed(r)
    assert vector or not residual
    epi = epilogue.epilogue(
        r, (ldr,), width=2, staged=residual, touched=True, tabled=normed, scaled=source == 2
    )
    tile = staged(tile, residual, vector, epi.column)
    # Where the last columns do not fill 16 bytes, a tensor copy was seen to write beyond them.
    store = (
        0
        if not vector
        else 2
        if tile.tma and not residual and columns % 8 == 0 and source != 2
        else 3
        if source == 2
        else 1
    )
    map_type = "const __grid_constant__ TensorMap"
    parameters: list[tuple[str, str, Argument]] = [(map_type, "map_a", a), (map_type, "map_b", b)]
    if store == 2:
        parameters.append((map_type, "map_y", matrix(r, "y", rows, columns, ldy, (16, 64))))
    else:
        parameters += [("T*", "y", Pointer("y")), ("i64", "ldy", Int64(ldy))]
    if residual:
        parameters.append((map_type, "map_r", matrix(r, "res", rows, columns, ldr, (64, 64))))
    parameters += [*params, *epi.parameters]
    mma, grouped = "f16" if r.dtype == DType.F16 else "bf16", r if source == 1 else None
    across_y = rows if tile.swap else columns
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", f"#define SOURCE {source}", f"#define RESIDUAL {int(residual)}", f"#define STORE {store}",
        f"#define MATRICES {'matrices' if source == 2 else '1'}", f"constexpr bool A_ACROSS = {int(across[0])}, B_ACROSS = {int(across[1])};",
        # tiles of STORE 2 have many steps
        f"#define FLIPPED {int(tile.swap)}", f"constexpr int LAST = {4 if store == 2 else last_products(depth)};",
        f"#define Y_VECTOR {int(vector)}",
        f"#define PARAMETERS {', '.join(f'{t} {n}' for t, n, _ in parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr int BM = {tile.bm}, BN = {tile.bn}, STAGES = {tile.stages}, CLUSTER = {tile.blocks}, ALONG_N = {tile.beside};",
        f"constexpr int STAGING = {tile.staging}, KEPT = {tile.kept};",
        f"constexpr bool EARLY = {int('w' in r.constant)}, PING = {int(tile.ping)}, WHOLE_CHUNKS = {int(multiple_of(across_y) >= 8)};",
        _grouped.constants(grouped), multiply(tile.bn, mma, across), template("common/tma"), _grouped.template(grouped),
        folded_norm.template(r), epi.source, folded_norm.source(r, columns, r.ints.get("K", 0)),
        template("common/epilogue_store"), template("gemm/persistent_sm90"),
    ])  # fmt: skip
    tiles_m, tiles_n = (
        D.ceildiv(rows, tile.bm * tile.cluster),
        _grouped.tiles(r, tile.bn) if source == 1 else D.ceildiv(columns, tile.bn * tile.beside),
    )
    if tile.kept:
        assert isinstance(tiles_n, int)
        grid = D.mul(D.mul(D.minimum(tiles_m, r.sms // tiles_n), tiles_n), active)
    else:
        grid = D.mul(
            D.mul(
                D.minimum(D.product([tiles_m, tiles_n, batch]), _clusters(tile, r.sms)), tile.blocks
            ),
            active,
        )
    return Kernel(
        text,
        "product_wgmma",
        (grid, 1, 1),
        384,
        tuple(v for _, _, v in parameters),
        tile.smem,
        tile.blocks,
        True,
    )


def _clusters(t: HopperTile, sms: int) -> int:
    """That run at a time."""
    # some multiprocessors have less than three neighbours
    return max(1, sms // t.blocks if t.blocks < 4 else sms * 10 // 11 // t.blocks)


def last_products(k: DimLike) -> int:
    """Products of 16 k that the last step of 64 has."""
    return -(-(k % 64) // 16) if isinstance(k, int) and k % 64 else 4


def _multiply(
    name: str, n: int, k: int, mma: str, operands: tuple[str, ...], given: str, more: str
) -> str:
    """A function of sum[64 x n] and these parameters, `given` to wgmma in that order; more: its
    further constants.
    """
    count = n // 2
    results = ", ".join(f"%{i}" for i in range(count))
    places = given.format(*(f"%{count + i}" for i in range(len(operands))))
    outputs, inputs = ", ".join(f'"+f"(d[{i}])' for i in range(count)), ", ".join(operands)
    parameters = "const u32 (&a)[4]" if len(operands) > 2 else "u64 a"
    return (
        f'DEV void {name}(float (&d)[{count}], {parameters}, u64 b, int add) {{\n  asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + len(operands)}, 0; '
        f'wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{mma}.{mma} {{{results}}}, {places}, p, 1, 1{more};}}"\n    : {outputs} : {inputs}, "r"(add));\n}}\n'
    )


def multiply_tf32(n: int) -> str:
    """`multiply_by_group(sum, a, b, add)`: sum[64 x n] = a b^T of eight k, a in registers, plus sum
    where `add`.
    """
    operands = (*(f'"r"(a[{i}])' for i in range(4)), '"l"(b)')
    return _multiply("multiply_by_group", n, 8, "tf32", operands, "{{{0}, {1}, {2}, {3}}}, {4}", "")


def multiply(n: int, mma: str, across: tuple[bool, bool] = (False, False)) -> str:
    """`multiply(sum, a, b, add)`: sum[64 x n] = a b^T, plus sum where `add`. across: operands that
    are contiguous along their rows.
    """
    return _multiply(
        "multiply",
        n,
        16,
        mma,
        ('"l"(a)', '"l"(b)'),
        "{0}, {1}",
        f", {int(across[0])}, {int(across[1])}",
    )
