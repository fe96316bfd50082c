"""The provider on a GPU inside ONNX Runtime, on the stand-in of the driver: devices, tensors,
partitions. Run by test_cuda.py.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper as h

from tests.decoders import greedy_search
from tests.fake.plans import HandPlan
from tests.session.cuda.cuda_session import (
    F32,
    NVIDIA,
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
    packs,
    requests,
    vector,
    without_compiler,
)
from tests.session.provider.provider_plans import (
    MUL,
    Entries,
    chain_model,
    chain_plan,
    check_chain,
    elementwise,
    key,
    model,
)
from tracea_onnx import provider
from tracea_onnx.codegen.kernel_request import Float32, Int32
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import PlanBuilder, merge_packs

# --- which device a session gets


def case_devices_are_listed_after_the_cpu() -> None:
    provider.register()
    ours = [d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER_NAME]
    assert [d.ep_metadata["cuda_device_id"] for d in ours] == ["-1", "0"]
    assert (
        ours[1].ep_metadata["tracea_backend"] == "cuda"
        and ours[1].ep_metadata["arch"] == "90"
        and ours[1].ep_metadata["name"] == "Fake GPU 0"
    )
    assert (ours[1].device.type, ours[1].device.vendor_id) == (
        ort.OrtHardwareDeviceType.GPU,
        NVIDIA,
    )


def case_registering_makes_no_context() -> None:
    assert not count(log.take(), "context")


def case_the_cpu_is_the_default() -> None:
    answer(lambda g: [([key(n) for n in g.nodes], chain_plan(), [])])
    data = chain_model()
    for session in (
        provider.create_session(data),
        ort.InferenceSession(data, providers=[provider.PROVIDER_NAME, "CPUExecutionProvider"]),
    ):
        check_chain(session, 3)
    assert {p.key: p.value for p in requests[-1].metadata_props}["backend"] == "cpu"
    assert not count(log.take(), "context")


def case_every_way_to_ask_for_the_gpu() -> None:
    need_ort(1, 25, why="takes no plugin in providers")
    answer(cube_plan)
    name, cpu = provider.PROVIDER_NAME, "CPUExecutionProvider"
    made = [
        ort.InferenceSession(
            cube_model(), providers=[(name, {"backend": "cuda"}), cpu], enable_fallback=0
        ),
        ort.InferenceSession(
            cube_model(), providers=[(name, {"device_id": "0"}), cpu], enable_fallback=0
        ),
        ort.InferenceSession(
            cube_model(),
            providers=[(name, {"backend": "cuda", "device_id": "0"}), cpu],
            enable_fallback=0,
        ),
        ort.InferenceSession(cube_model(), provider.select({"backend": "cuda"}), enable_fallback=0),
        ort.InferenceSession(cube_model(), provider.select({"device_id": "0"}), enable_fallback=0),
        provider.create_session(cube_model(), {"backend": "cuda"}),
    ]
    for session in made:
        log.take()
        check_cube(session, 50)
        assert count(log.take(), "launch") == 3
        metadata = {p.key: p.value for p in requests[-1].metadata_props}
        assert {k: metadata[k] for k in ("backend", "arch", "sms", "driver")} == {
            "backend": "cuda",
            "arch": "90",
            "sms": "132",
            "driver": "13000",
        }
    inputs = [s.get_input_memory_infos()[0].name for s in made]
    assert inputs == ["Cpu", *["TraceaCuda"] * 5]


def case_of_several_devices_the_first_is_taken() -> None:
    """Policies such as PREFER_GPU give a GPU with the host behind it; ONNX Runtime puts tensors in
    the memory of the first of them.
    """
    need_ort(1, 30, why="refuses devices of one provider with memory of their own and without")
    provider.register()
    host, gpu = (d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER_NAME)
    for devices, plan, backend in (([gpu, host], cube_plan, "cuda"), ([host, gpu], None, "cpu")):
        answer(plan or (lambda g: [([key(n) for n in g.nodes], chain_plan(), [])]))
        options = ort.SessionOptions()
        options.add_provider_for_devices(devices, {})
        session = ort.InferenceSession(cube_model() if plan else chain_model(), options)
        assert {p.key: p.value for p in requests[-1].metadata_props}["backend"] == backend
        if plan:
            check_cube(session, 50)
        else:
            check_chain(session, 3)


def case_kernels_of_a_session_that_waits_for_each_launch_wait_for_no_copy_for_ever() -> None:
    answer(cube_plan)
    for option in ("0", "1"):
        session = provider.create_session(
            cube_model(), {"backend": "cuda", "sync_launches": option}
        )
        assert {p.key: p.value for p in requests[-1].metadata_props}["traps"] == option
        check_cube(session, 50)


def case_what_cannot_be_had_is_one_line() -> None:
    need_ort(1, 25, why="takes no plugin in providers")
    answer(cube_plan)
    with pytest.raises(TraceaError, match="has no CUDA device 3 on this machine"):
        provider.create_session(cube_model(), {"backend": "cuda", "device_id": "3"})
    for options, message in (
        ({"backend": "tpu"}, "backend='tpu' is not one of: cpu, cuda"),
        ({"backend": "cpu", "device_id": "0"}, "backend=cpu takes no device_id"),
        (
            {"backend": "cuda", "enable_cuda_graph": "yes"},
            "enable_cuda_graph='yes' is not one of: 0, 1, session",
        ),
    ):
        with pytest.raises(Exception, match=message):
            provider.create_session(cube_model(), options)
    for value in ("0x", "1 ", "-1", "first", "99999999999"):
        given = ort.SessionOptions()
        given.add_session_config_entry("ep.traceaexecutionprovider.device_id", value)
        with pytest.raises(Exception, match=f"device_id='{value}' is not a number from 0 to 1023"):
            ort.InferenceSession(
                cube_model(), given, providers=[provider.PROVIDER_NAME], enable_fallback=0
            )
    with pytest.raises(Exception, match="enable_cuda_graph=session needs a GPU device"):
        ort.InferenceSession(
            cube_model(),
            providers=[
                (provider.PROVIDER_NAME, {"backend": "cuda", "enable_cuda_graph": "session"})
            ],
            enable_fallback=0,
        )


# --- tensors at the border


def case_numpy_in_and_out() -> None:
    answer(cube_plan)
    for options in ({"backend": "cuda"}, {"backend": "cuda", "enable_cuda_graph": "1"}):
        session = provider.create_session(cube_model(), options)
        for n in (1, 50, 7, 0, 50, 3000, 7, 50):
            check_cube(session, n)
    log.take()
    check_cube(session, 50)
    lines = log.take()
    assert (
        count(lines, "copy 200 to device"),
        count(lines, "copy 200 to host"),
        count(lines, "copy 200 on device"),
    ) == (1, 2, 0)
    assert not count(lines, "allocate")


def case_host_tensors_without_a_gpu_device() -> None:
    """backend=cuda through `providers` alone: ORT knows no GPU memory, the partition copies."""
    need_ort(1, 25, why="takes no plugin in providers")
    answer(cube_plan)
    for graphs in ("0", "1"):
        options = {"backend": "cuda", **({"enable_cuda_graph": "0"} if graphs == "0" else {})}
        session = ort.InferenceSession(
            cube_model(),
            providers=[(provider.PROVIDER_NAME, options), "CPUExecutionProvider"],
            enable_fallback=0,
        )
        for n in (1, 50, 7, 0, 50, 3000, 7, 50):
            check_cube(session, n)
        log.take()
        check_cube(session, 50)
        lines = log.take()
        assert (count(lines, "copy 200 to device"), count(lines, "copy 200 to host")) == (1, 2)
        assert count(lines, "replay") == int(graphs) and not count(lines, "allocate")


def case_binding_device_tensors_copies_nothing() -> None:
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda", "enable_cuda_graph": "0"})
    x = vector(60)
    given, u, y = device_tensor(x), empty_tensor([60]), empty_tensor([60])
    np.testing.assert_array_equal(given.numpy(), x)
    io = bound(session, given, {"u": u, "y": y})
    log.take()
    for _ in range(3):
        session.run_with_iobinding(io)
    lines = log.take()
    assert (
        count(lines, "launch") == 9
        and not count(lines, "copy")
        and not count(lines, "allocate 240")
    )
    np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)
    given.update_inplace(2 * x)
    session.run_with_iobinding(io)
    np.testing.assert_allclose(y.numpy(), 8 * x**3, rtol=1e-5)


def case_outputs_the_provider_allocates_on_the_device() -> None:
    need_ort(1, 28, why="takes device 'cuda' for another vendor's")
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    x = vector(9)
    io = session.io_binding()
    io.bind_ortvalue_input("x", device_tensor(x))
    io.bind_output("u", "cuda", 0)
    io.bind_output("y", "cpu")
    session.run_with_iobinding(io)
    u, y = io.get_outputs()
    assert (u.device_name().lower(), y.device_name().lower()) == ("cuda", "cpu")
    np.testing.assert_allclose(u.numpy(), x * x, rtol=1e-6)
    np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)


def case_tensors_off_the_vector_boundary() -> None:
    """A view into device memory that starts at any element."""
    need_ort(1, 28, why="takes device 'cuda' for another vendor's")
    answer(cube_plan)
    x = vector(40)
    for options in ({"backend": "cuda"}, {"backend": "cuda", "enable_cuda_graph": "1"}):
        session = provider.create_session(cube_model(), options)
        whole, u = device_tensor(x), empty_tensor([40])
        io = session.io_binding()
        io.bind_input("x", "cuda", 0, np.float32, [30], whole.data_ptr() + 4)
        io.bind_output("u", "cuda", 0, np.float32, [30], u.data_ptr() + 8)
        io.bind_output("y", "cpu")
        for _ in range(3):
            session.run_with_iobinding(io)
        np.testing.assert_allclose(u.numpy()[2:32], x[1:31] ** 2, rtol=1e-6)
        np.testing.assert_allclose(io.get_outputs()[1].numpy(), x[1:31] ** 3, rtol=1e-5)


def case_copies_between_devices_and_host() -> None:
    provider.register()
    x = vector(33)
    a, b, c = (
        device_tensor(x),
        empty_tensor([33]),
        ort.OrtValue.ortvalue_from_numpy(np.zeros(33, np.float32)),
    )
    ort.copy_tensors([a], [b])
    ort.copy_tensors([b], [c])
    np.testing.assert_array_equal(c.numpy(), x)


def case_unsynchronised_runs() -> None:
    need_ort(1, 25, why="has no way to wait for a plugin")
    answer(cube_plan)
    session = provider.create_session(cube_model(), {"backend": "cuda", "enable_cuda_graph": "0"})
    x = vector(60)
    u, y = empty_tensor([60]), empty_tensor([60])
    io = bound(session, device_tensor(x), {"u": u, "y": y})
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session.run_with_iobinding(io)
    log.take()
    for _ in range(3):
        session.run_with_iobinding(io, options)
    lines = log.take()
    assert count(lines, "launch") == 9 and not count(lines, "synchronize")
    io.synchronize_outputs()
    assert count(log.take(), "synchronize")
    np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-5)
    session.run_with_iobinding(io, options)
    # memory that a run still writes: it must not go to another tensor before that run has ended
    del u, io
    gc.collect()
    other = device_tensor(np.ones(60, np.float32))
    session.run(None, {"x": x})
    np.testing.assert_array_equal(other.numpy(), np.ones(60, np.float32))


# --- graphs with other providers, several partitions, constants


def case_partitions_between_cpu_nodes() -> None:
    answer(mixed_plan)
    for mode in (ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL):
        for options in ({"backend": "cuda"}, {"backend": "cuda", "enable_cuda_graph": "1"}):
            so = ort.SessionOptions()
            so.execution_mode = mode
            session = provider.create_session(mixed_model(("a", "y")), options, so)
            for n in (5, 40, 5, 0, 40, 40):
                x = vector(n)
                a, y = session.run(None, {"x": x})
                np.testing.assert_allclose(a, 2 * x, rtol=1e-6)
                np.testing.assert_allclose(y, np.exp(2 * x) * x + 2 * x, rtol=1e-5)


def case_a_decoder_that_onnx_runtime_searches_is_left_to_it() -> None:
    """GreedySearch reads logits on the host, wherever its body left them."""
    answer(lambda graph: [])
    search = greedy_search().SerializeToString()
    session = provider.create_session(search, {"backend": "cuda"})
    assert requests and "decoder" not in {r.graph.name for r in requests}
    feeds = {
        "input_ids": np.array([[1, 2, 3], [4, 5, 6]], np.int32),
        "max_length": np.array([9], np.int32),
    }
    (want,) = ort.InferenceSession(search, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(session.run(None, feeds)[0], want)


def constants_model(w: np.ndarray, c: np.ndarray) -> bytes:
    return model(
        [h.make_node("Mul", ["x", "w"], ["t"]), h.make_node("Add", ["t", "c"], ["y"])],
        {"x": ["n", 2000]},
        {"y": ["n", 2000]},
        {"w": w, "c": c},
    )


def case_constants() -> None:
    """y = x + 2 * w + c: w prepared by an init launch, c read in place; no copy of w is left in ORT
    or on the device.
    """
    w, c = vector(2000, 1).reshape(1, -1), vector(2000, 2).reshape(1, -1)

    def entries(graph: Graph) -> Entries:
        b = HandPlan("constants")
        x, y = b.add_input("x", F32, 2), b.add_output("y")
        b.define_symbol("n", 0, 0)
        n = D.symbol("n")
        packed = b.const(4 * 2000)
        b.kernel("scale", [b.initializer("w"), packed, Int32(2000), Float32(2.0)], init=True)
        b.kernel("add_row", [x, packed, y, Int32(n), Int32(2000)], n)
        b.kernel("add_row", [y, b.initializer("c"), y, Int32(n), Int32(2000)], n)
        b.finish_output("y", F32, [n, 2000])
        return [([key(node) for node in graph.nodes], b.to_json(), b.blobs)]

    answer(entries)
    session = provider.create_session(constants_model(w, c), {"backend": "cuda"})
    gc.collect()
    for rows in (3, 1):
        x = np.random.default_rng(rows).standard_normal((rows, 2000)).astype(np.float32)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], x + 2 * w + c, rtol=1e-5, atol=1e-6
        )


def _damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[Graph], Entries]:
    def entries(graph: Graph) -> Entries:
        made = cube_plan(graph)
        change(made[0][1])
        return made

    return entries


def case_a_kernel_that_the_device_cannot_run_leaves_its_nodes_to_onnx_runtime() -> None:
    """Not found, of another architecture, too much shared memory: the session works, and the log
    says why.
    """
    answer(_damaged(lambda plan: plan["run"][0].update(symbol="nothing")))
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    check_cube(session, 20)
    assert not provider.assigned_nodes(session)
    answer(
        lambda graph: [
            (k, p, [b"\x7fELF of another GPU\0"] * len(b)) for k, p, b in cube_plan(graph)
        ]
    )
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    check_cube(session, 20)
    assert not provider.assigned_nodes(session)
    log.fail("cuFuncSetAttribute", 1, times=2)  # ONNX Runtime asks twice
    answer(_damaged(lambda plan: plan["run"][0].update(smem=200_000)))
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    check_cube(session, 20)
    assert not provider.assigned_nodes(session)
    log.fail("cuFuncSetAttribute", 0, times=0)


def case_no_memory_for_a_kernel_is_one_line() -> None:
    """Not a reason to run on the CPU."""
    answer(
        lambda graph: [(k, p, [b + b"large" for b in blobs]) for k, p, blobs in cube_plan(graph)]
    )
    log.fail("cuModuleLoadData", 2, times=1000)
    with pytest.raises(Exception, match=r"loading a kernel.*: out of memory") as e:
        provider.create_session(cube_model(), {"backend": "cuda"})
    log.fail("cuModuleLoadData", 0, times=0)
    assert "\n" not in str(e.value).strip()


def case_packs_for_other_multiprocessors() -> None:
    """A pack for another number of multiprocessors is compiled anew where there is a compiler, else
    used.
    """
    made = []

    def other(graph: Graph) -> Entries:
        ((nodes, plan, blobs),) = cube_plan(graph)
        return [(nodes, {**plan, "sms": 114}, blobs)]

    answer(other)
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    assert not provider.assigned_nodes(session)  # the compiler's own answers are for this GPU
    made.append(packs[-1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cube.pack"
        path.write_bytes(made[0])
        answer(cube_plan)
        session = provider.create_session(
            cube_model(), {"backend": "cuda", "kernel_pack": str(path)}
        )
        assert requests and provider.assigned_nodes(session)
        check_cube(session, 20)
        path.write_bytes(merge_packs([made[0], packs[-1]], "test"))  # with one that fits
        answer(lambda g: pytest.fail("the pack has the plan"))
        check_cube(
            provider.create_session(cube_model(), {"backend": "cuda", "kernel_pack": str(path)}), 20
        )
        path.write_bytes(made[0])
        with without_compiler():
            session = provider.create_session(
                cube_model(), {"backend": "cuda", "kernel_pack": str(path)}
            )
            assert provider.assigned_nodes(session)
            check_cube(session, 20)


def case_packs_hold_plans_of_several_backends() -> None:
    """One file serves machines with and without a GPU: each session takes the plans for its own
    hardware, with no compiler.
    """

    def cpu_plan(graph: Graph) -> Entries:
        b = PlanBuilder("cube on the cpu", "cpu")
        x = b.add_input("x", F32, 1)
        b.define_symbol("n", 0, 0)
        n = D.symbol("n")
        u, y = b.add_output("u"), b.add_output("y")
        elementwise(b, [x], u, [1, n], [[MUL, 1, 0, 0, 0, 0.0]], 2)
        elementwise(b, [u, x], y, [1, n], [[MUL, 2, 0, 1, 0, 0.0]], 3)
        b.finish_output("u", F32, [n])
        b.finish_output("y", F32, [n])
        return [([key(node) for node in graph.nodes], b.to_json(), b.blobs)]

    def other_gpu(graph: Graph) -> Entries:
        ((nodes, plan, blobs),) = cube_plan(graph)
        return [(nodes, {**plan, "arch": 80}, [b"\x7fELF for another GPU\0"] * len(blobs))]

    made = []
    for make, options in (
        (other_gpu, {"backend": "cuda"}),
        (cube_plan, {"backend": "cuda"}),
        (cpu_plan, {}),
    ):
        answer(make)
        provider.create_session(cube_model(), options)
        made.append(packs[-1])
    answer(lambda g: pytest.fail("the pack has the plan"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cube.pack"
        path.write_bytes(merge_packs(made, "test"))
        for options, launches in (({"backend": "cuda"}, 3), ({}, 0)):
            session = provider.create_session(cube_model(), {**options, "kernel_pack": str(path)})
            provider.assert_provider_selected(session)
            log.take()
            check_cube(session, 20)
            assert count(log.take(), "launch") == launches
