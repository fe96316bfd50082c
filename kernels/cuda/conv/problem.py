"""What the kernels of convolutions share: sizes of a request, parameters, the epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_onnx.codegen.kernel_request import Kernel, Pointer, Request, once
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue
from ..common.epilogue import Parameter
from ..common.instantiate import instantiate, ints, longs, pointer, sizes
from ..common.launch import known
from ..gemm import select, sm90
from . import transposed as phased

WINDOW = ("KH", "KW", "SH", "SW", "DH", "DW")
_PIXELS = ("cs", "rs", "ns")
#: Least input channels for which TMA copies of 64 channels pay.
_LEAST = 24


def transposed(r: Request) -> bool:
    return r.family.startswith("deconv")


def inside(r: Request) -> bool:
    """Whether windows are known to lie inside of the image."""
    i = r.ints
    ends = (
        D.mul(i[f"O{a}"] - 1, i[f"S{a}"]) + (select.static(r, f"K{a}") - 1) * i[f"D{a}"]
        for a in "HW"
    )
    return i["PT"] == i["PL"] == 0 and all(
        known(D.less(end, i[f"I{a}"])) == 1 for a, end in zip("HW", ends, strict=True)
    )


def planar(r: Request) -> bool:
    """Whether the channels of a pixel are not contiguous."""
    return r.ints.get("x_c", 0) not in (0, 1)


@once
def window(r: Request) -> tuple[int, ...]:
    """Height and width of the filters, strides, dilations."""
    return tuple(select.static(r, n) for n in WINDOW)


def fixed(r: Request, *names: str) -> bool:
    """Whether these sizes are numbers."""
    return all(isinstance(r.ints[n], int) for n in names)


def about(r: Request, usual: int, *names: str) -> tuple[int, ...]:
    """These sizes, or what kernels are chosen for where they are symbolic (else `usual`)."""
    return tuple(int(select.known(r.ints[n], usual)) for n in names)


def phases(r: Request) -> int:
    """Phases of a transposed convolution: sets of output pixels with the same taps."""
    return phased.phases(r) if transposed(r) else 1


def rows(r: Request) -> DimLike:
    """Output pixels of a phase."""
    i = r.ints
    if not transposed(r):
        return select.pixels(r)
    return D.product([i["N"], D.ceildiv(i["OH"], i["SH"]), D.ceildiv(i["OW"], i["SW"])])


def pitches(r: Request, side: str) -> tuple[DimLike, ...]:
    """Distances of an operand's pixels, rows and images, in elements."""
    return tuple(r.ints.get(f"{side}_{p}", 0) for p in _PIXELS)


def flat(r: Request) -> bool:
    """Whether pixels of the result, and of the epilogue's full operands, have one pitch across rows
    and images.
    """
    return _flat(r, "y", "O") and (not reads_full(r) or _flat(r, "r", "O"))


def flat_input(r: Request) -> bool:
    return _flat(r, "x", "I")


def _flat(r: Request, side: str, extent: str) -> bool:
    i, height, width = r.ints, r.ints[f"{extent}H"], r.ints[f"{extent}W"]
    cs, rs, ns = pitches(r, side)
    row = D.mul(width, cs)
    lines: bool = height == 1 or rs == row
    images: bool = i["N"] == 1 or ns == D.mul(height, rs if height != 1 else row)
    return lines and images


def reads_full(r: Request) -> bool:
    """Whether the epilogue reads operands with the residual's pitches."""
    return epilogue.residual(r) if r.program is None else _reads(r, epilogue.FULL)


def reads_rows(r: Request) -> bool:
    """Whether the epilogue's program reads an operand with one element a row."""
    return r.program is not None and _reads(r, epilogue.ROW)


def _reads(r: Request, kind: int) -> bool:
    operands = int(r.program["n_in"]) - 1 if r.program is not None else 0
    return any(r.ints.get(f"o{k}_kind", 0) == kind for k in range(operands))


def by_tensor_maps(r: Request) -> bool:
    """Whether tensor maps reach the windows of the image, and pay."""
    grouped = select.static(r, "G") > 1
    if not grouped and select.static(r, "IC") < _LEAST:
        return False
    if not sm90.able(r, pitches(r, "x"), ("x",)):
        return False
    if transposed(r):
        return not grouped and phased.reaches(r)
    return flat(r) and sm90.corners(r) is not None


def stored_by_tensor_maps(r: Request) -> bool:
    """Whether they reach the result and the residual."""
    return sm90.able(r, (r.ints["y_cs"], r.ints.get("r_cs", 0)), ("y", "res"))


def vector(r: Request, side: str, columns: DimLike = 0) -> bool:
    """Whether pixels of an operand lie at multiples of 16 bytes; columns: as in
    `epilogue.vector`.
    """
    return epilogue.vector(r, side, pitches(r, side), columns)


def kernel(
    r: Request,
    header: str,
    names: tuple[str, ...],
    grid: tuple[DimLike, DimLike, DimLike],
    threads: int,
    constants: Mapping[str, bool | int],
    *,
    more: Sequence[Parameter] = (),
    width: int,
    columns: DimLike = 0,
    weight: int = 0,
    unread: tuple[str, ...] = (),
    macros: Mapping[str, bool | int | str] = {},
    text: str = "",
    smem: int = 0,
) -> list[Kernel]:
    """The kernel of a header that reads pixels by their addresses: of x, w (from byte `weight` on)
    and y, sizes `names`, `more`, the pitches but for those `unread`, and the epilogue on `width`
    channels (columns: as in `epilogue.epilogue`). The rest is as for `instantiate`.
    """
    found = sizes(r, *(f"{s}_{p}" for s in "xyr" for p in _PIXELS if f"{s}_{p}" not in unread))
    one = instantiate(
        r,
        header.replace("/", "_"),
        header,
        [
            pointer("const T", "x"),
            ("const T*", "w", Pointer("w", weight)),
            pointer("T", "y"),
            *ints(sizes(r, *names)),
            *more,
            *longs(found),
        ],
        grid,
        threads,
        epilogue=epilogue.epilogue(r, pitches(r, "r"), columns, width=width),
        macros=macros,
        constants={
            "EARLY": "w" in r.constant,
            "Y_VECTOR": vector(r, "y"),
            "WHOLE_CHUNKS": int(r.ints["OC"]) % 8 == 0,
            **constants,
        },
        text=text,
        smem=smem,
    )
    return [one]
