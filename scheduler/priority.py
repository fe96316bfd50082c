"""The default policy: fusions compete by the microseconds they save; the best that still fits is
taken next.

A schedule is node-disjoint, and contracting every chosen chain to one node leaves the graph acyclic
(each chain convex is not enough: two convex chains can wait for each other). Ties fall by rule
priority, chain length, position and name, so the result is deterministic.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refusal, Why, reason
from tracea_onnx.ir.saving import Saving


def schedule(
    graph: Graph, priced: Sequence[tuple[Match, Saving, int]]
) -> tuple[list[tuple[Match, Saving]], list[Refusal]]:
    """Choose among (match, saving, rule priority).

    Returns the chosen in graph order, and why each other match was left out.
    """
    queue = sorted(
        priced, key=lambda p: (-p[1].us, -p[2], -len(p[0].nodes), p[0].anchor.index, p[0].rule)
    )
    chosen: list[tuple[Match, Saving]] = []
    refused: list[Refusal] = []
    owner: dict[int, int] = {}  # node index -> position in chosen
    spans: list[tuple[int, int]] = []  # of the nodes of the chosen, in order
    # An operand need not be read by the chain's own nodes (a layer behind a shared Reshape takes
    # the value before it), so no other chain may hide it.
    inner: dict[str, Match] = {}
    operand: dict[str, Match] = {}
    for match, saving, _ in queue:
        taken = next((owner[n.index] for n in match.nodes if n.index in owner), None)
        if saving.us <= 0:
            why = saving.reason or reason(Why.NO_SAVING)
            refused.append(Refusal(match.rule, match.anchor.name, why, near=False))
        elif taken is not None:
            refused.append(_lost(match, Why.SHARES_NODES, chosen[taken][0]))
        elif rivals := [inner[i] for i in match.inputs if i in inner] + [
            operand[o] for o in _inner(match) if o in operand
        ]:
            refused.append(_lost(match, Why.HIDES_OPERAND, rivals[0]))
        elif _closes_cycle(graph, match, chosen, owner, spans):
            refused.append(Refusal(match.rule, match.anchor.name, reason(Why.JOINT_CYCLE)))
        else:
            owner |= {n.index: len(chosen) for n in match.nodes}
            inner |= dict.fromkeys(_inner(match), match)
            operand |= dict.fromkeys(match.inputs, match)
            chosen.append((match, saving))
            insort(spans, _span(match))
    chosen.sort(key=lambda c: c[0].anchor.index)
    return chosen, refused


def _lost(match: Match, why: Why, winner: Match) -> Refusal:
    because = reason(why, rule=winner.rule, anchor=winner.anchor.name)
    return Refusal(match.rule, match.anchor.name, because)


def _inner(match: Match) -> set[str]:
    """Values that only exist inside the chain."""
    return {o for n in match.nodes for o in n.outputs if o} - set(match.outputs)


def _span(match: Match) -> tuple[int, int]:
    """The positions of its first and its last node."""
    return min(n.index for n in match.nodes), max(n.index for n in match.nodes)


def _closes_cycle(
    graph: Graph,
    match: Match,
    chosen: Sequence[tuple[Match, Saving]],
    owner: dict[int, int],
    spans: Sequence[tuple[int, int]],
) -> bool:
    """Whether a path leaves the chain and comes back once every chosen chain is one node."""
    inside = {n.index for n in match.nodes}
    bound = _reach(max(inside), spans)
    seen: set[int] = set(inside)
    stack: list[Node] = list(match.nodes)
    while stack:
        node = stack.pop()
        for value in node.outputs:
            for reader in graph.consumers(value):
                if reader.index in inside:
                    if node.index not in inside:
                        return True
                    continue
                if reader.index in seen or reader.index > bound:
                    continue
                group = chosen[owner[reader.index]][0].nodes if reader.index in owner else (reader,)
                seen.update(n.index for n in group)
                stack += group
    return False


def _reach(bound: int, spans: Sequence[tuple[int, int]]) -> int:
    """The last position from which a path can still lead back before `bound`: only chosen chains
    lead backwards.
    """
    grown = True
    while grown:
        grown = False
        for low, high in spans:
            if low <= bound < high:
                bound, grown = high, True
    return bound
