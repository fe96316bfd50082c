"""One operation to lower: an ONNX node, or a fused op with its spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tracea_onnx.ir.contracts import DOMAIN, SPEC_ATTRIBUTE, Match, Spec
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, kinds
from tracea_onnx.ir.refusals import Refuse
from tracea_onnx.match import spec_table
from tracea_onnx.match.operator_specs import OPERATORS, read
from tracea_onnx.match.spec_table import Attributes
from tracea_onnx.support.data_classes import dataclass

CONVOLUTIONS, MATMUL_OPS = kinds(Trait.CONV), kinds(Trait.MATMUL)
ROW_NORMS = kinds(Trait.ROW_NORM)


@dataclass(frozen=True)
class Op:
    """`kind` is an ONNX op type (`Transpose`), or a spec's op after a colon (`:conv`)."""

    kind: str
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    nodes: tuple[Node, ...]
    by_role: Mapping[str, str] = field(default_factory=dict)
    why: str = ""  # nothing lowers it

    @property
    def op(self) -> str:
        """The operator, for shape functions."""
        return self.kind

    def input(self, k: int) -> str:
        """The name of input k; "" where it is absent."""
        return self.inputs[k] if k < len(self.inputs) else ""

    def role(self, name: str) -> str:
        """Name of the input in this role, "" when absent."""
        return self.by_role.get(name, "")

    @property
    def extras(self) -> list[str]:
        """Inputs in the epilogue roles e0, e1, ... in expression order."""
        found = [
            (int(r[1:]), n) for r, n in self.by_role.items() if r[0] == "e" and r[1:].isdigit()
        ]
        return [n for _, n in sorted(found)]

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute of the operator, or of the spec of a fused op."""
        return self.attrs.get(name, default)

    @property
    def fused(self) -> bool:
        """Whether the op has a spec, in place of the attributes of a node."""
        return self.kind.startswith(":")


def makers(ops: Sequence[Op]) -> dict[str, Op]:
    """The op that makes each value."""
    return {o: op for op in ops for o in op.outputs if o}


def readers(ops: Sequence[Op]) -> dict[str, list[Op]]:
    """The ops that read each value, every op once."""
    found: dict[str, list[Op]] = {}
    for op in ops:
        for name in set(op.inputs):
            found.setdefault(name, []).append(op)
    return found


def of_roles(
    spec: Attributes,
    roles: Mapping[str, str],
    outputs: tuple[str, ...],
    nodes: tuple[Node, ...],
    label: str,
) -> Op:
    """A fused op that lowering itself makes; `roles` are its operands."""
    kind, inputs = f":{spec.op}", tuple(roles.values())
    return Op(kind, label, inputs, outputs, spec.to_json(), nodes, roles)


def of_spec(
    spec: Spec, inputs: tuple[str, ...], outputs: tuple[str, ...], nodes: tuple[Node, ...]
) -> Op:
    """The op that a spec describes."""
    roles = dict(zip(spec.roles, inputs, strict=True))
    return Op(f":{spec.op}", nodes[0].name, inputs, outputs, spec.attrs, nodes, roles)


def of_match(match: Match) -> Op:
    """The op of a fusion that is about to be made."""
    return of_spec(match.spec, match.inputs, match.outputs, match.nodes)


#: Kind of an op that nothing lowers, for the reason it holds.
REFUSED = "refused"


def of_plain(node: Node) -> Op:
    """The op of a node that is no call of a fused op."""
    return Op(node.op, node.name, node.inputs, node.outputs, node.attrs, (node,))


def of_node(node: Node, graph: Graph, trust: bool) -> Op:
    """An ONNX node: as a fused op where a spec says what it computes. A call of a fused function is
    what its spec attribute says where that is trusted.
    """
    if node.proto.domain == DOMAIN:
        return _call(node, trust)
    plain = of_plain(node)
    if node.op not in OPERATORS:
        return plain
    try:
        spec, roles = read(graph, node, Attributes)
    except Refuse as why:
        return replace(plain, why=str(why))
    outputs = (node.outputs[0], *node.outputs[3:4])
    return of_roles(spec, roles, outputs, (node,), node.name)


def _call(node: Node, trust: bool) -> Op:
    why = "ONNX Runtime inlines the fused op, and the rules match its body"
    if trust:
        spec, wrong = spec_table.read(node.attr(SPEC_ATTRIBUTE))
        if spec is not None:
            wrong = wrong or spec_table.fault(spec, node.inputs, node.outputs)
        if spec is not None and not wrong:
            # what follows them are constants only the body reads
            inputs = node.inputs[: len(spec.roles)]
            return of_spec(spec, inputs, node.outputs, (node,))
        why = f"the description of the fused op is wrong: {wrong}"
    return Op(REFUSED, node.name, node.inputs, node.outputs, {}, (node,), why=why)
