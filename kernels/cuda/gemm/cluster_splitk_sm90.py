"""Products on Hopper with few tiles (`cluster_splitk_sm90.cuh`): tiles, tensor maps and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

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
from ..conv import transposed
from . import persistent_sm90

_FREE = (0.0, 0.0)
# bytes of shared memory of one multiprocessor, of which every block takes 1024 more than it asks
# for
_SHARED = 233472


@dataclass(frozen=True)
class SplitTile:
    """Rows of the left operand and of the right one. swap: the weight is the left one; split:
    blocks that divide k; share: neighbouring tiles along the left operand that share copies of the
    right one; resident: blocks that one multiprocessor has room for. Of batches: beside:
    neighbouring tiles along the right operand that share copies of the left one."""

    rows: int
    columns: int
    swap: bool
    split: int = 1
    share: int = 1
    resident: int = 1
    beside: int = 1

    @property
    def bm(self) -> int:
        return self.columns if self.swap else self.rows

    @property
    def bn(self) -> int:
        return self.rows if self.swap else self.columns

    @cached_property
    def cluster(self) -> int:
        return self.split * self.share * self.beside

    @property
    def stage(self) -> int:
        return (self.rows + self.columns) * 128

    @cached_property
    def stages(self) -> int:
        return min(10, (_SHARED // self.resident - 1024 - 1280) // self.stage)

    @property
    def smem(self) -> int:
        pitch, own = (
            self.rows + 4 if self.swap else -(-self.columns // 32) * 32 + 8,
            -(-self.bm // self.split),
        )
        # the ring, then the sums and norms
        return 1280 + max(
            self.stages * self.stage, (self.bm + (self.split - 1) * own) * pitch * 4 + own * 16
        )

    @property
    def threads(self) -> int:
        return self.rows * 2 + 32

    @property
    def fits(self) -> bool:
        """Whether so many blocks have their shared memory and registers on one multiprocessor."""
        shared = self.smem <= HOPPER_SHARED and (self.smem + 1024) * self.resident <= _SHARED
        return (
            shared
            and self.stages >= 3
            and (self.columns // 2 + 28) * -(-self.threads // 128) * 128 * self.resident <= 65536
        )


#: The cost model, fitted to measurements on an H200. Clocks to start a cluster of two and more and
#: of five and more, more where copies are shared, after the last product of a block, for 64 x 64 x
#: 64 products, until a copy comes, per float exchanged and per float finished, more with an
#: activation that needs the special functions, for a residual; bytes a clock from L2 for one block
#: and for all, from memory for all.
_CLUSTER, _WIDE_CLUSTER, _SHARED_COPIES, _FINISH, _MULTIPLY, _LATENCY = (
    532.0,
    523.0,
    556.0,
    704.0,
    165.1,
    1961.0,
)
_FLOAT, _RESULT, _SMOOTH, _RESIDUAL = 0.455, 0.228, 0.063, 379.0
#: Clocks to start a kernel, for each row of a warp that begins anywhere and each result in such a
#: row.
START, _ROW, _RESULTS = 2100.0, 150.0, 6.4e-4
#: Clocks more between launches that wait for each other: of each further wave of blocks, where
#: copies are shared, per float finished and exchanged, more where these lie across the rows beside
#: norms. Fitted to 2,760 tiles of 254 launches, each in its place in one of 44 networks.
_NEXT_WAVE, _SHARED_BETWEEN, _RESULT_BETWEEN, _FLOAT_BETWEEN, _ACROSS_NORMS = (
    4164.0,
    1844.0,
    0.362,
    0.17,
    0.157,
)
#: Of batches: clocks to start a kernel, a cluster of two and more, of five and more, where blocks
#: share copies, where more than two do, of a wave of blocks, of a result of a multiprocessor, per
#: float exchanged, for 64 x 64 x 64 products, how much longer these take of one warpgroup alone,
#: until a copy comes, more for a byte with few rows or columns; bytes a clock from L2 for one block
#: and for all, read from memory and written to it; how much more of y is written where its rows do
#: not begin at multiples of 32 bytes.
_BATCH_START, _BATCH_CLUSTER, _BATCH_WIDE, _BATCH_SHARED, _BATCH_MANY = (
    801.0,
    303.0,
    317.0,
    340.0,
    115.0,
)
_BATCH_WAVE, _BATCH_RESULT, _BATCH_FLOAT, _BATCH_MULTIPLY, _BATCH_ALONE, _BATCH_LATENCY = (
    2040.0,
    0.146,
    0.473,
    120.7,
    0.244,
    1806.0,
)
_NARROW, _BATCH_L2, _BATCH_CHIP, _BATCH_READ, _BATCH_WRITE, _SECTORS = (
    3.5e-4,
    114.3,
    8311.0,
    2428.0,
    6798.0,
    1.986,
)
_FEW = 16  # rows or columns
_L2_BYTES, _CHIP_BYTES, _MEMORY_BYTES = 75.4, 4849.0, 5804.0
#: Tiles that share copies: of the right operand, and of the left one.
_SHARES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
#: Clusters of so many blocks that 132 multiprocessors run at a time, each with one block.
_ROOM = {1: 132, 2: 66, 3: 39, 4: 30, 6: 16, 8: 15}


def candidates(
    m: int, n: int, steps: int, sms: int, bundles: int = 1, batch: int = 1, across: tuple[bool, bool] = (False, False)
) -> Iterator[SplitTile]:  # fmt: skip
    """Tiles worth a thought for m x n with `steps` stages of k. bundles: of n columns each; they
    see different pixels, so these cannot be shared. batch: of such products; across: whether A and
    B are contiguous along their rows."""
    m, n = max(m, 1), max(n, 1)
    for swap in (True, False) if m > 48 else (True,):
        left, right = (n, m) if swap else (m, n)
        least = -(-right // 256)
        widths = {
            (right + 8 * parts - 1) // (8 * parts) * 8
            for parts in range(least, max(least + 5, -(-right // 64)))
        }
        if across[0 if swap else 1]:
            widths = {-(-width // 64) * 64 for width in widths}
        for rows in (64, 128, 192):
            if rows > 64 and left <= rows - 64:
                continue
            for width in sorted(widths | ({64, 128} if right > 128 else set())):
                tiles = -(-left // rows) * -(-right // width) * bundles * batch
                for split in (1, 2, 3, 4, 6, 8):
                    if split > 1 and (steps < 2 * split or tiles * split > 3 * sms):
                        break
                    for share, beside in _shared(
                        -(-left // rows), -(-right // width), split, swap and bundles > 1, batch
                    ):
                        if width % (8 * share) and not across[0 if swap else 1]:
                            continue
                        for resident in (
                            (1, 2, 3)[: 3 if share * beside == 1 else 2]
                            if tiles * split > sms
                            else (1,)
                        ):
                            if (
                                tile := _fitting(rows, width, swap, split, share, resident, beside)
                            ) is not None:
                                yield tile


@cache
def _fitting(
    rows: int, columns: int, swap: bool, split: int, share: int, resident: int, beside: int
) -> SplitTile | None:
    """The tile, made once; None where it does not fit."""
    tile = SplitTile(rows, columns, swap, split, share, resident, beside)
    return tile if tile.fits else None


def _shared(
    lefts: int, rights: int, split: int, apart: bool, batch: int
) -> Iterator[tuple[int, int]]:
    """How many neighbouring tiles share copies of the right operand, and of the left one, where
    `lefts` x `rights` tiles have k divided by `split`. apart: right operands that neighbours cannot
    share."""
    for share, beside in _SHARES if batch > 1 else _SHARES[:2]:
        # a cluster of which half has nothing to do
        many = share > 2 * lefts - 2 or beside > 2 * rights - 2
        if share * beside == 1 or not (
            many or apart or split * share * beside not in _ROOM or (batch == 1 and split > 4)
        ):
            yield share, beside


def slots(cluster: int, resident: int, sms: int) -> int:
    """Blocks that run at a time."""
    return max(1, _ROOM[cluster] * resident * sms // 132) * cluster


def _turns(t: SplitTile, m: int, n: int, sms: int, count: int = 1) -> tuple[int, int, int, int]:
    """Of `count` products: blocks, those that run at a time, how often so many do, and those that
    one multiprocessor runs at a time.
    """
    left, right = (n, m) if t.swap else (m, n)
    blocks, room = (
        -(-left // (t.rows * t.share)) * -(-right // (t.columns * t.beside)) * t.cluster * count,
        slots(t.cluster, t.resident, sms),
    )
    return (
        blocks,
        room,
        -(-blocks // room),
        min(t.resident, -(-blocks // max(1, room // t.resident))),
    )


def between(t: SplitTile, m: int, n: int, sms: int, norms: bool) -> float:
    """Clocks of a linear layer more than `tile_cost` says, between launches that wait for each
    other: how a block ends is not hidden behind how the next launch begins there. norms: those of
    rows are part of the product."""
    _, _, waves, together = _turns(t, m, n, sms)
    size = waves * together * t.rows * t.columns / t.split
    result = _RESULT_BETWEEN + _FLOAT_BETWEEN * (t.split - 1) + _ACROSS_NORMS * (norms and t.swap)
    return _NEXT_WAVE * (waves - 1) + _SHARED_BETWEEN * (t.share > 1) + result * size


def tile_cost(
    t: SplitTile, m: int, n: int, steps: int, sms: int, residual: bool = False, smooth: bool = False, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0,
) -> float:  # fmt: skip
    """Clocks, comparable with `persistent_sm90.tile_cost`. smooth: the epilogue needs special
    functions. bundles: of n columns each; pixel: clocks to copy a step of one row and of one
    filter; made: as for `grouped.made`; crossed: `persistent_sm90.crossed` of A."""
    blocks, room, waves, together = _turns(t, m, n, sms, bundles)
    n *= bundles
    # few columns: bound by the left operand's rows
    multiply = made * _MULTIPLY * t.rows / 64 * max(t.columns / 64, 0.5 + t.columns / 128)
    if t.rows * together < 128:
        multiply *= 1.32
    first, second = (1.0, crossed) if t.swap else (crossed, 1.0)
    copied = (t.rows * first + t.columns * second / t.share) * 128
    copies = t.bm * pixel[0] + t.bn * pixel[1] / (1 if t.swap else t.share)
    step = max(
        together * multiply,
        together * copied / _L2_BYTES,
        _LATENCY / t.stages,
        min(blocks, room) * copied / _CHIP_BYTES,
        together * copies,
    )
    if n * steps * 128 > persistent_sm90.CACHED:
        step = max(
            step,
            together
            * (t.rows if t.swap else t.columns / t.share)
            * 128
            / persistent_sm90.STREAM_BYTES,
        )
    memory = (n * steps * 128 + m * n * 2 * (1 + residual)) / _MEMORY_BYTES
    size = t.rows * t.columns * together
    finish = (
        _FINISH
        + residual * _RESIDUAL
        + (_RESULT + _SMOOTH * smooth) * size / t.split
        + _FLOAT * size * (t.split - 1) / t.split
    )
    cluster = (
        (_CLUSTER if t.cluster > 1 else 0.0)
        + (_WIDE_CLUSTER if t.cluster > 4 else 0.0)
        + (_SHARED_COPIES if t.share > 1 else 0.0)
    )
    return max(memory, waves * -(-steps // t.split) * step) + waves * finish + cluster


def prices(
    m: int, n: int, steps: int, sms: int, residual: bool, smooth: bool, panels: bool, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0,
) -> dict[SplitTile, float]:  # fmt: skip
    """Clocks of every tile for m x n with `steps` steps of k. panels: tiles must be a multiple of
    64 columns wide. bundles: of n columns each.
    """
    tiles = (t for t in candidates(m, n, steps, sms, bundles) if not panels or t.bn % 64 == 0)
    return {
        t: tile_cost(t, m, n, steps, sms, residual, smooth, bundles, pixel, made, crossed)
        for t in tiles
    }


def rows_cost(t: SplitTile, m: int, n: int, batch: int, sms: int) -> float:
    """Clocks to store rows that begin anywhere, a warp one after another."""
    waves = -(-(-(-m // t.bm) * -(-n // t.bn) * t.split * batch) // slots(t.split, t.resident, sms))
    return _ROW * waves * min(t.bm, m) / t.split / (t.rows // 16) + _RESULTS * batch * m * n


def batched_cost(
    t: SplitTile,
    m: int,
    n: int,
    k: int,
    batch: int,
    sms: int,
    crossed: tuple[float, float],
    y: bool,
) -> float:
    """Clocks of `batch` products of two run-time operands, comparable with
    `multistage_tiles.odd_cost`. crossed: `persistent_sm90.crossed` of A and B; y: whether
    rows of y begin at multiples of 16 bytes."""
    first, second = crossed[::-1] if t.swap else crossed
    (blocks, _, waves, together), steps = _turns(t, m, n, sms, batch), -(-k // 64)
    multiply = (
        _BATCH_MULTIPLY
        * t.rows
        / 64
        * max(t.columns / 64, 0.5 + t.columns / 128)
        * (1.0 + _BATCH_ALONE * (t.rows * together < 128))
    )
    copied = (t.rows * first / t.beside + t.columns * second / t.share) * 128
    own = (
        -(-steps // t.split)
        if t.split > 1
        else (k - 1) // 64 + persistent_sm90.last_products(k) / 4
    )
    step = max(together * multiply, _BATCH_LATENCY / t.stages, together * copied / _BATCH_L2)
    finish = (
        (_BATCH_RESULT + _BATCH_FLOAT * (t.split - 1)) / t.split * t.rows * t.columns * together
    )
    body = waves * (own * step + _BATCH_WAVE + finish)
    memory = 2 * batch * (m + n) * k / _BATCH_READ + 2 * batch * m * n / _BATCH_WRITE * (
        1.0 + _SECTORS * (n % 16 > 0)
    )
    more = _BATCH_START + _BATCH_CLUSTER * (t.cluster > 1) + _BATCH_WIDE * (t.cluster > 4)
    more += (
        _BATCH_SHARED * (t.share * t.beside > 1)
        + _BATCH_MANY * (t.share * t.beside > 2)
        + (0.0 if y else rows_cost(t, m, n, batch, sms))
    )
    if min(m, n) <= _FEW:
        more += _NARROW * 2 * batch * (m + n) * steps * 64
    busy: float = (body**1.5 + (blocks * own * copied / _BATCH_CHIP) ** 1.5 + memory**1.5) ** (
        2 / 3
    )
    return busy + more


@cache
def batched_prices(
    m: int, n: int, k: int, sms: int, batch: int, across: tuple[bool, bool], crossed: tuple[float, float], y: bool
) -> dict[SplitTile, float]:  # fmt: skip
    """Clocks of the tiles for `batch` products of two run-time operands. crossed, y: as for
    `batched_cost`.
    """
    return {
        t: batched_cost(t, m, n, k, batch, sms, crossed, y)
        for t in candidates(m, n, -(-k // 64), sms, 1, batch, across)
    }


def batched_product(
    r: Request,
    tile: SplitTile,
    i: Mapping[str, DimLike],
    across: tuple[bool, bool],
    active: DimLike,
) -> Kernel:
    """`matmul` of operands that tensor maps reach, with strides `i`."""
    m, n, k, b0, b1 = (r.ints[name] for name in ("M", "N", "K", "B0", "B1"))
    maps: list[TensorMap] = []
    params: list[tuple[str, str, Argument]] = [
        ("int", "K", Int32(k)),
        *(("i64", s, Int64(i[s])) for s in ("y_0", "y_1")),
    ]
    # blocks that copy A, and B, together
    parts = (tile.share, tile.beside) if tile.swap else (tile.beside, tile.share)
    for operand, rows, row, own, by in (
        ("a", m, "m", tile.bm, parts[0]),
        ("b", n, "n", tile.bn, parts[1]),
    ):
        turned = across[operand == "b"]
        pitch = i[f"{operand}_{'k' if turned else row}"]
        strides = (pitch, i[f"{operand}_1"], i[f"{operand}_0"])
        sizes = (rows, k) if turned else (k, rows)
        maps.append(TensorMap(
            Pointer(operand), r.dtype, (*sizes, b1, b0), tuple(D.maximum(D.mul(s, 2), 16) for s in strides), (64, (64 if turned else own) // by, 1, 1),
        ))  # fmt: skip
        params += [
            ("int", f"{operand}_moves_{axis}", Int32(D.less(0, i[f"{operand}_{axis}"])))
            for axis in (0, 1)
        ]
    return _product(
        r, tile, 2, maps[0], maps[1], m, n, i["ldy"], i["ldr"], params, active, across, depth=k
    )


def matrix_product(
    r: Request,
    tile: SplitTile,
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
    shared = tile.columns // tile.share
    x = persistent_sm90.matrix(r, "x", m, k, ldx, (shared if tile.swap else tile.rows, 64))
    w = persistent_sm90.matrix(r, "w", n, k, ldw, (tile.rows if tile.swap else shared, 64))
    return _product(r, tile, 0, x, w, m, n, ldy, ldr, [("int", "K", Int32(k))], active, depth=k)


def convolution(r: Request, tile: SplitTile, rows: DimLike, active: DimLike) -> Kernel:
    """A convolution as `persistent_sm90.convolution` takes it."""
    shared = tile.columns // tile.share
    x, w, params = persistent_sm90.image_maps(
        r, shared if tile.swap else tile.rows, tile.rows if tile.swap else shared
    )
    return _product(
        r,
        tile,
        1,
        x,
        w,
        rows,
        int(r.ints["OC"]),
        r.ints["y_cs"],
        r.ints.get("r_cs", 0),
        params,
        active,
    )


def deconvolution(r: Request, tile: SplitTile, rows: DimLike, active: DimLike) -> Kernel:
    """A transposed convolution that `transposed.reaches`, of that many output pixels a phase."""
    shared = tile.columns // tile.share
    x, w, params = transposed.maps(
        r, shared if tile.swap else tile.rows, tile.rows if tile.swap else shared
    )
    return _product(
        r,
        tile,
        1,
        x,
        w,
        rows,
        int(r.ints["OC"]),
        r.ints["y_cs"],
        r.ints.get("r_cs", 0),
        params,
        active,
        turned=True,
    )


def _product(
    r: Request, tile: SplitTile, source: int, x: TensorMap, w: TensorMap, m: DimLike, n: DimLike, ldy: DimLike, ldr: DimLike,
    params: Sequence[tuple[str, str, Argument]], active: DimLike, across: tuple[bool, bool] = (False, False), turned: bool = False,
    depth: DimLike = 0,
) -> Kernel:  # fmt: skip
    if source == 1 and not turned:
        r = replace(r, ints={**r.ints, **{f"o{k}_ld": r.ints.get("r_cs", 0) for k in range(4)}})
    staged = r.program is None and epilogue.residual(r) and not turned
    full = tuple(r.ints.get(f"r_{p}", 0) for p in ("cs", "rs", "ns")) if turned else (ldr,)
    epi = epilogue.epilogue(r, full, staged=staged, touched=True, scaled=source == 2)
    left, right = across[::-1] if tile.swap else across
    map_type = "const __grid_constant__ TensorMap"
    parameters: list[tuple[str, str, Argument]] = [
        (map_type, "map_x", x),
        (map_type, "map_w", w),
        ("T* __restrict__", "y", Pointer("y")),
    ]
    parameters += [
        ("int", "M", Int32(m)),
        ("int", "N", Int32(n)),
        ("i64", "ldy", Int64(ldy)),
        ("i64", "ldr", Int64(ldr)),
        *params,
        *epi.parameters,
    ]
    if staged:
        parameters.append(("const T*", "res", Pointer("res")))
    mma, grouped = (
        "f16" if r.dtype == DType.F16 else "bf16",
        r if source == 1 and not turned else None,
    )
    pitches = (
        (ldy, *(r.ints.get(s, 0) for s in (("y_0", "y_1") if source == 2 else ("y_rs", "y_ns"))))
        if source == 2 or turned
        else (ldy,)
    )
    each = (
        min(4, *(multiple_of(v) for v in (n, *pitches)))
        if source != 1 and "y" not in r.unaligned
        else 1
    )
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", f"#define SOURCE {source}", f"#define RESIDUAL {int(staged)}", f"#define TURNED {int(turned)}",
        f"#define PARAMETERS {', '.join(f'{t} {name}' for t, name, _ in parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr int ROWS = {tile.rows}, COLUMNS = {tile.columns}, SPLIT = {tile.split}, SHARE = {tile.share}, SHARE_LEFT = {tile.beside};",
        f"constexpr int STAGES = {tile.stages}, RESIDENT = {tile.resident};",
        f"constexpr bool LEFT_ACROSS = {int(left)}, RIGHT_ACROSS = {int(right)};" if source == 2 else "",
        f"constexpr bool EARLY = {int('w' in r.constant)}, SWAP = {int(tile.swap)}, Y_VECTOR = {int(epilogue.vector(r, 'y', pitches))};",
        f"constexpr int Y_EACH = {each}, LAST = {persistent_sm90.last_products(depth)};",
        f"constexpr bool R_VECTOR = {int(epilogue.vector(r, 'res', (ldr,)))}, WHOLE_CHUNKS = {int(multiple_of(n) >= 8)};",
        _grouped.constants(grouped), persistent_sm90.multiply(tile.columns, mma, (left, right)), template("common/tma"),
        transposed.template(r) if turned else "", _grouped.template(grouped), folded_norm.template(r), epi.source, folded_norm.source(r, n, r.ints.get("K", 0)),
        template("gemm/cluster_splitk_sm90"),
    ])  # fmt: skip
    share_m, share_n = (tile.beside, tile.share) if tile.swap else (tile.share, tile.beside)
    tiles_n = _grouped.tiles(r, tile.bn) if grouped else D.ceildiv(n, tile.bn)
    tiles = D.mul(D.ceildiv(m, tile.bm * share_m), D.ceildiv(tiles_n, share_n))
    beside = (
        (r.ints["B1"], r.ints["B0"])
        if source == 2
        else (transposed.phases(r), 1)
        if turned
        else (1, 1)
    )
    grid = (D.mul(D.mul(tiles, tile.cluster), active), beside[0], beside[1])
    return Kernel(
        text,
        "product_split",
        grid,
        tile.threads,
        tuple(v for _, _, v in parameters),
        tile.smem,
        tile.cluster,
        True,
    )
