"""Matrix products: `gemm` (packed weight [N, round_up(K, 8)], k contiguous), `gemm_norm` (the same between norms of rows) and `matmul` (two run-time
operands with any strides)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Argument, Int64, Kernel, Pointer, Request, Unfit
from tracea_onnx.dims import DimLike

_product = registry.module("kernels", "cuda").part("_product")
_epilogue = registry.module("kernels", "cuda").part("_epilogue")
_norms = registry.module("kernels", "cuda").part("_norms")
_wgmma = registry.module("kernels", "cuda").part("_wgmma")
_split = registry.module("kernels", "cuda").part("_split")
_POINTERS = (("const T*", "a"), ("const T*", "b"), ("T*", "y"))


def rows_by_weight(r: Request, m: DimLike, n: int, k: int, ldx: DimLike, ldy: DimLike, ldr: DimLike) -> list[Kernel]:
    """y[m, n] = epilogue(x[m, :] . w[n, :]): `gemm`, and convolutions that are one."""
    ldw = -(-k // 8) * 8
    a, b = _product.access(r, "x", ldx, 1), _product.access(r, "w", ldw, 1)
    params: list[tuple[str, str, Argument]] = [(t, name, Pointer(o)) for (t, name), o in zip(_POINTERS, ("x", "w", "y"), strict=True)]
    params += [("int", name, _product.Int32(v)) for name, v in (("M", m), ("N", n), ("K", k))]
    params += [("i64", name, Int64(v)) for name, v in (("a_m", ldx), ("a_k", 1), ("b_n", ldw), ("b_k", 1), ("ldy", ldy), ("ldr", ldr))]
    maps = -(-k // 64) if k and _wgmma.able(r, (ldx,), ("x",)) else 0
    stored = not r.ints.get("res_mode", 0) or _wgmma.able(r, (ldy, ldr), ("y", "res"))
    if (_norms.normed(r) or _norms.measured(r)) and not (maps and stored):
        raise Unfit("norms folded into a product of operands that are not aligned")
    kernels: list[Kernel] = []
    for tile, active in _product.choose(m, lambda rows: _product.prices(rows, n, k, 1, r, maps=maps, stored=stored)):
        if isinstance(tile, _wgmma.HopperTile):
            kernels.append(_wgmma.matrix_product(r, tile, m, n, k, ldx, ldy, ldr, active))
            continue
        if isinstance(tile, _split.SplitTile):
            kernels.append(_split.matrix_product(r, tile, m, n, k, ldx, ldy, ldr, active))
            continue
        kernels += _product.product(
            r, tile, source=0, params=params, a=a, b=b, pitches=(ldr,), y_vector=_epilogue.vector(r, "y", (ldy,)), rows=m, columns=n, grid_y=1, grid_z=1,
            defines=("#define BATCHED 0",), active=active,
        )  # fmt: skip
    return list(_product.shared_scratch(kernels))


def gemm(r: Request) -> list[Kernel]:
    """`gemm` and `gemm_norm`. Only kernels that read through tensor maps know of norms: lowering asks for no others."""
    n, k = _product.static(r, "N"), _product.static(r, "K")
    return rows_by_weight(r, r.ints["M"], n, k, r.ints["ldx"], r.ints["ldy"], r.ints.get("ldr", 0))


def matmul(r: Request) -> list[Kernel]:
    if not r.ints.get("ldr", 0):  # the residual lies like y
        r = replace(r, ints={**r.ints, "ldr": r.ints["ldy"], "r_0": r.ints.get("y_0", 0), "r_1": r.ints.get("y_1", 0)})
    i = {name: r.ints.get(name, 0) for name in _MATMUL_STRIDES}
    if not _epilogue.vector(r, "res", (i["r_0"], i["r_1"])):
        r = replace(r, unaligned=r.unaligned | {"res"})
    m, n, k, b0, b1 = (r.ints[name] for name in ("M", "N", "K", "B0", "B1"))
    a = _product.access(r, "a", i["a_m"], i["a_k"], (i["a_0"], i["a_1"]))
    b = _product.access(r, "b", i["b_n"], i["b_k"], (i["b_0"], i["b_1"]))
    params = [(t, name, Pointer(name)) for t, name in _POINTERS]
    params += _product.int_params(r, ("M", "N", "K")) + _product.long_params(r, _MATMUL_STRIDES)
    if not _epilogue.residual(r):
        params.append(("const T*", "res", Pointer("res")))
    batch = _product.known(D.mul(b0, b1), 16)

    def price(rows: int) -> Any:
        return _product.prices(rows, _product.known(n, 512), _product.known(k, 512), batch, r, transposed=(a.trans, b.trans), split=r.arch >= 90)

    vector = _epilogue.vector(r, "y", (i["ldy"], i["y_0"], i["y_1"]))
    kernels: list[Kernel] = []
    for tile, active in _product.choose(m, price):
        kernels += _product.product(
            r, tile, source=0, params=params, a=a, b=b, pitches=(i["ldr"],), y_vector=vector, rows=m, columns=n, grid_y=b1, grid_z=b0,
            defines=("#define BATCHED 1",), active=active,
        )  # fmt: skip
    return kernels


_MATMUL_STRIDES = ("a_0", "a_1", "a_m", "a_k", "b_0", "b_1", "b_k", "b_n", "y_0", "y_1", "ldy", "r_0", "r_1", "ldr")
FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {"gemm": gemm, "gemm_norm": gemm, "matmul": matmul}
