"""The packed layout of few-bit weights (`layout.cuh`), and the kernels that pack them."""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Int64, Kernel, NoKernel, Pointer, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import NBITS_TILE
from tracea_onnx.support.data_classes import dataclass

from ...common.epilogue import Parameter
from ...common.instantiate import constexprs, ints, pointer
from ...common.launch import static, uses_pdl
from ...common.prelude import C_TYPES, prelude
from ...common.templates import template

_THREADS = 256
#: How zeros lie: all are one, bytes, floats.
ONE, BYTES, FLOATS = range(3)


@dataclass(frozen=True)
class Layout:
    """block: terms that share a scale, 0: all; zero: that of all, where they do not differ."""

    n: int
    k: int
    bits: int
    block: int
    zeros: int
    zero: int
    scale: DType

    @property
    def depth(self) -> int:
        """Terms of a piece."""
        return 256 // self.bits

    @property
    def tiles(self) -> int:
        return -(-self.n // NBITS_TILE)

    @property
    def pieces(self) -> int:
        return -(-self.k // self.depth)

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block) if self.block else 1

    @property
    def run(self) -> int:
        """Neighbouring terms that a lane has."""
        return 4 if self.block == NBITS_TILE else 8

    @property
    def whole(self) -> bool:
        """Whether blocks are whole pieces, or pieces whole blocks."""
        return not self.block or not (self.block % self.depth and self.depth % self.block)

    def definitions(self) -> str:
        """Definitions that the headers expect."""
        values = {"BITS": self.bits, "BLOCK": self.block, "ZEROS": self.zeros, "ZERO": self.zero}
        return f"typedef {C_TYPES[self.scale]} S;\n{constexprs(values)}"

    def operands(self, operand: str, *, constant: bool = True, n0: int = 0) -> list[Parameter]:
        """Parameters that point to the three parts of packed weights, to column n0 of each."""
        tile, zero = self.pieces * 512, 4 if self.zeros == FLOATS else 1
        words, before = self.tiles * tile, n0 * self.blocks
        scales = words + self.tiles * self.blocks * NBITS_TILE * self.scale.size
        fixed = "const " if constant else ""
        return [
            (
                f"{fixed}uint4*",
                "w" if constant else "packed",
                Pointer(operand, n0 // NBITS_TILE * tile),
            ),
            (f"{fixed}S*", "scales", Pointer(operand, words + before * self.scale.size)),
            (f"{fixed}void*", "zeros", Pointer(operand, scales + before * zero)),
        ]


def layout_of(r: Request) -> Layout:
    """Of a `gemm_nbits` or `pack_gemm_nbits`; raises NoKernel for blocks that divide no pieces."""
    n, k, bits, block = (static(r.ints[name], name) for name in ("N", "K", "bits", "block"))
    given = r.ints.get("zeros", 0)
    if r.family.startswith("pack"):
        kind = static(r.ints["zero_dtype"], "type of zeros") if "zero" in r.operands else 0
        given = ONE if not kind else FLOATS if kind == DType.F32 else BYTES
    scale = DType(static(r.ints.get("scale_dtype", 0) or int(DType.F32), "type of scales"))
    zeros, zero = static(given, "kind of zeros"), r.floats.get("zero", 0.0)
    made = Layout(n, k, bits, block if block < k else 0, zeros, int(zero), scale)
    if zero != int(zero) or made.block % 32 not in (0, NBITS_TILE) or not made.whole:
        raise NoKernel(f"weights of {bits} bits in blocks of {block}, or a zero of {zero}")
    return made


def pack_gemm_nbits(r: Request) -> list[Kernel]:
    at = layout_of(r)
    i = {name: r.ints.get(name, 0) for name in ("w_n", "w_k", "s_n", "s_k", "z_n", "z_k")}
    flip = (1 << (at.bits - 1)) * static(r.ints.get("is_signed", 0), "sign")
    source = prelude(r.dtype) + at.definitions() + template("gemm/nbits/pack")
    n0, total = (static(r.ints.get(name, n), name) for name, n in (("n0", 0), ("N_total", at.n)))
    if n0 % NBITS_TILE or (n0 + at.n < total and at.n % NBITS_TILE):
        raise NoKernel(f"weights of a few bits with {at.n} columns from column {n0} of {total} on")
    packed, scales, zeros = replace(at, n=total).operands("packed", constant=False, n0=n0)

    def kernel(symbol: str, given: list[Parameter], strides: str, count: int) -> Kernel:
        given += ints({"N": at.n, "K": at.k})
        args = [v for *_, v in given] + [Int64(i[name]) for name in strides.split()]
        args += [v for *_, v in ints({"flip": flip})] + [Int64(count)]
        grid = (-(-count // _THREADS), 1, 1)
        return Kernel(source, symbol, grid, _THREADS, tuple(args), pdl=uses_pdl(r))

    return [
        kernel(
            "pack_words", [pointer("const void", "w"), packed], "w_n w_k", at.tiles * at.pieces * 32
        ),
        kernel(
            "pack_scales",
            [pointer("const S", "scale"), pointer("const void", "zero"), scales, zeros],
            "s_n s_k z_n z_k",
            at.tiles * at.blocks * NBITS_TILE,
        ),
    ]


FAMILIES = dict.fromkeys(("pack_gemm_nbits", "pack_gemm_nbits_part"), pack_gemm_nbits)
