"""What the cases of the provider on the stand-in of the driver share: answers to compile requests,
models, Plans, tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper as h

import tracea_onnx.compiler.compile_requests
from tests.fake.driver import Log
from tests.fake.plans import HandPlan
from tests.session.provider.provider_plans import Entries, key, model
from tracea_onnx import provider
from tracea_onnx.codegen.kernel_request import Float32, Int32
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import write_pack

ort.set_default_logger_severity(4)
log = Log()
F32, NVIDIA = 1, 0x10DE
requests: list[onnx.ModelProto] = []
packs: list[bytes] = []


def answer(make: Callable[[Graph], Entries]) -> None:
    """Lets `make` answer compile requests."""
    requests.clear()

    def compile_request(request: bytes) -> bytes:
        requests.append(onnx.ModelProto.FromString(request))
        packs.append(write_pack(make(Graph(requests[-1], in_process=True)), "test"))
        return packs[-1]

    tracea_onnx.compiler.compile_requests.compile_request = compile_request
    provider.register()


@contextmanager
def without_compiler() -> Iterator[None]:
    """The provider has no compiler meanwhile."""
    provider.register()
    library, callback = provider._keep[:2]
    library.tracea_set_compiler(type(callback)())
    yield
    library.tracea_set_compiler(callback)


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + n).standard_normal(n).astype(np.float32)


def cube_model() -> bytes:
    """y = (x * x) * x, u = x * x"""
    return model(
        [h.make_node("Mul", ["x", "x"], ["u"]), h.make_node("Mul", ["u", "x"], ["y"])],
        {"x": ["n"]},
        {"u": ["n"], "y": ["n"]},
    )


def cube_plan(graph: Graph) -> Entries:
    b = HandPlan("cube")
    x = b.add_input("x", F32, 1)
    b.define_symbol("n", 0, 0)
    n = D.symbol("n")
    u, y, t = b.add_output("u"), b.add_output("y"), b.arena(4 * n)
    blocks = D.ceildiv(n, 32)
    b.kernel("mul", [x, x, u, Int32(n)], blocks)
    b.kernel("mul", [u, x, t, Int32(n)], blocks, pdl=True)
    b.kernel("scale", [t, y, Int32(n), Float32(1.0)], blocks, pdl=True)
    b.finish_output("u", F32, [n])
    b.finish_output("y", F32, [n])
    return [([key(node) for node in graph.nodes], b.to_json(), b.blobs)]


def check_cube(session: Any, n: int, seed: int = 0) -> None:
    x = vector(n, seed)
    u, y = session.run(None, {"x": x})
    np.testing.assert_allclose(u, x * x, rtol=1e-6)
    np.testing.assert_allclose(y, x * x * x, rtol=1e-5)


#: ONNX Runtime from which on sessions of plugins capture graphs.
CAPTURES = (1, 26)


def has_ort(*least: int) -> bool:
    return tuple(int(p) for p in ort.__version__.split(".")[:2]) >= least


def need_ort(*least: int, why: str) -> None:
    if not has_ort(*least):
        pytest.skip(f"ONNX Runtime {ort.__version__} {why}")


def device_tensor(x: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0, NVIDIA)


def empty_tensor(shape: list[int]) -> Any:
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "gpu", 0, NVIDIA)


def bound(session: Any, x: Any, outputs: dict[str, Any]) -> Any:
    io = session.io_binding()
    io.bind_ortvalue_input("x", x)
    for name, value in outputs.items():
        io.bind_ortvalue_output(name, value)
    return io


def drain(*sizes: int) -> list[Any]:
    """Takes all free blocks of these sizes out of the pool."""
    taken: list[Any] = []
    for n in sizes:
        log.take()
        while not count(log.take(), "allocate"):
            taken.append(empty_tensor([n]))
    return taken


def count(lines: list[str], start: str) -> int:
    return sum(line.startswith(start) for line in lines)


def mixed_model(outputs: tuple[str, ...] = ("y",)) -> bytes:
    """a = x + x (GPU), c = exp(a) (CPU), d = c * x (GPU), y = d + a (CPU)"""
    nodes = [
        h.make_node("Add", ["x", "x"], ["a"]), h.make_node("Exp", ["a"], ["c"]),
        h.make_node("Mul", ["c", "x"], ["d"]), h.make_node("Sum", ["d", "a"], ["y"]),
    ]  # fmt: skip
    return model(nodes, {"x": ["n"]}, {o: ["n"] for o in outputs})


def mixed_plan(graph: Graph) -> Entries:
    """Each Mul and Add of vectors as a partition."""
    entries: Entries = []
    for node in graph.nodes:
        if node.op not in ("Add", "Mul"):
            continue
        b = HandPlan(node.op)
        names = list(dict.fromkeys(node.inputs))
        refs = {name: b.add_input(name, F32, 1) for name in names}
        for k in range(len(names)):
            b.define_symbol("n", k, 0)
        n = D.symbol("n")
        b.kernel(
            node.op.lower(),
            [*(refs[i] for i in node.inputs), b.add_output(node.outputs[0]), Int32(n)],
            n,
        )
        b.finish_output(node.outputs[0], F32, [n])
        entries.append(([key(node)], b.to_json(), b.blobs))
    return entries
