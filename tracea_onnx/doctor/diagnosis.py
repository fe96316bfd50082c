"""What works on this machine, line by line, and how to mend what does not."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from tracea_onnx.codegen import backend as backends
from tracea_onnx.support.artifact_cache import Cache
from tracea_onnx.support.check import Check, attempt


def run() -> list[Check]:
    """Every check, in order; none raises."""
    return list(_checks())


def _checks() -> Iterator[Check]:
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
        alternatives=("onnxruntime-gpu",),
    )
    yield attempt("provider library", _library, "reinstall tracea-onnx")
    yield attempt(
        "provider registers",
        _registers,
        "python -m pip install -U onnxruntime, then reinstall tracea-onnx",
    )
    known = [backends.get(name) for name in backends.names()]
    yield from (check for b in known if b.host for check in b.checks())
    yield _cache()
    yield from (check for b in known if not b.host for check in b.checks())


def _package(
    name: str, least: tuple[int, ...], fix: str, alternatives: tuple[str, ...] = ()
) -> Check:
    for candidate in (name, *alternatives):
        try:
            text = version(candidate)
        except PackageNotFoundError:
            continue
        numbers = tuple(int(p) for p in text.split("+")[0].split(".")[:2] if p.isdigit())
        need = ".".join(map(str, least))
        return Check(
            name,
            numbers >= least,
            text if numbers >= least else f"{text} is older than {need}",
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


def _cache() -> Check:
    cache = Cache()
    fault = cache.fault()
    fix = (
        f"remove {cache.folder}, or: chmod 700 {cache.folder}"
        if cache.folder
        else "set HOME or XDG_CACHE_HOME"
    )
    return Check("cache", not fault, fault or str(cache.folder), fix, required=False)
