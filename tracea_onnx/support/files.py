"""Files that appear whole or not at all, and folders that nobody but their user can change.

A new file has no name until it is whole, where the file system can do that (O_TMPFILE). Elsewhere
it has a hidden name, `.TARGET.PID.N.tmp`, and its writer holds a lock on it: a hidden file without
a lock was left by a writer that was killed, and the next writer of the same target removes it. A
folder is opened once, and what lies in it is reached through its descriptor: exchanging the folder
after it was checked has no effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Literal

_DESCRIPTORS = "/proc/self/fd"
_CHUNK = 64 << 20
_POSIX = os.name == "posix"
_numbers = count()


class Unusable(Exception):
    """Why a folder cannot be used, in words for its user."""


class NewFile:
    """A file being written. `place` gives it the name of its target; without it the file
    vanishes.
    """

    def __init__(self, folder: Folder, fd: int, target: str, name: str = "") -> None:
        """`name`: the hidden name it has already."""
        self.fd, self._folder, self.target, self._name = fd, folder, target, name

    def write(self, data: memoryview | bytes) -> None:
        """Append the bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.fd, rest[:_CHUNK]) :]

    def contents(self) -> Iterator[bytes]:
        """Written bytes, in pieces."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        while data := os.read(self.fd, _CHUNK):
            yield data

    def equals(self, path: Path) -> bool:
        """Whether the file at `path` holds the same bytes."""
        with path.open("rb") as f:
            same_size = os.fstat(f.fileno()).st_size == os.fstat(self.fd).st_size
            return same_size and all(f.read(len(data)) == data for data in self.contents())

    def mode(self, mode: int) -> None:
        """Set the permissions, which are 0600 otherwise."""
        if _POSIX:
            os.fchmod(self.fd, mode)

    def place(self) -> None:
        """Let the target be this file, in one step, whether or not there was one before."""
        if not self._name:
            try:
                self._link_to(self.target)
                return
            except FileExistsError:
                self.hide()  # no system call links a nameless file over another one
        self._folder.rename(self._name, self.target)
        self._name = ""

    def hide(self) -> str:
        """Give the file its hidden name already. Returns it."""
        while not self._name:
            name = _hidden(self.target)
            with contextlib.suppress(FileExistsError):
                self._link_to(name)
                self._name = name
        return self._name

    def keep(self) -> None:
        """The hidden name stays although the file is not placed."""
        self._name = ""

    def drop(self) -> None:
        """Remove it, unless it was placed."""
        if self._name:
            self._folder.remove(self._name)
            self._name = ""

    def _link_to(self, name: str) -> None:
        os.link(f"{_DESCRIPTORS}/{self.fd}", name, dst_dir_fd=self._folder.fd, follow_symlinks=True)


class Folder:
    """An open folder. Where folders have no descriptors (Windows), names are looked up by path."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path, self.fd = path, fd

    def at(self, name: str) -> str:
        """What to give to a function of `os` beside `dir_fd`."""
        return name if self.fd is not None else str(self.path / name)

    def open(self, name: str, flags: int) -> int:
        """Open a file in the folder, never through a link, and never waiting. Raises OSError."""
        extra = (
            getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        return os.open(self.at(name), flags | extra, 0o600, dir_fd=self.fd)

    def read(self, name: str) -> bytes | None:
        """The contents of a regular file of the user's own; None where there is none."""
        try:
            with os.fdopen(self.open(name, os.O_RDONLY), "rb") as f:
                info = os.fstat(f.fileno())
                own = not _POSIX or info.st_uid == os.geteuid()
                return f.read() if own and stat.S_ISREG(info.st_mode) else None
        except OSError:
            return None

    def stat(self, name: str) -> os.stat_result | None:
        """None for a name that is not there."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)
        return None

    def remove(self, name: str) -> None:
        """Remove a file of the folder."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.at(name), dir_fd=self.fd)

    def rename(self, name: str, target: str) -> None:
        """Rename a file of the folder; replaces what is there."""
        os.replace(self.at(name), self.at(target), src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def left_over(self, targets: str) -> list[str]:
        """Hidden names of new files for targets that match the pattern, those of living writers
        included.
        """
        pattern = re.compile(rf"\.(?:{targets})\.\d+\.\d+\.tmp")
        return [name for name in self.names() if pattern.fullmatch(name)]

    def names(self) -> list[str]:
        """The names of its files."""
        return os.listdir(self.path if self.fd is None else self.fd)  # noqa: PTH208 -- of a descriptor

    @contextlib.contextmanager
    def new(self, target: str) -> Iterator[NewFile]:
        """A file that is to be `target`; it is gone afterwards unless it was placed.

        Raises OSError.
        """
        made = self._create(target)
        try:
            yield made
        finally:
            made.drop()
            os.close(made.fd)

    def _create(self, target: str) -> NewFile:
        if hasattr(os, "O_TMPFILE") and self.fd is not None and Path(_DESCRIPTORS).is_dir():
            with contextlib.suppress(OSError):  # not every file system can
                fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=self.fd)
                _lock(fd)
                return NewFile(self, fd, target)
        while True:
            name = _hidden(target)
            try:
                fd = self.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            _lock(fd)
            there = self.stat(name)
            if there is not None and (not _POSIX or there.st_ino == os.fstat(fd).st_ino):
                return NewFile(self, fd, target, name)
            os.close(fd)  # another process took it for left over before it was locked

    def clean(self, targets: str) -> None:
        """Remove what killed writers left of new files for targets whose names match the
        pattern.
        """
        for name in self.left_over(targets) if _POSIX else ():
            with contextlib.suppress(OSError):
                fd = self.open(name, os.O_RDWR)
                try:
                    if stat.S_ISREG(os.fstat(fd).st_mode) and _lock(fd):
                        self.remove(name)
                finally:
                    os.close(fd)

    def sync(self) -> None:
        """Make renames durable."""
        if self.fd is not None:
            with contextlib.suppress(OSError):  # not every file system can
                os.fsync(self.fd)

    @contextlib.contextmanager
    def locked(self, seconds: float) -> Iterator[bool]:
        """Whether this holds the folder's lock, after waiting for at most `seconds`.

        What has no locks (Windows, some network file systems) counts as locked.
        """
        if self.fd is None:
            yield True
            return
        fd = os.open(".", os.O_RDONLY, dir_fd=self.fd)  # a lock belongs to what was opened
        try:
            end = time.monotonic() + seconds
            while not (held := _lock(fd)) and time.monotonic() < end:
                time.sleep(0.01)
            yield held
        finally:
            os.close(fd)


def _hidden(target: str) -> str:
    return f".{target}.{os.getpid()}.{next(_numbers)}.tmp"


def _lock(fd: int) -> bool:
    """Lock the file, without waiting. False where somebody else has it locked."""
    if _POSIX:
        import fcntl

        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            return e.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Folder]:
    """Any folder, links followed. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if _POSIX else None
    try:
        yield Folder(path, fd)
    finally:
        if fd is not None:
            os.close(fd)


@contextlib.contextmanager
def private(path: Path | None, *, create: bool = False, write: bool = True) -> Iterator[Folder]:
    """A folder that nobody but the user can read, change or exchange; None is that of a user
    without a home. write: whether it is of no use where it can only be read.

    Raises Unusable, or FileNotFoundError where there is no such folder and it is not to be made.
    """
    if path is None:
        raise Unusable("this user has no home folder (HOME is not set)")
    try:
        if create:
            for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
                with contextlib.suppress(FileExistsError):
                    missing.mkdir(mode=0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) if _POSIX else None
    except FileNotFoundError:
        raise
    except OSError as e:
        if e.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Unusable(f"{path} is not a folder of its own") from None
        raise Unusable(f"{path} cannot be used ({e.strerror})") from None
    except (ValueError, RuntimeError) as e:  # a NUL in the name; links in a circle
        raise Unusable(f"{path} cannot be used ({e})") from None
    try:
        why = _exposed(path, fd, write=write) if fd is not None else ""
        if fd is None and not path.is_dir():
            raise FileNotFoundError(path)
        if why:
            raise Unusable(why)
        yield Folder(path, fd)
    finally:
        if fd is not None:
            os.close(fd)


def _exposed(path: Path, fd: int, *, write: bool) -> str:
    """Why others may have a hand in the folder, or ""."""
    info = os.fstat(fd)
    if info.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if stat.S_IMODE(info.st_mode) & 0o077:
        return f"{path} is open to other users"
    for parent in Path(os.path.realpath(path)).parents:
        above = parent.stat()
        others = stat.S_IWOTH if _own_group(above.st_gid) else stat.S_IWOTH | stat.S_IWGRP
        if above.st_mode & others and not above.st_mode & stat.S_ISVTX:
            return f"{parent} can be written by other users, who could exchange what is in it"
    needed = os.R_OK | os.X_OK | (os.W_OK if write else 0)
    if os.access(".", needed, dir_fd=fd):
        return ""
    return f"{path} cannot be {'written' if write else 'read'}"


def _own_group(gid: int) -> bool:
    """Whether only the user and root are in the group: many systems give each user one, with umask
    002.
    """
    if gid == 0:
        return True
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        group.gr_name == user.pw_name and user.pw_gid == gid and set(group.gr_mem) <= {user.pw_name}
    )


_XDG = {"cache": ("XDG_CACHE_HOME", ".cache"), "data": ("XDG_DATA_HOME", ".local/share")}


def user_folder(kind: Literal["cache", "data"]) -> Path | None:
    """Folder in which the operating system keeps such files of this user; None for a user without a
    home.
    """
    try:
        if sys.platform == "linux":  # as platformdirs has it, which takes longer to import
            variable, usual = _XDG[kind]
            given = Path(os.environ.get(variable, "").strip())
            found = (given if given.is_absolute() else Path.home() / usual) / "tracea-onnx"
        else:
            import platformdirs

            find = getattr(platformdirs, f"user_{kind}_path")
            found = find("tracea-onnx", appauthor=False)
    except RuntimeError:  # HOME is not set, and the user is in no list of users
        return None
    return found if found.is_absolute() else None


def _first_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


#: Only for systems that do not show it: to ask is to change it, so it is asked while no other
#: thread makes files.
_UMASK = 0o022 if Path("/proc/self/status").exists() else _first_umask()


def umask() -> int:
    """The permissions that new files of this process are not to have."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return _UMASK
