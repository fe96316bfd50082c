"""Constant folding: every node whose inputs are all constant is evaluated once, in one ONNX Runtime
session with optimisations off.

    initializer W, node Transpose(W) -> Wt      becomes      initializer Wt

The results are what ONNX Runtime would have computed at run time, bit for bit. Random operators,
control flow, quantisation pairs and anything over the budget (bytes, time) stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import Array, Graph, Node, domain_of
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes.shape_values import OPERATORS
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.support import deadline
from tracea_onnx.support.data_classes import dataclass

#: Operators whose result is not a function of their inputs.
RANDOM = operators(Trait.RANDOM)
#: A dequantised weight must stay quantised: ONNX Runtime's int8 kernels look for these nodes.
_QUANTISE = operators(Trait.QUANTISE)
#: Operators that can make a large tensor from a small one: folded only when the result's size is
#: known beforehand.
_GROWING = operators(Trait.GROWS)
_NO_ARRAYS = ("Sequence", "Optional", "String", "SplitToSequence", "ConcatFromSequence")
_FEEDABLE = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL}
    | {getattr(TensorProto, f"{u}INT{b}") for u in ("", "U") for b in (8, 16, 32, 64)}
)


@dataclass(frozen=True)
class Budget:
    """Limits of folding: `growth` bytes a model may gain in all, `node` bytes one result may exceed
    its inputs by, `seconds` of evaluation.
    """

    growth: int = 64 << 20
    node: int = 1 << 20
    seconds: float = 20.0


NOTHING = Budget(0, 0, 0.0)


def fold(model: ModelProto, graph: Graph, protected: Collection[str], budget: Budget) -> int:
    """Replace foldable nodes of `graph` by initializers; returns how many."""
    if budget == NOTHING:
        return 0
    chosen = _shapes(graph, protected)
    values = dict(chosen)
    nodes = _foldable(graph, protected, budget, frozenset(values))
    if nodes:
        values |= _evaluate(model, graph, nodes, values, budget.seconds)
    if not values:
        return 0
    done = {n.index for n in graph.nodes if n.outputs and all(o in values for o in n.outputs if o)}
    for n in graph.nodes:
        for o in n.outputs if n.index in done else ():
            if o and any(c.index not in done for c in graph.consumers(o)):
                graph.proto.initializer.append(numpy_helper.from_array(values[o], o))
    for k in sorted(done, reverse=True):
        del graph.proto.node[k]
    return len(done)


def _shapes(graph: Graph, protected: Collection[str]) -> dict[str, Array]:
    """Shapes, sizes and the integer arithmetic on them (Gather, Slice, Concat, Div, ...) where
    every dim that matters is known.
    """
    out: dict[str, Array] = {}
    symbolic = shapes(graph) if any(n.op in ("Shape", "Size") for n in graph.nodes) else None
    for n in graph.nodes if symbolic is not None else ():
        if (
            len(n.outputs) != 1
            or n.outputs[0] in protected
            or n.op not in OPERATORS
            or graph.dtype(n.outputs[0]) != TensorProto.INT64
        ):
            continue
        if n.op in ("Shape", "Size") and graph.dtype(n.input(0)) is None:
            continue
        value = symbolic.content(n.outputs[0]) if symbolic is not None else None
        if value is not None and all(
            isinstance(v, int) and not isinstance(v, bool) and -(2**63) <= v < 2**63
            for v in value.reshape(-1)
        ):
            out[n.outputs[0]] = value.astype(np.int64)
    return out


def _foldable(
    graph: Graph, protected: Collection[str], budget: Budget, known: frozenset[str]
) -> list[Node]:
    constant: dict[str, int] = dict.fromkeys(known, 0)
    growth = 0
    out: list[Node] = []
    for n in graph.nodes:
        if not n.outputs or not n.inputs:
            continue
        if (
            n.op == "Constant"
            or n.outputs[0] in constant
            or not _pure(n)
            or n.op in _QUANTISE
            or any(o in protected for o in n.outputs)
        ):
            continue
        if not all(not name or name in constant or graph.is_const(name) for name in n.inputs):
            continue
        if any(
            name and name not in constant and graph.dtype(name) not in _FEEDABLE
            for name in n.inputs
        ):
            continue
        sizes = [_bytes(graph, o) for o in n.outputs if o]
        fed = sum(
            constant[name] if name in constant else _bytes(graph, name) or 0
            for name in set(n.inputs)
            if name
        )
        if any(s is None for s in sizes):
            if n.op in _GROWING or fed > budget.node:
                continue
            sizes = [8 * fed]
        made = sum(s for s in sizes if s is not None)
        # Replacing a constant that nothing else reads costs only the difference.
        freed = sum(
            _bytes(graph, name) or 0
            for name in set(n.inputs)
            if name and name not in constant and len(graph.consumers(name)) == 1
        )
        if made > fed + budget.node or growth + made - freed > budget.growth:
            continue
        growth += max(0, made - freed)
        out.append(n)
        constant.update({o: made for o in n.outputs if o})
    return out


def is_pure(node: NodeProto) -> bool:
    """Whether the node's outputs are a function of its inputs alone (no randomness, no bodies, a
    known operator set).
    """
    if domain_of(node.domain) not in ("", "ai.onnx.ml", DOMAIN) or node.op_type in RANDOM:
        return False
    if node.op_type == "Dropout" and (len(node.input) > 2 and node.input[2]):
        return False
    return not any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)


def _pure(n: Node) -> bool:
    return is_pure(n.proto) and not domain_of(n.proto.domain) and not n.op.startswith(_NO_ARRAYS)


def _bytes(graph: Graph, name: str) -> int | None:
    shape, dtype = graph.shape(name), graph.dtype(name)
    if (
        shape is None
        or dtype is None
        or dtype not in _FEEDABLE
        or not all(isinstance(d, int) for d in shape)
    ):
        return None
    return int(np.prod([int(d) for d in shape if isinstance(d, int)], dtype=np.int64)) * int(
        np.dtype(helper.tensor_dtype_to_np_dtype(dtype)).itemsize
    )


def _evaluate(
    model: ModelProto, graph: Graph, nodes: list[Node], known: dict[str, Array], seconds: float
) -> dict[str, Array]:
    """Values of the nodes' outputs.

    A node ONNX Runtime cannot run is left out, with everything that needs it.
    """
    try:
        return _run(model, graph, nodes, known, seconds)
    except deadline.TooLong:
        return {}
    except Exception:  # one node of many is not implemented: find out which
        if len(nodes) == 1:
            return {}
    half = len(nodes) // 2
    first = _evaluate(model, graph, nodes[:half], known, seconds)
    have = known | first
    made = {o for n in nodes[:half] for o in n.outputs if o}
    lost = made - first.keys()
    rest: list[Node] = []
    for n in nodes[half:]:
        if any(name in lost for name in n.inputs):
            lost |= set(n.outputs)
        else:
            rest.append(n)
    return first | (_evaluate(model, graph, rest, have, seconds) if rest else {})


def _run(
    model: ModelProto, graph: Graph, nodes: list[Node], known: dict[str, Array], seconds: float
) -> dict[str, Array]:
    import onnxruntime as ort

    made = {o for n in nodes for o in n.outputs if o}
    feeds: dict[str, Array] = {}
    for name in {name for n in nodes for name in n.inputs if name and name not in made}:
        value = known[name] if name in known else graph.const(name)
        if value is None:
            raise ValueError(name)
        feeds[name] = np.ascontiguousarray(value).reshape(value.shape)
    small = model_of(
        model,
        [n.proto for n in nodes],
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in sorted(feeds.items())
        ],
        sorted(made),
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(
        small.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = sorted(made)
    results = deadline.run(session, names, feeds, seconds)
    out: dict[str, Array] = {}
    for name, kind, value in zip(names, session.get_outputs(), results, strict=True):
        if isinstance(value, np.ndarray) and kind.type in _NUMPY_TYPES:
            out[name] = value
    return out


_NUMPY_TYPES = frozenset(
    f"tensor({t})"
    for t in (
        "float",
        "double",
        "float16",
        "bool",
        *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)),
    )
)


def model_of(
    model: ModelProto, nodes: list[NodeProto], inputs: list[ValueInfoProto], outputs: list[str]
) -> ModelProto:
    """A model of some nodes with the operator sets of `model`; output types are left to
    inference.
    """
    graph = helper.make_graph(
        nodes, "part", inputs, [helper.make_empty_tensor_value_info(o) for o in outputs]
    )
    small = helper.make_model(
        graph, ir_version=max(model.ir_version, 4), opset_imports=list(model.opset_import)
    )
    small.functions.extend(model.functions)
    return small
