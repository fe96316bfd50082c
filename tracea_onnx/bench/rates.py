"""Measures the bandwidth of this machine's memory and the arithmetic rate of the provider."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tracea_onnx.codegen import backend as backends
from tracea_onnx.support import machine

#: Rows, columns and terms of the GEMM that is timed, which takes about a millisecond of a core;
#: bytes of what is copied where memory is meant; seconds for each figure.
_ROWS, _COPIED, _SECONDS = 384, 1 << 26, 0.3
Run = Callable[[], object]


def best(run: Run, seconds: float = _SECONDS, alone: bool = False) -> float:
    """Seconds of the shortest run: what the machine can do, whatever else it does meanwhile. alone:
    it is this thread that works, whose time is counted.
    """
    run()
    now = time.thread_time if alone else time.perf_counter
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = now()
        run()
        shortest = min(shortest, now() - began)
    return shortest


def gemm(backend: str, threads: int, n: int = _ROWS) -> float:
    """GFLOP/s of a GEMM of fp32 matrices in a session on the provider: what its kernels reach of
    the multiply-adds that the device has.
    """
    import onnxruntime as ort

    from tracea_onnx import provider

    weight = np.ones((n, n), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [n, n])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [n, n])],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = provider.create_session(model.SerializeToString(), {"backend": backend}, options)
    provider.assert_provider_selected(session)
    feeds = {"x": weight}
    alone = threads == 1 and backends.get(backend).host
    return 2 * n**3 / best(lambda: session.run(None, feeds), alone=alone) / 1e9


def copies(size: int, threads: int) -> float:
    """GB/s, read and written, of copies of so many bytes by each thread, from one array into
    another.
    """
    pairs = [tuple(np.zeros(max(size // 2, 64), np.uint8) for _ in "ab") for _ in range(threads)]
    seconds = [0.0] * threads
    start = threading.Barrier(threads)

    def work(k: int) -> None:
        a, b = pairs[k]
        a.fill(1)
        start.wait()
        seconds[k] = best(lambda: np.copyto(b, a), alone=True)

    others = [threading.Thread(target=work, args=(k,)) for k in range(1, threads)]
    for t in others:
        t.start()
    work(0)
    for t in others:
        t.join()
    return sum(2 * a.nbytes / s for (a, _), s in zip(pairs, seconds, strict=True)) / 1e9


def memory(threads: int) -> dict[str, float]:
    """GB/s of each level of caches where a copy takes longer than its call, and of memory."""
    levels, found = machine.caches(), {}
    for m in (m for m in levels if m.level > 1):
        # half of it, and of what others that share it leave
        share = m.size // (2 * max(1, min(threads, m.shared)))
        found[f"level {m.level}"] = copies(share, threads)
    largest = max((m.size for m in levels), default=0)
    found["memory"] = copies(max(_COPIED, 4 * largest // threads), threads)
    return found
