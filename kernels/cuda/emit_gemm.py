"""Matrix products: `gemm` (packed weight [N, `families.weight_pitch`], k contiguous), `gemm_norm` (the same between norms of rows) and `matmul` (two run-time
operands with any strides)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen.cuda_source import known
from tracea_onnx.codegen.kernel_request import Argument, Int64, Kernel, Pointer, Request, Unfit
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import weight_pitch
from tracea_onnx.support import discovery

_product, _costs = (discovery.module("kernels", "cuda").part(n) for n in ("_product", "_tile_costs"))
_epilogue = discovery.module("kernels", "cuda").part("_epilogue")
_norms = discovery.module("kernels", "cuda").part("_norms")
_wgmma = discovery.module("kernels", "cuda").part("_wgmma")
_split = discovery.module("kernels", "cuda").part("_split")
_thin = discovery.module("kernels", "cuda").part("_thin")
_align = discovery.module("kernels", "cuda").part("_align")
_direct = discovery.module("kernels", "cuda").part("_direct")
_flat = discovery.module("kernels", "cuda").part("_flat")
_blocks = discovery.module("kernels", "cuda").part("_blocks")
_batches = discovery.module("kernels", "cuda").part("_batches")
_lanes = discovery.module("kernels", "cuda").part("_lanes")
_dots = discovery.module("kernels", "cuda").part("_dots")
#: Clocks that kernels which read through tensor maps take beyond their prices behind a copy: each, for an element of the copy, for one of a weight, and for one
#: of a multiprocessor's results that lie anywhere, of SplitTile and HopperTile.
_COLD, _COPIED, _WEIGHT, _ANYWHERE = 3200.0, 1.6e-3, 6.6e-4, (1.0, 1.5)
#: What these are beside other kernels, which take more than their prices.
_BEFORE = 0.85
_COPIES = 1700.0  # more clocks of SplitTile in batches behind copies
#: What Tile is behind copies, and where tensor maps reach: so many times its clocks. Of so few results `tile_cost` holds, and more clocks a byte.
_BEHIND, _MAPPED, _MOVED, _FEW_RESULTS = 1.1, 1.08, 5.3e-4, 1 << 18
_NEAR = 256  # most k of products by a weight for which `_dots` competes with kernels that read through tensor maps
_THIN = ((1.05, 1.2), (1.12, 1.0))  # what `_thin.tile_cost` is for 16-bit elements, turned and not, and for f32: so many times its clocks
_SHORT = 1.25  # what short products of f32 cost beside tiles that copy whole rows 16 bytes at a time: so many times their clocks
_FEW_PRODUCTS = 1 << 30  # multiplications of f32 for which `_tile_costs.steps_cost` holds
_BESIDE = 1.2  # what FlatTile of f32 costs beside LaneTiles: so many times its clocks
_TILES = 1 << 31  # results of a batch, less than which have a number that an `int` holds
_FEW = 16  # results that SplitTile's clusters are too few for
#: Matrices of batches more than the first of these and up to the last, and what they are taken for.
_MATRICES = ((0, 12, 24), (24, 48, 96), (96, 256, 0))
_LARGE = 4096  # rows, columns and k of what a tile is chosen for where no other will do
_SIMILAR = 1.1  # clocks of a tile for one more range of rows there, at most so many times the best one's
_POINTERS = (("const T*", "a"), ("const T*", "b"), ("T*", "y"))


@dataclass(frozen=True)
class Beside:
    """Tiles that compete with a product's: their class, their clocks for so many rows, the kernel of one."""

    tile: type
    prices: Callable[[int], Mapping[Any, float]]
    kernel: Callable[[Any, DimLike], Kernel]


def rows_by_weight(
    r: Request, m: DimLike, n: int, k: int, ldx: DimLike, ldw: int, ldy: DimLike, ldr: DimLike, beside: Beside | None = None
) -> list[Kernel]:  # fmt: skip
    """y[m, n] = epilogue(x[m, :] . w[n, :]): `gemm`, and convolutions that are one."""
    if m == 1:
        ldx = ldw  # where a second row would be does not matter
    steps, copied = -(-k // 64), _align.Rows("x", m, k, ldx)
    maps = steps if k and _wgmma.able(r, (ldx,), ("x",)) else 0
    stored = not r.ints.get("res_mode", 0) or _wgmma.able(r, (ldy, ldr), ("y", "res"))
    norms = _norms.normed(r) or _norms.measured(r)
    if norms and not (maps and stored):
        raise Unfit("norms folded into a product of operands that are not aligned")
    aligned = replace(r, unaligned=r.unaligned - {"x"})
    mappable = k and _wgmma.able(aligned, (ldw,), ("x",))
    y = _epilogue.vector(r, "y", (ldy,))
    a, b = _product.access(r, "x", ldx, 1), _product.access(r, "w", ldw, 1)
    odd = _product.odd(r, a, b, y)

    few = known(D.less(D.mul(m, n), _FEW + 1)) == 1 and not norms

    def price(rows: int) -> Any:
        costs = _product.prices(rows, n, k, 1, r, maps=maps, stored=stored, odd=odd, crossed=_wgmma.crossed(ldx))
        near = {} if norms or k > _NEAR else _dots.prices(r, rows, n, k, 1, a, b, False)
        if maps and near:
            stores = {t: 0.0 if y or not isinstance(t, _split.SplitTile) else _split.rows_cost(t, rows, n, 1, r.sms) for t in costs}
            costs = {t: _split.START + c + stores[t] for t, c in costs.items()} | near
        if maps and not few:
            return costs
        whole = a.bytes == 16 and y
        thin = _thin.prices(r, rows, n, k, 1, (ldx, 1), (ldw, 1), k)
        costs |= {t: c * (_SHORT if whole and r.dtype == DType.F32 and isinstance(t, _thin.ShortTile) else 1.0) for t, c in thin.items()}
        costs |= _direct.prices(r, rows, n, k, 1, a, b, y) | (near or _dots.prices(r, rows, n, k, 1, a, b, False))
        if not whole:
            costs |= _flat.prices(r, rows, n, k, 1, a, b, y)
        if r.dtype == DType.F32:
            costs = _by_steps(r, costs, rows, n, k, 1, a, b, y)
        if mappable and not maps:
            copy, late = _align.cost(rows * k) + _COLD + _COPIED * rows * k + _WEIGHT * n * k, 0.0 if y else rows * n / r.sms
            mapped = _product.prices(rows, n, k, 1, aligned, maps=steps, stored=stored, crossed=_wgmma.crossed(copied.aligned))
            costs |= {_align.Aligned(t): _BEFORE * (copy + c + _ANYWHERE[isinstance(t, _wgmma.HopperTile)] * late) for t, c in mapped.items()}
        return costs

    kernels: list[Kernel] = []
    for tile, active in _product.choose(m, price if beside is None else lambda rows: price(rows) | beside.prices(rows)):
        if beside is not None and isinstance(tile, beside.tile):
            kernels.append(beside.kernel(tile, active))
        elif isinstance(tile, _align.Aligned):
            copy = _align.kernel(r, [copied], active=active)
            kernels += [copy, *_align.redirected(_by_tile(aligned, tile.tile, m, n, k, copied.aligned, ldw, ldy, ldr, active), {"x": "scratch0"}, copy.scratch)]
        else:
            kernels += _by_tile(r, tile, m, n, k, ldx, ldw, ldy, ldr, active)
    return list(_product.shared_scratch(kernels))


def _by_steps(r: Request, costs: dict[Any, float], m: int, n: int, k: int, batch: int, a: Any, b: Any, y: bool) -> dict[Any, float]:
    """The clocks of f32 tiles where k is short: with those of LaneTiles."""
    lanes: dict[Any, float] = _lanes.prices(r, m, n, k, batch, a, b, y)

    def price(t: Any, cost: float) -> Any:
        if isinstance(t, _costs.Tile) and t.terms != 1 and not t.grouped and batch * m * n * k < _FEW_PRODUCTS:
            return _costs.steps_cost(t, r, m, n, k, batch, a, b, y)
        return _BESIDE * cost if isinstance(t, _flat.FlatTile) else cost

    return {t: price(t, cost) for t, cost in costs.items()} | lanes if lanes else costs


def _by_tile(r: Request, tile: Any, m: DimLike, n: int, k: int, ldx: DimLike, ldw: int, ldy: DimLike, ldr: DimLike, active: DimLike) -> list[Kernel]:
    if isinstance(tile, _wgmma.HopperTile):
        return [_wgmma.matrix_product(r, tile, m, n, k, ldx, ldw, ldy, ldr, active)]
    if isinstance(tile, _split.SplitTile):
        return [_split.matrix_product(r, tile, m, n, k, ldx, ldw, ldy, ldr, active)]
    params: list[tuple[str, str, Argument]] = [(t, name, Pointer(o)) for (t, name), o in zip(_POINTERS, ("x", "w", "y"), strict=True)]
    params += [("int", name, _product.Int32(v)) for name, v in (("M", m), ("N", n), ("K", k))]
    params += [("i64", name, Int64(v)) for name, v in (("a_m", ldx), ("a_k", 1), ("b_n", ldw), ("b_k", 1), ("ldy", ldy), ("ldr", ldr))]
    if isinstance(tile, (_thin.ThinTile, _thin.ShortTile, _dots.DotTile)):
        product = _dots.product if isinstance(tile, _dots.DotTile) else _thin.product
        return [product(r, tile, params=params, pitches=(ldr,), rows=m, columns=n, grid_y=1, grid_z=1, batched=False, active=active)]
    if isinstance(tile, _direct.DirectTile):
        return [_direct.product(
            r, tile, params=params, a=_product.access(r, "x", ldx, 1), b=_product.access(r, "w", ldw, 1), pitches=(ldr,),
            y_vector=_epilogue.vector(r, "y", (ldy,)), rows=m, columns=n, grid_y=1, grid_z=1, batched=False, active=active,
        )]  # fmt: skip
    if isinstance(tile, _flat.FlatTile):
        return [_flat.product(
            r, tile, params=params, a=_product.access(r, "x", ldx, 1), b=_product.access(r, "w", ldw, 1), pitches=(ldr,), rows=m, columns=n, grid_y=1, grid_z=1,
            batched=False, active=active,
        )]  # fmt: skip
    if isinstance(tile, _lanes.LaneTile):
        return [_lanes.product(
            r, tile, params=params, a=_product.access(r, "x", ldx, 1), b=_product.access(r, "w", ldw, 1), pitches=(ldr,),
            y_vector=_epilogue.vector(r, "y", (ldy,)), rows=m, columns=n, grid_y=1, grid_z=1, batched=False, active=active,
        )]  # fmt: skip
    return list(_product.product(
        r, tile, source=0, params=params, a=_product.access(r, "x", ldx, 1), b=_product.access(r, "w", ldw, 1), pitches=(ldr,),
        y_vector=_epilogue.vector(r, "y", (ldy,)), rows=m, columns=n, grid_y=1, grid_z=1, defines=(_product.to_batch(False),), active=active,
    ))  # fmt: skip


def gemm(r: Request) -> list[Kernel]:
    """`gemm` and `gemm_norm`. Only kernels that read through tensor maps know of norms: lowering asks for no others."""
    n, k = _product.static(r, "N"), _product.static(r, "K")
    return rows_by_weight(r, r.ints["M"], n, k, r.ints["ldx"], weight_pitch(k, r.dtype.size), r.ints["ldy"], r.ints.get("ldr", 0))


def matmul(r: Request) -> list[Kernel]:
    if not r.ints.get("ldr", 0):  # the residual lies like y
        r = replace(r, ints={**r.ints, "ldr": r.ints["ldy"], "r_0": r.ints.get("y_0", 0), "r_1": r.ints.get("y_1", 0)})
    i = {name: r.ints.get(name, 0) for name in _MATMUL_STRIDES}
    if not _epilogue.vector(r, "res", (i["r_0"], i["r_1"])):
        r = replace(r, unaligned=r.unaligned | {"res"})
    m, n, k, b0, b1 = (r.ints[name] for name in ("M", "N", "K", "B0", "B1"))
    i |= {name: 0 for name, count in (("a_m", m), ("b_n", n)) if count == 1}  # where a second row would be does not matter
    a = _product.access(r, "a", i["a_m"], i["a_k"], (i["a_0"], i["a_1"]))
    b = _product.access(r, "b", i["b_n"], i["b_k"], (i["b_0"], i["b_1"]))
    y = _epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"]))
    odd = _product.odd(r, a, b, y)
    even = _product.evenly(r, a, b, y) if not odd and r.arch >= 90 else None
    # Whether tensor maps can reach the operands as they are, or once those are copied whose copies have at most so many bytes.
    maps = r.arch == 90 and r.dtype != DType.F32 and r.program is None and not _epilogue.residual(r) and not (a.gather or b.gather)
    ways = {most: _copies(r, i, a, b, most) for most in ((2, 8) if maps else (2,) if r.arch >= 90 else ())}
    ways = {most: copies for most, copies in ways.items() if copies and (most == 2 or copies != ways[2])}
    mapped = maps and a.bytes == b.bytes == 16
    crossed = _wgmma.crossed(i["a_k" if a.trans else "a_m"]), _wgmma.crossed(i["b_k" if b.trans else "b_n"])

    def price(rows: int, batch: int) -> Any:
        columns, depth = _product.known(n, 512), _product.known(k, 512)
        turned = (a.trans, b.trans)
        few = y and batch * rows * columns < _FEW_RESULTS
        costs = _product.prices(rows, columns, depth, batch, r, transposed=turned, odd=odd or (None if few else even), split=r.arch >= 90)
        if mapped and y:
            more = _MOVED * 2 * batch * (rows * depth + columns * depth + rows * columns) if few else 0.0
            costs = {t: (1.0 if few else _MAPPED) * c + more for t, c in costs.items()}
        if isinstance(n, int):
            thin = _thin.prices(r, rows, columns, depth, batch, (i["a_m"], i["a_k"]), (i["b_n"], i["b_k"]), k)
            costs |= {t: c * (_THIN[r.dtype == DType.F32][t.deep > 0] if isinstance(t, _thin.ThinTile) else 1.0) for t, c in thin.items()}
            costs |= _dots.prices(r, rows, columns, depth, batch, a, b, True)
        costs |= _direct.prices(r, rows, columns, depth, batch, a, b, y) | _flat.prices(r, rows, columns, depth, batch, a, b, y)
        if r.dtype == DType.F32:
            costs = _by_steps(r, costs, rows, columns, depth, batch, a, b, y)
        if mapped:
            costs |= _split.batched_prices(rows, columns, depth, r.sms, batch, turned, crossed, y)
            if y and 0 not in (b0, b1, n, k) and batch * rows * columns < _TILES:
                costs |= _wgmma.batched_prices(rows, columns, depth, batch, r.sms, turned, crossed, "bias" not in r.operands and not _blocks.dear(r))
        for most, copies in ways.items():
            elements = sum((rows if c.operand == "a" else columns) * depth for c in copies) * batch
            copy, after = _align.cost(elements), replace(r, unaligned=r.unaligned - {c.operand for c in copies})
            wide = _costs.Odd(*(16 if how.bytes <= most and not how.gather else how.bytes for how in (a, b)), y)
            plain = {t: _BEHIND * c for t, c in _product.prices(rows, columns, depth, batch, after, transposed=turned, odd=wide).items()}
            if maps and wide.a == wide.b == 16:
                behind = {"a": crossed[0], "b": crossed[1]} | {c.operand: _wgmma.crossed(c.aligned) for c in copies}
                plain |= {t: _COPIES + c for t, c in _split.batched_prices(rows, columns, depth, r.sms, batch, turned, (behind["a"], behind["b"]), y).items()}
            costs |= {_align.Aligned(t, most): copy + c for t, c in plain.items()}
        return costs

    kernels: list[Kernel] = []
    left: DimLike = 0
    fits = D.mul(D.less(0, k), D.less(D.product([b0, b1, m, n]), _TILES)) if not all(isinstance(v, int) for v in (b0, b1, n, k)) else 1  # HopperTiles
    for tile, active in _for_batches(m, D.mul(b0, b1), price):
        if isinstance(tile, _wgmma.HopperTile) and fits != 1:
            kernels += strided(r, tile, i, D.mul(active, fits))
            left = D.add(left, D.mul(active, D.sub(1, fits)))
        elif isinstance(tile, _align.Aligned):
            copies, moved = ways[tile.most], dict(i)
            for c, how, row in ((c, *((a, "m") if c.operand == "a" else (b, "n"))) for c in copies):
                moved |= {f"{c.operand}_{'k' if how.trans else row}": c.aligned, f"{c.operand}_0": c.strides(b1)[0], f"{c.operand}_1": c.strides(b1)[1]}
            after = replace(r, unaligned=r.unaligned - {c.operand for c in copies})
            copy, places = _align.kernel(r, copies, b0, b1, active), {c.operand: f"scratch{j}" for j, c in enumerate(copies)}
            kernels += [copy, *_align.redirected(strided(after, tile.tile, moved, active), places, copy.scratch)]
        else:
            kernels += strided(r, tile, i, active)
    if left != 0:
        others = _product.prices(_LARGE, _LARGE, _LARGE, 1, r, transposed=(a.trans, b.trans), odd=odd or even)
        kernels += strided(r, min(others, key=others.__getitem__), i, left)
    return kernels


def _for_batches(rows: DimLike, batch: DimLike, price: Callable[[int, int], Mapping[Any, float]]) -> Iterator[tuple[Any, DimLike]]:
    """As `_product.choose`, also by the matrices of a batch where these are symbolic beside other sizes."""
    number = _product.known(batch, -1)
    if number >= 0:
        yield from _product.choose(rows, lambda m: price(m, number))
        return
    for low, usual, high in _MATRICES:
        within = D.mul(D.less(low, batch) if low else 1, D.less(batch, high + 1) if high else 1)
        for tile, use in _product.choose(rows, lambda m, usual=usual: price(m, usual), False, _SIMILAR):
            yield tile, D.mul(within, use)


def tile_prices(r: Request, m: int, n: int, k: int) -> dict[Any, float]:
    """Clocks of the tiles for one product of f32 matrices whose k is contiguous, as `matmul` has it."""
    i = r.ints
    a, b = _product.access(r, "a", i["a_m"], 1), _product.access(r, "b", i["b_n"], 1)
    y = _epilogue.vector(r, "y", (i["ldy"],))
    return _by_steps(r, _product.prices(m, n, k, 1, r, odd=_product.odd(r, a, b, y), split=r.arch >= 90), m, n, k, 1, a, b, y)


def _copies(r: Request, i: dict[str, DimLike], a: Any, b: Any, most: int) -> list[Any]:
    """Of `matmul` with strides `i`: operands that are copied to where rows are aligned, those that are read at most so many bytes at a time."""
    m, n, k = (r.ints[name] for name in ("M", "N", "K"))
    return [
        _align.Rows(o, *(sizes if not how.trans else sizes[::-1]), i[f"{o}_{'k' if how.trans else row}"], (i[f"{o}_0"], i[f"{o}_1"]))
        for o, how, row, sizes in (("a", a, "m", (m, k)), ("b", b, "n", (n, k))) if r.dtype.size == 2 and how.bytes <= most and not how.gather
    ]  # fmt: skip


def strided(r: Request, tile: Any, i: dict[str, DimLike], active: DimLike) -> list[Kernel]:
    """The kernels of `matmul` with strides `i`."""
    m, n, b0, b1 = (r.ints[name] for name in ("M", "N", "B0", "B1"))
    a = _product.access(r, "a", i["a_m"], i["a_k"], (i["a_0"], i["a_1"]))
    b = _product.access(r, "b", i["b_n"], i["b_k"], (i["b_0"], i["b_1"]))
    if isinstance(tile, _wgmma.HopperTile):
        return [_wgmma.batched_product(r, tile, i, (a.trans, b.trans), active)]
    if isinstance(tile, _split.SplitTile):
        return [_split.batched_product(r, tile, i, (a.trans, b.trans), active)]
    params = [(t, name, Pointer(name)) for t, name in _POINTERS]
    params += _product.int_params(r, ("M", "N", "K")) + [("i64", name, Int64(i[name])) for name in _MATMUL_STRIDES]
    if not _epilogue.residual(r):
        params.append(("const T*", "res", Pointer("res")))
    if isinstance(tile, (_thin.ThinTile, _thin.ShortTile, _dots.DotTile)):
        product = _dots.product if isinstance(tile, _dots.DotTile) else _thin.product
        return [product(r, tile, params=params, pitches=(i["ldr"],), rows=m, columns=n, grid_y=b1, grid_z=b0, batched=True, active=active)]
    if isinstance(tile, _direct.DirectTile):
        return [_direct.product(
            r, tile, params=params, a=a, b=b, pitches=(i["ldr"],),
            y_vector=_epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"])), rows=m, columns=n, grid_y=b1, grid_z=b0, batched=True, active=active,
        )]  # fmt: skip
    if isinstance(tile, _flat.FlatTile):
        return [_flat.product(
            r, tile, params=params, a=a, b=b, pitches=(i["ldr"],), rows=m, columns=n, grid_y=b1, grid_z=b0, batched=True, active=active,
        )]  # fmt: skip
    if isinstance(tile, _lanes.LaneTile):
        return [_lanes.product(
            r, tile, params=params, a=a, b=b, pitches=(i["ldr"],), y_vector=_epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"])),
            rows=m, columns=n, grid_y=b1, grid_z=b0, batched=True, active=active,
        )]  # fmt: skip
    return list(_product.product(
        r, tile, source=0, params=params, a=a, b=b, pitches=(i["ldr"],), y_vector=_epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"])),
        rows=m, columns=n, grid_y=b1, grid_z=b0, defines=(_product.to_batch(True),), active=active,
    ))  # fmt: skip


_MATMUL_STRIDES = ("a_0", "a_1", "a_m", "a_k", "b_0", "b_1", "b_k", "b_n", "y_0", "y_1", "ldy", "r_0", "r_1", "ldr")
FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {"gemm": gemm, "gemm_norm": gemm, "matmul": _batches.of(matmul)}
