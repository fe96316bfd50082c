"""An account of a model as one self-contained HTML page: the graph with its fused groups coloured,
and the reasons beside it.

`page.html`, `page.css` and `page.js` become one file. What the page shows is in it as JSON, and
`page.js` draws it on a canvas: thousands of elements would make a browser stutter.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.explain.explanation import ExplainReport, Explanation
from tracea_onnx.explain.layout import HEIGHT, WIDTH, layout
from tracea_onnx.ir import fused_op_names
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import Graph, Node

#: One box of the drawn graph, as `page.js` reads it. What would be empty is left out.
#: kind: fused, unfused (almost fused), alone (an anchor with nothing to fuse), plain, edge (an
#: input or output of the graph); title, name; rule: its number; says: lines about it; values: what
#: it makes; nodes: those it was fused from; fix; leaves: why it leaves the provider.
Box = dict[str, Any]


class _Item(NamedTuple):
    """A node of a list: others of its kind are folded."""

    kind: object
    node: str
    op: str
    said: str
    fix: str = ""


def page(account: ExplainReport) -> str:
    """The page as text."""
    rules = Counter(e.fused_by for e in account.anchors if e.fused_by)
    number = {r: k for k, r in enumerate(sorted(rules))}
    graphs = [
        _drawing(graph, account, number)
        for graph in canonical_form.views(account.model, account.folder)
        if graph.nodes
    ]
    left = [e for e in account.anchors if not e.fused_by and not e.light]
    leaving = account.coverage.leaving if account.coverage is not None else ()
    folder, _, name = account.report.model.rpartition("/")
    choices = "".join(
        f'<option value="{k}">{escape(g["title"])}</option>' for k, g in enumerate(graphs)
    )
    rows = _lines([_Item(n.reason, n.node, n.op, n.reason) for n in leaving])
    kinds = Counter(b["kind"] for g in graphs for b in g["boxes"])
    parts = {
        "title": escape(account.report.model),
        "name": escape(name),
        "folder": escape(folder),
        "facts": "".join(
            f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>"
            for k, v in _facts(account, sum(rules.values()))
        ),
        "legend": "".join(
            [
                *(
                    _key("rule", str(number[r]), f"--hue:{hue(number[r], len(rules))}", r, n)
                    for r, n in sorted(rules.items())
                ),
                *(
                    _key("kind", kind, "", label, kinds[kind])
                    for kind, label in (("unfused", "almost fused"), ("alone", "nothing to fuse"))
                    if kinds[kind]
                ),
                *([_key("kind", "leaving", "", "leaves the provider", len(leaving))] * bool(rows)),
            ]
        ),
        "count": str(len(left)),
        "unfused": _lines([_unfused(e) for e in left])
        or '<li class="none">Nothing that computes much was left.</li>',
        "leaving": f'<h2>Leaving the provider <b>{len(leaving)}</b></h2><ul class="why">{rows}</ul>'
        if rows
        else "",
        "bodies": f'<select id="body" aria-label="Graph">{choices}</select>'
        if len(graphs) > 1
        else "",
        "data": _json(
            {
                "box": [WIDTH, HEIGHT],
                "hues": [hue(k, len(rules)) for k in range(len(rules))],
                "rules": sorted(rules),
                "graphs": graphs,
            }
        ),
        "css": _file("page.css"),
        "js": _file("page.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("page.html"))


def _file(name: str) -> str:
    return resources.files("tracea_onnx.explain").joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """For a script element, which `</script>` inside a name would end."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _facts(account: ExplainReport, fused: int) -> list[tuple[str, str]]:
    r = account.report
    taken = sum(len(f.nodes) for f in r.fused)
    out = [
        ("opset", str(r.opset)),
        ("priced for", r.backend),
        ("chains fused", f"{fused:,}"),
        ("nodes in them", f"{taken:,} of {r.nodes_before:,}"),
    ]
    if r.fused:
        out.append(("estimated saving", _time(sum(f.saved_us for f in r.fused))))
    if account.coverage is not None:
        total = account.coverage.total
        stay = total - len(account.coverage.leaving)
        out.append(("on the provider", f"{stay:,} of {total:,} nodes"))
    return out


def _time(us: float) -> str:
    return f"{us / 1000:,.1f} ms" if us >= 1000 else f"{us:.1f} µs"


def _key(what: str, value: str, style: str, label: str, count: int) -> str:
    """A button of the legend: it shows its boxes alone."""
    mark = f'<i class="{value if what == "kind" else "fused"}" style="{style}"></i>'
    return (
        f'<li><button aria-pressed="false" data-{what}="{value}">{mark}{escape(label)} '
        f"<b>{count}</b></button></li>"
    )


def _lines(items: Sequence[_Item]) -> str:
    """The list of nodes with what is said of each; those of one kind below the first of them."""
    kinds: dict[object, list[_Item]] = {}
    for item in items:
        kinds.setdefault(item.kind, []).append(item)
    out = []
    for first, *others in kinds.values():
        fix = f"<em>Fix: {escape(first.fix)}</em>" if first.fix else ""
        more = "".join(f"<li>{_go(o, '')}</li>" for o in others)
        fold = f"<details><summary>{len(others)} more</summary><ul>{more}</ul></details>"
        said = f"<span>{escape(first.said)}</span>{fix}"
        out.append(f"<li>{_go(first, said)}{fold if others else ''}</li>")
    return "".join(out)


def _go(item: _Item, more: str) -> str:
    """A button that shows the node."""
    return (
        f'<button data-go="{escape(item.node, quote=True)}"><b>{escape(item.op)}</b> '
        f"{escape(item.node)}{more}</button>"
    )


def _unfused(e: Explanation) -> _Item:
    nearest = e.refusals[0]
    kind = (e.op, nearest.rule, nearest.because.code, e.fix)
    return _Item(kind, e.anchor, e.op, nearest.said, e.fix)


def hue(k: int, n: int) -> int:
    """Of the k-th of n rules, in degrees."""
    return round(210 + 360 * k / max(n, 1)) % 360


# --- what is drawn --------------------------------------------------------------------------------
def _drawing(graph: Graph, account: ExplainReport, rules: Mapping[str, int]) -> dict[str, Any]:
    """Boxes with their places, curves as eight numbers, edges as the numbers of boxes and of
    curves.
    """
    boxes, edges = _boxes(graph, account, rules)
    sources = [k for k, b in boxes.items() if b["kind"] == "edge" and k.startswith("<")]
    found = layout(list(boxes), edges, sources)
    number = {key: k for k, key in enumerate(boxes)}
    body = graph.proto.name or "without a name"
    return {
        "title": "main graph" if graph.outer is None else f"body {body}",
        "size": [round(v) for v in found.size],
        "boxes": [
            {"x": round(found.at[key][0]), "y": round(found.at[key][1]), **box}
            for key, box in boxes.items()
        ],
        "curves": [[round(v) for p in curve for v in p] for curve in found.curves],
        "edges": [
            [number[a], number[b], *way] for (a, b), way in zip(edges, found.ways, strict=True)
        ],
    }


def _boxes(
    graph: Graph, account: ExplainReport, rules: Mapping[str, int]
) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    taken = {e.anchor: e for e in account.anchors if e.fused_by}
    left = {e.anchor: e for e in account.anchors if not e.fused_by}
    price = {f.outputs: f.saved_us for f in account.report.fused}
    leaving = (
        {n.node: n.reason for n in account.coverage.leaving} if account.coverage is not None else {}
    )
    boxes: dict[str, Box] = {}
    edges: list[tuple[str, str]] = []
    for name in graph.inputs:
        if graph.consumers(name) and all(t.name != name for t in graph.proto.initializer):
            boxes[f"< {name}"] = _end(graph, name, "input")
            edges += [(f"< {name}", f"# {n.index}") for n in graph.consumers(name)]
    for n in graph.nodes:
        box = _fused(n, taken, price, rules) if n.proto.domain == DOMAIN else _left(n, left)
        box |= {"values": _values(graph, n.outputs), "leaves": leaving.get(n.name, "")}
        boxes[f"# {n.index}"] = {k: v for k, v in box.items() if v not in ("", [])}
        edges += [
            (f"# {n.index}", f"# {c.index}")
            for o in n.outputs
            if o
            for c in graph.consumers(o)
            if c.index > n.index
        ]
    for name in graph.outputs:
        made = graph.producer(name)
        if made is not None:
            boxes[f"> {name}"] = _end(graph, name, "output")
            edges.append((f"# {made.index}", f"> {name}"))
    return boxes, sorted(set(edges))


def _end(graph: Graph, name: str, kind: str) -> Box:
    return {"kind": "edge", "title": kind, "name": name, "values": _values(graph, [name])}


def _fused(
    n: Node,
    taken: Mapping[str, Explanation],
    price: Mapping[tuple[str, ...], float],
    rules: Mapping[str, int],
) -> Box:
    known = {e.key: e.value for e in n.proto.metadata_props}
    fused = taken.get(n.name.rsplit("/", 1)[0])
    rule = known.get("tracea.rule", fused.fused_by if fused else "")
    saves = f", saves about {_time(price[n.outputs])}" if n.outputs in price else ""
    return {
        "kind": "fused",
        "title": fused_op_names.op_of(n.proto.op_type),
        "name": n.name,
        "rule": rules.get(rule, "") if fused else "",
        "says": [f"Fused by {rule}{saves}."],
        "nodes": list(fused.nodes) if fused else [],
    }


def _left(n: Node, left: Mapping[str, Explanation]) -> Box:
    e = left.get(n.name)
    if e is None:
        return {"kind": "plain", "title": n.op, "name": n.name}
    nearest = e.refusals[0]
    said = [r for r in e.refusals if r.near] or [nearest]
    return {
        "kind": "unfused" if nearest.near else "plain" if e.light else "alone",
        "title": n.op,
        "name": n.name,
        "says": [r.said for r in said],
        "fix": e.fix,
    }


def _values(graph: Graph, names: Sequence[str]) -> list[str]:
    return [f"{name} {_shape(graph, name)}".rstrip() for name in names if name]


def _shape(graph: Graph, name: str) -> str:
    shape = graph.shape(name)
    return (
        "" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
    )
