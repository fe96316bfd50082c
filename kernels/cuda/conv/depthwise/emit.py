"""Depthwise convolutions: an output or a few a thread where there is little to do (`direct.cuh`;
transposed ones, too), else strips of the image that threads march down (`strips.cuh`). Packed
weights are [KH * KW, round_up(C, 8)].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike

from ...common.epilogue import Parameter
from ...common.instantiate import ints, pointer, sizes
from ...common.launch import known, resolve, size_hint
from ...gemm import select
from .. import problem
from ..problem import window

_BLOCK = 128
#: Threads an SM should have before a thread of `direct.cuh` computes more than one
#: output, and multiply-adds before strips pay (half of them where a thread of `direct.cuh` would
#: read twice as many bytes, for each row of a larger window after the last).
_FILL, _STRIPS_FROM = 192, 65536
#: Bytes of weights that a thread has in registers before the kernel before this one ends; threads
#: have no more channels than these allow, for more taps fewer.
_EARLY = 400
#: Taps of a window from which on a thread goes through it row by row.
_LARGE = 121
#: Where the batch is symbolic: strips are as long as suits the first of these batches that is not
#: smaller.
_BATCHES = (4, 8, 16, 32)
#: Where an image's sides are symbolic: strips stay as wide as suits fewer pixels while that takes
#: up to so many times the clocks.
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
        columns, lines = _few_outputs(r)
        many = (
            1
            if kh * kw > _LARGE
            else resolve(D.sub(1, D.less(_threads(r, columns, lines, _width(r)), r.sms * _FILL)))
        )
        kernels = [single(r, columns, lines, many)] if many != 0 else []
    else:
        many = resolve(_many(r))
        tile = choose(r, usual) if many != 0 else None
        kernels = (
            [strips(r, tile, _lines(r, tile) if batch < 0 else tile.lines, many)]
            if tile is not None
            else []
        )
    return kernels if many == 1 else [*kernels, single(r, 1, 1, D.sub(1, many))]


def _many(r: Request) -> DimLike:
    """Whether there is so much to do that strips pay."""
    kh, kw = window(r)[:2]
    least = _STRIPS_FROM // (2 if r.dtype == DType.F32 and kh * kw > 9 else 1)
    return D.sub(
        1, D.less(D.mul(select.pixels(r), select.static(r, "OC") * kh * kw), r.sms * least)
    )


def _of_any_size(r: Request) -> list[Kernel]:
    """Of images whose sides are symbolic: strips as wide as suits ranges of their pixels, and as
    long.
    """
    pixels, many = select.pixels(r), _many(r)

    def price(m: int) -> dict[Strips | None, float]:
        costs: dict[Strips | None, float] = {}
        for t, cost in _divisions(r, size_hint(r.ints["N"], 1)):
            some = replace(t, lines=0)
            costs[some] = min(cost, costs.get(some, cost))
        return costs or {None: 0.0}

    found = [(tile, D.mul(use, many)) for tile, use in select.choose(pixels, price, False, _ALIKE)]
    few = (1, 1) if found[0][0] else _few_outputs(r)
    return [
        *(strips(r, t, _long(r, t), use) if t else single(r, *few, use) for t, use in found),
        single(r, *few, D.sub(1, many)),
    ]


def _long(r: Request, tile: Strips) -> DimLike:
    """Rows of a strip of `tile`: as few as leave no more strips than run at once, or in as many
    turns as whole columns of strips take.
    """
    room, beside = (
        r.sms * tile.blocks * _BLOCK,
        D.product(
            [r.ints["N"], D.ceildiv(r.ints["OW"], tile.columns), -(-select.static(r, "OC") // 2)]
        ),
    )
    bands = D.floordiv(D.mul(D.maximum(D.ceildiv(beside, room), 1), room), D.maximum(beside, 1))
    return D.maximum(D.ceildiv(r.ints["OH"], D.maximum(bands, 1)), 1)


def _few_outputs(r: Request) -> tuple[int, int]:
    """Neighbouring outputs share their inputs: columns and rows of them that a thread computes
    where that leaves enough threads.
    """
    i = r.ints
    if int(i["KH"]) * int(i["KW"]) > _LARGE:
        return (4 if i["SW"] * i["DW"] == 1 else 1), 1
    if i["SH"] * i["DH"] == 1 and i["SW"] * i["DW"] == 1:
        return min(((2, 2), (4, 1)), key=lambda s: _waste(i["OW"], s[0]) * _waste(i["OH"], s[1]))
    return 2, 1


def _waste(extent: DimLike, step: int) -> float:
    """Outputs computed per output wanted."""
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
    """Output channels of an input channel."""
    count: int = select.static(r, "OC") // select.static(r, "G")
    return count


# --- the division into strips ---


@dataclass(frozen=True)
class Strips:
    """Output columns and rows of one strip, steps that its loads are ahead (1, or as many as there
    are open rows), CTAs that an SM shall hold.
    """

    columns: int
    lines: int
    ahead: int
    blocks: int


#: What takes how long on an H200, fitted to measured divisions: microseconds to start and for each
#: wave of CTAs, clocks of one; bytes of DRAM in one and how much less of that time what lies in
#: L2 takes; how far the shorter of computing and reading adds to the longer. A scheduler issues 1 /
#: (1 + _ALONE) instructions a clock with one warp, and with k of them k / (k + _ALONE).
_START, _WAVE, _CLOCKS, _BYTES, _NEAR, _ADDED, _ALONE = 2.0, 1.0, 1750.0, 3.8e6, 0.5, 0.15, 1.5
#: Bytes read and written from which some are in DRAM, so that loads should be further ahead;
#: registers a thread may have.
_FAR, _REGISTERS = 40_000_000, 232


def choose(r: Request, n: int, like: Strips | None = None) -> Strips | None:
    """The division that should take least time for batch `n` (of those with the columns and CTAs
    of `like`); None where no strip fits into registers.
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
    moved = bytes / _BYTES * (_NEAR if bytes < _FAR else 1.0)
    ahead = slots if slots <= 3 and sh == 1 and bytes >= _FAR else 1
    # rows of windows that lie in the image
    rows = sum(0 <= o * sh - top + k * dh < ih for o in range(oh) for k in range(kh))
    epilogue, used = _epilogue_cost(r), len({k * dh % sh for k in range(kh)}) / sh  # of the rows
    reads = {
        lines: _rows_read(lines, oh, ih, sh, top, depth)
        for lines in {-(-oh // bands) for bands in range(1, oh + 1)}
    }
    for columns in range(1, min(ow, 8) + 1):
        span = len({j * sw + k * dw for j in range(columns) for k in range(kw)})
        registers = 2 * (slots * columns + kh * kw + span) + span * sh * ahead * size // 2 + 35
        if registers > _REGISTERS:
            continue
        natural = 65536 // (_BLOCK * -(-registers // 8) * 8)
        # the compiler finds a tenth less
        squeezed = int(65536 / (_BLOCK * 0.9 * registers)) if sh == 1 else natural
        for blocks in {natural, squeezed}:
            for lines, read in reads.items():
                bands = -(-oh // lines)
                instructions = (
                    150
                    + 3 * kh * kw
                    + (read * used * (span * 4 + 14) + rows * kw * columns * 2) / bands
                )
                instructions += min(lines, oh) * (columns * (2 * epilogue + 5) + 10)
                grid = -(-n * -(-ow // columns) * bands * -(-channels // 2) // _BLOCK)
                full = grid // (r.sms * blocks)  # waves
                # CTAs that an SM computes
                most = full * blocks + -(-(grid - full * blocks * r.sms) // r.sms)
                warps = min(blocks, max(1, -(-grid // r.sms)))  # a scheduler has at a time
                busy = (
                    most
                    * instructions
                    * (1.04 if blocks > natural else 1.0)
                    * (warps + _ALONE)
                    / warps
                    / _CLOCKS
                )
                cost = (
                    _START
                    + -(-grid // (r.sms * blocks)) * _WAVE
                    + max(busy, moved)
                    + _ADDED * min(busy, moved)
                )
                yield Strips(columns, lines, ahead, blocks), cost


@cache
def _rows_read(lines: int, oh: int, ih: int, sh: int, top: int, depth: int) -> int:
    """Rows of an image that its strips read."""
    return sum(
        _clip((min(o + lines, oh) - 1) * sh - top + depth, ih) - _clip(o * sh - top, ih)
        for o in range(0, oh, lines)
    )


def _clip(row: int, height: int) -> int:
    return max(0, min(row, height))


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
    """Instructions for one value."""
    if r.program is not None:
        return 3 * len(r.program["code"])
    exact = 3 if r.dtype == DType.F32 else 1
    return _ACTIVATION_COST.get(ACTIVATIONS[int(r.ints.get("act", 0))], 8) * exact + 2 * bool(
        r.ints.get("res_mode", 0)
    )


def _lines(r: Request, tile: Strips) -> DimLike:
    """Rows of a strip of `tile`; where the batch is symbolic, shorter for small ones so that there
    are enough strips.
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
        D.mul(D.ceildiv(threads, _BLOCK), use),
        {
            "C": c,
            "COLUMNS": tile.columns,
            "AHEAD": tile.ahead,
            "BLOCKS": tile.blocks,
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
    """A thread has `columns` x `lines` outputs of a few channels (`width` if not 0); all loads of a
    row are under way together.
    """
    kh, kw, width = *window(r)[:2], width or _width(r)
    few = columns * lines == 1 and kh * kw * width * r.dtype.size <= _EARLY
    gathered = problem.transposed(r) and "last_tap" not in r.ints
    return _kernel(
        r,
        "conv/depthwise/direct",
        width,
        D.mul(D.ceildiv(_threads(r, columns, lines, width), _BLOCK), use),
        {
            "COLUMNS": columns,
            "LINES": lines,
            "LARGE": _LARGE,
            "TRANSPOSED": gathered,
            "EARLY": few and "w" in r.constant and not gathered,
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
        _BLOCK,
        {
            **dict(zip(problem.WINDOW, window(r), strict=True)),
            "THREADS": _BLOCK,
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
