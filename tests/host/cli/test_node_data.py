"""Node data for Model Explorer: its format, as `node_data_builder.py` of that project documents it,
and that every fact is at its node.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto

from tests.host.pipeline_models import leaving, parse
from tracea_onnx.cli.main import main
from tracea_onnx.explain import explanation
from tracea_onnx.explain.node_data import KINDS, NodeData, node_data

#: Keys of GraphNodeData, NodeDataResult and GradientItem.
_GRAPH = {
    "results", "thresholds", "gradient", "hideInAggregatedStatsTable", "hideInChildrenStatsTable",
    "hideAggregatedStats", "showExpandedSummaryOnGroupNode",
    "showLabelCountColumnsInChildrenStatsTable",
}  # fmt: skip
_RESULT, _STOP = {"value", "bgColor", "textColor"}, {"stop", "bgColor", "textColor"}
_HEX = re.compile(r"#[0-9a-f]{6}")


def check(data: NodeData) -> None:
    for graph in data.values():
        assert "results" in graph and set(graph) <= _GRAPH
        for result in graph["results"].values():
            assert "value" in result and set(result) <= _RESULT
            assert isinstance(result["value"], str | int | float)
            colours = [result[k] for k in ("bgColor", "textColor") if k in result]
            assert all(_HEX.fullmatch(c) for c in colours)
        stops = graph.get("gradient", [])
        assert all(set(s) <= _STOP and _HEX.fullmatch(s["bgColor"]) for s in stops)
        assert not stops or (stops[0]["stop"], stops[-1]["stop"]) == (0, 1)


def made(model: ModelProto, **options: Any) -> dict[str, NodeData]:
    for graph in (model.graph, *(a.g for n in model.graph.node for a in n.attribute)):
        for n in graph.node:
            n.name = n.name or f"my {n.op_type}"
    found = node_data(explanation.explain(model, backend="cpu", **options), model)
    assert tuple(found) == KINDS
    for data in found.values():
        check(data)
    return found


def values(data: NodeData, graph: str) -> dict[str, Any]:
    return {name: r["value"] for name, r in data[graph]["results"].items()}


def test_every_fact_is_at_its_node() -> None:
    found = made(leaving(), provider=True)
    assert values(found["fused"], "g") == {"my Conv": "conv", "my Relu": "conv"}
    said = values(found["reason"], "g")
    assert (
        said["my RandomUniformLike"] == "leaves the provider: no kernel computes RandomUniformLike"
    )
    times = values(found["time"], "g")
    assert set(times) == {"my Conv", "my Relu", "my RandomUniformLike", "my Unheard"}
    assert times["my Conv"] > 0 and all(isinstance(t, float) for t in times.values())


def test_branches_are_drawn_in_place_and_other_bodies_are_graphs() -> None:
    m = parse(
        "g (float[3] x, int64 n, bool c) => (float[3] y, float[3] z)"
        "{ y = If (c) <then_branch = t () => (float[3] u) { s = Add (x, x) u = Relu (s) },"
        " else_branch = e () => (float[3] v) { v = Neg (x) }>"
        " z = Loop (n, c, x) <body = b (int64 i, bool k, float[3] p) => (bool k1, float[3] q)"
        " { k1 = Identity (k) q = Sin (p) }> }"
    )
    found = made(m)
    assert set(found["time"]) == {"g", "my Loop/body"}
    assert values(found["fused"], "g") == {
        "my If/then_branch/my Add": "pointwise", "my If/then_branch/my Relu": "pointwise",
    }  # fmt: skip
    assert set(values(found["time"], "my Loop/body")) == {"my Identity", "my Sin"}


def test_the_command_writes_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(leaving(), str(tmp_path / "m.onnx"))
    line = ["explain", str(tmp_path / "m.onnx"), "--model-explorer"]
    assert main([*line, str(tmp_path / "out.json")]) == 0
    for kind in KINDS:
        check(json.loads((tmp_path / f"out.{kind}.json").read_text("utf-8")))
    assert main([*line, str(tmp_path / "no" / "out.json")]) == 2
    assert "does not exist" in capsys.readouterr().err
