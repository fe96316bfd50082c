"""Layer normalisation, alone or of a residual sum: (s - mean(s)) / sqrt(var(s) + eps) * gamma +
beta over the last axes.

before  ReduceMean, Sub, Pow/Mul, ReduceMean, Add, Sqrt, Div (or Reciprocal, Mul), Mul, Add with
        Casts between; LayerNormalization; com.microsoft.SkipLayerNormalization; for the skip form
        also the Add of a residual (and of a bias) before
after   layernorm(x, res?, xbias?, gamma?, beta?) -> y, skip?
"""

from __future__ import annotations

from tracea_onnx.match.norm_weights import norm_rules

RULES = norm_rules("layernorm", "LayerNorm", rms=False)
