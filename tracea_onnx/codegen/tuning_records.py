"""Tuning records: which kernels were measured to be the fastest for each kind of device, and every
trial that was made to find them (`tuning_store.py`: where they lie).

A record takes minutes of a device's time, so it lies among the user's data, not in the cache:
neither a full cache nor `cache clear` removes it. It holds for one device (its full name, memory,
clocks), driver, version of the kernels' compiler and version of this package. What cannot be read
is no record. What one process adds, no other removes.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from tracea_onnx._version import __version__
from tracea_onnx.codegen import backend, tuning_store
from tracea_onnx.codegen.kernel_choice import BY_PRICE, Choices
from tracea_onnx.codegen.tuning_store import default_folder as default_folder
from tracea_onnx.errors import UsageError
from tracea_onnx.support.data_classes import dataclass

#: No launch takes longer.
_LONGEST_US = 1e9
#: Sets of sizes that are kept for one launch: the latest.
_SIZES = 64
#: How a kernel is called, and what is asked of a launch (`kernel_choice.cache_key`).
_KERNEL = re.compile(r"[A-Za-z_]\w*\([ -~]{0,500}\)")
_WORD = 1000

Sizes = Mapping[str, int]


class Device(Protocol):
    """The kind of device that a record holds for. kind: everything that tells one kind from
    another, in words.
    """

    @property
    def backend(self) -> str:
        """The one whose device it is."""
        ...

    @property
    def kind(self) -> str:
        """As above."""
        ...


@dataclass(frozen=True)
class Reported:
    """A device of another machine as that machine knows it. toolchain, version: there."""

    name: str
    backend: str
    kind: str
    toolchain: str
    version: str


def reported(device: Any) -> Reported:
    """A device of this machine, for others."""
    toolchain = backend.get(device.backend).toolchain()
    return Reported(device.name, device.backend, device.kind, toolchain, __version__)


@dataclass(frozen=True)
class Measured:
    """A kernel that was faster than the one by price.

    us, usual_us: microseconds of a launch with it, and with the kernel by price. sizes: values that
    the symbols of models had when the launch was one of theirs; an empty set for a model without
    symbols.
    """

    kernel: str
    us: float
    usual_us: float
    sizes: Sequence[Sizes]

    @property
    def ratio(self) -> float:
        """The tuned time over the time of the kernels by price; below 1 is faster."""
        return self.us / self.usual_us


class Verdict(StrEnum):
    """How a trial ended. Only `OK` and `PRUNED` (slower than the best by so much that it was not
    measured to the end) have a time; what ended otherwise is never tried again.
    """

    OK = "ok"
    PRUNED = "pruned"
    WRONG = "wrong"
    SPILLS = "spills"
    TOO_LARGE = "too large"
    REFUSED = "refused"
    CRASH = "crash"
    HANG = "hang"


#: Of kernels that no session may get, whoever measured them to be fast.
_BAD = (Verdict.WRONG, Verdict.CRASH, Verdict.HANG)


@dataclass(frozen=True)
class Trial:
    """One kernel tried for one launch. us, usual_us: as of `Measured`; None without a time."""

    launch: str
    kernel: str
    verdict: Verdict
    us: float | None = None
    usual_us: float | None = None
    at: float = 0.0

    @property
    def ratio(self) -> float | None:
        """As of `Measured`; None without a time."""
        return self.us / self.usual_us if self.us and self.usual_us else None


def load(device: Device) -> dict[str, Measured]:
    """What was measured on this kind of device, by launch (`kernel_choice.cache_key`), without what
    was found there to be wrong or to end the process; empty where nothing was.
    """
    try:
        with tuning_store.reading() as db:
            if db is None:
                return {}
            number = tuning_store.found_id(db, _head(device))
            bad = {(t.launch, t.kernel) for t in _trials(db, number) if t.verdict in _BAD}
            kept = _kept(db, number)
            return {launch: m for launch, m in kept.items() if (launch, m.kernel) not in bad}
    except sqlite3.Error:
        return {}


def require() -> None:
    """Raises TraceaError where there is no place for records."""
    with tuning_store.writing("the tuning record cannot be kept"):
        pass


def add(device: Device, found: Mapping[str, Measured], *, instead: bool = False) -> Path:
    """Add to the device's record. Of two kernels for one launch the one that gained more stays, or
    with `instead` the new one, for the sizes of both.

    Returns the file. Raises TraceaError where there is no place for it.
    """
    with tuning_store.writing("the tuning record cannot be kept") as db:
        _add(db, _head(device), found, instead)
    folder = default_folder()
    assert folder is not None
    return folder / tuning_store.NAME


def _add(
    db: sqlite3.Connection,
    head: tuning_store.Head,
    found: Mapping[str, Measured],
    instead: bool = False,
) -> None:
    number = tuning_store.device_id(db, head)
    before = _kept(db, number, found)
    for launch, entry in found.items():
        merged = _merged(before.get(launch), entry)
        m = Measured(entry.kernel, entry.us, entry.usual_us, merged.sizes) if instead else merged
        db.execute(
            "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?, ?)",
            (number, launch, m.kernel, m.us, m.usual_us, json.dumps(list(m.sizes))),
        )


def note(
    device: Device, trials: Iterable[Trial], requests: Mapping[str, Mapping[str, Any]]
) -> None:
    """Keep trials. requests: what their launches compute (`kernel_choice.described`)."""
    with tuning_store.writing("the trials cannot be kept") as db:
        tuning_store.note_launches(db, requests)
        number = tuning_store.device_id(db, _head(device))
        _note(db, number, trials)


def _note(db: sqlite3.Connection, number: int, trials: Iterable[Trial]) -> None:
    now = time.time()
    db.executemany(
        "INSERT INTO trials (device, launch, kernel, verdict, us, usual_us, at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (number, t.launch, t.kernel, str(t.verdict), t.us, t.usual_us, t.at or now)
            for t in trials
        ],
    )


def trials(device: Device) -> list[Trial]:
    """All that were made on this kind of device, in their order."""
    try:
        with tuning_store.reading() as db:
            return _trials(db, tuning_store.found_id(db, _head(device))) if db else []
    except sqlite3.Error:
        return []


def similar(device: Device) -> list[tuple[Mapping[str, Any], Trial]]:
    """Trials of this backend with a time, on any device and driver and with any version, each with
    what its launch computes.
    """
    out: list[tuple[Mapping[str, Any], Trial]] = []
    with contextlib.suppress(sqlite3.Error), tuning_store.reading() as db:
        known = _requests(db) if db else {}
        for number, head in _heads(db) if db else ():
            if db is not None and head[0] == device.backend:
                timed = (t for t in _trials(db, number) if t.ratio is not None)
                out += [(known[t.launch], t) for t in timed if t.launch in known]
    return out


def history() -> list[tuple[str, str, Trial]]:
    """Every trial: the device, what the launch computes ("" where that is not known), and the
    trial.
    """
    out: list[tuple[str, str, Trial]] = []
    with contextlib.suppress(sqlite3.Error), tuning_store.reading() as db:
        known = _requests(db) if db else {}
        for number, head in _heads(db) if db else ():
            assert db is not None
            name = tuning_store.identity(head[1], head[2])
            out += [
                (name, in_words(known[t.launch]) if t.launch in known else "", t)
                for t in _trials(db, number)
            ]
    return out


@dataclass(frozen=True)
class Record:
    """The record of one kind of device."""

    device: str
    nvrtc: str
    version: str
    launches: int
    trials: int
    backend: str


def listed() -> list[Record]:
    """The records of all devices, by device. Raises TraceaError where their folder cannot be
    used.
    """
    out = []
    try:
        with tuning_store.writing("the tuning records cannot be read", create=False) as db:
            for number, (kind, device, driver, toolchain, version) in _heads(db):
                name = tuning_store.identity(device, driver)
                counts = len(_kept(db, number)), len(_trials(db, number))
                out.append(Record(name, toolchain, version, *counts, kind))
    except FileNotFoundError:
        return []
    return sorted(out, key=lambda r: (r.device, r.version, r.nvrtc))


def clear() -> int:
    """Remove all records.

    Returns of how many devices. Raises TraceaError where their folder cannot be used.
    """
    try:
        with tuning_store.writing("the tuning records cannot be removed", create=False) as db:
            found = len(list(_heads(db)))
            for table in ("devices", "kept", "launches", "trials"):
                db.execute(f"DELETE FROM {table}")
            return found
    except FileNotFoundError:
        return 0


def choices(device: Device) -> Choices:
    """How kernels are chosen for this device: as its record says, else by price."""
    found = load(device)
    sizes = {tuple(sorted(one.items())) for entry in found.values() for one in entry.sizes if one}
    chosen = Choices(
        {key: entry.kernel for key, entry in found.items()},
        sizes=tuple(dict(one) for one in sorted(sizes)),
    )
    return chosen if found else BY_PRICE


#: Parameters that say little of what a launch computes.
_DULL = ("_rs", "_ns", "_cs", "_b", "_h", "_s", "_0", "_1", "dtype", "act")


def in_words(request: Mapping[str, Any]) -> str:
    """Text of a launch (`kernel_choice.described`): family, type, sizes other than 0 and 1."""
    sizes = (
        f"{n}={v}"
        for n, v in request["ints"].items()
        if v not in (0, 1) and not n.endswith(_DULL) and not n.startswith(("ld", "o"))
    )
    return " ".join((request["family"], request["dtype"], *sizes))


# --- to other machines ----------------------------------------------------------------------------
_FORMAT = "tracea-onnx tuning records 1"


def exported() -> dict[str, Any]:
    """All records, as JSON for `imported`."""
    with contextlib.suppress(sqlite3.Error), tuning_store.reading() as db:
        return _exported(db)
    return _exported(None)


def _exported(db: sqlite3.Connection | None) -> dict[str, Any]:
    devices = []
    known = _requests(db) if db else {}
    for number, head in _heads(db) if db else ():
        assert db is not None
        kept = {launch: vars(m) for launch, m in _kept(db, number).items()}
        made = [vars(t) for t in _trials(db, number)]
        devices.append({"device": list(head), "kept": kept, "trials": made})
    return {"format": _FORMAT, "devices": devices, "launches": known}


def imported(data: object, where: str) -> int:
    """Adds records of other machines, which are data: a kernel that no launch offers is never
    chosen. Returns how many kernels there were. Raises UsageError for what is no export.
    """
    with tuning_store.writing("the tuning records cannot be kept") as db:
        return _imported(db, data, where)


def merged(exports: Iterable[tuple[object, str]]) -> dict[str, Any]:
    """One export of several, each with its name. Raises UsageError."""
    with tuning_store.in_memory() as db:
        for data, where in exports:
            _imported(db, data, where)
        return _exported(db)


def _imported(db: sqlite3.Connection, data: object, where: str) -> int:
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise UsageError(
            f"{where} holds no tuning records", "make it with `tracea-onnx tune export FILE`"
        )
    known = _dict(data.get("launches"))
    plain = {launch: r for launch, r in known.items() if _plain(r) and len(launch) <= _WORD}
    tuning_store.note_launches(db, plain)
    count = 0
    for part in map(_dict, _list(data.get("devices"))):
        words = [w for w in _list(part.get("device")) if isinstance(w, str) and len(w) <= _WORD]
        if len(words) != len(_list(part.get("device"))) or len(words) != 5:
            continue
        head = (words[0], words[1], words[2], words[3], words[4])
        read = {launch: _entry(v) for launch, v in _dict(part.get("kept")).items()}
        found = {launch: m for launch, m in read.items() if m and len(launch) <= _WORD}
        count += len(found)
        _add(db, head, found)
        number = tuning_store.device_id(db, head)
        seen = set(_trials(db, number))
        made = [_trial(v) for v in _list(part.get("trials"))]
        _note(db, number, [t for t in made if t is not None and t not in seen])
    return count


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# --- reading --------------------------------------------------------------------------------------
def _merged(old: Measured | None, new: Measured) -> Measured:
    if old is None:
        return new
    sizes = [
        dict(pairs)
        for pairs in dict.fromkeys(tuple(sorted(one.items())) for one in (*old.sizes, *new.sizes))
    ]
    best = min(new, old, key=lambda entry: entry.ratio)
    return Measured(best.kernel, best.us, best.usual_us, sizes[-_SIZES:])


def _head(device: Device) -> tuning_store.Head:
    if isinstance(device, Reported):
        toolchain, version = device.toolchain, device.version
    else:
        toolchain, version = backend.get(device.backend).toolchain(), __version__
    return tuning_store.head(device.backend, device.kind, toolchain, version)


def _heads(db: sqlite3.Connection) -> Iterator[tuple[int, tuning_store.Head]]:
    query = "SELECT id, backend, device, driver, toolchain, version FROM devices"
    for number, *words in db.execute(query).fetchall():
        kind, device, driver, toolchain, version = map(str, words)
        yield number, (kind, device, driver, toolchain, version)


def _kept(
    db: sqlite3.Connection, number: int, among: Iterable[str] | None = None
) -> dict[str, Measured]:
    """The kernels of a device, without what is damaged."""
    query = "SELECT launch, kernel, us, usual_us, sizes FROM kept WHERE device = ?"
    wanted = None if among is None else set(among)
    out = {}
    for launch, kernel, us, usual_us, sizes in db.execute(query, (number,)):
        if wanted is not None and launch not in wanted:
            continue
        fields = {"kernel": kernel, "us": us, "usual_us": usual_us, "sizes": _json(sizes)}
        if isinstance(launch, str) and (entry := _entry(fields)) is not None:
            out[launch] = entry
    return out


def _trials(db: sqlite3.Connection, number: int) -> list[Trial]:
    query = (
        "SELECT launch, kernel, verdict, us, usual_us, at FROM trials WHERE device = ? ORDER BY id"
    )
    names = ("launch", "kernel", "verdict", "us", "usual_us", "at")
    read = (_trial(dict(zip(names, row, strict=True))) for row in db.execute(query, (number,)))
    return [t for t in read if t is not None]


def _requests(db: sqlite3.Connection) -> dict[str, Mapping[str, Any]]:
    rows = db.execute("SELECT launch, request FROM launches").fetchall()
    read = {str(launch): _json(request) for launch, request in rows}
    return {launch: request for launch, request in read.items() if _plain(request)}


def _plain(request: object) -> bool:
    """Whether it says what a launch computes: a family, a type, and sizes."""
    return (
        isinstance(request, dict)
        and request.keys() == {"family", "dtype", "ints"}
        and isinstance(request["family"], str)
        and isinstance(request["dtype"], str)
        and isinstance(request["ints"], dict)
        and all(type(n) is int and abs(n) < 1 << 53 for n in request["ints"].values())
    )


def _json(text: object) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _time(us: object) -> bool:
    return type(us) in (int, float) and 0 < us < _LONGEST_US  # type: ignore[operator]


def _entry(value: object) -> Measured | None:
    try:
        entry = Measured(**value)  # type: ignore[arg-type]
    except TypeError:
        return None
    sets = isinstance(entry.sizes, list) and all(isinstance(one, dict) for one in entry.sizes)
    sizes = sets and all(
        type(n) is int and 0 <= n < 1 << 31 for one in entry.sizes for n in one.values()
    )
    named = isinstance(entry.kernel, str) and _KERNEL.fullmatch(entry.kernel) is not None
    return entry if named and _time(entry.us) and _time(entry.usual_us) and sizes else None


def _trial(value: object) -> Trial | None:
    try:
        t = Trial(**value)  # type: ignore[arg-type]
        verdict = Verdict(t.verdict)
    except (TypeError, ValueError):
        return None
    named = isinstance(t.kernel, str) and _KERNEL.fullmatch(t.kernel) is not None
    timed = all(us is None or _time(us) for us in (t.us, t.usual_us))
    if not (named and timed and isinstance(t.launch, str) and type(t.at) in (int, float)):
        return None
    return Trial(t.launch[:_WORD], t.kernel, verdict, t.us, t.usual_us, t.at)
