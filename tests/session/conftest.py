"""Lets a test answer the compile requests of the provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
import onnxruntime as ort
import pytest

import tracea_onnx.compiler.compile_requests
from tests.session.provider.provider_plans import Entries, Install
from tracea_onnx import provider
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import write_pack

ort.set_default_logger_severity(4)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a function graph -> entries as the compiler of this process; `answer.packs` collects
    its replies.
    """
    provider.register()
    packs: list[bytes] = []

    def install(make: Callable[[Graph], Entries]) -> None:
        def compile_request(request: bytes) -> bytes:
            packs.append(
                write_pack(
                    make(Graph(onnx.ModelProto.FromString(request), in_process=True)), "test"
                )
            )
            return packs[-1]

        monkeypatch.setattr(
            tracea_onnx.compiler.compile_requests, "compile_request", compile_request
        )

    install.packs = packs  # type: ignore[attr-defined]
    yield install
