"""Transposes sink through pointwise nodes to where an inverse one undoes them, so that what
computes next to a convolution stands next to it.

    Conv -> Transpose(NHWC) -> Add(bias [C]) -> Relu -> Transpose(NCHW) -> Conv
        becomes   Conv -> Add(bias [1, C, 1, 1]) -> Relu -> Conv

Exact: every element meets the same operands. Done where fewer elements are transposed afterwards,
or as many and a convolution gets its epilogue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.pointwise_ops import POINTWISE
from tracea_onnx.support.data_classes import dataclass

Perm = tuple[int, ...]
_PRODUCERS = operators(Trait.CONV, Trait.DECONV, Trait.BATCH_NORM)
_ARRANGED = frozenset(("Concat", "Pad"))


def sink(graph: Graph, protected: Collection[str], names: edit.Names) -> int:
    """Sink the Transposes of one permutation, and drop those that undo the one before them; returns
    how many nodes changed.
    """
    inner = edit.body_names(graph.proto)
    gone = _cancel(graph, protected, inner)
    if gone:
        return gone
    perms = dict.fromkeys(p for n in graph.nodes if (p := _perm(n)) is not None)
    for perm in perms:
        regions = _independent(
            graph,
            [r for r in _regions(graph, perm, inner) if _pays(graph, r, protected, inner)],
            protected,
            inner,
        )
        if regions:
            _sink(graph, regions, protected, inner, names)
            return sum(len(r.members) for r in regions)
    return 0


def _perm(n: Node | None) -> Perm | None:
    """Permutation of a Transpose; None for other nodes, and for what permutes no axes."""
    perm = n.attr("perm") if n is not None and n.op == "Transpose" else None
    return tuple(perm) if perm and sorted(perm) == list(range(len(perm))) else None


def _inverse(perm: Perm) -> Perm:
    return tuple(int(k) for k in np.argsort(perm))


def _cancel(graph: Graph, protected: Collection[str], inner: Collection[str]) -> int:
    new: dict[str, str] = {}
    for n in graph.nodes:
        first, second = graph.producer(n.input(0)), _perm(n)
        before = _perm(first)
        if first is None or before is None or second is None or second != _inverse(before):
            continue
        if (
            n.outputs[0] not in protected
            and n.outputs[0] not in inner
            and first.input(0) not in inner
        ):
            new[n.outputs[0]] = first.input(0)
    edit.rename_uses(graph.proto.node, edit.resolve(new))
    return len(new)


@dataclass
class _Region:
    """Nodes between Transposes of one permutation that can compute before it.

    `entries`: those Transposes, by their outputs.
    """

    perm: Perm
    members: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)


def _regions(graph: Graph, perm: Perm, inner: Collection[str]) -> list[_Region]:
    """The nodes all whose run-time operands are transposed by `perm`, as many steps behind as may
    be, in connected parts.
    """
    entries = {n.outputs[0]: n for n in graph.nodes if _perm(n) == perm and n.input(0) not in inner}
    part: dict[str, _Region] = {}  # by value
    for n in graph.nodes:
        read = _moved_inputs(graph, n, len(perm))
        if (
            not read
            or any(i not in entries and i not in part for i in read)
            or n.outputs[0] in inner
        ):
            continue
        region = _Region(perm, [], {i: entries[i] for i in read if i not in part})
        for other in {id(part[i]): part[i] for i in read if i in part}.values():
            region.members += other.members
            region.entries |= other.entries
        region.members.append(n)
        part |= dict.fromkeys((*region.entries, *(m.outputs[0] for m in region.members)), region)
    return list({id(r): r for r in part.values()}.values())


def _moved_inputs(graph: Graph, n: Node, rank: int) -> list[str]:
    """The run-time operands of a node that computes the same in any order of axes; none when it
    does not.
    """
    if (
        len(n.outputs) != 1
        or graph.opset() < 7
        or (n.op not in POINTWISE and n.op not in _ARRANGED)
    ):
        return []
    if n.op.startswith("com.") and len(n.inputs) > 1:  # a bias along the last axis
        return []
    if n.op == "Pad" and (n.input(3) or len(_amounts(graph, n)) != 2 * rank):
        return []
    if n.op == "Concat" and not -rank <= n.attr("axis", rank) < rank:
        return []
    first = [n.input(0)] if n.op == "Pad" else [i for i in n.inputs if i]
    read = [i for i in first if not graph.is_const(i)]
    fixed = [i for i in first if graph.is_const(i)]
    if any((graph.rank(i) or 0) > rank or graph.dtype(i) == TensorProto.STRING for i in fixed):
        return []
    return [] if n.op == "Concat" and any(graph.rank(i) != rank for i in fixed) else read


def _amounts(graph: Graph, n: Node) -> list[int]:
    """Pad amounts of a Pad; empty if they are not constant."""
    return (graph.ints(n.input(1)) if n.input(1) else n.attr("pads")) or []


def _undone(
    graph: Graph, region: _Region, value: str, protected: Collection[str], inner: Collection[str]
) -> list[Node]:
    """The Transposes that give `value` its old order back and can go; at most one of them makes a
    name that must stay.
    """
    found = [
        c
        for c in graph.consumers(value)
        if _perm(c) == _inverse(region.perm) and c.outputs[0] not in inner
    ]
    kept = [c for c in found if c.outputs[0] in protected]
    return [c for c in found if c not in kept[1:]]


def _stays(
    graph: Graph, region: _Region, value: str, undone: Sequence[Node], protected: Collection[str]
) -> bool:
    """Whether something needs `value` in its present order."""
    inside = {id(n) for n in (*region.members, *undone)}
    return value in protected or any(id(c) not in inside for c in graph.consumers(value))


def _independent(
    graph: Graph, regions: Sequence[_Region], protected: Collection[str], inner: Collection[str]
) -> list[_Region]:
    """Regions of which none undoes a Transpose that one of them begins with (a permutation may be
    its own inverse).
    """
    begun: set[int] = set()
    ended: set[int] = set()
    out: list[_Region] = []
    for r in regions:
        begins = {t.index for t in r.entries.values()}
        ends = {
            c.index for n in r.members for c in _undone(graph, r, n.outputs[0], protected, inner)
        }
        if begins & (ends | ended) or ends & begun:
            continue
        out.append(r)
        begun |= begins
        ended |= ends
    return out


def _pays(
    graph: Graph, region: _Region, protected: Collection[str], inner: Collection[str]
) -> bool:
    removed = [v for v in region.entries if not _stays(graph, region, v, (), protected)]
    feeds_on = any(
        (p := graph.producer(t.input(0))) is not None and p.op in _PRODUCERS
        for v, t in region.entries.items()
        if v in removed
    )
    added: list[str] = []
    for n in region.members:
        undone = _undone(graph, region, n.outputs[0], protected, inner)
        removed += [n.outputs[0]] * len(undone)
        added += [n.outputs[0]] if _stays(graph, region, n.outputs[0], undone, protected) else []
    sizes = {v: _elements(graph, v) for v in (*removed, *added)}
    less, more = (
        len(part) if None in sizes.values() else sum(sizes[v] or 0 for v in part)
        for part in (removed, added)
    )
    return len(removed) >= len(added) and (less > more or (less == more and feeds_on))


def _elements(graph: Graph, value: str) -> int | None:
    """How many elements there are per unit of the sizes only known at run time; None without a
    shape.
    """
    shape = graph.shape(value)
    return (
        None
        if shape is None
        else int(np.prod([d for d in shape if isinstance(d, int)], dtype=np.int64))
    )


def _sink(
    graph: Graph,
    regions: Sequence[_Region],
    protected: Collection[str],
    inner: Collection[str],
    names: edit.Names,
) -> None:
    behind: dict[int, list[NodeProto]] = {}  # by the index of the node they follow
    gone: dict[str, str] = {}
    dropped: set[int] = set()
    for region in regions:
        now = {v: t.input(0) for v, t in region.entries.items()}
        for n in region.members:
            value = n.outputs[0]
            undone = _undone(graph, region, value, protected, inner)
            kept = next((c.outputs[0] for c in undone if c.outputs[0] in protected), "")
            now[value] = kept or names.new(f"{value}_before")
            if _stays(graph, region, value, undone, protected):
                name = names.new(f"{n.name}_transposed")
                behind[n.index] = [
                    helper.make_node(
                        "Transpose", [now[value]], [value], name=name, perm=region.perm
                    )
                ]
            gone |= {c.outputs[0]: now[value] for c in undone if c.outputs[0] != kept}
            dropped |= {c.index for c in undone}
        for n in region.members:
            _move(graph, n, now, region.perm, names)
    edit.replace_nodes(
        graph.proto,
        [
            m
            for n in graph.nodes
            if n.index not in dropped
            for m in (n.proto, *behind.get(n.index, []))
        ],
    )
    edit.rename_uses(graph.proto.node, gone)


def _move(graph: Graph, n: Node, now: Mapping[str, str], perm: Perm, names: edit.Names) -> None:
    """Let `n` compute on operands in the order they had before the Transpose."""
    n.proto.output[0] = now[n.outputs[0]]
    for k, name in enumerate(n.inputs[:1] if n.op == "Pad" else n.inputs):
        n.proto.input[k] = now[name] if name in now else _constant(graph, name, perm, names)
    for a in n.proto.attribute:
        if n.op == "Concat" and a.name == "axis":
            a.i = perm[a.i]
        elif n.op == "Pad" and a.name == "pads":
            a.ints[:] = _pads(list(a.ints), perm)
    if n.op == "Pad" and n.input(1):
        n.proto.input[1] = _stored(
            graph, np.array(_pads(_amounts(graph, n), perm), np.int64), n.input(1), names
        )


def _constant(graph: Graph, name: str, perm: Perm, names: edit.Names) -> str:
    value = graph.const(name) if name else None
    if value is None or value.size == 1:
        return name
    full = value.reshape([1] * (len(perm) - value.ndim) + list(value.shape))
    return _stored(graph, np.ascontiguousarray(full.transpose(_inverse(perm))), name, names)


def _stored(graph: Graph, value: npt.NDArray[Any], name: str, names: edit.Names) -> str:
    made = names.new(f"{name}_before")
    graph.proto.initializer.append(numpy_helper.from_array(value, made))
    return made


def _pads(pads: Sequence[int], perm: Perm) -> list[int]:
    back, half = _inverse(perm), len(perm)
    return [pads[side + back[axis]] for side in (0, half) for axis in range(half)]
