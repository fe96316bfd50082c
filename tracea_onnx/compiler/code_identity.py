"""What answers compile requests, by its contents: Plans that other code made are not used.

Reading all of the code takes longer than loading a small model does. So the cache also remembers
which hash files with these stamps had. A file that changes gets another stamp, whatever its size
and modification time: the time of its last change is set by the system alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tracea_onnx.codegen import backend as backends
from tracea_onnx.errors import TraceaError
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.support.discovery import folder
from tracea_onnx.support.library import library_path

#: Nanoseconds after which a file that changes again has another stamp, whatever the file system.
_STAMP_NS = 2_000_000_000
_SUFFIXES = (".py", ".cuh", ".json")
_LIBRARY = ".so"
#: Bytes in which an ELF file has its notes; the head of the note with the 20 bytes of a build id.
_ELF_HEAD, _NOTE = 4096, b"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0"
#: Packages that stand above the compiler, which imports nothing of them: an answer does not follow
#: from their code.
ABOVE = frozenset({
    "rewrite", "verify", "pipeline", "torch", "explain", "tuning", "bench", "doctor", "cli",
})  # fmt: skip
#: What else Plans follow from.
_LIBRARIES = ("onnx", "numpy")


class Code(NamedTuple):
    """The code for one backend. contents: its hash. fingerprint: whether Plans depend on more than
    code and request (`Backend.fingerprint`).
    """

    contents: str
    fingerprint: bool


@cache
def code(backend: str, known: Cache) -> Code:
    """The package's modules, the backend, the native library, and the packages they call."""
    files = _files(backend)
    stamps = [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in files]
    latest = max(max(s.st_mtime_ns, s.st_ctime_ns) for _, s in files)
    key = "code " + hashlib.sha256(repr((backend, sys.version_info, stamps)).encode()).hexdigest()
    found = known.get(key)
    if found is not None:
        contents, _, more = found.decode(errors="replace").partition(" ")
        return Code(contents, more == "more")
    fingerprint = (
        backend in backends.names()
        and type(backends.get(backend)).fingerprint is not backends.Backend.fingerprint
    )
    contents = _contents(path for path, _ in files)
    if latest < time.time_ns() - _STAMP_NS:
        known.put(key, f"{contents} {'more' if fingerprint else ''}".encode())
    return Code(contents, fingerprint)


def _contents(paths: Iterable[str]) -> str:
    h = hashlib.sha256(repr(sys.version_info).encode())
    for path in paths:
        data = (path.endswith(_LIBRARY) and _build_id(path)) or _read(path)
        h.update(repr((os.path.basename(path), len(data))).encode() + data)  # noqa: PTH119
    return h.hexdigest()


def _read(path: str, size: int = 1 << 30) -> bytes:
    """At most so many bytes of a file. There are hundreds: `open` takes three times as long."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        parts = []
        while size and (part := os.read(file, min(size, 1 << 16))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
    finally:
        os.close(file)


def _build_id(path: str) -> bytes:
    """Build id of a library (the ELF note NT_GNU_BUILD_ID), or nothing. The library is most of all
    code.
    """
    _, note, after = _read(path, _ELF_HEAD).partition(_NOTE)
    return note + after[:20]


def _files(backend: str) -> list[tuple[str, os.stat_result]]:
    """The files of the code, sorted, and their stamps."""
    kernels = folder("kernels")
    # the packages of other backends have no part in the answer
    own = kernels / backend if backend in backends.names() else kernels
    single = [str(path) for path in kernels.iterdir() if path.suffix == ".py"]
    with contextlib.suppress(TraceaError):
        single.append(str(library_path()))
    for spec in map(find_spec, _LIBRARIES):
        if spec is not None and spec.origin:
            single += [spec.origin, str(Path(spec.origin).with_name("version.py"))]
    found: dict[str, os.stat_result] = {}
    for path in single:
        with contextlib.suppress(OSError):
            found[path] = Path(path).stat()
    package = str(Path(__file__).parents[1])
    above = {os.path.join(package, name) for name in ABOVE}  # noqa: PTH118 -- of scandir's paths
    places = [package, str(folder("fusion_rules")), str(folder("scheduler"))]
    places += [str(own)] if own.is_dir() else []
    while places:
        with os.scandir(places.pop()) as entries:
            for e in entries:
                if e.name.endswith(_SUFFIXES):
                    found[e.path] = e.stat()
                elif (
                    e.name != "__pycache__"
                    and e.path not in above
                    and e.is_dir(follow_symlinks=False)
                ):
                    places.append(e.path)
    return sorted(found.items())
