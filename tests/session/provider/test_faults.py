"""Faults, Ctrl-C and threads while models compile: each costs what it must, and reaches who must
know.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tracea_onnx.compiler.compile_requests
from tests.host.pipeline_models import normal, parse, run
from tracea_onnx import provider
from tracea_onnx.compiler import compile_requests, partition_compiler, plan_writer
from tracea_onnx.explain import explanation
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match import rule_set
from tracea_onnx.pipeline import optimizer

FAULTS = [
    KeyError("axis"),
    IndexError("list index out of range"),
    ZeroDivisionError("division by zero"),
    RecursionError("too deep"),
]
_TEXT = (
    "g (float[N, 64] x) => (float[N, 32] y) { p = MatMul (x, w) z = Add (p, b) q = Sigmoid "
    "(z) r = Tanh (q) s = Softmax <axis = -1> (r) y = Relu (s) }"
)


def small(name: str = "g") -> bytes:
    m = parse(_TEXT, w=normal(64, 32), b=normal(32))
    m.graph.name = name
    return bytes(m.SerializeToString())


def fails(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("error", FAULTS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("rule", ["gemm", "pointwise"])
def test_a_rule_that_fails_costs_its_fusions(
    rule: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = optimizer.optimize(parse(_TEXT, w=normal(64, 32), b=normal(32)), backend="cpu")
    assert "gemm" in {f.rule for f in whole.report.fused}
    rules = tuple(replace(r, match=fails(error)) if r.name == rule else r for r in rule_set.rules())
    monkeypatch.setattr(rule_set, "rules", lambda: rules)
    m = parse(_TEXT, w=normal(64, 32), b=normal(32))
    result = optimizer.optimize(m, backend="cpu")
    assert rule not in {f.rule for f in result.report.fused} and result.report.verify is not None
    said = [r.reason for r in result.report.refused if "internal error" in r.reason]
    assert said and all(
        type(error).__name__ in s and "\n" not in s and f"'{rule}'" in s for s in said
    )
    assert explanation.explain(m, backend="cpu")


@pytest.mark.parametrize("error", FAULTS, ids=lambda e: type(e).__name__)
def test_a_lowering_that_fails_costs_its_node(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lower = vars(partition_compiler)["lower"]

    def sometimes(ctx: Any, op: Any) -> None:
        if op.kind == ":softmax":
            raise error
        lower(ctx, op)

    monkeypatch.setattr(partition_compiler, "lower", sometimes)
    with pytest.warns(partition_compiler.Fault, match=type(error).__name__):
        session = provider.create_session(small(), {"claim": "all", "cache_dir": str(tmp_path)})
    mine = provider.assigned_nodes(session)
    assert mine and "Softmax" not in mine and {"Sigmoid", "Relu"} <= set(mine)
    x = normal(5, 64)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0],
        run(parse(_TEXT, w=normal(64, 32), b=normal(32)), {"x": x})[0],
        rtol=1e-5,
        atol=1e-6,
    )


def test_packs_of_threads_do_not_mix(tmp_path: Path) -> None:
    """Sessions that other threads create meanwhile are not recorded, and each reply comes on the
    thread that creates its session.
    """
    start, asked, ended = threading.Event(), threading.Event(), threading.Event()
    theirs: list[int] = []

    def other() -> None:
        start.wait(60)
        with compile_requests.recording() as packs:
            provider.create_session(
                small("theirs"), {"claim": "all", "cache_dir": str(tmp_path / "t")}
            )
            asked.set()
            ended.wait(60)
        theirs.append(len(packs))

    t = threading.Thread(target=other)
    t.start()
    with compile_requests.recording() as packs, compile_requests.listening() as requests:
        start.set()
        assert asked.wait(60)
        provider.create_session(small("mine"), {"claim": "all", "cache_dir": str(tmp_path / "m")})
        ended.set()
    t.join()
    assert len(packs) == 1 and [r.graph.name for r in requests] == ["mine"] and theirs == [1]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt: a shell starts `command &` with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("plain", [False, True])
def test_ctrl_c_while_a_model_compiles_ends_the_load(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain and tuple(map(int, ort.__version__.split(".")[:3])) < provider.PROVIDERS_LIST_ORT:
        pytest.skip("this ONNX Runtime takes plugin providers only through session options")
    monkeypatch.setattr(
        tracea_onnx.compiler.compile_requests, "compile_request", fails(KeyboardInterrupt())
    )
    provider.register()
    with pytest.raises(KeyboardInterrupt):
        if plain:
            ort.InferenceSession(
                small(), providers=[provider.PROVIDER_NAME, "CPUExecutionProvider"]
            )
            for _ in range(1000):  # the signal is taken between two instructions
                pass
        else:
            provider.create_session(small())
    monkeypatch.undo()
    session = provider.create_session(small(), {"claim": "all"})
    provider.assert_provider_selected(session)


def test_what_asks_a_thread_to_end_is_raised_behind_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        tracea_onnx.compiler.compile_requests, "compile_request", fails(SystemExit(7))
    )
    with pytest.raises(SystemExit, match="7"):
        provider.create_session(small())


@pytest.mark.parametrize("given", [None, "0", "1"])
def test_what_session_options_of_the_caller_say_stays(given: str | None) -> None:
    """The session records its assignment; the caller's next session with these options does so
    unless the caller asked for none.
    """
    key = "session.record_ep_graph_assignment_info"
    for good in (True, False):  # also where there is no session
        options = ort.SessionOptions()
        if given is not None:
            options.add_session_config_entry(key, given)
        if good:
            session = provider.create_session(small(), {"claim": "all"}, options)
            assert provider.assigned_nodes(session)
        else:
            with pytest.raises(Exception, match="isa"):
                provider.create_session(small(), {"isa": "none"}, options)
        assert options.get_session_config_entry(key) == (given or "1")


_FORK = """
import os, sys
import numpy as np
import tracea_onnx
from tracea_onnx import provider

x = np.ones((3, 64), np.float32)
options = {"claim": "all", "num_threads": sys.argv[3], "cache_dir": sys.argv[2]}
old = provider.create_session(sys.argv[1], options)
provider.assert_provider_selected(old)
expected = old.run(None, {"x": x})[0]
child = os.fork()
if child == 0:
    try:
        assert np.array_equal(old.run(None, {"x": x})[0], expected), "the parent's session"
        new = provider.create_session(sys.argv[1], {**options, "cache_dir": sys.argv[2] + "2"})
        provider.assert_provider_selected(new)
        assert np.array_equal(new.run(None, {"x": x})[0], expected), "a session of its own"
    except BaseException as e:
        print(repr(e), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert np.array_equal(old.run(None, {"x": x})[0], expected)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_forked_child_runs_and_loads_models(threads: str, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(small())
    done = subprocess.run(
        [sys.executable, "-c", _FORK, str(model), str(tmp_path / "c"), threads],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_slice_of_bounds_that_are_not_equally_many_is_refused() -> None:
    """A damaged model: it costs the node, with a reason, and is no fault of the lowering."""
    constants = {"starts": [0, 1], "ends": [2], "axes": [0, 1]}
    slices = helper.make_node("Slice", ["x", *constants], ["y"], name="cut")
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [4, 4]), ("y", None))
    )
    stored = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()]
    model = helper.make_model(
        helper.make_graph([slices], "g", [x], [y], stored),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        found = partition_compiler.compile_graph(
            Graph(model), plan_writer.writer_of({}), everything=True
        )
    assert not found.entries
