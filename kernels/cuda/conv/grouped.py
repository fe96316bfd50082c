"""Grouped convolutions on tensor cores: neighbouring groups are merged into one GEMM, whose output
channels read all their input channels through block-diagonal filters, padded with zeros. It
multiplies by many zeros, but takes less time than one GEMM per group, because tiles are 64 wide.

The widened filters [OC, KH, KW, round_up(channels of merged groups, 8)] follow the packed ones,
unless each group stays alone (then they are these).
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import multiple_of
from tracea_onnx.plan.kernel_families import merged_groups
from tracea_onnx.support.data_classes import dataclass

from ..common import templates
from ..common.epilogue import Parameter
from ..common.instantiate import constexprs, defines, ints, longs, pointer, sizes
from ..cost.fitted import fitted

#: Measured on an H200: factor of the price of one GEMM per group, compared with merged groups;
#: clocks of an im2col copy of 64 channels of a pixel, with pixels aligned to 32 bytes or to 16, and
#: without groups aligned to 32, or to 16 with more than 64 channels; a filter's copy relative to
#: these; factor of MMAs on channels that straddle lines of 128 bytes; clocks to start, which the
#: prices of SplitTile and Tile leave out.
ALONE, _PIXEL, _ODD_PIXEL, _EVEN_PIXEL, _WIDE_PIXEL = fitted(
    "conv.grouped", "alone pixel odd_pixel even_pixel wide_pixel"
)
_FILTER, _STRADDLING, START = fitted("conv.grouped", "filter straddling start")


@dataclass(frozen=True)
class MergedGroups:
    """Groups in one GEMM: their number, columns (output channels), input channels. count: GEMMs."""

    groups: int
    columns: int
    channels: int
    count: int

    @property
    def chunks(self) -> int:
        """Steps of 64 channels."""
        return -(-self.channels // 64)

    @property
    def pitch(self) -> int:
        return -(-self.channels // 8) * 8


def of(r: Request) -> MergedGroups:
    """The merged groups of a convolution or of its filters; without groups there is one GEMM."""
    ic, oc, g = (int(r.ints[n]) for n in ("IC", "OC", "G"))
    groups = merged_groups(ic // g, oc // g, g)
    return MergedGroups(groups, groups * oc // g, groups * ic // g, -(-g // groups))


def widened(r: Request) -> bool:
    """Whether filters of merged groups, with zeros, follow the packed ones."""
    return (
        r.arch == 90
        and r.dtype in (DType.F16, DType.BF16)
        and int(r.ints["G"]) > 1
        and of(r).groups > 1
    )


def pixel(r: Request) -> tuple[float, float]:
    """Least clocks to copy 64 channels of one pixel and of one filter. Filters of merged groups are
    contiguous, and cost nothing more.
    """
    pitch = multiple_of(r.ints["x_cs"])
    if r.ints["G"] != 1:
        return _PIXEL if pitch >= 16 and of(r).channels % 16 == 0 else _ODD_PIXEL, 0.0
    one = (
        0.0
        if pitch >= 64
        else _EVEN_PIXEL
        if pitch >= 16
        else _WIDE_PIXEL
        if int(r.ints["IC"]) > 64
        else _ODD_PIXEL
    )
    return one, _FILTER * one


def straddling(r: Request) -> float:
    b = of(r)
    return _STRADDLING if b.count > 1 and b.channels % 32 else 1.0


def filters(r: Request) -> int:
    """Offset of the filters of merged groups from the packed ones, in bytes."""
    if not widened(r):
        return 0
    ic, oc, g = (int(r.ints[n]) for n in ("IC", "OC", "G"))
    return oc * int(r.ints["KH"]) * int(r.ints["KW"]) * (-(-(ic // g) // 8) * 8) * 2


def tiles(r: Request, width: int) -> int:
    """Tiles of `width` output channels, in whole merged groups."""
    b = of(r)
    return b.count * -(-b.columns // width)


def _mixed(r: Request) -> bool:
    """Whether a tile multiplies channels of other groups, by zeros of filters or their padding."""
    b = of(r)
    return int(r.ints["G"]) > 1 and (b.groups > 1 or b.channels % 64 > 0)


def stage_mmas(r: Request) -> int:
    """MMAs (of 16 channels) of a stage of 64 channels; all further channels are zeros."""
    b = of(r)
    return -(-b.channels // 16) if b.chunks == 1 else 4


def alone(r: Request) -> tuple[int, int]:
    """Input channels (a multiple of 16) and output channels of one block of the block-diagonal
    filters of merged groups; 0, 0 if these are one block.
    """
    b, g = of(r), int(r.ints["G"])
    inner, outer = int(r.ints["IC"]) // g, int(r.ints["OC"]) // g
    channels = max(16, inner)
    columns = channels // inner * outer
    apart = channels % 16 == channels % inner == columns % 8 == 0 and b.chunks == 1
    return (channels, columns) if g > 1 and apart and columns < b.columns <= 64 else (0, 0)


def mma_scale(r: Request) -> float:
    """Clocks of the MMAs of a stage of 64 k, relative to a stage with all four of them."""
    return 0.5 + stage_mmas(r) / 8


def constants(r: Request | None = None, mmas: int = 4) -> str:
    """Constants of kernels about the groups of their columns; None: there are no groups, and a
    stage has so many MMAs.
    """
    if r is None or r.ints["G"] == 1:
        one = {"STAGE_MMAS": mmas if r is None else stage_mmas(r)}
        return constexprs({**one, "MERGED_COLUMNS": 0, "MERGED_CHANNELS": 0}) + "#define MIXED 0\n"
    b, i, g = of(r), r.ints, int(r.ints["G"])
    own = {
        "TAPS": int(i["KH"]) * int(i["KW"]),
        "IN": int(i["IC"]) // g,
        "OUT": int(i["OC"]) // g,
        **{n: int(i[n]) for n in ("KW", "SH", "SW", "DH", "DW", "PT", "PL")},
    }
    numbers = {
        "STAGE_MMAS": stage_mmas(r),
        "MERGED_COLUMNS": b.columns if b.count > 1 else 0,
        "MERGED_CHANNELS": b.channels,
        **{f"OWN_{n}": v for n, v in own.items()},
    }
    group = "Own{own_x, own_w, x_cs, x_rs, x_ns, IH, IW, OH, OW}"
    return constexprs(numbers) + defines({"MIXED": _mixed(r), "OWN_GROUP": group})


def template(r: Request | None = None) -> str:
    """The template that recomputes non-finite sums of tiles with several groups."""
    return templates.template("conv/grouped") if r is not None and _mixed(r) else ""


def parameters(r: Request) -> list[Parameter]:
    """Parameters of a kernel with `template`."""
    if not _mixed(r):
        return []
    return [
        pointer("const T", "x", "own_x"),
        pointer("const T", "w", "own_w"),
        *longs(sizes(r, "x_cs", "x_rs", "x_ns")),
        *ints(sizes(r, "IH", "IW")),
    ]
