"""If, Loop and Scan on the device, on the stand-in of the driver: ONNX Runtime runs their bodies,
and what goes into them and comes out is not copied to the host. Run by test_cuda.py.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from tests.session.cuda.cuda_session import (
    NVIDIA,
    answer,
    device_tensor,
    has_ort,
    log,
    mixed_plan,
    need_ort,
)
from tests.support.in_threads import in_threads
from tracea_onnx import provider

X = np.random.default_rng(0).standard_normal(60).astype(np.float32)
OPTIONS = {"device_id": "0"}
PLACE = ("gpu", 0, NVIDIA)
Feeds = dict[str, np.ndarray]


def claims() -> None:
    """Lets hand-made Plans answer; skips where control flow is left to ONNX Runtime."""
    need_ort(1, 27, why="does not tell how it runs nodes")
    answer(mixed_plan)


def text(graph: str) -> bytes:
    return parser.parse_model(  # type: ignore[no-any-return]
        f'<ir_version: 8, opset_import: ["" : 17]> {graph}'
    ).SerializeToString()


LOOP = text(
    """
    g (float[n] x, int64 times, bool go) => (float[n] y, float[times, n] each)
    {
      s = Add (x, x)
      v, each = Loop (times, go, s) <body = b (int64 i, bool c, float[n] a)
          => (bool d, float[n] w, float[n] t) { d = Identity (c)  t = Mul (a, x)  w = Add (t, s) }>
      y = Mul (v, x)
    }
    """
)


def expected(data: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime's own provider gives."""
    return list(ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds))


def compare(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4)


def stays_on_the_device(session: ort.InferenceSession, data: bytes, feeds: Feeds) -> None:
    """A run between tensors on the device, but for flags and counters, is right and copies no
    vector of 60 from or to the host.
    """
    want = expected(data, feeds)
    results = [ort.OrtValue.ortvalue_from_shape_and_type(w.shape, w.dtype, *PLACE) for w in want]
    io = session.io_binding()
    for name, x in feeds.items():
        if x.ndim:
            io.bind_ortvalue_input(name, device_tensor(x))
        else:
            io.bind_cpu_input(name, x)
    for output, value in zip(session.get_outputs(), results, strict=True):
        io.bind_ortvalue_output(output.name, value)
    log.take()
    session.run_with_iobinding(io)
    assert not {"copy 240 to device", "copy 240 to host"} & set(log.take())
    compare([r.numpy() for r in results], want)


def loop_feeds(n: int, times: int) -> Feeds:
    return {"x": X[:n], "times": np.array(times), "go": np.array(True)}


def case_a_loop_leaves_what_it_carries_on_the_device() -> None:
    claims()
    session = provider.create_session(LOOP, OPTIONS)
    assert "Loop" in provider.assigned_nodes(session)
    for n, times in ((60, 3), (60, 5), (7, 1), (60, 0), (0, 2)):
        feeds = loop_feeds(n, times)
        compare(session.run(None, feeds), expected(LOOP, feeds))
    stays_on_the_device(session, LOOP, loop_feeds(60, 5))


def case_loops_on_several_threads() -> None:
    """With ONNX Runtime's parallel executor, which crashes otherwise, the Loop is its own."""
    answer(mixed_plan)
    for mode in (ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL):
        so = ort.SessionOptions()
        so.execution_mode = mode
        session = provider.create_session(LOOP, OPTIONS, so)
        parallel = mode is ort.ExecutionMode.ORT_PARALLEL
        assert ("Loop" in provider.assigned_nodes(session)) == (has_ort(1, 27) and not parallel)

        def work(k: int, session: ort.InferenceSession = session) -> None:
            for times in (1, 4, 2):
                feeds = loop_feeds(20 + k, times)
                compare(session.run(None, feeds), expected(LOOP, feeds))

        in_threads(work, range(3))


def case_iterations_that_give_other_sizes_are_an_error() -> None:
    claims()
    data = text(
        """
        g (float[n] x, int64 times, bool go) => (float[k] y, float[times, m] each)
        {
          y, each = Loop (times, go, x) <body = b (int64 i, bool c, float[p] a)
              => (bool d, float[q] w, float[r] t) { d = Identity (c)  t = Mul (a, a)
              w = Concat <axis = 0> (t, t) }>
        }
        """
    )
    session = provider.create_session(data, OPTIONS)
    assert "Loop" in provider.assigned_nodes(session)
    with pytest.raises(Exception, match="size"):
        session.run(None, loop_feeds(60, 3))
    compare(session.run(None, loop_feeds(60, 1)), expected(data, loop_feeds(60, 1)))


IF = text(
    """
    g (float[n] x, bool c) => (float[n] y)
    {
      s = Add (x, x)
      v = If (c) <then_branch = t () => (float[n] u) { u = Mul (s, x) },
                  else_branch = e () => (float[n] w) { w = Add (s, x) }>
      y = Mul (v, x)
    }
    """
)


def case_an_if_leaves_its_result_on_the_device() -> None:
    claims()
    session = provider.create_session(IF, OPTIONS)
    assert "If" in provider.assigned_nodes(session)
    for c in (True, False):
        stays_on_the_device(session, IF, {"x": X, "c": np.array(c)})


def case_control_flow_without_the_provider_in_it_stays_with_onnx_runtime() -> None:
    answer(lambda graph: mixed_plan(graph) if "y" in graph.outputs else [])
    session = provider.create_session(IF, OPTIONS)
    assert "If" not in provider.assigned_nodes(session)
    feeds = {"x": X, "c": np.array(True)}
    compare(session.run(None, feeds), expected(IF, feeds))


def case_a_scan_leaves_what_it_carries_on_the_device() -> None:
    """One along another axis is ONNX Runtime's, which would ask for a transpose."""
    claims()
    rows = np.random.default_rng(1).standard_normal((4, 60)).astype(np.float32)
    for axes, shape in (("", "4, n"), (", scan_output_axes = [1]", "n, 4")):
        data = text(
            f"""
            g (float[n] x, float[4, n] rows) => (float[n] y, float[{shape}] each)
            {{
              s = Add (x, x)
              v, each = Scan <num_scan_inputs = 1{axes}, body = b (float[n] a, float[n] r)
                  => (float[n] w, float[n] t) {{ t = Mul (a, r)  w = Add (t, x) }}> (s, rows)
              y = Mul (v, x)
            }}
            """
        )
        session, feeds = provider.create_session(data, OPTIONS), {"x": X, "rows": rows}
        assert ("Scan" in provider.assigned_nodes(session)) == (not axes)
        compare(session.run(None, feeds), expected(data, feeds))
        if not axes:
            stays_on_the_device(session, data, feeds)


def case_bodies_of_bodies() -> None:
    """A Loop whose body decides by an If."""
    claims()
    data = text(
        """
        g (float[n] x, int64 times, bool go) => (float[n] y)
        {
          two = Constant <value_int = 2> ()
          y = Loop (times, go, x) <body = b (int64 i, bool c, float[n] a) => (bool d, float[n] w) {
              d = Identity (c)
              p = Mod (i, two)
              q = Cast <to = 9> (p)
              w = If (q) <then_branch = t () => (float[n] u) { u = Mul (a, x) },
                          else_branch = e () => (float[n] o) { o = Add (a, x) }> }>
        }
        """
    )
    session = provider.create_session(data, OPTIONS)
    assert {"If", "Loop"} <= set(provider.assigned_nodes(session))
    stays_on_the_device(session, data, loop_feeds(60, 5))


def case_a_session_takes_all_that_it_made_with_it() -> None:
    claims()
    for _ in range(2):
        session = provider.create_session(LOOP, OPTIONS)
        session.run(None, loop_feeds(60, 3))
        assert provider.stats()["live_stream_contexts"] == 1
        del session
        gc.collect()
        assert provider.stats()["live_stream_contexts"] == 0


def case_a_compiled_model_keeps_its_control_flow() -> None:
    claims()
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = Path(folder) / "m.onnx", Path(folder) / "compiled.onnx"
        source.write_bytes(LOOP)
        so = ort.SessionOptions()
        so.add_session_config_entry("ep.context_enable", "1")
        so.add_session_config_entry("ep.context_file_path", str(compiled))
        provider.create_session(str(source), OPTIONS, so)
        session = provider.create_session(str(compiled), {**OPTIONS, "ep_context": "trust"})
        assert {"EPContext", "Loop"} <= set(provider.assigned_nodes(session))
        feeds = loop_feeds(60, 3)
        compare(session.run(None, feeds), expected(LOOP, feeds))
