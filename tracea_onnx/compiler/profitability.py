"""Whether the provider should take a partition of plain ONNX nodes, or leave it to ORT.

A partition that holds a convolution, a GEMM, attention, a norm, or an op the user's file
was optimised to, is always worth taking. One of light nodes only (pooling, pointwise, movement)
must save more in nodes and traffic than it costs to enter and to change layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.op_traits import Trait, kinds
from tracea_onnx.pricing.cost_model import node_time
from tracea_onnx.pricing.rates import Rates

_HEAVY = kinds(Trait.HEAVY)
# Measured on one Zen 4 core with ORT 1.31: entering a partition, and one launch inside it
# (microseconds).
_ENTRY_US, _LAUNCH_US = 1.5, 0.15


def unprofitable_reason(
    graph: Graph,
    ops: Sequence[Op],
    plan: Mapping[str, Any],
    rates: Rates,
    split_nodes: Collection[int] = (),
) -> str | None:
    """Why ORT would run these ops faster, or None when the provider should take them.

    `split_nodes`: identities of nodes of chains that no kernel computes whole.
    """
    if any(op.kind in _HEAVY or op.nodes[0].proto.domain == DOMAIN for op in ops):
        return None
    if split_nodes and all(id(n) in split_nodes for op in ops for n in op.nodes):
        return (
            "they belong to a chain that the provider cannot run whole, and ONNX Runtime "
            "fuses such chains itself"
        )
    launch = rates.launch
    ort = sum(launch + node_time(graph, [n], rates) for op in ops for n in op.nodes)
    layouts = sum(r["k"] in ("nchw_to_nhwc", "nhwc_to_nchw") for r in plan["run"])
    images = sum(r["k"].endswith(("pool2d", "resize2d")) for r in plan["run"])
    ours = (
        _ENTRY_US
        + _LAUNCH_US * len(plan["run"])
        + sum(node_time(graph, op.nodes, rates) for op in ops)
    )
    if layouts and images:
        # changing the layout reads and writes the tensor once more on each side of the images
        ours += (
            sum(node_time(graph, [n], rates) for op in ops for n in op.nodes)
            * layouts
            / max(images, 1)
            / 2
        )
    return (
        None
        if ours < ort
        else f"the provider would take about {ours:.1f} us for these {len(ops)} light nodes, and "
        f"ONNX Runtime {ort:.1f} us"
    )
