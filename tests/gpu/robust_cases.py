"""What the CUDA provider does when something goes wrong, on a GPU. Run by test_launcher.py, each
check in a process of its own; those whose calls of the driver are to fail behind
`tests.support.cuda.shim`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from onnx import helper as h

from tests.gpu import session_cases as smoke
from tests.gpu.plan_cases import F32, HandPlan, Skip, close, cube, vector
from tests.support.cuda import shim
from tracea_onnx.codegen.kernel_request import Int32
from tracea_onnx.ir import dims as D
from tracea_onnx.runtime import cuda_harness

CASES: dict[str, Callable[[], None]] = {}
SHIMMED: set[str] = set()
#: What measures or takes the GPU's free memory.
ALONE: set[str] = set()


def check(fn: Callable[[], None]) -> Callable[[], None]:
    CASES[fn.__name__] = fn
    return fn


def shimmed(fn: Callable[[], None]) -> Callable[[], None]:
    """A check whose calls of the driver go through the shim."""
    SHIMMED.add(fn.__name__)
    return check(fn)


def alone(fn: Callable[[], None]) -> Callable[[], None]:
    """A check that has the GPU for itself."""
    ALONE.add(fn.__name__)
    return check(fn)


def torch() -> Any:
    if not importlib.util.find_spec("torch"):
        raise Skip("no PyTorch")
    found = importlib.import_module("torch")
    if not found.cuda.is_available():
        raise Skip("PyTorch has no CUDA")
    return found


@contextmanager
def errors() -> Iterator[list[str]]:
    """Lines that native code writes to stderr meanwhile, when the block has ended."""
    lines: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as f:
        os.dup2(f.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            f.seek(0)
            lines += f.read().decode(errors="replace").splitlines()


def raises(work: Callable[[], object], *words: str) -> str:
    """The one line with which `work` fails, which has these words."""
    try:
        work()
    except Exception as e:
        line = str(e).strip()
        assert "\n" not in line, line
        assert all(word in line for word in words), line
        print(f"     {line[-300:]}")
        return line
    raise AssertionError(f"nothing was raised; expected: {words}")


def binding(session: Any, n: int, seed: int = 0) -> tuple[Any, Any, np.ndarray]:
    x = vector(n, seed)
    y = smoke.empty_tensor(n)
    return smoke.bound(session, smoke.device_tensor(x), smoke.empty_tensor(n), y), y, x


def in_child(work: Callable[[], object]) -> int:
    """Exit code of a forked child that does this: 0, or 2 after it has printed what was raised."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except Exception as e:
            print(f"     child: {str(e).strip()[-300:]}", flush=True)
            code = 2 if "spawn" in str(e) else 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def use(n: int = 1000) -> None:
    smoke.check_cube(smoke.cube_session(), n)


# --- registration and processes


@check
def a_child_forked_after_registration_works() -> None:
    assert in_child(use) == 0
    assert in_child(use) == 0
    use()


@check
def a_child_forked_after_use_is_told_to_spawn() -> None:
    # One thread: ONNX Runtime joins the threads of its pool, which a child does not have, when a
    # session goes, and crashes there from about four on, with its own CPU provider as well.
    alone = smoke.ort.SessionOptions()
    alone.intra_op_num_threads = 1
    sessions = [
        smoke.cube_session(alone, **options)
        for options in ({}, {"enable_cuda_graph": "session"}, {"enable_cuda_graph": "0"})
    ]
    for session in (sessions[0], sessions[2]):
        smoke.check_cube(session, 100)
    io, y, x = binding(sessions[1], 100)
    for _ in range(4):
        sessions[1].run_with_iobinding(io)
    close(y.numpy(), x**3)
    assert in_child(use) == 2

    def drop() -> None:
        nonlocal session, io, y
        sessions.clear()
        del session, io, y
        gc.collect()

    assert in_child(drop) == 0
    smoke.check_cube(smoke.cube_session(), 100)


@check
def gpus_are_listed_as_they_are() -> None:
    ours = [d for d in smoke.ort.get_ep_devices() if d.ep_name == smoke.provider.PROVIDER_NAME][1:]
    print("    ", [dict(d.ep_metadata) for d in ours])
    assert len(ours) == cuda_harness.listed() >= 1
    device = cuda_harness.device()
    assert ours[0].ep_metadata.get("name", device.name) == device.name and ours[0].ep_metadata.get(
        "arch", str(device.arch)
    ) == str(device.arch)


@check
def no_visible_gpu_is_one_line() -> None:
    raises(
        lambda: smoke.provider.create_session(smoke.cube_model(), {"backend": "cuda"}),
        "has no CUDA device 0",
    )


@check
def the_device_describes_itself() -> None:
    device = cuda_harness.device()
    print("    ", device)
    assert (
        device.identity.startswith(device.name)
        and device.smem_block >= 48 << 10
        and device.memory > 1 << 30
        and device.bandwidth > 10**10
    )
    if device.arch == 90 and not device.mig:
        assert (device.smem_block, device.cluster) == (232448, 16)


@check
def no_such_gpu_is_one_line() -> None:
    raises(
        lambda: smoke.provider.create_session(
            smoke.cube_model(), {"backend": "cuda", "device_id": "99"}
        ),
        "no CUDA device 99",
    )


# --- graphs


@shimmed
def graphs_that_cannot_be_made() -> None:
    for call in ("cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch"):
        with errors() as lines:
            session = smoke.cube_session(log_level="warning")
            for n in (1000, 5000):
                io, y, x = binding(session, n)
                shim.fail(call, 801, 1000)
                for _ in range(4):
                    session.run_with_iobinding(io)
                    close(y.numpy(), x**3)
                shim.fail(call, 0, 0)
                session.run_with_iobinding(io)
                close(y.numpy(), x**3)
        said = [
            line
            for line in lines
            if line.startswith("tracea-onnx: warning") and "runs without a CUDA graph" in line
        ]
        assert len(said) == 1, lines
        print(f"     {said[0]}")


@check
def more_bindings_than_graphs() -> None:
    session = smoke.cube_session()
    bindings = [binding(session, 1000 + k % 7, k) for k in range(90)]
    for _ in range(5):
        for io, y, x in bindings:
            session.run_with_iobinding(io)
            close(y.numpy(), x**3)


@check
def a_recorded_run_keeps_its_memory() -> None:
    session = smoke.cube_session(enable_cuda_graph="session")
    n = 5000
    x, y = vector(n), smoke.empty_tensor(n)
    given = smoke.device_tensor(x)
    io = session.io_binding()
    io.bind_ortvalue_input("x", given)
    io.bind_output("u", "cuda", 0)
    io.bind_ortvalue_output("y", y)
    session.run_with_iobinding(io)
    io.clear_binding_outputs()
    gc.collect()
    others = [smoke.device_tensor(np.full(n, k, np.float32)) for k in range(16)]
    io.bind_ortvalue_output("y", y)
    io.bind_output("u", "cuda", 0)
    for k in (2, 3):
        given.update_inplace(k * x)
        session.run_with_iobinding(io)
        close(y.numpy(), (k * x) ** 3)
    for k, other in enumerate(others):
        np.testing.assert_array_equal(other.numpy(), np.full(n, k, np.float32))


@check
def a_run_with_host_tensors_is_not_recorded() -> None:
    session = smoke.cube_session(enable_cuda_graph="session")
    raises(lambda: session.run(None, {"x": vector(100)}), "raph capture")


# --- memory


@shimmed
def memory_that_is_short_once() -> None:
    for call in (
        "cuMemAlloc_v2",
        "cuStreamCreate",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernelEx",
        "cuGraphInstantiateWithFlags",
    ):
        other = smoke.cube_session()
        io, y, x = binding(other, 2000)
        for _ in range(3):
            other.run_with_iobinding(io)  # leaves graphs and free blocks
        smoke.check_cube(other, 300_000)
        shim.fail(call, 2, 1)
        session = smoke.cube_session()
        for n in (1000, 777_777, 777_777):
            smoke.check_cube(session, n)
        shim.fail(call, 0, 0)
        for _ in range(3):
            other.run_with_iobinding(io)
            close(y.numpy(), x**3)
        print(f"     {call}")


@alone
def memory_that_others_take() -> None:
    """PyTorch takes what is left; the pool's free blocks make room for a larger run."""
    t = torch()
    session, n = smoke.cube_session(), 100_000_000
    session.run(None, {"x": np.ones(n, np.float32)})  # leaves more than 1 GB in the pool
    free, _ = t.cuda.mem_get_info()
    taken = t.empty(max(free - (700 << 20), 0), dtype=t.uint8, device="cuda")
    x = np.full(int(n * 0.6), 2, np.float32)
    u, y = session.run(None, {"x": x})
    assert (u == 4).all() and (y == 8).all()
    raises(lambda: session.run(None, {"x": np.ones(8 * n, np.float32)}), "out of GPU memory")
    del taken
    t.cuda.empty_cache()
    smoke.check_cube(session, 1000)


@alone
def a_memory_limit() -> None:
    session = smoke.cube_session(gpu_mem_limit=str(256 << 20))
    for n in (1000, 4_000_000, 9_000_000, 6_000_000):
        smoke.check_cube(session, n)
    raises(
        partial(session.run, None, {"x": np.ones(100_000_000, np.float32)}),
        "gpu_mem_limit",
        "of the 268435456",
    )
    smoke.check_cube(session, 9_000_000)
    del session
    gc.collect()
    smoke.cube_session().run(None, {"x": np.ones(50_000_000, np.float32)})
    raises(lambda: smoke.cube_session(gpu_mem_limit="2G"), "gpu_mem_limit='2G'")


@alone
def memory_of_past_shapes_is_given_back() -> None:
    t = torch()
    session = smoke.cube_session()
    smoke.check_cube(session, 1000)
    before, _ = t.cuda.mem_get_info()
    session.run(None, {"x": np.ones(100_000_000, np.float32)})
    after, _ = t.cuda.mem_get_info()
    for _ in range(1700):
        session.run(None, {"x": np.ones(1000, np.float32)})
    end, _ = t.cuda.mem_get_info()
    print(
        f"     free: {before >> 20} MB, {after >> 20} MB behind the large run, {end >> 20} MB in "
        "the end"
    )
    assert before - after > 1 << 30 and before - end < 200 << 20


# --- streams


def runs_in_the_order_of(side: Any, session: Any, options: Any, what: object) -> Any:
    """Runs of the cube between PyTorch's work on the stream `side`, without any synchronisation:
    each sees what came before it, and what comes after it sees its result. Returns the input.
    """
    t, n = torch(), 1_000_000
    given, u, y = (t.zeros(n, device="cuda") for _ in range(3))
    t.cuda.synchronize()
    io = session.io_binding()
    io.bind_input("x", "cuda", 0, np.float32, [n], given.data_ptr())
    io.bind_output("u", "cuda", 0, np.float32, [n], u.data_ptr())
    io.bind_output("y", "cuda", 0, np.float32, [n], y.data_ptr())
    results = []
    with t.cuda.stream(side):
        for k in range(1, 9):
            t.cuda._sleep(20_000_000)  # what follows is not there when the run begins
            given.fill_(k)
            session.run_with_iobinding(io, options)
            results.append(y.clone())
            y.zero_()
    side.synchronize()
    for k, found in enumerate(results, 1):
        assert (found == k**3).all(), (what, k)
    return given


@check
def a_stream_of_torch() -> None:
    """Work on a stream that nothing orders with ours: what is enqueued before and behind the
    session's runs, without any synchronisation.
    """
    t = torch()
    for graphs in ("0", "1"):
        side = t.cuda.Stream()
        session = smoke.cube_session(
            user_compute_stream=str(side.cuda_stream), enable_cuda_graph=graphs
        )
        quiet = smoke.ort.RunOptions()
        quiet.add_run_config_entry("disable_synchronize_execution_providers", "1")
        given = runs_in_the_order_of(side, session, quiet, graphs)
        del session
        gc.collect()
        with t.cuda.stream(side):
            assert float(given.sum()) == 8 * given.numel()  # the stream lives on
    for value in ("0", "0x0"):
        smoke.check_cube(smoke.cube_session(user_compute_stream=value), 1000)
    raises(lambda: smoke.cube_session(user_compute_stream="mine"), "user_compute_stream='mine'")


@check
def inputs_of_a_side_stream() -> None:
    t = torch()
    n, side = 1_000_000, t.cuda.Stream()
    session = smoke.cube_session()
    given, y = t.zeros(n, device="cuda"), t.zeros(n, device="cuda")
    t.cuda.synchronize()
    io = session.io_binding()
    io.bind_input("x", "cuda", 0, np.float32, [n], given.data_ptr())
    io.bind_output("u", "cuda", 0)
    io.bind_output("y", "cuda", 0, np.float32, [n], y.data_ptr())
    for k in range(1, 6):
        with t.cuda.stream(side):
            t.cuda._sleep(50_000_000)
            given.fill_(k)
        io.synchronize_inputs()
        session.run_with_iobinding(io)
        assert (y == k**3).all(), k


@check
def a_stream_of_onnx_runtime() -> None:
    """A run that is given a stream (RunOptionsSetSyncStream): PyTorch's work before and behind it
    there, without any synchronisation; and copies on it.
    """
    t = torch()
    streams = importlib.import_module("tests.support.ort_streams")
    try:
        streams.function(0, None)
    except (OSError, subprocess.CalledProcessError) as e:
        raise Skip("no C++ compiler") from e
    n = 1_000_000
    modes: list[dict[str, str]] = [
        {"enable_cuda_graph": "0"},
        {"enable_cuda_graph": "1"},
        {"user_compute_stream": "own"},
    ]
    for options in modes:
        own = t.cuda.Stream()
        session = smoke.cube_session(
            **{k: v.replace("own", str(own.cuda_stream)) for k, v in options.items()}
        )
        stream = streams.make()
        side = t.cuda.ExternalStream(stream.get_handle())
        quiet = streams.options(stream)
        runs_in_the_order_of(side, session, quiet, options)
        x = vector(n)
        with t.cuda.stream(side):
            t.cuda._sleep(20_000_000)
        a, b, back = smoke.empty_tensor(n), smoke.empty_tensor(n), streams.pinned([n])
        smoke.ort.copy_tensors([smoke.ort.OrtValue.ortvalue_from_numpy(x)], [a], stream)
        session.run_with_iobinding(smoke.bound(session, a, smoke.empty_tensor(n), b), quiet)
        smoke.ort.copy_tensors([b], [back], stream)
        side.synchronize()
        close(back.numpy(), x**3)
        for rows in (1000, 1001):  # tensors that ONNX Runtime copies for the run
            small = vector(rows)
            close(
                session.run(None, {"x": small}, streams.options(stream, quiet=False))[1], small**3
            )
        del session, stream
        gc.collect()
        use()


@check
def torch_on_its_default_stream() -> None:
    t = torch()
    n = 1_000_000
    session = smoke.cube_session()
    given, y = t.zeros(n, device="cuda"), t.zeros(n, device="cuda")
    io = session.io_binding()
    io.bind_input("x", "cuda", 0, np.float32, [n], given.data_ptr())
    io.bind_output("u", "cuda", 0)
    io.bind_output("y", "cuda", 0, np.float32, [n], y.data_ptr())
    for k in range(1, 6):
        t.cuda._sleep(20_000_000)
        given.fill_(k)
        session.run_with_iobinding(io)
        assert (y == k**3).all(), k


@check
def many_threads_and_the_parallel_executor() -> None:
    smoke.answer(smoke.mixed_entries)
    steps = (
        ("Add", ["x", "x"], "a"),
        ("Exp", ["a"], "c"),
        ("Mul", ["c", "x"], "d"),
        ("Sum", ["d", "a"], "y"),
    )
    nodes = [h.make_node(op, inputs, [output]) for op, inputs, output in steps]
    data = smoke.model(nodes, {"x": ["n"]}, {"a": ["n"], "y": ["n"]})
    options = smoke.ort.SessionOptions()
    options.execution_mode = smoke.ort.ExecutionMode.ORT_PARALLEL
    mixed = smoke.provider.create_session(data, {"backend": "cuda"}, options)
    plain = [smoke.cube_session() for _ in range(2)]

    def work(seed: int) -> None:
        for k in range(60):
            n = (seed * 1237 + k * 331) % 20_011
            x = vector(n, seed)
            if seed % 2:
                a, y = mixed.run(None, {"x": x})
                close(a, 2 * x)
                close(y, np.exp(2 * x) * x + 2 * x)
            else:
                smoke.check_cube(plain[k % 2], n, seed)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, k) for k in range(8)]:
            done.result()


# --- errors


_BAD = """
extern "C" __global__ void fine(const float* x, float* u, int n) { if (threadIdx.x < n)
    u[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void outside(const float* x, float* y, int n) { if (n > 100)
    *(volatile int*)(((unsigned long long)1 << 46) + 64) = 1; }
"""


def _outside() -> HandPlan:
    """A kernel that writes to an address of nobody's, where there are more than 100 elements."""
    b = HandPlan("cube")
    x = b.add_input("x", F32, 1)
    b.define_symbol("n", 0, 0)
    n = D.symbol("n")
    u, y = b.add_output("u"), b.add_output("y")
    b.kernel(_BAD, "fine", [x, u, Int32(n)], (1, 1, 1))
    b.kernel(_BAD, "outside", [x, y, Int32(n)], (1, 1, 1))
    b.finish_output("u", F32, [n])
    b.finish_output("y", F32, [n])
    return b


def _lose(**options: str) -> str:
    """Loses the context; the line of the first failure.

    Later ones name it, sessions are dropped in any order, and the process ends well.
    """
    other = smoke.cube_session()
    smoke.check_cube(other, 1000)
    b = _outside()
    smoke.answer(lambda g: [(smoke.keys(g), b.to_json(), b.blobs)])
    session = smoke.provider.create_session(smoke.cube_model(), {"backend": "cuda", **options})
    session.run(None, {"x": vector(10)})
    io, y, _ = binding(session, 1000)
    first = raises(partial(session.run_with_iobinding, io), "(700)")
    later = "cannot be used by this process any more since an earlier failure"
    for broken in (session, other):
        raises(partial(broken.run, None, {"x": vector(1000)}), later)
    raises(smoke.cube_session, later)
    del io, y, session, other
    gc.collect()
    return first


@check
def a_lost_context_is_named() -> None:
    _lose()


@check
def a_lost_context_without_graphs() -> None:
    _lose(enable_cuda_graph="0")


@check
def synchronised_launches_name_the_kernel() -> None:
    assert "running kernel 'outside' (launch 2 of 2 of partition 'cube')" in _lose(
        sync_launches="1"
    )


@check
def sessions_that_are_never_dropped() -> None:
    """The process ends with sessions, tensors and a lost context."""
    globals()["kept"] = [smoke.cube_session(), smoke.device_tensor(vector(1000))]
    b = _outside()
    smoke.answer(lambda g: [(smoke.keys(g), b.to_json(), b.blobs)])
    globals()["kept"].append(smoke.provider.create_session(smoke.cube_model(), {"backend": "cuda"}))
    raises(lambda: globals()["kept"][-1].run(None, {"x": vector(1000)}), "(700)")


@check
def a_kernel_that_the_device_cannot_run() -> None:
    """More shared memory than there is: its nodes stay with ONNX Runtime."""
    b = cube()
    plan = b.to_json()
    plan["run"][0]["smem"] = 250_000
    smoke.answer(lambda g: [(smoke.keys(g), plan, b.blobs)])
    with errors() as lines:
        session = smoke.provider.create_session(
            smoke.cube_model(), {"backend": "cuda", "log_level": "warning"}
        )
    assert any(
        "is left to ONNX Runtime" in line and "250000 bytes of shared memory" in line
        for line in lines
    ), lines
    smoke.check_cube(session, 1000)
    assert not smoke.provider.assigned_nodes(session)


@check
def a_model_compiled_for_this_device() -> None:
    smoke.session_whole_path()
