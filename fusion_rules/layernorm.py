"""Layer normalisation, alone or of a residual sum: (s - mean(s)) / sqrt(var(s) + eps) * gamma +
beta over the last axes.

before  ReduceMean, Sub, Pow/Mul, ReduceMean, Add, Sqrt, Div (or Reciprocal, Mul), Mul, Add with
        Casts between; LayerNormalization; com.microsoft.SkipLayerNormalization; for the skip form
        also the Add of a residual (and of a bias) before
after   layernorm(x, res?, xbias?, gamma?, beta?) -> y, skip?
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.norm import Norm, build, decomposed, operator
from tracea_onnx.match.norm_weights import absorb_residual, absorb_weights


def _read(g: Graph, anchor: Node) -> Norm:
    if anchor.op == "LayerNormalization":
        return operator(g, anchor)
    norm = decomposed(g, anchor)
    if norm.rms:
        raise Refuse(Why.IS_RMS, anchor)
    absorb_weights(g, norm)
    return norm


def match(g: Graph, anchor: Node) -> Match:
    return build(g, "layernorm", anchor, _read(g, anchor))


def match_skip(g: Graph, anchor: Node) -> Match:
    if anchor.op == "com.microsoft.SkipLayerNormalization":
        return build(g, "skip_layernorm", anchor, operator(g, anchor))
    norm = _read(g, anchor)
    if not absorb_residual(g, norm):
        raise Refuse(Why.NO_RESIDUAL, anchor, value=norm.x)
    return build(g, "skip_layernorm", anchor, norm)


RULES = (
    Rule("layernorm", "LayerNorm", frozenset(("ReduceMean", "LayerNormalization")), match),
    Rule(
        "skip_layernorm",
        "SkipLayerNorm",
        frozenset(("ReduceMean", "LayerNormalization", "com.microsoft.SkipLayerNormalization")),
        match_skip,
        priority=1,
    ),
)
