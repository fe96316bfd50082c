"""Reshapes whose target is computed from shapes get a constant one, with 0 or -1 where sizes depend
on the input; an Expand to its own shape goes.

    Reshape(x [n, 6], Concat(Shape(x)[0], 6, 1))  ->  Reshape(x, [0, 6, 1])

Only sizes that one input axis alone has a name for are trusted: that two inputs give a size the
same name is a promise nothing at run time keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from onnx import GraphProto, numpy_helper

from tracea_onnx.ir import dims, edit
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.shapes.symbolic import Shapes, same, shapes


def fold_targets(
    graph: Graph, protected: Collection[str], main: GraphProto, names: edit.Names
) -> int:
    """Rewrite the Reshapes of `graph` (`main` or a body in it) in place and drop the Expands;
    returns how many changed.
    """
    s, shared, inner = shapes(graph), _shared(main), edit.body_names(graph.proto)
    targets: list[tuple[Node, list[int]]] = []
    gone: dict[int, tuple[str, str]] = {}
    for n in graph.nodes:
        if (
            n.op == "Reshape"
            and n.input(1)
            and not graph.is_const(n.input(1))
            and not n.attr("allowzero", 0)
        ):
            target = _constant(s, n, shared)
            if target is not None:
                targets.append((n, target))
        elif (
            n.op == "Expand"
            and n.outputs[0] not in protected
            and n.outputs[0] not in inner
            and n.input(0) not in inner
            and _repeats_nothing(s, n, shared)
        ):
            gone[n.index] = (n.outputs[0], n.input(0))
    for n, target in targets:
        n.proto.input[1] = names.new(f"{n.outputs[0]}_target")
        graph.proto.initializer.append(
            numpy_helper.from_array(np.array(target, np.int64), n.proto.input[1])
        )
    edit.rename_uses(graph.proto.node, edit.resolve(dict(gone.values())))
    edit.keep_nodes(graph.proto, set(range(len(graph.proto.node))) - gone.keys())
    return len(targets) + len(gone)


def _shared(main: GraphProto) -> frozenset[str]:
    """Names that more than one axis of the inputs bears."""
    names = Counter(
        d.dim_param for i in main.input for d in i.type.tensor_type.shape.dim if d.dim_param
    )
    return frozenset(name for name, times in names.items() if times > 1)


def _trusted(d: DimLike, shared: frozenset[str]) -> bool:
    return not isinstance(d, Dim) or shared.isdisjoint(d.symbols)


def _constant(s: Shapes, node: Node, shared: frozenset[str]) -> list[int] | None:
    """The target with 0 for sizes that stay at their place, or -1 for one that follows from the
    others; None where that does not say it all.
    """
    shape, content, count = s.dims(node.input(0)), s.content(node.input(1)), s.count(node.input(0))
    if shape is None or content is None or count is None or content.ndim != 1:
        return None
    target: list[DimLike] = list(content)
    open_ = [k for k, v in enumerate(target) if isinstance(v, Dim)]
    if (
        not open_
        or any(not _trusted(v, shared) for v in target)
        or any(isinstance(v, float) or (isinstance(v, int) and v <= 0) for v in target)
    ):
        return None
    if all(k < len(shape) and same(shape[k], target[k]) for k in open_):
        return [v if isinstance(v, int) else 0 for v in target]
    # With no element, ONNX Runtime takes a -1 only beside sizes that are not 0.
    rest = (
        dims.quotient(count, dims.product(_without(target, open_[0]))) if len(open_) == 1 else None
    )
    if rest is None or not same(rest, target[open_[0]]):
        return None
    return [v if isinstance(v, int) else -1 for v in target]


def _without(target: Sequence[DimLike], k: int) -> list[DimLike]:
    return [v for j, v in enumerate(target) if j != k]


def _repeats_nothing(s: Shapes, node: Node, shared: frozenset[str]) -> bool:
    shape, content = s.dims(node.input(0)), s.content(node.input(1))
    if (
        shape is None
        or content is None
        or content.ndim != 1
        or len(content) > len(shape)
        or any(isinstance(v, float) for v in content)
    ):
        return False
    if not all(_trusted(v, shared) for v in content):
        return False
    return all(same(v, 1) or same(v, d) for v, d in zip(content[::-1], shape[::-1], strict=False))
