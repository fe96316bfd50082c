"""Parameters, grids and shared memory of launches, for all kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Kernel,
    NoKernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.codegen.size_ranges import known as known
from tracea_onnx.codegen.size_ranges import resolve as resolve
from tracea_onnx.codegen.size_ranges import size_hint as size_hint
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.plan import kernel_families

#: Unsigned integer types by size in bytes, for copies.
WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def parameters(request: Request) -> dict[str, DimLike]:
    """Every integer parameter of the family; lowering omits those that are 0."""
    return {
        name: request.ints.get(name, 0) for name in kernel_families.FAMILIES[request.family].ints
    }


def static(d: DimLike, what: str) -> int:
    """`d` as a number; raises NoKernel when it is symbolic."""
    if isinstance(d, Dim):
        raise NoKernel(f"the CUDA kernel needs a fixed {what}, not {d!r}")
    return int(d)


def declared(request: Request, kernel: Sequence[tuple[str, str, Argument]]) -> str:
    """A kernel's parameters (type, name, value) as C++. Only constant operands are `__restrict__`:
    the assembler reads such pointers through the texture path, and may hoist the reads above
    `pdl_wait`.
    """
    fixed = [
        ctype.startswith("const ") and isinstance(v, Pointer) and v.operand in request.constant
        for ctype, _, v in kernel
    ]
    return ", ".join(
        f"{ctype} {'__restrict__ ' * alone}{name}"
        for alone, (ctype, name, _) in zip(fixed, kernel, strict=True)
    )


def reader(request: Request, operand: str) -> str:
    """The C++ operator that reads this operand: `__ldg` (texture path) where it is constant."""
    return "__ldg" if operand in request.constant else "*"


def vector_width(dtype: DType, *extents: DimLike) -> int:
    """Largest power of two of elements, at most 16 bytes, that divides every extent (1 when one is
    symbolic).
    """
    width = 16 // dtype.size
    while width > 1 and not all(isinstance(e, int) and e % width == 0 for e in extents):
        width //= 2
    return width


def blocks(units: DimLike, per_block: int, most: DimLike) -> DimLike:
    """Blocks of a grid-stride loop over `units`, `per_block` a turn and at most `most`; 0 when
    there are no units.
    """
    return D.minimum(D.ceildiv(units, per_block), most)


def sms_of_clusters(sms: int, size: int) -> int:
    """SMs that clusters of `size` CTAs can fill: a GPC has no multiple of large sizes."""
    return sms * 10 // 11 if size > 2 else sms


def reciprocal(d: DimLike) -> DimLike:
    """The reciprocal of a divisor for `quotient` of `vector_io.cuh`."""
    return D.floordiv(2**31 - 1, D.maximum(d, 1))


def smem_at_occupancy(request: Request, smem: int, ctas: int) -> int:
    """Shared memory of a CTA that needs `smem` bytes, padded so that an SM holds at most `ctas`."""
    return max(smem, request.caps.smem_block // ctas // 1024 * 1024 - 1024)


def smem_of_partial_wave(request: Request, ctas: DimLike, smem: int) -> int:
    """Pads shared memory of grids of 0.5 to 1 wave so that an SM holds one CTA. Otherwise PDL
    places CTAs of the next launch in pairs on the SMs that drain first.
    """
    alone = (
        uses_pdl(request)
        and known(D.less(request.sms, D.mul(ctas, 2))) == known(D.less(ctas, request.sms + 1)) == 1
    )
    return max(smem, request.caps.smem_block // 2) if alone else smem


def smem_of_even_waves(r: Request, smem: int, ctas: DimLike, resident: int) -> int:
    """Pads shared memory to cap occupancy at ceil(ctas / SMs), where an SM could hold `resident`
    CTAs and two launches do not fit the device together. Otherwise PDL places some CTAs of the next
    launch early and the rest on the SMs that drain first, which unbalances its wave.
    """
    if not uses_pdl(r) or known(D.less(r.sms * resident, D.mul(ctas, 2))) != 1:
        return smem
    here = next(
        (n for n in range(1, resident) if known(D.less(ctas, n * r.sms + 1)) == 1), resident
    )
    return smem_at_occupancy(r, smem, here) if here < resident else smem


def uses_pdl(request: Request) -> bool:
    """Whether kernels are launched programmatically (`Kernel.pdl`). Their first statement is
    `pdl_begin()` or `pdl_launch_dependents()`.
    """
    return request.arch >= 90


def moved(kernel: Kernel, places: Mapping[str, Pointer]) -> Kernel:
    """The kernel with operands at other places."""

    def pointer(p: Pointer) -> Pointer:
        to = places.get(p.operand)
        return p if to is None else Pointer(to.operand, D.add(to.offset, p.offset))

    def argument(a: Argument) -> Argument:
        if isinstance(a, Pointer):
            return pointer(a)
        return replace(a, pointer=pointer(a.pointer)) if isinstance(a, TensorMap) else a

    return replace(kernel, args=tuple(map(argument, kernel.args)))


def chained(
    steps: Sequence[tuple[list[Kernel], Mapping[str, tuple[int, DimLike]]]],
    between: Sequence[DimLike],
) -> list[Kernel]:
    """The kernels of all steps. between: bytes of buffers of their own; each step with what
    operands of its lie there: the number of a buffer, an offset.
    """
    scratch: list[DimLike] = []
    for kernels, _ in steps:
        for j, size in enumerate(next((k.scratch for k in kernels if k.scratch), ())):
            scratch[j:] = [
                D.maximum(scratch[j], size) if j < len(scratch) else size, *scratch[j + 1 :]
            ]  # fmt: skip
    first, room = len(scratch), (*scratch, *between)
    return [
        replace(
            moved(kernel, {o: Pointer(f"scratch{first + b}", at) for o, (b, at) in places.items()}),
            scratch=room,
        )
        for kernels, places in steps
        for kernel in kernels
    ]
