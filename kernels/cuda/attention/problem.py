"""What the CUDA kernels of attention share: the problem, a launch's arguments, its entry, who has
which rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Float32,
    Int32,
    Int64,
    Pointer,
    Request,
    Unfit,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common.launch import clustered, known, overlapped, parameters, share, static

_LARGEST_HEAD = 256
_SIZES = ("B", "H", "KVH", "S", "T")
STRIDES = (*(f"{o}_{a}" for o in "qkvy" for a in "bsh"), "m_b", "m_h", "m_q", "m_k")


@dataclass(frozen=True)
class Problem:
    """What of an attention launch is known when its kernel is made. head, head_v: sizes of a
    query/key and of a value row; rows_masked: whether rows have masks of their own; mask_step: of
    how many elements, a power of two, rows of a mask whose elements lie beside each other begin at
    a multiple (0: they do not lie so)."""

    head: int
    head_v: int
    mask: int
    causal: bool
    nan_to_zero: int
    rows_masked: bool
    mask_step: int
    softcap: float

    @property
    def widest(self) -> int:
        return max(self.head, self.head_v)

    def constants(self, dtype: DType) -> str:
        flags = {"CAUSAL": self.causal, "IS_HALF": dtype == DType.F16}
        text = "".join(f"constexpr bool {k} = {str(v).lower()};\n" for k, v in flags.items())
        return (
            f"{text}constexpr int HEAD = {self.head}, HEAD_V = {self.head_v}, MASK = {self.mask}, "
            f"NAN_TO_ZERO = {self.nan_to_zero};\n"
            f"constexpr float SOFTCAP = {float(self.softcap)!r};\n"
        )

    def size(self, operand: str) -> int:
        """Elements of a row of q, k, v or y."""
        return self.head if operand in "qk" else self.head_v


def problem(request: Request) -> Problem:
    i = parameters(request)
    head, head_v = static(i["D"], "head size"), static(i["DV"], "head size")
    if not (0 < head <= _LARGEST_HEAD and 0 < head_v <= _LARGEST_HEAD):
        raise Unfit(
            f"attention heads of {head} and {head_v} elements (the CUDA kernels take 1 to {_LARGEST_HEAD})"
        )
    mask = static(i["mask_kind"], "mask kind") if "mask" in request.operands else 0
    own, step = mask != 0 and known(i["m_q"]) != 0, 0
    if mask and known(i["m_k"]) == 1:
        step = (
            1
            if "mask" in request.unaligned
            else min(
                16 // (request.dtype.size if mask == 1 else 1),
                *(multiple_of(i[f"m_{a}"]) for a in "bhq"),
            )
        )
    return Problem(
        head,
        head_v,
        mask,
        bool(i["causal"]),
        static(i["nan_to_zero"], "clearing of NaN"),
        own,
        step,
        request.floats.get("softcap", 0.0),
    )


def arguments(request: Request, places: Mapping[str, str]) -> tuple[Argument, ...]:
    """Of `entry`, in order. places: where an operand lies that is not read where it came from."""
    i = parameters(request)
    return (
        *(Pointer(places.get(o, o)) for o in ("q", "k", "v", "mask", "y")), *(Int32(i[s]) for s in _SIZES), *(Int64(i[s]) for s in STRIDES),
        Int32(i["past"]), Float32(request.floats["scale"]), Float32(request.floats.get("fill", 0.0)),
    )  # fmt: skip


def entry(block: int, maps: str = "", blocks: int = 1, last: str = "") -> str:
    """The kernel `attention`, which gathers its parameters and calls `attend`. maps: names of
    tensor-map parameters, in front of the others; last: name of an int behind them."""
    sizes, strides = ", ".join(f"int {s}_" for s in _SIZES), ", ".join(f"i64 {s}" for s in STRIDES)
    others = "".join(f", {o}" for o in (*(f"map_{m}" for m in maps), *([last] if last else [])))
    given = "".join(f"const __grid_constant__ TensorMap map_{m}, " for m in maps)
    return f"""
extern "C" __global__ void __launch_bounds__({block}, {blocks}) attention({given}const T* q, const T* k, const T* v, const void* mask, T* y, {sizes},
    {strides}, int past, float scale, float fill{f", int {last}" if last else ""}) {{
  attend(Attention{{q, k, v, mask, y, {", ".join(f"{s}_" for s in _SIZES)}, {", ".join(STRIDES)}, past, scale, fill}}{others});
}}
"""


def blocks(request: Request, rows: int) -> DimLike:
    """Tiles of `rows` query rows of one head."""
    i = parameters(request)
    return D.product([i["B"], i["H"], D.ceildiv(i["S"], rows)])


def apart(request: Request, smem: int, blocks: DimLike, parts: int = 1) -> int:
    """Shared memory with which a multiprocessor holds no more than its share of so many blocks, in
    clusters of `parts`: with room for more, those of the next launch come where the first of this
    one leave, several beside each other."""
    if not overlapped(request):
        return smem
    here, most = 1, clustered(request.sms, parts)
    while (
        share(request, smem, here) > smem and (fits := known(D.less(blocks, here * most + 1))) != 1
    ):
        if fits is None:
            return smem
        here += 1
    return share(request, smem, here)


def access(request: Request, p: Problem, operand: str) -> int:
    """Elements of a row of an operand that one access can move: a power of two, at most 16 bytes of
    them.
    """
    if operand in request.unaligned:
        return 1
    widest = 16 // request.dtype.size
    strides = (multiple_of(parameters(request)[f"{operand}_{a}"]) for a in "bsh")
    return min(widest, multiple_of(p.size(operand)), *strides)


def divided(
    request: Request, count: DimLike, keys: DimLike, least: int, most: tuple[int, ...]
) -> list[tuple[int, DimLike]]:
    """Into how many parts, each for a block of a cluster, the keys of `count` tiles are divided so
    that the device is filled and a part has `least` keys; with each number whether it is the one
    for the sizes of a run. most: the numbers to choose from, from one up."""
    fits: list[DimLike] = [1]
    for n in most[1:]:
        fits.append(
            D.mul(
                D.less(D.mul(count, n), 2 * clustered(request.sms, n) + 1),
                D.less(n * least - 1, keys),
            )
        )
    return [
        (n, D.mul(fit, D.sub(1, further)))
        for n, fit, further in zip(most, fits, [*fits[1:], 0], strict=True)
    ]
