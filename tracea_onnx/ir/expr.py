"""Pointwise expressions: the one IR for epilogues and elementwise chains, on every backend.

An `Expr` is a list of instructions over values: inputs 0..n_in-1 first, then one value per
instruction. It serialises to JSON inside a fused op's spec and lowers to a native program (CPU) or
to source text (CUDA).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracea_onnx.ir.abi import OPCODE
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Instr:
    """value = op(args); `args` index earlier values; `imm` is the constant of op `const`."""

    op: str
    args: tuple[int, ...] = ()
    imm: float = 0.0


@dataclass(frozen=True)
class Expr:
    """`code` computes values n_in, n_in+1, ...; `out` is the index of the result."""

    n_in: int
    code: tuple[Instr, ...]
    out: int

    def __post_init__(self) -> None:
        for k, ins in enumerate(self.code):
            if (
                ins.op not in OPCODE
                or len(ins.args) != OPCODE[ins.op].arity
                or any(not 0 <= a < self.n_in + k for a in ins.args)
            ):
                raise ValueError(f"malformed pointwise expression at instruction {k}: {ins}")
        if not 0 <= self.out < self.n_in + len(self.code):
            raise ValueError("an expression reads a value that it does not have")

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity and no NaN: those constants are the strings "inf", "-inf" and
        "nan".
        """
        return {
            "n_in": self.n_in,
            "out": self.out,
            "code": [
                [i.op, list(i.args), i.imm if math.isfinite(i.imm) else str(i.imm)]
                for i in self.code
            ],
        }

    @staticmethod
    def from_json(d: dict[str, Any]) -> Expr:
        """Raises ValueError where something is read that is not computed before it."""
        return Expr(
            int(d["n_in"]),
            tuple(Instr(str(o), tuple(int(x) for x in a), float(v)) for o, a, v in d["code"]),
            int(d["out"]),
        )


def substituted(outer: Expr, parts: Sequence[tuple[Expr, Sequence[int]]], n_in: int) -> Expr:
    """`outer` with an expression in place of each of its inputs: `parts` has these, and which of
    the `n_in` inputs of the result each of them reads.
    """
    code: list[Instr] = []

    def append(expr: Expr, place: list[int]) -> int:
        for ins in expr.code:
            place.append(n_in + len(code))
            code.append(Instr(ins.op, tuple(place[a] for a in ins.args), ins.imm))
        return place[expr.out]

    out = append(outer, [append(inner, list(reads)) for inner, reads in parts])
    return Expr(n_in, tuple(code), out)


def exchanged(expr: Expr) -> Expr:
    """An expression of two inputs that reads them in the other order."""
    same = Expr(1, (), 0)
    return substituted(expr, [(same, (1,)), (same, (0,))], 2)
