"""What loading a model leaves behind: nothing once the session is gone, and nothing half made when
threads load at once.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from tests.host.pipeline_models import normal, parse, small_cnn
from tracea_onnx import provider
from tracea_onnx.ir import graph
from tracea_onnx.pipeline import optimizer


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.fixture
def born(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[graph.Graph]]:
    """Every view of a graph made from now on, and the model it is of."""
    seen: list[weakref.ref[graph.Graph]] = []
    init = graph.Graph.__init__

    def watched(self: graph.Graph, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        seen.append(weakref.ref(self))

    monkeypatch.setattr(graph.Graph, "__init__", watched)
    return seen


def test_optimize_keeps_no_graph(born: list[weakref.ref[graph.Graph]]) -> None:
    optimizer.optimize(small_cnn(), backend="cpu")
    gc.collect()
    assert born and not [r for r in born if r() is not None]


def test_a_session_that_is_gone_keeps_no_graph_no_model_and_no_thread(
    born: list[weakref.ref[graph.Graph]], tmp_path: Path
) -> None:
    m = parse(
        "g (float[N, 64] x) => (float[N, 32] y) { p = Sigmoid (x) z = MatMul (p, w) a = Add (z, "
        "b) y = Relu (a) }",
        w=normal(64, 32),
        b=normal(32),
    )
    threads, sessions = 0, []
    for k in range(12):
        m.graph.name = f"g{k}"
        session = provider.create_session(
            m.SerializeToString(),
            {"cache_dir": str(tmp_path / str(k)), "num_threads": "2", "claim": "all"},
        )
        provider.assert_provider_selected(session)
        session.run(None, {"x": normal(3, 64)})
        sessions.append(weakref.ref(session))
        del session
        gc.collect()
        threads = threads or _threads()
        assert _threads() <= threads
    assert len(born) >= 12, "nothing was compiled"
    assert not [r for r in [*born, *sessions] if r() is not None]


def _live(*, collect: bool = True) -> dict[str, int]:
    if collect:
        gc.collect()
    return {k: v for k, v in provider.stats().items() if k.startswith("live_")}


@pytest.mark.slow
def test_a_session_keeps_sixteen_sets_of_shapes_and_nothing_when_it_is_gone(tmp_path: Path) -> None:
    before = _live()
    m = parse(
        "g (float[N, 64] x) => (float[N, 32] y) { p = Sigmoid (x) z = MatMul (p, w) a = Add (z, "
        "b) y = Relu (a) }",
        w=normal(64, 32),
        b=normal(32),
    )
    session = provider.create_session(
        m.SerializeToString(), {"cache_dir": str(tmp_path), "num_threads": "1", "claim": "all"}
    )
    provider.assert_provider_selected(session)
    held = []
    for n in (70, *range(1, 70)):
        session.run(None, {"x": normal(n, 64)})
        held.append(_live(collect=False))
    grown = {k: held[-1][k] - v for k, v in before.items()}
    assert {k: grown[k] for k in ("live_sessions", "live_partitions", "live_bounds",
            "live_states")} == {
        "live_sessions": 1, "live_partitions": 1, "live_bounds": 16, "live_states": 1,
    }  # fmt: skip
    assert held[0]["live_memory"] == held[-1]["live_memory"] > before["live_memory"]
    del session
    assert _live() == before


_THREADS = """
import sys, threading
import onnxruntime
import tracea_onnx
from tracea_onnx import provider

tracea_onnx.register()
start, found = threading.Barrier(6), []


def load(k):
    start.wait()
    s = provider.create_session(sys.argv[1], {"cache_dir": f"{sys.argv[2]}/{k}", "claim": "all"})
    found.append(len(provider.assigned_nodes(s)))


threads = [threading.Thread(target=load, args=(k,)) for k in range(6)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(found)
"""


def test_threads_that_load_the_first_models_of_a_process_all_use_the_provider(
    tmp_path: Path,
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(small_cnn().SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", _THREADS, str(model), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = [int(n) for n in done.stdout.strip()[1:-1].split(",")]
    assert len(counts) == 6 and len(set(counts)) == 1 and counts[0] > 0, done.stdout + done.stderr


_EMITTERS = """
import threading
from tracea_onnx.match import rule_set
from tracea_onnx.support import discovery

start, found = threading.Barrier(6), []


def load():
    start.wait()
    found.append((len(rule_set.rules()), len(discovery.module("kernels", "cuda").families()),
        discovery.module("scheduler", "priority").schedule.__name__))


threads = [threading.Thread(target=load) for _ in range(6)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(len(found), len(set(found)))
"""


def test_threads_that_import_rules_and_emitters_at_once_get_all_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EMITTERS], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "6 1", "")
