"""An account of a model as node data of Google's Model Explorer, which shows it over the graph of
the file that was explained: which rule fused a node, why a node is left, how long it should take.

The format is that of its `node_data_builder.py`: graphs by id, nodes by id. Ids are those that its
ONNX adapter (`model-explorer-onnx`) makes.
"""

from __future__ import annotations

import colorsys
import os
from collections.abc import Mapping
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.codegen import backend as backends
from tracea_onnx.explain.explanation import ExplainReport
from tracea_onnx.explain.html_page import hue
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.pipeline.fusion_loop import FusionOptions, transform
from tracea_onnx.pipeline.report import Report
from tracea_onnx.pricing import cost_model

#: What Model Explorer reads from one file.
NodeData = dict[str, dict[str, Any]]
#: What it shows at a node: a value, and colours.
Result = dict[str, Any]
KINDS = ("fused", "reason", "time")
#: How the adapter calls a main graph without a name.
_MAIN = "<main>"
_INK = "#16191d"
_LEFT = {"bgColor": "#fde0d0", "textColor": _INK}
#: Words have no sum.
_WORDS = {"hideInAggregatedStatsTable": True}
#: Colours from the shortest time to the longest one.
_HEAT = ("#fffbe6", "#f6b26b", "#c0392b")


def node_data(
    account: ExplainReport, model: ModelProto | str | os.PathLike[str]
) -> dict[str, NodeData]:
    """For each of KINDS, of the model that was explained. Times are microseconds of each node
    alone.
    """
    source, where, _ = optimizer.open_model(model)
    graphs = _graphs(source.model.graph, source.model.graph.name or _MAIN)
    heat = [{"stop": k / (len(_HEAT) - 1), "bgColor": c} for k, c in enumerate(_HEAT)]
    kinds: dict[str, tuple[Mapping[str, Result], dict[str, Any]]] = {
        "fused": (_fused(account), {"showExpandedSummaryOnGroupNode": True, **_WORDS}),
        "reason": (_reasons(account), {"hideInChildrenStatsTable": True, **_WORDS}),
        "time": (_times(source, where, account.report.backend), {"gradient": heat}),
    }
    return {
        kind: {
            name: {"results": {i: values[n] for i, n in ids.items() if n in values}, **more}
            for name, ids in graphs.items()
        }
        for kind, (values, more) in kinds.items()
    }


def _graphs(graph: GraphProto, name: str, before: str = "") -> dict[str, dict[str, str]]:
    """Names of nodes by their ids, of each graph. The adapter draws the branches of an If in place,
    and their nodes have its name `before` theirs.
    """
    out = {name: {f"{before}{n.name}": n.name for n in graph.node if n.name}}
    for n in graph.node:
        for a in n.attribute:
            if a.type == AttributeProto.GRAPH:
                body = f"{before}{n.name}/{a.name}"
                inside = _graphs(a.g, *((name, f"{body}/") if n.op_type == "If" else (body,)))
                for key, ids in inside.items():
                    out[key] = out.get(key, {}) | ids
    return out


def _fused(account: ExplainReport) -> Mapping[str, Result]:
    rules = sorted({f.rule for f in account.report.fused})
    colour = {r: _colour(k, len(rules)) for k, r in enumerate(rules)}
    return {
        n: {"value": f.rule, "bgColor": colour[f.rule], "textColor": _INK}
        for f in account.report.fused
        for n in f.nodes
    }


def _reasons(account: ExplainReport) -> Mapping[str, Result]:
    out: dict[str, Result] = {}
    for e in account.anchors:
        nearest = e.refusals[0] if e.refusals else None
        if nearest is None or (e.light and not nearest.near):
            continue
        said = f"{nearest.said}; fix: {e.fix}" if e.fix else nearest.said
        out[e.anchor] = {"value": said, **_LEFT}
    for n in account.coverage.leaving if account.coverage is not None else ():
        out[n.node] = {"value": f"leaves the provider: {n.reason}", **_LEFT}
    return out


def _times(source: model_file.Source, where: str, backend: str) -> Mapping[str, Result]:
    """By the roofline, of each node as a launch of its own; those that fold away have none. The
    model changes.
    """
    report = Report(where, optimizer.opset(source.model), backend, 0)
    transform(source, FusionOptions(backend, rules=(), expanded=True), report)
    rates = backends.usual_target(backend).rates
    return {
        n.name: {"value": round(rates.launch + cost_model.node_time(graph, [n], rates), 3)}
        for graph in canonical_form.views(source.model, source.folder)
        for n in graph.nodes
    }


def _colour(k: int, n: int) -> str:
    r, g, b = colorsys.hls_to_rgb(hue(k, n) / 360, 0.83, 0.62)
    return f"#{round(r * 255):02x}{round(g * 255):02x}{round(b * 255):02x}"
