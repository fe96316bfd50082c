"""One program of `tracea-onnx bench`, in a process of its own: it loads a model, and runs it when
it is told to.

Peers have pools of threads that spin, and packages that exclude each other; a process each keeps
them apart, and shows what memory each takes. A peer may have a Python of its own (`--python`), so
this file imports nothing of tracea-onnx but for ours.

The first line on stdin is a request. Each of the others says how many calls to time, and for how
many seconds at most, or asks for the results of the last run (null). Replies are lines of JSON on
stdout.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

#: How ONNX Runtime names memory of a GPU: that of its CUDA provider, and that of a plugin (by
#: the vendor, NVIDIA).
_CUDA_MEMORY, _PLUGIN_MEMORY = ("cuda", 0), ("gpu", 0, 0x10DE)
#: Names of ONNX Runtime's types that are not numpy's with "tensor()" around them.
_TYPES = {"float": "float32", "double": "float64"}

Given = Mapping[str, Any]
Arrays = dict[str, Any]
#: What runs once, and what reads the results of the last run.
Pair = tuple[Callable[[], object], Callable[[], Sequence[Any]]]


class Missing(Exception):
    """A package or a device that a peer needs is not here. `install`: its package is what lacks."""

    def __init__(self, why: str, install: bool = True) -> None:
        super().__init__(why)
        self.install = install


def _need(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise Missing(f"{package} is not installed" if e.name == package else str(e)) from None


# --- peers: first the version of what was imported, then the sessions -----------------------------
Peer = Iterator[Any]


def _ort(given: Given) -> Any:
    ort = _need("onnxruntime")
    ort.set_default_logger_severity(4)
    if given["device"] and "CUDAExecutionProvider" in ort.get_available_providers():
        ort.preload_dlls()  # CUDA's libraries, in pip's packages
    return ort


def _ort_options(ort: Any, given: Given) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = given["threads"]
    return options


def _ort_pair(ort: Any, session: Any, given: Given, inputs: Arrays, place: Sequence[Any]) -> Pair:
    names = [o.name for o in session.get_outputs()]
    inputs = {k: v for k, v in inputs.items() if k in {i.name for i in session.get_inputs()}}
    if not place:
        last: list[Any] = []

        def run() -> None:
            last[:] = session.run(names, inputs)

        return run, lambda: last
    binding, made = session.io_binding(), ort.OrtValue
    held = {k: made.ortvalue_from_numpy(v, *place) for k, v in inputs.items()}
    for k, v in held.items():
        binding.bind_ortvalue_input(k, v)
    results = []
    for o, shape in zip(session.get_outputs(), given["shapes"], strict=True):
        kind = o.type.removeprefix("tensor(").removesuffix(")")
        results.append(
            made.ortvalue_from_shape_and_type(shape, importlib.import_module("numpy").dtype(
                _TYPES.get(kind, kind)), *place)
        )  # fmt: skip
        binding.bind_ortvalue_output(o.name, results[-1])

    def bound(_held: object = held) -> None:  # what the binding holds addresses of must live on
        session.run_with_iobinding(binding)

    return bound, lambda: [v.numpy() for v in results]


def _provider(
    ort: Any, given: Given, inputs: Arrays, name: str, settings: Mapping[str, str], device: bool
) -> list[Pair]:
    """Raises where ONNX Runtime would fall back to another provider."""
    pairs = []
    for _ in range(given["sessions"]):
        session = ort.InferenceSession(
            given["model"], _ort_options(ort, given), providers=[(name, dict(settings))],
            enable_fallback=0,
        )  # fmt: skip
        if name not in session.get_providers():
            raise Missing(f"ONNX Runtime could not load its {name}", install=False)
        pairs.append(_ort_pair(ort, session, given, inputs, _CUDA_MEMORY if device else ()))
    return pairs


def _available(ort: Any, name: str) -> None:
    if name not in ort.get_available_providers():
        raise Missing(f"this ONNX Runtime has no {name}")


def _ours(given: Given, inputs: Arrays) -> Peer:
    ort = _ort(given)
    provider = importlib.import_module("tracea_onnx.provider")
    yield f"tracea-onnx {importlib.import_module('tracea_onnx').__version__}, ORT {ort.__version__}"
    sessions = [
        provider.create_session(
            given["model"], {"backend": given["backend"]}, _ort_options(ort, given)
        )
        for _ in range(given["sessions"])
    ]
    place = _PLUGIN_MEMORY if given["device"] else ()
    pairs = [_ort_pair(ort, s, given, inputs, place) for s in sessions]
    assigned = sessions[0].get_provider_graph_assignment_info()
    total = sum(len(p.get_nodes()) for p in assigned)
    yield pairs, f"{len(provider.assigned_nodes(sessions[0]))} of {total} nodes on the provider"


def _ort_cpu(given: Given, inputs: Arrays) -> Peer:
    ort = _ort({**given, "device": False})
    yield f"ORT {ort.__version__}"
    yield _provider(ort, given, inputs, "CPUExecutionProvider", {}, False), ""


def _ort_cuda(given: Given, inputs: Arrays) -> Peer:
    ort = _ort({**given, "device": True})
    _available(ort, "CUDAExecutionProvider")
    yield f"ORT {ort.__version__}"
    yield _fastest(
        ort, given, inputs, "CUDAExecutionProvider",
        [
            {**graph, **layout, "use_tf32": "0"}
            for graph in ({"enable_cuda_graph": "1"}, {})
            for layout in ({"prefer_nhwc": "1"}, {})
        ],
    )  # fmt: skip


def _tensorrt(given: Given, inputs: Arrays) -> Peer:
    ort = _ort({**given, "device": True})
    _available(ort, "TensorrtExecutionProvider")
    trt = _need("tensorrt")
    yield f"TensorRT {trt.__version__}, ORT {ort.__version__}"
    yield _fastest(
        ort, given, inputs, "TensorrtExecutionProvider", [{"trt_cuda_graph_enable": "1"}, {}]
    )


def _fastest(
    ort: Any, given: Given, inputs: Arrays, name: str, settings: Sequence[Mapping[str, str]]
) -> tuple[list[Pair], str]:
    """The fastest of a provider's settings that run this model, and which it is."""
    found: list[tuple[float, Mapping[str, str]]] = []
    failed: Exception | None = None
    for one in settings:
        try:
            run, _ = _provider(ort, {**given, "sessions": 1}, inputs, name, one, True)[0]
            for _ in range(3):  # the third run may replay a graph
                run()
            began = time.perf_counter()
            for _ in range(5):
                run()
            found.append((time.perf_counter() - began, one))
        except Missing:
            raise
        except Exception as e:
            failed = e
    if not found:
        raise failed or RuntimeError("it has no settings")
    best = min(found, key=lambda f: f[0])[1]
    said = ", ".join(k for k, v in best.items() if v == "1")
    return _provider(ort, given, inputs, name, best, True), said


def _openvino(given: Given, inputs: Arrays) -> Peer:
    ov = _need("openvino")
    yield f"OpenVINO {ov.__version__.split('-')[0]}"
    compiled = ov.Core().compile_model(given["model"], "CPU", {
        "PERFORMANCE_HINT": "LATENCY" if given["sessions"] == 1 else "THROUGHPUT",
        "NUM_STREAMS": given["sessions"],
        "INFERENCE_NUM_THREADS": given["sessions"] * given["threads"],
        "INFERENCE_PRECISION_HINT": "f32",
    })  # fmt: skip
    pairs: list[Pair] = []
    for _ in range(given["sessions"]):
        request = compiled.create_infer_request()

        def run(request: Any = request) -> None:
            request.infer(inputs, share_inputs=True, share_outputs=True)

        def read(request: Any = request) -> list[Any]:
            return [request.get_output_tensor(k).data for k in range(len(compiled.outputs))]

        pairs.append((run, read))
    yield pairs, ""


def _openvino_ep(given: Given, inputs: Arrays) -> Peer:
    ort = _ort({**given, "device": False})
    name = "OpenVINOExecutionProvider"
    _available(ort, name)
    yield f"ORT {ort.__version__}"
    settings = {"device_type": "CPU", "num_of_threads": str(given["threads"])}
    yield _provider(ort, given, inputs, name, settings, False), ""


def _torch(given: Given, inputs: Arrays, compiled: bool = False) -> Peer:
    torch, function = _need("torch"), given.get("function")
    convert = None if function else _need("onnx2torch").convert
    torch.set_num_threads(given["threads"])
    if given["device"] and not torch.cuda.is_available():
        raise Missing("this PyTorch has no CUDA device", install=False)
    yield f"torch {torch.__version__}"
    place = _CUDA_MEMORY[0] if given["device"] else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    model = (
        _function(torch, given, place)
        if convert is None
        else convert(given["model"]).eval().to(place)
    )
    if compiled:
        importlib.import_module("torch._inductor.config")  # loaded before it is set
        torch._inductor.config.freezing = True
        model = torch.compile(model, **({"mode": "max-autotune"} if given["device"] else {}))
    tensors = [torch.from_numpy(v).to(place) for v in inputs.values()]
    pairs: list[Pair] = []
    for _ in range(given["sessions"]):
        last: list[Any] = []

        def run(last: list[Any] = last) -> None:
            with torch.inference_mode():
                found = model(*tensors)
            last[:] = found if isinstance(found, (tuple, list)) else [found]
            if given["device"]:
                torch.cuda.synchronize()

        def read(last: list[Any] = last) -> list[Any]:
            return [t.cpu().numpy() for t in last]

        pairs.append((run, read))
    yield pairs, ""


def _function(torch: Any, given: Given, place: str) -> Any:
    """One of `round_functions.py`, with its weights on the device."""
    path = Path(__file__).with_name("round_functions.py")
    spec = importlib.util.spec_from_file_location("round_functions", path)
    assert spec is not None and spec.loader is not None
    functions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(functions)
    with importlib.import_module("numpy").load(given["weights"]) as file:
        weights = {k: torch.from_numpy(file[k]).to(place) for k in file.files}
    return functions.FUNCTIONS[given["function"]](torch.nn.functional, weights)


def _torch_compile(given: Given, inputs: Arrays) -> Peer:
    return _torch(given, inputs, compiled=True)


PEERS: dict[str, Callable[[Given, Arrays], Peer]] = {
    "ours": _ours,
    "ort-cpu": _ort_cpu,
    "ort-cuda": _ort_cuda,
    "openvino": _openvino,
    "openvino-ep": _openvino_ep,
    "torch": _torch,
    "torch-compile": _torch_compile,
    "tensorrt": _tensorrt,
}


# --- memory ---------------------------------------------------------------------------------------
def _memory(field: str) -> int | None:
    """Bytes of a field of this process's status; None where the system has none."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith(field + ":")), None)


class Gpu:
    """Bytes of the first GPU that are in use, by whomever."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._cuda.cuInit(0))
        self._check(self._cuda.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self._cuda.cuCtxSetCurrent(context))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"the CUDA driver answers {status}")

    def taken(self) -> int:
        """Bytes in use now."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return total.value - free.value


# --- what the process does ------------------------------------------------------------------------
def _waited() -> int:
    """Nanoseconds that this thread has waited for a core while it could have run."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _timed(
    runs: Sequence[Callable[[], object]], calls: int, most: float, clock: str
) -> dict[str, Any]:
    """Time of `calls` calls of each session at once, and of each call, in nanoseconds; less calls
    where they take longer than `most` seconds. Before several one that is not timed wakes the
    threads. waited: how much of the time the sessions' own threads waited for a core.
    """
    each: list[list[int]] = [[] for _ in runs]
    start = threading.Barrier(len(runs))
    begins, ends, waits = ([0] * len(runs) for _ in range(3))
    now = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}[clock]

    def caller(k: int) -> None:
        run, taken = runs[k], each[k]
        if calls > 1:
            run()
        start.wait()
        waits[k] -= _waited()
        begins[k] = time.perf_counter_ns()
        before = now()
        for _ in range(calls):
            run()
            after = now()
            taken.append(after - before)
            before = after
            if time.perf_counter_ns() - begins[k] > most * 1e9:
                break
        ends[k] = time.perf_counter_ns()
        waits[k] += _waited()

    others = [threading.Thread(target=caller, args=(k,)) for k in range(1, len(runs))]
    for t in others:
        t.start()
    caller(0)
    for t in others:
        t.join()
    wall = max(ends) - min(begins)
    return {
        "wall": wall,
        "calls": [ns for taken in each for ns in taken],
        "waited": sum(waits) / len(runs) / max(wall, 1),
    }


def _loaded(given: Given, arrays: Arrays) -> tuple[dict[str, Any], list[Pair]]:
    peer = PEERS[given["peer"]](given, arrays)
    version = next(peer)
    gpu = Gpu() if given["device"] else None
    before, taken = _memory("VmRSS"), gpu.taken() if gpu else 0
    began = time.perf_counter()
    pairs, note = next(peer)
    load = time.perf_counter() - began
    for run, _ in pairs:
        for _ in range(3):
            run()
    held = _memory("VmRSS")
    found = {
        "version": version, "note": note, "load": load,
        "memory": None if held is None or before is None else held - before,
        "device_memory": gpu.taken() - taken if gpu else None,
    }  # fmt: skip
    return found, pairs


def _failure(e: BaseException) -> dict[str, Any]:
    said = " ".join(str(e).split())[:300] or "?"
    if isinstance(e, Missing):
        return {"missing": said, "install": e.install}
    return {"failed": f"{type(e).__name__}: {said}"}


def main() -> None:
    """Answers until stdin ends, or until something fails."""
    # what a peer prints must not be among the replies
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def reply(found: Mapping[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    given = json.loads(sys.stdin.readline())
    try:
        np = importlib.import_module("numpy")
        with np.load(given["inputs"]) as file:
            arrays = {name: file[f"arr_{k}"] for k, name in enumerate(given["names"])}
        found, pairs = _loaded(given, {
            k: v.astype(object) if v.dtype.kind == "U" else v for k, v in arrays.items()
        })  # fmt: skip
        reply(found)
        for line in sys.stdin:
            asked = json.loads(line)
            if asked is None:
                results = [np.asarray(v) for v in pairs[-1][1]()]
                np.savez(
                    given["outputs"], *(v.astype(str) if v.dtype == object else v for v in results)
                )
                reply({})
            else:
                calls, most = asked
                timed = _timed([run for run, _ in pairs], calls, most, given["clock"])
                reply({**timed, "peak": _memory("VmHWM")})
    except Exception as e:
        reply(_failure(e))


if __name__ == "__main__":
    main()
