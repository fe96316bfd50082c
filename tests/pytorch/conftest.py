"""Tests of `tracea_onnx.torch`, where PyTorch and onnxscript are installed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is compiled, patched or said yet."""
    import torch

    from tracea_onnx.torch import reasons, unpatch

    torch.manual_seed(0)
    torch.compiler.reset()
    reasons.forget()
    yield
    unpatch()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the logger has said so far."""

    class Lines(list[str]):
        def __iter__(self) -> Iterator[str]:
            return iter([r.getMessage() for r in caplog.records if r.name == "tracea_onnx.torch"])

    with caplog.at_level(logging.WARNING, "tracea_onnx.torch"):
        yield Lines()
