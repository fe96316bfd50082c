"""Prefix sums over one axis; `common/axis_layout.py` defines the layouts."""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import axis_layout
from ..common.instantiate import entry, instance, invoke
from ..common.launch import known, parameters, static
from ..common.prelude import C_TYPES
from .reduce import literals, operands

_FLOATS = (DType.F32, DType.F16, DType.BF16)
#: Arguments of the reduction that stores the sum of each part.
_SUMS = "x, (Policy::Result*)nullptr, held, outer"
#: Longest row that a warp scans, and where a CTA per row would fit the device; least elements of a
#: thread in an iteration.
_WARP_ROW, _FEW_ROW, _PER_THREAD = 1024, 256, 4
#: Threads of a CTA; most threads, and elements, of a CTA that scans a row in one iteration.
_BLOCK, _LARGEST, _ALONE = 256, 1024, 4096
#: CTAs per SM; most CTAs that share a row or column; elements of a column per thread and iteration.
_RESIDENT, _MOST, _COLUMN_PER_THREAD = 4, 512, 8
#: Flat layout: longest column, threads of a CTA.
_FLAT, _FLAT_BLOCK = 1024, 64


def cumsum(request: Request) -> list[Kernel]:
    i = parameters(request)
    dtype = DType(static(i["dtype"], "element type"))
    if dtype not in (*_FLOATS, DType.I64, DType.I32):
        raise NoKernel(f"running sums over {dtype.name}")
    outer, n, inner = i["outer"], i["n"], i["inner"]
    small = axis_layout.staged(dtype, n, inner, aligned=False)
    rest = axis_layout.negated(small)
    found = [*_staged(request, dtype, small)]
    if known(inner) == 1:
        length, v = known(n), 16 // dtype.size
        few = axis_layout.up_to(outer, request.sms * _RESIDENT)
        per = max(v, _PER_THREAD if few != 0 else 2 * _PER_THREAD)
        short = axis_layout.up_to(n, D.select(few, _FEW_ROW, _WARP_ROW))
        alone = D.mul(axis_layout.negated(short), D.mul(few, axis_layout.up_to(n, _ALONE)))
        k = 2 * _PER_THREAD if length is None else min(-(-length // 32), 2 * _PER_THREAD)
        found += _scan(
            request,
            dtype,
            128,
            f"scan_rows<1, {k}, 32, 128, @>(x, y, held, outer, n, 1);",
            D.ceildiv(outer, 4),
            D.mul(short, rest),
        )
        threads = (
            _LARGEST
            if length is None
            else axis_layout.power_of_two(-(-(length + v) // per), _BLOCK, _LARGEST)
        )  # the row may begin in the middle of a vector
        body = f"scan_rows<{v}, {per // v}, {threads}, {threads}, @>(x, y, held, outer, n, 1);"
        found += _scan(request, dtype, threads, body, outer, D.mul(alone, rest))
        found += _scan(
            request,
            dtype,
            _BLOCK,
            f"scan_rows<{v}, {per // v}, {_BLOCK}, {_BLOCK}, @>(x, y, held, outer, n, parts);",
            outer,
            D.product([axis_layout.negated(short), axis_layout.negated(alone), rest]),
            _parts(request, outer, D.ceildiv(n, _BLOCK * per - 16)),
            invoke("reduce_rows", ("Policy", v, _BLOCK, _BLOCK), f"{_SUMS}, n, parts"),
        )
    else:
        found += _columns(request, dtype, rest)
    return [k for k in found if k.grid[0] != 0]


def _columns(request: Request, dtype: DType, use: DimLike) -> list[Kernel]:
    i = parameters(request)
    outer, n, inner = i["outer"], i["n"], i["inner"]
    aligned = not request.unaligned & {"x", "y"}
    if w := axis_layout.flat(request, dtype, outer, n, inner, aligned, _FLAT):
        few = known(D.less(D.mul(outer, D.floordiv(inner, w)), request.sms * _BLOCK)) == 1
        w = 1 if few else w
        units = D.mul(outer, D.floordiv(inner, w))
        # small CTAs of short columns end before the next ones can start; single elements of 2
        # bytes were measured to be faster in large CTAs
        large = int(n) <= _COLUMN_PER_THREAD or (w == 1 and dtype.size == 2)
        block = _BLOCK if large and not few else _FLAT_BLOCK
        forms = (w, _COLUMN_PER_THREAD, block, "@")
        body = invoke("scan_flat", forms, f"x, y, outer, {literals(n, inner)}")
        return _scan(request, dtype, block, body, D.ceildiv(units, block), use)
    across, length = axis_layout.columns(dtype, inner, aligned=False)[1], known(n)
    block = (
        _BLOCK
        if length is None
        else axis_layout.power_of_two(-(-length // _COLUMN_PER_THREAD) * across, 64, _BLOCK)
    )
    tiles = axis_layout.column_tiles(outer, inner, 1, across)
    parts = _parts(request, tiles, D.floordiv(n, block // across * _COLUMN_PER_THREAD))
    forms = (_COLUMN_PER_THREAD, across, block, "@")
    body = invoke("scan_columns", forms, "x, y, held, outer, n, inner, parts")
    sums = invoke("reduce_columns", ("Policy", 1, across, block, 1), f"{_SUMS}, n, inner, parts")
    return _scan(request, dtype, block, body, tiles, use, parts, sums)


def _parts(request: Request, units: DimLike, worth: DimLike) -> DimLike:
    """CTAs that share each of `units` rows or tiles of columns, at most `worth`."""
    return D.maximum(
        D.minimum(
            D.minimum(D.floordiv(request.sms * _RESIDENT, D.maximum(units, 1)), worth), _MOST
        ),
        1,
    )


def _staged(request: Request, dtype: DType, use: DimLike) -> list[Kernel]:
    i = parameters(request)
    each, grid, lanes = axis_layout.staged_columns(request, dtype, i["outer"], i["n"], i["inner"])
    threads = axis_layout.STAGED_THREADS
    given = f"x, y, outer, {literals(i['n'], i['inner'])}, parts"
    body = invoke("scan_staged", (axis_layout.STAGE_BYTES, lanes, threads, "@"), given)
    return _scan(request, dtype, threads, body, grid, use, each)


def _scan(
    request: Request,
    dtype: DType,
    block: int,
    body: str,
    grid: DimLike,
    use: DimLike,
    parts: DimLike = 1,
    before: str = "",
) -> list[Kernel]:
    """The kernel with `body`, where @ stands for the flags. Where CTAs share a row or column, it is
    preceded by a kernel with `before`, which stores the sum of each part in scratch.
    """
    i = parameters(request)
    outer, n, inner = i["outer"], i["n"], i["inner"]
    flags = ", ".join("true" if i[k] else "false" for k in ("exclusive", "reverse"))
    divided, e = bool(before) and parts != 1, C_TYPES[dtype]
    policy = "Fold<kSum>" if dtype in _FLOATS else f"FoldInt<kSum, {e}>"
    given = operands(e, e, divided, outer, n, inner, parts)
    call = body.replace("@", flags).replace(
        "held", "held" if divided else "(const Policy::State*)nullptr"
    )
    # x is readable once the preceding kernel has ended
    sums = f"pdl_wait();\n  pdl_launch_dependents();\n  {before}"
    size = D.product([outer, parts, inner, max(dtype.size, 4), use])
    blocks = D.mul(grid, use)
    last = instance(
        request,
        "cumsum",
        "reduce/scan",
        given,
        D.mul(blocks, parts) if divided else blocks,
        block,
        f"pdl_launch_dependents();\n  {call}",
        dtype=dtype if dtype in _FLOATS else DType.F32,
        text=f"typedef {policy} Policy;\n",
        after=entry("cumsum_parts", given, block, sums) if divided else "",
        scratch=(size,) if divided else (),
    )
    if not divided:
        return [last]
    some = D.mul(last.grid[0], D.less(1, parts))
    return [replace(last, symbol="cumsum_parts", grid=(some, 1, 1)), last]


FAMILIES = {"cumsum": cumsum}
