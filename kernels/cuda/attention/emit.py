"""CUDA kernels for attention: threads that read keys once where query rows are few, else
warp-specialised wgmma on Hopper, mma.sync for 16-bit operands on other architectures, and for f32
tensor cores or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.codegen.size_ranges import either
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike

from ..common.launch import about, known, overlapped, parameters
from ..common.prelude import prelude
from ..common.templates import template
from . import fa2, simt, tf32x3
from . import problem as _problem
from .decode import group as decode_group
from .decode import select as decode_select
from .decode import simt as decode_simt
from .decode import stream as decode_stream
from .fa3_sm90 import kernel as fa3


def tiles(request: Request, p: Any) -> list[tuple[Any, DimLike]]:
    """The tiles worth having, and for each whether it is the one for the sizes of a run."""
    few: list[tuple[Any, DimLike]] = decode_select.spread(
        request, decode_group.instead(request, p, decode_simt.tiles(request, p))
    )
    if request.dtype != DType.F32 and (found := decode_select.tiles(request, p, few)):
        return list(found)
    if known(decode_simt.applies(request)) == 1:
        return few
    left: DimLike = 1
    for _, use in few:
        left = D.mul(left, D.sub(1, use))
    if request.dtype == DType.F32:
        others = simt.tiles(request, p)
    elif request.arch == 90:
        rows = decode_select.as_rows(request)
        others = fa3.tiles(rows, _problem.problem(rows))
    else:
        others = fa2.tiles(request)
    return [*few, *((tile, D.mul(use, left)) for tile, use in others if left != 0)]


def _padded(request: Request, p: Any, use: DimLike) -> tuple[list[Kernel], Request, dict[str, str]]:
    """Copies of the operands that tensor copies cannot read: the launch that makes them, the
    request with the copies' pitches, and where they lie.
    """
    i = parameters(request)
    operands = [o for o in "qkv" if not fa3.copied(request, o)]
    if not operands:
        return [], request, {}
    ints, params, calls = dict(request.ints), list[str](), list[str]()
    args: list[Argument] = []
    scratch: list[DimLike] = []
    most: DimLike = 0
    for n, o in enumerate(operands):
        heads, rows, row = (
            i["H" if o == "q" else "KVH"],
            i["S" if o == "q" else "T"],
            -(-p.size(o) // 8) * 8,
        )
        params.append(
            f"const T* {o}, T* {o}_to, i64 {o}_b, i64 {o}_s, i64 {o}_h, int {o}_heads, int {o}_rows, "
        )
        args += [
            Pointer(o),
            Pointer(f"scratch{n}"),
            *(Int64(i[f"{o}_{a}"]) for a in "bsh"),
            Int32(heads),
            Int32(rows),
        ]
        calls.append(
            f"  if (blockIdx.y == {n}) pad_rows<{p.size(o)}, {_problem.access(request, p, o)}>"
            f"(Rows{{{o}, {o}_to, {o}_b, {o}_s, {o}_h, {o}_heads, {o}_rows}}, batch);\n"
        )
        ints |= {f"{o}_b": D.product([heads, rows, row]), f"{o}_s": row, f"{o}_h": D.mul(rows, row)}
        count = D.product([i["B"], heads, rows, row])
        scratch.append(D.mul(count, 2))
        most = D.maximum(most, D.floordiv(count, 8))
    source = (
        f"{prelude(request.dtype)}{template('common/base', 'attention/repack')}\n"
        f'extern "C" __global__ void __launch_bounds__(256) attention_pad({"".join(params)}int batch) {{\n  after_previous();\n{"".join(calls)}}}\n'
    )
    grid = (D.mul(D.minimum(D.ceildiv(most, 256), 8 * request.sms), use), len(operands), 1)
    first = Kernel(
        source,
        "attention_pad",
        grid,
        256,
        (*args, Int32(i["B"])),
        pdl=overlapped(request),
        scratch=tuple(scratch),
    )
    copies = {o: f"scratch{n}" for n, o in enumerate(operands)}
    return [first], replace(request, ints=ints, unaligned=request.unaligned - set(operands)), copies


def _sized(request: Request) -> Request:
    """With a number for a batch that is known at run time, where tiles are chosen for a range of
    it.
    """
    batch = about(request.ints["B"], 0)
    return replace(request, ints={**request.ints, "B": batch}) if batch else request


def attention(request: Request) -> list[Kernel]:
    i = request.ints
    if not isinstance(i["S"], Dim) or i["T"] is i["S"]:
        return _kernels(request)
    one = D.equal(i["S"], 1)  # a step of decoding
    return either(
        [(one, _kernels(replace(request, ints={**i, "S": 1}))), (D.sub(1, one), _kernels(request))]
    )


def _kernels(request: Request) -> list[Kernel]:
    p = _problem.problem(request)
    chosen = tiles(_sized(request), p)
    rows = decode_select.as_rows(request)  # for tiles of many rows
    by_copies = [(tile, use) for tile, use in chosen if isinstance(tile, fa3.HopperTile)]
    anywhere: DimLike = 0
    for _, use in by_copies:
        anywhere = D.add(anywhere, use)
    copies, copied, places = _padded(rows, p, anywhere) if by_copies else ([], rows, {})
    scratch = list(copies[0].scratch) if copies else []
    kernels: list[Kernel] = []
    for tile, use in chosen:
        for kind in (decode_simt, decode_group):
            if isinstance(tile, kind.TILE):
                kernels += kind.kernels(request, p, tile, use, f"scratch{len(scratch)}")
                if tile.spread:
                    scratch.append(kind.scratch(request, p, tile, use))
    kernels += [
        decode_stream.kernel(rows, _problem.problem(rows), tile, use)
        for tile, use in chosen
        if isinstance(tile, decode_stream.TILE)
    ]
    kernels += [
        simt.kernel(request, p, tile, use)
        for tile, use in chosen
        if isinstance(tile, simt.PlainTile)
    ]
    kernels += [
        tf32x3.kernel(request, p, tile, use)
        for tile, use in chosen
        if isinstance(tile, tf32x3.SplitTile)
    ]
    kernels += [
        fa2.kernel(request, p, tile, use) for tile, use in chosen if isinstance(tile, fa2.MmaTile)
    ]
    kernels += copies
    for tile, use in by_copies:
        kernels += fa3.kernels(
            copied, _problem.problem(rows), tile, use, places, f"scratch{len(scratch)}"
        )
        if tile.spread:
            scratch.append(fa3.scratch(copied, p, tile, use))
    return [replace(k, scratch=tuple(scratch)) for k in kernels]


problem, hopper_tile = _problem.problem, fa3.hopper_tile
FAMILIES = {"attention": attention}
