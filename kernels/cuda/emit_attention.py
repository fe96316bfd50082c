"""CUDA kernels for attention: threads that read keys once where query rows are few, else warp-specialised wgmma on Hopper, mma.sync for 16-bit operands on other
architectures, and for f32 tensor cores or none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen.cuda_source import about, known, overlapped, parameters, template
from tracea_onnx.codegen.cuda_text import prelude
from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.codegen.size_ranges import either
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.support import discovery

_attention = discovery.module("kernels", "cuda").part("_attention")
_few = discovery.module("kernels", "cuda").part("_attention_few")
_flow = discovery.module("kernels", "cuda").part("_attention_flow")
_group = discovery.module("kernels", "cuda").part("_attention_group")
_grouped = discovery.module("kernels", "cuda").part("_attention_grouped")
_hopper = discovery.module("kernels", "cuda").part("_attention_hopper")
_plain = discovery.module("kernels", "cuda").part("_attention_plain")
_tf32 = discovery.module("kernels", "cuda").part("_attention_tf32")


@dataclass(frozen=True)
class MmaTile:
    """warps: of a block, with 16 query rows each."""

    warps: int

    def __str__(self) -> str:
        return f"mma {16 * self.warps}"


def _warps(request: Request) -> int:
    """Fewer warps of a block where that fills the device."""
    i = parameters(request)
    sizes = [known(i[k]) for k in ("B", "H", "S")]
    if any(s is None for s in sizes):
        return 4
    b, h, s = (int(x or 0) for x in sizes)
    return next((w for w in (4, 2) if b * h * -(-s // (16 * w)) >= request.sms and s > 8 * w), 1 if s <= 16 else 2)


def _mma(request: Request, p: Any, tile: MmaTile, use: DimLike) -> Kernel:
    warps, keys = tile.warps, 64 if p.widest <= 128 else 32
    pitch, pitch_v = (-(-n // 16) * 32 + 16 for n in (p.head, p.head_v))
    smem = 16 * warps * pitch + 2 * keys * (pitch + pitch_v)
    constants = f"{p.constants(request.dtype)}constexpr int WARPS = {warps}, BN = {keys};\n"
    source = f"{prelude(request.dtype)}{constants}{template('base', 'mma', 'attention', 'attention_weigh', 'attention_mma')}{_attention.entry(32 * warps)}"
    grid = (D.mul(_attention.blocks(request, 16 * warps), use), 1, 1)
    return Kernel(source, "attention", grid, 32 * warps, _attention.arguments(request, {}), smem=smem, pdl=overlapped(request))


def tiles(request: Request, p: Any) -> list[tuple[Any, DimLike]]:
    """The tiles worth having, and for each whether it is the one for the sizes of a run."""
    few: list[tuple[Any, DimLike]] = _grouped.spread(request, _group.instead(request, p, _few.tiles(request, p)))
    if request.dtype != DType.F32 and (found := _grouped.tiles(request, p, few)):
        return list(found)
    if known(_few.applies(request)) == 1:
        return few
    left: DimLike = 1
    for _, use in few:
        left = D.mul(left, D.sub(1, use))
    if request.dtype == DType.F32:
        others = _plain.tiles(request, p)
    elif request.arch == 90:
        rows = _grouped.as_rows(request)
        others = _hopper.tiles(rows, _attention.problem(rows))
    else:
        others = [(MmaTile(_warps(request)), 1)]
    return [*few, *((tile, D.mul(use, left)) for tile, use in others if left != 0)]


def _padded(request: Request, p: Any, use: DimLike) -> tuple[list[Kernel], Request, dict[str, str]]:
    """Copies of the operands that tensor copies cannot read: the launch that makes them, the request with the copies' pitches, and where they lie."""
    i = parameters(request)
    operands = [o for o in "qkv" if not _hopper.copied(request, o)]
    if not operands:
        return [], request, {}
    ints, params, calls = dict(request.ints), list[str](), list[str]()
    args: list[Argument] = []
    scratch: list[DimLike] = []
    most: DimLike = 0
    for n, o in enumerate(operands):
        heads, rows, row = i["H" if o == "q" else "KVH"], i["S" if o == "q" else "T"], -(-p.size(o) // 8) * 8
        params.append(f"const T* {o}, T* {o}_to, i64 {o}_b, i64 {o}_s, i64 {o}_h, int {o}_heads, int {o}_rows, ")
        args += [Pointer(o), Pointer(f"scratch{n}"), *(Int64(i[f"{o}_{a}"]) for a in "bsh"), Int32(heads), Int32(rows)]
        calls.append(
            f"  if (blockIdx.y == {n}) pad_rows<{p.size(o)}, {_attention.access(request, p, o)}>"
            f"(Rows{{{o}, {o}_to, {o}_b, {o}_s, {o}_h, {o}_heads, {o}_rows}}, batch);\n"
        )
        ints |= {f"{o}_b": D.product([heads, rows, row]), f"{o}_s": row, f"{o}_h": D.mul(rows, row)}
        count = D.product([i["B"], heads, rows, row])
        scratch.append(D.mul(count, 2))
        most = D.maximum(most, D.floordiv(count, 8))
    source = (
        f"{prelude(request.dtype)}{template('base', 'attention_pad')}\n"
        f'extern "C" __global__ void __launch_bounds__(256) attention_pad({"".join(params)}int batch) {{\n  after_previous();\n{"".join(calls)}}}\n'
    )
    grid = (D.mul(D.minimum(D.ceildiv(most, 256), 8 * request.sms), use), len(operands), 1)
    first = Kernel(source, "attention_pad", grid, 256, (*args, Int32(i["B"])), pdl=overlapped(request), scratch=tuple(scratch))
    copies = {o: f"scratch{n}" for n, o in enumerate(operands)}
    return [first], replace(request, ints=ints, unaligned=request.unaligned - set(operands)), copies


def _sized(request: Request) -> Request:
    """With a number for a batch that is known at run time, where tiles are chosen for a range of it."""
    batch = about(request.ints["B"], 0)
    return replace(request, ints={**request.ints, "B": batch}) if batch else request


def attention(request: Request) -> list[Kernel]:
    i = request.ints
    if not isinstance(i["S"], Dim) or i["T"] is i["S"]:
        return _kernels(request)
    one = D.equal(i["S"], 1)  # a step of decoding
    return either([(one, _kernels(replace(request, ints={**i, "S": 1}))), (D.sub(1, one), _kernels(request))])


def _kernels(request: Request) -> list[Kernel]:
    p = _attention.problem(request)
    chosen = tiles(_sized(request), p)
    rows = _grouped.as_rows(request)  # for tiles of many rows
    by_copies = [(tile, use) for tile, use in chosen if isinstance(tile, _hopper.HopperTile)]
    anywhere: DimLike = 0
    for _, use in by_copies:
        anywhere = D.add(anywhere, use)
    copies, copied, places = _padded(rows, p, anywhere) if by_copies else ([], rows, {})
    scratch = list(copies[0].scratch) if copies else []
    kernels: list[Kernel] = []
    for tile, use in chosen:
        for kind in (_few, _group):
            if isinstance(tile, kind.TILE):
                kernels += kind.kernels(request, p, tile, use, f"scratch{len(scratch)}")
                if tile.spread:
                    scratch.append(kind.scratch(request, p, tile, use))
    kernels += [_flow.kernel(rows, _attention.problem(rows), tile, use) for tile, use in chosen if isinstance(tile, _flow.TILE)]
    kernels += [_plain.kernel(request, p, tile, use) for tile, use in chosen if isinstance(tile, _plain.PlainTile)]
    kernels += [_tf32.kernel(request, p, tile, use) for tile, use in chosen if isinstance(tile, _tf32.SplitTile)]
    kernels += [_mma(request, p, tile, use) for tile, use in chosen if isinstance(tile, MmaTile)]
    kernels += copies
    for tile, use in by_copies:
        kernels += _hopper.kernels(copied, _attention.problem(rows), tile, use, places, f"scratch{len(scratch)}")
        if tile.spread:
            scratch.append(_hopper.scratch(copied, p, tile, use))
    return [replace(k, scratch=tuple(scratch)) for k in kernels]


problem, hopper_tile = _attention.problem, _hopper.hopper_tile
FAMILIES = {"attention": attention}
