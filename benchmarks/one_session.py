"""One session in this process: what it takes to load, and what memory it holds after runs of ever
other shapes. A part of `memory_and_load`; imports nothing that a user's program would not.

    python benchmarks/one_session.py '{"model": "m.onnx", "kind": "ours", ...}'

prints what it found as JSON. Seconds are of the wall clock and of the processors (user and system),
bytes are more than the process held before, with ONNX Runtime imported.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

_TYPES = {
    "tensor(float)": "f4",
    "tensor(float16)": "f2",
    "tensor(int64)": "i8",
    "tensor(int32)": "i4",
}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    """Of this program alone: `ru_maxrss` is also what the process held that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def _processors() -> float:
    """Seconds that this process has had of them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _gpu() -> Any:
    """Imported for a GPU alone: memory of the host is what the others are about."""
    from tracea_onnx.bench.worker import Gpu

    return Gpu()


def _session(given: dict[str, Any]) -> Any:
    """Of ours, of a provider that this ONNX Runtime has, or of a plugin's library."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = given["threads"]
    if given["kind"] == "ours":
        import tracea_onnx.provider

        return tracea_onnx.provider.create_session(
            given["model"], {"backend": given["backend"]}, options
        )
    if given["kind"] == "ort":
        name = "CUDAExecutionProvider" if given["backend"] == "cuda" else "CPUExecutionProvider"
        if name not in ort.get_available_providers():
            raise RuntimeError(f"this ONNX Runtime has no {name}")
        if given["backend"] == "cuda":
            ort.preload_dlls()  # CUDA's and cuDNN's libraries where PyTorch or pip have put them
        return ort.InferenceSession(given["model"], options, providers=[name])
    if given["kind"].endswith("Provider"):
        return ort.InferenceSession(given["model"], options, providers=[given["kind"]])
    known = {d.ep_name for d in ort.get_ep_devices()}
    ort.register_execution_provider_library("peer", given["kind"])
    wanted = getattr(ort.OrtHardwareDeviceType, "GPU" if given["backend"] == "cuda" else "CPU")
    found = [d for d in ort.get_ep_devices() if d.ep_name not in known and d.device.type == wanted]
    if not found:
        raise RuntimeError("the library has no device of this kind")
    options.add_provider_for_devices(found[:1], {})
    return ort.InferenceSession(given["model"], options)


def _feeds(session: Any, batch: int, sequence: int) -> dict[str, Any]:
    """Ones for integers, which every model takes as ids, masks and types; noise for floats."""
    rng, made = np.random.default_rng(0), {}
    for i in session.get_inputs():
        dims = [
            d if isinstance(d, int) else sequence if k else batch for k, d in enumerate(i.shape)
        ]
        kind = np.dtype(_TYPES[i.type])
        value = rng.standard_normal(dims) if kind.kind == "f" else np.ones(dims)
        made[i.name] = value.astype(kind)
    return made


def _shapes(count: int) -> Iterator[tuple[int, int]]:
    """Batches and lengths of texts as a service gets them: short ones more often. All differ."""
    rng = np.random.default_rng(0)
    seen: set[tuple[int, int]] = set()
    while len(seen) < count:
        shape = int(rng.integers(1, 17)), int(np.exp(rng.uniform(np.log(4), np.log(256))))
        if shape not in seen:
            seen.add(shape)
            yield shape


def measure(given: dict[str, Any]) -> dict[str, float]:
    """What one session takes."""
    gpu = _gpu() if given["backend"] == "cuda" else None
    taken, before, processors = gpu.taken() if gpu else 0, _resident(), _processors()
    began = time.perf_counter()
    session = _session(given)
    found = {"load": time.perf_counter() - began, "load CPU": _processors() - processors}

    def held(when: str) -> None:
        found[f"resident {when}"] = _resident() - before
        found[f"peak {when}"] = _peak() - before
        if gpu:
            found[f"device {when}"] = gpu.taken() - taken

    held("loaded")
    began, processors = time.perf_counter(), _processors()
    session.run(None, _feeds(session, given["batch"], given["sequence"]))
    found["first run"] = time.perf_counter() - began
    found["first run CPU"] = _processors() - processors
    held("after 1")
    for k, shape in enumerate(_shapes(given["shapes"]), 2):
        session.run(None, _feeds(session, *shape))
        if k in (10, 100, 1000):
            held(f"after {k}")
    return found


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
