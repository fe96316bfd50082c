"""Sessions of which every allocation of the provider fails once: `python -m
tests.session.cuda.memory_cases cpu|cuda FOLDER STEP`.

Each ends in a result that is right or in one exception; the process lives, and a session behind it
works. Prints how many of each there were.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.host.pipeline_models import normal, parse
from tracea_onnx import provider
from tracea_onnx.support.library import library_path

_TEXT = (
    "g (float[N, 64] x) => (float[N, 32] y) { p = MatMul (x, w) z = Add (p, b) q = Sigmoid "
    "(z) r = Tanh (q) y = Softmax <axis = -1> (r) }"
)


def cpu(folder: str) -> Callable[[], None]:
    text = bytes(parse(_TEXT, w=normal(64, 32), b=normal(32)).SerializeToString())
    feeds = {"x": normal(5, 64)}
    expected = ort.InferenceSession(text, providers=["CPUExecutionProvider"]).run(None, feeds)[0]

    def use() -> None:
        session = provider.create_session(text, {"claim": "all", "cache_dir": folder})
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-5)

    return use


def cuda(_: str) -> Callable[[], None]:
    from tests.session.cuda import cuda_session as on_gpu
    from tests.support import ort_streams

    on_gpu.answer(on_gpu.cube_plan)

    def use() -> None:
        captured = (
            [{"device_id": "0", "enable_cuda_graph": "session"}]
            if on_gpu.has_ort(*on_gpu.CAPTURES)
            else []
        )
        for options in ({"device_id": "0"}, *captured, {"backend": "cuda"}):
            session = provider.create_session(on_gpu.cube_model(), options)
            if "enable_cuda_graph" not in options:
                on_gpu.check_cube(session, 100)
                # ONNX Runtime crashes on a stream where nothing is on the GPU
                if "device_id" in options and provider.assigned_nodes(session):
                    stream, x = ort_streams.make(), on_gpu.vector(100)
                    np.testing.assert_allclose(
                        session.run(None, {"x": x}, ort_streams.options(stream))[1], x**3, rtol=1e-5
                    )
                continue
            x, u, y = (
                on_gpu.device_tensor(on_gpu.vector(40)),
                on_gpu.empty_tensor([40]),
                on_gpu.empty_tensor([40]),
            )
            io = on_gpu.bound(session, x, {"u": u, "y": y})
            for _ in range(4):
                session.run_with_iobinding(io)
            np.testing.assert_allclose(y.numpy(), x.numpy() ** 3, rtol=1e-5)

    return use


def sweep(use: Callable[[], None], step: int) -> dict[str, Any]:
    use()  # what is made once in a process is made
    shim, name = ctypes.CDLL(None), Path(library_path()).name.encode()
    for lasting in (1, 30):
        shim.fake_memory_fail(name, ctypes.c_long(1 << 40), ctypes.c_long(0))
        use()
        gc.collect()
        made = shim.fake_memory_made()
        counts = {"made": made, "right": 0, "refused": 0}
        for first in range(0, made, step):
            print(f"allocation {first} of {made}, {lasting}", file=sys.stderr, flush=True)
            shim.fake_memory_fail(name, ctypes.c_long(first), ctypes.c_long(lasting))
            try:
                use()
                counts["right"] += 1
            except AssertionError:
                raise
            except Exception as e:  # of ONNX Runtime's kinds
                assert str(e).strip(), repr(e)
                counts["refused"] += 1
            finally:
                gc.collect()
                shim.fake_memory_fail(name, ctypes.c_long(-1), ctypes.c_long(0))
        use()
    return counts


if __name__ == "__main__":
    _, kind, folder, step = sys.argv
    ort.set_default_logger_severity(4)
    print(json.dumps(sweep({"cpu": cpu, "cuda": cuda}[kind](folder), int(step))))
