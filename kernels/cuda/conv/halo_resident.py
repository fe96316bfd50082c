"""Convolutions of stride 1 on Hopper with their weights in shared memory (`halo_resident.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracea_onnx.codegen.kernel_request import (
    HOPPER_SHARED,
    Argument,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue
from ..common.prelude import prelude
from ..common.templates import template
from ..gemm import persistent_sm90
from . import grouped

_ROWS = 128  # of a tile
#: The cost model, comparable with `persistent_sm90.tile_cost`, measured on an H200: flops a clock
#: with 64 columns and with more, clocks to start a kernel and for 64 x 64 results; of the clocks to
#: multiply 64 columns, those of the columns that share channels with no others.
_FLOPS_NARROW, _FLOPS, _START, _PANEL_CLOCKS, _APART = 2870.0, 3400.0, 700.0, 350.0, 0.75


@dataclass(frozen=True)
class WindowTile:
    """Rows of the output, width of the padded input, output channels of one block; bytes of one
    slab and of the weights.
    """

    rows: int
    width: int
    columns: int
    slab: int
    weights: int

    @property
    def stages(self) -> int:
        return min(4, (HOPPER_SHARED - 2048 - self.weights) // self.slab)

    @property
    def smem(self) -> int:
        return 2048 + self.weights + self.stages * self.slab


def candidates(r: Request, steps: int) -> list[WindowTile]:
    """The tiles for a convolution that tensor maps reach, of `steps` steps of 64 along k."""
    i = r.ints
    taps = int(i["KH"]) * int(i["KW"])
    if (
        i["SH"] != 1
        or i["SW"] != 1
        or taps == 1
        or taps > 25
        or not isinstance(i["IW"], int)
        or not isinstance(i["OW"], int)
    ):
        return []
    if epilogue.residual(r):
        return []
    width = int(i["OW"]) + (int(i["KW"]) - 1) * int(i["DW"])
    rows = _ROWS // width
    if not rows:
        return []
    height = rows + (int(i["KH"]) - 1) * int(i["DH"])
    slab = -(-height * width * 128 // 1024) * 1024
    tiles = [
        WindowTile(rows, width, columns, slab, steps * columns * 128)
        for columns in (64, 128)
        if columns == 64 or grouped.of(r).columns > 64
    ]
    return [t for t in tiles if height <= 256 and t.stages >= 2]


def prices(r: Request, m: int, steps: int) -> dict[WindowTile, float]:
    return {t: tile_cost(t, r, m, steps) for t in candidates(r, steps)}


def tile_cost(t: WindowTile, r: Request, m: int, steps: int) -> float:
    """Clocks for m output pixels."""
    tiles_n: int = grouped.tiles(r, t.columns)
    high, wide = r.ints["OH"], int(r.ints["OW"])
    tiles = m / (high * wide) * -(-high // t.rows) if isinstance(high, int) else m / (t.rows * wide)
    turns = -(-tiles // max(1, r.sms // tiles_n)) * -(-tiles_n // r.sms)
    share = grouped.made(r) * (_APART if grouped.alone(r)[1] else 1.0)
    multiply: float = (
        grouped.straddling(r)
        * share
        * steps
        * 2.0
        * _ROWS
        * t.columns
        * 64
        / (_FLOPS if t.columns > 64 else _FLOPS_NARROW)
    )
    finish = _ROWS * t.columns / 4096 * _PANEL_CLOCKS
    filters = steps * t.columns * grouped.pixel(r)[0] if r.ints["G"] == 1 else 0.0
    return (
        _START
        + max(turns * multiply, -(-turns // 2) * (multiply + finish))
        + finish
        + max(t.weights / 77.0, filters)
    )


def convolution(r: Request, tile: WindowTile, active: DimLike) -> Kernel:
    i, oc = r.ints, int(r.ints["OC"])
    taps, bundle, height = (
        int(i["KH"]) * int(i["KW"]),
        grouped.of(r),
        tile.rows + (int(i["KH"]) - 1) * int(i["DH"]),
    )
    pitch = bundle.pitch
    strides = tuple(D.mul(i[f"x_{p}"], 2) for p in ("cs", "rs", "ns"))
    maps = (
        (
            "map_x",
            TensorMap(
                Pointer("x"),
                r.dtype,
                (int(i["IC"]), i["IW"], i["IH"], i["N"]),
                strides,
                (64, tile.width, height, 1),
            ),
        ),
        (
            "map_w",
            TensorMap(
                Pointer("w", grouped.filters(r)),
                r.dtype,
                (pitch, taps, oc),
                (pitch * 2, taps * pitch * 2),
                (64, 1, tile.columns),
            ),
        ),
    )
    epi = epilogue.epilogue(
        replace(r, ints={**i, **{f"o{k}_ld": i.get("r_cs", 0) for k in range(4)}}),
        (i.get("r_cs", 0),),
        width=2,
    )
    parameters: list[tuple[str, str, Argument]] = [
        ("const __grid_constant__ TensorMap", n, v) for n, v in maps
    ]
    parameters += [("T*", "y", Pointer("y")), ("i64", "ldy", Int64(i["y_cs"]))]
    parameters += [
        ("int", n, Int32(v))
        for n, v in (("N", oc), ("IMAGES", i["N"]), ("OH", i["OH"]), ("OW", i["OW"]))
    ]
    parameters += [("i64", "ldr", Int64(i.get("r_cs", 0))), *grouped.parameters(r), *epi.parameters]
    constants = [f"{n} = {int(i[n])}" for n in ("KH", "KW", "DH", "DW", "PT", "PL")]
    constants += [
        f"CHUNKS = {bundle.chunks}",
        f"WIDTH_IN = {tile.width}",
        f"TILE_H = {tile.rows}",
        f"BN = {tile.columns}",
    ]
    channels, columns = grouped.alone(r)
    many = columns or tile.columns
    constants += [f"STAGES = {tile.stages}", f"EACH = {channels // 16 or 4}", f"MANY = {many}"]
    mma = "f16" if r.dtype == DType.F16 else "bf16"
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", "#define SOURCE 2", "#define Y_VECTOR 1", f"#define PARAMETERS {', '.join(f'{t} {n}' for t, n, _ in parameters)}",
        f"#define EPILOGUE_ARGUMENTS {epi.arguments}", f"constexpr int {', '.join(constants)};", f"constexpr bool EARLY = {int('w' in r.constant)};",
        f"constexpr bool WHOLE_TILES = {int(bundle.columns % tile.columns == 0 and oc % bundle.columns == 0)}, WHOLE_CHUNKS = {int(oc % 8 == 0)};",
        grouped.constants(r), persistent_sm90.multiply(many, mma), epi.source, template("common/tma"), grouped.template(r),
        template("common/epilogue_store"), template("conv/halo_resident"),
    ])  # fmt: skip
    tiles, tiles_n = D.mul(i["N"], D.ceildiv(i["OH"], tile.rows)), grouped.tiles(r, tile.columns)
    grid = D.mul(D.mul(D.minimum(tiles, max(1, r.sms // tiles_n)), tiles_n), active)
    return Kernel(
        text,
        "conv_window",
        (grid, 1, 1),
        384,
        tuple(v for _, _, v in parameters),
        tile.smem,
        pdl=True,
    )
