"""Splits a graph of ops into convex groups the provider can run whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.errors import ModelError
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.op_traits import Trait, operators

_QUANTISE, _COUNTED = operators(Trait.QUANTISE), operators(Trait.COUNTED)


def topological(ops: Sequence[Op], graph: Graph) -> list[Op]:
    """Order ops (fused ones contracted) so that producers come first; stable in the nodes' own
    order.

    Raises ModelError when the nodes need each other in a circle.
    """
    producer = {o: k for k, op in enumerate(ops) for o in _made(op)}
    needs = [
        {producer[n] for n in _read(op, graph) if n in producer and producer[n] != k}
        for k, op in enumerate(ops)
    ]
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
        raise ModelError(
            "the nodes of the graph need each other in a circle", "export the model again"
        )
    return out


def _made(op: Op) -> list[str]:
    return [o for n in op.nodes for o in n.outputs if o]


def _read(op: Op, graph: Graph) -> set[str]:
    """Values an op reads from outside, captured ones included (control-flow nodes list them as
    inputs).
    """
    made = set(_made(op))
    return {i for n in op.nodes for i in n.inputs if i and i not in made}


def groups(ops: Sequence[Op], supported: Sequence[bool], graph: Graph) -> list[list[int]]:
    """Indices of ops, grouped so that no cycle appears when every group becomes one node. `ops` is
    in topological order.

    An op may join a group unless one of its producers outside the group comes after the group; it
    prefers its producers' groups, else the latest one. Sets of groups are bit masks: `before[g]`
    holds the groups with a path to group g, `reach[k]` those with a path to op k when it was
    placed. Groups that come to precede one of `reach[k]` later precede op k, too, so `closed` makes
    the mask complete.
    """
    producer = {o: k for k, op in enumerate(ops) for o in _made(op)}
    needs = [{producer[n] for n in _read(op, graph) if n in producer} for op in ops]
    followers = _followers(ops, supported, needs)
    group_of: list[int] = []
    reach: list[int] = []
    before: list[int] = []
    members: list[list[int]] = []

    def closed(mask: int) -> int:
        out = mask
        for g in _bits(mask):
            out |= before[g]
        return out

    for k in range(len(ops)):
        preds = needs[k]
        banned = above = 0
        for p in preds:
            h = group_of[p]
            earlier = before[h] if h >= 0 else closed(reach[p])
            banned |= earlier
            if h >= 0 and ops[p].kind in _COUNTED:
                banned |= 1 << h  # how large its result is says a run, behind the whole group
            above |= earlier | (1 << h if h >= 0 else 0)
        g = -1
        if supported[k] and k not in followers:
            near = [h for h in {group_of[p] for p in preds} if h >= 0 and not banned >> h & 1]
            g = (
                max(near)
                if near
                else next(
                    (h for h in range(len(members) - 1, -1, -1) if not banned >> h & 1),
                    len(members),
                )
            )
            if g == len(members):
                members.append([])
                before.append(0)
            members[g].append(k)
            more = above & ~(1 << g)
            for h in range(len(members)):
                if h == g or before[h] >> g & 1:
                    before[h] |= more
        group_of.append(g)
        reach.append(above)
    for k, reader in followers.items():
        members[group_of[reader]].append(k)
    return [sorted(group) for group in members]


def _followers(
    ops: Sequence[Op], supported: Sequence[bool], needs: Sequence[set[int]]
) -> dict[int, int]:
    """Ops that dequantise constants, with the one op that reads each: they belong into its group,
    wherever that is.
    """
    readers: dict[int, list[int]] = {}
    for k, before in enumerate(needs):
        for p in before:
            readers.setdefault(p, []).append(k)
    return {
        k: read[0]
        for k, read in readers.items()
        if not needs[k]
        and ops[k].kind in _QUANTISE
        and len(read) == 1
        and supported[k]
        and supported[read[0]]
    }


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
