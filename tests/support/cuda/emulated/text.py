"""The text of a CUDA kernel as C++ for the host, and the runtime of its threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.cpp import compiler
from tests.support.cuda.emulated.inline_assembly import translated

_HERE = Path(__file__).resolve().parent
_FLAGS = (
    "-std=c++17",
    "-w",
    "-Wno-psabi",
    "-fno-sanitize=all",
    "-shared",
    "-fPIC",
    "-fno-strict-aliasing",
)
_DYNAMIC = re.compile(
    r"extern __shared__ (?:__align__\(((?:[^()]|\([^()]*\))*)\) )?(\w+) (\w+)\[\];"
)
_SHARED = re.compile(
    r"__shared__ (?:(?:__align__|alignas)\(((?:[^()]|\([^()]*\))*)\) )?"
    r"((?:(?:unsigned|signed|long)\s+)*\w+(?:<[^;]*?>)?)\s+(\w[^;]*);"
)
_KERNEL = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\(([^)]*)\)\s*\{"
)


@cache
def runtime() -> Path:
    """The library of what `threads.h` and `ptx.h` declare; processes of one test run share it."""
    sources = sorted(_HERE.glob("*.cc"))
    content = b"".join(p.read_bytes() for p in sorted(_HERE.glob("*.[ch]*")))
    folder = Path(os.environ.get("TRACEA_TEST_HOME", tempfile.gettempdir()))
    path = folder / f"emulated-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not path.exists():
        made = path.with_suffix(f".{os.getpid()}")
        command = [*compiler(), *_FLAGS, "-O2", "-o", str(made), *map(str, sources), "-lrt"]
        subprocess.run(command, check=True)
        made.replace(path)
    return path


@cache
def emulate() -> ctypes.CDLL:
    """The runtime, loaded so that kernels find its functions."""
    library = ctypes.CDLL(str(runtime()), ctypes.RTLD_GLOBAL)
    library.emulate.restype = ctypes.c_char_p
    return library


def _shared(m: re.Match[str]) -> str:
    """In place of the declaration of variables in shared memory."""
    alignment = m[1] or "1"
    parts = re.findall(r"\s*(\w+)((?:\[(?:[^\[\]]|\[[^\]]*\])*\])*)\s*(?:,|$)", m[3])
    return " ".join(
        f"typedef {m[2]} {name}_type{dims}; auto& {name} = *({name}_type*)emulated::placed([] {{ "
        f"static const unsigned place = emulated::place_shared(emulated_top, sizeof({name}_type), "
        f"({alignment}) > alignof({name}_type) ? ({alignment}) : alignof({name}_type)); "
        "return place; }());"
        for name, dims in parts
    )


def host_text(source: str) -> str:
    """The text as C++ in which `start_<kernel>(void** arguments)` calls each of its kernels.

    Raises NoEmulation for what the emulation lacks.
    """
    preprocessed = subprocess.run(
        [*compiler(), "-E", "-P", "-x", "c++", "-std=c++17", "-w", "-D__CUDA_ARCH__=900", "-"],
        input=source, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    text = _DYNAMIC.sub(
        lambda m: f"EMULATED_DYNAMIC_SHARED({m[2]}, {m[3]}, {m[1] or 1});", preprocessed
    )
    text = translated(_SHARED.sub(_shared, text))
    starts = (_start(m[1], m[2]) for m in _KERNEL.finditer(preprocessed))
    return "\n".join(('#include "cuda.h"', '#include "ptx.h"', text, *starts, ""))


def _start(symbol: str, parameters: str) -> str:
    types = [
        re.sub(r"__grid_constant__|__restrict__|\w+\s*$", "", p) for p in parameters.split(",")
    ]
    given = ", ".join(f"*({t}*)arguments[{k}]" for k, t in enumerate(types) if t.strip())
    return (
        f'extern "C" __attribute__((visibility("default"))) void start_{symbol}(void** arguments) '
        f"{{ {symbol}({given}); }}"
    )


@cache
def compiled(source: str, folder: Path) -> ctypes.CDLL:
    """The library of `host_text(source)`, made in `folder`, with -O0: most kernels run for less
    time than they take to compile.
    """
    # A name of its own: what has the name of a loaded library is taken for that library.
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.so"
    folder.mkdir(parents=True, exist_ok=True)
    text = path.with_suffix(".cc")
    text.write_text(host_text(source))
    # What two kernels name alike is not the same: symbols are hidden.
    command = [*compiler(), *_FLAGS, "-O0", "-fvisibility=hidden", f"-I{_HERE}"]
    command += ["-o", str(path), str(text)]
    subprocess.run([*command, str(runtime())], check=True)
    return ctypes.CDLL(str(path))
