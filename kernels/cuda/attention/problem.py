"""What the CUDA kernels of attention share: the problem, a launch's arguments, split-KV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracea_onnx.codegen.kernel_request import (
    FaultWord,
    Float32,
    Int32,
    Kernel,
    NoKernel,
    Pointer,
    Request,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common.epilogue import Parameter
from ..common.instantiate import floats, instantiate, ints, longs, pointer
from ..common.launch import known, parameters, smem_at_occupancy, sms_of_clusters, static, uses_pdl
from ..common.prelude import C_TYPES

_LARGEST_HEAD = 256
_STRIDES = (*(f"{o}_{a}" for o in "qkvy" for a in "bsh"), "m_b", "m_h", "m_q", "m_k")
#: Threads of a CTA that combines partial results, and how many of these each reads at once.
_COMBINING, _AT_ONCE = 128, 8


@dataclass(frozen=True)
class Problem:
    """The part of an attention launch that is known when its kernel is generated. head, head_v:
    elements of a row of q and k, of v and y; rows_masked: whether rows have masks of their own;
    mask_step: a power of two of elements of which mask rows begin at multiples (0: their elements
    are not contiguous); window: keys that a row attends to at most (0: all).
    """

    head: int
    head_v: int
    mask: int
    causal: bool
    nan_to_zero: int
    rows_masked: bool
    mask_step: int
    softcap: float
    window: int

    @property
    def widest(self) -> int:
        return max(self.head, self.head_v)

    def size(self, operand: str) -> int:
        """Elements of a row of q, k, v or y."""
        return self.head if operand in "qk" else self.head_v

    def row_bytes(self, dtype: DType) -> int:
        """Of a key and its value."""
        return (self.head + self.head_v) * dtype.size

    def constants(self, dtype: DType) -> dict[str, bool | int | float]:
        """Constants of `problem.cuh`."""
        return {
            "CAUSAL": self.causal,
            "IS_HALF": dtype == DType.F16,
            "HEAD": self.head,
            "HEAD_V": self.head_v,
            "MASK": self.mask,
            "NAN_TO_ZERO": self.nan_to_zero,
            "SOFTCAP": float(self.softcap),
            "WINDOW": self.window,
        }


def problem(request: Request) -> Problem:
    i = parameters(request)
    head, head_v = static(i["D"], "head size"), static(i["DV"], "head size")
    if not (0 < head <= _LARGEST_HEAD and 0 < head_v <= _LARGEST_HEAD):
        raise NoKernel(
            f"attention heads of {head} and {head_v} elements (the CUDA kernels take 1 to "
            f"{_LARGEST_HEAD})"
        )
    if "sink" in request.operands or known(i["smooth"]) != 0:
        raise NoKernel("attention with sinks or smooth sums")
    window = static(i["window"], "window")
    if window and "lens" not in request.operands:
        raise NoKernel("attention with windows of keys that are no cache's")
    mask = static(i["mask_kind"], "mask kind") if "mask" in request.operands else 0
    step = 0
    if mask and known(i["m_k"]) == 1:
        widest = 16 // (request.dtype.size if mask == 1 else 1)
        step = min(widest, *(multiple_of(i[f"m_{a}"]) for a in "bhq"))
        step = 1 if "mask" in request.unaligned else step
    return Problem(
        head,
        head_v,
        mask,
        bool(i["causal"]),
        static(i["nan_to_zero"], "clearing of NaN"),
        mask != 0 and known(i["m_q"]) != 0,
        step,
        request.floats.get("softcap", 0.0),
        window,
    )


def kernel(
    request: Request,
    p: Problem,
    header: str,
    grid: tuple[DimLike, DimLike, DimLike],
    threads: int,
    constants: Mapping[str, bool | int | float],
    *,
    places: Mapping[str, str] | None = None,
    maps: Sequence[Parameter] = (),
    last: Sequence[Parameter] = (),
    symbol: str = "attention",
    macros: Mapping[str, bool | int | str] = {},
    **others: Any,
) -> Kernel:
    """The kernel of <header>.cuh. places: where an operand lies that is not read where it
    came from; maps, last: parameters in front of and behind `OPERANDS` of `problem.cuh`; others: of
    `instantiate`.
    """
    i = parameters(request)
    types = {"mask": "const void*", "y": "T*"}
    given = [
        *maps,
        *(
            (types.get(o, "const T*"), o, Pointer((places or {}).get(o, o)))
            for o in ("q", "k", "v", "mask", "y")
        ),
        *ints({n: i[n] for n in ("B", "H", "KVH", "S")} | {"Tk": i["T"]}),
        *longs({s: i[s] for s in _STRIDES}),
        ("int", "past", Int32(i["past"])),
        *((("float"), n, Float32(request.floats.get(n, 0.0))) for n in ("scale", "fill")),
        *last,
    ]
    defined = p.constants(request.dtype) | {"THREADS": threads, **constants}
    if "lens" in request.operands:
        macros = {**macros, "LENGTH": "int" if i["lens_dtype"] == DType.I32 else "i64"}
        defined["CLAMP"] = bool(i["clamp"])
        given += [pointer("const LENGTH", "lens"), *ints({"lens_add": i["lens_add"]})]
        given += [("u32*", "fault", FaultWord())]
    if quantises(request):
        macros = {**macros, "QUANTISED": C_TYPES[DType(static(i["q_dtype"], "type of integers"))]}
        given += [*floats({"step": request.floats["q_scale"]}), *ints({"zero": i["q_zero"]})]
    return instantiate(
        request, symbol, header, given, grid, threads, macros=macros, constants=defined, **others
    )


def quantises(request: Request) -> bool:
    """Whether results are quantised."""
    return request.family == "attention_quantised"


def blocks(request: Request, rows: int) -> DimLike:
    """Tiles of `rows` query rows of one head."""
    i = parameters(request)
    return D.product([i["B"], i["H"], D.ceildiv(i["S"], rows)])


def cap_occupancy(request: Request, smem: int, blocks: DimLike, cluster: int = 1) -> int:
    """Shared memory with which an SM holds no more than its share of so many CTAs: with room for
    more, those of the next launch come where the first of this one leave, several on one SM.
    """
    if not uses_pdl(request):
        return smem
    here, most = 1, sms_of_clusters(request.sms, cluster)
    while (
        smem_at_occupancy(request, smem, here) > smem
        and (fits := known(D.less(blocks, here * most + 1))) != 1
    ):
        if fits is None:
            return smem
        here += 1
    return smem_at_occupancy(request, smem, here)


def access(request: Request, p: Problem, operand: str) -> int:
    """Elements of an operand's row that one access can move: a power of two, at most 16 bytes."""
    if operand in request.unaligned:
        return 1
    strides = (multiple_of(parameters(request)[f"{operand}_{a}"]) for a in "bsh")
    return min(16 // request.dtype.size, multiple_of(p.size(operand)), *strides)


def reads(request: Request, p: Problem) -> dict[str, int]:
    """READ_Q, READ_K, READ_V: what one access of each operand moves."""
    return {f"READ_{o.upper()}": access(request, p, o) for o in "qkv"}


def divided(
    request: Request, count: DimLike, keys: DimLike, least: int, most: tuple[int, ...]
) -> list[tuple[int, DimLike]]:
    """Into how many shares, each for a CTA of a cluster, the keys of `count` tiles are divided so
    that the device is filled and a share has `least` keys; with each number whether it is the one
    for the sizes of a run. most: the numbers to choose from, from one up.
    """
    fits: list[DimLike] = [1]
    for n in most[1:]:
        fills = D.less(D.mul(count, n), 2 * sms_of_clusters(request.sms, n) + 1)
        fits.append(D.mul(fills, D.less(n * least - 1, keys)))
    return [
        (n, D.mul(fit, D.sub(1, further)))
        for n, fit, further in zip(most, fits, [*fits[1:], 0], strict=True)
    ]


def part_bytes(p: Problem, rows: int) -> int:
    """Of a partial result (`Part` of `splitkv.cuh`)."""
    return -(-rows * (p.head_v + 2) * 4 // 16) * 16


def combine(
    request: Request, p: Problem, rows: int, count: DimLike, blocks: DimLike, most: int, place: str
) -> Kernel:
    """Combines the partial results at `place` that `blocks` CTAs have of `count` items of `rows`
    rows, at most `most` of each item. Threads beside each other have the pieces of some columns of
    a row, each group of them at most _AT_ONCE of the parts where a CTA has room for the groups.
    """
    piece = 4 if p.head_v % 4 == 0 else 1
    groups = min(16, _power_of_two(-(-most // _AT_ONCE)))
    across = min(_power_of_two(-(-p.head_v // piece)), max(8, _COMBINING // groups))
    i = parameters(request)
    held = D.mul(D.floordiv(i["H"], D.maximum(i["KVH"], 1)), i["S"])
    return kernel(
        replace(request, operands=request.operands - {"lens"}),  # parts say what they have
        p,
        "attention/splitkv_combine",
        (count, D.minimum(held, rows), -(-p.head_v // (across * piece))),
        max(32, groups * across),
        {"ROWS": rows, "COLUMNS": across * piece, "TOGETHER": _AT_ONCE},
        places={"q": place},
        last=ints({"blocks": blocks}),
        symbol="attention_combine",
    )


def _power_of_two(n: int) -> int:
    """The least that is not less."""
    return 1 << (n - 1).bit_length()
