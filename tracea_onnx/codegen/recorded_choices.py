"""Kernel choices of sessions, from tuning records. SQLite is imported only where records exist."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracea_onnx.support import files

if TYPE_CHECKING:
    from tracea_onnx.codegen.kernel_choice import Choices
    from tracea_onnx.codegen.tuning_records import Device


#: Of a compile request's properties: what only tuning records are kept for.
OF_DEVICE = frozenset({"isa", "threads"})


def choices(device: Device) -> Choices:
    """As the tuning record of this kind of device says; by price without one."""
    if not stamp():
        from tracea_onnx.codegen.kernel_choice import BY_PRICE

        return BY_PRICE
    from tracea_onnx.codegen import tuning_records

    return tuning_records.choices(device)


def stamp() -> str:
    """Another one whenever the records may be others; "" where there are none."""
    base = files.user_folder("data")
    if base is None:
        return ""
    found = []
    try:
        with os.scandir(base / "tuning") as entries:
            for e in entries:
                if e.name.endswith((".db", ".db-wal", ".json")) and (s := e.stat()).st_size:
                    found.append((e.name, s.st_size, s.st_mtime_ns, s.st_ino))
    except OSError:
        return ""
    return repr(sorted(found)) if found else ""
