"""NVIDIA's driver with some calls that fail: a library that hands every call on, but for those that
it was told to refuse.

A process finds it as libcuda.so.1 where LD_LIBRARY_PATH begins with its folder; `fail` then says
what fails. x86-64 on Linux.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

_REAL = "SHIM_REAL"
_FIND = (
    "import ctypes; ctypes.CDLL('libcuda.so.1'); print(next(line.split()[-1] for line in "
    "open('/proc/self/maps') if 'libcuda.so' in line))"
)


def _source(symbols: list[str]) -> str:
    stubs = "\n".join(
        f""".globl {s}
.type {s}, @function
{s}: cmpl $0, shim_left+{4 * k}(%rip)
jne 1f
jmp *shim_real+{8 * k}(%rip)
1: movl ${k}, %edi
jmp shim_failed"""
        for k, s in enumerate(symbols)
    )
    names = ", ".join(f'"{s}"' for s in symbols)
    return f"""#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#define HIDDEN __attribute__((visibility("hidden"), used))
extern "C" {{
HIDDEN void* shim_real[{len(symbols)}];
HIDDEN int shim_left[{len(symbols)}], shim_result[{len(symbols)}];
HIDDEN int shim_failed(int k) {{ shim_left[k]--; return shim_result[k]; }}
static const char* const kNames[] = {{{names}}};
__attribute__((constructor)) static void load() {{
  void* real = dlopen(getenv("{_REAL}"), RTLD_NOW | RTLD_LOCAL);
  for (int k = 0; real && k < {len(symbols)}; k++) shim_real[k] = dlsym(real, kNames[k]);
}}
void shim_fail(const char* name, int result, int times) {{
  for (int k = 0; k < {len(symbols)}; k++)
    if (!strcmp(kNames[k], name)) shim_result[k] = result, shim_left[k] = times;
}}
}}
asm(R"(
.text
{stubs}
)");
"""


def _exported(library: str) -> list[str]:
    """Names of the functions that a 64-bit ELF library exports: all of them, since other libraries
    call some, too.
    """
    data = Path(library).read_bytes()
    at, size, count = (
        int.from_bytes(data[a:b], "little") for a, b in ((0x28, 0x30), (0x3A, 0x3C), (0x3C, 0x3E))
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + size * k) for k in range(count)]
    (table,) = (s for s in sections if s[1] == 11)  # SHT_DYNSYM
    start, strings = table[4], sections[table[6]][4]
    found = set()
    for k in range(table[5] // 24):
        name, info, _, section = struct.unpack_from("<IBBH", data, start + 24 * k)
        if section and info & 15 in (2, 10):  # a function that is defined
            found.add(data[strings + name : data.index(b"\0", strings + name)].decode())
    return sorted(n for n in found if n.isidentifier() and not n.startswith("_"))


def compiler() -> list[str]:
    return next(
        ([c] for c in ("c++", "g++", "clang++") if shutil.which(c)),
        [sys.executable, "-m", "ziglang", "c++"],
    )


def build(folder: Path) -> dict[str, str]:
    """Compiles the library into `folder`; returns the environment in which a process has it for the
    driver. Raises OSError or CalledProcessError where that cannot be done.
    """
    real = subprocess.run(
        [sys.executable, "-c", _FIND], check=True, capture_output=True, text=True
    ).stdout.strip()
    source, library = folder / "shim.cc", folder / "libcuda.so.1"
    source.write_text(_source(_exported(real)))
    subprocess.run(
        [
            *compiler(),
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(source),
            "-ldl",
        ],
        check=True,
    )
    return {
        _REAL: real,
        "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])
        ),
    }


def fail(call: str, result: int, times: int = 1) -> None:
    """The next calls of a function of the driver give `result`.

    Only in a process that runs in `build`'s environment.
    """
    ctypes.CDLL("libcuda.so.1").shim_fail(call.encode(), result, times)
