"""A decoder as onnxruntime-genai's model builder writes it, whole on the provider: one session for
the prompt and for every token after it gives the tokens that ONNX Runtime gives.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.golden.record import gpu, sources_for_cubins
from tests.support.cuda.models import half
from tracea_onnx import provider
from tracea_onnx.compiler.partition_compiler import compile_graph
from tracea_onnx.compiler.plan_writer import BackendPlan
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes import onnx_inference

EXAMPLE = run_path(str(Path(__file__).resolve().parents[2] / "examples" / "python" / "generate.py"))


def _tokens(session: ort.InferenceSession, prompts: Any, room: int) -> list[list[int]]:
    found = EXAMPLE["greedy"](session, prompts, room=room)
    return [[int(i) for i in row] for row in islice(found, 20)]


@pytest.mark.parametrize("options", [
    {}, {"packed": True, "kv_heads": 1, "local_window_size": 7}, {"rotary_interleaved": 1},
], ids=str)  # fmt: skip
def test_tokens(options: dict[str, Any]) -> None:
    data = EXAMPLE["build"](positions=64, **options).SerializeToString()
    session = provider.create_session(data, {"backend": "cpu", "claim": "all"})
    ran = {e.ep_name for e in session.get_provider_graph_assignment_info()}
    assert ran == {provider.PROVIDER_NAME}
    plain = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    prompts = np.random.default_rng(0).integers(0, 256, (2, 11))
    want = _tokens(plain, prompts, 0)
    assert len({i for row in want for i in row}) > 10, "the text says one thing over and over"
    for room in (0, 31, 40):
        assert _tokens(session, prompts, room) == want


def _asked(model: Any) -> list[str]:
    """Families of the launches of a run on a GPU, from the first product on."""
    onnx_inference.infer(model, {})
    with sources_for_cubins():
        found = compile_graph(Graph(model), gpu(90, 132), everything=True)
    (plan,) = found.builders
    assert isinstance(plan, BackendPlan)
    asked = [r.family for r in {id(r): r for r in plan.asked}.values()]  # a request has kernels
    return asked[asked.index("gemm") :]


@pytest.mark.parametrize("packed", [False, True])
def test_launches_of_a_layer_on_a_gpu(packed: bool) -> None:
    """Queries, keys and values are one product, what turns them and writes the caches one launch,
    and so are the halves of the gated unit. In 16 bits norms between products have none.
    """
    model = EXAMPLE["build"](layers=1, inner=128, positions=64, packed=packed)
    attention = ["gemm", "rope_cache", "attention"]
    unit = ["gemm", "layernorm", "gemm", "pointwise", "gemm", "layernorm", "gemm"]
    assert _asked(model) == attention + unit
    folded = ["gemm_norm", "gemm_norm", "pointwise"]
    second = ["gemm_norm", "gemm_norm", *attention[1:], *folded, "gemm", "layernorm", "gemm"]
    model = half(EXAMPLE["build"](layers=2, inner=128, vocab=1024, positions=64, packed=packed))
    assert _asked(model) == attention + folded + second
