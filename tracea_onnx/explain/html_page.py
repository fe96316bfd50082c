"""An account of a model as one self-contained HTML page: the graph with its fused groups coloured,
reasons on hover.

Layers come from networkx; within a layer, boxes stand near what they are connected to (barycentre
ordering).
"""

from __future__ import annotations

import colorsys
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.errors import UsageError
from tracea_onnx.explain.explanation import ExplainReport, Explanation
from tracea_onnx.ir import fused_op_names
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import Graph, Node

#: Boxes and the gaps between them, in pixels.
_WIDTH, _HEIGHT, _GAP, _RISE = 150.0, 38.0, 22.0, 34.0
#: Pixels of a layer that a value only passes through.
_THREAD = 12.0
_SWEEPS = 12


@dataclass(frozen=True)
class Box:
    """One node of the drawn graph. `lines` are its title and subtitle.

    `kind` is fused, unfused, alone (an anchor with nothing to fuse), plain, or edge (an input or
    output of the graph). `name` is its node's, `leaves` whether that would leave the provider.
    """

    kind: str
    lines: tuple[str, str]
    tip: str
    rule: str = ""
    name: str = ""
    leaves: bool = False


Place = tuple[float, float]


def page(account: ExplainReport) -> str:
    """The page as text. Raises UsageError when networkx is not installed."""
    rules = Counter(e.fused_by for e in account.anchors if e.fused_by)
    colours = {r: _colour(k, len(rules)) for k, r in enumerate(sorted(rules))}
    drawings: list[str] = []
    titles: list[str] = []
    for graph in canonical_form.views(account.model, account.folder):
        if graph.nodes:
            titles.append(
                f"body {graph.proto.name or 'without a name'}"
                if graph.outer is not None
                else "main graph"
            )
            drawings.append(_drawing(graph, account, colours, len(drawings)))
    template = (
        resources.files("tracea_onnx.explain").joinpath("page.html").read_text(encoding="utf-8")
    )
    left = [e for e in account.anchors if not e.fused_by and not e.light]
    leaving = account.coverage.leaving if account.coverage is not None else ()
    folder, _, name = account.report.model.rpartition("/")
    choices = "".join(f'<option value="{k}">{escape(t)}</option>' for k, t in enumerate(titles))
    rows = "".join(_row(n.node, n.op, n.reason, "") for n in leaving)
    parts = {
        "title": escape(account.report.model),
        "name": escape(name),
        "folder": escape(folder),
        "facts": "".join(
            f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>"
            for k, v in _facts(account, sum(rules.values()), len(left))
        ),
        "legend": "".join(
            f'<li data-rule="{escape(r)}"><i style="background:{colours[r]}"></i>{escape(r)} '
            f"<b>{n}</b></li>"
            for r, n in sorted(rules.items())
        ),
        "leaving_key": '<li data-show=".leaving"><i class="leaving"></i>leaves the provider</li>'
        if leaving
        else "",
        "unfused": "".join(_unfused(e) for e in left)
        or '<li class="none">every anchor was fused</li>',
        "leaving": f'<h2>Leaving the provider</h2><ul class="why">{rows}</ul>' if leaving else "",
        "bodies": f'<select id="body" aria-label="graph">{choices}</select>'
        if len(titles) > 1
        else "",
        "graphs": "".join(drawings),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _facts(account: ExplainReport, fused: int, left: int) -> list[tuple[str, str]]:
    r = account.report
    taken = sum(len(f.nodes) for f in r.fused)
    out = [
        ("opset", str(r.opset)),
        ("priced for", r.backend),
        ("chains fused", str(fused)),
        ("from nodes", f"{taken} of {r.nodes_before}"),
    ]
    out += [("anchors left", str(left))]
    out += [("saves about", f"{sum(f.saved_us for f in r.fused):,.0f} us")] if r.fused else []
    if account.coverage is not None:
        out.append(
            (
                "on the provider",
                (
                    f"{account.coverage.total - len(account.coverage.leaving)} of "
                    f"{account.coverage.total} nodes"
                ),
            )
        )
    return out


def _unfused(e: Explanation) -> str:
    nearest = e.refusals[0]
    return _row(
        e.anchor,
        e.op,
        f"{nearest.rule}: {nearest.reason}" if nearest.rule else nearest.reason,
        e.fix,
    )


def _row(node: str, op: str, said: str, fix: str) -> str:
    mend = f"<br><em>fix: {escape(fix)}</em>" if fix else ""
    return (
        f'<li data-go="{escape(node, quote=True)}"><b>{escape(op)}</b> '
        f"{escape(node)}<br><span>{escape(said)}</span>{mend}</li>"
    )


def _colour(k: int, n: int) -> str:
    r, g, b = colorsys.hls_to_rgb(0.58 + k / max(n, 1), 0.76 if k % 2 else 0.8, 0.6)
    return f"#{round(r * 255):02x}{round(g * 255):02x}{round(b * 255):02x}"


# --- what is drawn --------------------------------------------------------------------------------
def _drawing(graph: Graph, account: ExplainReport, colours: Mapping[str, str], number: int) -> str:
    boxes, edges = _boxes(graph, account)
    at, steps, size = _layout(
        list(boxes), edges, {k for k, b in boxes.items() if b.kind == "edge" and k.startswith("<")}
    )
    lines = [f'<path d="{"".join(steps)}"/>']
    for key, b in boxes.items():
        x, y = at[key]
        fill = f' style="fill:{colours[b.rule]}"' if b.rule else ""
        lines.append(
            f'<g class="{b.kind}{" leaving" if b.leaves else ""}" '
            f'data-name="{escape(b.name, quote=True)}" data-rule="{escape(b.rule)}"'
            f' data-tip="{escape(b.tip, quote=True)}"><rect x="{x - _WIDTH / 2:.0f}" y="{y:.0f}" '
            f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}"'
            f' rx="5"{fill}/><text x="{x:.0f}" y="{y + 16:.0f}">{escape(_short(b.lines[0]))}</text>'
            f'<text class="sub" x="{x:.0f}" '
            f'y="{y + 30:.0f}">{escape(_short(b.lines[1], 26))}</text></g>'
        )
    return (
        f'<svg class="drawing" data-size="{size[0]:.0f} {size[1]:.0f}"><g '
        f'id="graph{number}">{"".join(lines)}</g></svg>'
    )


def _boxes(graph: Graph, account: ExplainReport) -> tuple[dict[str, Box], list[tuple[str, str]]]:
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
            boxes[f"< {name}"] = Box("edge", (name, "input"), f"input {name} {_shape(graph, name)}")
            edges += [(f"< {name}", f"# {n.index}") for n in graph.consumers(name)]
    for n in graph.nodes:
        boxes[f"# {n.index}"] = _box(graph, n, taken, left, price, leaving)
        edges += [
            (f"# {n.index}", f"# {c.index}") for o in n.outputs if o for c in graph.consumers(o)
        ]
    for name in graph.outputs:
        made = graph.producer(name)
        if made is not None:
            boxes[f"> {name}"] = Box(
                "edge", (name, "output"), f"output {name} {_shape(graph, name)}"
            )
            edges.append((f"# {made.index}", f"> {name}"))
    return boxes, sorted(set(edges))


def _box(
    graph: Graph,
    n: Node,
    taken: Mapping[str, Explanation],
    left: Mapping[str, Explanation],
    price: Mapping[tuple[str, ...], float],
    leaving: Mapping[str, str],
) -> Box:
    out = [f"{n.op} {n.name}", *(f"{o} {_shape(graph, o)}" for o in n.outputs if o)]
    gone = [f"leaves the provider: {leaving[n.name]}"] if n.name in leaving else []
    if n.proto.domain == DOMAIN:
        known = {e.key: e.value for e in n.proto.metadata_props}
        fused = taken.get(n.name.rsplit("/", 1)[0])
        rule = known.get("tracea.rule", fused.fused_by if fused else "")
        names = list(fused.nodes) if fused else []
        out[0] = f"fused by {rule}" + (
            f", saves about {price[n.outputs]:.1f} us" if n.outputs in price else ""
        )
        title = fused_op_names.op_of(n.proto.op_type)
        label = f"{n.name.rsplit('/', 1)[0]} +{len(names) - 1}" if names else n.name
        return Box(
            "fused",
            (title, label),
            "\n".join([*out, *gone, "", *names]),
            rule if fused else "",
            n.name,
            bool(gone),
        )
    e = left.get(n.name)
    if e is None:
        return Box("plain", (n.op, n.name), "\n".join([*out, *gone]), "", n.name, bool(gone))
    said = [f"{r.rule}: {r.reason}" if r.rule else r.reason for r in e.refusals if r.near] or [
        f"{e.refusals[0].rule}: {e.refusals[0].reason}".lstrip(": ")
    ]
    kind = "unfused" if e.refusals[0].near else "plain" if e.light else "alone"
    return Box(
        kind,
        (n.op, n.name),
        "\n".join([*out, *gone, "", *said, *([f"fix: {e.fix}"] if e.fix else [])]),
        "",
        n.name,
        bool(gone),
    )


def _shape(graph: Graph, name: str) -> str:
    shape = graph.shape(name)
    return (
        "" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
    )


def _short(text: str, most: int = 19) -> str:
    return text if len(text) <= most else "…" + text[-(most - 1) :]


# --- where it is drawn ----------------------------------------------------------------------------
def _layout(
    keys: Sequence[str], edges: Sequence[tuple[str, str]], sources: set[str]
) -> tuple[dict[str, Place], list[str], Place]:
    """Top centres of the boxes, the curves of the edges, and the drawing's size."""
    try:
        import networkx
    except ImportError:
        raise UsageError(
            "the page needs networkx, which is not installed",
            'python -m pip install "tracea-onnx[html]"',
        ) from None
    g: Any = networkx.DiGraph()
    g.add_nodes_from(keys)
    g.add_edges_from(edges)
    layer = {
        k: depth for depth, layer in enumerate(networkx.topological_generations(g)) for k in layer
    }
    for k in sources:  # a graph input stands just above its first reader
        layer[k] = min((layer[r] for r in g.successors(k)), default=1) - 1
    threaded = _thread(g, layer)
    rows: list[list[Any]] = [[] for _ in range(max(layer.values(), default=0) + 1)]
    for k in threaded:
        rows[layer[k]].append(k)
    width = {k: _WIDTH if isinstance(k, str) else _THREAD for k in threaded}
    x = _columns(threaded, rows, width)
    at = {k: (x[k], 10 + layer[k] * (_HEIGHT + _RISE)) for k in threaded}
    steps = _steps(threaded, at)
    right = max((x[k] + width[k] / 2 for k in threaded), default=0.0)
    return {k: at[k] for k in keys}, steps, (right + 10, 20 + len(rows) * (_HEIGHT + _RISE))


def _thread(g: Any, layer: dict[Any, int]) -> Any:
    """The graph with each long edge cut into steps of one layer; values that go far from one node
    share their way, as a trunk does.
    """
    out = g.__class__()
    out.add_nodes_from(g.nodes)
    for a, b in g.edges:
        way = [(a, depth) for depth in range(layer[a] + 1, layer[b])]
        layer.update({s: s[1] for s in way})
        out.add_edges_from(zip([a, *way], [*way, b], strict=True))
    return out


def _columns(g: Any, rows: list[list[Any]], width: Mapping[Any, float]) -> dict[Any, float]:
    """x of every node: each as near the mean of its neighbours as the others of its row allow,
    sweeping down and up.
    """
    x: dict[Any, float] = {}
    for row in rows:
        _place(row, {k: float(i) for i, k in enumerate(row)}, width, x)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            near = {
                k: [x[n] for n in (g.predecessors(k) if down else g.successors(k))] for k in row
            }
            both = (
                {k: [x[n] for n in (*g.predecessors(k), *g.successors(k))] for k in row}
                if sweep >= _SWEEPS // 2
                else near
            )
            wish = {k: (sum(both[k]) / len(both[k]) if both[k] else x[k]) for k in row}
            row.sort(key=lambda k: wish[k])
            _place(row, wish, width, x)
    least = min((x[k] - width[k] / 2 for k in x), default=0.0)
    return {k: v - least + 10 for k, v in x.items()}


def _place(
    row: Sequence[Any], wish: Mapping[Any, float], width: Mapping[Any, float], x: dict[Any, float]
) -> None:
    """Put the row's nodes in order, none overlapping, as a whole where they wish to be (pool
    adjacent violators).
    """
    # members, position of the first, width so far
    groups: list[tuple[list[Any], float, float]] = []
    for k in row:
        members, start, used = [k], wish[k] - width[k] / 2, width[k] + _GAP
        while groups and groups[-1][1] + groups[-1][2] > start:
            before, at, wide = groups.pop()
            n, m = len(before), len(members)
            # The merged group starts where the mean of its members' wishes puts it.
            start = (at * n + (start - wide) * m) / (n + m)
            members, used = before + members, wide + used
        groups.append((members, start, used))
    for members, start, _ in groups:
        for k in members:
            x[k] = start + width[k] / 2
            start += width[k] + _GAP


def _steps(g: Any, at: Mapping[Any, Place]) -> list[str]:
    """A curve for every edge: it leaves and enters boxes straight down, and passes a thread in the
    direction the thread has there.
    """
    lean: dict[Any, float] = {}
    for k in g.nodes:
        if not isinstance(k, str):
            before, after = [at[n] for n in g.predecessors(k)], [at[n] for n in g.successors(k)]
            lean[k] = (_mean([p[0] for p in after]) - _mean([p[0] for p in before])) / (
                _mean([p[1] for p in after]) - _mean([p[1] for p in before])
            )
    out = []
    for a, b in g.edges:
        x, y = at[a][0], at[a][1] + (_HEIGHT / 2 if a in lean else _HEIGHT)
        u, v = at[b][0], at[b][1] + (_HEIGHT / 2 if b in lean else 0.0)
        d = (v - y) * 0.42
        out.append(
            f"M{x:.0f} {y:.0f}C{x + lean.get(a, 0.0) * d:.0f} {y + d:.0f} "
            f"{u - lean.get(b, 0.0) * d:.0f} {v - d:.0f} {u:.0f} {v:.0f}"
        )
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
