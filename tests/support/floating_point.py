"""What kernels leave in the flags of floating-point arithmetic, as the C library tells them."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from tracea_onnx.runtime import native_library

#: <fenv.h> of x86-64.
_UNDERFLOW = 0x10

needs_flags = pytest.mark.skipif(
    platform.machine() != "x86_64" or not ctypes.util.find_library("m"), reason="x86-64 and libm"
)


@contextmanager
def no_underflow() -> Iterator[None]:
    """Fails where a kernel on this thread rounded to something smaller than the normal numbers."""
    library, found = ctypes.CDLL(ctypes.util.find_library("m")), native_library._library_for
    seen = []

    def watched(family: str, isa: str | None) -> Any:
        native, chosen = found(family, isa)

        def run(*arguments: Any) -> Any:
            library.feclearexcept(_UNDERFLOW)
            code = native.tracea_bench_kernel(*arguments)
            seen.append(library.fetestexcept(_UNDERFLOW))  # NumPy's functions clear it
            return code

        return mock.Mock(tracea_bench_kernel=run), chosen

    with mock.patch.object(native_library, "_library_for", watched):
        yield
    assert seen, "no kernel ran"
    assert not any(seen), "a kernel made denormal numbers"
