"""A rule whose spec is wrong shows only on the provider: verification there finds it and turns just
that fusion back.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.host.pipeline_models import normal, parse
from tracea_onnx import provider
from tracea_onnx.ir.contracts import Match, Rule, Spec
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match import rule_set
from tracea_onnx.pipeline import optimizer

pytestmark = pytest.mark.once

PROVIDERS = (provider.PROVIDER_NAME, "CPUExecutionProvider")


def model() -> onnx.ModelProto:
    text = "g (float[1, 3, 8, 8] v0) => (float[1, 3, 8, 8] v4) {"
    for k in range(4):
        text += (
            f" [conv{k}] a{k} = Conv <pads = [1, 1, 1, 1]> (v{k}, w{k})  v{k + 1} = Tanh (a{k}) "
        )
    weights = {f"w{k}": normal(3, 3, 3, 3, seed=k) / 3 for k in range(4)}
    out = parse(text + "}")
    out.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()
    )
    return out


def rule(liar: str) -> Rule:
    """Conv then Tanh; on the anchor `liar` the spec says Sigmoid."""

    def match(graph: Graph, node: Node) -> Match:
        (tail,) = graph.consumers(node.outputs[0])
        expr = Expr(1, (Instr("sigmoid" if node.name == liar else "tanh", (0,)),), 1)
        attrs = {
            "strides": [1, 1],
            "dilations": [1, 1],
            "pads": [1, 1, 1, 1],
            "auto_pad": "NOTSET",
            "group": 1,
            "expr": expr.to_json(),
        }
        return Match(
            "conv_tanh",
            node,
            (node, tail),
            node.inputs,
            tail.outputs,
            Spec("conv", ("x", "w"), attrs),
        )

    return Rule("conv_tanh", "Conv", frozenset({"Conv"}), match)


@pytest.mark.parametrize("liar", ["", "conv2"])
def test_a_wrong_spec_is_turned_back(liar: str) -> None:
    provider.register()
    assert "conv" in {r.name for r in rule_set.rules()}  # what the provider itself fuses is right
    result = optimizer.optimize(model(), rules=[rule(liar)], backend="cpu", providers=PROVIDERS)
    assert [f.anchor for f in result.report.fused] == [
        f"conv{k}" for k in range(4) if f"conv{k}" != liar
    ]
    assert [r.anchor for r in result.report.refused if "turned back" in r.reason] == (
        [liar] if liar else []
    )
    assert result.report.verify is not None and result.report.verify.ok
    stock = optimizer.optimize(model(), rules=[rule(liar)], backend="cpu")
    # its body is right, so stock ONNX Runtime sees no difference
    assert len(stock.report.fused) == 4
