"""Matrix products: `gemm` (packed weight [N, `families.weight_pitch`], k contiguous), `gemm_norm`
(the same between norms of rows) and `matmul` (two run-time operands with any strides)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import weight_pitch

from ..common import epilogue, folded_norm
from ..common.epilogue import Parameter
from ..common.instantiate import ints, longs, pointer, sizes
from ..common.launch import known
from ..cost.model import prices
from . import batches, cluster_splitk_sm90, gemv, persistent_sm90, select, simt, sm90

#: What Tile is where tensor maps reach: so many times its clocks. Of so few results `tile_cost`
#: holds, and more clocks a byte.
_MAPPED, _MOVED, _FEW_RESULTS = 1.08, 5.3e-4, 1 << 18
# most k of products by a weight for which GEMV at once competes with kernels that read through
# tensor maps
_NEAR = 256
# what GEMV that reads ahead is beside others: so many times its clocks
_THIN = 1.2
_TILES = 1 << 31  # results of a batch, less than which have a number that an `int` holds
_FEW = 16  # results that SplitTile's clusters are too few for
#: Matrices of batches more than the first of these and up to the last, and what they are taken for.
_MATRICES = ((0, 12, 24), (24, 48, 96), (96, 256, 0))
_LARGE = 4096  # rows, columns and k of what a tile is chosen for where no other will do
# clocks of a tile for one more range of rows there, at most so many times the best one's
_SIMILAR = 1.1


@dataclass(frozen=True)
class Beside:
    """Tiles that compete with a product's: their class, their clocks for so many rows, the kernel
    of one.
    """

    tile: type
    prices: Callable[[int], Mapping[Any, float]]
    kernel: Callable[[Any, DimLike], Kernel]


def rows_by_weight(
    r: Request, m: DimLike, n: int, k: int, ldx: DimLike, ldw: int, ldy: DimLike, ldr: DimLike, beside: Beside | None = None
) -> list[Kernel]:  # fmt: skip
    """y[m, n] = epilogue(x[m, :] . w[n, :]): `gemm`, and convolutions that are one."""
    if m == 1:
        ldx = ldw  # where a second row would be does not matter
    steps = -(-k // 64)
    maps = steps if k and sm90.able(r, (ldx,), ("x",)) else 0
    stored = not r.ints.get("res_mode", 0) or sm90.able(r, (ldy, ldr), ("y", "res"))
    norms = folded_norm.normed(r) or folded_norm.measured(r)
    if norms and not (maps and stored):
        raise NoKernel("norms folded into a product of operands that are not aligned")
    y = epilogue.vector(r, "y", (ldy,))
    a, b = select.access(r, "x", ldx, 1), select.access(r, "w", ldw, 1)
    odd = select.odd(r, a, b, y)

    few = known(D.less(D.mul(m, n), _FEW + 1)) == 1 and not norms

    def price(rows: int) -> Any:
        if r.dtype == DType.F32:
            p = select.problem(r, rows, n, k, 1, a, b, y)
            works = select.single(r, p) | gemv.works(r, p, a, b) | simt.works(r, p)
            return prices(works, r.caps)
        costs = select.prices(
            rows, n, k, 1, r, maps=maps, stored=stored, odd=odd, crossed=sm90.crossed(ldx)
        )
        near = {} if norms or k > _NEAR else gemv.prices(r, rows, n, k, 1, a, b, ahead=False)
        if maps and near:
            stores = {
                t: 0.0
                if y or not isinstance(t, cluster_splitk_sm90.SplitTile)
                else cluster_splitk_sm90.rows_cost(t, rows, n, 1, r.sms)
                for t in costs
            }
            costs = {t: cluster_splitk_sm90.START + c + stores[t] for t, c in costs.items()} | near
        if maps and not few:
            return costs
        costs |= gemv.prices(r, rows, n, k, 1, a, b, ahead=True)
        costs |= near or gemv.prices(r, rows, n, k, 1, a, b, ahead=False)
        return costs

    kernels: list[Kernel] = []
    for tile, active in select.choose(
        m, price if beside is None else lambda rows: price(rows) | beside.prices(rows)
    ):
        if beside is not None and isinstance(tile, beside.tile):
            kernels.append(beside.kernel(tile, active))
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
        return [scheduler.product(sm90.matrices(r, m, n, k, ldx, ldw, ldy, ldr), tile, active)]
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
#: Of tiles whose kernels are not those of `select.product`.
_PRODUCTS: Mapping[type, Callable[..., Kernel]] = {
    gemv.GemvTile: gemv.product,
    simt.LaneTile: simt.product,
}


def _by_operands(r: Request, tile: Any, operands: select.Operands) -> list[Kernel]:
    """Kernels that read their operands themselves."""
    if (product := _PRODUCTS.get(type(tile))) is not None:
        return [product(r, tile, operands)]
    return select.product(r, tile, operands)


def gemm(r: Request) -> list[Kernel]:
    """`gemm` and `gemm_norm`.

    Only kernels that read through tensor maps know of norms: lowering asks for no others.
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
    if not r.ints.get("ldr", 0):  # the residual lies like y
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
    # where a second row would be does not matter
    i |= {name: 0 for name, count in (("a_m", m), ("b_n", n)) if count == 1}
    a = select.access(r, "a", i["a_m"], i["a_k"], (i["a_0"], i["a_1"]))
    b = select.access(r, "b", i["b_n"], i["b_k"], (i["b_0"], i["b_1"]))
    y = epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"]))
    odd = select.odd(r, a, b, y)
    even = select.evenly(r, a, b, y) if not odd and r.arch >= 90 else None
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
        turned = (a.trans, b.trans)
        if r.dtype == DType.F32:
            p = select.problem(r, rows, columns, depth, batch, a, b, y)
            works = select.single(r, p, split=r.arch >= 90) | simt.works(r, p)
            return prices(works | (gemv.works(r, p, a, b) if isinstance(n, int) else {}), r.caps)
        few = y and batch * rows * columns < _FEW_RESULTS
        costs = select.prices(
            rows,
            columns,
            depth,
            batch,
            r,
            transposed=turned,
            odd=odd or (None if few else even),
            split=r.arch >= 90,
        )
        if mapped and y:
            more = (
                _MOVED * 2 * batch * (rows * depth + columns * depth + rows * columns)
                if few
                else 0.0
            )
            costs = {t: (1.0 if few else _MAPPED) * c + more for t, c in costs.items()}
        if isinstance(n, int):
            thin = gemv.prices(r, rows, columns, depth, batch, a, b, ahead=True)
            costs |= {t: c * _THIN for t, c in thin.items()}
            costs |= gemv.prices(r, rows, columns, depth, batch, a, b, ahead=False)
        if mapped:
            costs |= cluster_splitk_sm90.batched_prices(
                rows, columns, depth, r.sms, batch, turned, crossed, y
            )
            if y and 0 not in (b0, b1, n, k) and batch * rows * columns < _TILES:
                costs |= persistent_sm90.batched_prices(
                    rows,
                    columns,
                    depth,
                    batch,
                    r.sms,
                    turned,
                    crossed,
                    "bias" not in r.operands and not epilogue.dear(r),
                )
        return costs

    kernels: list[Kernel] = []
    left: DimLike = 0
    # HopperTiles
    fits = (
        D.mul(D.less(0, k), D.less(D.product([b0, b1, m, n]), _TILES))
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
            _LARGE, _LARGE, _LARGE, 1, r, transposed=(a.trans, b.trans), odd=odd or even
        )
        kernels += strided(r, min(others, key=others.__getitem__), i, left)
    return kernels


def _for_batches(
    rows: DimLike, batch: DimLike, price: Callable[[int, int], Mapping[Any, float]]
) -> Iterator[tuple[Any, DimLike]]:
    """As `select.choose`, also by the matrices of a batch where these are symbolic beside other
    sizes.
    """
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
        return [scheduler.product(sm90.batch(r, i, (a.trans, b.trans), swapped), tile, active)]
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
