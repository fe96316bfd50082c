"""Vocabulary the rules share: growing a pointwise epilogue, and the guards every match must pass.

There are no lists of activation spellings. `grow_epilogue` absorbs whatever pointwise nodes hang on
a value, and keeps the longest prefix from which a single value leaves; x*Sigmoid(x), every
HardSwish, every GELU and the residual Add come out alike:

    Conv ─┬─ Sigmoid ─┐                 conv(x, w) with expr = mul(in0, sigmoid(in0))
          └─────────── Mul ── ...  =>
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from tracea_onnx.ir.abi import FLOATS
from tracea_onnx.ir.contracts import Match, Spec
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.pointwise_ops import BOOL, POINTWISE, Code, result_type
from tracea_onnx.ir.refusals import Refuse, Why, label
from tracea_onnx.match.spec_table import Attributes
from tracea_onnx.shapes.symbolic import Dims, same, shapes
from tracea_onnx.support.data_classes import dataclass

__all__ = [
    "BOOL", "FLOATS", "MAX_CODE", "MAX_OPERANDS", "POINTWISE", "Epilogue", "Region",
    "broadcasts_into", "build_match", "constant_scalar",
    "dims_of", "element_type", "float_type", "grow_epilogue", "label", "narrower", "needed_outside",
    "not_sole", "refuse_quantised",
    "same_shape", "show",
]  # fmt: skip

MAX_OPERANDS = 4  # extra tensors one epilogue may read
MAX_CODE = 48  # instructions of one expression


#: What a compute node applies to its result by itself: appends instructions, returns the id of the
#: new accumulator.
Prelude = Callable[[Code], int]


@dataclass(frozen=True)
class Epilogue:
    """The chain that `grow_epilogue` absorbed. `expr` reads the value it started from as input 0
    and `operands[k]` as input k + 1.

    `output` is the value that leaves (the starting value when nothing was absorbed); `stopped` says
    why it ends there.
    """

    nodes: tuple[Node, ...]
    operands: tuple[str, ...]
    expr: Expr | None
    output: str
    stopped: Refuse

    def roles(self, first: int = 0) -> list[tuple[str, str]]:
        """(role, value) pairs e0, e1, ... of the operands."""
        return [(f"e{first + k}", name) for k, name in enumerate(self.operands)]


# --- shapes, types and constants ------------------------------------------------------------------


def dims_of(graph: Graph, name: str) -> Dims | None:
    """Dims of a value, symbolic where a size depends on the inputs; None when the rank is not
    known.
    """
    return shapes(graph).dims(name)


def same_shape(a: Dims | None, b: Dims | None) -> bool:
    """Whether both have the same rank and equal dims for every input size."""
    return (
        a is not None
        and b is not None
        and len(a) == len(b)
        and all(same(x, y) for x, y in zip(a, b, strict=True))
    )


def broadcasts_into(shape: Dims | None, target: Dims | None) -> bool:
    """Whether a tensor of `shape` broadcasts against `target` without enlarging it for every input
    size.
    """
    if shape is None or target is None or len(shape) > len(target):
        return shape == ()
    return all(
        same(x, 1) or same(x, y) for x, y in zip(reversed(shape), reversed(target), strict=False)
    )


def constant_scalar(graph: Graph, name: str) -> float | None:
    """Value of a constant of one element, in any numeric type (bfloat16 too) and of any rank; exact
    in double.
    """
    if not name or not graph.is_const(name) or any(d != 1 for d in graph.shape(name) or ()):
        return None
    value = graph.const(name)
    return (
        float(value.reshape(-1)[0])
        if value is not None and value.size == 1 and value.dtype.kind not in "OSU"
        else None
    )


#: Operators whose result has a known type where ONNX, which does not know those of ONNX Runtime,
#: says none.
_TYPED = operators(Trait.SAME_TYPE, Trait.BOOLEAN)


def element_type(graph: Graph, name: str) -> int | None:
    """Element type of a value: declared, or carried over from the inputs of what computes it; None
    when neither is known.
    """
    declared = graph.dtype(name)
    if declared is not None:
        return declared
    return graph.derived(_carried_types).get(name)


def _carried_types(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in _TYPED and graph.dtype(node.outputs[0]) is None:
            known = (
                t for i in node.inputs if i and (t := graph.dtype(i) or found.get(i)) is not None
            )
            first = next((t for t in known if node.op != "Where" or t != BOOL), None)
            if first is not None:
                found[node.outputs[0]] = result_type(node, first)
    return found


def float_type(graph: Graph, name: str, node: Node) -> int:
    """Element type of a floating-point value; refuses integers and values of unknown type."""
    dtype = element_type(graph, name)
    if dtype is None:
        raise Refuse(Why.DTYPE_UNKNOWN, node, value=name)
    if dtype not in FLOATS:
        raise Refuse(Why.INTEGERS, node, value=name)
    return dtype


def refuse_quantised(graph: Graph, node: Node) -> None:
    """Refuse an operator that reads DequantizeLinear, which ONNX Runtime runs in int8; not in a
    session that does so itself.
    """
    if graph.fuses_quantised:
        return
    before = next(
        (
            p
            for i in node.inputs
            if i and (p := graph.producer(i)) is not None and p.op.endswith("DequantizeLinear")
        ),
        None,
    )
    if before is not None:
        raise Refuse(Why.QUANTIZED, node, source=before)


def needed_outside(graph: Graph, value: str, nodes: Iterable[Node]) -> Refuse:
    """The refusal of a value that is made inside `nodes` and needed outside."""
    if graph.is_output(value):
        return Refuse(Why.GRAPH_OUTPUT, graph.producer(value), value=value)
    inside = {id(n) for n in nodes}
    reader = next(c for c in graph.consumers(value) if id(c) not in inside)
    return Refuse(Why.ALSO_READ, graph.producer(value), value=value, reader=reader)


def not_sole(graph: Graph, value: str, *, near: bool = True) -> Refuse:
    """The refusal of a value that is a graph output, or that not exactly one node reads."""
    why = Why.GRAPH_OUTPUT if graph.is_output(value) else Why.READERS
    readers = graph.consumers(value)
    return Refuse(
        why,
        graph.producer(value),
        near=near,
        value=value,
        count=len(readers),
        readers=", ".join(map(label, readers)) or "none",
    )


# --- pointwise regions ----------------------------------------------------------------------------


class Region:
    """A pointwise region being compiled: which values are inside, and the code that computes them.

    Every inside value has the region's `shape`; what comes from outside is a constant, or an
    operand that broadcasts to `shape`.
    """

    def __init__(self, graph: Graph, shape: Dims | None, dtype: int, *, max_operands: int) -> None:
        self.graph, self.shape, self.dtype = graph, shape, dtype
        self.max_operands = max_operands
        self.code = Code()
        self.inside: dict[str, tuple[int, int]] = {}  # value -> (id, element type)
        self.nodes: list[Node] = []

    def start(self, name: str) -> None:
        """Make `name` input 0 (an accumulator); it does not count as an operand."""
        self.inside[name] = (self.code.operand(name), self.dtype)
        self.max_operands += 1

    def absorb(self, node: Node) -> None:
        """Compile one pointwise node whose inside inputs are compiled already; refuses and leaves
        the region as it was.
        """
        kept = len(self.code.operands)
        try:
            ids, types = [], []
            for k, name in enumerate(node.inputs):
                if name:
                    ident, dtype = self.inside.get(name) or self._outside(node, k)
                    ids.append(ident)
                    types.append(dtype)
            first = next((t for t in types if t in FLOATS), BOOL)
            if any(t in FLOATS and t != first for t in types):
                raise Refuse(Why.MIXED_FLOATS, node)
            out = result_type(node, first)
            if out in FLOATS and out != self.dtype and narrower(out, self.dtype):
                raise Refuse(Why.ROUNDED, node)
            ident = POINTWISE[node.op](self.code, self.graph, node, ids)
            if len(self.code.code) > MAX_CODE:
                raise Refuse(Why.INSTRUCTIONS, node, count=MAX_CODE)
        except Refuse:
            del self.code.operands[kept:]
            raise
        self.inside[node.outputs[0]] = (ident, out)
        self.nodes.append(node)

    def _outside(self, node: Node, k: int) -> tuple[int, int]:
        name = node.inputs[k]
        value, rank = constant_scalar(self.graph, name), self.graph.rank(name)
        if (
            value is not None
            and rank is not None
            and (rank == 0 or (self.shape is not None and rank <= len(self.shape)))
        ):
            dtype = element_type(self.graph, name)
            # An integer constant takes part only as an exponent, which ONNX lets have its own type.
            exponent = node.op == "Pow" and k == 1
            if dtype is not None and dtype in FLOATS and not exponent:
                return self.code.const(value), int(dtype)
            if dtype == BOOL or exponent:
                return self.code.const(value), BOOL
            raise Refuse(Why.INTEGERS, node, value=name)
        if float_or_bool(self.graph, name, node) == BOOL and node.op == "Pow":
            raise Refuse(Why.BOOLEAN_EXPONENT, node)
        shape = dims_of(self.graph, name)
        if not broadcasts_into(shape, self.shape):
            raise Refuse(Why.ENLARGES, node, value=name, shape=show(shape), target=show(self.shape))
        if name not in self.code.operands and len(self.code.operands) >= self.max_operands:
            raise Refuse(Why.OPERANDS, node, count=self.max_operands)
        return self.code.operand(name), float_or_bool(self.graph, name, node)


def float_or_bool(graph: Graph, name: str, node: Node) -> int:
    return BOOL if element_type(graph, name) == BOOL else float_type(graph, name, node)


_BITS = {1: 24, 10: 11, 16: 8, 11: 53}  # significand bits by element type


def narrower(a: int, b: int | None) -> bool:
    """Whether rounding a value of element type `b` (None: unknown) to `a` may lose something."""
    return b is None or _BITS.get(a, 0) < _BITS[b] or {a, b} == {10, 16}


def show(shape: Dims | None) -> str:
    """The shape in a sentence."""
    return "unknown" if shape is None else "[" + ", ".join(map(str, shape)) + "]"


def grow_epilogue(
    graph: Graph,
    value: str,
    *,
    also: Sequence[str] = (),
    prelude: Prelude | None = None,
    max_operands: int = MAX_OPERANDS,
) -> Epilogue:
    """The longest pointwise chain on `value` (the output of a compute node) that can run inside
    that node's kernel.

    Absorbs pointwise readers whose other inputs are scalar constants, inside already, or tensors
    broadcasting to the shape of `value`; keeps the longest prefix from which one value of the same
    type leaves and no inner value is needed elsewhere (second consumer, graph output, body of a
    control-flow node). Refuses when `value` is not floating-point. `also` names further
    accumulators of the same shape (inputs 1, 2, ... of the expression, before the operands); with
    them only a chain in which all meet counts. `prelude` is what the compute node itself applies
    first (an activation attribute).
    """
    producer = graph.producer(value)
    if producer is None:
        raise Refuse(Why.NOT_COMPUTED, value=value)
    region = Region(
        graph, dims_of(graph, value), float_type(graph, value, producer), max_operands=max_operands
    )
    for name in (value, *also):
        region.start(name)
    if prelude is not None:
        region.inside[value] = (prelude(region.code), region.dtype)
    starts = 1 + len(also)
    best, best_operands, best_count = value, len(region.code.operands), 0
    blocked: dict[int, Refuse] = {}
    seen: set[int] = set()
    heap: list[tuple[int, Node]] = []

    def offer(name: str) -> None:
        for c in graph.consumers(name):
            if c.op in POINTWISE and id(c) not in seen and name in c.inputs:
                seen.add(id(c))
                heapq.heappush(heap, (c.index, c))

    for name in (value, *also):
        offer(name)
    while heap:
        node = heapq.heappop(heap)[1]
        try:
            region.absorb(node)
        except Refuse as why:
            blocked[id(node)] = why.copy()
            continue
        offer(node.outputs[0])
        if (
            _escaping(graph, region) == [node.outputs[0]]
            and region.inside[node.outputs[0]][1] == region.dtype
        ):
            best, best_operands, best_count = (
                node.outputs[0],
                len(region.code.operands),
                len(region.nodes),
            )
    stopped = _why_stopped(graph, best, region, blocked)
    if best_count == 0 and prelude is None:
        return Epilogue((), (), None, value, stopped)
    expr = region.code.finish(region.inside[best][0], best_operands)
    return Epilogue(
        tuple(region.nodes[:best_count]),
        tuple(region.code.operands[starts:best_operands]),
        expr,
        best,
        stopped,
    )


def _escaping(graph: Graph, region: Region) -> list[str]:
    inside = {id(n) for n in region.nodes}
    return [
        v
        for v in region.inside
        if graph.is_output(v)
        or not graph.consumers(v)
        or any(id(c) not in inside for c in graph.consumers(v))
    ]


def _why_stopped(graph: Graph, value: str, region: Region, blocked: Mapping[int, Refuse]) -> Refuse:
    """Why the chain ends at `value`."""
    producer, readers = graph.producer(value), graph.consumers(value)
    if graph.is_output(value):
        return Refuse(Why.RESULT_IS_OUTPUT, producer)
    if not readers:
        return Refuse(Why.RESULT_UNREAD, producer)
    foreign = [c for c in readers if c.op not in POINTWISE or value not in c.inputs]
    if foreign and len(readers) == 1:
        return Refuse(Why.NOT_POINTWISE, producer, reader=foreign[0])
    if foreign:
        return Refuse(Why.ALSO_READ, producer, value=value, reader=foreign[0])
    for c in readers:
        if id(c) in blocked:
            return blocked[id(c)]
    # everything that reads `value` could be absorbed, but more than one value would leave
    escaping = _escaping(graph, region)
    for v in escaping if len(escaping) > 1 else ():
        if graph.is_output(v) or graph.consumers(v):
            return needed_outside(graph, v, region.nodes)
    return Refuse(Why.SEVERAL_ENDS, producer)


# --- building a match -----------------------------------------------------------------------------


def refuse_inside(nodes: Iterable[Node], operands: Iterable[str], anchor: Node) -> None:
    """Refuse an operand that the nodes of the match make themselves."""
    made = {o for n in nodes for o in n.outputs}
    if inside := next((v for v in operands if v in made), ""):
        raise Refuse(Why.OPERAND_INSIDE, anchor, value=inside)


def build_match(
    graph: Graph,
    rule: str,
    anchor: Node,
    nodes: Iterable[Node],
    spec: Attributes,
    roles: Sequence[tuple[str, str]],
    outputs: Sequence[str],
) -> Match:
    """The match, after the guards every rule needs: only `outputs` leave, and the set of nodes is
    convex.

    `roles` are (role, value) pairs in order; pairs with an empty value (absent optional inputs) are
    dropped.
    """
    chain = tuple(sorted({id(n): n for n in nodes}.values(), key=lambda n: n.index))
    for value in graph.escapes(chain):
        if value not in outputs:
            raise needed_outside(graph, value, chain)
    if not graph.is_convex(chain):
        raise Refuse(Why.CYCLE, anchor)
    present = [(r, v) for r, v in roles if v]
    refuse_inside(chain, [v for _, v in present], anchor)
    return Match(
        rule,
        anchor,
        chain,
        tuple(v for _, v in present),
        tuple(outputs),
        Spec(spec.op, tuple(r for r, _ in present), spec.to_json()),
    )
