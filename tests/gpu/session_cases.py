"""Hand-made CUDA Plans in ONNX Runtime sessions, on a GPU. Run by test_launcher.py, each case in a
process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.gpu.plan_cases import F32, HandPlan, Skip, close, cube, vector
from tracea_onnx.codegen.kernel_request import Int32
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import write_pack

NVIDIA = 0x10DE
ort: Any
provider: Any
torch: Any = None
Entries = list[tuple[list[str], dict[str, Any], list[bytes]]]


# --- in ONNX Runtime


def answer(make: Callable[[Graph], Entries]) -> None:
    """Lets `make` answer the provider's compile requests."""
    compiler = importlib.import_module("tracea_onnx.compiler.compile_requests")
    vars(compiler)["compile_request"] = lambda request: write_pack(
        make(Graph(onnx.ModelProto.FromString(request), in_process=True)), "smoke"
    )


def keys(graph: Graph) -> list[str]:
    return [str(n.proto.doc_string) for n in graph.nodes]


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    constants: dict[str, np.ndarray] | None = None,
) -> bytes:
    sources, results = (
        [h.make_tensor_value_info(n, T.FLOAT, d) for n, d in v.items()] for v in (inputs, outputs)
    )
    graph = h.make_graph(
        nodes, "g", sources, results, [nh.from_array(v, n) for n, v in (constants or {}).items()]
    )
    return bytes(
        h.make_model(
            graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10
        ).SerializeToString()
    )


def cube_model() -> bytes:
    return model(
        [h.make_node("Mul", ["x", "x"], ["u"]), h.make_node("Mul", ["u", "x"], ["y"])],
        {"x": ["n"]},
        {"u": ["n"], "y": ["n"]},
    )


def cube_session(session_options: Any = None, **options: str) -> Any:
    b = cube()
    answer(lambda g: [(keys(g), b.to_json(), b.blobs)])
    return provider.create_session(cube_model(), {"backend": "cuda", **options}, session_options)


def check_cube(session: Any, n: int, seed: int = 0) -> None:
    x = vector(n, seed)
    u, y = session.run(None, {"x": x})
    close(u, x * x)
    close(y, x * x * x)


def device_tensor(x: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0, NVIDIA)


def empty_tensor(n: int) -> Any:
    return ort.OrtValue.ortvalue_from_shape_and_type([n], np.float32, "gpu", 0, NVIDIA)


def bound(session: Any, x: Any, u: Any, y: Any) -> Any:
    io = session.io_binding()
    io.bind_ortvalue_input("x", x)
    io.bind_ortvalue_output("u", u)
    io.bind_ortvalue_output("y", y)
    return io


def session_devices() -> None:
    ours = [d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER_NAME]
    for d in ours:
        print(f"     {d.device.type} vendor {d.device.vendor_id:#x} {dict(d.ep_metadata)}")
    assert [d.ep_metadata["cuda_device_id"] for d in ours][:2] == ["-1", "0"]


def session_numpy() -> None:
    for graph in ("0", "1"):
        session = cube_session(enable_cuda_graph=graph)
        for n in (1, 1000, 0, 7, 3_000_001, 1000, 1000, 7, 1000):
            check_cube(session, n)
        provider.assert_provider_selected(session)


def session_host_tensors() -> None:
    cube_session()
    for graph in ("0", "1"):
        options = {"backend": "cuda", "enable_cuda_graph": graph}
        session = ort.InferenceSession(
            cube_model(),
            providers=[(provider.PROVIDER_NAME, options), "CPUExecutionProvider"],
            enable_fallback=0,
        )
        for n in (1, 1000, 0, 7, 3_000_001, 1000, 1000, 7, 1000):
            check_cube(session, n)


def session_binding() -> None:
    for graph in ("0", "1"):
        session = cube_session(enable_cuda_graph=graph)
        x = vector(5000)
        given, u, y = device_tensor(x), empty_tensor(5000), empty_tensor(5000)
        np.testing.assert_array_equal(given.numpy(), x)
        io = bound(session, given, u, y)
        for k in (1, 2, 3, 4):
            given.update_inplace(k * x)
            session.run_with_iobinding(io)
            close(y.numpy(), (k * x) ** 3)


def session_graph_capture() -> None:
    session = cube_session(enable_cuda_graph="session")
    x = vector(5000)
    given, u, y = device_tensor(x), empty_tensor(5000), empty_tensor(5000)
    io = bound(session, given, u, y)
    for k in (1, 2, 3, 4):
        given.update_inplace(k * x)
        session.run_with_iobinding(io)
        close(y.numpy(), (k * x) ** 3)


def session_torch_pointers() -> None:
    """Tensors of PyTorch's default stream, with no synchronisation between it and the session;
    views off the 16-byte boundary; DLPack out.
    """
    if torch is None:
        raise Skip("no PyTorch with CUDA")
    for graph in ("0", "1"):
        session = cube_session(enable_cuda_graph=graph)
        for offset in (0, 1, 4):
            for _ in range(3):
                storage = torch.randn(100_004, device="cuda")
                for _ in range(20):
                    storage = storage * 1.0
                x, y = (
                    storage[offset : offset + 100_000],
                    torch.zeros(100_004, device="cuda")[offset : offset + 100_000],
                )
                io = session.io_binding()
                io.bind_input("x", "cuda", 0, np.float32, [100_000], x.data_ptr())
                io.bind_output("y", "cuda", 0, np.float32, [100_000], y.data_ptr())
                io.bind_output("u", "cuda", 0)
                session.run_with_iobinding(io)
                torch.testing.assert_close(y, x**3)
                u = io.get_outputs()[1]
                if hasattr(u, "__dlpack__"):
                    torch.testing.assert_close(torch.from_dlpack(u), x**2)


def mixed_entries(graph: Graph) -> Entries:
    entries: Entries = []
    for node in graph.nodes:
        if node.op not in ("Add", "Mul"):
            continue
        b = HandPlan(node.op)
        refs = {name: b.add_input(name, F32, 1) for name in dict.fromkeys(node.inputs)}
        for k in range(len(refs)):
            b.define_symbol("n", k, 0)
        n = D.symbol("n")
        b.elementwise(
            node.op.lower(),
            [*(refs[i] for i in node.inputs), b.add_output(node.outputs[0]), Int32(n)],
            n,
        )
        b.finish_output(node.outputs[0], F32, [n])
        entries.append(([str(node.proto.doc_string)], b.to_json(), b.blobs))
    return entries


def session_mixed_with_cpu() -> None:
    answer(mixed_entries)
    steps = (
        ("Add", ["x", "x"], "a"),
        ("Exp", ["a"], "c"),
        ("Mul", ["c", "x"], "d"),
        ("Sum", ["d", "a"], "y"),
    )
    nodes = [h.make_node(op, inputs, [output]) for op, inputs, output in steps]
    data = model(nodes, {"x": ["n"]}, {"a": ["n"], "y": ["n"]})
    for mode in (ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL):
        for graph in ("0", "1"):
            options = ort.SessionOptions()
            options.execution_mode = mode
            session = provider.create_session(
                data, {"backend": "cuda", "enable_cuda_graph": graph}, options
            )
            for n in (5, 4000, 5, 0, 1_000_003, 4000, 4000):
                x = vector(n)
                a, y = session.run(None, {"x": x})
                close(a, 2 * x)
                close(y, np.exp(2 * x) * x + 2 * x)


def at_once(works: list[Callable[[], None]]) -> None:
    """Every one of `works` in a thread of its own; the first exception of any is raised."""
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(work) for work in works]:
            done.result()


def session_threads() -> None:
    def work(seed: int, sessions: list[Any]) -> None:
        for k in range(100):
            check_cube(sessions[k % 2], (seed * 1237 + k * 331) % 20_011, seed)

    for graph in ("0", "1"):
        sessions = [cube_session(enable_cuda_graph=graph) for _ in range(2)]
        at_once([partial(work, k, sessions) for k in range(8)])


def session_out_of_memory() -> None:
    b = HandPlan("large")
    x = b.add_input("x", F32, 1)
    b.define_symbol("n", 0, 0)
    n = D.symbol("n")
    u, y = b.add_output("u"), b.add_output("y")
    b.elementwise("add", [x, None, b.arena(D.mul(n, 2**33)), Int32(0)], 1)
    b.elementwise("mul", [x, x, u, Int32(n)], n)
    b.elementwise("mul", [u, x, y, Int32(n)], n)
    b.finish_output("u", F32, [n])
    b.finish_output("y", F32, [n])
    answer(lambda g: [(keys(g), b.to_json(), b.blobs)])
    session = provider.create_session(cube_model(), {"backend": "cuda"})
    try:
        session.run(None, {"x": vector(1000)})
    except Exception as e:
        print(f"     {e}")
        assert "out of GPU memory" in str(e)
    else:
        raise AssertionError("8 TB were allocated")
    check_cube(session, 1)


def session_two_gpus() -> None:
    """Sessions on two GPUs at once, each in a thread of its own, with numpy's tensors, ORT's and
    PyTorch's; a session's memory lies on its GPU.
    """
    gpus = [
        d.ep_metadata["cuda_device_id"]
        for d in ort.get_ep_devices()
        if d.ep_name == provider.PROVIDER_NAME
    ][1:]
    if len(gpus) < 2:
        raise Skip("one GPU")

    def work(gpu: int, sessions: list[Any]) -> None:
        for k, session in enumerate(sessions * 20):
            check_cube(session, 1 + 331 * k, gpu)
            x = vector(5000, k)
            given = ort.OrtValue.ortvalue_from_numpy(x, "gpu", gpu, NVIDIA)
            u, y = (
                ort.OrtValue.ortvalue_from_shape_and_type([5000], np.float32, "gpu", gpu, NVIDIA)
                for _ in range(2)
            )
            session.run_with_iobinding(bound(session, given, u, y))
            close(y.numpy(), x**3)
            if torch is not None:
                there = torch.randn(5000, device=f"cuda:{gpu}") * 1.0
                io = session.io_binding()
                io.bind_input("x", "cuda", gpu, np.float32, [5000], there.data_ptr())
                cubes = torch.zeros_like(there)
                io.bind_output("y", "cuda", gpu, np.float32, [5000], cubes.data_ptr())
                io.bind_output("u", "cuda", gpu)
                session.run_with_iobinding(io)
                torch.testing.assert_close(cubes, there**3)

    sessions = {
        gpu: [cube_session(device_id=str(gpu), enable_cuda_graph=graph) for graph in ("0", "1")]
        for gpu in (1, 0)
    }
    assert all(
        s.get_input_memory_infos()[0].device_id == gpu
        for gpu, both in sessions.items()
        for s in both
    )
    at_once([partial(work, gpu, both) for gpu, both in sessions.items()])


def session_whole_path() -> None:
    """A model through the partition compiler, its emitters and NVRTC, against ONNX Runtime's CPU
    provider.
    """
    importlib.reload(importlib.import_module("tracea_onnx.compiler.compile_requests"))
    rng = np.random.default_rng(0)
    w1, w2 = (rng.standard_normal(s).astype(np.float32) / 8 for s in ((64, 96), (96, 40)))
    b1, b2 = rng.standard_normal(96).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    nodes = [
        h.make_node("Gemm", ["x", "w1", "b1"], ["g"]),
        h.make_node("Relu", ["g"], ["r"]),
        h.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
    ]
    data = model(
        nodes, {"x": ["n", 64]}, {"y": ["n", 40]}, {"w1": w1, "w2": w2, "b1": b1, "b2": b2}
    )
    session = provider.create_session(data, {"backend": "cuda", "log_level": "info"})
    provider.assert_provider_selected(session)
    reference = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    # again: only once it is warm does a kernel begin before its producer has ended, and what lies
    # there then is another input's
    for rows in (1, 7, 128) * 4:
        x = rng.standard_normal((rows, 64)).astype(np.float32)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-3, atol=1e-3
        )


def setup(with_torch: bool) -> None:
    """Before a case: the provider is registered. with_torch: PyTorch has started CUDA."""
    global ort, provider, torch
    ort = importlib.import_module("onnxruntime")
    provider = importlib.import_module("tracea_onnx.provider")
    provider.register()
    if with_torch and importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        torch = torch if torch.cuda.is_available() else None


CASES = {name: case for name, case in globals().items() if name.startswith("session_")}
