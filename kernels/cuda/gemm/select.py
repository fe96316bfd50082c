"""Choice of tiles for GEMM and implicit GEMM; how operands are read; kernels of
`gemm/multistage_sm80/gemm.cuh`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any

from tracea_onnx.codegen import kernel_choice, size_ranges
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor, multiple_of
from tracea_onnx.runtime import device_caps
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue, folded_norm
from ..common.epilogue import Parameter
from ..common.instantiate import instantiate, ints, wgmma
from ..common.launch import smem_of_even_waves
from ..cost import gemm as cost
from ..cost.fitted import fitted
from ..cost.gemm import Problem
from ..cost.model import Work
from . import cluster_splitk_sm90, persistent_sm90
from .multistage_sm80 import tiles as multistage_tiles
from .sm90 import Sizes

Prices = Mapping[Any, float]
MATRICES = ("gemm", "gemm_norm", "matmul")
#: Tiles of kernels on tensor maps up to this many times the least clocks are compared with others.
_SLACK = 1.05
#: The same during tuning; and of tiles that are ranked by their clocks in a network.
_SLACK_TUNED, _NETWORK_SLACK = 1.4, 1.1
#: Further clocks of any launch in a network (fitted with `cluster_splitk_sm90.network_cost`).
(_LAUNCH,) = fitted("gemm.select", "launch")
#: Most bytes of shared memory of a tile of `gemm/multistage_sm80/gemm.cuh`.
_SMEM_LIMIT = 164 * 1024
# results of a linear layer from which copies of its weight are priced as whole
_WHOLE_RESULTS = 1 << 20


def sm90_prices(
    r: Request,
    m: int,
    n: int,
    steps: int,
    *,
    stored: bool = False,
    problem_count: int = 1,
    pixel: tuple[float, float] = (0.0, 0.0),
    mma_scale: float = 1.0,
    crossed: float = 1.0,
) -> dict[Any, float]:
    """Clocks of the likely tiles of kernels that read their operands through tensor maps. stored:
    whether tensor maps also reach the result and the residual (HopperTile); the rest as in
    `sm90.Sizes`.
    """
    expensive, statistics = epilogue.expensive(r), folded_norm.measured(r)
    sizes = Sizes(
        m, n, steps, r.sms, epilogue.residual(r), expensive, statistics, problem_count, pixel,
        mma_scale, crossed,
    )  # fmt: skip
    return _likely(sizes, stored, r.family, _SLACK_TUNED if kernel_choice.wanted() else _SLACK)


def prices(
    m: int,
    n: int,
    k: int,
    batch: int,
    r: Request,
    *,
    transposed: tuple[bool, bool] = (False, False),
    alignment: Any | None = None,
    split: bool = True,
    windows: str = "",
) -> dict[Any, float]:
    """Clocks of every Tile for 16-bit types. transposed: whether A, B are contiguous along their
    rows (tiles of fewer than 64 rows cannot read these); alignment: of operands that are not
    aligned to 16 bytes; split: whether k may be split; windows: "conv" or "deconv" where rows of A
    are windows of an image.
    """
    steps = -(-k // 64)
    limit = min(r.caps.smem_block, _SMEM_LIMIT)
    out = {}
    for t in (
        *multistage_tiles.tiles(r.dtype, r.tf32, r.arch),
        *(
            multistage_tiles.TILES_WHOLE
            if alignment and alignment.whole and min(alignment.a, alignment.b) > 2
            else ()
        ),
    ):
        across = (transposed[0] and t.bm < 64) or (transposed[1] and t.bn < 64)
        if across or t.smem > limit:
            continue
        for tile in (
            _splits(t) if split and t not in multistage_tiles.TILES_WHOLE else _splits(t)[:1]
        ):
            if tile.split == 1 or steps >= 2 * tile.split:
                out[tile] = (
                    multistage_tiles.unaligned_cost(tile, m, n, k, batch, r.sms, alignment)
                    if alignment
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
    r: Request,
    m: int,
    n: int,
    k: int,
    batch: int,
    a: Access,
    b: Access,
    y: bool,
    kind: str = "",
    read: float = 0.0,
) -> Problem:
    """An f32 GEMM as the cost model takes it. read: elements of A in memory, where an implicit GEMM
    reads some more than once (0: m * k * batch).
    """
    residual, weight = bool(epilogue.residual(r)), r.family != "matmul"
    moved = (read or float(m * k * batch)) + (1.0 + residual) * m * n * batch
    moved += 0 if weight else n * k * batch
    # L2 holds what the launch before wrote, up to half of its capacity
    dram = 4.0 * weight * n * k * batch + max(0.0, 4.0 * moved - r.caps.l2 / 2)
    transposed, gathered = (a.trans, b.trans), (a.gather, b.gather)
    expensive = epilogue.expensive(r)
    return Problem(
        r.caps,
        m,
        n,
        k,
        batch,
        dram,
        kind,
        expensive,
        residual,
        a.bytes,
        b.bytes,
        transposed,
        gathered,
        y,
    )


def works(r: Request, p: Problem, *, split: bool = True) -> dict[Any, Work]:
    """`Work` of every Tile of f32. split: whether k may be split."""
    limit = min(r.caps.smem_block, _SMEM_LIMIT)
    out: dict[Any, Work] = {}
    for t in multistage_tiles.tiles(r.dtype, r.tf32, r.arch):
        if (t.terms == 3 and r.arch in multistage_tiles.SLOW_TF32) or t.smem > limit:
            continue
        resident = multistage_tiles.resident_ctas(t, transposed=p.transposed[1])
        for tile in _splits(t) if split else (t,):
            if tile.split == 1 or -(-p.k // 32) >= 2 * tile.split:
                out[tile] = cost.multistage(tile, p, resident)
    return out


@cache
def _splits(tile: Any) -> tuple[Any, ...]:
    """The tile without split-K, and with split-K over 2, 4 and 8 CTAs."""
    return tuple(replace(tile, split=s) for s in (1, 2, 4, 8))


@cache
def _likely(s: Sizes, stored: bool, family: str, slack: float) -> dict[Any, float]:
    """Clocks of the tiles within `slack` of the best. stored: HopperTiles, too. Linear layers are
    ranked by their clocks in a network (`network_cost`); the best one is then given the clocks of
    the cheapest isolated launch, because prices of other kernels are those of isolated launches.
    """
    linear, norms = family in ("gemm", "gemm_norm"), family == "gemm_norm"
    hopper: dict[Any, float] = persistent_sm90.prices(s, wide=linear) if stored else {}
    costs = hopper | cluster_splitk_sm90.prices(s)
    least = min(costs.values(), default=0.0)
    if linear and costs:
        candidates = {
            t: c
            + (
                persistent_sm90.NETWORK_COST
                if t in hopper
                else cluster_splitk_sm90.network_cost(t, s, norms)
            )
            for t, c in costs.items()
            if c <= _NETWORK_SLACK * least
        }
        best = min(candidates.values())
        costs |= {t: least * (c + _LAUNCH) / (best + _LAUNCH) for t, c in candidates.items()}
    return {t: c for t, c in costs.items() if c <= slack * least}


#: Values of a symbolic M that tiles are chosen for, as multiples of its known factor: 1, 2, 4, ...
#: up to _MOST rows, and 3, 6, 12, ... (finely also 5, 7, 10, 14, ...) up to _FINE rows.
_MOST, _FINE = 1 << 18, 1 << 12
#: A tile also serves the next size up to this factor of that size's least clocks: one kernel less
#: to compile.
_REUSE = 1.02


def choose(
    rows: DimLike, price: Callable[[int], Prices], finely: bool = False, reuse: float = _REUSE
) -> Iterator[tuple[Any, DimLike]]:
    """(tile, condition) of each kernel of the launch list: one if `rows` is known, else one for
    each range of rows. A range is current while its tile is yielded (`size_ranges.above`).

    price: clocks of tiles by rows. finely: more ranges, for launches of few waves. reuse: a tile
    also serves the next size up to this factor of that size's least clocks.
    """
    if isinstance(rows, int):
        yield kernel_choice.cheapest(_launchable(price(rows))), 1
        return
    ranges: list[tuple[Any, int]] = []  # a tile and the largest size that it serves
    least, most = size_ranges.between(rows)
    for m in dict.fromkeys(
        min(size, most)
        for size in _sizes(max(factor(rows), 1), (5, 6, 7) if finely else (6,))
        if size >= least
    ) or (least,):
        with size_ranges.at(rows, m):
            costs = _launchable(price(m))
        tile = _cheapest(costs)
        if ranges and costs.get(ranges[-1][0], math.inf) <= reuse * costs[tile]:
            tile, _ = ranges.pop()
        ranges.append((tile, m))
    low = 0
    for k, (tile, high) in enumerate(ranges):
        above, last = D.less(low, rows) if low else 1, k == len(ranges) - 1
        with size_ranges.above(rows, low, None if last else high):
            yield tile, above if last else D.mul(above, D.less(rows, high + 1))
        low = high


def _launchable(costs: Prices) -> Prices:
    """Costs of tiles that the device can launch; raises NoKernel if there are none."""
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
            f"no tile fits a device with {device.smem_block} bytes of shared memory for a CTA and "
            f"clusters of {device.cluster}"
        )
    return found


def _smem(tile: Any) -> int:
    size = getattr(tile, "smem", 0)
    return size if isinstance(size, int) else 0


def _cluster(tile: Any) -> int:
    """CTAs of a cluster."""
    return int(getattr(tile, "cluster_size", getattr(tile, "cluster", getattr(tile, "split", 1))))


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
    """How an operand is copied: `bytes` at a time, contiguous along k or along its rows (`trans`),
    or element by element (`gather`).
    """

    bytes: int
    trans: bool = False
    gather: bool = False

    @property
    def slow(self) -> bool:
        """Whether copies are staged through registers: cp.async takes 4 bytes or more."""
        return self.bytes == 2


def access(
    r: Request, operand: str, row_step: DimLike, k_step: DimLike, others: Sequence[DimLike] = ()
) -> Access:
    """Access of `operand`, whose element (row, k) is at row * row_step + k * k_step. others:
    strides of batches, for alignment only.
    """
    size = r.dtype.size

    def aligned(*steps: DimLike) -> int:
        return (
            size if operand in r.unaligned else min([16, *(multiple_of(s) * size for s in steps)])
        )

    if isinstance(k_step, int) and k_step == 1:
        return Access(aligned(row_step, *others))
    if isinstance(row_step, int) and row_step == 1:
        return Access(aligned(k_step, *others), trans=True)
    return Access(size, gather=True)


known = size_ranges.size_hint


def misaligned(r: Request, a: Access, b: Access, y: bool) -> Any | None:
    """`alignment` of operands of which one cannot be copied 16 bytes at a time, else None."""
    return alignment(r, a, b, y) if min(a.bytes, b.bytes) < 16 else None


def alignment(r: Request, a: Access, b: Access, y: bool) -> Any:
    """Alignment of the operands. y: whether rows of y are aligned to 16 bytes."""
    return multistage_tiles.Alignment(
        a.bytes,
        b.bytes,
        y,
        whole=all(how.slow or whole(r, how, rows) for how, rows in ((a, "M"), (b, "N"))),
        each=each(r),
    )


def whole(r: Request, how: Access, rows: str) -> bool:
    """Whether each copy of an operand with `rows` (M or N) is entirely inside or outside."""
    if r.dtype == DType.F32 or r.family not in MATRICES or how.gather or how.slow:
        return False
    # packed rows have zeros up to a multiple of 8
    if (
        rows == "N"
        and r.family != "matmul"
        and known(D.mul(r.ints["M"], r.ints["N"]), 0) >= _WHOLE_RESULTS
    ):
        return True
    return multiple_of(r.ints[rows if how.trans else "K"]) * r.dtype.size >= how.bytes


def each(r: Request) -> int:
    """Elements, at most 8, at multiples of which rows of y begin and end."""
    if r.dtype == DType.F32 or r.family not in MATRICES or "y" in r.unaligned:
        return 1
    return min(8, *(multiple_of(r.ints.get(s, 0)) for s in ("N", "ldy", "y_0", "y_1")))


@dataclass(frozen=True)
class Operands:
    """Operands of kernels that read without tensor maps. params: kernel parameters beyond the
    epilogue's; a, b: how operands are read; pitches: of the residual; y_vector: whether rows of y
    are aligned to 16 bytes; grid_y, grid_z: matrices along these grid axes; batched: whether there
    may be several; active: 0 empties the grid.
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

    def grid(self, ctas: DimLike) -> tuple[DimLike, DimLike, DimLike]:
        """The grid of `ctas` per matrix."""
        return D.mul(ctas, self.active), self.grid_y, self.grid_z


def emit(
    r: Request,
    tile: Any,
    o: Operands,
    *,
    source: int = 0,
    macros: Mapping[str, bool | int | str] | None = None,
    constants: Mapping[str, bool | int] | None = None,
    group: DimLike = 0,
    finish: epilogue.Epilogue | None = None,
    more: Mapping[str, bool | int | str] = {},
) -> list[Kernel]:
    """The GEMM kernel and, with split-K without clusters, the reduction. source: 0 matrices, 1
    convolution, with its macros and constants; group: columns of a group of a convolution, 0: there
    is one. finish: an epilogue of its own, which takes sums of integers where T has 8 bits. more:
    further macros.
    """
    a, b, rows, columns, params = o.a, o.b, o.rows, o.columns, o.params
    cluster = r.arch >= 90 and tile.split > 1
    n8 = D.round_up(columns, 8)
    scratch: tuple[DimLike, ...] = ()
    if tile.split > 1 and not cluster:
        scratch = (D.product([D.mul(o.grid_y, o.grid_z), tile.split, rows, n8, 4, o.active]),)
        params = [*params, ("Partial*", "scratch", Pointer("scratch0")), *ints({"N8": n8})]
    f32 = r.dtype == DType.F32
    simt = f32 and not tile.terms
    if simt and b.trans and tile.bn > multistage_tiles.MOST_LINES:
        b = Access(4, gather=True)
    # CTAs per SM for __launch_bounds__: without it the compiler uses so many registers for small
    # CTAs, and for CTAs of 256 threads, that fewer are resident.
    resident = multistage_tiles.resident_ctas(tile, transposed=b.trans) if f32 else 1
    if not f32 and tile.threads == 256 and tile.bm * tile.bn == 128 * 128:
        min_ctas = 2
    else:
        min_ctas = resident if simt or tile.wgmma else 1
    tiles = D.mul(D.ceildiv(rows, tile.bm), D.ceildiv(columns, tile.bn))
    grid = o.grid(D.mul(tiles, tile.split))
    smem = tile.smem + (tile.parts if b.trans else 0)
    if f32 and source == 0 and tile.split == 1:
        smem = smem_of_even_waves(r, smem, D.product(grid), resident)
    names = ("bm", "bn", "warps_m", "warps_n", "warps_k", "stages")
    sizes: dict[str, bool | int] = {name.upper(): getattr(tile, name) for name in names}
    for name, how, lines in (("A", a, "M"), ("B", b, "N")):
        sizes |= {
            f"{name}_BYTES": how.bytes,
            f"{name}_TRANS": how.trans,
            f"{name}_GATHER": how.gather,
            f"{name}_WHOLE": whole(r, how, lines),
        }
    # The largest tile has no registers for prefetching from shared memory with split-K or in an
    # implicit GEMM.
    ahead = tile.bm * tile.bn < 128 * 128 or a.trans or (tile.split == 1 and source == 0)
    main = instantiate(
        r,
        "gemm_multistage",
        "gemm/multistage_sm80/gemm",
        params,
        grid,
        tile.threads,
        epilogue=finish or epilogue.epilogue(r, o.pitches, group, scaled=r.family == "matmul"),
        macros={
            **wgmma(r.dtype, tile.bn),
            **more,
            "IS_INT8": r.dtype.size == 1,
            "SOURCE": source,
            "SPLIT": tile.split,
            "CLUSTER": cluster,
            "LAUNCH_BOUNDS": f"{tile.threads}"
            + (f", {min_ctas}" if min_ctas > (2 if simt else 1) else ""),
            "TERMS": tile.terms,
            "USE_WGMMA": tile.wgmma,
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
    ctas = D.ceildiv(D.mul(rows, D.floordiv(n8, 8)), 128)
    return [main, replace(main, symbol="gemm_splitk_reduce", grid=o.grid(ctas), block=128, smem=0)]


def shared_scratch(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels with one scratch buffer large enough for each of them."""
    sizes = [k.scratch[0] for k in kernels if k.scratch]
    if not sizes:
        return list(kernels)
    most = reduce(D.maximum, sizes)
    return [replace(k, scratch=(most,)) for k in kernels]


def pixels(r: Request) -> DimLike:
    """Output pixels of a convolution, of all images."""
    return D.product([r.ints[n] for n in ("N", "OH", "OW")])


def channels(r: Request, count: int) -> int:
    """Elements of a filter tap of `count` channels in packed filters: a multiple of 16 bytes, or of
    8 elements for filters of one tap (as rows of a packed matrix).
    """
    whole = 4 if r.dtype == DType.F32 and static(r, "KH") * static(r, "KW") > 1 else 8
    return -(-count // whole) * whole


def static(r: Request, name: str) -> int:
    """An integer parameter that a kernel must know at compile time."""
    value = r.ints.get(name, 0)
    if not isinstance(value, int):
        raise NoKernel(f"{r.family} with a symbolic {name}")
    return value
