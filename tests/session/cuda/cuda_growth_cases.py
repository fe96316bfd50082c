"""What grows with the runs of a session on a GPU, and with sessions: nothing, by the library's own
counters. Run by test_cuda.py.
"""

from __future__ import annotations

import gc
import itertools

import numpy as np

from tests.session.cuda.cuda_session import (
    answer,
    bound,
    check_cube,
    cube_model,
    cube_plan,
    device_tensor,
    empty_tensor,
    vector,
)
from tests.session.provider.provider_plans import Entries
from tracea_onnx import provider
from tracea_onnx.ir.graph import Graph


def _live() -> dict[str, int]:
    gc.collect()
    return {k: v for k, v in provider.stats().items() if k.startswith("live_")}


def case_addresses_that_come_once_leave_nothing() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    x, y = device_tensor(vector(60)), empty_tensor([60])
    kept = [empty_tensor([60]) for _ in range(100)]
    session.run_with_iobinding(bound(session, x, {"u": kept[0], "y": y}))
    before = _live()
    for u in kept[1:]:
        session.run_with_iobinding(bound(session, x, {"u": u, "y": y}))
    assert _live() == before
    for _ in range(3):
        session.run_with_iobinding(bound(session, x, {"u": kept[-1], "y": y}))
    after = _live()
    assert (
        after["live_addresses"] - before["live_addresses"],
        after["live_graphs"] - before["live_graphs"],
    ) == (1, 1)
    np.testing.assert_allclose(y.numpy(), vector(60) ** 3, rtol=1e-5)


def case_addresses_that_lost_their_graph_leave_nothing() -> None:
    """Each of ever more bindings is replayed often enough to be worth its graph; the oldest
    goes.
    """
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    found = []
    for n in (1, 60):
        x, y = device_tensor(vector(n)), empty_tensor([n])
        for u in [empty_tensor([n]) for _ in range(90)]:
            io = bound(session, x, {"u": u, "y": y})
            for _ in range(40):
                session.run_with_iobinding(io)
        found.append(_live())
    assert [f["live_graphs"] for f in found] == [64, 64]
    assert [f["live_addresses"] for f in found] == [64, 64]


def case_sessions_that_are_gone_leave_nothing() -> None:
    """Also not of their kernels, which are other ones each time."""
    numbers = itertools.count()

    def plan(graph: Graph) -> Entries:
        number = str(next(numbers)).encode()
        return [
            (keys, made, [blob + number for blob in blobs])
            for keys, made, blobs in cube_plan(graph)
        ]

    answer(plan)
    found = []
    for _ in range(30):
        session = provider.create_session(cube_model(), {"backend": "cuda"})
        for n in (7, 60, 60, 60):
            check_cube(session, n)
        del session
        found.append(_live())
    assert found[-1] == found[1]
    assert all(
        found[-1][f"live_{what}"] == 0
        for what in (
            "sessions",
            "partitions",
            "bounds",
            "stream_contexts",
            "prepared",
            "addresses",
            "graphs",
        )
    )
