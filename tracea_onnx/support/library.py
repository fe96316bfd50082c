"""Where the native library of this installation lies."""

from __future__ import annotations

import sys
from pathlib import Path

from tracea_onnx.errors import TraceaError

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def library_path() -> Path:
    """Path of the native library. Raises TraceaError where there is none."""
    path = PACKAGE / f"libtracea_onnx{SUFFIX}"
    if path.is_file():
        return path
    installed = _installed_library()
    if installed is None:
        raise TraceaError(
            "the native library is missing",
            "reinstall tracea-onnx, or in a checkout run: python -m tracea_onnx.ep.build",
        )
    return installed


def _installed_library() -> Path | None:
    """Path of the library of an editable installation: listed in the distribution's metadata."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        listed = files("tracea-onnx") or []
    except PackageNotFoundError:
        return None
    found = [Path(str(f.locate())) for f in listed if f.name == f"libtracea_onnx{SUFFIX}"]
    return found[0] if found and found[0].is_file() else None
