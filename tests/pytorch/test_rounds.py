"""Rounds are in PyTorch what they are in ONNX."""

from __future__ import annotations

import pytest
import torch

from tracea_onnx.bench import round_functions, rounds


@pytest.mark.parametrize("r", rounds.rounds(large=False), ids=lambda r: str(r.name))
def test_both_compute_the_same(r: rounds.Round) -> None:
    _, feeds, weights = rounds.model(r, 3)
    run = round_functions.FUNCTIONS[r.name](
        torch.nn.functional, {k: torch.from_numpy(v) for k, v in weights.items()}
    )
    with torch.inference_mode():
        got = run(*(torch.from_numpy(v) for v in feeds.values()))
    assert not rounds.fault(r, rounds.exact(r, 3), [got.numpy()])
