"""Operands whose rows begin anywhere, copied to where tensor maps and wide copies reach them
(`repitch.cuh`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common.launch import declared
from ..common.prelude import prelude
from ..common.templates import template

#: Clocks of a kernel before another that is ready to begin, bytes a clock that it reads and writes.
_START, _BYTES = 1150.0, 2500.0


@dataclass(frozen=True)
class Aligned:
    """A tile of a kernel whose operands are copied first, those that are read at most so many bytes
    at a time.
    """

    tile: Any
    most: int = 2


@dataclass(frozen=True)
class Rows:
    """`rows` by `columns` elements, of which columns follow each other, `pitch` from row to row and
    `batch` from matrix to matrix along both axes.
    """

    operand: str
    rows: DimLike
    columns: DimLike
    pitch: DimLike
    batch: tuple[DimLike, DimLike] = (0, 0)

    @property
    def aligned(self) -> DimLike:
        return D.round_up(self.columns, 16)

    def strides(self, b1: DimLike) -> tuple[DimLike, DimLike]:
        """Strides of the copy's batch axes: 0 where the operand's are."""
        each, (s0, s1) = D.mul(self.rows, self.aligned), self.batch
        moves = [D.less(0, s) for s in (s0, s1)]
        return D.product([moves[0], each, D.select(moves[1], b1, 1)]), D.mul(moves[1], each)


def cost(elements: int) -> float:
    """Clocks to copy so many elements."""
    return _START + 4 * elements / _BYTES


def kernel(
    r: Request, operands: Sequence[Rows], b0: DimLike = 1, b1: DimLike = 1, active: DimLike = 1
) -> Kernel:
    """The copy of one or two operands to scratch0, scratch1."""
    params: list[tuple[str, str, Argument]] = []
    blocks = [D.ceildiv(D.mul(o.rows, D.ceildiv(o.columns, 8)), 256) for o in operands]
    sizes = []
    for k, o in enumerate(operands):
        to, name = o.strides(b1), "other_" * k
        sizes.append(
            D.product(
                [
                    o.rows,
                    o.aligned,
                    D.select(D.less(0, o.batch[0]), b0, 1),
                    D.select(D.less(0, o.batch[1]), b1, 1),
                    2,
                ]
            )
        )
        params += [
            ("const T*", f"{name}from", Pointer(o.operand)),
            ("T*", f"{name}to", Pointer(f"scratch{k}")),
        ]
        params += [
            ("int", f"{name}rows", Int32(o.rows)),
            ("int", f"{name}columns", Int32(o.columns)),
            ("i64", f"{name}pitch", Int64(o.pitch)),
        ]
        params += [
            ("i64", f"{name}{n}", Int64(v))
            for n, v in (
                ("from_0", o.batch[0]),
                ("from_1", o.batch[1]),
                ("to_0", to[0]),
                ("to_1", to[1]),
            )
        ]
    if len(operands) > 1:
        params.append(("int", "blocks", Int32(blocks[0])))
    text = "\n".join([
        prelude(r.dtype), f"#define BOTH {int(len(operands) > 1)}", f"#define PARAMETERS {declared(r, params)}",
        template("common/shifted_loads"), template("gemm/repitch"),
    ])  # fmt: skip
    total = D.mul(D.add(blocks[0], blocks[1]) if len(blocks) > 1 else blocks[0], active)
    return Kernel(
        text,
        "align",
        (total, b1, b0),
        256,
        tuple(v for _, _, v in params),
        pdl=True,
        scratch=tuple(sizes),
    )


def redirected(
    kernels: Sequence[Kernel], to: Mapping[str, str], scratch: tuple[DimLike, ...]
) -> list[Kernel]:
    """The kernels with operands read from elsewhere."""

    def moved(a: Argument) -> Argument:
        if isinstance(a, Pointer) and a.operand in to:
            return replace(a, operand=to[a.operand])
        return (
            replace(a, pointer=replace(a.pointer, operand=to[a.pointer.operand]))
            if isinstance(a, TensorMap) and a.pointer.operand in to
            else a
        )

    return [replace(k, args=tuple(moved(a) for a in k.args), scratch=scratch) for k in kernels]
