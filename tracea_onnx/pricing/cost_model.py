"""What a fusion saves, in microseconds, by a roofline model of the device.

    time(node) = launch + max(bytes / bandwidth, flops / rate)
    saving     = sum of time(node) over the chain
                 - (launch + max(bytes at the chain's border / bandwidth, flops / rate))

A node alone saves nothing: the provider runs plain ONNX nodes as they are. Symbolic dims count as
`NOMINAL`.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.refusals import Why, reason
from tracea_onnx.ir.saving import Saving
from tracea_onnx.pricing.rates import Rates

#: What an unknown dimension counts as: the first axis (batch) and any other.
NOMINAL_BATCH, NOMINAL = 1, 64
#: Elements that count, of a value whose dims a file has made up.
_MOST = 1 << 100


#: Nodes that move no data: a new shape for the same bytes.
_VIEWS = operators(Trait.RESHAPE, Trait.SHAPE_ONLY) | {"Constant"}
#: Flops per element of the output, for pointwise operators that cost more than one.
_PER_ELEMENT = {
    "Erf": 20.0, "Exp": 15.0, "Tanh": 20.0, "Sigmoid": 20.0, "Pow": 20.0, "Softmax": 20.0,
    "Gelu": 25.0, "Mish": 40.0, "Softplus": 30.0, "Log": 15.0,
    "HardSwish": 4.0,
}  # fmt: skip


def price(graph: Graph, match: Match, dev: Rates) -> Saving:
    """Estimated microseconds `match` saves; zero or less when fusing it gains nothing."""
    working = [
        n
        for n in match.nodes
        if n.op not in _VIEWS and not all(graph.is_const(o) for o in n.outputs if o)
    ]
    if len(working) < 2:
        return Saving(0.0, reason=reason(Why.SINGLE_NODE, op=match.anchor.op))
    parts = [_traffic(graph, {*n.inputs}, {*n.outputs}) for n in working]
    flops = [_flops(graph, n) for n in working]
    before = sum(dev.launch + _time(dev, b, f) for b, f in zip(parts, flops, strict=True))
    inside = {o for n in match.nodes for o in n.outputs}
    # What enters is what the nodes read, also where views give its unknown dims other places and so
    # other nominal sizes.
    border = min(
        sum(parts),
        _traffic(graph, {i for n in match.nodes for i in n.inputs} - inside, set(match.outputs)),
    )
    after = dev.launch + _time(dev, border, sum(flops))
    why = None if before > after else reason(Why.NO_SAVING)
    return Saving(round(before - after, 3), why)


def node_time(graph: Graph, nodes: Collection[Node], dev: Rates) -> float:
    """Microseconds the nodes take as one kernel, by the roofline and without its launch."""
    inside = {o for n in nodes for o in n.outputs}
    border = _traffic(
        graph, {i for n in nodes for i in n.inputs} - inside, graph.escapes(list(nodes))
    )
    return _time(dev, border, sum(_flops(graph, n) for n in nodes if n.op not in _VIEWS))


def _time(dev: Rates, count: float, flops: float) -> float:
    """Microseconds by the roofline: bytes and flops overlap."""
    return max(count / (dev.gbytes * 1e3), flops / (dev.gflops * 1e3))


def elements(graph: Graph, name: str) -> float:
    """Elements of a value; unknown dims count as nominal, an unknown rank as one nominal matrix."""
    shape = graph.shape(name)
    if shape is None:
        return float(NOMINAL * NOMINAL)
    sizes = (
        d if isinstance(d, int) else (NOMINAL_BATCH if k == 0 else NOMINAL)
        for k, d in enumerate(shape)
    )
    return float(min(math.prod(sizes), _MOST))


def _traffic(graph: Graph, reads: Collection[str], writes: Collection[str]) -> float:
    known, total = graph.derived(_known_sizes), 0.0
    for name in {*reads, *writes}:
        if name not in known:
            known[name] = elements(graph, name) * _itemsize(graph, name) if name else 0.0
        total += known[name]
    return total


def _known_sizes(_: Graph) -> dict[str, float]:
    """Bytes of values that were asked for: chains share most."""
    return {}


def _itemsize(graph: Graph, name: str) -> float:
    kind = graph.dtype(name)
    try:
        return float(numpy_type(kind).itemsize) if kind else 4.0
    except (KeyError, TypeError):
        return 4.0


def _flops(graph: Graph, n: Node) -> float:
    out = elements(graph, n.outputs[0])
    if n.op in ("Conv", "ConvTranspose"):
        w = elements(graph, n.input(1))
        channels = graph.shape(n.input(1))
        over = channels[0 if n.op == "Conv" else 1] if channels else NOMINAL
        per = w / over if isinstance(over, int) and over else float(NOMINAL)
        return 2.0 * (out if n.op == "Conv" else elements(graph, n.input(0))) * per
    if n.op in ("MatMul", "Gemm"):
        shape = graph.shape(n.input(0))
        k = shape[0 if n.attr("transA", 0) and len(shape) == 2 else -1] if shape else NOMINAL
        return 2.0 * out * (k if isinstance(k, int) else NOMINAL)
    return out * _PER_ELEMENT.get(n.op, 1.0)
