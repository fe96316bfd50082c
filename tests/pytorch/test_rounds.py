"""Rounds are in PyTorch what they are in ONNX."""

from __future__ import annotations

import pytest

from tracea_onnx.bench import round_functions, rounds
from tracea_onnx.bench.comparison import Settings

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("r", rounds.rounds(large=False), ids=lambda r: str(r.name))
def test_both_compute_the_same(r: rounds.Round) -> None:
    _, feeds, weights = rounds.model(r, 3)
    run = round_functions.FUNCTIONS[r.name](
        torch.nn.functional, {k: torch.from_numpy(v) for k, v in weights.items()}
    )
    with torch.inference_mode():
        got = run(*(torch.from_numpy(v) for v in feeds.values()))
    assert not rounds.fault(r, rounds.exact(r, 3), [got.numpy()])


def test_pytorch_is_a_peer() -> None:
    small = rounds.Round(
        "product", "a small product", {"x": (64, 64)}, {"w": (64, 64)}, "y = MatMul(x, w)", 64, 5e5
    )
    found = rounds.play(["torch"], Settings("cpu", seconds=0.01), chosen=[small])
    assert found.ok and "against torch, " in found.text()[0]
    peer = found.rows[0].programs["torch"]
    assert peer.version == f"torch {torch.__version__}" and 0 < peer.difference < 1e-5
