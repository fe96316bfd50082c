"""One operation to lower: an ONNX node, or a fused op with its spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracea_onnx.ir.contracts import DOMAIN, SPEC_ATTRIBUTE, Match, Spec
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, kinds
from tracea_onnx.match import spec_table
from tracea_onnx.match.spec_table import Attributes, LayerNormSpec

CONVOLUTIONS, PRODUCTS = kinds(Trait.CONV), kinds(Trait.PRODUCT)
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
    roles: tuple[str, ...] = ()
    opset: int = 0
    by_role: Mapping[str, str] = field(default_factory=dict)

    @property
    def op(self) -> str:
        return self.kind

    def input(self, k: int) -> str:
        return self.inputs[k] if k < len(self.inputs) else ""

    def role(self, name: str) -> str:
        """Name of the input in this role, "" when absent."""
        return self.by_role.get(name, "")

    def operands(self, *names: str) -> Mapping[str, str]:
        """Inputs by role. The roles of an ONNX node are `names`, in order."""
        if self.fused:
            return self.by_role
        return {r: n for r, n in zip(names, self.inputs, strict=False) if n}

    @property
    def extras(self) -> list[str]:
        """Inputs in the epilogue roles e0, e1, ... in expression order."""
        found = [
            (int(r[1:]), n) for r, n in self.by_role.items() if r[0] == "e" and r[1:].isdigit()
        ]
        return [n for _, n in sorted(found)]

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    @property
    def fused(self) -> bool:
        return self.kind.startswith(":")


def makers(ops: Sequence[Op]) -> dict[str, Op]:
    """Who makes each value."""
    return {o: op for op in ops for o in op.outputs if o}


def readers(ops: Sequence[Op]) -> dict[str, list[Op]]:
    """Who reads each value, every op once."""
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
    opset: int,
    label: str,
) -> Op:
    """A fused op that lowering itself makes; `roles` are its operands."""
    return Op(
        f":{spec.op}",
        label,
        tuple(roles.values()),
        outputs,
        spec.to_json(),
        nodes,
        tuple(roles),
        opset,
        roles,
    )


def of_spec(
    spec: Spec,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    nodes: tuple[Node, ...],
    opset: int,
) -> Op:
    return Op(
        ":" + spec.op,
        nodes[0].name,
        inputs,
        outputs,
        spec.attrs,
        nodes,
        spec.roles,
        opset,
        dict(zip(spec.roles, inputs, strict=True)),
    )


def of_match(match: Match, graph: Graph) -> Op:
    return of_spec(match.spec, match.inputs, match.outputs, match.nodes, graph.opset())


#: Kind of a fused op whose spec is not believed, and its attribute that says what is wrong with one
#: that should be.
UNTRUSTED, WRONG = "a fused op", "wrong"


def of_node(node: Node, graph: Graph, trust: bool) -> Op:
    """An ONNX node, or a call to a fused function, which is what its spec attribute says where that
    is trusted.
    """
    if node.proto.domain == DOMAIN and not trust:
        return Op(UNTRUSTED, node.name, node.inputs, node.outputs, {}, (node,), (), graph.opset())
    if node.proto.domain == DOMAIN:
        spec, why = spec_table.read(node.attr(SPEC_ATTRIBUTE))
        why = why or (spec_table.fault(spec, node.inputs, node.outputs) if spec is not None else "")
        if spec is None or why:
            return Op(
                UNTRUSTED,
                node.name,
                node.inputs,
                node.outputs,
                {WRONG: why},
                (node,),
                (),
                graph.opset(),
            )
        # what follows them are constants only the body reads
        inputs = node.inputs[: len(spec.roles)]
        return of_spec(spec, inputs, node.outputs, (node,), graph.opset())
    return _norm_of(node, graph) or Op(
        node.op, node.name, node.inputs, node.outputs, node.attrs, (node,), (), graph.opset()
    )


#: Norms that ONNX Runtime's own tools leave behind, by what their inputs are, and their default
#: epsilon.
_NORMS = {
    "com.microsoft.SkipLayerNormalization": (("x", "res", "gamma", "beta", "xbias"), 1e-12),
    "com.microsoft.SkipSimplifiedLayerNormalization": (("x", "res", "gamma", "xbias"), 1e-12),
    "com.microsoft.SimplifiedLayerNormalization": (("x", "gamma"), 1e-5),
    "SimplifiedLayerNormalization": (("x", "gamma"), 1e-5),
}


def _norm_of(node: Node, graph: Graph) -> Op | None:
    """One of those as the fused op that says the same; None where it gives its mean or deviation,
    too.

    In a spec, axis 1 means channels: an axis that is counted from the front is made negative.
    """
    if node.op not in _NORMS or any(node.outputs[1:3]):
        return None
    axis, rank = node.attr("axis", -1), graph.rank(node.input(0))
    if axis >= 0 and rank is None:
        return None
    names, eps = _NORMS[node.op]
    roles = {r: i for r, i in zip(names, node.inputs, strict=False) if i}
    spec = LayerNormSpec(
        axis=axis - rank if axis >= 0 and rank is not None else axis,
        eps=node.attr("epsilon", eps),
        rms="Simplified" in node.op,
    )
    outputs = (node.outputs[0], *node.outputs[3:4])
    return of_roles(spec, roles, outputs, (node,), graph.opset(), node.name)
