"""Limits for what a small file makes enormous: functions that call functions, lists of sizes that
double, axes on axes; and for attributes that onnx's inference dies of.

ONNX Runtime and onnx expand such a model when they load it or infer its shapes: without a limit,
and beyond Ctrl-C. So upper bounds are worked out first, in time linear in what the file stands for
up to those limits, and a model that passes one is refused.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Iterable

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from tracea_onnx.errors import ModelError
from tracea_onnx.ir.edit import with_bodies
from tracea_onnx.ir.graph import domain_of, subgraphs
from tracea_onnx.model_io.function_calls import Key, key

#: Nodes that the calls of functions may stand for, and how deep they may call each other. ONNX
#: Runtime dies of a few thousand calls.
_NODES, _DEPTH = 100_000, 64
#: Elements of one list of sizes, and axes of all values together: a second and a gigabyte of ONNX
#: Runtime's.
_LIST, _AXES = 1 << 22, 30_000_000
#: Elements of a constant that is taken for a list of sizes. ONNX Runtime makes longer ones as it
#: makes any tensor.
_CONSTANT = 512
#: Of values that inference can do something with.
_RANK = 64
_INT32 = 1 << 31
#: Of Einsum, without blanks: letters and at most one ellipsis for each tensor, and for the result.
_TERM = rb"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
_EQUATION = re.compile(rb"%b(,%b)*(->%b)?" % (_TERM, _TERM, _TERM))
_FIX = "ONNX Runtime cannot load it either: export it again"


def check(model: ModelProto, where: str) -> None:
    """Raise ModelError for a model that is enormous once its functions are expanded and its shapes
    are inferred, or that onnx's inference dies of.
    """
    for n in with_bodies(n for f in model.functions for n in f.node):  # also those nobody calls
        _check_attributes(n, n.attribute, where)
    bodies = {key(f): f for f in model.functions}
    sizes: dict[Key, tuple[int, int]] = {}
    count = sum(
        _size(bodies, key(n), sizes, 0, where)[0]
        for n in with_bodies(model.graph.node)
        if key(n) in bodies
    )
    if count > _NODES:
        raise ModelError(
            f"the functions of {where} stand for {_round(count)} nodes once all calls are expanded",
            _FIX,
        )
    _Bounds(bodies, where).graph(model.graph, ChainMap())


def _check_attributes(n: NodeProto, attributes: Iterable[AttributeProto], where: str) -> None:
    """Raise ModelError for a number that onnx's inference takes as it is and does not survive, and
    for an equation in which it looks for the next letter for ever.
    """
    for a in attributes:
        taken = None
        if a.name == "axis":  # is narrowed, and written to outside of a shape (LayerNormalization)
            taken = range(-_INT32, _INT32)
        elif domain_of(n.domain) or a.ref_attr_name:
            continue
        elif (n.op_type, a.name) == ("GatherND", "batch_dims"):  # dims before the first are read
            taken = range(_RANK)
        elif (n.op_type, a.name) == ("Split", "num_outputs"):  # a list of as many is made and read
            taken = range(len(n.output), _LIST)
        wrong = ""
        if taken is not None and a.i not in taken:
            wrong = f"{a.name} {a.i}, which is not from {taken[0]} to {taken[-1]}"
        elif (n.op_type, a.name) == ("Einsum", "equation") and not _EQUATION.fullmatch(
            a.s.replace(b" ", b"")
        ):
            wrong = f"the equation '{a.s.decode('utf-8', 'replace')}', which is none"
        if wrong:
            label = n.name or "".join(n.output[:1])
            raise ModelError(
                f"node '{label}' ({n.op_type}) of {where} has {wrong}", "export it again"
            )


def _round(count: int) -> str:
    return f"{count}" if count < 10**9 else f"2^{count.bit_length() - 1}"


def _size(
    bodies: dict[Key, FunctionProto],
    call: Key,
    known: dict[Key, tuple[int, int]],
    depth: int,
    where: str,
) -> tuple[int, int]:
    """How many nodes a call stands for, and how deep calls are nested in it."""
    if call not in known:
        if depth >= _DEPTH:
            raise ModelError(
                f"the functions of {where} call themselves, or each other more than {_DEPTH} deep",
                _FIX,
            )
        parts = [
            _size(bodies, key(n), known, depth + 1, where) if key(n) in bodies else (1, 0)
            for n in with_bodies(bodies[call].node)
        ]
        known[call] = sum(size for size, _ in parts), 1 + max((d for _, d in parts), default=0)
    if depth + known[call][1] > _DEPTH:
        raise ModelError(
            f"the functions of {where} call themselves, or each other more than {_DEPTH} deep", _FIX
        )
    return known[call]


#: A value's rank, at most, and how many elements it has if it is a list that inference follows
#: (None: it is not).
_Value = tuple[int, int | None]
_UNKNOWN: _Value = (8, None)
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul"})
_LIKE_FIRST = frozenset({"Cast", "Squeeze", "Unsqueeze", "Slice", "Identity"})


class _Bounds:
    """Upper bounds of the ranks of values and of the lengths of lists, node by node."""

    def __init__(self, bodies: dict[Key, FunctionProto], where: str) -> None:
        self._bodies, self._where, self._axes = bodies, where, 0
        self._attributes: dict[str, AttributeProto] = {}  # of the call whose function is looked at

    def graph(self, graph: GraphProto, outer: ChainMap[str, _Value]) -> list[_Value]:
        """Of the graph's outputs."""
        values = outer.new_child()
        for v in graph.input:
            shape = v.type.tensor_type.shape
            values[v.name] = (
                (len(shape.dim), None) if v.type.tensor_type.HasField("shape") else _UNKNOWN
            )
        for t in graph.initializer:
            values[t.name] = _constant(t)
        for n in graph.node:
            self._node(n, values)
        return [values.get(o.name, _UNKNOWN) for o in graph.output]

    def _node(self, n: NodeProto, values: ChainMap[str, _Value]) -> None:
        attributes = [self._bound(a) for a in n.attribute]
        _check_attributes(n, attributes, self._where)
        given = [values.get(i, _UNKNOWN) if i else _UNKNOWN for i in n.input]
        inner = [value for g in subgraphs(n) for value in self.graph(g, values)]
        function = self._bodies.get(key(n))
        if function is not None:
            local: ChainMap[str, _Value] = ChainMap(dict(zip(function.input, given, strict=False)))
            outer = self._attributes
            self._attributes = {a.name: a for a in (*function.attribute_proto, *attributes)}
            for m in function.node:
                self._node(m, local)
            self._attributes = outer
            results = [local.get(o, _UNKNOWN) for o in function.output]
        else:
            rank, count = self._made(n, given)
            results = [(max([rank, *(r + 1 for r, _ in inner)]), count)] * len(n.output)
        for name, (rank, count) in zip(n.output, results, strict=False):
            values[name] = (rank, count)
            self._axes += rank
            if count is not None and count > _LIST:
                raise ModelError(
                    f"value '{name}' of {self._where} is a list of {_round(count)} sizes", _FIX
                )
            if self._axes > _AXES:
                raise ModelError(
                    f"value '{name}' of {self._where} may have {_round(rank)} axes, too many "
                    "beside those of all others",
                    _FIX,
                )

    def _bound(self, a: AttributeProto) -> AttributeProto:
        """What an attribute is in a function's node that takes it from the call."""
        given = self._attributes.get(a.ref_attr_name) if a.ref_attr_name else None
        if given is None:
            return a
        own = AttributeProto()
        own.CopyFrom(given)
        own.name = a.name
        return own

    def _made(self, n: NodeProto, given: list[_Value]) -> _Value:
        """Rank and list of a node's outputs."""
        first = given[0] if given else _UNKNOWN
        rank = max((r for r, _ in given), default=8)
        counts = [c for _, c in given]
        known = [c for c in counts if c is not None]
        count = None
        op = "" if domain_of(n.domain) else n.op_type
        if op == "Constant":
            tensor = next((a.t for a in n.attribute if a.type == AttributeProto.TENSOR), None)
            ints = next((len(a.ints) for a in n.attribute if a.name == "value_ints"), 1)
            return _constant(tensor) if tensor is not None else (1, ints)
        if op == "Shape":
            return 1, first[0]
        if op == "Size":
            return 0, 1
        if op == "Concat":
            count = sum(known) if known and len(known) == len(counts) else None
        elif op in _LIKE_FIRST:
            count = first[1]
        elif op in _ELEMENTWISE and len(known) == len(counts) == 2:
            count = max(known)
        if op == "Gather" and len(given) > 1:
            return max(0, first[0] - 1) + given[1][0], given[1][1] if first[1] is not None else None
        if op == "GatherND" and len(given) > 1:
            return first[0] + given[1][0], None
        if op == "Unsqueeze":
            return first[0] + _axes(n, given), count
        if op == "Squeeze":
            return max(0, first[0] - _axes(n, given)), count
        if op.startswith("Reduce") and any(a.name == "keepdims" and not a.i for a in n.attribute):
            return max(0, first[0] - _axes(n, given)), None
        if (op in ("Reshape", "Expand") and len(given) > 1) or (op == "ConstantOfShape" and given):
            shape = given[0 if op == "ConstantOfShape" else 1][1]
            rank = 8 if shape is None else shape
            return (max(rank, first[0]) if op == "Expand" else rank), None
        if op == "OneHot":
            return first[0] + 1, None
        return rank, count


def _axes(n: NodeProto, given: list[_Value]) -> int:
    """How many axes a node adds, removes or reduces, as far as is known."""
    written = next((len(a.ints) for a in n.attribute if a.name == "axes"), None)
    return written if written is not None else (given[1][1] or 0) if len(given) > 1 else 0


def _constant(t: TensorProto) -> _Value:
    size = math.prod(t.dims)
    return len(t.dims), size if len(t.dims) < 2 and size <= _CONSTANT and t.data_type in (
        TensorProto.INT32,
        TensorProto.INT64,
    ) else None
