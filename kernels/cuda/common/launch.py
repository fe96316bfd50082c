"""What the CUDA families share on the Python side: names of element types, compile-time parameters,
grids.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.codegen.kernel_request import Argument, NoKernel, Pointer, Request
from tracea_onnx.codegen.size_ranges import known as known
from tracea_onnx.codegen.size_ranges import resolve as resolve
from tracea_onnx.codegen.size_ranges import size_hint as size_hint
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.plan import kernel_families

#: Unsigned integers by size in bytes: what a copy moves.
WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def parameters(request: Request) -> dict[str, DimLike]:
    """Every integer parameter of the family; lowering leaves out what is 0."""
    return {
        name: request.ints.get(name, 0) for name in kernel_families.FAMILIES[request.family].ints
    }


def static(d: DimLike, what: str) -> int:
    """`d` as a number; raises NoKernel when it is symbolic."""
    if isinstance(d, Dim):
        raise NoKernel(f"the CUDA kernel needs a fixed {what}, not {d!r}")
    return int(d)


def declared(request: Request, kernel: Sequence[tuple[str, str, Argument]]) -> str:
    """A kernel's parameters (type, name, value) as C++. Constant operands alone are `__restrict__`,
    which lets the assembler read them through the texture path: it takes such reads for independent
    of everything and moves them before the wait for the kernel that writes what they read.
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
    """What reads through a pointer to this operand, in C++: through the texture path where it is
    constant.
    """
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


def clustered(sms: int, size: int) -> int:
    """Multiprocessors that clusters of so many blocks can fill: a part of the device holds no whole
    number of larger ones.
    """
    return sms * 10 // 11 if size > 2 else sms


def reciprocal(d: DimLike) -> DimLike:
    """What `quotient` of `vector_io.cuh` takes beside a divisor."""
    return D.floordiv(2**31 - 1, D.maximum(d, 1))


def shared(request: Request) -> int:
    """Bytes of shared memory that a block may have, alone on its multiprocessor."""
    return request.caps.smem_block


def share(request: Request, smem: int, blocks: int) -> int:
    """Shared memory with which a multiprocessor holds no more than so many blocks that need `smem`
    bytes each.
    """
    return max(smem, shared(request) // blocks // 1024 * 1024 - 1024)


def spread(request: Request, blocks: DimLike, smem: int) -> int:
    """Shared memory for that many blocks of a launch, of which each should have a multiprocessor of
    its own: with room for those of the next launch, these would come where the first of this one
    leave, some beside each other.
    """
    alone = (
        overlapped(request)
        and known(D.less(request.sms, D.mul(blocks, 2)))
        == known(D.less(blocks, request.sms + 1))
        == 1
    )
    return max(smem, shared(request) // 2) if alone else smem


def even(r: Request, smem: int, blocks: DimLike, resident: int) -> int:
    """Shared memory with which a multiprocessor, which would hold `resident` of so many blocks,
    holds no more than its share where two launches do not fit together. Else some blocks of the
    next one come early, to where this one leaves room, and the others to where it ends first, all
    together.
    """
    if not overlapped(r) or known(D.less(r.sms * resident, D.mul(blocks, 2))) != 1:
        return smem
    here = next(
        (n for n in range(1, resident) if known(D.less(blocks, n * r.sms + 1)) == 1), resident
    )
    return share(r, smem, here) if here < resident else smem


def overlapped(request: Request) -> bool:
    """Whether kernels are launched programmatically (`Kernel.pdl`): their first statement is
    `after_previous()`, or its first half.
    """
    return request.arch >= 90
