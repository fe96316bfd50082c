"""What a launch does: the bytes that it must move, and the arithmetic that is counted."""

from __future__ import annotations

from math import prod

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.extents import Extent, Launch, extents_of

#: Of the multiplications of a 3x3 convolution those that Winograd's algorithm needs, with tiles of
#: 4x4 that give 2x2 results.
WINOGRAD = 16 / 36


class _Dense(Launch):
    """Counts elements instead of the distance between the first and the last."""

    def span(self, *axes: tuple[DimLike, DimLike], size: DimLike = 0) -> Extent:
        low, high = super().span(*axes, size=size)
        elements = D.product([D.maximum(n, 0) for n, stride in axes if stride != 0])
        return 0, D.minimum(D.mul(elements, size if size != 0 else self.size), high - low)


def moved(request: Request, *, border: bool) -> int:
    """Bytes of a launch of known sizes: each that an operand covers, once; of what indices choose
    from as many as there are results. border: as of `extents`.
    """
    found = sum(_bytes(request, border).values())
    if request.family != "zero_border":
        return found
    i = {name: int(n) for name, n in request.ints.items()}  # all but what lies within
    return found - i["N"] * i["H"] * i["W"] * i["y_cs"] * request.dtype.size


def _bytes(request: Request, border: bool) -> dict[str, int]:
    """Of each operand that has a bound."""
    present = dict.fromkeys(request.operands, 1)
    launch = _Dense(request.ints, present, request.dtype.size, border)
    found = {
        o: int(high) - int(low)
        for o, (low, high) in extents_of(request.family, launch).items()
        if o in request.operands
    }
    if "idx" in found and "y" in found:
        found["x"] = min(found.get("x", 0), found["y"])
    return found


def operations(request: Request) -> float:
    """Floating-point operations of a launch of known sizes: multiply-adds of GEMMs and
    convolutions count two, each instruction of a pointwise program one for an element of the
    result. Nothing else is counted.
    """
    i = {name: int(n) for name, n in request.ints.items()}

    def of(names: str) -> int:
        return prod(i.get(name, 0) for name in names.split())

    family = request.family
    if family.startswith("conv"):
        each = i["IC"] // i["G"] * (WINOGRAD if family == "conv2d_wino" else 1.0)
        found = 2 * of("N OC OH OW KH KW") * each
    elif family.startswith("deconv"):
        found = 2.0 * of("N IC IH IW KH KW") * (i["OC"] // i["G"])
    elif family.startswith("gemm"):
        found = 2.0 * of("M N K")
    elif family == "matmul":
        found = 2.0 * of("B0 B1 M N K")
    elif family.startswith("attention"):
        found = 2.0 * of("B H S T") * (i["D"] + i["DV"])
    else:
        found = 0.0
    instructions = len((request.program or {}).get("code", ()))
    return found + instructions * _bytes(request, False).get("y", 0) / request.dtype.size
