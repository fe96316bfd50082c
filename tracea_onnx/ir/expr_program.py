"""From a pointwise expression to the program the native interpreter runs.

    compile_program(expr, type="f32") -> {"type": 0, "n_in": 2, "regs": 3, "out": 2, "code": [[2, 2,
    0, 1, 0, 0.0]]}

Common subexpressions are shared, constants folded, spelled-out activations replaced by their
opcode, dead code dropped, registers reused.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from tracea_onnx.ir.abi import F32_OPCODES, I64_OPCODES, OPCODE, OPCODES
from tracea_onnx.ir.activations import (
    EpilogueForm,
    classify_activation,
    classify_epilogue,
    evaluate,
    single,
)
from tracea_onnx.ir.expr import Expr, Instr

__all__ = [
    "MAX_REGISTERS",
    "EpilogueForm",
    "classify_activation",
    "classify_epilogue",
    "compile_program",
    "evaluate",
    "simplify",
]

#: Registers the native interpreter has.
MAX_REGISTERS = 256


class _Builder:
    """An expression written again, instruction by instruction; equal instructions are one value."""

    def __init__(self, n_in: int, integer: bool) -> None:
        self.n_in, self.integer = n_in, integer
        self.code: list[Instr] = []
        self._known: dict[tuple[object, ...], int] = {}

    def constant(self, value: int) -> float | None:
        if value < self.n_in or self.code[value - self.n_in].op != "const":
            return None
        return self.code[value - self.n_in].imm

    def const(self, imm: float) -> int:
        # by text: -0.0 equals 0.0 but is another constant
        return self._append(Instr("const", (), imm), ("const", repr(imm)))

    def add(self, op: str, args: tuple[int, ...]) -> int:
        if op == "copy":
            return args[0]
        constants = [self.constant(a) for a in args]
        folded = self._fold(op, constants)
        if folded is not None:
            return self.const(folded)
        if not self.integer:
            cheaper = self._cheaper(op, args, constants)
            if cheaper is not None:
                return cheaper
        return self._append(
            Instr(op, args), (op, *(sorted(args) if OPCODE[op].commutative else args))
        )

    def _append(self, ins: Instr, key: tuple[object, ...]) -> int:
        if key not in self._known:
            self.code.append(ins)
            self._known[key] = self.n_in + len(self.code) - 1
        return self._known[key]

    def _fold(self, op: str, constants: list[float | None]) -> float | None:
        values = [c for c in constants if c is not None]
        if len(values) != len(constants):
            return None
        count = len(values)
        value = float(evaluate(Expr(count, (Instr(op, tuple(range(count))),), count), values))
        if not self.integer:
            return single(value)
        # division truncates; other results below 2**24 are exact in float64, too
        return value + 0.0 if op != "div" and abs(value) < 2**24 else None

    def _cheaper(self, op: str, args: tuple[int, ...], constants: list[float | None]) -> int | None:
        """The same value by a cheaper instruction."""
        if op == "pow" and constants[1] is not None:
            x, exponent = args[0], constants[1]
            cheap = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 2.0: "square"}.get(exponent)
            if cheap is not None:
                return self.add(cheap, (x,))
            if exponent == 1.0:
                return x
            if exponent in (3.0, 4.0):
                square = self.add("square", (x,))
                return (
                    self.add("mul", (square, x))
                    if exponent == 3.0
                    else self.add("square", (square,))
                )
        if op == "mul" and args[0] == args[1]:
            return self.add("square", (args[0],))
        if op in ("mul", "div") and constants[1] == 1.0:
            return args[0]
        if op == "mul" and constants[0] == 1.0:
            return args[1]
        if (
            op == "div"
            and constants[1]
            and math.frexp(constants[1])[0] in (0.5, -0.5)
            and abs(constants[1]) < 2.0**100
        ):
            # exact for a power of two
            return self.add("mul", (args[0], self.const(1 / constants[1])))
        return None

    def finish(self, out: int) -> Expr:
        """The expression of `out` without dead instructions."""
        return _without_dead(Expr(self.n_in, tuple(self.code), out))


def _reachable(expr: Expr, stop: int = -1) -> set[int]:
    """Values the result needs, not looking through value `stop`."""
    needed, stack = set[int](), [expr.out]
    while stack:
        k = stack.pop()
        if k in needed:
            continue
        needed.add(k)
        if k >= expr.n_in and k != stop:
            stack.extend(expr.code[k - expr.n_in].args)
    return needed


def _without_dead(expr: Expr) -> Expr:
    place = {k: k for k in range(expr.n_in)}
    code: list[Instr] = []
    needed = _reachable(expr)
    for k, ins in enumerate(expr.code, expr.n_in):
        if k in needed:
            place[k] = expr.n_in + len(code)
            code.append(replace(ins, args=tuple(place[a] for a in ins.args)))
    return Expr(expr.n_in, tuple(code), place[expr.out])


def _rebuild(expr: Expr, integer: bool) -> Expr:
    b = _Builder(expr.n_in, integer)
    place = list(range(expr.n_in))
    for ins in expr.code:
        place.append(
            b.const(ins.imm if integer else single(ins.imm))
            if ins.op == "const"
            else b.add(ins.op, tuple(place[a] for a in ins.args))
        )
    return b.finish(place[expr.out])


#: Instructions of the longest activation looked for (constants included): bounds the time on long
#: programs.
_LONGEST = 24


def _near(expr: Expr, result: int) -> list[int]:
    """The values `result` depends on that are few steps away, oldest first."""
    found, level = set[int](), {result}
    while level and len(found) <= _LONGEST:
        level = {a for k in level if k >= expr.n_in for a in expr.code[k - expr.n_in].args} - found
        found |= level
    return sorted(found)


def _between(expr: Expr, entry: int, result: int) -> Expr | None:
    """`result` as an expression of value `entry` alone, or None when it needs other inputs, too, or
    is long.
    """
    inside, stack = set[int](), [result]
    while stack:
        k = stack.pop()
        if k == entry or k in inside:
            continue
        if k < expr.n_in or len(inside) == _LONGEST:
            return None
        inside.add(k)
        stack.extend(expr.code[k - expr.n_in].args)
    place = {entry: 0}
    code: list[Instr] = []
    for k in sorted(inside):
        ins = expr.code[k - expr.n_in]
        place[k] = 1 + len(code)
        code.append(replace(ins, args=tuple(place[a] for a in ins.args)))
    return Expr(1, tuple(code), place[result])


def _spared(expr: Expr, entry: int, result: int, shared: set[int]) -> int:
    """How many instructions a single one from `entry` to `result` would replace."""
    inside = _reachable(replace(expr, out=result), stop=entry) - {entry} - (shared - {result})
    return sum(expr.code[k - expr.n_in].op != "const" for k in inside)


def _recognised(expr: Expr) -> Expr:
    """`expr` with the longest spelled-out activation replaced by its opcode, or `expr` itself when
    there is none.
    """
    for result in range(expr.n_in + len(expr.code) - 1, expr.n_in - 1, -1):
        shared = _reachable(expr, stop=result)  # computed anyway, whatever becomes of `result`
        for entry in _near(expr, result):
            part = _between(expr, entry, result)
            if part is None or _spared(expr, entry, result, shared) < 2:
                continue
            known = classify_activation(part)
            if known is None:
                continue
            name, *given = known
            op = "copy" if name == "none" else name
            used = given[: OPCODE[op].arity - 1]
            # The replacement sits at `result`, its constants before it: later values move by their
            # number.
            shift, at = len(used), result - expr.n_in

            def moved(a: int, result: int = result, shift: int = shift) -> int:
                return a if a < result else a + shift

            constants = tuple(Instr("const", (), p) for p in used)
            new = Instr(op, (entry, *(result + k for k in range(shift))))
            rest = tuple(
                replace(i, args=tuple(moved(a) for a in i.args)) for i in expr.code[at + 1 :]
            )
            return Expr(expr.n_in, (*expr.code[:at], *constants, new, *rest), moved(expr.out))
    return expr


def _fused_multiply_add(expr: Expr) -> Expr:
    """add(mul(a, b), c) as one instruction where nothing else reads the product."""
    uses = [0] * (expr.n_in + len(expr.code))
    for a in [expr.out, *(a for i in expr.code for a in i.args)]:
        uses[a] += 1
    code = list(expr.code)
    for k, ins in enumerate(code):
        if ins.op != "add":
            continue
        for product, other in (ins.args, ins.args[::-1]):
            if (
                product >= expr.n_in
                and uses[product] == 1
                and code[product - expr.n_in].op == "mul"
            ):
                code[k] = Instr("fma", (*code[product - expr.n_in].args, other))
                break
    return _without_dead(Expr(expr.n_in, tuple(code), expr.out))


def simplify(expr: Expr, *, integer: bool = False, joins: bool = True, named: bool = True) -> Expr:
    """The same function in fewer instructions: shared, folded, activations by name, no dead
    code. joins: whether a product and a sum may be rounded once. named: whether activations are
    looked for, at points that would miss the steps of a quantised one.
    """
    expr = _rebuild(expr, integer)
    if integer or not named:
        return expr
    while True:
        shorter = _recognised(expr)
        if shorter is expr:
            return _fused_multiply_add(expr) if joins else expr
        expr = _rebuild(shorter, integer)


def _last_uses(expr: Expr) -> dict[int, int]:
    last = {expr.out: len(expr.code)}
    for k in range(len(expr.code) - 1, -1, -1):
        for a in expr.code[k].args:
            last.setdefault(a, k)
    return last


def _constants_late(expr: Expr) -> Expr:
    """Every constant directly before its first use: it occupies a register for the shortest
    time.
    """
    place = {k: k for k in range(expr.n_in)}
    code: list[Instr] = []

    def emit(k: int) -> int:
        if k not in place:
            ins = expr.code[k - expr.n_in]
            args = tuple(emit(a) for a in ins.args)
            place[k] = expr.n_in + len(code)
            code.append(replace(ins, args=args))
        return place[k]

    for k, ins in enumerate(expr.code, expr.n_in):
        if ins.op != "const":
            emit(k)
    out = emit(expr.out)
    return Expr(expr.n_in, tuple(code), out)


def compile_program(
    expr: Expr, *, type: Literal["f32", "i64"], joins: bool = True, named: bool = True
) -> dict[str, Any]:
    """The Plan's `program` of an expression: see docs/plan-format.md. joins, named: as of
    `simplify`.

    Inputs occupy registers 0..n_in-1. Raises ValueError when a program would need an opcode or a
    constant that its type does not have, or when more than `MAX_REGISTERS` registers would be
    needed.
    """
    integer = type == "i64"
    for ins in expr.code:
        if ins.op not in (I64_OPCODES if integer else F32_OPCODES):
            raise ValueError(
                f"opcode {ins.op} does not exist for {'integers' if integer else 'floats'}"
            )
        if integer and ins.op == "const" and not (abs(ins.imm) < 2**24 and ins.imm == int(ins.imm)):
            raise ValueError(f"{ins.imm} is not an exact integer constant")
    expr = _constants_late(simplify(expr, integer=integer, joins=joins, named=named))
    last = _last_uses(expr)
    register = {k: k for k in range(expr.n_in)}
    free = sorted((k for k in range(expr.n_in) if k not in last), reverse=True)
    count = expr.n_in
    code: list[list[int | float]] = []
    for k, ins in enumerate(expr.code):
        operands = [register[a] for a in ins.args]
        for a in set(ins.args):
            if last[a] == k:
                free.append(register[a])
        free.sort(reverse=True)
        if free:
            target = free.pop()
        else:
            target, count = count, count + 1
        register[expr.n_in + k] = target
        code.append([OPCODES.index(ins.op), target, *operands, *[0] * (3 - len(operands)), ins.imm])
    if count > MAX_REGISTERS:
        raise ValueError(f"the expression needs {count} registers; there are {MAX_REGISTERS}")
    return {
        "type": int(integer),
        "n_in": expr.n_in,
        "regs": max(count, 1),
        "out": register[expr.out],
        "code": code,
    }
