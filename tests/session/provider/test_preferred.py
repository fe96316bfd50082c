"""Sessions that a library makes, which names no provider or only ONNX Runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.host.pipeline_models import normal
from tests.session.provider.test_faults import small
from tracea_onnx import provider
from tracea_onnx.errors import TraceaError

CPU = "CPUExecutionProvider"
EVERY_NODE = {"claim": "all"}


def names(session: Any) -> list[str]:
    return list(session.get_providers())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"providers": [CPU]},
        {"providers": [(CPU, {"arena_extend_strategy": "kSameAsRequested"})]},
        {"providers": [CPU], "provider_options": [{}]},
        {"sess_options": ort.SessionOptions(), "providers": [CPU]},
    ],
    ids=["nothing", "a name", "a name with options", "options apart", "session options"],
)
def test_a_session_runs_on_the_provider(given: dict[str, Any]) -> None:
    x = {"x": normal(5, 64)}
    expected = ort.InferenceSession(small(), providers=[CPU]).run(None, x)[0]
    with provider.preferred(EVERY_NODE):
        session = ort.InferenceSession(small(), **given)
    provider.assert_provider_selected(session)
    assert provider.assigned_nodes(session) and names(session) == [provider.PROVIDER_NAME, CPU]
    np.testing.assert_allclose(session.run(None, x)[0], expected, rtol=1e-5, atol=1e-5)


def test_it_ends() -> None:
    before = ort.InferenceSession.__init__
    with pytest.raises(KeyError), provider.preferred():
        raise KeyError
    assert ort.InferenceSession.__init__ is before
    assert names(ort.InferenceSession(small(), providers=[CPU])) == [CPU]


def test_one_that_began_last_may_end_first() -> None:
    one, other = provider.preferred(EVERY_NODE), provider.preferred({"claim": "auto"})
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert provider.PROVIDER_NAME in names(ort.InferenceSession(small()))
    other.__exit__(None, None, None)
    assert names(ort.InferenceSession(small(), providers=[CPU])) == [CPU]


def test_a_session_that_chooses_the_provider_keeps_its_options() -> None:
    with provider.preferred():
        made = provider.create_session(small(), EVERY_NODE)
        selected = ort.InferenceSession(small(), provider.select(EVERY_NODE))
    for session in (made, selected):
        options = session.get_provider_options()[provider.PROVIDER_NAME]
        assert names(session) == [provider.PROVIDER_NAME, CPU]
        assert options in ({}, EVERY_NODE)  # those of devices are not told


def test_bad_options_raise() -> None:
    with provider.preferred({"claim": "most"}), pytest.raises(Exception, match="claim"):
        ort.InferenceSession(small(), providers=[CPU])
    with (
        pytest.raises(TraceaError, match="device 9 on this machine"),
        provider.preferred({"device_id": "9"}),
    ):
        pass
