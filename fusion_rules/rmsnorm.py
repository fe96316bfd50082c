"""Root-mean-square normalisation, alone or of a residual sum: s / sqrt(mean(s^2) + eps) * gamma
over the last axes.

before  Pow/Mul, ReduceMean, Add, Sqrt, Div (or Reciprocal, Mul; or Pow(-0.5), Mul), Mul with Casts
        between and gamma or 1 + gamma; RMSNormalization (ONNX 23), SimplifiedLayerNormalization,
        com.microsoft.SkipSimplifiedLayerNormalization
after   layernorm(x, res?, xbias?, gamma?) with rms -> y, skip?
"""

from __future__ import annotations

from tracea_onnx.match.norm_weights import norm_rules

RULES = norm_rules("rmsnorm", "RMSNorm", rms=True)
