"""Cache of the chains that one rule fuses and other rules must leave alone, so that each is matched
once.
"""

from __future__ import annotations

import functools
from typing import Any, ParamSpec, Protocol

from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse

P = ParamSpec("P")


class _Matcher(Protocol[P]):
    def __call__(self, graph: Graph, node: Node, /, *args: P.args, **how: P.kwargs) -> Match: ...


def _answers(_: Graph) -> dict[tuple[Any, ...], Match | Refuse]:
    return {}


def once(match: _Matcher[P]) -> _Matcher[P]:
    """`match` with the answer of the first time for the same node, asked in the same way."""

    @functools.wraps(match)
    def asked(graph: Graph, node: Node, /, *args: P.args, **how: P.kwargs) -> Match:
        known = graph.derived(_answers)
        key = (match, id(node), args, *how.items())
        if key not in known:
            try:
                known[key] = match(graph, node, *args, **how)
            except Refuse as why:
                known[key] = why.copy()
        found = known[key]
        if isinstance(found, Refuse):
            raise found.copy()
        return found

    return asked
