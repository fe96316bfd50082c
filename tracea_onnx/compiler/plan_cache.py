"""Compiled packs on disk, by everything they were compiled from, so that a model loads without
compiling the second time.

An entry's key covers the request (nodes, types, small constants, the target) and the code that
answers it. Of large constants the compiler reads few (a causal mask, a table of positions), and
which ones it only knows when it is done: an entry names them with their hashes, and counts only
while they are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from tracea_onnx.codegen import backend as backends
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.graph import Graph, request_array
from tracea_onnx.runtime import native_library
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.support.discovery import folder

#: Constants of at most this many bytes are part of a node's key already (docs/plan-format.md, "Plan
#: and pack").
_KEYED = 4096


class Slot:
    """Where the pack of one request is kept."""

    def __init__(self, request: ModelProto, props: Mapping[str, str]) -> None:
        self._request, self._cache, self._key = (
            request,
            Cache(Path(props["cache_dir"])) if props.get("cache_dir") else Cache(),
            _key(request, props),
        )

    def get(self) -> bytes | None:
        """The pack compiled earlier for the same request, or None."""
        entry = self._cache.get(self._key)
        if entry is None:
            return None
        head, _, pack = entry.partition(b"\n")
        tensors = {t.name: t for t in self._request.graph.initializer}
        return (
            pack
            if all(_hash(tensors[name]) == known for name, known in json.loads(head).items())
            else None
        )

    def put(self, graph: Graph, pack: bytes) -> None:
        """Keep `pack`, compiled from the request by looking at the constants that `graph` was asked
        for.
        """
        read = {
            t.name: _hash(t)
            for t in self._request.graph.initializer
            if graph.was_read(t.name) and _size(t) > _KEYED
        }
        self._cache.put(self._key, json.dumps(read).encode() + b"\n" + pack)


def _key(request: ModelProto, props: Mapping[str, str]) -> str:
    h = hashlib.sha256(_code().encode())
    name = props.get("backend", "")
    if name in backends.names():
        h.update(backends.get(name).fingerprint(props).encode())
    for part in (
        sorted((k, v) for k, v in props.items() if k != "cache_dir"),
        sorted((o.domain, o.version) for o in request.opset_import),
    ):
        h.update(repr(part).encode())
    g = request.graph
    for messages in (g.node, g.input, g.output, g.value_info):
        for m in messages:
            h.update(m.SerializeToString(deterministic=True))
        h.update(b"|")
    for t in g.initializer:
        h.update(
            repr(
                (t.name, t.data_type, tuple(t.dims), _hash(t) if _size(t) <= _KEYED else "")
            ).encode()
        )
    return "plan " + h.hexdigest()


def _size(t: TensorProto) -> int:
    return request_array(t).nbytes


def _hash(t: TensorProto) -> str:
    values = request_array(t)
    in_place = values.dtype != object and values.flags.c_contiguous
    return hashlib.sha256(
        values.reshape(-1).view(np.uint8).data if in_place else values.tobytes()
    ).hexdigest()


@cache
def _code() -> str:
    """What answers requests, by its contents: the package's modules, the native library, and the
    packages they call.
    """
    places = [
        Path(__file__).parents[1],
        *(folder(kind) for kind in ("fusion_rules", "scheduler", "kernels")),
    ]
    files = {
        p for place in places for p in place.rglob("*") if p.suffix in (".py", ".cuh", ".json")
    }
    with contextlib.suppress(TraceaError):
        files.add(native_library.library_path())
    h = hashlib.sha256(repr((onnx.__version__, np.__version__, sys.version_info)).encode())
    for p in sorted(files):
        data = p.read_bytes()
        h.update(repr((p.name, len(data))).encode() + data)
    return h.hexdigest()
