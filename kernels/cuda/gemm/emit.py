"""GEMM families: `gemm` (packed weight [N, `families.weight_pitch`], contiguous along k),
`gemm_norm` (the same, with norms of rows folded in) and `matmul` (two run-time operands with any
strides).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import weight_pitch
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue, folded_norm
from ..common.epilogue import Parameter
from ..common.instantiate import ints, longs, pointer, sizes
from ..common.launch import known
from ..cost.fitted import fitted
from ..cost.model import prices
from . import batches, cluster_splitk_sm90, gemv, persistent_sm90, select, simt, sm90

#: Of Tile where tensor maps reach both operands: the factor of its clocks; of results fewer than
#: _SMALL_RESULT, clocks per byte are added instead.
_MAPPED_FACTOR, _MAPPED_BYTE = fitted("gemm.emit", "mapped_factor mapped_byte")
_SMALL_RESULT = 1 << 18
# largest k of linear layers for which GEMV that reads all of k at once is compared with kernels
# that read through tensor maps
_AT_ONCE_K = 256
# factor of the clocks of GEMV that prefetches (staged), compared with those of other kernels
(_STAGED_FACTOR,) = fitted("gemm.emit", "staged_factor")
_INT_RESULTS = 1 << 31  # results of a batch whose tiles an `int` can count
_GEMV_RESULTS = 16  # up to so many results GEMV is always compared
#: Ranges of a symbolic number of matrices: (more than, priced as, at most; 0: no limit).
_MATRICES = ((0, 12, 24), (24, 48, 96), (96, 256, 0))
_LARGE = 4096  # M, N and K that the fallback tile is chosen for
# of symbolic batches: a tile also serves the next range of rows up to this factor of its best
# clocks
_SIMILAR = 1.1


@dataclass(frozen=True)
class Competitor:
    """Further tiles for a linear layer: their class, their clocks for a number of rows, and the
    kernel of one tile with its condition.
    """

    tile: type
    prices: Callable[[int], Mapping[Any, float]]
    kernel: Callable[[Any, DimLike], Kernel]


def rows_by_weight(
    r: Request,
    m: DimLike,
    n: int,
    k: int,
    ldx: DimLike,
    ldw: int,
    ldy: DimLike,
    ldr: DimLike,
    competitor: Competitor | None = None,
) -> list[Kernel]:
    """y[m, n] = epilogue(x[m, :] . w[n, :]): `gemm`, and convolutions with windows of one pixel."""
    if m == 1:
        ldx = ldw  # the pitch of a single row is free
    steps = -(-k // 64)
    maps = steps if k and sm90.able(r, (ldx,), ("x",)) else 0
    stored = not r.ints.get("res_mode", 0) or sm90.able(r, (ldy, ldr), ("y", "res"))
    norms = folded_norm.normed(r) or folded_norm.measured(r)
    if norms and not (maps and stored):
        raise NoKernel("norms folded into a GEMM of operands that are not aligned")
    y = epilogue.vector(r, "y", (ldy,))
    a, b = select.access(r, "x", ldx, 1), select.access(r, "w", ldw, 1)
    alignment = select.misaligned(r, a, b, y)

    small_result = known(D.less(D.mul(m, n), _GEMV_RESULTS + 1)) == 1 and not norms

    def price(rows: int) -> Any:
        if r.dtype == DType.F32:
            p = select.problem(r, rows, n, k, 1, a, b, y)
            works = select.works(r, p) | gemv.works(r, p, a, b) | simt.works(r, p)
            return prices(works, r.caps)
        if maps:
            crossed = sm90.crossed(ldx)
            costs = select.sm90_prices(r, rows, n, maps, stored=stored, crossed=crossed)
        else:
            costs = select.prices(rows, n, k, 1, r, alignment=alignment)
        at_once = (
            {} if norms or k > _AT_ONCE_K else gemv.prices(r, rows, n, k, 1, a, b, ahead=False)
        )
        if maps and at_once:
            stores = {
                t: 0.0
                if y or not isinstance(t, cluster_splitk_sm90.SplitTile)
                else cluster_splitk_sm90.rows_cost(t, rows, n, 1, r.sms)
                for t in costs
            }
            costs = {
                t: cluster_splitk_sm90.START + c + stores[t] for t, c in costs.items()
            } | at_once
        if maps and not small_result:
            return costs
        costs |= gemv.prices(r, rows, n, k, 1, a, b, ahead=True)
        costs |= at_once or gemv.prices(r, rows, n, k, 1, a, b, ahead=False)
        return costs

    kernels: list[Kernel] = []
    for tile, active in select.choose(
        m, price if competitor is None else lambda rows: price(rows) | competitor.prices(rows)
    ):
        if competitor is not None and isinstance(tile, competitor.tile):
            kernels.append(competitor.kernel(tile, active))
        else:
            kernels += _by_tile(r, tile, m, n, k, ldx, ldw, ldy, ldr, active)
    return list(select.shared_scratch(kernels))


def _by_tile(
    r: Request,
    tile: Any,
    m: DimLike,
    n: int,
    k: int,
    ldx: DimLike,
    ldw: int,
    ldy: DimLike,
    ldr: DimLike,
    active: DimLike,
) -> list[Kernel]:
    if (scheduler := _SM90.get(type(tile))) is not None:
        return [scheduler.emit(sm90.matrices(r, m, n, k, ldx, ldw, ldy, ldr), tile, active)]
    steps = {"a_m": ldx, "a_k": 1, "b_n": ldw, "b_k": 1, "ldy": ldy, "ldr": ldr}
    operands = select.Operands(
        [*_pointers("x", "w", "y"), *ints({"M": m, "N": n, "K": k}), *longs(steps)],
        select.access(r, "x", ldx, 1),
        select.access(r, "w", ldw, 1),
        (ldr,),
        epilogue.vector(r, "y", (ldy,)),
        m,
        n,
        active,
    )
    return _by_operands(r, tile, operands)


def _pointers(a: str, b: str, y: str) -> list[Parameter]:
    return [pointer("const T", a, "a"), pointer("const T", b, "b"), pointer("T", y, "y")]


#: Kernels that read through tensor maps, by their tiles.
_SM90: Mapping[type, Any] = {
    persistent_sm90.HopperTile: persistent_sm90,
    cluster_splitk_sm90.SplitTile: cluster_splitk_sm90,
}
#: Emitters by tile; all other tiles are those of `select.emit`.
_EMITTERS: Mapping[type, Callable[..., Kernel]] = {
    gemv.GemvTile: gemv.emit,
    simt.SimtTile: simt.emit,
}


def _by_operands(r: Request, tile: Any, operands: select.Operands) -> list[Kernel]:
    """Kernels of tiles that read operands without tensor maps."""
    if (emit := _EMITTERS.get(type(tile))) is not None:
        return [emit(r, tile, operands)]
    return select.emit(r, tile, operands)


def gemm(r: Request) -> list[Kernel]:
    """`gemm` and `gemm_norm`. Only kernels that read through tensor maps fold norms in; lowering
    asks for no others.
    """
    n, k = select.static(r, "N"), select.static(r, "K")
    return rows_by_weight(
        r,
        r.ints["M"],
        n,
        k,
        r.ints["ldx"],
        weight_pitch(k, r.dtype.size),
        r.ints["ldy"],
        r.ints.get("ldr", 0),
    )


def matmul(r: Request) -> list[Kernel]:
    if not r.ints.get("ldr", 0):  # the residual has the strides of y
        r = replace(
            r,
            ints={
                **r.ints,
                "ldr": r.ints["ldy"],
                "r_0": r.ints.get("y_0", 0),
                "r_1": r.ints.get("y_1", 0),
            },
        )
    i = {name: r.ints.get(name, 0) for name in _MATMUL_STRIDES}
    if not epilogue.vector(r, "res", (i["r_0"], i["r_1"])):
        r = replace(r, unaligned=r.unaligned | {"res"})
    m, n, k, b0, b1 = (r.ints[name] for name in ("M", "N", "K", "B0", "B1"))
    # the pitch of a single row is free
    i |= {name: 0 for name, count in (("a_m", m), ("b_n", n)) if count == 1}
    a = select.access(r, "a", i["a_m"], i["a_k"], (i["a_0"], i["a_1"]))
    b = select.access(r, "b", i["b_n"], i["b_k"], (i["b_0"], i["b_1"]))
    y = epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"]))
    alignment = select.misaligned(r, a, b, y)
    even = select.alignment(r, a, b, y) if not alignment and r.arch >= 90 else None
    maps = (
        r.arch == 90
        and r.dtype != DType.F32
        and r.program is None
        and not epilogue.residual(r)
        and not (a.gather or b.gather)
    )
    mapped = maps and a.bytes == b.bytes == 16
    crossed = (
        sm90.crossed(i["a_k" if a.trans else "a_m"]),
        sm90.crossed(i["b_k" if b.trans else "b_n"]),
    )

    def price(rows: int, batch: int) -> Any:
        columns, depth = select.known(n, 512), select.known(k, 512)
        transposed = (a.trans, b.trans)
        if r.dtype == DType.F32:
            p = select.problem(r, rows, columns, depth, batch, a, b, y)
            works = select.works(r, p, split=r.arch >= 90) | simt.works(r, p)
            return prices(works | (gemv.works(r, p, a, b) if isinstance(n, int) else {}), r.caps)
        small_result = y and batch * rows * columns < _SMALL_RESULT
        costs = select.prices(
            rows,
            columns,
            depth,
            batch,
            r,
            transposed=transposed,
            alignment=alignment or (None if small_result else even),
            split=r.arch >= 90,
        )
        if mapped and y:
            more = (
                _MAPPED_BYTE * 2 * batch * (rows * depth + columns * depth + rows * columns)
                if small_result
                else 0.0
            )
            costs = {
                t: (1.0 if small_result else _MAPPED_FACTOR) * c + more for t, c in costs.items()
            }
        if isinstance(n, int):
            staged = gemv.prices(r, rows, columns, depth, batch, a, b, ahead=True)
            costs |= {t: c * _STAGED_FACTOR for t, c in staged.items()}
            costs |= gemv.prices(r, rows, columns, depth, batch, a, b, ahead=False)
        if mapped:
            costs |= cluster_splitk_sm90.batched_prices(
                rows, columns, depth, r.sms, batch, transposed, crossed, y
            )
            if y and 0 not in (b0, b1, n, k) and batch * rows * columns < _INT_RESULTS:
                costs |= persistent_sm90.batched_prices(
                    rows,
                    columns,
                    depth,
                    batch,
                    r.sms,
                    transposed,
                    crossed,
                    "bias" not in r.operands and not epilogue.expensive(r),
                )
        return costs

    kernels: list[Kernel] = []
    left: DimLike = 0
    # 1 where HopperTile may run: K > 0, and an `int` counts the results
    fits = (
        D.mul(D.less(0, k), D.less(D.product([b0, b1, m, n]), _INT_RESULTS))
        if not all(isinstance(v, int) for v in (b0, b1, n, k))
        else 1
    )
    for tile, active in _for_batches(m, D.mul(b0, b1), price):
        if isinstance(tile, persistent_sm90.HopperTile) and fits != 1:
            kernels += strided(r, tile, i, D.mul(active, fits))
            left = D.add(left, D.mul(active, D.sub(1, fits)))
        else:
            kernels += strided(r, tile, i, active)
    if left != 0:
        others = select.prices(  # of 16-bit types
            _LARGE, _LARGE, _LARGE, 1, r, transposed=(a.trans, b.trans), alignment=alignment or even
        )
        kernels += strided(r, min(others, key=others.__getitem__), i, left)
    return kernels


def _for_batches(
    rows: DimLike, batch: DimLike, price: Callable[[int, int], Mapping[Any, float]]
) -> Iterator[tuple[Any, DimLike]]:
    """`select.choose` by rows and number of matrices; a symbolic number is divided into ranges."""
    number = select.known(batch, -1)
    if number >= 0:
        yield from select.choose(rows, lambda m: price(m, number))
        return
    for low, usual, high in _MATRICES:
        within = D.mul(D.less(low, batch) if low else 1, D.less(batch, high + 1) if high else 1)
        for tile, use in select.choose(rows, _with_batch(price, usual), False, _SIMILAR):
            yield tile, D.mul(within, use)


def _with_batch(
    price: Callable[[int, int], Mapping[Any, float]], batch: int
) -> Callable[[int], Mapping[Any, float]]:
    return lambda m: price(m, batch)


def strided(r: Request, tile: Any, i: dict[str, DimLike], active: DimLike) -> list[Kernel]:
    """The kernels of `matmul` with strides `i`."""
    m, n, b0, b1 = (r.ints[name] for name in ("M", "N", "B0", "B1"))
    a = select.access(r, "a", i["a_m"], i["a_k"], (i["a_0"], i["a_1"]))
    b = select.access(r, "b", i["b_n"], i["b_k"], (i["b_0"], i["b_1"]))
    if (scheduler := _SM90.get(type(tile))) is not None:
        swapped = tile.swap and scheduler is persistent_sm90
        return [scheduler.emit(sm90.batch(r, i, (a.trans, b.trans), swapped), tile, active)]
    steps = longs({name: i[name] for name in _MATMUL_STRIDES})
    params = [*_pointers("a", "b", "y"), *ints(sizes(r, "M", "N", "K")), *steps]
    if not epilogue.residual(r):
        params.append(pointer("const T", "res"))
    y_vector = epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"]))
    operands = select.Operands(
        params, a, b, (i["ldr"],), y_vector, m, n, active, b1, b0, batched=True
    )
    return _by_operands(r, tile, operands)


_MATMUL_STRIDES = (
    "a_0",
    "a_1",
    "a_m",
    "a_k",
    "b_0",
    "b_1",
    "b_k",
    "b_n",
    "y_0",
    "y_1",
    "ldy",
    "r_0",
    "r_1",
    "ldr",
)
FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "gemm": gemm,
    "gemm_norm": gemm,
    "matmul": batches.of(matmul),
}
