"""Depthwise convolutions of 8-bit integers, `conv2d_int8_dw`: four taps at a time by dot products
of bytes (`dot_int8.cuh`), or any of them (`int8.cuh`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Int32, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.plan.kernel_families import tap_pitch
from tracea_onnx.support.data_classes import dataclass

from ...common.epilogue import Parameter
from ...common.instantiate import instantiate, ints, longs, pointer, sizes
from ...cost.fitted import fitted
from ...gemm import select
from ...gemm.int8 import requantise
from ...gemm.int8.requantise import dtype
from .. import problem

_THREADS, _PIXELS = 128, 4
_SIZES = ("N", "IH", "IW", "OH", "OW", *problem.WINDOW, "PT", "PL")


#: Channels and columns of a thread of dot products, most taps of its window, rows it may have.
_CHANNELS, _COLUMNS, _TAPS, _ROWS = 4, 4, 49, (1, 2, 4)
#: Clocks of a wave of CTAs, instructions of a thread besides its loops, of a result.
_WAVE, _BEGIN, _RESULT = fitted("conv.depthwise.int8", "wave begin result")
_DOT = {DType.U8: "u32", DType.I8: "s32"}


@dataclass(frozen=True)
class Dots:
    """rows: of results of a thread."""

    rows: int


def convolution(r: Request) -> list[Kernel]:
    if not _by_dots(r):
        return _any(r)

    def prices(pixels: int) -> dict[Dots, float]:
        return {t: _price(r, t, pixels) for t in _tiles(r)}

    return [_dots(r, t, active) for t, active in select.choose(problem.rows(r), prices)]


def _by_dots(r: Request) -> bool:
    """Whether pixels are words of four channels, and a thread's registers hold the weights."""
    i = r.ints
    if not problem.fixed(r, *problem.WINDOW, "OC", "x_cs", "y_cs") or "w_zero" in r.operands:
        return False
    size = dtype(r, "y", DType.F32).size
    whole = i["DW"] == 1 and i["OC"] % _CHANNELS == 0 and not {"x", "y"} & r.unaligned
    apart = all(multiple_of(p) % 4 == 0 for s in "xy" for p in problem.pitches(r, s))
    whole = whole and apart and (size == 1 or size == 4)
    return whole and int(i["KH"]) * int(i["KW"]) <= _TAPS and int(i["KW"]) <= 8


def _tiles(r: Request) -> Iterator[Dots]:
    few = int(r.ints["KH"]) > 3
    yield from (Dots(rows) for rows in _ROWS if rows <= (2 if few else 4))


def _price(r: Request, t: Dots, pixels: int) -> float:
    """Clocks for so many pixels."""
    kh, _, sh, sw, dh, _ = problem.window(r)
    words = -(-int(r.ints["KW"]) // 4)
    groups = ((_COLUMNS - 1) * sw + 4 * words + 3) // 4
    oh = r.ints["OH"] if isinstance(r.ints["OH"], int) else 56
    ow = r.ints["OW"] if isinstance(r.ints["OW"], int) else 56
    images = pixels / max(oh * ow, 1)
    warps = images * -(-oh // t.rows) * -(-ow // _COLUMNS) * int(r.ints["OC"]) / _CHANNELS / 32
    seen = (t.rows - 1) * sh + (kh - 1) * dh + 1
    sums = t.rows * _COLUMNS * _CHANNELS
    own = seen * (12 * groups + 4 * _COLUMNS * words) + sums * (kh * words + _RESULT) + _BEGIN
    registers = sums + kh * words * 4 + groups * 8 + 40
    resident = min(48, 65536 // (32 * registers))
    each = -(-warps // r.sms)
    return -(-each // resident) * _WAVE + max(each * own / 4, 2 * own)


def _dots(r: Request, t: Dots, active: DimLike) -> Kernel:
    i = r.ints
    channels, pitch = int(i["OC"]), tap_pitch(int(i["OC"]))
    parameters: list[Parameter] = [
        pointer("const T", "x"),
        pointer("const Weight", "w"),
        pointer("Result", "y"),
        pointer("const T", "x_zero", "zero_x"),
        *ints(sizes(r, "N", "IH", "IW", "OH", "OW", "PT", "PL")),
        *longs(sizes(r, "x_rs", "x_ns", "y_rs", "y_ns", "r_cs", "r_rs", "r_ns")),
    ]
    given = replace(r, operands=r.operands - {"x_zero"})
    taps = int(i["KH"]) * int(i["KW"])
    epilogue = requantise.epilogue(
        given, taps, 0, problem.pitches(r, "r"), width=_CHANNELS, columns=channels
    )
    threads = D.product(
        [i["N"], D.ceildiv(i["OH"], t.rows), D.ceildiv(i["OW"], _COLUMNS), channels // _CHANNELS]
    )
    types = f'"{_DOT[dtype(r, "x")]}.{_DOT[dtype(r, "w")]}"'
    return instantiate(
        replace(r, dtype=dtype(r, "x")),
        "conv_depthwise_dots",
        "conv/depthwise/dot_int8",
        parameters,
        (D.mul(D.ceildiv(threads, _THREADS), active), 1, 1),
        _THREADS,
        epilogue=epilogue,
        macros={"DOT_TYPES": types},
        constants={
            **{n: int(i[n]) for n in ("KH", "KW", "SH", "SW", "DH")},
            "C": channels, "PITCH": pitch, "COLUMNS": _COLUMNS, "ROWS": t.rows,
            "X_CS": int(i["x_cs"]), "Y_CS": int(i["y_cs"]),
            "EARLY": "w" in r.constant, "Y_VECTOR": True,
        },
    )  # fmt: skip


def _any(r: Request) -> list[Kernel]:
    i, channels = r.ints, select.static(r, "OC")
    taps = select.static(r, "KH") * select.static(r, "KW")
    parameters: list[Parameter] = [
        pointer("const T", "x"),
        pointer("const Weight", "w"),
        pointer("Result", "y"),
        pointer("const T", "x_zero", "zero_x"),
        pointer("const Weight", "w_zero", "zero_w"),
        ("int", "zeros_w", Int32(i.get("w_zeros", 1))),
        *ints({**sizes(r, *_SIZES), "C": channels, "pitch": tap_pitch(channels)}),
        *longs(sizes(r, *(f"{s}_{p}" for s in "xyr" for p in ("cs", "rs", "ns")))),
    ]
    # the kernel takes zero points off itself
    given = replace(r, operands=r.operands - {"x_zero", "w_zero"})
    epilogue = requantise.epilogue(given, taps, 0, problem.pitches(r, "r"))
    units = D.product(
        [i["N"], i["OH"], D.ceildiv(i["OW"], _PIXELS), -(-channels // requantise.WIDTH)]
    )
    size = dtype(r, "y", DType.F32).size
    return [
        instantiate(
            replace(r, dtype=dtype(r, "x")),
            "conv_depthwise_bytes",
            "conv/depthwise/int8",
            parameters,
            (D.ceildiv(units, _THREADS), 1, 1),
            _THREADS,
            epilogue=epilogue,
            constants={
                "PIXELS": _PIXELS,
                "X_VECTOR": requantise.aligned(r, "x", 1, *problem.pitches(r, "x")),
                "Y_VECTOR": requantise.aligned(r, "y", size, *problem.pitches(r, "y")),
            },
        )
    ]


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {"conv2d_int8_dw": convolution}
