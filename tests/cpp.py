"""C++ for tests: the system's compiler or, without one, the one that the build brings."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def compiler() -> list[str]:
    """The command; skips the test where there is none."""
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    pytest.skip("no C++ compiler and no ziglang")


def library(folder: Path, name: str, text: str) -> ctypes.CDLL:
    """Compiles the text of a kernel for the host, and loads it.

    Kernels overflow and shift as the device defines it, so that no sanitizer may stop them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, path = folder / f"{name}.cc", folder / f"{name}.so"
    # Shared memory is one array for all threads, of a fixed size.
    source.write_text(
        re.sub(
            r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];",
            r"alignas(128) static \1 \2[1 << 16];",
            text,
        )
    )
    flags = ["-std=c++17", "-O0", "-w", "-fno-sanitize=all", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*compiler(), *flags, "-o", str(path), str(source)], check=True)
    return ctypes.CDLL(str(path))
