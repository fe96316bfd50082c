"""The WebGPU backend: family launches become WGSL, which wgpu-native compiles for Vulkan, Metal or
DirectX 12 when a session is made.

A module's `FAMILIES` has its emitters by family; a family without one stays with ONNX Runtime. An
emitter makes `Launch`es of a `Shader` (`shader.py`), or raises NoKernel with a sentence.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tracea_onnx.codegen.backend import Backend, Probe, Properties
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.codegen.target import Target
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import DType
from tracea_onnx.pricing.rates import Rates
from tracea_onnx.runtime.device_caps import Caps
from tracea_onnx.support.check import Check
from tracea_onnx.support.library import library_path

from .shader import Launch

Emit = Callable[[Request], list[Launch]]
#: Below the CPU's, so that no command chooses the backend by itself: it was run on no GPU yet.
_RATES = Rates(50.0, 10.0, 20.0, "a guess: never measured on a GPU")
_FILES = {"win32": "wgpu_native-release.dll", "darwin": "libwgpu_native-release.dylib"}


@cache
def families() -> dict[str, Emit]:
    """Emitters by family, of all modules of this package."""
    found: dict[str, Emit] = {}
    for m in pkgutil.iter_modules(__path__, f"{__name__}."):
        found |= getattr(import_module(m.name), "FAMILIES", {})
    return found


def wheel_library() -> str:
    """Path of wgpu-native in the installed wheel `wgpu`; "" without one. Imports nothing of it."""
    found = importlib.util.find_spec("wgpu")
    if found is None or found.origin is None:
        return ""
    file = _FILES.get(sys.platform, "libwgpu_native-release.so")
    path = Path(found.origin).parent / "resources" / file
    return str(path) if path.is_file() else ""


class WebGpu(Backend):
    """Adapters of Vulkan, Metal and DirectX 12. Kernels do not depend on which."""

    name = "webgpu"
    aliases = frozenset({"metal"})
    device_memory = False

    def probe(self) -> Probe:
        found, text = self._asked("tracea_webgpu_adapters")
        names = tuple(text.splitlines()) if found else ()
        return Probe(names, "" if names else text or "Vulkan, Metal and DirectX 12 have no adapter")

    def _asked(self, function: str, *given: bytes) -> tuple[bool, str]:
        """Whether a function of the native library succeeded, and its text."""
        text = ctypes.create_string_buffer(4096)
        try:
            library = ctypes.CDLL(str(library_path()))
            self.attach(library)
            failed = getattr(library, function)(*given, text, ctypes.c_size_t(len(text)))
        except (TraceaError, OSError, AttributeError) as e:  # none, or one of an older version
            return False, str(e)
        return not failed, text.value.decode()

    def fault_of(self, launch: Launch) -> str:
        """Error that wgpu-native reports for the WGSL of a launch, or why it cannot be asked; "" if
        it is valid.
        """
        valid, text = self._asked(
            "tracea_webgpu_check", launch.source.encode(), launch.signature.encode()
        )
        return "" if valid else text

    def caps(self, properties: Properties | None) -> Caps | None:
        return None

    def target(self, caps: Caps | None) -> Target:
        return Target(
            _RATES, frozenset(families()), frozenset({DType.F32}),
            border=False, pitch_multiple=4, launch_bound=False,
        )  # fmt: skip

    def emit(self, request: Request) -> Sequence[Launch]:
        emitter = families().get(request.family)
        if emitter is None:
            raise NoKernel(f"the WebGPU backend has no kernel for {request.family}")
        return emitter(request)

    def compile(self, sources: Sequence[str], properties: Properties) -> list[bytes]:
        """WGSL is its own machine code: the driver has the compiler."""
        return [source.encode() for source in sources]

    def attach(self, library: Any) -> None:
        if path := wheel_library():
            library.tracea_webgpu_library(path.encode())

    def checks(self) -> Iterable[Check]:
        probe = self.probe()
        yield Check(
            "WebGPU", bool(probe.devices), ", ".join(probe.devices) or probe.why,
            "python -m pip install wgpu==0.32.0, and a driver of Vulkan, Metal or DirectX 12",
            required=False,
        )  # fmt: skip


BACKEND = WebGpu()
