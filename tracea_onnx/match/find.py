"""Runs every rule on every node that may anchor it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tracea_onnx.errors import ModelError, TraceaError, UsageError
from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refusal, Refuse, Why, reason
from tracea_onnx.match import rule_set


def select(
    rules: Sequence[Rule], only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[Rule, ...]:
    """The rules named by `only` (all when empty) without those named by `skip`.

    Raises UsageError for a name no rule has.
    """
    names = {r.name for r in rules}
    for name in [*only, *skip]:
        if name not in names:
            raise UsageError(
                f"there is no rule called '{name}'", f"choose from {', '.join(sorted(names))}"
            )
    return tuple(r for r in rules if (not only or r.name in only) and r.name not in skip)


def find(
    graph: Graph,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    *,
    rules: Sequence[Rule] | None = None,
    progress: Callable[[], None] | None = None,
    failed: Callable[[TraceaError], object] | None = None,
) -> tuple[list[Match], list[Refusal]]:
    """Every match and every refusal, in node order and then by rule name. `progress` is called
    after each node.

    Raises TraceaError naming rule and node when a rule breaks its contract: a fault of the rule,
    never of the model. With `failed` the error goes there, the match is dropped, and a refusal
    records it.
    """
    matches: list[Match] = []
    refusals: list[Refusal] = []
    by_anchor: dict[str, list[Rule]] = {}
    for rule in select(rule_set.rules() if rules is None else rules, only, skip):
        for op in rule.anchors:
            by_anchor.setdefault(op, []).append(rule)
    for node in graph.nodes:
        if node.unread:
            refusals += [
                _unread(rule, node, node.unread) for rule in by_anchor.get(node.written, ())
            ]
        for rule in by_anchor.get(node.op, ()):
            try:
                found = rule.match(graph, node)
            except Refuse as e:
                at = node if e.node is None else e.node
                refusals.append(Refusal(rule.name, node.name, e.reason, e.near, at.name))
                continue
            except MemoryError:
                raise
            except ModelError as e:  # a tensor that is damaged
                refusals.append(_unread(rule, node, e.what))
                continue
            except Exception as e:
                if failed is None:
                    raise _fault(rule, node, f"{type(e).__name__}: {e}") from e
                failed(_fault(rule, node, f"{type(e).__name__}: {e}"))
                refusals.append(_defect(rule, node, f"{type(e).__name__}: {e}"))
                continue
            fault = check(graph, found)
            if fault:
                if failed is None:
                    raise _fault(rule, node, fault)
                failed(_fault(rule, node, fault))
                refusals.append(_defect(rule, node, fault))
                continue
            if graph.is_convex(found.nodes):
                matches.append(found)
            else:
                refusals.append(Refusal(rule.name, node.name, reason(Why.CYCLE)))
        if progress is not None:
            progress()
    return matches, refusals


def _unread(rule: Rule, node: Node, fault: str) -> Refusal:
    return Refusal(rule.name, node.name, reason(Why.UNREAD, fault=fault), node=node.name)


def _defect(rule: Rule, node: Node, what: str) -> Refusal:
    fault = reason(Why.DEFECT, rule=rule.name, fault=what)
    return Refusal(rule.name, node.name, fault, node=node.name)


def _fault(rule: Rule, node: Node, what: str) -> TraceaError:
    return TraceaError(
        f"rule '{rule.name}' failed on node '{node.name}' ({what})",
        f"report this, and go on with --skip {rule.name}",
    )


def check(graph: Graph, match: Match) -> str:
    """Fault of a match, or "" when it keeps the contract of `contracts.Match`."""
    inside = {id(n) for n in match.nodes}
    made = {o for n in match.nodes for o in n.outputs if o}
    if not match.nodes or id(match.anchor) not in inside:
        return "its anchor is not among its nodes"
    if len(inside) != len(match.nodes):
        return "it lists a node twice"
    if len(match.inputs) != len(match.spec.roles):
        return f"it has {len(match.inputs)} inputs but {len(match.spec.roles)} roles"
    if any(not name or name in made for name in match.inputs):
        return "one of its inputs is made inside the chain, or is absent"
    missing = set(match.outputs) - made
    if missing or not match.outputs:
        return f"its outputs {sorted(missing)} are not made inside the chain"
    escaped = set(graph.escapes(match.nodes)) - set(match.outputs)
    if escaped:
        return f"{sorted(escaped)} are needed outside the chain but are not among its outputs"
    return ""


def anchors(graph: Graph, rules: Sequence[Rule] | None = None) -> list[Node]:
    """Nodes at which some rule may start, in order."""
    ops = {op for r in (rule_set.rules() if rules is None else rules) for op in r.anchors}
    return [n for n in graph.nodes if n.op in ops]
