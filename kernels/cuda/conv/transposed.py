"""Transposed convolutions on tensor cores of Hopper: each phase of the output is a convolution of
stride 1 by a subset of the taps (`transposed.cuh`).
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Pointer, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common.instantiate import ints, longs, sizes
from ..gemm.sm90 import Problem, pixels

_AXES = (("H", "PT"), ("W", "PL"))


def phases(r: Request) -> int:
    return int(r.ints["SH"]) * int(r.ints["SW"])


def _axis(r: Request, axis: str, pad: str) -> tuple[int, int]:
    """The least input index that any phase reads for its first output; least taps of a phase."""
    kernel, stride, before = (int(r.ints[n]) for n in (f"K{axis}", f"S{axis}", pad))
    taps = [-(-(kernel - (phase + before) % stride) // stride) for phase in range(stride)]
    return min((phase + before) // stride - n + 1 for phase, n in enumerate(taps)), min(taps)


def steps(r: Request) -> tuple[int, int]:
    """Stages of 64 k of a phase: the least, and the mean rounded up."""
    chunks, taps = -(-int(r.ints["IC"]) // 64), int(r.ints["KH"]) * int(r.ints["KW"])
    return _axis(r, *_AXES[0])[1] * _axis(r, *_AXES[1])[1] * chunks, -(-taps * chunks // phases(r))


def _more(r: Request, axis: str) -> DimLike:
    """Outputs beyond as many as the stride for each input."""
    return D.sub(r.ints[f"O{axis}"], D.mul(r.ints[f"I{axis}"], r.ints[f"S{axis}"]))


def _corners(r: Request) -> tuple[tuple[int, int], tuple[int, int]]:
    """Lower and upper corner (W, H) of the im2col box of the union of all windows."""
    i, lower, upper = r.ints, [], []
    for axis, pad in reversed(_AXES):
        low = _axis(r, axis, pad)[0]
        lower.append(low)
        upper.append(low + -(-int(_more(r, axis)) // int(i[f"S{axis}"])))
    return (lower[0], lower[1]), (upper[0], upper[1])


def reaches(r: Request) -> bool:
    """Whether tensor maps reach the windows of this transposed convolution without groups."""
    i = r.ints
    sizes = [i[n] for n in ("KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL")]
    if (
        not all(isinstance(v, int) for v in (*sizes, _more(r, "H"), _more(r, "W")))
        or i["DH"] != 1
        or i["DW"] != 1
    ):
        return False
    kh, kw, sh, sw = (int(i[n]) for n in ("KH", "KW", "SH", "SW"))
    return (
        kh >= sh
        and kw >= sw
        and max(kh // sh, kw // sw) < 128
        and all(-128 <= v <= 127 for corner in _corners(r) for v in corner)
    )


def problem(r: Request, rows: DimLike) -> Problem:
    """The phases, of `rows` output pixels each."""
    i, taps = r.ints, int(r.ints["KH"]) * int(r.ints["KW"])
    oc, pitch, box = int(i["OC"]), -(-int(i["IC"]) // 8) * 8, _corners(r)
    low = box[0]

    def maps(a: tuple[int, int], b: tuple[int, int]) -> tuple[TensorMap, TensorMap]:
        image = pixels(r, box, a[0] // a[1], (1, 1))
        strides, one = (pitch * 2, taps * pitch * 2), (64, 1, b[0] // b[1])
        return image, TensorMap(Pointer("w"), r.dtype, (pitch, taps, oc), strides, one)

    parameters = ints(
        {
            "chunks": -(-int(i["IC"]) // 64),
            "OH": D.ceildiv(i["OH"], i["SH"]),
            "OW": D.ceildiv(i["OW"], i["SW"]),
            "SH": 1,
            "SW": 1,
            "PT": -low[1],
            "PL": -low[0],
            "OUT_H": i["OH"],
            "OUT_W": i["OW"],
        }
    )
    parameters += longs(sizes(r, "y_cs", "y_rs", "y_ns", "r_cs", "r_rs", "r_ns"))
    constants: dict[str, bool | int] = {
        f"DECONV_{n}": int(i[n]) for n in ("KH", "KW", "SH", "SW", "PT", "PL")
    }
    constants |= {"LOW_H": low[1], "LOW_W": low[0]}
    ldy, ldr = i["y_cs"], i.get("r_cs", 0)
    full = (ldr, *(i.get(f"r_{p}", 0) for p in ("rs", "ns")))
    pitches = (ldy, *(i.get(f"y_{p}", 0) for p in ("rs", "ns")))
    return Problem(
        r, 1, rows, oc, ldy, ldr, maps, parameters, pitches, full,
        grid_yz=(phases(r), 1), transposed=True, constants=constants,
    )  # fmt: skip
