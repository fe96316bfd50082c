"""The contracts: what a rule is and what it finds. `refusals.py` has what it says when it declines.

A rule is a value of pure functions. `match(graph, anchor)` returns a `Match` or raises `Refuse`;
it never changes the graph. The scheduler prices matches and picks a
non-overlapping, convex set; `rewrite` turns each into one call to a model-local function whose body
is exactly the nodes it replaces; the partition compiler lowers its spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from tracea_onnx.support.data_classes import dataclass

if TYPE_CHECKING:
    from tracea_onnx.ir.graph import Graph, Node

DOMAIN = "ai.tracea"
DOMAIN_VERSION = 1
SPEC_ATTRIBUTE = "spec"


@dataclass(frozen=True)
class Spec:
    """The computation of a fused op, independent of how the exporter spelled it.

    `op` names the lowering (`conv`, `gemm`, `attention`, ...); `roles` names each input of the
    fused op in order; `attrs` holds JSON values only (ints, floats, strings, lists, and the
    epilogue/pointwise expression).
    """

    op: str
    roles: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """A chain one rule would fuse.

    `inputs` align with `spec.roles`; `outputs` are the values that leave the chain.
    """

    rule: str
    anchor: Node
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    spec: Spec


@dataclass(frozen=True)
class Rule:
    """One fusible chain.

    name:    how reports and `--only`/`--skip` call it.
    op:      the fused op's name in the rewritten model (before the body hash).
    anchors: op types that may start a match (the compute node of the chain).
    match:   pure function (graph, anchor) -> Match, or raises Refuse.
    """

    name: str
    op: str
    anchors: frozenset[str]
    match: Callable[[Graph, Node], Match]
    # breaks ties between equal savings, higher first; below 0 for rules that take what others leave
    priority: int = 0
