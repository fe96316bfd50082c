"""Depthwise convolutions: one or a few outputs per thread in small launches and transposed
convolutions (`direct.cuh`), else threads process strips of the image (`strips.cuh`). Packed weights
are [KH * KW, round_up(C, 8)].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ...common.epilogue import Parameter
from ...common.instantiate import ints, pointer, sizes
from ...common.launch import known, resolve, size_hint
from ...cost.fitted import fitted
from ...gemm import select
from .. import problem
from ..problem import window

_THREADS = 128
#: Least threads per SM for which a thread of `direct.cuh` computes more than one output; least FMAs
#: per SM for which strips pay (half of them in f32 with more than 9 taps).
_FILL, _STRIPS_FROM = 192, 65536
#: Most bytes of weights that a thread reads into registers before griddepcontrol.wait; they limit
#: the channels of a thread.
_EARLY = 400
#: Taps beyond which a thread processes the window row by row.
_LARGE = 121
#: Batches that lengths of strips are chosen for where the batch is symbolic; the next larger one
#: applies.
_BATCHES = (4, 8, 16, 32)
#: With symbolic image sizes: a width of strips also serves more pixels up to this factor of their
#: least clocks.
_ALIKE = 1.05


def convolution(r: Request) -> list[Kernel]:
    i = r.ints
    kh, kw = window(r)[:2]
    if len(D.symbols(select.pixels(r))) > 1 and not (
        isinstance(i["OH"], int) and isinstance(i["OW"], int)
    ):
        return _of_any_size(r)
    batch = size_hint(i["N"], -1)
    usual = _BATCHES[-1] if batch < 0 else batch
    if next(_divisions(r, usual), None) is None:  # of neighbouring outputs a thread can have few
        columns, lines = _neighbouring_outputs(r)
        use_strips = (
            1
            if kh * kw > _LARGE
            else resolve(D.sub(1, D.less(_threads(r, columns, lines, _width(r)), r.sms * _FILL)))
        )
        kernels = [single(r, columns, lines, use_strips)] if use_strips != 0 else []
    else:
        use_strips = resolve(_use_strips(r))
        tile = choose(r, usual) if use_strips != 0 else None
        kernels = (
            [strips(r, tile, _lines(r, tile) if batch < 0 else tile.lines, use_strips)]
            if tile is not None
            else []
        )
    return kernels if use_strips == 1 else [*kernels, single(r, 1, 1, D.sub(1, use_strips))]


def _use_strips(r: Request) -> DimLike:
    """1 if the launch is large enough for strips, else 0."""
    kh, kw = window(r)[:2]
    least = _STRIPS_FROM // (2 if r.dtype == DType.F32 and kh * kw > 9 else 1)
    return D.sub(
        1, D.less(D.mul(select.pixels(r), select.static(r, "OC") * kh * kw), r.sms * least)
    )


def _of_any_size(r: Request) -> list[Kernel]:
    """Kernels for symbolic image sizes: a width of strips for each range of pixels."""
    pixels, use_strips = select.pixels(r), _use_strips(r)

    def price(m: int) -> dict[Strips | None, float]:
        costs: dict[Strips | None, float] = {}
        for t, cost in _divisions(r, size_hint(r.ints["N"], 1)):
            some = replace(t, lines=0)
            costs[some] = min(cost, costs.get(some, cost))
        return costs or {None: 0.0}

    found = [
        (tile, D.mul(use, use_strips)) for tile, use in select.choose(pixels, price, False, _ALIKE)
    ]
    outputs = (1, 1) if found[0][0] else _neighbouring_outputs(r)
    return [
        *(
            strips(r, t, _strip_rows(r, t), use) if t else single(r, *outputs, use)
            for t, use in found
        ),
        single(r, *outputs, D.sub(1, use_strips)),
    ]


def _strip_rows(r: Request, tile: Strips) -> DimLike:
    """Rows of a strip: the fewest for which strips need no more waves than strips of whole columns
    do.
    """
    slots, strips_across = (
        r.sms * tile.min_ctas * _THREADS,
        D.product(
            [r.ints["N"], D.ceildiv(r.ints["OW"], tile.columns), -(-select.static(r, "OC") // 2)]
        ),
    )
    bands = D.floordiv(
        D.mul(D.maximum(D.ceildiv(strips_across, slots), 1), slots), D.maximum(strips_across, 1)
    )
    return D.maximum(D.ceildiv(r.ints["OH"], D.maximum(bands, 1)), 1)


def _neighbouring_outputs(r: Request) -> tuple[int, int]:
    """Columns and rows of neighbouring outputs of a thread of `direct.cuh`, which share inputs."""
    i = r.ints
    if int(i["KH"]) * int(i["KW"]) > _LARGE:
        return (4 if i["SW"] * i["DW"] == 1 else 1), 1
    if i["SH"] * i["DH"] == 1 and i["SW"] * i["DW"] == 1:
        return min(((2, 2), (4, 1)), key=lambda s: _waste(i["OW"], s[0]) * _waste(i["OH"], s[1]))
    return 2, 1


def _waste(extent: DimLike, step: int) -> float:
    """Computed outputs per stored output."""
    return 1.0 if not isinstance(extent, int) or extent == 0 else -(-extent // step) * step / extent


def _threads(r: Request, columns: int, lines: int, width: int) -> DimLike:
    i = r.ints
    return D.product(
        [
            i["N"],
            D.ceildiv(i["OH"], lines),
            D.ceildiv(i["OW"], columns),
            -(-select.static(r, "OC") // width),
        ]
    )


def _multiple(r: Request) -> int:
    """Output channels per input channel."""
    count: int = select.static(r, "OC") // select.static(r, "G")
    return count


# --- the division into strips ---


@dataclass(frozen=True)
class Strips:
    """columns, lines: outputs of a strip; ahead: prefetch distance of its loads in steps (1, or the
    number of open rows); min_ctas: resident CTAs per SM for __launch_bounds__.
    """

    columns: int
    lines: int
    ahead: int
    min_ctas: int


#: Cost model of strips, fitted on an H200: microseconds to start and of each wave of CTAs; clocks
#: and bytes of DRAM per microsecond; factor of the time of bytes in L2; share of the lesser of
#: arithmetic and memory time that does not overlap. With k warps a scheduler issues k / (k +
#: _ISSUE) instructions a clock.
_START, _WAVE, _CLOCKS, _BYTES, _L2_SHARE, _ADDED, _ISSUE = fitted(
    "conv.depthwise.emit", "start wave clocks bytes l2_share added issue"
)
#: Bytes read and written that L2 holds (beyond them loads are prefetched further); most registers
#: of a thread.
_L2_BYTES, _REGISTERS = 40_000_000, 232


def choose(r: Request, n: int, like: Strips | None = None) -> Strips | None:
    """The fastest strips for batch `n`, of those with the columns and CTAs of `like`; None if no
    strip fits into registers.
    """
    costs = {
        t: cost
        for t, cost in _divisions(r, n)
        if like is None or replace(t, lines=like.lines) == like
    }
    return kernel_choice.cheapest(costs) if costs else None


def _divisions(r: Request, n: int) -> Iterator[tuple[Strips, float]]:
    i, (kh, kw, sh, sw, dh, dw) = r.ints, window(r)
    oh, ow, ih, iw = (
        d if isinstance(d, int) and d else size_hint(d, 56) or 56
        for d in (i["OH"], i["OW"], i["IH"], i["IW"])
    )
    top = i["PT"] if isinstance(i["PT"], int) else 0
    channels, size, depth = select.static(r, "OC"), r.dtype.size, (kh - 1) * dh + 1
    slots, bytes = (depth - 1) // sh + 1, n * channels * size * (ih * iw // _multiple(r) + oh * ow)
    moved = bytes / _BYTES * (_L2_SHARE if bytes < _L2_BYTES else 1.0)
    ahead = slots if slots <= 3 and sh == 1 and bytes >= _L2_BYTES else 1
    # rows of windows inside the image
    rows = sum(
        max(0, min(oh, -(-(ih + top - k * dh) // sh)) - max(0, -(-(top - k * dh) // sh)))
        for k in range(kh)
    )
    epilogue, used = (
        _epilogue_cost(r),
        len({k * dh % sh for k in range(kh)}) / sh,
    )  # share of rows read
    reads = {lines: _rows_read(lines, oh, ih, sh, top, depth) for lines in _heights(oh)}
    for columns in range(1, min(ow, 8) + 1):
        span = len({j * sw + k * dw for j in range(columns) for k in range(kw)})
        registers = 2 * (slots * columns + kh * kw + span) + span * sh * ahead * size // 2 + 35
        if registers > _REGISTERS:
            continue
        natural = 65536 // (_THREADS * -(-registers // 8) * 8)
        # with launch bounds the compiler saves a tenth of the registers
        squeezed = int(65536 / (_THREADS * 0.9 * registers)) if sh == 1 else natural
        for min_ctas in {natural, squeezed}:
            for lines, read in reads.items():
                bands = -(-oh // lines)
                instructions = (
                    150
                    + 3 * kh * kw
                    + (read * used * (span * 4 + 14) + rows * kw * columns * 2) / bands
                )
                instructions += min(lines, oh) * (columns * (2 * epilogue + 5) + 10)
                grid = -(-n * -(-ow // columns) * bands * -(-channels // 2) // _THREADS)
                full = grid // (r.sms * min_ctas)  # waves
                # most CTAs that one SM computes
                most = full * min_ctas + -(-(grid - full * min_ctas * r.sms) // r.sms)
                warps = min(min_ctas, max(1, -(-grid // r.sms)))  # of a scheduler
                busy = (
                    most
                    * instructions
                    * (1.04 if min_ctas > natural else 1.0)
                    * (warps + _ISSUE)
                    / warps
                    / _CLOCKS
                )
                cost = (
                    _START
                    + -(-grid // (r.sms * min_ctas)) * _WAVE
                    + max(busy, moved)
                    + _ADDED * min(busy, moved)
                )
                yield Strips(columns, lines, ahead, min_ctas), cost


@cache
def _heights(oh: int) -> tuple[int, ...]:
    """Lines of a strip, ceil(oh / bands), for every number of bands."""
    found: list[int] = []
    bands = 1
    while bands <= oh:
        found.append(-(-oh // bands))
        bands = oh + 1 if found[-1] == 1 else -(-oh // (found[-1] - 1))
    return tuple(found)


def _rows_read(lines: int, oh: int, ih: int, sh: int, top: int, depth: int) -> int:
    """Rows of an image that its strips read, overlaps included: strip j, of `lines` lines but the
    last, reads those from (j lines) sh - top on up to `depth` from its last line.
    """
    strips, step = -(-oh // lines), lines * sh
    ends = _clipped((lines - 1) * sh - top + depth, step, strips - 1, ih)
    ends += max(0, min((oh - 1) * sh - top + depth, ih))
    return ends - _clipped(-top, step, strips, ih)


def _clipped(first: int, step: int, count: int, high: int) -> int:
    """The sum of clip(first + j step, 0, high) for j < count."""
    some = min(max(0, -first // step + 1), count)  # from here on terms are positive
    whole = max(some, min(-(-(high - first) // step), count))  # from here on they are `high`
    between = whole - some
    return between * first + step * (some + whole - 1) * between // 2 + (count - whole) * high


#: Instructions of an activation of one value; 8 where not named.
_ACTIVATION_COST = {
    "none": 0,
    "relu": 1,
    "leaky_relu": 2,
    "clip": 2,
    "sigmoid": 4,
    "silu": 5,
    "hard_sigmoid": 3,
    "hard_swish": 2,
}


def _epilogue_cost(r: Request) -> int:
    """Instructions per value."""
    if r.program is not None:
        return 3 * len(r.program["code"])
    exact = 3 if r.dtype == DType.F32 else 1
    return _ACTIVATION_COST.get(ACTIVATIONS[int(r.ints.get("act", 0))], 8) * exact + 2 * bool(
        r.ints.get("res_mode", 0)
    )


def _lines(r: Request, tile: Strips) -> DimLike:
    """Rows of a strip; with a symbolic batch fewer for small batches, so that there are enough
    strips.
    """
    n = r.ints["N"]
    lines: DimLike = tile.lines
    if not isinstance(n, int):
        for batch in reversed(_BATCHES[:-1]):
            shorter = choose(r, batch, tile)
            lines = D.select(D.less(n, batch + 1), shorter.lines if shorter else lines, lines)
    return lines


# --- kernels ---


def strips(r: Request, tile: Strips, lines: DimLike, use: DimLike) -> Kernel:
    """use: 0 empties the grid."""
    i, c, biased = r.ints, select.static(r, "OC"), "bias" in r.operands
    threads = D.product(
        [i["N"], D.ceildiv(i["OH"], lines), D.ceildiv(i["OW"], tile.columns), -(-c // 2)]
    )
    return _kernel(
        replace(r, operands=r.operands - {"bias"}),  # sums start from the bias
        "conv/depthwise/strips",
        2,
        D.mul(D.ceildiv(threads, _THREADS), use),
        {
            "C": c,
            "COLUMNS": tile.columns,
            "AHEAD": tile.ahead,
            "MIN_CTAS": tile.min_ctas,
            "RAGGED": not isinstance(i["OW"], int) or i["OW"] % tile.columns != 0,
            "EARLY": r.operands & {"w", "bias"} <= r.constant,
        },
        [*ints({"lines": lines}), *([pointer("const float", "bias")] if biased else [])],
        immediate=("x_cs", "y_cs", "r_cs"),  # a thread's accesses differ by immediate offsets
        macros={"BIAS(k)": "bias[c + (k)]" if biased else "0.f"},
    )


def _width(r: Request) -> int:
    """Channels of a thread of `direct.cuh`."""
    kh, kw = window(r)[:2]
    if _multiple(r) > 1:  # neighbouring output channels read no vectors
        return 2
    return next((w for w in (8, 4) if kh * kw * w * r.dtype.size <= _EARLY), 2)


def single(r: Request, columns: int, lines: int, use: DimLike, width: int = 0) -> Kernel:
    """`direct.cuh` with `columns` x `lines` outputs per thread, of `width` channels (0: `_width`).
    use: 0 empties the grid.
    """
    kh, kw, width = *window(r)[:2], width or _width(r)
    one_output = columns * lines == 1 and kh * kw * width * r.dtype.size <= _EARLY
    gathered = problem.transposed(r) and "last_tap" not in r.ints
    return _kernel(
        r,
        "conv/depthwise/direct",
        width,
        D.mul(D.ceildiv(_threads(r, columns, lines, width), _THREADS), use),
        {
            "COLUMNS": columns,
            "LINES": lines,
            "LARGE": _LARGE,
            "TRANSPOSED": gathered,
            "EARLY": one_output and "w" in r.constant and not gathered,
        },
        ints({"C": r.ints["OC"]}),
        immediate=() if gathered else ("x_cs",),
    )


def transposed(r: Request) -> list[Kernel]:
    """Without dilation."""
    i = r.ints
    if i["SH"] == i["SW"] == 1:  # a convolution whose filters are read from their ends
        pads = {p: D.sub(select.static(r, k) - 1, i[p]) for p, k in (("PT", "KH"), ("PL", "KW"))}
        return convolution(
            replace(r, ints={**i, **pads, "last_tap": int(i["KH"]) * int(i["KW"]) - 1})
        )
    width = next((w for w in (8, 4) if known(D.less(_threads(r, 1, 1, w), r.sms * _FILL)) != 1), 2)
    return [single(r, 1, 1, 1, width)]


def _kernel(
    r: Request,
    header: str,
    width: int,
    grid: DimLike,
    constants: Mapping[str, bool | int],
    more: Sequence[Parameter],
    immediate: Sequence[str],
    macros: Mapping[str, str] = {},
) -> Kernel:
    """width: channels that the epilogue takes. more: parameters. immediate: pitches that the text
    knows, where they are numbers.
    """
    pitch, last = -(-select.static(r, "OC") // 8) * 8, int(r.ints.get("last_tap", 0))
    pitches = {n: v for n, v in sizes(r, *immediate).items() if isinstance(v, int)}
    (kernel,) = problem.kernel(
        r,
        header,
        ("N", "IH", "IW", "OH", "OW", "PT", "PL"),
        (grid, 1, 1),
        _THREADS,
        {
            **dict(zip(problem.WINDOW, window(r), strict=True)),
            "THREADS": _THREADS,
            "MULTIPLE": _multiple(r),
            "weight_pitch": -pitch if last else pitch,
            "X_VECTOR": problem.vector(r, "x"),
            **constants,
        },
        more=more,
        width=width,
        weight=last * pitch * r.dtype.size,
        unread=tuple(pitches),
        macros=macros,
        text="".join(f"constexpr i64 {n} = {v};\n" for n, v in pitches.items()),
    )
    return kernel
