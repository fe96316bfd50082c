"""The execution provider seen from Python: register it with ONNX Runtime, and check that a session
really uses it:

    tracea_onnx.register()
    session = onnxruntime.InferenceSession(
        "model.onnx", providers=["TraceaExecutionProvider", "CPUExecutionProvider"]
    )
    tracea_onnx.assert_provider_selected(session)
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tracea_onnx._version import __version__
from tracea_onnx.codegen import backend as backends
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.support import library

PROVIDER_NAME = "TraceaExecutionProvider"
MINIMUM_ORT = (1, 24)
#: The first ONNX Runtime whose `providers=[...]` accepts a registered plugin; before it use
#: `select`.
PROVIDERS_LIST_ORT = (1, 25, 1)

#: Metadata of the provider's devices: what ONNX Runtime compares with the option device_id (-1: the
#: host), and whose they are.
_DEVICE_ID, _BACKEND = "cuda_device_id", "tracea_backend"


class Option(NamedTuple):
    """A provider option, as the native side reads it: its values in words, its default ("" where
    there is none, or where it follows from the rest).
    """

    name: str
    values: str
    default: str
    help: str


#: Provider options of every session, then those of single backends. The native side reads them
#: (`ep/ort/options.cc`, `runtime.cc` of each backend); `tests/host/test_pages.py` compares names.
OPTIONS = (
    Option(
        "backend", "a backend's name", "",
        "what the session runs on, when no device says so; the tensors of the session stay on the"
        " host, unless `device_id` says otherwise",
    ),
    Option(
        "device_id", "0 to 1023", "",
        "the GPU that the session runs on; its tensors are device memory",
    ),
    Option("kernel_pack", "path", "", "a pack to take compiled Plans from, in place of a compiler"),
    Option(
        "python", "path", "",
        "a Python with tracea-onnx, started to compile where the process has none; `TRACEA_PYTHON`"
        " names it, too, and without either it is the one the library is installed in",
    ),
    Option(
        "kernel_pack_sha256", "64 hexadecimal digits", "",
        "the only pack that may be loaded: a session over another one fails",
    ),
    Option(
        "cache_dir", "path", "",
        "the folder of compiled Plans, in place of the user's cache folder; `TRACEA_CACHE_DIR`"
        " names it, too",
    ),
    Option(
        "claim", "`auto`, `all`", "auto",
        "whether the provider leaves partitions to ONNX Runtime that would not pay",
    ),
    Option(
        "specs", "`rematch`, `trust`", "rematch",
        "whether the spec of a fused op is believed; by default its body is matched again",
    ),
    Option(
        "ep_context", "`check`, `trust`", "check",
        "whether a compiled model (EPContext) may hold machine code for a GPU, and outputs are not"
        " set to zero before a run; for files that you made",
    ),
    Option(
        "log_level", "`verbose`, `info`, `warning`, `error`, `off`", "off",
        "also print the provider's log to stderr, from this level on; `TRACEA_LOG` says it, too",
    ),
    Option(
        "num_threads", "0 to 1024", "0",
        "CPU: 1 is the calling thread alone, n at most n threads of the session's pool, 0 all of "
        "it",
    ),
    Option(
        "isa", "`avx512`, `avx2`, `base`", "", "CPU: the instruction set, in place of the best one"
    ),
    Option(
        "tf32", "0, 1", "0",
        "GPU: GEMMs and convolutions of fp32 round their elements to TF32, which is faster and less"
        " accurate",
    ),
    Option(
        "bf16", "0, 1", "0",
        "CPU: GEMMs and convolutions of fp32 by constant weights round their elements to bfloat16"
        " where the machine has AMX, which is faster and less accurate; sums stay fp32",
    ),
    Option(
        "enable_cuda_graph", "0, 1, `session`", "1",
        "GPU: replay each partition as a CUDA graph; `session` is ONNX Runtime's own capture",
    ),
    Option(
        "gpu_mem_limit", "bytes", "",
        "GPU: bound of the process's memory pool on this GPU: the least limit of its sessions",
    ),
    Option(
        "user_compute_stream", "a `CUstream` as a number", "",
        "GPU: the stream that all of the session's work goes to; "
        "it must outlive the session's runs",
    ),
    Option(
        "sync_launches", "0, 1", "0",
        "GPU: wait for every launch, so that an error names its kernel; for debugging",
    ),
    Option(
        "webgpu_adapter", "text", "",
        "WebGPU: a part of the adapter's name, in place of the best one; `tracea-onnx doctor`"
        " lists them",
    ),
    Option(
        "wgpu_library", "path", "",
        "WebGPU: the library of wgpu-native; `TRACEA_WGPU_LIBRARY` names it, too, and without"
        " either it is the one of the wheel `wgpu`, else the system's",
    ),
)  # fmt: skip

#: Session config that makes ONNX Runtime remember which provider got which node.
_RECORD = "session.record_ep_graph_assignment_info"

#: Session config: where external data of a model in memory lie; what makes ONNX Runtime write a
#: model, or read something else than ONNX.
_FOLDER = "session.model_external_initializers_file_folder_path"
_WRITES_OR_READS = ("ep.context_enable", "session.load_model_format")

_Reply = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
_Compiler = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_uint8), ctypes.c_size_t, _Reply, ctypes.c_void_p
)

#: Answer of the callback by which the native side sends SIGINT once more when the callback is done,
#: so that Python raises KeyboardInterrupt behind it.
_INTERRUPTED = 2

_lock = threading.Lock()
# error: what asks this thread to end (SystemExit), which native code would swallow
_unwinding = threading.local()
_keep: list[Any] = []  # the callback and the library must outlive every session
_preferred: list[dict[str, str]] = []  # options of each `preferred` that is at work


def library_path() -> str:
    """Path of the provider's shared library, as ONNX Runtime's
    `register_execution_provider_library` wants it.
    """
    return str(library.library_path())


def _ort() -> Any:
    try:
        import onnxruntime
    except ImportError as e:
        raise TraceaError(
            "onnxruntime is not installed", 'python -m pip install "tracea-onnx[cpu]"'
        ) from e
    if _version(onnxruntime.__version__) < MINIMUM_ORT:
        raise TraceaError(
            f"ONNX Runtime {onnxruntime.__version__} is too old for plugin providers",
            "python -m pip install -U onnxruntime",
        )
    return onnxruntime


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(p) for p in text.split("+")[0].split(".")[:3] if p.isdigit())


def _compile(request: Any, n: int, reply: Any, context: int) -> int:
    """The compiler callback: one reply with pack bytes, or with a line that says what went
    wrong.
    """
    try:
        from tracea_onnx.compiler.compile_requests import compile_request

        data, failed = compile_request(ctypes.string_at(request, n)), 0
    except TraceaError as e:
        data, failed = str(e).encode(), 1
    except KeyboardInterrupt:
        data, failed = b"interrupted", _INTERRUPTED
    except BaseException as e:  # nothing may unwind into native code
        data, failed = f"internal error: {type(e).__name__}: {e}".encode(), 1
        if not isinstance(e, Exception):
            _unwinding.error = e
    reply(context, data, len(data))
    return failed


def register() -> None:
    """Register the provider with ONNX Runtime and let it compile models in this process. Calling it
    again does nothing.

    Raises TraceaError when onnxruntime is missing or older than 1.24, or when the native library is
    missing.
    """
    ort = _ort()
    with _lock:
        if not _keep:
            attach(library_path())
        if not _devices(ort):
            ort.register_execution_provider_library("tracea_onnx", library_path())


def attach(library: str) -> None:
    """Let this process compile for the provider's library at that path. A library that was
    registered by its path alone calls this.

    Raises TraceaError when it is of another version than this package.
    """
    lib = ctypes.CDLL(library)
    lib.tracea_version.restype = ctypes.c_char_p
    if (version := lib.tracea_version().decode()) != __version__:
        raise TraceaError(
            f"{library} is of version {version}, the package of version {__version__}",
            "use the library of the installed package: tracea_onnx.get_library_path()",
        )
    callback = _Compiler(_compile)
    lib.tracea_set_compiler(callback)
    _keep.extend((lib, callback))


def get_library_path() -> str:
    """Path of the provider's library for `onnxruntime.register_execution_provider_library`."""
    return library_path()


def get_ep_names() -> list[str]:
    """Names of the execution providers that the library has."""
    return [PROVIDER_NAME]


def get_ep_name() -> str:
    """Name of the library's one execution provider."""
    return PROVIDER_NAME


def _devices(ort: Any) -> list[Any]:
    return [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER_NAME]


def _device(ort: Any, options: Mapping[str, str] | None) -> tuple[Any, dict[str, str]]:
    """The provider's device that the options mean (the host, or by backend or device_id another),
    and the options as ONNX Runtime wants them.

    Raises TraceaError when there is no such device.
    """
    given = {k: str(v) for k, v in (options or {}).items()}
    name, devices = given.get("backend", ""), _devices(ort)
    own = next((d for d in devices if name and d.ep_metadata.get(_BACKEND) == name), None)
    backend = None if own is not None else backends.named(name)
    known = own is not None or backend is not None
    if own is not None:  # which the library has, and says all of
        host = own.ep_metadata.get(_DEVICE_ID, "-1") == "-1"
    elif backend is not None:
        backend.attach(_keep[0])
        host = backend.on_host
    else:
        host = "device_id" not in given
    # by it ONNX Runtime finds the device
    wanted = "-1" if host else given.setdefault("device_id", "0")
    for d in devices:
        if d.ep_metadata.get(_DEVICE_ID, "-1") == wanted and (
            host or not known or d.ep_metadata[_BACKEND] == name
        ):
            return d, given
    others = [n for n in backends.names() if n == name or not (name or backends.get(n).host)]
    raise TraceaError(
        f"{PROVIDER_NAME} has no {' or '.join(others).upper()} device {wanted} on this machine",
        "see `tracea-onnx doctor`, or leave out backend to run on the CPU",
    )


def select(options: Mapping[str, str] | None = None, session_options: Any = None) -> Any:
    """`session_options` (or new `onnxruntime.SessionOptions`) with the provider selected: works on
    every supported ONNX Runtime, 1.24 included.

    `options` are provider options (`OPTIONS`). Registers the provider if need be.
    """
    ort = _ort()
    register()
    chosen = session_options if session_options is not None else ort.SessionOptions()
    device, given = _device(ort, options)
    chosen.add_provider_for_devices([device], given)
    return chosen


def create_session(
    model: str | Path | bytes, options: Mapping[str, str] | None = None, session_options: Any = None
) -> Any:
    """An `onnxruntime.InferenceSession` on the provider with ONNX Runtime's CPU provider behind it
    (unless session.disable_cpu_ep_fallback is 1), on every supported version. The session records
    which provider got which node (`assert_provider_selected` reads that): where `session_options`
    do not say whether it should, their entry session.record_ep_graph_assignment_info becomes 1.

    Weights are mapped from a model file where every node runs on the provider, which packs them:
    ONNX Runtime need not copy them. For this their entry
    session.model_external_initializers_file_folder_path becomes the file's folder. The session
    needs the file no longer.

    A bad option or pack raises; a plain `InferenceSession` prints it and silently runs everything
    on the CPU provider instead.
    """
    ort = _ort()
    register()
    if session_options is None:
        session_options = ort.SessionOptions()
    recorded = _entry(session_options, _RECORD)
    if recorded != "1":
        session_options.add_session_config_entry(_RECORD, "1")
    try:
        if not isinstance(model, bytes):
            session = _mapping_session(ort, model, options, session_options)
            if session is not None:
                return session
        source = str(model) if isinstance(model, Path) else model
        return _session(ort, source, options, session_options)
    finally:
        # The session has its own copy. An entry cannot be taken out again, and each that is
        # overwritten is a warning of ONNX Runtime.
        if recorded not in ("", "1"):
            session_options.add_session_config_entry(_RECORD, recorded)


def _session(
    ort: Any, source: str | bytes, options: Mapping[str, str] | None, session_options: Any
) -> Any:
    _unwinding.error = None
    try:
        if _version(ort.__version__) < PROVIDERS_LIST_ORT:
            return ort.InferenceSession(source, select(options, session_options), enable_fallback=0)
        providers: list[Any] = [(PROVIDER_NAME, _device(ort, options)[1])]
        # ONNX Runtime refuses to be given what it may not use
        if _entry(session_options, "session.disable_cpu_ep_fallback") != "1":
            providers.append("CPUExecutionProvider")
        return ort.InferenceSession(source, session_options, providers=providers, enable_fallback=0)
    finally:
        error, _unwinding.error = _unwinding.error, None
        if error is not None:
            raise error


def _mapping_session(
    ort: Any, model: str | Path, options: Mapping[str, str] | None, session_options: Any
) -> Any | None:
    """A session whose weights ONNX Runtime maps from the model's file (`mapped_model.py`), in less
    than half of the time. None where it cannot be had: where ONNX Runtime itself runs a node, too,
    whose weights would change or vanish with the file, where it writes a model, and where the
    caller's options name another folder.

    What failed here fails once more without mapping, and says so.
    """
    if (
        os.name != "posix"
        # `select` takes options once
        or _version(ort.__version__) < PROVIDERS_LIST_ORT
        or any(_entry(session_options, key) not in ("", "0") for key in _WRITES_OR_READS)
        or session_options.optimized_model_filepath
    ):
        return None
    from tracea_onnx.model_io.mapped_model import mapped_model
    from tracea_onnx.support.artifact_cache import Cache

    mapped, folder = mapped_model(Path(model)), _entry(session_options, _FOLDER)
    if mapped is None or folder not in ("", str(mapped.file.parent)):
        return None
    given = {str(k): str(v) for k, v in (options or {}).items()}
    what = repr((__version__, ort.__version__, sorted(given.items()))).encode()
    cache = Cache(Path(given["cache_dir"])) if given.get("cache_dir") else Cache()
    unmapped = f"unmapped {hashlib.sha256(what + mapped.data).hexdigest()}"
    if cache.fault() or cache.get(unmapped) is not None:
        return None
    if not folder:
        session_options.add_session_config_entry(_FOLDER, str(mapped.file.parent))
    try:
        session = _session(ort, mapped.data, options, session_options)
    except Exception:
        return None
    if any(a.ep_name != PROVIDER_NAME for a in session.get_provider_graph_assignment_info()):
        cache.put(unmapped, b"")
        return None
    if not mapped.unchanged():
        return None
    session._model_path, session._model_bytes = os.fspath(model), None  # as of any file
    return session


@contextlib.contextmanager
def preferred(options: Mapping[str, str] | None = None) -> Iterator[None]:
    """While it lasts, every new `onnxruntime.InferenceSession` of this process has the provider in
    front of those that it asks for. This is for libraries that cannot be told a provider's name.

    `options` are provider options (`OPTIONS`). Sessions that choose the provider or a device by
    themselves stay as they are. All record which provider got which node, and raise for a bad
    option, as those of `create_session` do.
    """
    ort = _ort()
    register()
    _, given = _device(ort, options)
    kind = ort.InferenceSession
    with _lock:
        _preferred.append(given)
        if len(_preferred) == 1:
            kind.__init__ = _preferring(ort, kind.__init__)
    try:
        yield
    finally:
        with _lock:
            del _preferred[next(k for k, each in enumerate(_preferred) if each is given)]
            if not _preferred:
                kind.__init__ = kind.__init__.__wrapped__


def _preferring(ort: Any, plain: Any) -> Any:
    """`InferenceSession.__init__` with the provider in front."""

    @functools.wraps(plain)
    def init(
        session: Any,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **more: Any,
    ) -> None:
        chosen = sess_options if sess_options is not None else ort.SessionOptions()
        named = [p if isinstance(p, str) else p[0] for p in providers or ()]
        if PROVIDER_NAME not in named and not chosen.has_providers():
            given, sess_options = _preferred[-1], chosen
            if not _entry(chosen, _RECORD):
                chosen.add_session_config_entry(_RECORD, "1")
            if _version(ort.__version__) < PROVIDERS_LIST_ORT:
                select(given, chosen)
                providers = provider_options = None
            elif provider_options is not None:
                providers, provider_options = [PROVIDER_NAME, *named], [given, *provider_options]
            else:
                providers = [(PROVIDER_NAME, given), *(providers or ())]
            more["enable_fallback"] = 0
        plain(session, path_or_bytes, sess_options, providers, provider_options, **more)

    return init


def assert_provider_selected(session: Any) -> None:
    """Raise UsageError unless `session` runs on the provider.

    ONNX Runtime runs a model silently on its CPU provider when a provider's name is not registered;
    this makes that visible. Where the session recorded which provider got which node
    (`create_session` asks for that), at least one node must run on ours.
    """
    if PROVIDER_NAME not in session.get_providers():
        raise UsageError(
            f"the session does not use {PROVIDER_NAME} (it uses "
            f"{', '.join(session.get_providers())})",
            "call tracea_onnx.register() before creating it and pass "
            f"providers=['{PROVIDER_NAME}', 'CPUExecutionProvider']",
        )
    if _records_assignment(session) and not assigned_nodes(session):
        raise UsageError(
            f"{PROVIDER_NAME} runs no node of this model",
            "provider option log_level='info' says why",
        )


def _records_assignment(session: Any) -> bool:
    return _entry(session.get_session_options(), _RECORD) == "1"


def _entry(session_options: Any, key: str) -> str:
    """A session's config entry, "" when it is not set."""
    try:
        return str(session_options.get_session_config_entry(key))
    except RuntimeError:
        return ""


def assigned_nodes(session: Any) -> list[str]:
    """Op types of the nodes that run on the provider, of a session that recorded the assignment
    (`create_session` does).
    """
    return [
        n.op_type
        for a in session.get_provider_graph_assignment_info()
        if a.ep_name == PROVIDER_NAME
        for n in a.get_nodes()
    ]


def stats() -> dict[str, int]:
    """Counters of this process: sessions, claimed_nodes, partitions, runs, bound_plans,
    compile_requests, threads, bands (groups of launches that were set up to run together); and
    `live_...`, what the library holds now (`ep/plan/stats.h`), which goes back when sessions go and
    does not grow with runs.
    """
    import json

    lib = ctypes.CDLL(library_path())
    text = ctypes.create_string_buffer(2048)
    lib.tracea_stats(text, ctypes.c_size_t(len(text)))
    return {str(k): int(v) for k, v in json.loads(text.value).items()}
