"""A cache of compiled code on disk. What it holds is executed, so it trusts only itself.

The folder is the user's alone (0700), in folders that nobody else can write. Every entry is one
file with a checksum that appears whole (`support/files.py`), so readers and writers of several
processes need no lock and never wait. Where any of this cannot be had, nothing is cached and
nothing fails.

    cache = Cache()
    data = cache.get(key)              # bytes, or None
    cache.put(key, data)               # True when stored
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from dataclasses import field
from pathlib import Path

from tracea_onnx.support import files, log
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.support.files import Folder

_MAGIC = b"TRACEACE"
#: Bytes before an entry's payload; the last 32 are its SHA-256.
HEAD = len(_MAGIC) + 32 + 32
_SUFFIX = ".entry"
#: Entries beyond this many bytes in all are dropped, least recently used first. Each process counts
#: them at its first write, and again whenever it wrote a sixteenth more.
LIMIT = 1 << 30
_written: dict[Path, int] = {}
_guard = threading.Lock()


def default_folder() -> Path | None:
    """The folder of the cache on this machine (TRACEA_CACHE_DIR names another one); None where the
    user has no home.
    """
    named = os.environ.get("TRACEA_CACHE_DIR", "")
    return Path(named) if named else files.user_folder("cache")


@dataclass(frozen=True)
class Entry:
    """One file of the cache."""

    name: str
    size: int
    used: float


@dataclass(frozen=True)
class Cache:
    """`folder` is made on first use. `limit` bounds the bytes of all entries."""

    folder: Path | None = field(default_factory=default_folder)
    limit: int = LIMIT

    def fault(self) -> str:
        """Why the cache cannot be used, or "". A folder that does not exist yet is no fault."""
        try:
            with files.private(self.folder):
                return ""
        except FileNotFoundError:
            return ""
        except (OSError, files.Unusable) as e:
            return str(e)

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, or None: absent, damaged, or the cache is unusable."""
        name = _name(key)
        with contextlib.suppress(OSError, files.Unusable), files.private(self.folder) as folder:
            data = folder.read(name)
            log.debug("cache: %s is %sin %s", key[:16], "" if data else "not ", self.folder)
            if data is None:
                return None
            payload = data[HEAD:]
            if data[:HEAD] != _head(key, payload):
                folder.remove(name)  # a damaged entry would be read, and refused, for ever
                return None
            with contextlib.suppress(OSError):
                os.utime(folder.at(name), dir_fd=folder.fd)
            return payload
        return None

    def put(self, key: str, data: bytes) -> bool:
        """Store `data`; False when the cache is unusable or the entry alone passes the limit."""
        size = len(data) + HEAD
        if size > self.limit:
            return False
        try:
            with files.private(self.folder, create=True) as folder:
                if self._time_to_count(folder.path, size):
                    self._evict(folder, size)
                with folder.new(_name(key)) as f:
                    f.write(_head(key, data))
                    f.write(data)  # not synced: a torn entry fails its checksum
                    f.place()
        except (OSError, files.Unusable):
            return False
        return True

    def entries(self) -> list[Entry]:
        """Stored entries, most recently used first."""
        with contextlib.suppress(OSError, files.Unusable), files.private(self.folder) as folder:
            return _entries(folder)
        return []

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(e.size for e in self.entries())

    def clear(self) -> int:
        """Remove every entry. Returns how many there were."""
        found: list[Entry] = []
        with contextlib.suppress(OSError, files.Unusable), files.private(self.folder) as folder:
            found = _entries(folder)
            for e in found:
                folder.remove(e.name + _SUFFIX)
            _clean(folder)
        return len(found)

    def _time_to_count(self, path: Path, size: int) -> bool:
        with _guard:
            written = _written.get(path, self.limit) + size
            count = written > self.limit // 16
            _written[path] = 0 if count else written
        return count

    def _evict(self, folder: Folder, coming: int) -> None:
        """Make room for as many bytes.

        Two processes that do it at once drop no more than one would.
        """
        _clean(folder)
        total = coming
        for e in _entries(folder):
            total += e.size
            if total > self.limit:
                folder.remove(e.name + _SUFFIX)


def _entries(folder: Folder) -> list[Entry]:
    out = []
    for name in folder.names():
        info = folder.stat(name) if name.endswith(_SUFFIX) else None
        if info is not None:
            out.append(Entry(name[: -len(_SUFFIX)], info.st_size, info.st_mtime))
    return sorted(out, key=lambda e: (-e.used, e.name))


def _clean(folder: Folder) -> None:
    folder.clean(rf"[0-9a-f]{{64}}\{_SUFFIX}")


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest() + _SUFFIX


def _head(key: str, payload: bytes) -> bytes:
    """Magic, hash of the key (a renamed file is no hit), hash of the payload."""
    return _MAGIC + hashlib.sha256(key.encode()).digest() + hashlib.sha256(payload).digest()
