"""What the host's processor is called, for tuning records."""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.support import machine
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class HostDevice:
    """name: of the processor. kind: everything that tells one kind of machine from another, in
    words: processor, instruction set, caches, threads that a session may use. sessions: how many
    run at once while something is measured.
    """

    name: str
    kind: str
    threads: int
    isa: str
    backend: str = "cpu"
    sessions: int = 1

    def shared(self, sessions: int) -> HostDevice:
        """The same with so many sessions at once: what is measured there holds for that."""
        if sessions == 1:
            return self
        kind = f"{self.kind}, {sessions} sessions at once"
        return replace(self, kind=kind, sessions=sessions)


def device(isa: str, threads: int) -> HostDevice:
    """The host, with sessions of so many threads."""
    core = machine.first_core()
    numbers = "/".join(core[key] for key in ("cpu family", "model", "stepping") if key in core)
    name = f"{machine.name()} {numbers}".strip()
    caches = ", ".join(f"{m.size >> 10}K" for m in machine.caches())
    return HostDevice(name, f"{name}, {isa}, caches of {caches}, {threads} threads", threads, isa)
