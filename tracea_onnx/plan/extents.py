"""Which bytes each operand of a kernel family may touch, how often a launch may go over them, and
which parameters a kernel can take: the wall behind lowering.

`extents(family, ints, present, size)` gives for every operand the bytes `[low, high)` relative to
its address as expressions over the family's parameters. One table serves both backends: CUDA Plans
carry the expressions, and C++ for the CPU kernels is generated from them (`kernels/cpu.py`). The
provider compares them with the buffers once for each set of input shapes, whoever made the Plan.

What is written counts, pad channels, too; vectors may read within the slack behind a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import FARTHEST, DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import COPIES, FAMILIES, PADDED, PASSES, PROJECTED_STEPS
from tracea_onnx.support.data_classes import dataclass

#: Bytes from an operand's address: the first it may touch, and the first it may not.
Extent = tuple[DimLike, DimLike]


@dataclass(frozen=True)
class Launch:
    """What an extent depends on: parameters by name, whether an operand is there (1 or 0), bytes of
    an element of the main type, and whether convolutions read the zero border around their images
    (as on the CPU).
    """

    ints: Mapping[str, DimLike]
    present: Mapping[str, DimLike]
    size: DimLike
    border: bool

    def __getitem__(self, name: str) -> DimLike:
        return self.ints.get(name, 0)

    def span(self, *axes: tuple[DimLike, DimLike], size: DimLike = 0) -> Extent:
        """Elements at sum(index * stride) of these (count, stride), of `size` bytes each (0: of the
        main type).
        """
        low: DimLike = 0
        high: DimLike = 1
        for n, stride in axes:
            reach = D.mul(n - 1, stride)
            low, high = low + D.minimum(reach, 0), high + D.maximum(reach, 0)
        each = size if size != 0 else self.size
        low, high = D.mul(low, each), D.mul(high, each)
        for n, _ in axes:
            some = D.less(0, n)
            low, high = D.select(some, low, 0), D.select(some, high, 0)
        return low, high

    def written(self, *axes: tuple[DimLike, DimLike], size: DimLike = 0) -> Extent:
        """As `span`, of a result: each of its elements is another one, so they need so much room
        (on the CPU, where this is the wall against Plans that were changed: strides of 0 would
        let such a launch write for ever).
        """
        return self._apart(axes, [D.maximum(n, 0) for n, _ in axes], size)

    def held(self, *axes: tuple[DimLike, DimLike], size: DimLike = 0) -> Extent:
        """As `written`, of what is read and may be repeated: but for strides of 0."""
        return self._apart(axes, [D.select(stride, D.maximum(n, 0), 1) for n, stride in axes], size)

    def _apart(
        self, axes: Sequence[tuple[DimLike, DimLike]], counts: Sequence[DimLike], size: DimLike
    ) -> Extent:
        low, high = self.span(*axes, size=size)
        if not self.border:
            return low, high
        room = low + D.mul(D.product(list(counts)), size if size != 0 else self.size)
        return low, D.select(D.less(low, high), D.maximum(high, room), high)

    def line(self, *counts: DimLike, size: DimLike = 0) -> Extent:
        """So many elements in a row."""
        return self.span((D.product([D.maximum(n, 0) for n in counts]), 1), size=size)

    def image(
        self,
        o: str,
        h: DimLike,
        w: DimLike,
        c: DimLike,
        n: DimLike | None = None,
        size: DimLike = 0,
    ) -> Extent:
        """A channels-last image of operand `o`; `y` is a result."""
        return (self.written if o == "y" else self.held)(
            (self["N"] if n is None else n, self[f"{o}_ns"]),
            (h, self[f"{o}_rs"]),
            (w, self[f"{o}_cs"]),
            (c, 1),
            size=size,
        )


def size_of(dtype: DimLike) -> DimLike:
    """Bytes of an element of a type known by its number; 8 of one that is not in the table, which
    `limits` refuses.
    """
    out: DimLike = 8
    for t in DType:
        out = D.select(D.equal(dtype, int(t)), t.size, out)
    return out


def _up(n: DimLike, m: int) -> DimLike:
    return D.mul(D.floordiv(n + (m - 1), m), m)


Table = Callable[[Launch], dict[str, Extent]]
_F32 = 4


def _extras(p: Launch, full: Extent, channels: DimLike, rows: DimLike) -> dict[str, Extent]:
    """Operands of an epilogue's program: as large as the result, one for each channel, for each
    row, or one.
    """
    out = {}
    for k in range(4):
        kind = p[f"o{k}_kind"]
        forms = (full, p.line(channels), p.line(rows), p.line(1))
        low, high = forms[3]
        for code in (2, 1, 0):
            low, high = (
                D.select(D.equal(kind, code), forms[code][0], low),
                D.select(D.equal(kind, code), forms[code][1], high),
            )
        out[f"o{k}"] = (low, high)
    return out


def _windows(p: Launch, channels: DimLike) -> Extent:
    """Range of an image that the windows of a convolution read, including its border where kernels
    read that.
    """
    if not p.border:
        planes = D.select(D.equal(p["x_c"], 0), 1, p["x_c"])
        return p.span(
            (p["N"], p["x_ns"]), (p["IH"], p["x_rs"]), (p["IW"], p["x_cs"]), (channels, planes)
        )
    rows, columns = (
        D.mul(p[f"O{a}"] - 1, p[f"S{a}"]) + D.mul(p[f"K{a}"] - 1, p[f"D{a}"]) + 1 for a in "HW"
    )
    low, high = p.span((p["N"], p["x_ns"]), (rows, p["x_rs"]), (columns, p["x_cs"]), (channels, 1))
    some = D.less(0, D.product([D.maximum(p[n], 0) for n in ("N", "OH", "OW")]))
    shift = D.mul(D.mul(p["PT"], p["x_rs"]) + D.mul(p["PL"], p["x_cs"]), p.size)
    return D.select(some, low - shift, 0), D.select(some, high - shift, 0)


def _convolution(
    p: Launch, x: Extent, w: DimLike, height: str = "OH", width: str = "OW"
) -> dict[str, Extent]:
    whole, channels = _up(p["OC"], 16), p["OC"]
    if p.border:  # whole vectors are stored where pixels have room for them
        channels = D.select(D.less(p["y_cs"], whole), channels, whole)
    y = p.image("y", p[height], p[width], channels)
    residual = p.image("r", p["OH"], p["OW"], p["OC"])
    pixels = D.product([p["N"], p["OH"], p["OW"]])
    return {
        "x": x,
        "w": p.line(w),
        "bias": p.line(p["OC"], size=_F32),
        "res": residual,
        "y": y,
        **_extras(p, residual, p["OC"], pixels),
    }


def _even(p: Launch) -> Launch:
    """Winograd's tiles are of 2 x 2 results, those at the edge, too."""
    return replace(p, ints={**p.ints, "OH": _up(p["OH"], 2), "OW": _up(p["OW"], 2)})


def _filters(p: Launch) -> DimLike:
    """Elements of packed filters."""
    g = D.maximum(p["G"], 1)
    columns = D.mul(g, _up(D.floordiv(p["OC"], g), 16)) if p.border else p["OC"]
    return D.product([columns, D.floordiv(p["IC"], g), p["KH"], p["KW"]])


def _depthwise(p: Launch) -> DimLike:
    return D.product([p["KH"], p["KW"], _up(p["OC"], 16) if p.border else p["OC"]])


def _gemm(p: Launch) -> dict[str, Extent]:
    m, n, k = p["M"], p["N"], p["K"]
    columns = p.line(n, size=_F32)
    panels = D.floordiv(k + 63, 64), D.floordiv(n + 63, 64)
    out = {
        "x": p.span((m, p["ldx"]), (k, 1)), "bias": columns,
        "w": p.line(k, _up(n, 32) if p.border else n),
        "res": p.span((m, p["ldr"]), (n, 1)), "y": p.written((m, p["ldy"]), (n, 1)),
        "x_stats": p.line(m, panels[0], 2, size=_F32),
        "r_stats": p.line(m, panels[1], 2, size=_F32),
        "y_stats": p.line(m, panels[1], 2, size=_F32),
        "x_sums": columns, "r_gamma": columns, "r_beta": columns,
    }  # fmt: skip
    for j in range(4):
        full = p.span((m, p[f"o{j}_ld"]), (n, 1))
        out[f"o{j}"] = _extras(p, full, n, m)[f"o{j}"]
    return out


def _pack_gemm(p: Launch, size: DimLike = 0) -> dict[str, Extent]:
    n, k, transposed, ld = p["N"], p["K"], p["trans"], p["ldw"]
    by_row, by_column = p.span((n, ld), (k, 1), size=size), p.span((k, ld), (n, 1), size=size)
    w = (
        D.select(transposed, by_row[0], by_column[0]),
        D.select(transposed, by_row[1], by_column[1]),
    )
    columns = D.maximum(p["N_total"], p["n0"] + n)  # this source fills columns n0..n0+N
    packed = p.line(k, _up(columns, 32) if p.border else columns)
    return {"w": w, "scale": p.line(n, size=_F32), "gamma": p.line(k), "packed": packed}


def _gemm_bf16(p: Launch) -> dict[str, Extent]:
    m, n, k = p["M"], p["N"], p["K"]
    x, r, y = (size_of(p[f"{o}_dtype"]) for o in "xry")
    return {
        **_gemm(p),
        "x": p.span((m, p["ldx"]), (k, 1), size=x),
        "w": p.line(_bf16_columns(n, k), size=2),
        "res": p.span((m, p["ldr"]), (n, 1), size=r),
        "y": p.written((m, p["ldy"]), (n, 1), size=y),
    }


def _conv_bf16(p: Launch) -> dict[str, Extent]:
    x, r, y = (size_of(p[f"{o}_dtype"]) for o in "xry")
    pixels = p["OH"], p["OW"], p["OC"]
    return {
        **_convolution(p, _windows(replace(p, size=x), p["IC"]), 0),
        "w": p.line(_bf16_filters(p), size=2),
        "res": p.image("r", *pixels, size=r),
        "y": p.image("y", *pixels, size=y),
    }


def _bf16_columns(columns: DimLike, depth: DimLike) -> DimLike:
    """Elements of the packed panels of so many columns."""
    return D.mul(_up(columns, 32), _up(depth, 32))


def _bf16_filters(p: Launch) -> DimLike:
    """Elements of packed filters."""
    g = D.maximum(p["G"], 1)
    depth = D.product([D.floordiv(p["IC"], g), p["KH"], p["KW"]])
    return D.mul(g, _bf16_columns(D.floordiv(p["OC"], g), depth))


def _int8_columns(columns: DimLike, depth: DimLike) -> DimLike:
    """Bytes of the packed panels of so many columns, with their sums."""
    return D.mul(_up(columns, 32), _up(depth, 4) + 4)


def _int8_rows(rows: DimLike, depth: DimLike) -> DimLike:
    """Bytes of packed rows on CUDA, with their sums: at least."""
    return D.mul(rows, depth + 4)


def _int8(p: Launch, columns: DimLike) -> dict[str, Extent]:
    one = p.line(1, size=_F32), p.line(1, size=1)
    return {
        **dict.fromkeys(("x_scale", "r_scale", "m_scale", "y_scale"), one[0]),
        **dict.fromkeys(("x_zero", "r_zero", "m_zero", "y_zero"), one[1]),
        "w_scale": p.line(p["w_scales"], size=_F32), "w_zero": p.line(p["w_zeros"], size=1),
        "bias": p.line(columns, size=_F32),
    }  # fmt: skip


def _gemm_int8(p: Launch) -> dict[str, Extent]:
    m, n, k = p["M"], p["N"], p["K"]
    return {
        **_gemm(p),
        **_int8(p, n),
        "x": p.span((m, p["ldx"]), (k, 1), size=1),
        "w": p.line(_int8_columns(n, k) if p.border else _int8_rows(n, k), size=1),
        "res": p.span((m, p["ldr"]), (n, 1), size=size_of(p["r_dtype"])),
        "y": p.written((m, p["ldy"]), (n, 1), size=size_of(p["y_dtype"])),
    }


def _conv_int8(p: Launch, w: DimLike, channels: DimLike) -> dict[str, Extent]:
    """channels: that are read."""
    pixels = p["OH"], p["OW"], p["OC"]
    return {
        **_convolution(p, p.line(0), 0),
        **_int8(p, p["OC"]),
        "x": p.image("x", p["IH"], p["IW"], channels, size=1),
        "w": p.line(w, size=1),
        "res": p.image("r", *pixels, size=size_of(p["r_dtype"])),
        "y": p.image("y", *pixels, size=size_of(p["y_dtype"])),
    }


def _int8_filters(p: Launch) -> DimLike:
    """Bytes of packed filters."""
    g = D.maximum(p["G"], 1)
    depth = D.product([D.floordiv(p["IC"], g), p["KH"], p["KW"]])
    if not p.border:
        return _int8_rows(p["OC"], depth)
    return D.mul(g, _int8_columns(D.floordiv(p["OC"], g), depth))


def _int8_depthwise(p: Launch) -> DimLike:
    if not p.border:
        return D.product([p["OC"], p["KH"], p["KW"]])
    return D.mul(_up(p["OC"], 16), D.mul(_up(p["KH"], 4), p["KW"]) + 4)


def _nbits_words(p: Launch, columns: DimLike, zeros: DimLike) -> DimLike:
    """Four-byte words of packed weights of a few bits."""
    block = D.maximum(D.mul(D.floordiv(p["block"], 16), 16), 16)
    blocks = D.floordiv(p["K"] + block - 1, block)
    piece = D.floordiv(256, D.maximum(p["bits"], 1))
    pieces = D.floordiv(p["K"] + piece - 1, piece)
    terms = D.maximum(D.mul(blocks, block), D.mul(pieces, piece))
    words = D.floordiv(D.mul(terms, p["bits"]), 32) + D.mul(blocks, 1 + D.less(0, zeros))
    return D.mul(_up(columns, 64), words)


def _gemm_nbits(p: Launch) -> dict[str, Extent]:
    return {**_gemm(p), "w": p.line(_nbits_words(p, p["N"], p["zeros"]), size=4)}


def _gemm_nbits_norm(p: Launch) -> dict[str, Extent]:
    columns, k = D.mul(p["N"], p["gated"] + 1), p.line(p["K"])
    return {
        **_gemm(p), "w": p.line(_nbits_words(p, columns, p["zeros"]), size=4),
        "bias": p.line(columns, size=_F32), "gamma": k, "beta": k,
    }  # fmt: skip


def _pack_gemm_nbits(p: Launch) -> dict[str, Extent]:
    n, bits = p["N"], p["bits"]
    block = D.maximum(D.mul(D.floordiv(p["block"], 16), 16), 16)
    blocks = D.floordiv(p["K"] + block - 1, block)

    def packed_bits(*axes: tuple[DimLike, DimLike]) -> Extent:
        low, high = p.span(*axes, size=1)
        return D.floordiv(D.mul(low, bits), 8), D.floordiv(D.mul(high, bits) + 7, 8)

    zeros = (blocks, p["z_k"]), (n, p["z_n"])
    packed, wide = packed_bits(*zeros), p.span(*zeros, size=_F32)
    floats = D.equal(p["zero_dtype"], int(DType.F32))
    scale = D.select(D.equal(p["scale_dtype"], int(DType.F32)), _F32, DType.F16.size)
    return {
        "w": packed_bits((p["K"], p["w_k"]), (n, p["w_n"])),
        "scale": p.span((blocks, p["s_k"]), (n, p["s_n"]), size=scale),
        "zero": (D.select(floats, wide[0], packed[0]), D.select(floats, wide[1], packed[1])),
        "packed": p.line(_nbits_words(p, n, p.present.get("zero", 0)), size=4),
    }


def _pack_gemm_nbits_part(p: Launch) -> dict[str, Extent]:
    words = _nbits_words(p, p["N_total"], p.present.get("zero", 0))
    return {**_pack_gemm_nbits(p), "packed": p.line(words, size=4)}


def _matmul(p: Launch) -> dict[str, Extent]:
    batch = ("0", p["B0"]), ("1", p["B1"])

    def operand(o: str, *axes: tuple[DimLike, DimLike]) -> Extent:
        place = p.written if o == "y" else p.span
        return place(*((n, p[f"{o}_{k}"]) for k, n in batch), *axes)

    m, n, k = p["M"], p["N"], p["K"]
    return {
        "a": operand("a", (m, p["a_m"]), (k, p["a_k"])),
        "b": operand("b", (k, p["b_k"]), (n, p["b_n"])), "bias": p.line(n, size=_F32),
        "res": operand("r", (m, p["ldr"]), (n, 1)), "y": operand("y", (m, p["ldy"]), (n, 1)),
    }  # fmt: skip


def _attention(p: Launch) -> dict[str, Extent]:
    def heads(o: str, rows: str, count: str, width: str) -> Extent:
        return (p.written if o == "y" else p.span)(
            (p["B"], p[f"{o}_b"]), (p[rows], p[f"{o}_s"]), (p[count], p[f"{o}_h"]), (p[width], 1)
        )

    bytes_of = D.select(D.equal(p["mask_kind"], 1), p.size, 1)
    mask = p.span(
        (p["B"], p["m_b"]),
        (p["H"], p["m_h"]),
        (p["S"], p["m_q"]),
        (p["T"], p["m_k"]),
        size=bytes_of,
    )
    return {
        "q": heads("q", "S", "H", "D"),
        "k": heads("k", "T", "KVH", "D"),
        "v": heads("v", "T", "KVH", "DV"),
        "mask": mask,
        "lens": p.line(p["B"], size=size_of(p["lens_dtype"])),
        "sink": p.line(p["H"], size=_F32),
        "y": heads("y", "S", "H", "DV"),
    }


def _cache_write(p: Launch) -> dict[str, Extent]:
    elem, row = p["elem"], (p["B"], p["H"])
    return {
        "past": p.line(*row, p["P"], p["D"], size=elem),
        "x": p.span(
            (p["B"], p["x_b"]), (p["S"], p["x_s"]), (p["H"], p["x_h"]), (p["D"], 1), size=elem
        ),
        "at": p.line(p["B"], size=size_of(p["at_dtype"])),
        "y": p.line(*row, p["T"], p["D"], size=elem),
    }


def _recurrent(p: Launch) -> dict[str, Extent]:
    d, b, units = p["D"], p["B"], _up(p["H"], 32)
    h = (b, p["h_b"]), (d, p["h_d"]), (p["H"], 1)
    gates = D.mul(p["G"], p["H"])
    return {
        "x": p.span((p["T"], p["x_t"]), (b, p["x_b"]), (D.mul(d, gates), 1)),
        "r": p.line(d, p["G"], units, p["H"]),
        "bias": p.span((d, p["bias_d"]), (gates, 1)),
        "peephole": p.line(d, 3, p["H"]),
        "lens": p.line(b, size=4),
        **dict.fromkeys(("h", "c"), p.span(*h)),
        **dict.fromkeys(("y_h", "y_c"), p.written(*h)),
        "y": p.written((p["T"], p["y_t"]), (b, p["y_b"]), (d, p["y_d"]), (p["H"], 1)),
        "state": p.line(4, d, b, units, size=_F32),
    }


def _recurrent_layer(p: Launch) -> dict[str, Extent]:
    d, b, units, gates = p["D"], p["B"], _up(p["H"], 32), p["G"]
    rows = D.mul(4 + D.mul(PROJECTED_STEPS, gates), b) + gates
    return {
        **_recurrent(p),
        "x": p.span((p["T"], p["x_t"]), (b, p["x_b"]), (p["I"], 1)),
        "w": p.line(d, gates, units, p["I"]),
        "bias": p.line(d, 2, gates, p["H"]),
        "state": p.line(d, rows, units, size=_F32),
    }


def _layernorm(p: Launch) -> dict[str, Extent]:
    rows, row = p.line(p["rows"], p["N"]), p.line(p["N"])
    return {
        "x": rows,
        "res": rows,
        "y": rows,
        "skip": rows,
        "xbias": row,
        "gamma": row,
        "beta": row,
    }


def _layernorm_sum(p: Launch) -> dict[str, Extent]:
    n = p["N"]
    rows, row = p.line(p["outer"], p["inner"], n), p.line(n)
    out = {"y": rows, "skip": rows, "gamma": row, "beta": row}
    for k in range(4):
        count = D.maximum(D.minimum(p[f"x{k}_hi"], p["inner"]) - p[f"x{k}_lo"], 0)
        steps = ((p["outer"], p[f"x{k}_o"]), (count, p[f"x{k}_i"]))
        direct, table, indexed = (
            p.span(*steps, (n, 1)),
            p.span((p[f"x{k}_n"], p[f"x{k}_ld"]), (n, 1)),
            p.present.get(f"i{k}", 0),
        )
        out[f"x{k}"] = (
            D.select(indexed, table[0], direct[0]),
            D.select(indexed, table[1], direct[1]),
        )
        out[f"i{k}"] = p.span(*steps, size=size_of(p[f"i{k}_dtype"]))
    return out


def _groupnorm(p: Launch) -> dict[str, Extent]:
    whole, channels = p.line(p["B"], p["C"], p["inner"]), p.line(p["C"])
    return {"x": whole, "y": whole, "gamma": channels, "beta": channels}


def _images(p: Launch, **more: Extent) -> dict[str, Extent]:
    """x and y of one size."""
    return {o: p.image(o, p["H"], p["W"], p["C"]) for o in "xy"} | more


def _resized(p: Launch) -> dict[str, Extent]:
    return {
        "x": p.image("x", p["IH"], p["IW"], p["C"]),
        "y": p.image("y", p["OH"], p["OW"], p["C"]),
    }


def _resampled(p: Launch) -> dict[str, Extent]:
    """Of an image without pixels nothing can be made: kernels would read beside its edge."""

    def pixels(*names: str) -> DimLike:
        return D.product([D.maximum(p[n], 0) for n in names])

    out = _resized(p)
    low, high = out["x"]
    some, from_nothing = D.less(0, pixels("N", "OH", "OW", "C")), D.less(pixels("IH", "IW"), 1)
    return {**out, "x": (low, D.select(D.mul(some, from_nothing), LARGEST, high))}


def _rows_of(
    p: Launch, x: DimLike, y: DimLike, x_size: DimLike = 0, y_size: DimLike = 0
) -> dict[str, Extent]:
    return {
        "x": p.line(p["outer"], x, p["inner"], size=x_size),
        "y": p.line(p["outer"], y, p["inner"], size=y_size),
    }


def _pointwise(p: Launch) -> dict[str, Extent]:
    counts = [p[f"n{d}"] for d in range(6)]
    out = {
        f"x{k}": p.span(
            *((n, p[f"x{k}_{d}"]) for d, n in enumerate(counts)), size=size_of(p[f"x{k}_dtype"])
        )
        for k in range(6)
    }
    return out | {"y": p.line(*counts, size=size_of(p["y_dtype"]))}


def _pointwise_nhwc(p: Launch) -> dict[str, Extent]:
    out = {"y": p.image("y", p["H"], p["W"], p["C"])}
    for k in range(4):
        kind = p[f"x{k}_kind"]
        full = p.image(f"x{k}", p["H"], p["W"], p["C"])
        channel = p.span((p["N"], p[f"x{k}_ns"]), (p["C"], 1))
        wide = p.span((p["N"], p[f"x{k}_ns"]), (p["C"], 1), size=_F32)
        low, high = p.line(1)
        for code, form in ((4, wide), (1, channel), (0, full)):
            low, high = (
                D.select(D.equal(kind, code), form[0], low),
                D.select(D.equal(kind, code), form[1], high),
            )
        out[f"x{k}"] = (low, high)
    return out


def _copy(p: Launch) -> dict[str, Extent]:
    return {
        o: place(*((p[f"n{d}"], p[f"{o}{d}"]) for d in range(6)), size=p["elem"])
        for o, place in (("x", p.span), ("y", p.written))
    }


def _copies(p: Launch) -> dict[str, Extent]:
    out = {}
    for k in range(COPIES):
        out[f"x{k}"] = p.span(
            *((p[f"p{k}_n{d}"], p[f"p{k}_x{d}"]) for d in range(3)), size=p["elem"]
        )
    return out


def _pad(p: Launch) -> dict[str, Extent]:
    return {
        o: place(*((p[f"{c}{d}"], p[f"{o}{d}"]) for d in range(PADDED)), size=p["elem"])
        for o, c, place in (("x", "m", p.span), ("y", "n", p.written))
    }


def _zero_border(p: Launch) -> dict[str, Extent]:
    low, high = p.written(
        (p["N"], p["y_ns"]),
        (p["H"] + p["PT"] + p["PB"], p["y_rs"]),
        (p["W"] + p["PL"] + p["PR"], p["y_cs"]),
        (p["y_cs"], 1),
    )
    shift = D.mul(D.mul(p["PT"], p["y_rs"]) + D.mul(p["PL"], p["y_cs"]), p.size)
    some = D.less(low, high)
    return {"y": (D.select(some, low - shift, 0), D.select(some, high - shift, 0))}


def _rope_cache(p: Launch) -> dict[str, Extent]:
    width = D.maximum(p["D"], D.mul(D.floordiv(p["rot"], 2), 2))

    def rows(o: str, heads: DimLike) -> Extent:
        axes = (p["B"], p[f"{o}_b"]), (p["S"], p[f"{o}_s"]), (heads, p[f"{o}_h"])
        return p.span(*axes, (width, 1))

    half, places = D.floordiv(p["rot"], 2), p["places"]
    by_token = p.span((p["B"], p["c_b"]), (p["S"], p["c_s"]), (half, 1))
    by_place = p.span((places, p["c_s"]), (half, 1))
    table = (
        D.select(places, by_place[0], by_token[0]), D.select(places, by_place[1], by_token[1]),
    )  # fmt: skip
    old, new = (p.line(p["B"], p["KVH"], p[rows_], width) for rows_ in "PT")
    return {
        "q": rows("q", p["H"]), "k": rows("k", p["KVH"]), "v": rows("v", p["KVH"]),
        "cos": table, "sin": table, "past_k": old, "past_v": old,
        "at": p.line(p["B"], size=size_of(p["at_dtype"])),
        "y": p.line(p["B"], p["S"], p["H"], width), "keys": new, "values": new,
    }  # fmt: skip


def _rope(p: Launch) -> dict[str, Extent]:
    width = D.select(p["full"], p["rot"], D.floordiv(p["rot"], 2))
    table = p.span((p["B"], p["c_b"]), (p["S"], p["c_s"]), (width, 1))
    row = D.maximum(p["D"], D.mul(D.floordiv(p["rot"], 2), 2))
    parts = {
        o: place((p["B"], p[f"{o}_b"]), (p["S"], p[f"{o}_s"]), (p["H"], p[f"{o}_h"]), (row, 1))
        for o, place in (("x", p.span), ("y", p.written))
    }
    return {**parts, "cos": table, "sin": table}


def _gathered(p: Launch, idx: DimLike, y: DimLike) -> dict[str, Extent]:
    elem = p["elem"]
    x = p.line(p["outer"], p["n"], p["inner"], size=elem)
    return {"x": x, "idx": p.line(idx, size=size_of(p["idx_dtype"])), "y": p.line(y, size=elem)}


def _dequantise(p: Launch) -> dict[str, Extent]:
    """Scales are of the lines that the elements begin."""
    bits, count = p["bits"], D.product([p["outer"], p["n"], p["inner"]])

    def packed(n: DimLike) -> Extent:
        low, high = p.line(n, size=1)
        return low, D.floordiv(D.mul(high, bits) + 7, 8)

    line = D.mul(p["span"], p["within"])
    lines = D.floordiv(count + line - 1, D.maximum(line, 1))
    blocks = D.floordiv(p["span"] + p["block"] - 1, D.maximum(p["block"], 1))
    scales, row = D.product([lines, blocks, p["within"]]), D.maximum(p["zero_row"], 1)
    per = D.floordiv(8, D.maximum(bits, 1))
    zeros = D.product([D.floordiv(scales + row - 1, row), D.floordiv(row + per - 1, per), per])
    return {
        "x": packed(count),
        "idx": p.line(p["count"], size=size_of(p["idx_dtype"])),
        "scale": p.line(scales, size=size_of(p["scale_dtype"])),
        "zero": packed(zeros),
        "y": p.line(p["outer"], p["count"], p["inner"], size=size_of(p["y_dtype"])),
    }


def _fft(p: Launch) -> dict[str, Extent]:
    def numbers(o: str, count: str, real: int) -> Extent:
        pairs = D.select(D.equal(p["kind"], real), 1, 2)
        return (p.written if o == "y" else p.span)(
            (p["B"], p[f"{o}_b"]), (p["M"], p[f"{o}_m"]), (p[count], p[f"{o}_n"]), (pairs, 1)
        )

    return {
        "x": numbers("x", "T", 1), "window": p.line(p["N"]),
        "tables": p.line(p["C"], size=_F32), "y": numbers("y", "K", 2),
    }  # fmt: skip


def _six(p: Launch) -> list[DimLike]:
    return [p[f"n{d}"] for d in range(6)]


def _five(p: Launch, letter: str) -> list[DimLike]:
    return [p[f"{letter}{k}"] for k in range(5)]


def _pointed(p: Launch, indices: DimLike, *more: tuple[DimLike, DimLike]) -> Extent:
    """Elements that so many indices may point to: an extent of 0 says nothing of the other ones,
    some of which no index may be for.
    """
    extents = (D.maximum(m, 1) for m in _five(p, "m"))
    low, high = p.span(*zip(extents, _five(p, "s"), strict=True), *more, size=p["elem"])
    return D.select(D.less(0, indices), low, 0), D.select(D.less(0, indices), high, 0)


def _along(p: Launch, o: str) -> dict[str, Extent]:
    """Elements along an axis: indices and updates are contiguous; the tensor they point into has
    extents m and strides s.
    """
    tensor = _pointed(p, D.product(_five(p, "n")))
    indices, others = (
        p.line(*_five(p, "n"), size=size_of(p["idx_dtype"])),
        p.line(*_five(p, "n"), size=p["elem"]),
    )
    return {
        "idx": indices,
        **({"x": tensor, "y": others} if o == "x" else {"y": tensor, "u": others}),
    }


def _tuples(p: Launch, o: str) -> dict[str, Extent]:
    """Rows by tuples of indices: where extents m and strides s lead, in every batch."""
    batches = D.floordiv(p["count"] - 1, D.maximum(p["each"], 1)) + 1 if o == "x" else 1
    return {
        "idx": p.line(p["count"], p["k"], size=size_of(p["idx_dtype"])),
        ("y" if o == "x" else "u"): p.line(p["count"], p["inner"], size=p["elem"]),
        o: _pointed(p, p["count"], (batches, p["step"]), (p["inner"], 1)),
    }


def _taps(p: Launch) -> tuple[DimLike, ...]:
    """The taps of all windows."""
    return tuple(p[k] for k in ("N", "OH", "OW", "KH", "KW"))


_TABLE: dict[str, Table] = {
    "conv2d": lambda p: _convolution(p, _windows(p, p["IC"]), _filters(p)),
    "conv_pool": lambda p: _convolution(p, _windows(p, p["IC"]), _filters(p), "PH", "PW"),
    "conv2d_wino": lambda p: _convolution(p, _windows(_even(p), p["IC"]),
        D.product([16, p["IC"], _up(p["OC"], 16)])),
    "conv2d_dw": lambda p: _convolution(p, _windows(p, p["OC"] if p.border else p["IC"]),
        _depthwise(p)),
    "deconv2d_dw": lambda p: _convolution(p, p.image("x", p["IH"], p["IW"], p["IC"]),
        _depthwise(p)),
    "deconv2d": lambda p: _convolution(p, p.image("x", p["IH"], p["IW"], p["IC"]), _filters(p)),
    "pack_conv2d": lambda p: {
        "w": p.line(p["OC"], D.floordiv(p["IC"], D.maximum(p["G"], 1)), p["KH"], p["KW"]),
        "scale": p.line(p["OC"], size=_F32), "packed": p.line(_filters(p)),
    },
    "pack_conv2d_wino": lambda p: {
        "w": p.line(p["OC"], p["IC"], 9), "scale": p.line(p["OC"], size=_F32),
        "packed": p.line(16, p["IC"], _up(p["OC"], 16)),
    },
    "pack_conv2d_dw": lambda p: {"w": p.line(p["OC"], p["KH"], p["KW"]),
        "scale": p.line(p["OC"], size=_F32), "packed": p.line(_depthwise(p))},
    "pack_deconv2d": lambda p: {
        "w": p.line(p["IC"], D.floordiv(p["OC"], D.maximum(p["G"], 1)), p["KH"], p["KW"]),
        "scale": p.line(p["OC"], size=_F32), "packed": p.line(_filters(p)),
    },
    "pack_bias": lambda p: {
        "b": p.line(p["OC"]), "scale": p.line(p["OC"], size=_F32),
        "shift": p.line(p["OC"], size=_F32), "packed": p.line(_up(p["OC"], 16), size=_F32),
    },
    "fold_bn": lambda p: {**dict.fromkeys(("gamma", "beta", "mean", "var"), p.line(p["C"])),
        **dict.fromkeys(("scale", "shift"), p.line(p["C"], size=_F32))},
    "pool2d": _resized, "resize2d": _resampled, "resize_cubic": _resampled, "lrn": _images,
    "copy_nhwc": _images,
    "grid_sample": lambda p: {**_resampled(p),
        "grid": p.line(p["N"], p["OH"], p["OW"], 2, size=size_of(p["grid_dtype"]))},
    "roi_align": lambda p: {"x": p.image("x", p["IH"], p["IW"], p["C"]),
        "y": p.image("y", p["OH"], p["OW"], p["C"], p["R"]), "rois": p.line(p["R"], 4),
        "batch": p.line(p["R"], size=8)},
    "deform_columns": lambda p: {"x": p.image("x", p["IH"], p["IW"], p["C"]),
        "offset": p.line(*_taps(p), p["DG"], 2), "mask": p.line(*_taps(p), p["DG"]),
        "y": p.line(*_taps(p), p["C"])},
    "determinant": lambda p: {"x": p.line(p["count"], p["n"], p["n"]), "y": p.line(p["count"])},
    "global_pool": lambda p: {"x": p.image("x", p["H"], p["W"], p["C"]),
        "y": p.written((p["N"], p["y_ns"]), (p["C"], 1))},
    "nchw_to_nhwc": lambda p: {"x": p.line(p["N"], p["C"], p["H"], p["W"]),
        "y": p.image("y", p["H"], p["W"], p["C"])},
    "nhwc_to_nchw": lambda p: {"x": p.image("x", p["H"], p["W"], p["C"]),
        "y": p.line(p["N"], p["C"], p["H"], p["W"])},
    "zero_border": _zero_border, "pointwise_nhwc": _pointwise_nhwc, "gemm": _gemm,
    "gemm_norm": _gemm, "pack_gemm": _pack_gemm, "gemm_nbits": _gemm_nbits,
    "gemm_nbits_norm": _gemm_nbits_norm,
    "pack_gemm_nbits": _pack_gemm_nbits, "pack_gemm_nbits_part": _pack_gemm_nbits_part,
    "ends": lambda p: {"x": p.line(p["n"]), "y": p.line(2, p["pieces"])},
    "quantise_dynamic": lambda p: {"x": p.line(p["n"]), "ends": p.line(2, p["pieces"]),
        "y": p.line(p["n"], size=1), "scale": p.line(1), "zero": p.line(1, size=1)},
    "fold_norm": lambda p: {
        "w": _pack_gemm(p)["w"], "packed": p.line(p["K"], p["N"]), "beta": p.line(p["K"]),
        "b": p.line(p["N"]), "sums": p.line(p["N"], size=_F32),
        "bias": p.line(p["N"], size=_F32),
    },
    "gemm_bf16": _gemm_bf16, "conv2d_bf16": _conv_bf16,
    "pack_gemm_bf16": lambda p: {
        "w": _pack_gemm(p, size_of(p["w_dtype"]))["w"],
        "packed": p.line(
            _bf16_columns(D.maximum(p["N_total"], p["n0"] + p["N"]), p["K"]), size=2)},
    "pack_conv2d_bf16": lambda p: {
        "w": p.line(p["OC"], D.floordiv(p["IC"], D.maximum(p["G"], 1)), p["KH"], p["KW"],
            size=size_of(p["w_dtype"])),
        "scale": p.line(p["OC"], size=_F32), "packed": p.line(_bf16_filters(p), size=2)},
    "gemm_int8": _gemm_int8, "conv2d_int8": lambda p: _conv_int8(p, _int8_filters(p), p["IC"]),
    "conv_pool_int8": lambda p: {
        **_conv_int8(p, _int8_filters(p), p["IC"]),
        "y": p.image("y", p["PH"], p["PW"], p["OC"], size=size_of(p["y_dtype"]))},
    "conv2d_int8_dw": lambda p: _conv_int8(p, _int8_depthwise(p), p["OC"]),
    "quantise_image": lambda p: {
        "x": p.span((p["N"], p["x_n"]), (p["C"], p["x_c"]), (p["H"], p["x_h"]), (p["W"], p["x_w"])),
        "scale": p.line(1, size=_F32), "zero": p.line(1, size=1),
        "y": p.line(p["N"], p["rows"], p["columns"], p["P"], size=1)},
    "global_mean_int8": lambda p: {
        **{o: e for o, e in _int8(p, 0).items() if o[:2] in ("x_", "y_")},
        "x": p.image("x", p["H"], p["W"], p["C"], size=1),
        "y": p.written((p["N"], p["y_ns"]), (p["C"], 1), size=size_of(p["y_dtype"]))},
    "pack_gemm_int8": lambda p: {
        "w": _pack_gemm(p, 1)["w"],
        "packed": p.line(
            _int8_columns(D.maximum(p["N_total"], p["n0"] + p["N"]), p["K"]), size=1)},
    "pack_conv2d_int8": lambda p: {
        "w": p.line(p["OC"], D.floordiv(p["IC"], D.maximum(p["G"], 1)), p["KH"], p["KW"], size=1),
        "packed": p.line(_int8_filters(p), size=1)},
    "pack_conv2d_int8_dw": lambda p: {"w": p.line(p["OC"], p["KH"], p["KW"], size=1),
        "packed": p.line(_int8_depthwise(p), size=1)},
    "matmul": _matmul, "attention": _attention, "layernorm": _layernorm, "recurrent": _recurrent,
    "attention_quantised": lambda p: {
        **_attention(p), "y": p.line(p["B"], p["S"], p["H"], p["DV"], size=1)},
    "layernorm_quantised": lambda p: {
        **_layernorm(p), "q": p.line(p["rows"], p["N"], size=1)},
    "recurrent_layer": _recurrent_layer,
    "pack_recurrent": lambda p: {
        "r": p.line(p["D"], p["G"], p["H"], p["K"]),
        "packed": p.line(p["D"], p["G"], _up(p["H"], 32), p["K"]),
    },
    "layernorm_sum": _layernorm_sum, "groupnorm": _groupnorm,
    "groupnorm_nhwc": lambda p: _images(p, gamma=p.line(p["C"]), beta=p.line(p["C"])),
    "softmax": lambda p: _rows_of(p, p["n"], p["n"]),
    "cumsum": lambda p: _rows_of(p, p["n"], p["n"], size_of(p["dtype"]), size_of(p["dtype"])),
    "reduce": lambda p: _rows_of(p, p["n"], 1, size_of(p["dtype"]), size_of(p["dtype"])),
    "argmax": lambda p: _rows_of(p, p["n"], 1, size_of(p["dtype"]), 8),
    "topk": lambda p: {**_rows_of(p, p["n"], p["k"], size_of(p["dtype"]), size_of(p["dtype"])),
        "at": p.line(p["outer"], p["k"], p["inner"], size=8)},
    "nonzero": lambda p: {"x": p.line(*_six(p), size=size_of(p["dtype"])),
        "y": p.line(p["rank"], *_six(p), size=8), "count": p.line(1, size=8)},
    "compress": lambda p: {"x": p.line(p["outer"], p["n"], p["inner"], size=p["elem"]),
        "condition": p.line(p["length"], size=1), "count": p.line(1, size=8),
        "y": p.line(p["outer"], D.minimum(p["n"], p["length"]), p["inner"], size=p["elem"])},
    "unique": lambda p: {**_rows_of(p, p["n"], p["n"], size_of(p["dtype"]), size_of(p["dtype"])),
        **dict.fromkeys(("first", "inverse", "counts"), p.line(p["n"], size=8)),
        "count": p.line(1, size=8)},
    "nms": lambda p: {"boxes": p.line(p["B"], p["N"], 4), "scores": p.line(p["B"], p["C"], p["N"]),
        "picked": p.line(p["B"], p["C"], p["most"], size=8),
        "counts": p.line(p["B"], p["C"], size=8)},
    "nms_list": lambda p: {"picked": p.line(p["B"], p["C"], p["most"], size=8),
        "counts": p.line(p["B"], p["C"], size=8), "count": p.line(1, size=8),
        "y": p.line(p["B"], p["C"], p["most"], 3, size=8)},
    "squeeze_excite": lambda p: _images(
        p, w1=p.line(p["R"], p["C"]), w2=p.line(p["R"], p["C"]), b1=p.line(p["R"], size=_F32),
        b2=p.line(p["C"], size=_F32)
    ),
    "fft": _fft,
    "copy": _copy, "copies": _copies, "pad": _pad, "rope": _rope,
    "rope_cache": _rope_cache, "pointwise": _pointwise,
    "fill": lambda p: {"y": p.line(p["count"], size=p["elem"])},
    "store_ints": lambda p: {"y": p.line(p["count"], size=size_of(p["dtype"]))},
    "range": lambda p: {"y": p.line(p["count"], size=size_of(p["dtype"]))},
    "gather": lambda p: _gathered(p, p["count"], D.product([p["outer"], p["count"], p["inner"]])),
    "gather_elements": lambda p: _gathered(p, D.product([p["outer"], p["count"], p["inner"]]),
        D.product([p["outer"], p["count"], p["inner"]])),
    "gather_along": lambda p: _along(p, "x"), "scatter_along": lambda p: _along(p, "u"),
    "gather_tuples": lambda p: _tuples(p, "x"),
    "scatter_tuples": lambda p: _tuples(p, "y"),
    "cache_write": _cache_write, "dequantise": _dequantise,
    "one_hot": lambda p: {
        "idx": p.line(p["outer"], p["inner"], size=size_of(p["idx_dtype"])),
        "values": p.line(2, size=p["elem"]),
        "y": p.line(p["outer"], p["depth"], p["inner"], size=p["elem"]),
    },
    "triangle": lambda p: dict.fromkeys("xy",
        p.line(p["outer"], p["rows"], p["columns"], size=p["elem"])),
}  # fmt: skip


def extents(
    family: str,
    ints: Mapping[str, DimLike],
    present: Mapping[str, DimLike],
    size: int,
    *,
    border: bool,
) -> dict[str, Extent]:
    """Byte range that a launch may touch, of each operand. size: bytes of an element of the main
    type; present: 1 for each operand that is there. border: convolutions read the zeros around
    their images. Operands without an entry have no bound here (what indices reach is compared by
    the kernel).
    """
    return extents_of(family, Launch(ints, present, size, border))


def extents_of(family: str, launch: Launch) -> dict[str, Extent]:
    """The same of a launch that may count in another way."""
    found = _TABLE[family](launch)
    names = {o.rstrip("?") for o in FAMILIES[family].operands}
    return {o: e for o, e in found.items() if o in names}


# --- repeats --------------------------------------------------------------------------------------

#: How often a launch may go over the same elements: more than any product over what was repeated.
MOST_REPEATS = 1 << 16

#: What launches write. Of a scattering, indices count for it: they are looked at in any case.
_RESULTS = frozenset({"y", "y_h", "y_c", "at", "skip", "packed"})
_OTHER_RESULTS = {
    "fold_bn": frozenset({"scale", "shift"}),
    "fold_norm": frozenset({"sums", "bias"}),
    "nms": frozenset({"picked", "counts"}),
    **dict.fromkeys(("nonzero", "compress", "unique", "nms_list"), frozenset({"y", "count"})),
    **dict.fromkeys(("scatter_along", "scatter_tuples"), frozenset({"y", "idx"})),
    "cache_write": frozenset({"y"}),
    "rope_cache": frozenset({"y", "keys", "values"}),
    "quantise_dynamic": frozenset({"y", "scale", "zero"}),
}


def results(family: str) -> frozenset[str]:
    """Operands of which one has elements, or else a launch has nothing to do."""
    return _OTHER_RESULTS.get(family, _RESULTS)


#: Written beside results, or read though they count as some.
_ALSO_WRITTEN = {
    "unique": frozenset({"first", "inverse", "counts"}),
    **dict.fromkeys(("recurrent", "recurrent_layer"), frozenset({"state"})),
}
_READ = frozenset({"idx"})


def written(family: str) -> frozenset[str]:
    """Operands that a launch writes: all others are only read."""
    names = results(family) - _READ | _ALSO_WRITTEN.get(family, frozenset())
    return names & set(FAMILIES[family].names)


#: A loop of a kernel: its trips, and whether an operand has an element for each of them.
Loop = tuple[DimLike, DimLike]


def _some(*counts: DimLike) -> DimLike:
    """Whether there are elements."""
    return D.less(0, D.product([D.maximum(n, 0) for n in counts]))


def _either(a: DimLike, b: DimLike) -> DimLike:
    return D.select(a, 1, D.select(b, 1, 0))


def _both(a: DimLike, b: DimLike) -> DimLike:
    return D.select(a, D.select(b, 1, 0), 0)


def _filter_loops(p: Launch) -> list[Loop]:
    """Filters of no channels have no elements."""
    channels = D.floordiv(p["IC"], D.maximum(p["G"], 1))
    return [(D.mul(p["KH"], p["KW"]), _some(channels))]


def _pooled_loops(p: Launch, rows: DimLike, columns: DimLike, h: str, w: str) -> list[Loop]:
    return [(rows, _both(p["x_rs"], _some(p[w]))), (columns, _both(p["x_cs"], _some(p[h])))]


#: The loops that go over what no result has elements for. All other loops of a kernel are over
#: elements of results, which have a place each, or of packed weights.
_LOOPS: dict[str, Callable[[Launch], list[Loop]]] = {
    **dict.fromkeys(
        (
            "conv2d",
            "conv2d_bf16",
            "deconv2d",
            "conv2d_int8",
            "conv_pool_int8",
            "pack_conv2d_bf16",
            "pack_conv2d_int8",
        ),
        _filter_loops,
    ),
    "matmul": lambda p: [(p["K"], _either(p["a_k"], p["b_k"]))],
    "attention": lambda p: [(p["T"], _either(p["v_s"], _both(p["k_s"], _some(p["D"]))))],
    "pool2d": lambda p: _pooled_loops(p, D.minimum(p["KH"], p["IH"]), p["IW"], "IH", "IW"),
    **dict.fromkeys(
        ("global_pool", "global_mean_int8"), lambda p: _pooled_loops(p, p["H"], p["W"], "H", "W")
    ),
    "recurrent_layer": lambda p: [
        (p["T"], _either(p.present.get("y", 0), _both(p["x_t"], _some(p["I"]))))
    ],
}


def repeats(family: str, ints: Mapping[str, DimLike], present: Mapping[str, DimLike]) -> DimLike:
    """How often a launch that writes something goes over the same elements: the trips of its loops
    in which no operand moves, multiplied. A launch of a Plan that was lowered does so where a
    model repeats one element along a sum; in one that was changed strides of 0 fit any trips.
    """
    loops = _LOOPS[family](Launch(ints, present, 4, True)) if family in _LOOPS else []
    return D.product([D.select(moves, 1, D.maximum(trips, 1)) for trips, moves in loops])


# --- parameters -----------------------------------------------------------------------------------

#: Parameters that a kernel divides by, or that count: at least 1.
_POSITIVE = frozenset(
    {
        "SH",
        "SW",
        "DH",
        "DW",
        "KH",
        "KW",
        "G",
        "DG",
        "KVH",
        "elem",
        "bits",
        "size",
        "PKH",
        "PKW",
        "w_scales",
        "w_zeros",
    }
)
#: Parameters that are bytes, or bits, of an element: 1, 2, 4 or 8.
WIDTHS = ("elem", "bits")
#: Parameters that are a number of a list, by how many there are.
_CODES = {
    "act": 16,
    "res_mode": 3,
    "coord": 4,
    "rounding": 5,
    "mask_kind": 4,
    **{f"act_{gate}": 16 for gate in "fgh"},
    **{f"o{k}_kind": 4 for k in range(4)},
    **{f"x{k}_kind": 5 for k in range(4)},
}
#: Groups of channels: the first is a multiple of the second.
_MULTIPLES = {("OC", "G"), ("IC", "G"), ("C", "G"), ("C", "DG"), ("H", "KVH")}
#: The largest size of anything.
LARGEST = 1 << 60
#: Samples along one side of a bin of RoiAlign.
MOST_SAMPLES = 1 << 8
#: Parameters that are values, not sizes.
_VALUES = frozenset({"value", "start", "delta", *(f"v{k}" for k in range(8))})
#: Parameters that count something.
_COUNTS = frozenset({
    "N", "C", "H", "W", "IC", "OC", "IH", "IW", "OH", "OW", "M", "K", "B", "S", "T", "D", "DV", "R",
    "B0", "B1", "rows", "places", "inner", "outer", "n", "length", "most", "P", "window",
    "I", "count", "k", "depth", "columns", "each", "rot", "N_total", "PT", "PL", "PB", "PR", "PH",
    "PW", "PPT", "PPL", *(f"{c}{d}" for c in "mn" for d in range(6)),
})  # fmt: skip


def types(family: str) -> dict[str, frozenset[int]]:
    """The element types that a kernel can take, by the parameters of which the kernel reads other
    numbers as one of them.
    """
    indices, numbers = {int(DType.I32), int(DType.I64)}, {int(DType.F32)}
    known = {
        "idx_dtype": indices,
        **{f"i{k}_dtype": indices | {0} for k in range(4)},  # 0: of an operand that is not there
        "at_dtype": indices,
        "lens_dtype": indices | {0},
        "grid_dtype": numbers,
        "dtype": indices | ({int(DType.BOOL)} if family == "store_ints" else numbers),
    }
    if family == "dequantise":
        floats = {int(t) for t in (DType.F32, DType.F16, DType.BF16)}
        known |= {"scale_dtype": floats, "y_dtype": floats}
    if family.endswith("_bf16"):
        halfs = numbers | {int(DType.BF16)}
        known |= dict.fromkeys(("x_dtype", "w_dtype", "r_dtype", "y_dtype"), halfs)
    if family == "pack_gemm_nbits":
        known["scale_dtype"] = numbers
    if family == "nonzero":
        known["dtype"] |= {int(DType.U8), int(DType.BOOL)}
    if family == "unique":
        known["dtype"] -= {int(DType.I32)}
    return {n: frozenset(known[n]) for n in FAMILIES[family].ints if n in known}


def limits(family: str) -> tuple[dict[str, tuple[int, int]], list[tuple[str, str]]]:
    """For each parameter of a family the least and the largest value, and pairs of which the first
    is a multiple of the second.
    """
    names = FAMILIES[family].ints
    ranges = {}
    for n in names:
        if n in _VALUES:
            continue
        # pixels of an image lie one behind the other
        counts = n in _COUNTS or n in _CODES or n.endswith("_cs")
        least = 1 if n in _POSITIVE else 0 if counts else -LARGEST
        ranges[n] = (least, _CODES[n] - 1 if n in _CODES else 8 if n in WIDTHS else LARGEST)
    ranges |= {n: (1, FARTHEST) for n in ("KH", "KW", "SH", "SW", "DH", "DW") if n in names}
    if family == "conv2d_wino":  # windows of 3 x 3 next to each other
        ranges |= dict.fromkeys(("G", "SH", "SW", "DH", "DW"), (1, 1))
        ranges |= dict.fromkeys(("KH", "KW"), (3, 3))
    if family == "store_ints":
        ranges["count"] = (0, 8)
    if family == "reduce":
        ranges["kind"] = (0, 9)
    if family in ("ends", "quantise_dynamic"):
        ranges["pieces"] = (1, 1 << 10)
    if family == "nonzero":
        ranges["rank"] = (1, 6)
    if "recurrent" in family:
        ranges["G"], ranges["D"] = (1, 4), (1, 2)
    if family == "pack_recurrent":
        ranges["first"] = (1, 4)
    if family.startswith("recurrent"):  # tasks count what they have done in 32 bits
        ranges["T"] = (0, 1 << 24)
    if family == "fft":
        ranges |= {"kind": (0, 2), "N": (1, 1 << 24)}
        ranges |= {f"radix{k}": (1, 16) for k in range(PASSES)}
    if family == "roi_align":
        ranges |= {"mode": (0, 1), "ratio": (0, MOST_SAMPLES)}
    if "nbits" in family:
        ranges |= {"bits": (2, 8), "block": (16, 1 << 24)}
    if family == "dequantise":
        ranges |= dict.fromkeys(("span", "within", "block", "zero_row"), (1, LARGEST))
        ranges |= {"bits": (2, 8), "middle": (0, 255)}
    if family.startswith("gemm_nbits"):
        ranges["zeros"] = (0, 2)
    if family.endswith("_along"):
        ranges["axis"] = (0, 4)
    if family.endswith("_tuples"):
        ranges["k"] = (0, 5)
    return ranges, [(a, b) for a, b in sorted(_MULTIPLES) if a in names and b in names]
