"""What lowering asks of a backend for one launch of a family (`Request`), and what the CUDA backend
makes of it: kernels with source text (`Kernel`), whose grids and sizes stay symbolic. NVRTC turns
the sources into cubins; the provider's launcher (driver API only) binds arguments and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.runtime.device_caps import DeviceCaps, usual
from tracea_onnx.support.data_classes import dataclass

#: Bytes of shared memory that one block of a Hopper GPU (all of sm_90) may have: what tiles that
#: only these run are made for.
HOPPER_SHARED = usual(90).smem_block


#: Stands for an answer that was not found.
_NONE = object()
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One launch of a kernel family (`kernel_families.FAMILIES`) as lowering asks for it.

    dtype: element type of the main operands (f32, f16, bf16); accumulation is always f32. operands:
    which of the family's operands are present. program: a pointwise/epilogue program in the Plan's
    form. Integer parameters may be symbolic; those that a kernel must know at compile time
    (channels, head size) are plain ints in practice: raise `NoKernel` when they are not. caps: what
    `Backend.caps` says. unaligned: operands whose address is not known to be a multiple of 16 bytes
    (a channel slice of a concatenation, say); every other operand starts at one. constant: operands
    that no launch of a run writes, so that a kernel may read them before it waits for the one
    before it. tf32: whether GEMMs of f32 may round their elements to TF32.
    """

    family: str
    dtype: DType
    ints: Mapping[str, DimLike]
    floats: Mapping[str, float]
    program: Mapping[str, Any] | None
    operands: frozenset[str]
    caps: DeviceCaps
    unaligned: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    tf32: bool = False

    @property
    def arch(self) -> int:
        """Compute capability x 10 (80, 89, 90)."""
        return self.caps.arch if self.caps else 0

    @property
    def sms(self) -> int:
        """Multiprocessors."""
        return self.caps.sms if self.caps else 0

    @property
    def symbols(self) -> list[str]:
        """Symbols that its sizes depend on."""
        return sorted({s for d in self.ints.values() for s in D.symbols(d)})

    @cached_property
    def answers(self) -> dict[tuple[object, ...], Any]:
        """Cached results of `once`."""
        return {}


def once(of: Callable[Concatenate[Request, P], T]) -> Callable[Concatenate[Request, P], T]:
    """For a function of a request, and of further arguments that can be hashed, which neither asks
    what is known in a range of sizes nor changes what it returned: answers are kept with the
    request. A kernel is chosen anew for each of many ranges.
    """

    @wraps(of)
    def kept(r: Request, /, *args: P.args, **how: P.kwargs) -> T:
        key = (of, *args, *how.items())
        found: T = r.answers.get(key, _NONE)
        if found is _NONE:
            found = r.answers[key] = of(r, *args, **how)
        return found

    return kept


class NoKernel(Exception):
    """The backend has no kernel for this request; the sentence says why (the node then stays with
    ORT).
    """


@dataclass(frozen=True)
class Pointer:
    """Device address of a family operand (or of scratch buffer `scratch<k>`), plus an offset in
    bytes. Null when the operand is absent.
    """

    operand: str
    offset: DimLike = 0


@dataclass(frozen=True)
class Int32:
    """A 32-bit integer argument; `value` may depend on symbols."""

    value: DimLike


@dataclass(frozen=True)
class Int64:
    """A 64-bit integer argument; `value` may depend on symbols."""

    value: DimLike


@dataclass(frozen=True)
class Float32:
    """A 32-bit float argument, constant."""

    value: float


@dataclass(frozen=True)
class FaultWord:
    """Address of the run's fault word: a kernel that meets an index out of range writes 1 there
    (`u32*`) and goes on safely.
    """


@dataclass(frozen=True)
class Words:
    """Address of `count` words of 32 bits (`u32*`) in which the blocks of a launch meet. They are 0
    when it starts, and belong to the run: no operand of a Plan lies there.
    """

    count: int


@dataclass(frozen=True)
class TensorMap:
    """A CUtensorMap passed by value as `__grid_constant__`. Innermost dimension first, as
    cuTensorMapEncodeTiled takes it: `dims` in elements, `strides` in bytes for dims[1:], `box` in
    elements, `swizzle` 0/32/64/128. `im2col`: cuTensorMapEncodeIm2col's (lower corner, upper
    corner, channels per pixel, pixels per column) with W, H order; box is then unused.
    `l2_promotion`: bytes (64, 128 or 256) that L2 reads from memory when a copy needs one of them.
    GEMMs and convolutions are never slower with 128 than with 256, and up to 16 % faster where rows
    cross lines of 128 bytes.
    """

    pointer: Pointer
    dtype: DType
    dims: tuple[DimLike, ...]
    strides: tuple[DimLike, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    im2col: tuple[tuple[int, ...], tuple[int, ...], int, int] | None = None
    element_strides: tuple[int, ...] = ()
    l2_promotion: int = 128


Argument = Pointer | Int32 | Int64 | Float32 | FaultWord | Words | TensorMap


@dataclass(frozen=True)
class Kernel:
    """One launch. `source` is complete CUDA C++ (no headers beyond what NVRTC has built in); equal
    sources compile once.

    scratch: sizes in bytes of buffers the kernels of this request share (`Pointer("scratch0")`);
    their contents start undefined. pdl: launched with programmatic stream serialization (the kernel
    calls griddepcontrol.wait before it reads what others wrote).
    """

    source: str
    symbol: str
    grid: tuple[DimLike, DimLike, DimLike]
    block: int
    args: tuple[Argument, ...]
    smem: int = 0
    cluster: int = 1
    pdl: bool = False
    scratch: tuple[DimLike, ...] = field(default=())
