"""Streams of ONNX Runtime on the stand-in of the driver: runs and copies that are given one. Run by
test_cuda.py.

A copy that waits on a stream stands for whatever the user has queued there. The stand-in does
nothing before something waits for it, and then no more than that.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from tests.fake.plans import HandPlan
from tests.session.cuda.cuda_session import (
    CAPTURES,
    F32,
    answer,
    bound,
    check_cube,
    count,
    cube_model,
    cube_plan,
    device_tensor,
    empty_tensor,
    log,
    mixed_model,
    mixed_plan,
    need_ort,
    vector,
)
from tests.session.provider.provider_plans import Entries, key, model
from tests.support import ort_streams
from tests.support.in_threads import in_threads
from tracea_onnx import provider
from tracea_onnx.codegen.kernel_request import Int32
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph


def body_plan(graph: Graph) -> Entries:
    """Of a body: its two operators of `x`; of the graph around it: the operator behind the control
    flow.
    """
    nodes = [node for node in graph.nodes if node.written != "If"]
    b = HandPlan("body" if len(nodes) == 2 else "main")
    given = b.add_input("x", F32, 1)
    last = given if len(nodes) == 2 else b.add_input("y", F32, 1)
    b.define_symbol("n", 0, 0)
    n = D.symbol("n")
    for node in nodes:
        last, before = b.add_output(node.outputs[0]), last
        b.kernel(node.op.lower(), [before, given, last, Int32(n)], n)
    for node in nodes:
        b.finish_output(node.outputs[0], F32, [n])
    return [([key(node) for node in nodes], b.to_json(), b.blobs)]


class Binding:
    """A cube session's tensors, with a source that copies fill the input from."""

    def __init__(self, session: Any, n: int, **outputs: Any) -> None:
        self.n, self.session = n, session
        self.source, self.given, self.u, self.y, self.after = (
            device_tensor(vector(n)),
            empty_tensor([n]),
            empty_tensor([n]),
            empty_tensor([n]),
            empty_tensor([n]),
        )
        self.io = bound(session, self.given, {"u": self.u, "y": self.y, **outputs})

    def feed(self, stream: Any, k: int) -> np.ndarray:
        """Queues on the stream that the input becomes another one; returns what `y` is to be
        then.
        """
        x = k * vector(self.n)
        self.source = device_tensor(x)
        log.copy(self.given.data_ptr(), self.source.data_ptr(), 4 * self.n, stream.get_handle())
        return x**3

    def run(self, options: ort.RunOptions) -> None:
        self.session.run_with_iobinding(self.io, options)


def case_a_run_comes_after_what_its_stream_was_given() -> None:
    """Only the session's own stream is waited for: the rest is done because it is waited for in
    turn.
    """
    answer(cube_plan)
    for mode in ("0", "1"):
        session = provider.create_session(
            cube_model(), {"device_id": "0", "enable_cuda_graph": mode}
        )
        stream = ort_streams.make()
        b = Binding(session, 60)
        for k in (1, 2, 3):
            want = b.feed(stream, k)
            log.take()
            b.run(ort_streams.options(stream, quiet=False))
            assert count(log.take(), "replay") == (mode == "1" and k > 1)
            np.testing.assert_allclose(b.y.numpy(), want, rtol=1e-5)


def case_what_the_stream_is_given_after_a_run_comes_after_it() -> None:
    answer(cube_plan)
    for mode in ("0", "1"):
        session = provider.create_session(
            cube_model(), {"device_id": "0", "enable_cuda_graph": mode}
        )
        stream = ort_streams.make()
        b = Binding(session, 60)
        for k in (1, 2, 3):
            want = b.feed(stream, k)
            log.take()
            b.run(ort_streams.options(stream))
            log.copy(b.after.data_ptr(), b.y.data_ptr(), 240, stream.get_handle())
            assert not count(log.take(), "synchronize")
            log.synchronise(stream.get_handle())
            np.testing.assert_allclose(b.after.numpy(), want, rtol=1e-5)


def case_a_run_without_a_stream_costs_what_it_did() -> None:
    """No stream, no event and no wait more, also while streams are alive; and nothing orders it
    with these.
    """
    answer(cube_plan)
    stream = ort_streams.make()
    session = provider.create_session(cube_model(), {"device_id": "0", "enable_cuda_graph": "0"})
    b = Binding(session, 60)
    b.run(ort_streams.options())
    b.feed(stream, 2)
    log.take()
    b.run(ort_streams.options(quiet=False))
    assert [line.split(" grid")[0] for line in log.take()] == [
        "launch mul",
        "launch mul",
        "launch scale",
        "synchronize",
    ]
    check_cube(session, 30)
    assert not count(log.take(), "wait")


def case_a_stream_of_the_caller_and_one_of_the_run() -> None:
    """Both are ordered with the run; one stream may be both."""
    answer(cube_plan)
    stream, other = ort_streams.make(), ort_streams.make()
    for user in (other, stream):
        session = provider.create_session(
            cube_model(), {"device_id": "0", "user_compute_stream": str(user.get_handle())}
        )
        b = Binding(session, 60)
        for k in (1, 2, 3):
            want = b.feed(stream, k)
            b.run(ort_streams.options(stream))
            log.copy(b.after.data_ptr(), b.y.data_ptr(), 240, stream.get_handle())
            log.synchronise(stream.get_handle())
            np.testing.assert_allclose(b.after.numpy(), want, rtol=1e-5)
        del b, session
        gc.collect()


def case_copies_go_to_the_stream_they_are_given() -> None:
    """Nothing is waited for, in either direction and on the device; inputs that ONNX Runtime copies
    are ordered with the run that is given the same stream.
    """
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"device_id": "0"})
    stream = ort_streams.make()
    b = Binding(session, 60)
    x, back = vector(60), ort.OrtValue.ortvalue_from_numpy(np.zeros(60, np.float32))
    log.take()
    ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(x)], [b.given], stream)
    b.run(ort_streams.options(stream))
    ort.copy_tensors([b.y], [b.after], stream)
    ort.copy_tensors([b.after], [back], stream)
    lines = log.take()
    assert [line for line in lines if line.startswith("copy")] == [
        "copy 240 to device",
        "copy 240 on device",
        "copy 240 to host",
    ]
    assert not count(lines, "synchronize")
    np.testing.assert_array_equal(back.numpy(), np.zeros(60, np.float32))
    log.synchronise(stream.get_handle())
    np.testing.assert_allclose(back.numpy(), x**3, rtol=1e-5)
    for k in (1, 2):  # a tensor that ONNX Runtime copies for the run
        for u, y in (
            session.run(None, {"x": k * x}, ort_streams.options(stream, quiet=quiet))
            for quiet in (False, True)
        ):
            np.testing.assert_allclose(u, (k * x) ** 2, rtol=1e-5)
            np.testing.assert_allclose(y, (k * x) ** 3, rtol=1e-5)


def case_memory_that_a_copy_still_reads_is_not_handed_out() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"device_id": "0"})
    stream = ort_streams.make()
    b = Binding(session, 70)
    b.run(ort_streams.options(quiet=False))
    ones, copied = device_tensor(np.ones(70, np.float32)), empty_tensor([70])
    address = ones.data_ptr()
    ort.copy_tensors([ones], [copied], stream)
    del ones
    gc.collect()
    outputs = [empty_tensor([70]) for _ in range(8)]
    taken = next(o for o in outputs if o.data_ptr() == address)
    b.io = bound(session, b.given, {"u": b.u, "y": taken})
    # writes there, ordered with nothing that the stream was given
    b.run(ort_streams.options(quiet=False))
    log.synchronise(stream.get_handle())
    np.testing.assert_array_equal(copied.numpy(), np.ones(70, np.float32))


def case_pinned_memory_waits_for_the_stream() -> None:
    """The host copies from it, and it is handed out again, only after copies on the stream have
    filled it.
    """
    need_ort(1, 25, why="makes no tensors in pinned memory for Python")
    stream = ort_streams.make()
    x = vector(50)
    source, host = device_tensor(x), ort.OrtValue.ortvalue_from_numpy(0 * x)
    pinned = ort_streams.pinned([50])
    ort.copy_tensors([source], [pinned], stream)
    ort.copy_tensors([pinned], [host], stream)
    np.testing.assert_array_equal(host.numpy(), x)
    ort.copy_tensors([source], [pinned], stream)
    address = pinned.data_ptr()
    del pinned
    gc.collect()
    log.take()
    pinned = ort_streams.pinned([50])
    assert pinned.data_ptr() == address and not count(log.take(), "pin")  # it was kept
    ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(2 * x)], [pinned])
    log.synchronise(stream.get_handle())
    np.testing.assert_array_equal(pinned.numpy(), 2 * x)


def case_streams_and_sessions_go_in_any_order() -> None:
    """The stand-in ends the process where a stream is used that was released."""
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"device_id": "0"})
    b = Binding(session, 60)
    for k in (1, 2, 3):
        stream = ort_streams.make()
        want = b.feed(stream, k)
        b.run(ort_streams.options(stream))
        del stream  # before what it was given is done
        gc.collect()
        check_cube(session, 60)
        np.testing.assert_allclose(b.y.numpy(), want, rtol=1e-5)
    stream = ort_streams.make()
    b.run(ort_streams.options(stream))
    del b, session
    gc.collect()
    log.synchronise(stream.get_handle())
    before = log.used()
    for _ in range(3):
        session = provider.create_session(cube_model(), {"device_id": "0"})
        b = Binding(session, 60)
        b.run(ort_streams.options(stream))
        del b, session
        gc.collect()
    assert log.used() == before


def case_a_graph_of_the_whole_session_waits_for_streams() -> None:
    """Of the runs that ONNX Runtime replays it does not tell the stream: they wait for all that are
    alive.
    """
    need_ort(*CAPTURES, why="captures no graphs of plugins")
    answer(cube_plan)
    session = provider.create_session(
        cube_model(), {"device_id": "0", "enable_cuda_graph": "session"}
    )
    streams = [ort_streams.make(), ort_streams.make()]
    stream = streams[0]
    b = Binding(session, 60)
    for k in (1, 2, 3, 4, 5):
        want = b.feed(stream, k)
        log.take()
        b.run(ort_streams.options(stream, quiet=False))
        # the first call makes all runs that it takes to capture one
        assert count(log.take(), "replay") == 1
        np.testing.assert_allclose(b.y.numpy(), want, rtol=1e-5)
        if k == 3:
            del streams[1]  # the idle one
            gc.collect()


def case_partitions_in_bodies_wait_for_streams() -> None:
    """ONNX Runtime does not tell the stream of a run in the bodies of control flow: with partitions
    there, runs wait for all that are alive.
    """
    answer(body_plan)
    branches = {}
    for name, op in (("then_branch", "Mul"), ("else_branch", "Add")):
        nodes = [
            h.make_node(op, ["x", "x"], [f"{name}_u"]),
            h.make_node("Mul", [f"{name}_u", "x"], [f"{name}_y"]),
        ]
        outputs = [h.make_tensor_value_info(f"{name}_{o}", T.FLOAT, ["n"]) for o in "uy"]
        branches[name] = h.make_graph(nodes, name, [], outputs)
    inputs = [
        h.make_tensor_value_info("c", T.BOOL, []),
        h.make_tensor_value_info("x", T.FLOAT, ["n"]),
    ]
    outputs = [h.make_tensor_value_info(o, T.FLOAT, ["n"]) for o in "uyz"]
    nodes = [
        h.make_node("If", ["c"], ["u", "y"], **branches),
        h.make_node("Add", ["y", "x"], ["z"]),
    ]
    graph = h.make_graph(nodes, "g", inputs, outputs)
    data = h.make_model(
        graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    session = provider.create_session(data, {"device_id": "0"})
    stream = ort_streams.make()
    given, z, after = empty_tensor([60]), empty_tensor([60]), empty_tensor([60])
    io = session.io_binding()
    io.bind_ortvalue_input("x", given)
    io.bind_cpu_input("c", np.array(True))
    for name, value in (("u", empty_tensor([60])), ("y", empty_tensor([60])), ("z", z)):
        io.bind_ortvalue_output(name, value)
    for k in (1, 2, 3, 4):
        source = device_tensor(k * vector(60))
        log.copy(given.data_ptr(), source.data_ptr(), 240, stream.get_handle())
        log.take()
        session.run_with_iobinding(io, ort_streams.options(stream, quiet=k > 2))
        if k > 2:
            log.copy(after.data_ptr(), z.data_ptr(), 240, stream.get_handle())
            log.synchronise(stream.get_handle())
        np.testing.assert_allclose(
            (after if k > 2 else z).numpy(), (k * vector(60)) ** 3 + k * vector(60), rtol=1e-5
        )


def case_inputs_that_onnx_runtime_copies_to_the_host_wait_for_streams() -> None:
    """It tells no stream of such a copy."""
    answer(mixed_plan)
    data = model(
        [h.make_node("Exp", ["x"], ["c"]), h.make_node("Add", ["c", "c"], ["y"])],
        {"x": ["n"]},
        {"y": ["n"]},
    )
    session = provider.create_session(data, {"device_id": "0"})
    session.run(None, {"x": vector(60)})
    stream, given = ort_streams.make(), empty_tensor([60])
    for k in (1, 2, 3):
        source = device_tensor(k * vector(60))
        log.copy(given.data_ptr(), source.data_ptr(), 240, stream.get_handle())
        (y,) = session.run_with_ort_values(
            ["y"], {"x": given}, ort_streams.options(stream, quiet=False)
        )
        np.testing.assert_allclose(y.numpy(), 2 * np.exp(k * vector(60)), rtol=1e-5)


def case_notifications() -> None:
    """ONNX Runtime lets other streams and the host wait with them for what a stream was given so
    far.
    """
    pointer = ctypes.c_void_p
    table = ctypes.cast(ort_streams.function(317, pointer)(), ctypes.POINTER(pointer))  # GetEpApi
    implementation = ctypes.CFUNCTYPE(pointer, pointer)(table[13])  # SyncStream_GetImpl

    def call(self: int, member: int, *arguments: Any, result: Any = pointer) -> Any:
        member_of = ctypes.cast(self + 8 * (member + 1), ctypes.POINTER(pointer))[0]
        return ctypes.CFUNCTYPE(result, *(pointer for _ in range(1 + len(arguments))))(member_of)(
            self, *arguments
        )

    release, activate, on_device, on_host, create_notification, flush = 0, 1, 2, 3, 2, 3
    first, second = ort_streams.make(), ort_streams.make()
    made = pointer()
    assert (
        call(implementation(ort_streams.native(first)), create_notification, ctypes.addressof(made))
        is None
    )
    notification = made.value or 0
    # nothing was to be waited for
    assert (
        call(notification, on_host) is None
        and call(notification, on_device, ort_streams.native(second)) is None
    )
    x = vector(60)
    source, between, to = device_tensor(x), device_tensor(0 * x), device_tensor(0 * x)
    host = ort.OrtValue.ortvalue_from_numpy(0 * x)
    ort.copy_tensors([source], [between], first)
    assert call(notification, activate) is None
    assert call(notification, on_device, ort_streams.native(second)) is None
    ort.copy_tensors([between], [to], second)
    ort.copy_tensors([to], [host], second)
    assert call(implementation(ort_streams.native(second)), flush) is None
    np.testing.assert_array_equal(host.numpy(), x)
    for consumer in (None, 0):  # the host, and a stream of nobody's
        host = ort.OrtValue.ortvalue_from_numpy(0 * x)
        ort.copy_tensors([source], [host], first)
        assert call(notification, activate) is None
        assert (
            call(notification, on_host)
            if consumer is None
            else call(notification, on_device, consumer)
        ) is None
        np.testing.assert_array_equal(host.numpy(), x)
    del first
    gc.collect()
    assert call(notification, release, result=None) is None


def case_other_providers_wait_for_the_run() -> None:
    """Nodes on the CPU between partitions, on one thread and on several: ONNX Runtime makes
    notifications of the stream.
    """
    answer(mixed_plan)
    stream = ort_streams.make()
    for mode in (ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL):
        so = ort.SessionOptions()
        so.execution_mode = mode
        session = provider.create_session(mixed_model(("a", "y")), {"device_id": "0"}, so)
        for n in (5, 40, 5, 0, 40, 40):
            x = vector(n)
            for given in (stream, None):
                a, y = session.run(None, {"x": x}, ort_streams.options(given, quiet=False))
                np.testing.assert_allclose(a, 2 * x, rtol=1e-6)
                np.testing.assert_allclose(y, np.exp(2 * x) * x + 2 * x, rtol=1e-5)


def case_concurrent_runs_on_streams_of_their_own() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"device_id": "0"})

    def work(n: int) -> None:
        stream = ort_streams.make()
        b = Binding(session, n)
        for k in range(1, 20):
            want = b.feed(stream, k)
            b.run(ort_streams.options(stream, quiet=k % 2 == 0))
            log.copy(b.after.data_ptr(), b.y.data_ptr(), 4 * n, stream.get_handle())
            log.synchronise(stream.get_handle())
            np.testing.assert_allclose(b.after.numpy(), want, rtol=1e-4)

    ort_streams.options(ort_streams.make())  # loads the C API before there are threads
    in_threads(work, [20 + 7 * k for k in range(4)])


def case_what_fails_is_one_line() -> None:
    answer(cube_plan)
    log.fail("cuStreamCreate", 2, times=2)
    with pytest.raises(Exception, match="CUDA: making a stream: out of memory") as e:
        ort_streams.make()
    assert "\n" not in str(e.value).strip()
    session = provider.create_session(cube_model(), {"device_id": "0"})
    stream = ort_streams.make()
    b = Binding(session, 60)
    b.run(ort_streams.options(stream))
    for call, words in (
        ("cuEventCreate", "making an event"),
        ("cuEventRecord", "ordering two streams"),
        ("cuStreamWaitEvent", "ordering two streams"),
    ):
        for after in (0, 1):  # before the run's work, and after it
            log.fail(call, 1, after=after)
            with pytest.raises(Exception, match=f"CUDA: {words}: invalid argument") as e:
                b.run(ort_streams.options(stream))
            assert "\n" not in str(e.value).strip()
            want = b.feed(stream, 3)
            b.run(ort_streams.options(stream, quiet=False))
            np.testing.assert_allclose(b.y.numpy(), want, rtol=1e-5)
