"""A cache of compiled Plans and tuning records on disk. What it holds is executed, so it trusts only itself.

The folder belongs to the user alone (0700); every entry is one file with a checksum, written beside and renamed; a lock serialises writers.
Where any of this cannot be had, nothing is cached and nothing fails.

    cache = Cache()
    data = cache.get(key)              # bytes, or None
    cache.put(key, data)               # True when stored
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = b"TRACEACE"
_HEAD = len(_MAGIC) + 32 + 32
_SUFFIX = ".entry"
#: Entries beyond this many bytes in all are dropped, least recently used first; counted again whenever a sixteenth more was written.
LIMIT = 1 << 30


def default_folder() -> Path:
    """Where the operating system keeps caches of this user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "tracea-onnx" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/tracea-onnx"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracea-onnx"


@dataclass(frozen=True)
class Entry:
    name: str
    size: int
    used: float


@dataclass(frozen=True)
class Cache:
    """`folder` is made on first use. `limit` bounds the bytes of all entries."""

    folder: Path = field(default_factory=default_folder)
    limit: int = LIMIT

    def fault(self, *, create: bool = False) -> str:
        """Why the cache cannot be used, or "". A folder that does not exist yet is no fault."""
        try:
            if create:
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                self.folder.mkdir(mode=0o700, exist_ok=True)
            info = self.folder.lstat()
        except FileNotFoundError:
            return ""
        except OSError as e:
            return f"{self.folder} cannot be used ({e.strerror})"
        if not stat.S_ISDIR(info.st_mode):
            return f"{self.folder} is not a folder of its own"
        if hasattr(os, "getuid") and info.st_uid != os.getuid():
            return f"{self.folder} belongs to another user"
        if os.name == "posix" and stat.S_IMODE(info.st_mode) & 0o077:
            return f"{self.folder} is open to other users"
        return "" if os.access(self.folder, os.R_OK | os.W_OK | os.X_OK) else f"{self.folder} cannot be written"

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, or None: absent, damaged, or the cache is unusable."""
        if self.fault() or not self.folder.exists():
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = data[_HEAD:]
        if data[:_HEAD] != _head(key, payload):
            with contextlib.suppress(OSError):
                path.unlink()  # a damaged entry would be read, and refused, for ever
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return payload

    def put(self, key: str, data: bytes) -> bool:
        """Store `data`; False when the cache is unusable or the entry alone passes the limit."""
        if len(data) + _HEAD > self.limit or self.fault(create=True):
            return False
        try:
            with self._locked():
                fd, name = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
                try:
                    with os.fdopen(fd, "wb") as f:
                        f.write(_head(key, data) + data)  # not synced: a torn entry fails its checksum
                    Path(name).replace(self._path(key))
                finally:
                    Path(name).unlink(missing_ok=True)
                grown = self._grown() + len(data) + _HEAD
                if grown > self.limit // 16:
                    self._evict()
                    grown = 0
                (self.folder / "grown").write_text(str(grown))
        except OSError:
            return False
        return True

    def entries(self) -> list[Entry]:
        """What is stored, most recently used first."""
        if self.fault() or not self.folder.exists():
            return []
        out = []
        for p in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                info = p.stat()
                out.append(Entry(p.stem, info.st_size, info.st_mtime))
        return sorted(out, key=lambda e: (-e.used, e.name))

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(e.size for e in self.entries())

    def clear(self) -> int:
        """Remove every entry and returns how many there were."""
        found = self.entries()
        if found:
            with self._locked():
                for p in [*self.folder.glob(f"*{_SUFFIX}"), *self.folder.glob("*.tmp")]:
                    p.unlink(missing_ok=True)
        return len(found)

    def _path(self, key: str) -> Path:
        return self.folder / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    def _grown(self) -> int:
        """Bytes written since the entries were last counted: looking at all of them on every write would be slow. Large when unknown."""
        try:
            return int((self.folder / "grown").read_text())
        except (OSError, ValueError):
            return self.limit

    def _evict(self) -> None:
        total = 0
        for e in self.entries():
            total += e.size
            if total > self.limit:
                (self.folder / (e.name + _SUFFIX)).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("a") as f:
            if os.name == "posix":
                import fcntl

                fcntl.flock(f, fcntl.LOCK_EX)
            yield  # closing the file releases the lock


def _head(key: str, payload: bytes) -> bytes:
    """Magic, hash of the key (a renamed file is no hit), hash of the payload."""
    return _MAGIC + hashlib.sha256(key.encode()).digest() + hashlib.sha256(payload).digest()
