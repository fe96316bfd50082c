"""LSTM, GRU and RNN, and packing of their weights."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import FaultWord, Kernel, Request, Words
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common.instantiate import floats, instantiate, ints, longs, pointer
from ..common.launch import known, parameters, static
from ..common.prelude import activation_source

#: Warps of a CTA (and its least units); most CTAs per direction.
_WARPS, _CTAS = 8, 128
#: Most batch rows per warp and iteration; rows where the batch is symbolic.
_ROWS, _SOME = 8, 4


def _pitch(units: int) -> int:
    """Elements from a row of packed weights to the next."""
    return -(-units // 8) * 8


def _words(ctas: int) -> int:
    """Of the barrier of one direction, which has lines of L2 for itself."""
    return -(-(2 + 2 * ctas) // 32) * 32


def _rows(batch: DimLike) -> int:
    n = known(batch)
    return _SOME if n is None else min(_ROWS, 1 << max(n - 1, 0).bit_length())


def recurrent(request: Request) -> list[Kernel]:
    i, f = parameters(request), request.floats
    units, gates, directions = (static(i[n], n) for n in ("H", "G", "D"))
    ctas = max(1, min(_CTAS, request.sms // directions))
    each = -(-units // (_WARPS * ctas)) * _WARPS
    ctas, rows, pitch = -(-units // each), _rows(i["B"]), _pitch(units)
    own = [pointer("const T", name) for name in ("x", "r", "bias", "peephole")]
    own += [pointer("const int", "lens"), pointer("const T", "h", "h0")]
    own += [pointer("const T", "c", "c0"), *(pointer("T", name) for name in ("y", "y_h", "y_c"))]
    own += [pointer("float", "state"), ("u32*", "words", Words(directions * _words(ctas)))]
    own += [("u32*", "fault", FaultWord())]
    own += ints({"steps": i["T"], "batch": i["B"], "directions": directions})
    own += ints({"reverse": i["reverse"]})
    own += longs({n: i[n] for n in ("x_t", "x_b", "y_t", "y_b", "y_d", "h_b", "h_d", "bias_d")})
    clip = f.get("clip", 0.0)
    own += floats({"clip": clip, **{n: f.get(n, 0.0) for n in ("f0", "f1", "g0", "g1")}})
    own += floats({f"p_{n}": f.get(n, 0.0) for n in ("h0", "h1")})
    constants = {
        "GATES": gates, "LINEAR_BEFORE_RESET": static(i["before"], "reset"), "H": units,
        "PITCH": pitch, "ROWS": rows, "UNITS": each, "CTAS": ctas, "WORDS": _words(ctas),
        "COUPLED": bool(i["coupled"]), "CLIPPED": clip != 0.0,
    }  # fmt: skip
    acts = "".join(activation_source(static(i[n], n), n) for n in ("act_f", "act_g", "act_h"))
    grid = (D.select(D.less(0, i["B"]), directions * ctas, 0), 1, 1)
    return [
        instantiate(
            request, "recurrent", "recurrent/recurrent", own, grid, _WARPS * 32,
            constants=constants, text=acts, smem=rows * pitch * 4, fast=False,
        )
    ]  # fmt: skip


def pack_recurrent(request: Request) -> list[Kernel]:
    i = parameters(request)
    units, gates, directions = (static(i[n], n) for n in ("H", "G", "D"))
    length = static(i["K"], "K")
    constants = {"GATES": gates, "H": units, "K": length, "PITCH": _pitch(length)}
    count = directions * gates * units * _pitch(length)
    given = [pointer("const T", "r"), pointer("T", "packed"), *longs({"count": count})]
    grid = (D.ceildiv(count, 256), 1, 1)
    return [
        instantiate(
            request, "pack_recurrent", "recurrent/pack", given, grid, 256, constants=constants
        )
    ]


FAMILIES = {"recurrent": recurrent, "pack_recurrent": pack_recurrent}
