"""Products as tiles (`gemm/multistage_sm80/gemm.cuh`): tile choice, operand access and kernels for
matrices and for convolutions as implicit GEMM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

from tracea_onnx.codegen import kernel_choice, size_ranges
from tracea_onnx.codegen.kernel_request import (
    Argument,
    Int32,
    Int64,
    Kernel,
    NoKernel,
    Pointer,
    Request,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor, multiple_of
from tracea_onnx.runtime import device_caps

from ..common import epilogue, folded_norm
from ..common.epilogue import Parameter
from ..common.instantiate import instantiate, ints, wgmma
from ..common.launch import even
from ..cost import gemm as cost
from ..cost.gemm import Problem
from ..cost.model import Work
from . import cluster_splitk_sm90, persistent_sm90
from .multistage_sm80 import tiles as multistage_tiles

_FREE = (0.0, 0.0)
Prices = Mapping[Any, float]
#: What the kernels that read through tensor maps are priced by, as their `prices` take it.
_Sizes = tuple[int, int, int, int, bool, bool, bool, int, tuple[float, float], float, float]
MATRICES = ("gemm", "gemm_norm", "matmul")
#: Of tiles whose clocks are to be compared with those of others, those that cost at most so many
#: times the best one's.
_SLACK = 1.05
#: The same where measurements decide, and of those among which it counts what they take more
#: between other launches.
_SLACK_TUNED, _NEAR = 1.4, 1.1
#: Clocks that any launch takes more between others (fitted with `cluster_splitk_sm90.between`).
_ANY = 14954.0
#: Bytes of shared memory that tiles of `gemm/multistage_sm80/gemm.cuh` have at most.
_MOST_SHARED = 164 * 1024
# results of a product by a weight that `multistage_tiles` prices as if its copies were whole
_MANY = 1 << 20


def prices(
    m: int, n: int, k: int, batch: int, r: Request, *, transposed: tuple[bool, bool] = (False, False), odd: Any | None = None, split: bool = True,
    maps: int = 0, stored: bool = False, bundles: int = 1, pixel: tuple[float, float] = _FREE, made: float = 1.0, windows: str = "",
    crossed: float = 1.0,
) -> dict[Any, float]:  # fmt: skip
    """Clocks of the tiles of two-byte elements for these sizes: every Tile, or where tensor maps
    reach the operands the likely ones of SplitTile and HopperTile.

    transposed: operands whose rows are neighbours, of two bytes each for tiles of at least 64; odd:
    what may cost more; split: whether k may be divided; maps: steps along k of the kernels that
    read through tensor maps, 0 where these do not reach; stored: whether they reach the result and
    the residual, too; bundles: of n columns each, which these kernels take; pixel: clocks that
    copying 64 channels of one pixel, and of one filter, takes at least; made: as for
    `grouped.made`; windows: of what convolution of two-byte elements rows are windows, "conv" or
    "deconv"; crossed: `sm90.crossed` of A where tensor maps reach it."""
    if maps:
        sizes = (
            m,
            n,
            maps,
            r.sms,
            epilogue.residual(r),
            epilogue.dear(r),
            folded_norm.measured(r),
            bundles,
            pixel,
            made,
            crossed,
        )
        return _likely(sizes, stored, r.family, _SLACK_TUNED if kernel_choice.wanted() else _SLACK)
    steps = -(-k // 64)
    limit = min(r.caps.smem_block, _MOST_SHARED)
    out = {}
    for t in (
        *multistage_tiles.tiles(r.dtype, r.tf32, r.arch),
        *(multistage_tiles.TILES_WHOLE if odd and odd.whole and min(odd.a, odd.b) > 2 else ()),
    ):
        across = (transposed[0] and t.bm < 64) or (transposed[1] and t.bn < 64)
        if across or t.smem > limit:
            continue
        for tile in (
            _divided(t) if split and t not in multistage_tiles.TILES_WHOLE else _divided(t)[:1]
        ):
            if tile.split == 1 or steps >= 2 * tile.split:
                out[tile] = (
                    multistage_tiles.odd_cost(tile, m, n, k, batch, r.sms, odd)
                    if odd
                    else multistage_tiles.tile_cost(tile, m, n, steps, batch, r.sms)
                )
                if windows and r.arch >= 90:
                    out[tile] = max(
                        out[tile],
                        multistage_tiles.window_cost(
                            tile, m, n, steps, batch, r.sms, windows == "deconv"
                        ),
                    )
    return out


def problem(
    r: Request, m: int, n: int, k: int, batch: int, a: Access, b: Access, y: bool, kind: str = "", read: float = 0.0
) -> Problem:  # fmt: skip
    """A product of f32 as the cost model takes it. read: elements of A in memory, where these are
    fewer than are multiplied (0: all)."""
    residual, weight = bool(epilogue.residual(r)), r.family != "matmul"
    moved = (read or float(m * k * batch)) + (1.0 + residual) * m * n * batch
    moved += 0 if weight else n * k * batch
    # what the launch before wrote lies in L2, as far as it has room
    dram = 4.0 * weight * n * k * batch + max(0.0, 4.0 * moved - r.caps.l2 / 2)
    turned, gathered = (a.trans, b.trans), (a.gather, b.gather)
    dear = epilogue.dear(r)
    return Problem(
        r.caps, m, n, k, batch, dram, kind, dear, residual, a.bytes, b.bytes, turned, gathered, y
    )


def single(r: Request, p: Problem, *, split: bool = True) -> dict[Any, Work]:
    """What every Tile of f32 does. split: whether k may be divided."""
    limit = min(r.caps.smem_block, _MOST_SHARED)
    out: dict[Any, Work] = {}
    for t in multistage_tiles.tiles(r.dtype, r.tf32, r.arch):
        if (t.terms == 3 and r.arch in multistage_tiles.FEW_TENSOR) or t.smem > limit:
            continue
        held = multistage_tiles.held(t, turned=p.turned[1])
        for tile in _divided(t) if split else (t,):
            if tile.split == 1 or -(-p.k // 32) >= 2 * tile.split:
                out[tile] = cost.multistage(tile, p, held)
    return out


@cache
def _divided(tile: Any) -> tuple[Any, ...]:
    """The tile with its k whole, and divided among 2, 4 and 8 blocks."""
    return tuple(replace(tile, split=s) for s in (1, 2, 4, 8))


@cache
def _likely(sizes: _Sizes, stored: bool, family: str, slack: float) -> dict[Any, float]:
    """Clocks of those tiles that `choose` may take, of persistent_sm90.cuh too if `stored`;
    networks ask for the same sizes many times. The best one of linear layers between other launches
    has the clocks of the best one by itself: those of other kernels are by themselves."""
    m, n, _, sms, *_ = sizes
    linear, norms = family in ("gemm", "gemm_norm"), family == "gemm_norm"
    hopper: dict[Any, float] = persistent_sm90.prices(*sizes, wide=linear) if stored else {}
    costs = hopper | cluster_splitk_sm90.prices(*sizes)
    least = min(costs.values(), default=0.0)
    if linear and costs:
        near = {
            t: c
            + (
                persistent_sm90.BETWEEN
                if t in hopper
                else cluster_splitk_sm90.between(t, m, n, sms, norms)
            )
            for t, c in costs.items()
            if c <= _NEAR * least
        }
        best = min(near.values())
        costs |= {t: least * (c + _ANY) / (best + _ANY) for t, c in near.items()}
    return {t: c for t, c in costs.items() if c <= slack * least}


#: Rows that a symbolic M is tuned for, as multiples of its known factor: 1, 2, 4, 8, ... up to
#: _MOST rows, and 3, 6, 12, ... (finely 5, 7, 10, 14, ..., too) up to _FINE.
_MOST, _FINE = 1 << 18, 1 << 12
#: A tile serves the next size, too, where it costs at most so many times the best one's clocks: a
#: kernel less to compile.
_AGAIN = 1.02


def choose(
    rows: DimLike, price: Callable[[int], Prices], finely: bool = False, again: float = _AGAIN
) -> Iterator[tuple[Any, DimLike]]:
    """(tile, condition) of each kernel the launch list needs: one when `rows` is known, else one
    for each range of it, which is the present one meanwhile.

    price: clocks of tiles for so many rows. finely: of few tiles, whose turns matter more. again: a
    tile serves the next size, too, where it costs at most so many times the best one's clocks."""
    if isinstance(rows, int):
        yield kernel_choice.cheapest(_launchable(price(rows))), 1
        return
    ranges: list[tuple[Any, int]] = []  # a tile and the last size that it serves
    least, most = size_ranges.between(rows)
    for m in dict.fromkeys(
        min(size, most)
        for size in _sizes(max(factor(rows), 1), (5, 6, 7) if finely else (6,))
        if size >= least
    ) or (least,):
        with size_ranges.at(rows, m):
            costs = _launchable(price(m))
        tile = _cheapest(costs)
        if ranges and costs.get(ranges[-1][0], math.inf) <= again * costs[tile]:
            tile, _ = ranges.pop()
        ranges.append((tile, m))
    low = 0
    for k, (tile, high) in enumerate(ranges):
        above, last = D.less(low, rows) if low else 1, k == len(ranges) - 1
        with size_ranges.above(rows, low, None if last else high):
            yield tile, above if last else D.mul(above, D.less(rows, high + 1))
        low = high


def _launchable(costs: Prices) -> Prices:
    """Without the tiles that the device cannot launch; raises NoKernel where none is left."""
    device = device_caps.present.get()
    if device is None:
        return costs
    found = {
        t: c
        for t, c in costs.items()
        if device.launches(_smem(t), _cluster(t) if device.arch >= 90 else 1)
    }
    if costs and not found:
        raise NoKernel(
            f"no tile fits a device with {device.smem_block} bytes of shared memory for a block and clusters of {device.cluster}"
        )
    return found


def _smem(tile: Any) -> int:
    size = getattr(tile, "smem", 0)
    return size if isinstance(size, int) else 0


def _cluster(tile: Any) -> int:
    """Blocks of a cluster: `clustered` where a kernel's blocks share more than its k."""
    return int(getattr(tile, "clustered", getattr(tile, "cluster", getattr(tile, "split", 1))))


def _cheapest(costs: Prices) -> Any:
    return min(costs, key=lambda t: costs[t])


def _sizes(unit: int, quarters: tuple[int, ...]) -> Iterator[int]:
    count = 1
    while unit * count <= _MOST or count == 1:
        yield unit * count
        if count > 1 and unit * count <= _FINE:
            yield from (unit * (count * n // 4) for n in quarters if count * n % 4 == 0)
        count *= 2


@dataclass(frozen=True)
class Access:
    """How one operand is copied: bytes at a time, along k or across it (`trans`), or element by
    element (`gather`).
    """

    bytes: int
    trans: bool = False
    gather: bool = False

    @property
    def slow(self) -> bool:
        """Whether elements go through registers."""
        return self.bytes == 2


def access(
    r: Request, operand: str, row_step: DimLike, k_step: DimLike, others: Sequence[DimLike] = ()
) -> Access:
    """Access of `operand` whose element (row, k) lies at row * row_step + k * k_step (+ others,
    which only matter for alignment).
    """
    size = r.dtype.size

    def alignment(*steps: DimLike) -> int:
        return (
            size if operand in r.unaligned else min([16, *(multiple_of(s) * size for s in steps)])
        )

    if isinstance(k_step, int) and k_step == 1:
        return Access(alignment(row_step, *others))
    if isinstance(row_step, int) and row_step == 1:
        return Access(alignment(k_step, *others), trans=True)
    return Access(size, gather=True)


known = size_ranges.size_hint


def odd(r: Request, a: Access, b: Access, y: bool) -> Any | None:
    """What makes this product odd, None for one of two-byte elements that are copied 16 bytes at a
    time. y: whether its rows begin at multiples of 16 bytes.
    """
    return evenly(r, a, b, y) if min(a.bytes, b.bytes) < 16 else None


def evenly(r: Request, a: Access, b: Access, y: bool) -> Any:
    """What makes a product of matrices odd, whose rows of y begin at multiples of 16 bytes if `y`."""
    return multistage_tiles.Odd(
        a.bytes,
        b.bytes,
        y,
        whole=all(how.slow or whole(r, how, rows) for how, rows in ((a, "M"), (b, "N"))),
        each=each(r),
    )


def whole(r: Request, how: Access, rows: str) -> bool:
    """Whether each copy of an operand of `rows` has all of its elements or none."""
    if r.dtype == DType.F32 or r.family not in MATRICES or how.gather or how.slow:
        return False
    # packed rows have zeros up to a multiple of 8
    if rows == "N" and r.family != "matmul" and known(D.mul(r.ints["M"], r.ints["N"]), 0) >= _MANY:
        return True
    return multiple_of(r.ints[rows if how.trans else "K"]) * r.dtype.size >= how.bytes


def each(r: Request) -> int:
    """At multiples of how many elements rows of y begin and end, at most 8."""
    if r.dtype == DType.F32 or r.family not in MATRICES or "y" in r.unaligned:
        return 1
    return min(8, *(multiple_of(r.ints.get(s, 0)) for s in ("N", "ldy", "y_0", "y_1")))


@dataclass(frozen=True)
class Operands:
    """What kernels need that read their operands themselves. params: kernel parameters beyond the
    epilogue's; a, b: how operands are read; pitches: of the residual; y_vector: whether rows of y
    begin at multiples of 16 bytes; grid_y, grid_z: matrices along these axes; batched: whether
    there may be several; active: 0 empties the grid.
    """

    params: Sequence[Parameter]
    a: Access
    b: Access
    pitches: tuple[DimLike, ...]
    y_vector: bool
    rows: DimLike
    columns: DimLike
    active: DimLike
    grid_y: DimLike = 1
    grid_z: DimLike = 1
    batched: bool = False

    def grid(self, blocks: DimLike) -> tuple[DimLike, DimLike, DimLike]:
        """Of `blocks` for a matrix."""
        return D.mul(blocks, self.active), self.grid_y, self.grid_z


def product(
    r: Request,
    tile: Any,
    o: Operands,
    *,
    source: int = 0,
    macros: Mapping[str, bool | int | str] | None = None,
    constants: Mapping[str, bool | int] | None = None,
    group: DimLike = 0,
) -> list[Kernel]:
    """Kernels of one product. source: 0 matrices, 1 convolution; macros, constants: what it needs;
    group: columns of a group, 0: there is one.
    """
    a, b, rows, columns, params = o.a, o.b, o.rows, o.columns, o.params
    cluster = r.arch >= 90 and tile.split > 1
    n8 = D.round_up(columns, 8)
    scratch: tuple[DimLike, ...] = ()
    if tile.split > 1 and not cluster:
        scratch = (D.product([D.mul(o.grid_y, o.grid_z), tile.split, rows, n8, 4, o.active]),)
        params = [*params, ("float*", "scratch", Pointer("scratch0")), *ints({"N8": n8})]
    f32 = r.dtype == DType.F32
    simt = f32 and not tile.terms
    if simt and b.trans and tile.bn > multistage_tiles.MOST_LINES:
        b = Access(4, gather=True)
    # CTAs of an SM; the compiler gives more registers to many small ones unless it is told, and to
    # 256 threads so many that a second CTA has none left.
    resident = multistage_tiles.held(tile, turned=b.trans) if f32 else 1
    if not f32 and tile.threads == 256 and tile.bm * tile.bn == 128 * 128:
        beside = 2
    else:
        beside = resident if simt or tile.grouped else 1
    tiles = D.mul(D.ceildiv(rows, tile.bm), D.ceildiv(columns, tile.bn))
    grid = o.grid(D.mul(tiles, tile.split))
    smem = tile.smem + (tile.parts if b.trans else 0)
    if f32 and source == 0 and tile.split == 1:
        smem = even(r, smem, D.product(grid), resident)
    names = ("bm", "bn", "warps_m", "warps_n", "warps_k", "stages")
    sizes: dict[str, bool | int] = {name.upper(): getattr(tile, name) for name in names}
    for name, how, lines in (("A", a, "M"), ("B", b, "N")):
        sizes |= {
            f"{name}_BYTES": how.bytes,
            f"{name}_TRANS": how.trans,
            f"{name}_GATHER": how.gather,
            f"{name}_WHOLE": whole(r, how, lines),
        }
    # The largest tile is better off without reads ahead where several CTAs share its k, and where
    # pixels take registers.
    ahead = tile.bm * tile.bn < 128 * 128 or a.trans or (tile.split == 1 and source == 0)
    main = instantiate(
        r,
        "gemm_multistage",
        "gemm/multistage_sm80/gemm",
        params,
        grid,
        tile.threads,
        epilogue=epilogue.epilogue(r, o.pitches, group, scaled=r.family == "matmul"),
        macros={
            **wgmma(r.dtype, tile.bn),
            "SOURCE": source,
            "SPLIT": tile.split,
            "CLUSTER": cluster,
            "LAUNCH_BOUNDS": f"{tile.threads}"
            + (f", {beside}" if beside > (2 if simt else 1) else ""),
            "TERMS": tile.terms,
            "GROUPED": tile.grouped,
            **({"BATCHED": o.batched} if macros is None else macros),
        },
        constants={
            **sizes,
            "Y_EACH": each(r),
            "Y_VECTOR": o.y_vector,
            "AHEAD": ahead,
            **(constants or {}),
        },
        smem=smem,
        cluster=tile.split if cluster else 1,
        scratch=scratch,
    )
    if not scratch:
        return [main]
    blocks = D.ceildiv(D.mul(rows, D.floordiv(n8, 8)), 128)
    return [
        main,
        replace(main, symbol="gemm_splitk_reduce", grid=o.grid(blocks), block=128, smem=0),
    ]


def shared_scratch(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels with one scratch buffer large enough for each of them."""
    sizes = [k.scratch[0] for k in kernels if k.scratch]
    if not sizes:
        return list(kernels)
    most = reduce(D.maximum, sizes)
    return [replace(k, scratch=(most,)) for k in kernels]


def pixels(r: Request) -> DimLike:
    """Of all images of a convolution's result."""
    return D.product([r.ints[n] for n in ("N", "OH", "OW")])


def channels(r: Request, count: int) -> int:
    """Elements of a tap of `count` channels in packed filters: whole copies of 16 bytes, of a
    single tap what a matrix has.
    """
    whole = 4 if r.dtype == DType.F32 and static(r, "KH") * static(r, "KW") > 1 else 8
    return -(-count // whole) * whole


def static(r: Request, name: str) -> int:
    """An integer parameter that a kernel must know at compile time."""
    value = r.ints.get(name, 0)
    if not isinstance(value, int):
        raise NoKernel(f"{r.family} with a symbolic {name}")
    return value


def int_params(r: Request, names: Sequence[str]) -> list[tuple[str, str, Argument]]:
    return [("int", n, Int32(r.ints.get(n, 0))) for n in names]


def long_params(r: Request, names: Sequence[str]) -> list[tuple[str, str, Argument]]:
    return [("i64", n, Int64(r.ints.get(n, 0))) for n in names]
