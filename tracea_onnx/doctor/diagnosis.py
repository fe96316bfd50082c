"""What works on this machine, line by line, and how to mend what does not."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tracea_onnx.bench import rates
from tracea_onnx.codegen import backend as backends
from tracea_onnx.doctor import conflicts, smallest
from tracea_onnx.doctor.smallest import Tried
from tracea_onnx.support import machine
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.support.check import Check, attempt


@dataclass
class Diagnosis:
    """rates: GFLOP/s and GB/s, by what was measured. kernels: of each backend that has a device
    here, what each family's smallest model gave.
    """

    checks: list[Check] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, list[Tried]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the main job works, and the backend that was asked for."""
        return all(c.ok for c in self.checks if c.required)

    def to_json(self) -> dict[str, Any]:
        """JSON of `doctor --json`."""
        return {"ok": self.ok, **asdict(self)}


def run(
    backend: str | None = None,
    *,
    measure: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Every check, in order; none raises. backend: one that must work. measure: try its kernels,
    and what the machine does in a second.
    """
    found = Diagnosis()
    found.checks += _installation()
    works = found.ok
    found.checks += [_processor(), *conflicts.checks()]
    if measure:
        on_progress("memory")
        found.checks.append(_memory(found))
    known = [backends.get(name) for name in backends.names()]
    for b in sorted(known, key=lambda b: not b.host):
        found.checks += b.checks()
        probe = b.probe()
        if b.name == backend and not probe.devices:
            why = probe.why or "this machine has no device of its"
            others = ", ".join(name for name in backends.names() if name != b.name)
            fix = f"use a machine that has one, or another backend: {others}"
            found.checks.append(Check(f"{b.name} devices", False, why, fix))
        elif measure and works and probe.devices and (b.host or backend in (None, b.name)):
            required = b.host or b.name == backend
            on_progress(f"{b.name} kernels")
            found.checks.append(replace(_kernels(b.name, found), required=required))
            if found.checks[-1].ok:
                on_progress(f"{b.name} products")
                found.checks.append(_gemm_rate(b, found))
    found.checks.append(_cache())
    return found


def _installation() -> Iterator[Check]:
    yield Check(
        "python",
        sys.version_info >= (3, 11),
        platform.python_version(),
        "install Python 3.11 or newer",
    )
    yield _package("onnx", (1, 17), "python -m pip install -U onnx")
    yield _package(
        "onnxruntime",
        (1, 24),
        'python -m pip install -U "tracea-onnx[cpu]"',
        alternatives=tuple(conflicts.runtimes()),
    )
    yield attempt("provider library", _library, "reinstall tracea-onnx")
    yield attempt(
        "provider registers",
        _registers,
        "python -m pip install -U onnxruntime, then reinstall tracea-onnx",
    )


def _package(
    name: str, least: tuple[int, ...], fix: str, alternatives: Sequence[str] = ()
) -> Check:
    for candidate in (name, *alternatives):
        try:
            text = version(candidate)
        except PackageNotFoundError:
            continue
        numbers = tuple(int(p) for p in text.split("+")[0].split(".")[:2] if p.isdigit())
        need = ".".join(map(str, least))
        said = text if candidate == name else f"{text} ({candidate})"
        return Check(
            name,
            numbers >= least,
            said if numbers >= least else f"{said} is older than {need}",
            fix,
        )
    return Check(name, False, "not installed", fix)


def _library() -> str:
    from tracea_onnx.provider import library_path

    path = library_path()
    ctypes.CDLL(path)
    return path


def _registers() -> str:
    from tracea_onnx.provider import PROVIDER_NAME, register

    register()
    return PROVIDER_NAME


def _processor() -> Check:
    levels = ", ".join(
        f"L{m.level} {_bytes(m.size)}" + (f" for {m.shared} cores" if m.shared > 1 else "")
        for m in machine.caches()
    )
    detail = f"{machine.processor()}, {machine.physical_cores()} physical"
    return Check(
        "processor", True, f"{detail}; data caches {levels or 'unknown'}", "nothing is wrong"
    )


def _bytes(n: int) -> str:
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"


def _memory(found: Diagnosis) -> Check:
    def probe() -> str:
        threads = machine.usable_cores()
        measured = rates.memory(threads)
        found.rates |= {f"{what} GB/s": rate for what, rate in measured.items()}
        said = ", ".join(f"{what} {rate:.0f} GB/s" for what, rate in measured.items())
        return f"copies by {threads} threads, read and written: {said}"

    return replace(attempt("memory", probe, "report this"), required=False)


def _gemm_rate(b: backends.Backend, found: Diagnosis) -> Check:
    """Of fp32 matrices."""

    def probe() -> str:
        said = []
        for n in sorted({1, machine.usable_cores()} if b.host else {1}):
            rate = rates.gemm(b.name, n)
            found.rates[f"{b.name} products by {n} GFLOP/s"] = rate
            by = f" by {n} thread{'s' if n > 1 else ''}" if b.host else ""
            said.append(f"{rate:.0f} GFLOP/s{by}")
        return f"of fp32 matrices: {', '.join(said)}"

    return replace(attempt(f"{b.name} products", probe, "report this"), required=False)


def _kernels(name: str, found: Diagnosis) -> Check:
    """The smallest model of each family, on the provider, against float64."""
    tried = found.kernels[name] = list(smallest.run(name))
    wrong = [t for t in tried if not t.ok]
    right = [t for t in tried if t.ok and not t.left]
    detail = f"{len(right)} of {len(right) + len(wrong)} families compute what they should"
    if wrong:
        detail += f"; {wrong[0].family}: {wrong[0].fault}"
    else:
        worst = max((t.difference for t in right), default=0.0)
        detail += f" (largest difference from float64 {worst:.0e} of the result)"
    return Check(
        f"{name} kernels", bool(right) and not wrong, detail,
        "reinstall tracea-onnx; if that does not help, report this with the output of "
        "tracea-onnx doctor --json",
    )  # fmt: skip


def _cache() -> Check:
    cache = Cache()
    fault = cache.fault()
    fix = (
        f"remove {cache.folder}, or: chmod 700 {cache.folder}"
        if cache.folder
        else "set HOME or XDG_CACHE_HOME"
    )
    held = f"{cache.folder}, {_bytes(cache.size())}"
    return Check("cache", not fault, fault or held, fix, required=False)
