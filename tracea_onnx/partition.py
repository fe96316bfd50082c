"""Splits a graph of ops into convex groups the provider can run whole."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.graph import Graph
from tracea_onnx.lower.op import Op


def topological(ops: Sequence[Op], graph: Graph) -> list[Op]:
    """Order ops (fused ones contracted) so that producers come first; stable in the nodes' own order.

    Raises ValueError when the fused groups are not jointly convex."""
    producer = {o: k for k, op in enumerate(ops) for o in _made(op)}
    needs = [{producer[n] for n in _read(op, graph) if n in producer and producer[n] != k} for k, op in enumerate(ops)]
    users: list[list[int]] = [[] for _ in ops]
    for k, deps in enumerate(needs):
        for d in deps:
            users[d].append(k)
    import heapq

    left = [len(d) for d in needs]
    ready = [(ops[k].nodes[0].index, k) for k, n in enumerate(left) if n == 0]
    heapq.heapify(ready)
    out: list[Op] = []
    while ready:
        _, k = heapq.heappop(ready)
        out.append(ops[k])
        for u in users[k]:
            left[u] -= 1
            if left[u] == 0:
                heapq.heappush(ready, (ops[u].nodes[0].index, u))
    if len(out) != len(ops):
        raise ValueError("the chosen fusions depend on each other in a cycle")
    return out


def _made(op: Op) -> list[str]:
    return [o for n in op.nodes for o in n.outputs if o]


def _read(op: Op, graph: Graph) -> set[str]:
    """Values an op reads from outside, captured ones included (control-flow nodes list them as inputs)."""
    made = set(_made(op))
    return {i for n in op.nodes for i in n.inputs if i and i not in made}


def groups(ops: Sequence[Op], supported: Sequence[bool], graph: Graph) -> list[list[int]]:
    """Indices of ops, grouped so that no path leaves a group and comes back. `ops` is in topological order.

    For every op we keep which groups reach it (`reach`) and which reach it along a path that leaves them (`out`); an op may
    join any group that is not in its `out`. It prefers its producers' groups, else the latest one."""
    producer = {o: k for k, op in enumerate(ops) for o in _made(op)}
    group_of: list[int] = []
    reach: list[frozenset[int]] = []
    out: list[frozenset[int]] = []
    members: list[list[int]] = []
    for k, op in enumerate(ops):
        preds = {producer[n] for n in _read(op, graph) if n in producer}
        r: set[int] = set()
        leaving: set[int] = set()
        for p in preds:
            own = group_of[p]
            r |= reach[p] | ({own} if own >= 0 else set())
            leaving |= out[p] | (reach[p] - {own})
        g = -1
        if supported[k]:
            near = sorted({group_of[p] for p in preds if group_of[p] >= 0} - leaving, reverse=True)
            rest = [c for c in range(len(members) - 1, -1, -1) if c not in leaving]
            g = near[0] if near else rest[0] if rest else len(members)
            if g == len(members):
                members.append([])
            members[g].append(k)
        group_of.append(g)
        reach.append(frozenset(r))
        out.append(frozenset(leaving))
    return members
