"""Tuning records: which kernels were measured to be the fastest, kept on disk for each kind of GPU.

A record takes minutes of GPU time, so it lies among the user's data, not in the cache: neither a
full cache nor `cache clear` removes it. There is one file for each device (its full name, memory,
clocks and driver), version of the kernels' compiler (`nvrtc`) and version of this package. It holds
JSON:

    {"device": "NVIDIA H200, ...", "nvrtc": "12.9", "version": "0.1.0", "launches":
     {<tuning.identity>: {"kernel": "HopperTile(...)", "us": 3.5, "usual_us": 4.0, "sizes":
     [{"batch": 8}, ...]}}}

A file that cannot be read as that is no record. Writers of several processes take turns; what one
adds, no other removes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracea_onnx._version import __version__
from tracea_onnx.codegen import backend
from tracea_onnx.codegen.kernel_choice import BY_PRICE, Choices
from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime.device_caps import DeviceCaps
from tracea_onnx.support import files
from tracea_onnx.support.data_classes import dataclass

_SUFFIX = ".json"
#: Seconds to wait for another process that writes a record, which takes it milliseconds. One that
#: stopped meanwhile is not waited for: what was measured here is worth more than what it might
#: lose.
_PATIENCE = 10.0
#: No launch takes longer.
_LONGEST_US = 1e9
_FIX = "make that folder your own (mode 0700), or set XDG_DATA_HOME"
#: Sets of sizes that are kept for one launch: the latest.
_SIZES = 64

Sizes = Mapping[str, int]


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


def default_folder() -> Path | None:
    """None for a user without a home."""
    base = files.user_folder("data")
    return base and base / "tuning"


def load(device: DeviceCaps) -> dict[str, Measured]:
    """What was measured on this kind of device, by launch (`kernel_choice.cache_key`); empty where
    nothing was.
    """
    try:
        with files.private(default_folder()) as folder:
            return _read(folder, device)
    except (OSError, files.Unusable):
        return {}


def require() -> None:
    """Raises TraceaError where there is no place for records."""
    with _folder("the tuning record cannot be kept", create=True):
        pass


def add(device: DeviceCaps, found: Mapping[str, Measured]) -> Path:
    """Add to the device's record. Of two kernels for one launch the one that gained more stays, for
    the sizes of both.

    Returns the file. Raises TraceaError where there is no place for it.
    """
    with (
        _folder("the tuning record cannot be kept", create=True) as folder,
        folder.locked(_PATIENCE),
    ):
        merged = _read(folder, device)
        for key, entry in found.items():
            merged[key] = _merged(merged.get(key), entry)
        folder.clean(r"[0-9a-f]{64}\.json")
        with folder.new(_name(device)) as f:
            f.write(_text(device, merged))
            os.fsync(f.fd)
            f.place()
        folder.sync()
        return folder.path / _name(device)


@dataclass(frozen=True)
class Record:
    """What one file holds."""

    device: str
    nvrtc: str
    version: str
    launches: int


def listed() -> list[Record]:
    """The records of all devices, by device. Raises TraceaError where their folder cannot be
    used.
    """
    out = []
    try:
        with _folder("the tuning records cannot be read") as folder:
            for name in _names(folder):
                found = _parsed(folder, name)
                head = [str(found.get(key, "?")) for key in ("device", "nvrtc", "version")]
                out.append(Record(head[0], head[1], head[2], len(_entries(found))))
    except FileNotFoundError:
        return []
    return sorted(out, key=lambda r: (r.device, r.version, r.nvrtc))


def clear() -> int:
    """Remove all records.

    Returns of how many devices. Raises TraceaError where their folder cannot be used.
    """
    try:
        with _folder("the tuning records cannot be removed") as folder, folder.locked(_PATIENCE):
            found = _names(folder)
            for name in found:
                folder.remove(name)
            return len(found)
    except FileNotFoundError:
        return 0


def choices(device: DeviceCaps) -> Choices:
    """How kernels are chosen for this device: as its record says, else by price."""
    found = load(device)
    sizes = {tuple(sorted(one.items())) for entry in found.values() for one in entry.sizes if one}
    chosen = Choices(
        {key: entry.kernel for key, entry in found.items()},
        sizes=tuple(dict(one) for one in sorted(sizes)),
    )
    return chosen if found else BY_PRICE


@contextmanager
def _folder(failure: str, create: bool = False) -> Iterator[files.Folder]:
    """The folder of records. Raises FileNotFoundError where there is none and none is to be made.

    Every other failure inside is a TraceaError that begins with `failure`.
    """
    try:
        with files.private(default_folder(), create=create) as folder:
            yield folder
    except FileNotFoundError as e:
        if not create:
            raise
        raise TraceaError(f"{failure}: {e}", _FIX) from None
    except (OSError, files.Unusable) as e:
        raise TraceaError(f"{failure}: {e}", _FIX) from None


def _merged(old: Measured | None, new: Measured) -> Measured:
    if old is None:
        return new
    sizes = [
        dict(pairs)
        for pairs in dict.fromkeys(tuple(sorted(one.items())) for one in (*old.sizes, *new.sizes))
    ]
    best = min(new, old, key=lambda entry: entry.ratio)
    return Measured(best.kernel, best.us, best.usual_us, sizes[-_SIZES:])


def _device(device: DeviceCaps) -> str:
    return device.identity or f"{device.name}, sm_{device.arch}, {device.sms} multiprocessors"


def _head(device: DeviceCaps) -> dict[str, str]:
    compiler = backend.get(device.backend).toolchain()
    return {"device": _device(device), "nvrtc": compiler, "version": __version__}


def _name(device: DeviceCaps) -> str:
    return hashlib.sha256(json.dumps(_head(device), sort_keys=True).encode()).hexdigest() + _SUFFIX


def _text(device: DeviceCaps, found: Mapping[str, Measured]) -> bytes:
    launches = {key: asdict(entry) for key, entry in found.items()}
    return json.dumps({**_head(device), "launches": launches}, sort_keys=True, indent=1).encode()


def _names(folder: files.Folder) -> list[str]:
    return [name for name in folder.names() if name.endswith(_SUFFIX) and not name.startswith(".")]


def _read(folder: files.Folder, device: DeviceCaps) -> dict[str, Measured]:
    return _entries(_parsed(folder, _name(device)))


def _parsed(folder: files.Folder, name: str) -> dict[str, Any]:
    """The contents of a file; nothing where it is damaged."""
    try:
        found = json.loads(folder.read(name) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _entries(found: Mapping[str, Any]) -> dict[str, Measured]:
    """The launches of a record, without those that are damaged."""
    launches = found.get("launches")
    read = (
        {key: _entry(value) for key, value in launches.items()}
        if isinstance(launches, dict)
        else {}
    )
    return {key: entry for key, entry in read.items() if entry is not None}


def _entry(value: object) -> Measured | None:
    try:
        entry = Measured(**value)  # type: ignore[arg-type]
    except TypeError:
        return None
    times = all(type(t) in (int, float) and 0 < t < _LONGEST_US for t in (entry.us, entry.usual_us))
    sets = isinstance(entry.sizes, list) and all(isinstance(one, dict) for one in entry.sizes)
    sizes = sets and all(
        type(n) is int and 0 <= n < 1 << 31 for one in entry.sizes for n in one.values()
    )
    return entry if isinstance(entry.kernel, str) and times and sizes else None
