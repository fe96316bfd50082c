"""Random models of one operator on the provider, against ONNX Runtime: some of each kind (`python
-m tools.fuzz.operator_fuzz` draws thousands).
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime as ort
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tools.fuzz import operator_fuzz


@pytest.mark.skipif(
    tuple(map(int, ort.__version__.split(".")[:2])) < (1, 31),
    reason="older ONNX Runtimes err on some of these themselves",
)
@pytest.mark.parametrize("kind", operator_fuzz.KINDS)
def test_as_onnx_runtime(kind: str) -> None:
    outcomes = [operator_fuzz.run(seed, [kind], "cpu", False) for seed in range(12)]
    assert [o for o in outcomes if o.status not in ("right", "refused")] == []
    assert any(o.ours and o.status == "right" for o in outcomes)
