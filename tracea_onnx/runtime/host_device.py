"""What the host's processor is called, for tuning records."""

from __future__ import annotations

from tracea_onnx.support import machine
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class HostDevice:
    """name: of the processor. kind: everything that tells one kind of machine from another, in
    words: processor, instruction set, caches, threads that a session may use.
    """

    name: str
    kind: str
    threads: int
    isa: str
    backend: str = "cpu"


def device(isa: str, threads: int) -> HostDevice:
    """The host, with sessions of so many threads."""
    core = machine.first_core()
    numbers = "/".join(core[key] for key in ("cpu family", "model", "stepping") if key in core)
    name = f"{machine.name()} {numbers}".strip()
    caches = ", ".join(f"{m.size >> 10}K" for m in machine.caches())
    return HostDevice(name, f"{name}, {isa}, caches of {caches}, {threads} threads", threads, isa)
