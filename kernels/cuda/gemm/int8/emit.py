"""8-bit products: `gemm_int8`, and `conv2d_int8` as implicit GEMM, by the general tiled kernel
(`gemm/multistage_sm80`) with mma.sync, whose stages have 128 terms. Sums are exact integers.

Packed weights are [N_total, `families.byte_pitch`] and [OC, KH, KW, round_up(IC / G, 16)]; behind
them lie the sums of their rows (I32). A zero point of x is taken from the results as its product
with these, so that pixels outside of an image are filled with it. Where weights have zero points
(w_zero) rows of x are added up by further MMAs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Int32, Int64, Kernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import byte_pitch, tap_pitch

from ...common.epilogue import Parameter
from ...common.instantiate import ints, longs, pointer, sizes
from ...conv import problem, window_rows
from .. import select
from ..multistage_sm80 import tiles as multistage
from . import hopper, requantise
from .requantise import dtype

_SIZES = ("IH", "IW", "OH", "OW", *problem.WINDOW, "PT", "PL")


def gemm(r: Request) -> list[Kernel]:
    """`gemm_int8`."""
    n, k = select.static(r, "N"), select.static(r, "K")
    return _rows(r, r.ints["M"], n, k, r.ints["ldx"], byte_pitch(k), r.ints["ldy"],
                 r.ints.get("ldr", 0))  # fmt: skip


def conv2d(r: Request) -> list[Kernel]:
    """`conv2d_int8`: pointwise ones over pixels that are rows of a matrix are products."""
    i, g = r.ints, select.static(r, "G")
    ic, oc = select.static(r, "IC") // g, select.static(r, "OC") // g
    taps = select.static(r, "KH") * select.static(r, "KW")
    unit = g == taps == i["SH"] == i["SW"] == 1 and i["PT"] == i["PL"] == 0
    same = i["OH"] == i["IH"] and i["OW"] == i["IW"]
    if unit and same and problem.flat(r) and problem.flat_input(r):
        pixels, residual = select.pixels(r), i.get("r_cs", 0)
        return _rows(r, pixels, oc, ic, i["x_cs"], tap_pitch(ic), i["y_cs"], residual)
    if window_rows.supports(r):
        return window_rows.kernels(r)
    return _windows(r, ic, oc, taps)


def _rows(
    r: Request, m: DimLike, n: int, k: int, ldx: DimLike, ldw: int, ldy: DimLike, ldr: DimLike
) -> list[Kernel]:
    product = hopper.Product(r, m, n, k, ldw, 0, ldx, ldy, ldr)
    steps = {"a_m": ldx, "a_k": 1, "b_n": ldw, "b_k": 1, "ldy": ldy, "ldr": ldr}
    parameters: list[Parameter] = [
        *_pointers(r), *ints({"M": m, "N": n, "K": k}), *longs(steps)
    ]  # fmt: skip
    # (compute-sanitizer took a copy of 16 bytes, of which one row of fewer has some, for a read)
    rows_of = select.access(_bytes(r), "x", k if m == 1 else ldx, 1)
    epilogue = requantise.epilogue(r, k, n * ldw, (ldr,), columns=n)
    operands = select.Operands(
        parameters, _copies(rows_of), select.Access(16), (ldr,), _vector(r, (ldy,)), m, n, 1
    )
    return _by_price(r, operands, n, k, 1, "", product, lambda o, tile: select.emit(
        _bytes(r), tile, o, finish=epilogue, more=_macros(r)
    ))  # fmt: skip


def _windows(r: Request, ic: int, oc: int, taps: int) -> list[Kernel]:
    i, g = r.ints, select.static(r, "G")
    pitch, group, rows = tap_pitch(ic), oc if g > 1 else 0, problem.rows(r)
    parameters: list[Parameter] = [
        *_pointers(r),
        *ints({"M": rows, "N": oc, "IC": ic, "pitch": pitch, **sizes(r, *_SIZES)}),
        ("int", "x_cs", Int32(i["x_cs"])),
        ("int", "x_rs", Int32(i["x_rs"])),
        ("i64", "x_ns", Int64(i["x_ns"])),
        *longs(sizes(r, *(f"{s}_{p}" for s in "yr" for p in ("cs", "rs", "ns")))),
    ]
    apart = (i["x_rs"], i["x_ns"], *((ic,) if g > 1 else ()))
    epilogue = requantise.epilogue(
        r, ic * taps, g * oc * taps * pitch, problem.pitches(r, "r"), group, columns=oc
    )
    operands = select.Operands(
        parameters,
        _copies(select.access(_bytes(r), "x", i["x_cs"], 1, apart)),
        select.Access(16),
        problem.pitches(r, "r"),
        _vector(r, (*problem.pitches(r, "y"), group)),
        rows,
        oc,
        1,
        grid_z=g,
    )
    product = None
    if g == 1 and problem.flat(r):
        product = hopper.Product(
            r, rows, oc, ic * taps, pitch, taps, 0, i["y_cs"], i.get("r_cs", 0)
        )
    return _by_price(r, operands, oc, taps * pitch, g, "conv", product, lambda o, tile: select.emit(
        _bytes(r), tile, o, source=1,
        macros={"TRANSPOSED": False, "FILLED": "x_zero" in r.operands and not problem.inside(r)},
        constants={"Y_FLAT": problem.flat(r)}, group=group, finish=epilogue, more=_macros(r),
    ))  # fmt: skip


def _by_price(
    r: Request,
    operands: select.Operands,
    columns: int,
    depth: int,
    groups: int,
    windows: str,
    product: hopper.Product | None,
    emit: Callable[[select.Operands, multistage.Tile], list[Kernel]],
) -> list[Kernel]:
    """A stage of 128 terms takes the time of one of 64 in 16 bits: mma.sync has twice the rate."""
    whole = operands.a.bytes == 16
    # sums of rows are not divided
    split = "w_zero" not in r.operands and (r.arch >= 90 or groups == 1)

    mapped = product is not None and product.able()

    def prices(rows: int) -> Any:
        if product is not None and mapped:
            return product.prices(rows)
        alignment = None
        if not whole and not windows:
            # bytes go through registers, as elements of 16 bits do
            alignment = multistage.Alignment(max(operands.a.bytes, 2), 16, True)
        return select.prices(
            rows, columns, -(-depth // 2), groups, _bytes(r), alignment=alignment,
            split=split, windows=windows,
        )  # fmt: skip

    kernels: list[Kernel] = []
    for tile, active in select.choose(operands.rows, prices):
        if product is not None and mapped:
            kernels.append(product.emit(tile, active))
        else:
            kernels += emit(replace(operands, active=active), tile)
    return select.shared_scratch(kernels)


def _pointers(r: Request) -> list[Parameter]:
    return [pointer("const T", "x", "a"), pointer("const T", "w", "b"), pointer("Result", "y")]


def _bytes(r: Request) -> Request:
    """The request as one of elements of x."""
    return replace(r, dtype=dtype(r, "x"))


def _copies(found: select.Access) -> select.Access:
    """Copies of x: cp.async takes 4 bytes or more."""
    return found if found.bytes >= 4 else select.Access(1)


def _vector(r: Request, pitches: tuple[DimLike, ...]) -> bool:
    return requantise.aligned(r, "y", dtype(r, "y", DType.F32).size, *pitches)


def _macros(r: Request) -> dict[str, bool | int | str]:
    return {"ROW_SUMS": "w_zero" in r.operands}


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {"gemm_int8": gemm, "conv2d_int8": conv2d}
