"""The sessions that are compared: stock ONNX Runtime and the Tracea provider, set up alike."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

_compile_failures: list[str] = []
_watching = threading.local()
TRACEA = "TraceaExecutionProvider"
CPU = "CPUExecutionProvider"


def session(
    model: onnx.ModelProto | bytes | Path,
    *,
    provider: bool = False,
    threads: int = 1,
    optimize: bool = True,
    everything: bool = False,
    backend: str = "cpu",
    isa: str = "",
    exact: bool = False,
    options_of_provider: Mapping[str, str] | None = None,
) -> ort.InferenceSession:
    """A session on stock ORT, or on the provider with ORT's CPU provider behind it. `optimize`
    False turns ORT's own graph optimizations off (the oracle).

    everything: the provider takes every node it can run, not only those where it should be the
    faster; backend: what it runs them on; isa: of a CPU's instruction sets, the
    best by default; options_of_provider: more of them; exact: ONNX Runtime's sums of 8-bit products
    do not saturate at 16 bits either where a machine has no VNNI.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # Two sessions live in one process: the one that is not running must not spin on the other's
    # cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source: Any = (
        model.SerializeToString()
        if isinstance(model, onnx.ModelProto)
        else str(model)
        if isinstance(model, Path)
        else model
    )
    if not provider:
        return ort.InferenceSession(source, options, providers=[CPU])
    import tracea_onnx.provider

    _watch_compiler()
    _compile_failures.clear()
    _watching.on = True
    try:
        made = tracea_onnx.provider.create_session(
            source,
            {"backend": backend}
            | ({"claim": "all"} if everything else {})
            | ({"isa": isa} if isa else {})
            | dict(options_of_provider or {}),
            options,
        )
    finally:
        _watching.on = False
    if TRACEA not in made.get_providers():
        raise RuntimeError(f"the session does not use {TRACEA}")
    if _compile_failures:
        raise RuntimeError(f"the partition compiler raised {_compile_failures[0]}")
    return made


def _watch_compiler() -> None:
    """Notes exceptions of the partition compiler: the provider logs them and leaves the nodes to
    ORT, which would hide a defect here.
    """
    from tracea_onnx.compiler import compile_requests, partition_compiler
    from tracea_onnx.errors import TraceaError

    if getattr(compile_requests.compile_request, "watched", False):
        return
    original = compile_requests.compile_request

    def watched(request: bytes) -> bytes:
        if not getattr(_watching, "on", False):  # another session of this process
            return original(request)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", partition_compiler.Fault)
                return original(request)
        except TraceaError:
            raise
        except Exception as e:
            where = traceback.extract_tb(e.__traceback__)[-1]
            _compile_failures.append(
                f"{type(e).__name__}: {e} ({Path(where.filename).name}:{where.lineno})"
            )
            raise

    watched.watched = True  # type: ignore[attr-defined]
    compile_requests.compile_request = watched


def left_to_ort(s: ort.InferenceSession) -> list[str]:
    """Operators of the nodes that the provider does not run."""
    return sorted(
        node.op_type
        for part in s.get_provider_graph_assignment_info()
        if part.ep_name != TRACEA
        for node in part.get_nodes()
    )


def assigned(s: ort.InferenceSession) -> tuple[int, int]:
    """(nodes the provider runs, all nodes) of a session made with `provider=True`."""
    ours = total = 0
    for part in s.get_provider_graph_assignment_info():
        count = len(part.get_nodes())
        total += count
        ours += count if part.ep_name == TRACEA else 0
    return ours, total
