"""Streams of ONNX Runtime (OrtSyncStream).

Python makes them, and copies on them; it cannot give one to a run, which goes through the C API
here.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as C

from tests.support.cuda import shim as cuda_shim
from tracea_onnx import provider

#: A provider library without a provider: ONNX Runtime's Python module exports nothing, but gives
#: its C API to the libraries that it loads.
_SOURCE = """
#include <cstddef>
#include <cstdint>
struct Base { const void* (*get)(uint32_t); const char* (*version)(); };
static const Base* base = nullptr;
extern "C" void* CreateEpFactories(const char*, const Base* given, const void*, void**, size_t,
    size_t* n) { base = given; *n = 0; return nullptr; }
extern "C" void* ReleaseEpFactory(void*) { return nullptr; }
extern "C" const void* ort_api(uint32_t version) { return base->get(version); }
"""
# slots of OrtApi, which only grows
_RUN_OPTIONS_SET_SYNC_STREAM, _SYNC_STREAM_GET_HANDLE = 413, 384


@functools.cache
def _table() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "ort_api.cc", Path(folder) / "libort_api.so"
        source.write_text(_SOURCE)
        subprocess.run(
            [*cuda_shim.compiler(), "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        ort.register_execution_provider_library("ort_api", str(library))
        loaded = ctypes.CDLL(str(library))
    loaded.ort_api.restype = ctypes.POINTER(ctypes.c_void_p)
    return loaded.ort_api(24)


def function(slot: int, *signature: Any) -> Any:
    """Of OrtApi. signature: the result's type, then those of the arguments."""
    return ctypes.CFUNCTYPE(*signature)(_table()[slot])


def native(value: Any) -> int:
    """Address of the C++ object of one of pybind11's: the first word after Python's header."""
    return int(
        ctypes.c_void_p.from_address(id(value) + 2 * ctypes.sizeof(ctypes.c_void_p)).value or 0
    )


def _ep_device(device: int) -> Any:
    provider.register()
    return next(
        d
        for d in ort.get_ep_devices()
        if d.ep_name == provider.PROVIDER_NAME and d.ep_metadata["cuda_device_id"] == str(device)
    )


def make(device: int = 0) -> Any:
    return _ep_device(device).create_sync_stream()


def pinned(shape: list[int]) -> Any:
    """A tensor in host memory of the provider's."""
    where = _ep_device(0).memory_info(ort.OrtDeviceMemoryType.HOST_ACCESSIBLE)
    return ort.OrtValue(
        C.OrtValue.ortvalue_from_shape_and_type_for_memory_info(shape, np.float32, where)
    )


def options(stream: Any = None, *, quiet: bool = True) -> Any:
    """Of a run that is given the stream; quiet: it does not wait for its end."""
    made = ort.RunOptions()
    if quiet:
        made.add_run_config_entry("disable_synchronize_execution_providers", "1")
    if stream is not None:
        if (
            function(_SYNC_STREAM_GET_HANDLE, ctypes.c_void_p, ctypes.c_void_p)(native(stream))
            != stream.get_handle()
        ):
            raise RuntimeError("ONNX Runtime's Python module keeps its streams in another way")
        function(_RUN_OPTIONS_SET_SYNC_STREAM, None, ctypes.c_void_p, ctypes.c_void_p)(
            native(made), native(stream)
        )
    return made
