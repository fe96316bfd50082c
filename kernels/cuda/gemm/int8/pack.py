"""Packing of 8-bit weights (`pack.cuh`): `pack_gemm_int8` and `pack_conv2d_int8`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Kernel, Pointer, Request
from tracea_onnx.plan.kernel_families import byte_pitch, tap_pitch

from ...common.instantiate import instantiate, ints, longs, pointer
from .. import select
from .requantise import dtype

_THREADS = 256


def pack_gemm(r: Request) -> list[Kernel]:
    n, k, first, total = (select.static(r, name) for name in ("N", "K", "n0", "N_total"))
    pitch, ld = byte_pitch(k), select.static(r, "ldw")
    row, channel = (ld, 1) if r.ints.get("trans", 0) else (1, ld)
    return _rows(r, n, (1, k, pitch), (row, 0, channel), first, total * pitch)


def pack_conv2d(r: Request) -> list[Kernel]:
    oc, ic, kh, kw, g = (select.static(r, name) for name in ("OC", "IC", "KH", "KW", "G"))
    taps, channels = kh * kw, ic // g
    pitch = tap_pitch(channels)
    sizes, steps = (taps, channels, pitch), (channels * taps, 1, taps)
    return _rows(r, oc, sizes, steps, 0, oc * taps * pitch)


def pack_depthwise(r: Request) -> list[Kernel]:
    oc, taps = select.static(r, "OC"), select.static(r, "KH") * select.static(r, "KW")
    pitch = tap_pitch(oc)
    parameters = [
        pointer("const T", "w"),
        pointer("T", "packed"),
        *ints({"taps": taps, "channels": oc, "pitch": pitch}),
    ]
    packed, grid = replace(r, dtype=dtype(r, "w")), (-(-taps * pitch // _THREADS), 1, 1)
    return [instantiate(packed, "pack_taps", "gemm/int8/pack", parameters, grid, _THREADS,
                        macros={"TAPS": True})]  # fmt: skip


def _rows(
    r: Request, rows: int, sizes: tuple[int, int, int], steps: tuple[int, int, int], first: int,
    sums: int,
) -> list[Kernel]:  # fmt: skip
    """sizes: taps, channels and pitch of a row; steps: from row to row of w, from tap to tap and
    from channel to channel; first: the first row that is written; sums: bytes in front of them.
    """
    taps, channels, pitch = sizes
    parameters = [
        pointer("const T", "w"),
        ("T*", "packed", Pointer("packed", first * taps * pitch)),
        ("int*", "sums", Pointer("packed", sums + 4 * first)),
        *ints({"taps": taps, "channels": channels, "pitch": pitch}),
        *longs(dict(zip(("w_row", "w_tap", "w_channel"), steps, strict=True))),
    ]
    packed = replace(r, dtype=dtype(r, "w"))
    return [instantiate(packed, "pack_bytes", "gemm/int8/pack", parameters, (rows, 1, 1), _THREADS)]


FAMILIES: dict[str, Callable[[Request], list[Kernel]]] = {
    "pack_gemm_int8": pack_gemm,
    "pack_conv2d_int8": pack_conv2d,
    "pack_conv2d_int8_dw": pack_depthwise,
}
