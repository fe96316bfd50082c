"""The database of tuning records: one SQLite file in a private folder of the user's data.

Several processes read and write it at once (WAL). A file that is no such database, or a damaged
one, counts as empty; the next writer sets it aside as `tuning.db.damaged` and begins anew. What
earlier versions left, a JSON file for each device, is taken over once. A folder that cannot be
written is read as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime.device_caps import DeviceCaps
from tracea_onnx.support import files

NAME = "tuning.db"
_DAMAGED = f"{NAME}.damaged"
#: Files that SQLite keeps beside the database while it is open.
_BESIDE = ("-wal", "-shm", "-journal")
#: Seconds to wait for another process that writes, which takes it milliseconds.
_PATIENCE = 10.0
_FIX = "free some space, make that folder your own (mode 0700), or set XDG_DATA_HOME"
_SCHEMA = """
CREATE TABLE devices (
    id INTEGER PRIMARY KEY, backend TEXT NOT NULL, device TEXT NOT NULL, driver TEXT NOT NULL,
    toolchain TEXT NOT NULL, version TEXT NOT NULL,
    UNIQUE (backend, device, driver, toolchain, version));
CREATE TABLE kept (
    device INTEGER NOT NULL, launch TEXT NOT NULL, kernel TEXT NOT NULL, us REAL NOT NULL,
    usual_us REAL NOT NULL, sizes TEXT NOT NULL, PRIMARY KEY (device, launch)) WITHOUT ROWID;
CREATE TABLE launches (launch TEXT PRIMARY KEY, request TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trials (
    id INTEGER PRIMARY KEY, device INTEGER NOT NULL, launch TEXT NOT NULL, kernel TEXT NOT NULL,
    verdict TEXT NOT NULL, us REAL, usual_us REAL, at REAL NOT NULL);
CREATE INDEX trials_of ON trials (device, launch);
PRAGMA user_version = 1;
"""
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


def default_folder() -> Path | None:
    """None for a user without a home."""
    base = files.user_folder("data")
    return base and base / "tuning"


@contextmanager
def reading() -> Iterator[sqlite3.Connection | None]:
    """The database to read; None where there is none that can be read, and an empty one where it
    breaks off.
    """
    try:
        with files.private(default_folder(), write=False) as folder:
            if _left(folder) and os.access(folder.path, os.W_OK):
                with contextlib.suppress(TraceaError), writing("", create=False):
                    pass  # takes over what earlier versions left
            if folder.stat(NAME) is None:
                yield None
                return
            with _connected(folder) as db:
                yield db
    except (OSError, files.Unusable):
        yield None


@contextmanager
def writing(failure: str, *, create: bool = True) -> Iterator[sqlite3.Connection]:
    """One transaction on the database, which is made where it is missing and `create`.

    Raises FileNotFoundError where it is missing and not to be made; every other failure is a
    TraceaError that begins with `failure`.
    """
    try:
        with files.private(default_folder(), create=create) as folder:
            if not create and folder.stat(NAME) is None and not _left(folder):
                raise FileNotFoundError(NAME)
            for again in (True, False):
                try:
                    with _connected(folder) as db:
                        _prepare(db, folder)
                        break
                except sqlite3.DatabaseError as e:
                    if not again or not _broken(e):
                        raise
                    _set_aside(folder)
            with _connected(folder) as db:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
    except FileNotFoundError as e:
        if not create:
            raise
        raise TraceaError(f"{failure}: {e}", _FIX) from None
    except (OSError, files.Unusable) as e:
        raise TraceaError(f"{failure}: {e}", _FIX) from None
    except sqlite3.Error as e:
        raise TraceaError(f"{failure}: {default_folder()}/{NAME}: {e}", _FIX) from None


@contextmanager
def in_memory() -> Iterator[sqlite3.Connection]:
    """A database that is gone afterwards."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(_SCHEMA)
        yield db


@contextmanager
def _connected(folder: files.Folder) -> Iterator[sqlite3.Connection]:
    path = folder.path / NAME
    mode = "rwc" if os.access(folder.path, os.W_OK) else "ro&immutable=1"
    with closing(
        sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            timeout=_PATIENCE,
            isolation_level=None,
            uri=True,
        )
    ) as db:
        db.text_factory = lambda data: data.decode(errors="replace")
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON"):
            db.execute(f"PRAGMA {pragma}")
        try:
            yield db
        except UnicodeDecodeError:  # in SQLite's message of an error that names what it read
            raise _Malformed("damaged") from None


def _prepare(db: sqlite3.Connection, folder: files.Folder) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    if db.execute("PRAGMA user_version").fetchone()[0] != 1:
        try:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except sqlite3.OperationalError as e:
            if not _broken(e):  # the disk is full; else another process was first
                raise
    _check(db)
    for name in _left(folder):
        _take_over(db, folder, name)


def _check(db: sqlite3.Connection) -> None:
    whole = db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
    if not whole or _tables(db) != _own_tables():
        raise _Malformed("damaged")


def _tables(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()


@cache
def _own_tables() -> list[tuple[str, str]]:
    with in_memory() as db:
        return _tables(db)


class _Malformed(sqlite3.DatabaseError):
    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is no database of this kind, so that there is nothing to wait for."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _CORRUPT


def _set_aside(folder: files.Folder) -> None:
    with folder.locked(_PATIENCE):
        try:
            with _connected(folder) as db:
                _check(db)
        except sqlite3.DatabaseError as e:
            if _broken(e):  # still: no other process has replaced it
                folder.rename(NAME, _DAMAGED)
                for suffix in _BESIDE:
                    folder.remove(NAME + suffix)


# --- what earlier versions left -------------------------------------------------------------------
def _left(folder: files.Folder) -> list[str]:
    return [n for n in folder.names() if n.endswith(".json") and not n.startswith(".")]


def _take_over(db: sqlite3.Connection, folder: files.Folder, name: str) -> None:
    try:
        found = json.loads(folder.read(name) or b"{}")
    except (ValueError, RecursionError):
        found = {}
    launches = found.get("launches") if isinstance(found, dict) else None
    db.execute("BEGIN IMMEDIATE")
    if isinstance(launches, dict):
        words = [str(found.get(k, "")) for k in ("device", "nvrtc", "version")]
        device = device_id(db, head(DeviceCaps.backend, *words))
        for launch, entry in launches.items():
            with contextlib.suppress(sqlite3.Error, KeyError, TypeError, ValueError, OverflowError):
                db.execute(
                    "INSERT OR IGNORE INTO kept VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        device, launch, entry["kernel"], entry["us"], entry["usual_us"],
                        json.dumps(entry["sizes"]),
                    ),
                )  # fmt: skip
    db.execute("COMMIT")
    folder.remove(name)


# --- devices --------------------------------------------------------------------------------------
#: Backend, device, driver, toolchain, version: what a record holds for.
Head = tuple[str, str, str, str, str]
_DRIVER = ", driver "
_WHERE = "backend = ? AND device = ? AND driver = ? AND toolchain = ? AND version = ?"


def head(backend: str, identity: str, toolchain: str, version: str) -> Head:
    """identity: of a device, which says its driver last."""
    device, _, driver = identity.partition(_DRIVER)
    return backend, device, driver, toolchain, version


def identity(device: str, driver: str) -> str:
    """Identity of a device with its driver, which a head was made from."""
    return device + _DRIVER + driver if driver else device


def found_id(db: sqlite3.Connection, head: Head) -> int:
    """The number of a device in the database; -1 where it has none."""
    row = db.execute(f"SELECT id FROM devices WHERE {_WHERE}", head).fetchone()
    if row and not isinstance(row[0], int):
        raise _Malformed("a device has no number")
    return row[0] if row else -1


def device_id(db: sqlite3.Connection, head: Head) -> int:
    """The same, which a device without one gets."""
    db.execute(
        "INSERT OR IGNORE INTO devices (backend, device, driver, toolchain, version) "
        "VALUES (?, ?, ?, ?, ?)",
        head,
    )
    return found_id(db, head)


def note_launches(db: sqlite3.Connection, requests: Mapping[str, Mapping[str, Any]]) -> None:
    """Remember what launches compute, by which similar ones are found."""
    db.executemany(
        "INSERT OR IGNORE INTO launches VALUES (?, ?)",
        [(launch, json.dumps(r)) for launch, r in requests.items()],
    )
