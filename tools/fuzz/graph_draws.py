"""Random graphs of 5 to 60 nodes: the draws of single operators and chains, and exported chains,
joined so that later ones read what earlier ones made.

Between two of them stands what makes the shapes fit (reshapes, slices, repetitions) and what keeps
values of the order of one. A part of some graphs lies in the branch of an If, the body of a Loop,
or a model-local function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from tools.fuzz import operator_fuzz
from tools.fuzz.operator_draws import Draw

#: Exports of this operator set join the draws, which are written for it.
_EXPORTER = "dynamo23"
_EXPORTS = Path(__file__).resolve().parents[2] / "tests" / "exports" / "files"
#: Operators whose results jump: they read only what is fed, which is the same on every side.
_JUMPS = frozenset({
    "Floor", "Ceil", "Round", "Sign", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
    "TopK", "ArgMax", "ArgMin", "Hardmax", "Mod",
    "IsNaN", "IsInf", "Not", "And", "Or", "Xor", "NonZero", "Unique", "Cast", "ThresholdedRelu",
    "BitwiseAnd", "OneHot", "Pow", "ReduceProd",
    "ReduceLogSum", "ReduceLogSumExp", "Reciprocal", "Div", "Log", "Exp", "Sinh", "Range", "Where",
    "GridSample", "MeanVarianceNormalization",
    "InstanceNormalization", "GroupNormalization", "LpNormalization",
})  # fmt: skip
_SQUASH = ("Tanh", "Sigmoid", "Softsign", "HardSigmoid", "Erf", "Sin", "Cos")
#: Elements of a value that one is made to fit, and of any value.
_LIMIT, _LARGEST = 1 << 16, 1 << 18


@dataclass
class Linked(Draw):
    """A draw whose operators read values that are there already, where they can."""

    pool: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    link: float = 0.0
    prefix: int = 0

    def feed(self, shape: Sequence[int], scale: float = 1.0) -> str:
        wanted = tuple(int(n) for n in shape)
        if (
            self.pool
            and self.random.random() < self.link
            and 0 < np.prod(wanted, dtype=np.int64) <= _LIMIT
        ):
            exact = [v for v in self.pool if v[1] == wanted]
            name, have = (
                self.random.choice(exact)
                if exact and self.random.random() < 0.8
                else self.random.choice(self.pool[-6:])
            )
            return self._fit(name, have, wanted)
        return super().feed(wanted, scale)

    def add(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = [f"n{self.prefix + len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(
            helper.make_node(op, inputs, names, name=f"{op}_{len(self.nodes)}", **attrs)
        )
        return names[0]

    def _fit(self, name: str, have: tuple[int, ...], wanted: tuple[int, ...]) -> str:
        """The value with another shape: its elements, fewer of them, or repeated."""
        if self.random.random() < 0.6:
            name = self.add(self.random.choice(_SQUASH), name)
        if have == wanted:
            return name
        n, m = int(np.prod(have, dtype=np.int64)), int(np.prod(wanted, dtype=np.int64))
        if n != m:
            name = self.add("Reshape", name, self.ints(-1))
            if n < m:
                name = self.add("Tile", name, self.ints(-(-m // n)))
            if n * -(-m // n) != m:
                name = self.add("Slice", name, self.ints(0), self.ints(m), self.ints(0))
        return self.add("Reshape", name, self.ints(*wanted))


@cache
def _exported() -> tuple[ModelProto, ...]:
    found = []
    for path in sorted(_EXPORTS.glob(f"*/{_EXPORTER}.onnx")):
        model = onnx.load(path)
        plain = all(
            i.type.tensor_type.elem_type == TensorProto.FLOAT
            and all(d.dim_value for d in i.type.tensor_type.shape.dim)
            for i in model.graph.input
        )
        if (
            plain
            and len(model.graph.node) <= 40
            and not model.functions
            and model.opset_import[0].version == 23
        ):
            found.append(model)
    return tuple(found)


def _join_export(d: Linked, source: ModelProto) -> None:
    """The nodes of an export, with names of their own, reading values that are there."""
    tag = f"e{len(d.nodes)}_"
    new = {
        i.name: d.feed([x.dim_value for x in i.type.tensor_type.shape.dim])
        for i in source.graph.input
    }
    for t in source.graph.initializer:
        new[t.name] = d.store(numpy_helper.to_array(t))
    for n in source.graph.node:
        copy = NodeProto()
        copy.CopyFrom(n)
        copy.name = tag + n.name
        for k, v in enumerate(copy.input):
            if v:
                copy.input[k] = new[v]
        for k, v in enumerate(copy.output):
            if v:
                new[v] = copy.output[k] = f"{tag}{k}_{len(d.nodes)}"
        d.nodes.append(copy)


def _shapes(d: Linked) -> dict[str, tuple[int, ...]]:
    """Sizes of the float values, by ONNX's inference."""
    model = onnx.shape_inference.infer_shapes(d.model(symbolic=False), data_prop=False)
    out = {}
    for v in [*model.graph.value_info, *model.graph.output]:
        t = v.type.tensor_type
        if (
            t.elem_type == TensorProto.FLOAT
            and t.HasField("shape")
            and all(x.HasField("dim_value") and x.dim_value > 0 for x in t.shape.dim)
        ):
            out[v.name] = tuple(x.dim_value for x in t.shape.dim)
    return out


def draw(seed: int) -> tuple[ModelProto, dict[str, Any]]:
    """The graph of this number, and its inputs."""
    random = Random(f"graph {seed}")
    d = Linked(random, np.random.default_rng(seed))
    wanted = random.randrange(5, 61)
    kinds = list(operator_fuzz.KINDS)
    for _ in range(60):
        if len(d.nodes) >= wanted:
            break
        _grow(d, random, kinds, wanted)
    model = d.model(symbolic=random.random() < 0.4)
    _more_outputs(model, random)
    if random.random() < 0.35:
        random.choice((_into_if, _into_loop, _into_function, _into_function))(model, random)
    return model, d.fed


def _grow(d: Linked, random: Random, kinds: Sequence[str], wanted: int) -> None:
    """One more draw; one that does not fit, or that jumps at what another computed, is made without
    links, or given up.
    """
    before = (list(d.nodes), dict(d.fed), dict(d.stored))
    kind = random.choice(kinds)
    for link in (0.85, 0.0):
        d.link = link
        if random.random() < 0.3 and _exported():
            _join_export(d, random.choice(_exported()))
        else:
            operator_fuzz.KINDS[kind](d)
        new = d.nodes[len(before[0]) :]
        jumps = link and any(n.op_type in _JUMPS for n in new)
        if (
            not jumps
            and len(d.nodes) <= max(60, wanted)
            and d.opset == 23
            and sum(v.size for v in d.stored.values()) < 1 << 20
        ):
            try:
                shapes = _shapes(d)
            except Exception:  # a form that inference does not take: other draws do as well
                shapes = {}
            if shapes and max(np.prod(v, dtype=np.float64) for v in shapes.values()) <= _LARGEST:
                made = [(o, shapes[o]) for n in new for o in n.output if o in shapes]
                d.pool += made if not any(n.op_type in _JUMPS for n in new) else []
                return
        d.nodes[:], d.fed, d.stored = list(before[0]), dict(before[1]), dict(before[2])
        d.opset = 23


def _more_outputs(model: ModelProto, random: Random) -> None:
    """Values that are read inside, too, are outputs."""
    inner = [
        o
        for n in model.graph.node
        for o in n.output
        if o and not any(v.name == o for v in model.graph.output)
    ]
    for name in random.sample(inner, min(len(inner), random.choice((0, 0, 1, 2)))):
        model.graph.output.append(onnx.ValueInfoProto(name=name))


# --- a part of the graph elsewhere


def _part(model: ModelProto, random: Random) -> tuple[int, int, list[str], list[str]]:
    """A range of nodes, the values they read from outside, and those that others read of them."""
    nodes = model.graph.node
    first = random.randrange(len(nodes))
    last = min(len(nodes), first + random.randrange(1, 12))
    part = nodes[first:last]
    made = list(dict.fromkeys(o for n in part for o in n.output if o))
    read = list(dict.fromkeys(i for n in part for i in n.input if i and i not in made))
    outside = {i for n in [*nodes[:first], *nodes[last:]] for i in n.input} | {
        o.name for o in model.graph.output
    }
    return first, last, read, [o for o in made if o in outside]


def _replace(model: ModelProto, first: int, last: int, new: Sequence[NodeProto]) -> None:
    nodes = [*model.graph.node[:first], *new, *model.graph.node[last:]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _copies(nodes: Sequence[NodeProto], names: dict[str, str]) -> list[NodeProto]:
    out = []
    for n in nodes:
        copy = NodeProto()
        copy.CopyFrom(n)
        copy.input[:] = [names.get(i, i) for i in n.input]
        copy.output[:] = [names.get(o, o) for o in n.output]
        out.append(copy)
    return out


def _values(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    return [onnx.ValueInfoProto(name=n) for n in names]


def _constant(model: ModelProto, name: str, value: Any) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def _into_if(model: ModelProto, random: Random) -> None:
    first, last, _, results = _part(model, random)
    if not results:
        return
    part = list(model.graph.node[first:last])

    def branch(tag: str) -> GraphProto:
        names = {o: f"{o}.{tag}" for n in part for o in n.output if o}
        return helper.make_graph(
            _copies(part, names), tag, [], _values([names[o] for o in results])
        )

    condition = _constant(model, "if_condition", random.random() < 0.5)
    _replace(
        model,
        first,
        last,
        [
            helper.make_node(
                "If",
                [condition],
                results,
                name="If_0",
                then_branch=branch("then"),
                else_branch=branch("else"),
            )
        ],
    )


def _into_loop(model: ModelProto, random: Random) -> None:
    """Each iteration computes the same; the last is taken."""
    first, last, _, results = _part(model, random)
    if not results:
        return
    part = list(model.graph.node[first:last])
    names = {o: f"{o}.body" for n in part for o in n.output if o}
    inner = [*_copies(part, names), helper.make_node("Identity", ["loop_cond"], ["loop_cond_out"])]
    given = [
        helper.make_tensor_value_info("loop_i", TensorProto.INT64, []),
        helper.make_tensor_value_info("loop_cond", TensorProto.BOOL, []),
    ]
    made = [
        helper.make_tensor_value_info("loop_cond_out", TensorProto.BOOL, []),
        *_values([names[o] for o in results]),
    ]
    trips, axis, at = (
        _constant(model, "loop_trips", np.int64(random.choice((1, 2, 3)))),
        0,
        _constant(model, "loop_last", np.int64(-1)),
    )
    new = [
        helper.make_node(
            "Loop",
            [trips, ""],
            [f"{o}.all" for o in results],
            name="Loop_0",
            body=helper.make_graph(inner, "body", given, made),
        )
    ]
    new += [
        helper.make_node("Gather", [f"{o}.all", at], [o], axis=axis, name=f"last_{k}")
        for k, o in enumerate(results)
    ]
    _replace(model, first, last, new)


def _into_function(model: ModelProto, random: Random) -> None:
    first, last, read, results = _part(model, random)
    part = list(model.graph.node[first:last])
    if not results or any(a.type == AttributeProto.GRAPH for n in part for a in n.attribute):
        return
    name = f"Block{len(model.functions)}"
    model.functions.append(
        helper.make_function(
            "local", name, read, results, _copies(part, {}), list(model.opset_import)
        )
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    _replace(
        model,
        first,
        last,
        [helper.make_node(name, read, results, domain="local", name=f"call_{name}")],
    )
