"""Compiled packs on disk, by everything they were compiled from, so that a model loads without
compiling the second time.

An entry's key covers the request (its `digest`: nodes, types, small constants; its properties: the
target) and the code that answers it (`code_identity`). Of large constants the compiler reads few (a
causal mask, a table of positions), and which ones it only knows when it is done: an entry names
them with their hashes, and counts only while they are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen import recorded_choices
from tracea_onnx.compiler.code_identity import Code, code
from tracea_onnx.support import process_memory
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.support.wire_format import fields

#: Constants of at most this many bytes are part of a node's key already (docs/plan-format.md, "Plan
#: and pack").
KEYED = 4096
_EMPTY = memoryview(b"")
#: Numbers of fields in onnx.proto.
_GRAPH, _METADATA, _INITIALIZER, _NAME, _EXTERNAL = 7, 14, 5, 8, 13


class Slot:
    """Place of the pack of one request. One without a digest is not kept."""

    def __init__(self, request: bytes) -> None:
        self._request = memoryview(request)
        props = dict(_properties(self._request))
        self._cache = Cache(Path(props["cache_dir"])) if props.get("cache_dir") else Cache()
        self._key = (
            _key(props, code(props.get("backend", ""), self._cache)) if "digest" in props else None
        )

    def get(self) -> bytes | None:
        """The pack compiled earlier for the same request, or None."""
        entry = self._cache.get(self._key) if self._key else None
        if entry is None:
            return None
        head, _, pack = entry.partition(b"\n")
        if head == b"{}":
            return pack
        import json

        try:
            read = json.loads(head)
        except (ValueError, RecursionError):
            return None
        return pack if isinstance(read, dict) and self._hashes(read) == read else None

    def put(self, read: Collection[str], pack: bytes) -> None:
        """Keep `pack`, compiled from the request by looking at the constants `read`."""
        if self._key:
            import json

            head = json.dumps(self._hashes(read)).encode()
            self._cache.put(self._key, head + b"\n" + pack)

    def _hashes(self, names: Collection[str]) -> dict[str, str]:
        """Of the contents of large constants, by name."""
        if not names:
            return {}
        return {
            name: hashlib.sha256(process_memory.read(address, size)).hexdigest()
            for name, address, size in _constants(self._request)
            if name in names and size > KEYED
        }


def _properties(request: memoryview) -> Iterator[tuple[str, str]]:
    """Metadata of a request; empty if it is damaged, which its reader will report."""
    with contextlib.suppress(ValueError):
        yield from (_entry(v) for k, v in list(fields(request)) if k == _METADATA)


def _constants(request: memoryview) -> Iterator[tuple[str, int, int]]:
    """Name, address and bytes of the constants that the request points to."""
    with contextlib.suppress(ValueError):
        for graph in (v for k, v in fields(request) if k == _GRAPH):
            for tensor in (v for k, v in fields(_message(graph)) if k == _INITIALIZER):
                parts = list(fields(_message(tensor)))
                where = dict(_entry(v) for k, v in parts if k == _EXTERNAL)
                if where.get("location") == process_memory.LOCATION:
                    name = next((_text(v) for k, v in parts if k == _NAME), "")
                    yield name, int(where.get("offset", "")), int(where.get("length", ""))


def _entry(value: int | memoryview) -> tuple[str, str]:
    """A StringStringEntryProto."""
    pair = dict(fields(_message(value)))
    return _text(pair.get(1, _EMPTY)), _text(pair.get(2, _EMPTY))


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number in place of a message")
    return value


def _text(value: int | memoryview) -> str:
    return str(_message(value), "utf-8")


def _key(props: Mapping[str, str], code: Code) -> str:
    h = hashlib.sha256(code.contents.encode())
    if not code.fingerprint:
        h.update(recorded_choices.stamp().encode())
    else:
        h.update(backends.get(props["backend"]).fingerprint(props).encode())
    tuned = recorded_choices.stamp()
    other = {"cache_dir"} if tuned else {"cache_dir", *recorded_choices.OF_DEVICE}
    h.update(repr(sorted((k, v) for k, v in props.items() if k not in other)).encode())
    return "plan " + h.hexdigest()
