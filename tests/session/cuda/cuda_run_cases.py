"""Concurrent runs, memory and graphs of the provider on the stand-in of the driver.

Run by test_cuda.py.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
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
    drain,
    empty_tensor,
    has_ort,
    log,
    mixed_model,
    mixed_plan,
    need_ort,
    vector,
)
from tests.session.provider.provider_plans import Entries, key, model
from tests.support.in_threads import in_threads
from tracea_onnx import provider
from tracea_onnx.codegen.kernel_request import FaultWord, Int32, Words
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph

# --- several runs and sessions


def case_concurrent_runs() -> None:
    answer(cube_plan)
    for options in ({"backend": "cuda"}, {"backend": "cuda", "enable_cuda_graph": "1"}):
        sessions = [provider.create_session(cube_model(), options) for _ in range(2)]

        def work(seed: int, sessions: list[Any] = sessions) -> None:
            for k in range(30):
                check_cube(sessions[k % 2], (seed * 7 + k) % 23, seed)

        in_threads(work, range(5))


def case_sessions_give_their_memory_back() -> None:
    answer(cube_plan)

    def use() -> None:
        sessions = [
            provider.create_session(cube_model(), {"backend": "cuda", "enable_cuda_graph": "1"})
            for _ in range(2)
        ]
        for _ in range(3):
            for s in sessions:
                check_cube(s, 5000)
        del sessions[0]
        gc.collect()
        check_cube(sessions[0], 5000)

    use()
    gc.collect()
    before = log.used()
    for _ in range(3):
        use()
        gc.collect()
    assert log.used() == before


def case_out_of_memory_is_one_line() -> None:
    def entries(graph: Graph) -> Entries:
        b = HandPlan("large")
        x = b.add_input("x", F32, 1)
        b.define_symbol("n", 0, 0)
        n = D.symbol("n")
        u, y = b.add_output("u"), b.add_output("y")
        b.kernel("add", [x, None, b.arena(D.mul(n, 2**26)), Int32(0)])
        b.kernel("mul", [x, x, u, Int32(n)])
        b.kernel("mul", [u, x, y, Int32(n)])
        b.finish_output("u", F32, [n])
        b.finish_output("y", F32, [n])
        return [([key(node) for node in graph.nodes], b.to_json(), b.blobs)]

    answer(entries)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    for _ in range(2):
        with pytest.raises(
            Exception,
            match=r"out of GPU memory: \d+ bytes were asked for, \d+ of 1073741824 are free",
        ) as e:
            session.run(None, {"x": vector(100)})
        assert "\n" not in str(e.value).strip()
    check_cube(session, 2)


def case_out_of_memory_for_an_output_is_one_line() -> None:
    def entries(graph: Graph) -> Entries:
        ((keys, plan, blobs),) = cube_plan(graph)
        plan["exprs"].append(["const", 2**32])
        plan["outputs"][0]["dims"] = [len(plan["exprs"]) - 1]
        return [(keys, plan, blobs)]

    answer(entries)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    for _ in range(2):
        with pytest.raises(
            Exception,
            match=r"out of GPU memory: 17179869184 bytes were asked for, \d+ of 1073741824 are "
            r"free",
        ) as e:
            session.run(None, {"x": vector(100)})
        assert "\n" not in str(e.value).strip()


def case_what_the_gpu_leaves_goes_to_the_cpu_only_if_the_session_allows_it() -> None:
    answer(mixed_plan)

    def no_fallback() -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        return options

    with pytest.raises(Exception, match="fallback to CPU EP has been explicitly disabled") as e:
        provider.create_session(mixed_model(), {"backend": "cuda"}, no_fallback())
    assert "\n" not in str(e.value).strip()
    provider.create_session(mixed_model(), {"backend": "cuda"}).run(None, {"x": vector(10)})
    answer(cube_plan)
    check_cube(provider.create_session(cube_model(), {"backend": "cuda"}, no_fallback()), 10)


# --- faults


def checked_plan(graph: Graph) -> Entries:
    """The cube, and a fault where an element of x is negative."""
    b = HandPlan("fault")
    x = b.add_input("x", F32, 1)
    b.define_symbol("n", 0, 0)
    n = D.symbol("n")
    u, y = b.add_output("u"), b.add_output("y")
    b.kernel("check", [x, Int32(n), FaultWord()])
    b.kernel("mul", [x, x, u, Int32(n)])
    b.kernel("mul", [u, x, y, Int32(n)])
    b.finish_output("u", F32, [n])
    b.finish_output("y", F32, [n])
    return [([key(node) for node in graph.nodes], b.to_json(), b.blobs)]


def _raises(session: Any, x: np.ndarray) -> None:
    with pytest.raises(Exception, match="a Gather met an index out of range of its tensor") as e:
        session.run(None, {"x": x})
    assert "\n" not in str(e.value).strip()


def _bad_then_good(session: Any, good: np.ndarray) -> None:
    for _ in range(3):
        _raises(session, -good)
        np.testing.assert_allclose(session.run(None, {"x": good})[1], good**3, rtol=1e-5)


def case_bad_data_is_one_line() -> None:
    """On the host and on the device, launch by launch and in graphs; the run after it is well."""
    answer(checked_plan)
    good = np.abs(vector(40))
    for graphs in "01":
        options = {"backend": "cuda", "enable_cuda_graph": graphs}
        session = provider.create_session(cube_model(), options)
        _bad_then_good(session, good)
        if has_ort(1, 25):  # a provider by its name: tensors on the host
            named = [(provider.PROVIDER_NAME, options), "CPUExecutionProvider"]
            _bad_then_good(
                ort.InferenceSession(cube_model(), providers=named, enable_fallback=0), good
            )
        x, u, y = device_tensor(-good), empty_tensor([40]), empty_tensor([40])
        io = bound(session, x, {"u": u, "y": y})
        for _ in range(4):
            with pytest.raises(Exception, match="out of range"):
                session.run_with_iobinding(io)
        x.update_inplace(good)
        session.run_with_iobinding(io)
        np.testing.assert_allclose(y.numpy(), good**3, rtol=1e-5)


def case_bad_data_without_synchronisation_shows_at_the_next() -> None:
    need_ort(1, 25, why="has no way to wait for a plugin")
    answer(checked_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    io = bound(
        session,
        device_tensor(-np.abs(vector(40))),
        {"u": empty_tensor([40]), "y": empty_tensor([40])},
    )
    quiet = ort.RunOptions()
    quiet.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session.run_with_iobinding(io, quiet)
    with pytest.raises(Exception, match="out of range"):
        io.synchronize_outputs()
    io.synchronize_outputs()


# --- words in which the blocks of a launch meet


def meeting_plan(graph: Graph) -> Entries:
    """u = x, y = u, by kernels that add the words they find and leave others there."""
    b = HandPlan("meet")
    x = b.add_input("x", F32, 1)
    b.define_symbol("n", 0, 0)
    n = D.symbol("n")
    u, y = b.add_output("u"), b.add_output("y")
    b.kernel("meet", [x, u, Int32(n), Words(5), Int32(5)])
    b.kernel("meet", [u, y, Int32(n), Words(70), Int32(70)], pdl=True)
    b.finish_output("u", F32, [n])
    b.finish_output("y", F32, [n])
    return [([key(node) for node in graph.nodes], b.to_json(), b.blobs)]


def case_words_are_clear_when_a_launch_starts() -> None:
    """Launch by launch and in graphs, which clear them, too; after a launch that did not end."""
    answer(meeting_plan)
    for graphs in "01":
        session = provider.create_session(
            cube_model(), {"backend": "cuda", "enable_cuda_graph": graphs}
        )
        for n in (1, 40, 40, 40, 1):
            for found in session.run(None, {"x": vector(n)}):
                np.testing.assert_array_equal(found, vector(n))
        log.fail("cuMemsetD8Async", 1, after=1)
        with pytest.raises(Exception, match="clearing the words of kernel 'meet'"):
            session.run(None, {"x": vector(41)})
        x, y = device_tensor(vector(40)), empty_tensor([40])
        io = bound(session, x, {"u": empty_tensor([40]), "y": y})
        log.take()
        for k in range(4):
            x.update_inplace(k * vector(40))
            session.run_with_iobinding(io)
            np.testing.assert_array_equal(y.numpy(), k * vector(40))
        lines = log.take()
        # a launch may not overtake the clearing of its words
        assert all("pdl=0" in line for line in lines if line.startswith("launch"))
        assert lines.count("instantiate 4") == int(graphs)
        assert lines.count("replay") == 3 * int(graphs)


def case_words_of_a_recorded_session_and_of_concurrent_runs() -> None:
    """Runs at a time have words of their own."""
    answer(meeting_plan)
    x = vector(60)
    if has_ort(*CAPTURES):
        session = provider.create_session(
            cube_model(), {"backend": "cuda", "enable_cuda_graph": "session"}
        )
        given, y = device_tensor(x), empty_tensor([60])
        io = bound(session, given, {"u": empty_tensor([60]), "y": y})
        for k in range(4):
            given.update_inplace(k * x)
            session.run_with_iobinding(io)
            np.testing.assert_array_equal(y.numpy(), k * x)
    session = provider.create_session(cube_model(), {"backend": "cuda"})

    def work(seed: int) -> None:
        for _ in range(10):
            for found in session.run(None, {"x": vector(30, seed)}):
                np.testing.assert_array_equal(found, vector(30, seed))

    in_threads(work, range(4))


# --- graphs


def case_graph_per_partition_and_addresses() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda", "enable_cuda_graph": "1"})
    x = vector(60)
    bindings = [(device_tensor(k * x), empty_tensor([60]), empty_tensor([60])) for k in (1, 2)]
    ios = [bound(session, g, {"u": u, "y": y}) for g, u, y in bindings]
    log.take()
    for _ in range(4):
        for k, io in enumerate(ios):
            session.run_with_iobinding(io)
            np.testing.assert_allclose(bindings[k][2].numpy(), ((k + 1) * x) ** 3, rtol=1e-5)
    lines = log.take()
    assert lines.count("instantiate 3") == 2 and lines.count("replay") == 6
    for _ in range(12):  # more addresses than are remembered
        io = bound(
            session, device_tensor(x), {"u": empty_tensor([60]), "y": (y := empty_tensor([60]))}
        )
        session.run_with_iobinding(io)
        session.run_with_iobinding(io)
        np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)


def case_no_graphs_where_addresses_come_and_go() -> None:
    """By default graphs are made, but not for ever where each is replayed once."""
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    x, kept, lines = vector(60), [], []
    for _ in range(40):
        kept.append((device_tensor(x), empty_tensor([60]), empty_tensor([60])))
        io = bound(session, kept[-1][0], {"u": kept[-1][1], "y": kept[-1][2]})
        log.take()
        for _ in range(3):
            session.run_with_iobinding(io)
        lines.append(log.take())
        np.testing.assert_allclose(kept[-1][2].numpy(), x**3, rtol=1e-5)
    assert all(taken.count("replay") == 2 for taken in lines[:16]) and not any(
        taken.count("replay") for taken in lines[16:]
    )


def case_graph_of_the_whole_session() -> None:
    """ORT's own capture: runs on fixed bindings become one replay, contents of the bound tensors
    are read anew.
    """
    need_ort(*CAPTURES, why="captures no graphs for plugins")
    answer(cube_plan)
    session = provider.create_session(
        cube_model(), {"backend": "cuda", "enable_cuda_graph": "session"}
    )
    x = vector(60)
    given, u, y = device_tensor(x), empty_tensor([60]), empty_tensor([60])
    io = bound(session, given, {"u": u, "y": y})
    log.take()
    session.run_with_iobinding(io)
    assert log.take().count("instantiate 3") == 1  # ORT runs until the graph is captured
    np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)
    for k in (2, 3, 4):
        given.update_inplace(k * x)
        log.take()
        session.run_with_iobinding(io)
        assert set(log.take()) == {"replay", "synchronize"}
        np.testing.assert_allclose(y.numpy(), (k * x) ** 3, rtol=1e-5)
    # Another graph id is another set of bindings.
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "1")
    short, v, w = device_tensor(x[:20]), empty_tensor([20]), empty_tensor([20])
    second = bound(session, short, {"u": v, "y": w})
    for _ in range(3):
        session.run_with_iobinding(second, options)
        np.testing.assert_allclose(w.numpy(), x[:20] ** 3, rtol=1e-5)
        session.run_with_iobinding(io)
        np.testing.assert_allclose(y.numpy(), (4 * x) ** 3, rtol=1e-5)


def case_graph_of_several_partitions_keeps_its_memory() -> None:
    """What ORT allocated between partitions belongs to the captured graph: no later tensor may get
    it.
    """
    need_ort(*CAPTURES, why="captures no graphs for plugins")
    answer(mixed_plan)
    nodes = [
        h.make_node("Add", ["x", "x"], ["a"]),
        h.make_node("Mul", ["a", "x"], ["b"]),
        h.make_node("Add", ["b", "b"], ["y"]),
    ]
    session = provider.create_session(
        model(nodes, {"x": ["n"]}, {"y": ["n"]}),
        {"backend": "cuda", "enable_cuda_graph": "session"},
    )
    sizes = (60, 120, 200, 256)  # whatever size ORT's memory plan has
    held = drain(*sizes)
    x = vector(60)
    given, y = device_tensor(x), empty_tensor([60])
    io = bound(session, given, {"y": y})
    session.run_with_iobinding(io)
    others = [device_tensor(np.full(n, k, np.float32)) for k in range(4) for n in sizes]
    for k in (2, 3):
        given.update_inplace(k * x)
        session.run_with_iobinding(io)
        np.testing.assert_allclose(y.numpy(), 4 * (k * x) ** 2, rtol=1e-5)
    for k, other in enumerate(others):
        assert set(other.numpy()) == {k // len(sizes)}
    del held


def case_graph_of_the_session_refuses_host_tensors() -> None:
    """A graph would not repeat copies from the host: an error, never stale results."""
    need_ort(*CAPTURES, why="captures no graphs for plugins")
    answer(cube_plan)
    session = provider.create_session(
        cube_model(), {"backend": "cuda", "enable_cuda_graph": "session"}
    )
    with pytest.raises(Exception, match=r"[Gg]raph capture"):
        session.run(None, {"x": vector(60)})


def case_graph_of_the_session_needs_every_node() -> None:
    need_ort(*CAPTURES, why="captures no graphs for plugins")
    answer(mixed_plan)
    with pytest.raises(Exception, match="graph capture"):
        provider.create_session(mixed_model(), {"backend": "cuda", "enable_cuda_graph": "session"})


def _plain_cube(options: dict[str, str]) -> tuple[Any, Any, np.ndarray, Any]:
    """A session, a binding of device tensors, x, and the tensor for y."""
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda", **options})
    x = vector(60)
    y = empty_tensor([60])
    return session, bound(session, device_tensor(x), {"u": empty_tensor([60]), "y": y}), x, y


def case_without_graphs_the_launches_are_made_one_by_one() -> None:
    """Recording, making or replaying a graph fails: one line in the log, right results, and no
    second attempt with these addresses.
    """
    for call in (
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
    ):
        session, io, x, y = _plain_cube({})
        log.fail(call, 801, times=1000)
        for _ in range(4):
            session.run_with_iobinding(io)
            np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)
        log.fail(call, 0, times=0)
        log.take()
        session.run_with_iobinding(io)
        lines = log.take()
        assert (
            count(lines, "launch") == 3
            and not count(lines, "replay")
            and not count(lines, "instantiate")
        ), call


def case_a_launch_that_cannot_be_recorded() -> None:
    session, io, x, y = _plain_cube({})
    session.run_with_iobinding(io)
    log.fail("cuLaunchKernelEx", 900, after=1, times=1)
    for _ in range(3):
        session.run_with_iobinding(io)
        np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)
    log.take()
    session.run_with_iobinding(io)
    assert count(log.take(), "launch") == 3


def case_equal_runs_get_equal_addresses() -> None:
    """Of numpy arrays: what a run released, the next one takes in the same order, whatever else is
    free, so that it is replayed.
    """
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    kept = [empty_tensor([40]) for _ in range(7)]
    del kept
    gc.collect()
    log.take()
    for _ in range(4):
        check_cube(session, 40)
    lines = log.take()
    assert count(lines, "instantiate") == 1 and count(lines, "replay") == 3


def case_more_bindings_than_graphs() -> None:
    """Nine bindings in turn all replay; of very many only so many graphs are kept."""
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    x = vector(60)
    results = [empty_tensor([60]) for _ in range(9)]
    ios = [
        bound(session, device_tensor(k * x), {"u": empty_tensor([60]), "y": y})
        for k, y in enumerate(results)
    ]
    log.take()
    for _ in range(6):
        for k, io in enumerate(ios):
            session.run_with_iobinding(io)
            np.testing.assert_allclose(results[k].numpy(), (k * x) ** 3, rtol=1e-5)
    lines = log.take()
    assert count(lines, "instantiate") == 9 and count(lines, "replay") == 5 * 9


def case_graphs_are_bounded() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    log.take()
    for n in range(1, 13):  # sets of shapes
        ios = [
            bound(
                session, device_tensor(vector(n)), {"u": empty_tensor([n]), "y": empty_tensor([n])}
            )
            for _ in range(7)
        ]
        for _ in range(2):
            for io in ios:
                session.run_with_iobinding(io)
    lines = log.take()
    assert count(lines, "instantiate") == 84 and count(lines, "destroy graph") == 84 - 64


# --- memory


def case_what_is_only_kept_is_given_back_where_memory_is_short() -> None:
    """At every place that needs memory of the device: free blocks and graphs go, and the call is
    made again.
    """
    answer(cube_plan)
    other, io, _, _ = _plain_cube({})
    for _ in range(2):
        other.run_with_iobinding(io)  # leaves a graph
    for call in (
        "cuMemAlloc_v2",
        "cuStreamCreate",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernelEx",
    ):
        kept = [empty_tensor([1000]) for _ in range(2)]
        del kept
        gc.collect()
        log.take()
        log.fail(call, 2, times=1)
        answer(_with_own_cubins(call))
        session = provider.create_session(cube_model(), {"backend": "cuda"})
        x = np.abs(vector(50_000))
        np.testing.assert_allclose(session.run(None, {"x": x})[1], x**3, rtol=1e-5)
        log.fail(call, 0, times=0)
        del session
        gc.collect()
        other.run_with_iobinding(io)
        other.run_with_iobinding(io)
        assert count(log.take(), "destroy graph"), call
    session, io, x, y = _plain_cube({})
    session.run_with_iobinding(io)
    log.fail("cuGraphInstantiateWithFlags", 2, times=1)
    log.take()
    session.run_with_iobinding(io)
    np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)
    lines = log.take()
    assert count(lines, "instantiate") == 1 and count(lines, "replay") == 1


def _with_own_cubins(name: str) -> Callable[[Graph], Entries]:
    return lambda graph: [
        (k, p, [b + name.encode() for b in blobs]) for k, p, blobs in checked_plan(graph)
    ]


def case_memory_limit() -> None:
    answer(cube_plan)
    gc.collect()
    session = provider.create_session(
        cube_model(), {"backend": "cuda", "gpu_mem_limit": str(32 << 20)}
    )
    for n in (1000, 500_000, 1_000_000, 1_500_000, 700_000):  # what smaller ones left is given back
        check_cube(session, n)
    for _ in range(2):
        used = (
            r"\d+ of the 33554432 that the provider option gpu_mem_limit allows are in use; "
            r"raise gpu_mem_limit"
        )
        with pytest.raises(
            Exception, match=rf"out of GPU memory: \d+ bytes were asked for, {used}"
        ) as e:
            session.run(None, {"x": vector(5_000_000)})
        assert "\n" not in str(e.value).strip()
        del e
    check_cube(session, 1_000_000)
    assert log.used() <= 32 << 20
    del session
    gc.collect()
    check_cube(provider.create_session(cube_model(), {"backend": "cuda"}), 5_000_000)
    for value in ("0", "-1", "1e9", "2G", ""):
        options = {"backend": "cuda", "gpu_mem_limit": value}
        if not value:
            provider.create_session(cube_model(), options)
            continue
        with pytest.raises(Exception, match=f"gpu_mem_limit='{value}' is not a number from 1 to "):
            provider.create_session(cube_model(), options)


def case_memory_of_past_shapes_is_given_back() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    check_cube(session, 5_000_000)
    large = log.used()
    for _ in range(800):
        check_cube(session, 10)
    assert large - log.used() > 55_000_000  # three tensors of the large shape
    session.run(None, {"x": np.ones(40_000_000, np.float32)})
    large = log.used()
    for _ in range(1600):
        check_cube(session, 10)
    assert large - log.used() > 620_000_000  # the stream context's arena, too


def case_growing_shapes_leave_no_block_of_each() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    for k in range(1, 31):
        session.run(None, {"x": np.ones(12_000_000 * k // 30, np.float32)})
    assert log.used() < 360_000_000  # blocks of every size together have 430,000,000


# --- recorded runs


def case_a_graph_id_is_a_number() -> None:
    need_ort(*CAPTURES, why="captures no graphs for plugins")
    session, io, x, y = _plain_cube({"enable_cuda_graph": "session"})
    for value in ("one", "1x", "-2", "99999999999"):
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", value)
        with pytest.raises(Exception, match=r"gpu_graph_id|graph annotation") as e:
            session.run_with_iobinding(io, options)
        assert "\n" not in str(e.value).strip()
    session.run_with_iobinding(io)
    np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)


def case_a_run_that_copies_a_constant_is_not_recorded() -> None:
    """An output that is a constant: ONNX Runtime copies it from the host within the run."""
    need_ort(*CAPTURES, why="captures no graphs for plugins")

    def entries(graph: Graph) -> Entries:
        b = HandPlan("square")
        x = b.add_input("x", F32, 1)
        b.define_symbol("n", 0, 0)
        n = D.symbol("n")
        b.kernel("mul", [x, x, b.add_output("y"), Int32(n)])
        b.finish_output("y", F32, [n])
        return [([key(node) for node in graph.nodes], b.to_json(), b.blobs)]

    answer(entries)
    x = vector(60)
    data = model(
        [h.make_node("Mul", ["x", "x"], ["y"])], {"x": ["n"]}, {"y": ["n"], "w": [60]}, {"w": x}
    )
    session = provider.create_session(data, {"backend": "cuda", "enable_cuda_graph": "session"})
    io = bound(session, device_tensor(x), {"y": empty_tensor([60]), "w": empty_tensor([60])})
    with pytest.raises(Exception, match=r"[Gg]raph capture did not complete"):
        session.run_with_iobinding(io)


def case_a_recorded_run_keeps_what_it_allocated() -> None:
    """An output that the provider allocates in the recorded run and that is dropped after it:
    replays write it still.
    """
    need_ort(1, 28, why="takes device 'cuda' for another vendor's")
    answer(cube_plan)
    session = provider.create_session(
        cube_model(), {"backend": "cuda", "enable_cuda_graph": "session"}
    )
    x = vector(60)
    given, y = device_tensor(x), empty_tensor([60])
    io = session.io_binding()
    io.bind_ortvalue_input("x", given)
    io.bind_output("u", "cuda", 0)
    io.bind_ortvalue_output("y", y)
    session.run_with_iobinding(io)
    io.clear_binding_outputs()
    gc.collect()
    others = [device_tensor(np.full(60, k, np.float32)) for k in range(8)]
    io.bind_ortvalue_output("y", y)
    io.bind_output("u", "cuda", 0)
    given.update_inplace(2 * x)
    session.run_with_iobinding(io)
    np.testing.assert_allclose(y.numpy(), (2 * x) ** 3, rtol=1e-5)
    for k, other in enumerate(others):
        np.testing.assert_array_equal(other.numpy(), np.full(60, k, np.float32))


def case_a_recorded_run_that_fails_is_not_replayed() -> None:
    need_ort(*CAPTURES, why="captures no graphs for plugins")
    answer(mixed_plan)
    nodes = [
        h.make_node("Add", ["x", "x"], ["a"]),
        h.make_node("Mul", ["a", "x"], ["b"]),
        h.make_node("Add", ["b", "b"], ["y"]),
    ]
    session = provider.create_session(
        model(nodes, {"x": ["n"]}, {"y": ["n"]}),
        {"backend": "cuda", "enable_cuda_graph": "session"},
    )
    x = vector(60)
    given, y = device_tensor(x), empty_tensor([60])
    io = bound(session, given, {"y": y})
    # three launches of the first run, three and three of the recorded one
    log.fail("cuLaunchKernelEx", 1, after=7, times=1)
    with pytest.raises(Exception, match="launching kernel"):
        session.run_with_iobinding(io)
    for k in (2, 3):
        given.update_inplace(k * x)
        session.run_with_iobinding(io)
        np.testing.assert_allclose(y.numpy(), 4 * (k * x) ** 2, rtol=1e-5)


def case_a_session_whose_work_failed_gives_everything_back() -> None:
    """Waiting for its work fails when it is dropped: graphs, kernels and memory go all the same,
    and the GPU is used on.
    """

    def use(failing: bool) -> list[str]:
        answer(_with_own_cubins("dropped"))
        session = provider.create_session(cube_model(), {"backend": "cuda"})
        io = bound(
            session,
            device_tensor(np.abs(vector(500))),
            {"u": empty_tensor([500]), "y": empty_tensor([500])},
        )
        for _ in range(3):
            session.run_with_iobinding(io)
        log.take()
        if failing:
            log.fail("cuStreamSynchronize", 1, times=2)
        del session, io
        gc.collect()
        log.fail("cuStreamSynchronize", 0, times=0)
        return log.take()

    use(False)
    gc.collect()
    before = log.used()
    for failing in (True, False, True):
        lines = use(failing)
        assert count(lines, "destroy graph") == 1 and count(lines, "unload module") == 1
        assert log.used() == before


# --- streams of the caller


def case_a_stream_of_the_caller() -> None:
    """Work that was given to it before is done first, what is given to it after comes after; the
    session makes no stream to launch on and leaves it alive.
    """
    answer(cube_plan)
    provider.create_session(cube_model(), {"backend": "cuda"})
    with log.stream() as stream:
        for mode in ("0", "1"):
            session = provider.create_session(
                cube_model(),
                {"backend": "cuda", "user_compute_stream": str(stream), "enable_cuda_graph": mode},
            )
            x, given = vector(60), empty_tensor([60])
            u, y, after = empty_tensor([60]), empty_tensor([60]), empty_tensor([60])
            io = bound(session, given, {"u": u, "y": y})
            quiet = ort.RunOptions()
            quiet.add_run_config_entry("disable_synchronize_execution_providers", "1")
            for k in (1, 2, 3):
                source = device_tensor(k * x)
                # not done when the run begins
                log.copy(given.data_ptr(), source.data_ptr(), 240, stream)
                session.run_with_iobinding(io, quiet)
                log.copy(after.data_ptr(), y.data_ptr(), 240, stream)
                log.synchronise(stream)
                np.testing.assert_allclose(after.numpy(), (k * x) ** 3, rtol=1e-5)
            check_cube(session, 30)
            del session
            gc.collect()
        log.synchronise(stream)
    del io, source  # the binding kept the session, which goes now, after the stream
    gc.collect()
    # the legacy default stream
    check_cube(
        provider.create_session(cube_model(), {"backend": "cuda", "user_compute_stream": "0"}), 30
    )
    check_cube(
        provider.create_session(cube_model(), {"backend": "cuda", "user_compute_stream": "0x0"}), 30
    )
    for value in ("-1", "stream", "12ab", "0x", "1 "):
        with pytest.raises(Exception, match=f"user_compute_stream='{value}' is not a number"):
            provider.create_session(cube_model(), {"backend": "cuda", "user_compute_stream": value})
    with pytest.raises(
        Exception, match="looking at the stream of user_compute_stream: invalid argument"
    ):
        provider.create_session(cube_model(), {"backend": "cuda", "user_compute_stream": "4096"})


def case_inputs_of_other_streams_can_be_waited_for() -> None:
    """IOBinding.synchronize_inputs waits for streams that nothing orders with the session's."""
    need_ort(1, 25, why="has no way to wait for a plugin")
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    x, given, y = vector(60), empty_tensor([60]), empty_tensor([60])
    io = bound(session, given, {"u": empty_tensor([60]), "y": y})
    with log.stream() as stream:
        source = device_tensor(x)
        log.copy(given.data_ptr(), source.data_ptr(), 240, stream)
        io.synchronize_inputs()
        session.run_with_iobinding(io)
        np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)
