"""Graph-level optimizer for ONNX models and an ONNX Runtime execution provider that runs what it
fused.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tracea_onnx._version import __version__

if TYPE_CHECKING:
    from tracea_onnx.pipeline.optimizer import OptimizeResult, optimize
    from tracea_onnx.provider import (
        assert_provider_selected,
        get_ep_name,
        get_ep_names,
        get_library_path,
        library_path,
        register,
    )

__all__ = [
    "OptimizeResult",
    "__version__",
    "assert_provider_selected",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "library_path",
    "optimize",
    "register",
]

if _level := os.environ.get("TRACEA_LOG"):
    from tracea_onnx.support import log

    log.to_stderr(_level)

# Imported on first use: the kernel generator imports this package while the wheel is built, where
# nothing else is installed.
_HOMES = {
    "optimize": "pipeline.optimizer", "OptimizeResult": "pipeline.optimizer",
    "register": "provider", "library_path": "provider", "assert_provider_selected": "provider",
    "get_library_path": "provider", "get_ep_names": "provider", "get_ep_name": "provider",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracea_onnx' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"tracea_onnx.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
