"""A fast part of the ONNX backend suite: what ONNX Runtime's CPU provider passes, the optimizer and
the provider pass, too.

The whole suite, crash-proof, is `python -m tools.onnx_backend_suite`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tools.onnx_backend_suite import Case, cases, load, run_case

pytestmark = pytest.mark.once  # making the cases takes longer than running them

#: Groups of tests by regular expression on their names, without the "test_" in front.
GROUPS = {
    "activations": r"(relu|leakyrelu|elu|selu|sigmoid|hardsigmoid|hardswish|tanh|gelu|mish|"
    r"softplus|prelu|clip|thresholdedrelu|softsign|celu)(_.*)?",
    "arithmetic": r"(add|sub|mul|div|pow|mod|min|max|mean|sum|neg|abs|sqrt|reciprocal|exp|log|"
    r"erf|floor|ceil|round|sign)(_.*)?",
    "attention": r"attention_(4d|3d|4d_causal|4d_scaled|4d_gqa|4d_attn_mask|3d_gqa)(_expanded)?",
    "comparisons": r"(equal|less|greater|less_equal|greater_equal|and\dd|or\dd|xor\dd|not_\dd|"
    r"where|isnan|isinf)(_.*)?",
    "convolution": r"(basic_)?(conv|convtranspose)(_.*)?",
    "linear": r"(matmul|gemm)(_.*)?",
    "movement": r"(reshape|transpose|concat|split|slice|gather|expand|tile|pad|depthtospace|"
    r"spacetodepth|range)(_.*)?",
    "shapes": r"(squeeze|unsqueeze|flatten|identity|shape|size)(_.*)?",
    "normalisation": r"(batchnorm|layer_normalization|instancenorm|group_normalization|"
    r"rms_normalization|softmax|logsoftmax|lrn)(_.*)?",
    "pooling": r"(maxpool|averagepool|globalaveragepool|globalmaxpool|resize|upsample)(_.*)?",
    "reductions": r"(reduce_.*|argmax.*|argmin.*|cumsum.*)",
    "recurrent": r"(lstm|gru|rnn|simple_rnn)_.*",
    "modules": r"(Conv2d|Linear|BatchNorm2d|MaxPool2d|AvgPool2d|ConvTranspose2d|GLU|PReLU|"
    r"Softmax|PixelShuffle)(_.*)?",
    "operators": r"operator_.*",
}  # fmt: skip

#: Groups of which the provider runs nodes, even with all inputs given by the run.
_RUN = (
    "activations", "arithmetic", "convolution", "linear", "normalisation", "pooling", "recurrent",
)  # fmt: skip


def selected(group: str) -> list[Case]:
    pattern = re.compile(f"test_{GROUPS[group]}")
    return [c for c in cases() if c.kind != "real" and pattern.fullmatch(c.name)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("group", sorted(GROUPS))
@pytest.mark.parametrize("leg", ["optimized", "provider", "both", "constants"])
def test_passes_what_ort_passes(leg: str, group: str) -> None:
    chosen = selected(group)
    good = [c for c in chosen if run_case(c, "ort").status == "pass"]
    assert len(good) >= 3, (
        f"the group has {len(good)} tests that ONNX Runtime passes: its pattern matches too little"
    )
    outcomes = {c.name: run_case(c, leg) for c in good}
    failed = {name: o.reason for name, o in outcomes.items() if o.status != "pass"}
    assert not failed, "\n".join(f"{name}: {reason}" for name, reason in failed.items())
    if leg == "provider" and group in _RUN:
        assert any(o.ours for o in outcomes.values())


def test_a_wrong_result_is_a_failure() -> None:
    case = next(c for c in cases() if c.name == "test_relu")
    model, data = load(case)
    inputs, outputs = data[0]
    spoiled: Any = [([*inputs], [np.asarray(outputs[0]) + 1])]
    wrong = Case(case.name, case.kind, case.rtol, case.atol, model, spoiled)
    assert run_case(case, "ort").status == "pass"
    assert run_case(wrong, "ort").status == "fail"
