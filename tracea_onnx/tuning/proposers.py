"""The proposers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tracea_onnx.tuning.bayesian import Bayesian
from tracea_onnx.tuning.language_model import Endpoint, LanguageModel
from tracea_onnx.tuning.plain_proposers import Grid, Random
from tracea_onnx.tuning.proposer import Hint, Proposer

#: Without one that a model of an endpoint answers for.
NAMES: Mapping[str, type[Proposer]] = {"bayesian": Bayesian, "grid": Grid, "random": Random}
LLM = "llm"

#: Makes one from prices, hints, what the launch computes, and the device.
Make = Callable[[Mapping[str, float], Sequence[Hint], str, str], Proposer]


def make(name: str, endpoint: Endpoint | None = None) -> Make:
    """endpoint: of `llm`."""
    if name == LLM:
        assert endpoint is not None
        return partial(_asking, endpoint)
    return lambda prices, hints, launch, device: NAMES[name](prices, hints)


def _asking(
    endpoint: Endpoint, prices: Mapping[str, float], hints: Sequence[Hint], launch: str, device: str
) -> Proposer:
    return LanguageModel(prices, hints, endpoint=endpoint, launch=launch, device=device)
