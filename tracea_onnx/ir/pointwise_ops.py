"""Every pointwise ONNX operator as instructions of a pointwise expression.

A new spelling of an activation needs nothing here as long as it is made of these operators; a new
operator is a row of `op_traits.py` or `abi.py`. `emit(code, node, args)` appends what the node
computes and returns the result's id, or raises `Refuse` for a form the expression language cannot
say (integer arithmetic, an unknown mode).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from tracea_onnx.ir.abi import FLOATS, LARGEST, OPCODE, OPCODES_OF, DType, Opcode
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import COMPOSED, Composed, Trait, operators
from tracea_onnx.ir.refusals import Refuse, Why, require

BOOL = int(DType.BOOL)
_LOWEST, _HIGHEST = -LARGEST[DType.F32], LARGEST[DType.F32]


class Code:
    """An expression under construction. Equal instructions are written once; ids stay valid while
    it grows.

    Ids >= 0 are instructions, id -1-k is operand k of `operands` (names of tensors).
    """

    def __init__(self, operands: Sequence[str] = ()) -> None:
        self.operands: list[str] = list(operands)
        self.code: list[Instr] = []
        self._known: dict[Instr | tuple[str, str], int] = {}

    def operand(self, name: str) -> int:
        """The register of an operand, added where it is new."""
        if name not in self.operands:
            self.operands.append(name)
        return -1 - self.operands.index(name)

    def const(self, value: float) -> int:
        """The register of a constant."""
        return self._add(Instr("const", (), float(value)))

    def op(self, op: str, *args: int) -> int:
        """The register of `op` on these registers."""
        return self._add(Instr(op, args))

    def _add(self, instr: Instr) -> int:
        # -0.0 == 0.0 and would share an entry, so a constant is known by its text.
        key = ("const", repr(instr.imm)) if instr.op == "const" else instr
        if key not in self._known:
            self._known[key] = len(self.code)
            self.code.append(instr)
        return self._known[key]

    def value_of(self, ident: int) -> float | None:
        """The number an id stands for when it is a constant."""
        return self.code[ident].imm if ident >= 0 and self.code[ident].op == "const" else None

    def finish(self, out: int, n_in: int | None = None) -> Expr:
        """The expression computing `out` from the first `n_in` operands; instructions nothing needs
        are dropped.
        """
        n = len(self.operands) if n_in is None else n_in
        needed: set[int] = set()
        stack = [out]
        while stack:
            k = stack.pop()
            if k >= 0 and k not in needed:
                needed.add(k)
                stack.extend(self.code[k].args)
        place = {k: n + rank for rank, k in enumerate(sorted(needed))}
        place.update({-1 - k: k for k in range(n)})
        return Expr(
            n,
            tuple(
                Instr(self.code[k].op, tuple(place[a] for a in self.code[k].args), self.code[k].imm)
                for k in sorted(needed)
            ),
            place[out],
        )


Emit = Callable[[Code, Graph, Node, list[int]], int]


def _instruction(opcode: Opcode, attributes: Mapping[str, float]) -> Emit:
    """One instruction, of the node's inputs and its attributes."""

    def emit(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
        return code.op(
            opcode.name, *a, *(code.const(node.attr(k, v)) for k, v in attributes.items())
        )

    return emit


def _composed(made: Composed) -> Emit:
    """Instructions of an expression of the table."""
    tree = ast.parse(made.expression, mode="eval").body

    def emit(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
        def value(e: ast.expr) -> int:
            if isinstance(e, ast.Constant) and isinstance(e.value, (int, float)):
                return code.const(e.value)
            if isinstance(e, ast.Name) and e.id in made.attributes:
                return code.const(node.attr(e.id, made.attributes[e.id]))
            if isinstance(e, ast.Name):
                return a["xyz".index(e.id)]
            assert isinstance(e, ast.Call) and isinstance(e.func, ast.Name)
            op = e.func.id
            if any(isinstance(x, ast.Constant) and x.value is ... for x in e.args):
                return _folded(code, op, a)
            return code.op(op, *map(value, e.args))

        return value(tree)

    return emit


def _folded(code: Code, op: str, a: list[int]) -> int:
    """A variadic operator, left to right."""
    out = a[0]
    for b in a[1:]:
        out = code.op(op, out, b)
    return out


def _mean(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    return code.op("div", _folded(code, "add", a), code.const(len(a))) if len(a) > 1 else a[0]


def _clip(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    if graph.opset() < 11:
        lo, hi = node.attr("min", _LOWEST), node.attr("max", _HIGHEST)
        low = None if lo <= _LOWEST else code.const(lo)
        high = None if hi >= _HIGHEST else code.const(hi)
    else:
        rest = iter(a[1:])
        low = next(rest) if node.input(1) else None
        high = next(rest) if node.input(2) else None
    if low is not None and high is not None:
        return code.op("clip", a[0], low, high)
    if low is not None:
        return code.op("max", a[0], low)
    return code.op("min", a[0], high) if high is not None else a[0]


def _pow(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    exponent = code.value_of(a[1])
    if exponent == 1.0:
        return a[0]
    if exponent == 2.0:
        return code.op("square", a[0])
    if exponent == 3.0:
        return code.op("mul", code.op("square", a[0]), a[0])
    return code.op("pow", *a)


def _gelu(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    mode = node.attr("approximate", "none")
    if mode not in ("none", "tanh"):
        raise Refuse(
            Why.ATTRIBUTE, node, attribute="approximate", value=mode, wanted="none or tanh"
        )
    return code.op("gelu_erf" if mode == "none" else "gelu_tanh", a[0])


def _bias_then(op: str) -> Emit:
    """op(x + bias), the bias optional."""
    return lambda code, graph, node, a: code.op(
        op, code.op("add", a[0], a[1]) if len(a) > 1 else a[0]
    )


def _mod(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    # of floats, too, from opset 28 on
    return code.op("fmod" if node.attr("fmod", 0) else "mod", *a)


def _shift(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    direction = node.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise Refuse(
            Why.ATTRIBUTE, node, attribute="direction", value=direction, wanted="LEFT or RIGHT"
        )
    return code.op(f"shift_{direction.lower()}", *a)


def _isinf(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    require(node, detect_negative=1, detect_positive=1)
    return code.op("isinf", a[0])


def _cast(code: Code, graph: Graph, node: Node, a: list[int]) -> int:
    if node.attr("to") == BOOL:
        return code.op("not", code.op("eq", a[0], code.const(0.0)))
    return a[0]  # between floats, or 0/1 to float; `result_type` has refused the rest


#: ONNX operator -> its instructions: those of the tables, and those that attributes,
#: opset or constants decide.
POINTWISE: dict[str, Emit] = {
    **{op: _instruction(*row) for op, row in OPCODES_OF.items()},
    **{op: _composed(made) for op, made in COMPOSED.items()},
    "Mean": _mean,
    "Clip": _clip,
    "Pow": _pow,
    "Mod": _mod,
    "BitShift": _shift,
    "IsInf": _isinf,
    "Cast": _cast,
    "Gelu": _gelu,
    "com.microsoft.Gelu": _bias_then("gelu_erf"),
    "com.microsoft.BiasGelu": _bias_then("gelu_erf"),
    "com.microsoft.FastGelu": _bias_then("gelu_tanh"),
}

#: Activation attributes of com.microsoft.FusedConv and FusedGemm.
_FUSED = {
    "Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "LeakyRelu": "leaky_relu", "Clip": "clip",
    "HardSigmoid": "hard_sigmoid",
}  # fmt: skip


def fused_activation(code: Code, node: Node, x: int, params: Sequence[float]) -> int:
    """The node's `activation` attribute applied to `x`."""
    name = str(node.attr("activation", ""))
    if not name:
        return x
    op = _FUSED.get(name, "")
    count = OPCODE[op].arity - 1 if op else 0
    if not op or len(params) < count:
        raise Refuse(Why.ACTIVATION, node, name=name, params=list(params))
    return code.op(op, x, *(code.const(p) for p in params[:count]))


_BOOLEAN = operators(Trait.BOOLEAN)


def result_type(node: Node, first: int) -> int:
    """Element type of the node's output when its (first float) argument has type `first`."""
    if node.op in _BOOLEAN:
        return BOOL
    if node.op == "Cast":
        to = int(node.attr("to", 0))
        if to not in FLOATS and to != BOOL:
            raise Refuse(Why.INTEGER_CAST, node)
        return to
    return first
