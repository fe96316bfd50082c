"""Convolutions in groups as products: neighbouring groups form a bundle, whose output channels all
see the bundle's input channels through filters with zeros in them. It multiplies several times what
it must, but on tensor cores, whose tiles are 64 wide, that is less than one product for each group.

The widened filters [OC, KH, KW, round_up(channels of a bundle, 8)] follow the packed ones, unless a
bundle is one group (then they are these).
"""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import multiple_of
from tracea_onnx.plan.kernel_families import bundled_groups

from ..common import templates
from ..common.epilogue import Parameter
from ..common.instantiate import constexprs, defines, ints, longs, pointer, sizes

#: Measured on an H200: how much slower one product for each group is than its price beside these;
#: clocks that im2col copies take for 64 channels of a pixel, whose pixels begin at multiples of 32
#: bytes or of 16, and without groups at multiples of 32, or of 16 with more than 64 channels; how
#: much longer a filter takes; how much slower windows of channels are to multiply that lie across
#: lines of 128 bytes; clocks to start, which the prices of SplitTile and Tile leave out.
ALONE, _PIXEL, _ODD_PIXEL, _EVEN_PIXEL, _WIDE_PIXEL = 1.5, 4.0, 7.6, 3.5, 5.0
_FILTER, _STRADDLING, START = 1.5, 1.25, 1700.0


@dataclass(frozen=True)
class Bundle:
    """groups in one bundle; columns: output channels and channels: input channels of it; count:
    bundles.
    """

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


def of(r: Request) -> Bundle:
    """The bundles of a convolution or of its filters; one, where there are no groups."""
    ic, oc, g = (int(r.ints[n]) for n in ("IC", "OC", "G"))
    groups = bundled_groups(ic // g, oc // g, g)
    return Bundle(groups, groups * oc // g, groups * ic // g, -(-g // groups))


def widened(r: Request) -> bool:
    """Whether there are filters with zeros behind the packed ones."""
    return (
        r.arch == 90
        and r.dtype in (DType.F16, DType.BF16)
        and int(r.ints["G"]) > 1
        and of(r).groups > 1
    )


def pixel(r: Request) -> tuple[float, float]:
    """Clocks that copying 64 channels of one pixel and of one filter takes at least, where narrow
    tiles let it count. The filters of bundles are whole lines of memory, or nearly.
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
    """Where the filters of the bundles begin, in bytes behind the packed ones."""
    if not widened(r):
        return 0
    ic, oc, g = (int(r.ints[n]) for n in ("IC", "OC", "G"))
    return oc * int(r.ints["KH"]) * int(r.ints["KW"]) * (-(-(ic // g) // 8) * 8) * 2


def tiles(r: Request, width: int) -> int:
    """Tiles of so many output channels of a convolution."""
    b = of(r)
    return b.count * -(-b.columns // width)


def _mixed(r: Request) -> bool:
    """Whether a tile multiplies other groups' channels by zeros of a filter, or of its end."""
    b = of(r)
    return int(r.ints["G"]) > 1 and (b.groups > 1 or b.channels % 64 > 0)


def products(r: Request) -> int:
    """Of 16 channels, in a step of 64: what follows is zeros."""
    b = of(r)
    return -(-b.channels // 16) if b.chunks == 1 else 4


def alone(r: Request) -> tuple[int, int]:
    """Input channels, in whole products, that share no group with the others of a bundle, and their
    output channels; 0, 0 where that is all it has.
    """
    b, g = of(r), int(r.ints["G"])
    inner, outer = int(r.ints["IC"]) // g, int(r.ints["OC"]) // g
    channels = max(16, inner)
    columns = channels // inner * outer
    apart = channels % 16 == channels % inner == columns % 8 == 0 and b.chunks == 1
    return (channels, columns) if g > 1 and apart and columns < b.columns <= 64 else (0, 0)


def mma_scale(r: Request) -> float:
    """Clocks of the MMAs of a stage of 64 k, relative to a stage with all four of them."""
    return 0.5 + products(r) / 8


def constants(r: Request | None = None) -> str:
    """What kernels must know of the groups of their columns; None: there are none."""
    if r is None or r.ints["G"] == 1:
        one = {"STAGE_MMAS": 4 if r is None else products(r)}
        return constexprs({**one, "BUNDLE_COLUMNS": 0, "BUNDLE_CHANNELS": 0}) + "#define MIXED 0\n"
    b, i, g = of(r), r.ints, int(r.ints["G"])
    own = {
        "TAPS": int(i["KH"]) * int(i["KW"]),
        "IN": int(i["IC"]) // g,
        "OUT": int(i["OC"]) // g,
        **{n: int(i[n]) for n in ("KW", "SH", "SW", "DH", "DW", "PT", "PL")},
    }
    numbers = {
        "STAGE_MMAS": products(r),
        "BUNDLE_COLUMNS": b.columns if b.count > 1 else 0,
        "BUNDLE_CHANNELS": b.channels,
        **{f"OWN_{n}": v for n, v in own.items()},
    }
    group = "Own{own_x, own_w, x_cs, x_rs, x_ns, IH, IW, OH, OW}"
    return constexprs(numbers) + defines({"MIXED": _mixed(r), "OWN_GROUP": group})


def template(r: Request | None = None) -> str:
    """What mends sums behind tiles that other groups have a part in."""
    return templates.template("conv/grouped") if r is not None and _mixed(r) else ""


def parameters(r: Request) -> list[Parameter]:
    """Parameters of a kernel that has that template."""
    if not _mixed(r):
        return []
    return [
        pointer("const T", "x", "own_x"),
        pointer("const T", "w", "own_w"),
        *longs(sizes(r, "x_cs", "x_rs", "x_ns")),
        *ints(sizes(r, "IH", "IW")),
    ]
