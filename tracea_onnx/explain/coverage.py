"""Which nodes the provider would run, and why every other node would leave it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto, helper

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.ir.graph import Graph, Node, subgraphs
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.support import tables
from tracea_onnx.support.alike import Said, grouped

_CONTROL = operators(Trait.CONTROL)


@dataclass(frozen=True)
class UnsupportedNode:
    """A node the provider would not run."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """`total` nodes, of which `leaving` would run on another provider.

    A fused op counts as one node.
    """

    backend: str
    total: int
    partitions: int
    leaving: tuple[UnsupportedNode, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON of `explain --json`."""
        return {
            "backend": self.backend,
            "nodes": self.total,
            "partitions": self.partitions,
            "leaving": [asdict(n) for n in self.leaving],
        }

    def _repr_html_(self) -> str:
        return tables.html(self.parts())

    def parts(self) -> list[str | tables.Table]:
        """One line, and a table of the nodes that would leave."""
        rows = [(n.node, n.op, n.reason) for n in self.leaving]
        return [_head(self), *([[("node", "operator", "why"), *rows]] if rows else [])]


def coverage(model: ModelProto, backend: str, folder: Path | None = None) -> Coverage:
    """Ask the partition compiler about every node of a model that holds inferred types, which are
    completed in place.

    No kernel is compiled, and no device is needed.
    """
    asked = backends.get(backend)
    writer = plan_writer.writer(asked)
    total, partitions, leaving = 0, 0, []
    control: list[tuple[Graph, Node]] = []
    making: set[int] = set()  # graphs that get a result from the provider
    for incomplete in canonical_form.views(model, folder):
        _complete_types(incomplete)
        graph = Graph(model, incomplete.proto, folder=folder, outer=incomplete.outer)
        total = total + len(graph.nodes)
        search = None if asked.host else search_around(graph)
        if search is not None:
            leaving += [
                UnsupportedNode(n.name, n.op, f"{search} reads the results of its body on the host")
                for n in graph.nodes
            ]
            continue
        # a fused op is what its body is
        found = partition_compiler.compile_graph(graph, writer, trust=True)
        taken = {id(n) for nodes, _, _ in found.entries for n in nodes}
        said = {id(n): reason for n, reason in found.refused}
        partitions += len(found.entries)
        for n in graph.nodes:
            if id(n) in taken:
                if any(map(graph.is_output, n.outputs)):
                    making.add(id(graph.proto))
            elif n.op in _CONTROL:
                control.append((graph, n))
            else:
                reason = said.get(id(n)) or (
                    "its partition has only light nodes; running them here would not be faster"
                )
                leaving.append(UnsupportedNode(n.name, n.op, reason))
    for graph, n in reversed(control):  # inner ones first
        bodies = {id(body) for body in subgraphs(n.proto)}
        if asked.on_host or not has_kernel(n) or making.isdisjoint(bodies):
            leaving.append(UnsupportedNode(n.name, n.op, "its bodies run as graphs of their own"))
        elif any(map(graph.is_output, n.outputs)):
            making.add(id(graph.proto))
    return Coverage(backend, total, partitions, tuple(leaving))


def has_kernel(n: Node) -> bool:
    """Whether a device's session has a kernel of this If, Loop or Scan (provider.cc)."""
    axes = [*n.attr("scan_input_axes", ()), *n.attr("scan_output_axes", ())]
    return n.written in ("If", "Loop", "Scan") and not any(axes)


def search_around(graph: Graph) -> str | None:
    """The operator of ONNX Runtime whose body this is, which reads its results on the host."""
    around = graph.outer.proto.node if graph.outer is not None else ()
    return next(
        (
            n.op_type
            for n in around
            if n.domain == "com.microsoft" and any(b is graph.proto for b in subgraphs(n))
        ),
        None,
    )


def _complete_types(graph: Graph) -> None:
    """Add the shapes that follow from sizes computed in the graph. A session knows them; ONNX's
    inference, as it is used here, does not.
    """
    proto = graph.proto
    known = {v.name: v for v in proto.value_info}
    ends = {*graph.inputs, *graph.outputs}
    for name in (o for n in graph.nodes for o in n.outputs if o and o not in ends):
        found, kind = shapes(graph).dims(name), graph.dtype(name)
        if (
            found is not None
            and kind is not None
            and all(not isinstance(d, int) or 0 <= d < 2**63 for d in found)
        ):
            named = [d if isinstance(d, int) else d.name or None for d in found]
            (known.get(name) or proto.value_info.add()).CopyFrom(
                helper.make_tensor_value_info(name, kind, named)
            )


def text(found: Coverage, *, everything: bool = False) -> list[str]:
    """One line for people, and one for the nodes that would leave for one reason; with `everything`
    for each of them.
    """
    said = [Said(n.node, n.op, (n.reason,)) for n in found.leaving]
    lines = (f"  {head}: {s.lines[0]}" for head, s in grouped(said, everything=everything))
    return [_head(found), *lines]


def _head(found: Coverage) -> str:
    stay = found.total - len(found.leaving)
    head = f"on the provider ({found.backend}): {stay} of {found.total} nodes"
    head += f" in {found.partitions} partition{'' if found.partitions == 1 else 's'}"
    return head + ("; these leave it:" if found.leaving else "")
