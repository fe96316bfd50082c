"""Transposed convolutions of f32 as one product of pixels and all taps, which a second kernel folds
(`col2im.cuh`): each input is read once, whatever the stride.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue
from ..common.launch import declared
from ..common.prelude import prelude
from ..common.templates import template
from ..gemm import emit as gemm_emit
from ..gemm import repitch, select

_SIZES = ("IH", "IW", "OH", "OW", "KH", "KW", "SH", "SW", "PT", "PL", "IC", "OC")
#: Clocks to start the second kernel, of a byte of products that it reads, of a thread, and of what
#: each thread reads, one after the other.
_START, _BYTE, _THREAD, _READ = 700.0, 0.0026, 0.0245, 223.0


@dataclass(frozen=True)
class Folded:
    """A tile of the product, and channels of a thread that folds."""

    tile: Any
    width: int = 8


def _inner(r: Request) -> Request:
    """The product of all input pixels and taps: rows of y lie in scratch memory."""
    i = r.ints
    rows, taps, channels = (
        D.product([i["N"], i["IH"], i["IW"]]),
        int(i["KH"]) * int(i["KW"]),
        int(i["IC"]),
    )
    columns = int(i["OC"]) * taps
    ints: dict[str, DimLike] = {
        "B0": 1,
        "B1": 1,
        "M": rows,
        "N": columns,
        "K": channels,
        "a_m": i["x_cs"],
        "a_k": 1,
        "b_n": select.channels(r, channels),
        "b_k": 1,
    }
    ints |= dict.fromkeys(("ldy", "ldr"), -(-columns // 4) * 4) | dict.fromkeys(
        ("a_0", "a_1", "b_0", "b_1", "y_0", "y_1", "r_0", "r_1"), 0
    )
    unaligned = frozenset(to for o, to in (("x", "a"), ("w", "b")) if o in r.unaligned)
    constant = frozenset("b" if "w" in r.constant else "")
    return replace(
        r,
        family="matmul",
        ints=ints,
        floats={"alpha": 1.0},
        program=None,
        operands=frozenset("aby"),
        unaligned=unaligned,
        constant=constant,
    )


def applies(r: Request) -> bool:
    """Whether the pixels of the images are rows of one matrix, and sizes but the number of images
    are known.
    """
    i = r.ints
    sizes = (*_SIZES, "x_cs", "x_rs", "x_ns")
    if (
        r.arch < 90
        or r.dtype != DType.F32
        or i["G"] != 1
        or (i["DH"], i["DW"]) != (1, 1)
        or any(not isinstance(i[n], int) for n in sizes)
    ):
        return False
    if any(r.ints.get(f"o{k}_kind", 0) == epilogue.ROW for k in range(4)):
        return False
    follow = (i["IH"] == 1 or i["x_rs"] == i["IW"] * i["x_cs"]) and (
        i["N"] == 1 or i["x_ns"] == i["IH"] * i["x_rs"]
    )
    return bool(follow and select.known(D.product([i["N"], i["IH"], i["IW"]]), 0) > 0)


def prices(r: Request) -> dict[Folded, float]:
    if not applies(r):
        return {}
    inner, i = _inner(r), r.ints
    m, n, k = (select.known(inner.ints[name], 0) for name in "MNK")
    bytes_, channels, pixels = 4.0 * m * n, int(i["OC"]), select.known(select.pixels(r), 0)
    hits = -(-int(i["KH"]) // int(i["SH"])) * -(-int(i["KW"]) // int(i["SW"]))
    fold, width = min(
        (_THREAD * pixels * -(-channels // w) + _READ * hits * min(w, channels), w)
        for w in (2, 4, 8)
    )
    fold += _START + _BYTE * bytes_
    return {
        Folded(t, width): cost + fold for t, cost in gemm_emit.tile_prices(inner, m, n, k).items()
    }


def convolution(r: Request, tile: Folded, active: DimLike) -> list[Kernel]:
    i, inner = r.ints, _inner(r)
    n, pitch = int(i["OC"]), int(inner.ints["ldy"])
    scratch = (D.mul(inner.ints["M"], pitch * 4),)
    product = repitch.redirected(
        gemm_emit.strided(inner, tile.tile, {"r_0": 0, "r_1": 0, **inner.ints}, active),
        {"a": "x", "b": "w", "y": "scratch0"},
        scratch,
    )
    width = tile.width
    params: list[tuple[str, str, Argument]] = [
        ("const float*", "products", Pointer("scratch0")),
        ("T*", "y", Pointer("y")),
    ]
    params += [("int", s, Int32(i[s])) for s in ("N", "IH", "IW", "OH", "OW", "PT", "PL")]
    params += [
        ("i64", s, Int64(i.get(s, 0))) for s in ("y_cs", "y_rs", "y_ns", "r_cs", "r_rs", "r_ns")
    ]
    epi = epilogue.epilogue(r, tuple(i.get(s, 0) for s in ("r_cs", "r_rs", "r_ns")), 8, width=width)
    params += epi.parameters
    constants = {s: i[s] for s in ("KH", "KW", "SH", "SW")} | {"CHANNELS": n, "PITCH": pitch}
    vector = epilogue.vector(r, "y", (i["y_cs"], i["y_rs"], i["y_ns"]))
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 1", f"constexpr int {', '.join(f'{s} = {v}' for s, v in constants.items())};", f"constexpr bool Y_VECTOR = {int(vector)};",
        f"#define PARAMETERS {declared(r, params)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}", epi.source,
        template("conv/col2im"),
    ])  # fmt: skip
    blocks = D.ceildiv(select.pixels(r), 256)
    return [
        *product,
        Kernel(
            text,
            "fold",
            (D.mul(blocks, active), -(-n // width), 1),
            256,
            tuple(v for _, _, v in params),
            pdl=True,
            scratch=scratch,
        ),
    ]
