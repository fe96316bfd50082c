"""Root-mean-square normalisation, alone or of a residual sum: s / sqrt(mean(s^2) + eps) * gamma
over the last axes.

before  Pow/Mul, ReduceMean, Add, Sqrt, Div (or Reciprocal, Mul; or Pow(-0.5), Mul), Mul with Casts
        between and gamma or 1 + gamma; RMSNormalization (ONNX 23), SimplifiedLayerNormalization,
        com.microsoft.SkipSimplifiedLayerNormalization
after   layernorm(x, res?, xbias?, gamma?) with rms -> y, skip?
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.norm import Norm, build, decomposed, operator
from tracea_onnx.match.norm_weights import absorb_residual, absorb_weights

_OPERATORS = (
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "com.microsoft.SimplifiedLayerNormalization",
)
_SKIP = "com.microsoft.SkipSimplifiedLayerNormalization"


def _read(g: Graph, anchor: Node) -> Norm:
    if anchor.op in _OPERATORS:
        return operator(g, anchor)
    norm = decomposed(g, anchor)
    if not norm.rms:
        raise Refuse(Why.IS_LAYER_NORM, anchor)
    absorb_weights(g, norm)
    return norm


def match(g: Graph, anchor: Node) -> Match:
    return build(g, "rmsnorm", anchor, _read(g, anchor))


def match_skip(g: Graph, anchor: Node) -> Match:
    if anchor.op == _SKIP:
        return build(g, "skip_rmsnorm", anchor, operator(g, anchor))
    norm = _read(g, anchor)
    if not absorb_residual(g, norm):
        raise Refuse(Why.NO_RESIDUAL, anchor, value=norm.x)
    return build(g, "skip_rmsnorm", anchor, norm)


RULES = (
    Rule("rmsnorm", "RMSNorm", frozenset(("ReduceMean", *_OPERATORS)), match),
    Rule(
        "skip_rmsnorm",
        "SkipRMSNorm",
        frozenset(("ReduceMean", *_OPERATORS, _SKIP)),
        match_skip,
        priority=1,
    ),
)
