"""The native library seen from Python: run or time one kernel on numpy arrays. Used by the kernel
tests and the tuner, never by a session.

seconds = run_kernel("gemm", {"x": x, "w": packed, "y": y}, {"M": 3, "N": 5, "K": 7, "ldx": 7,
"ldy": 5})
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir.abi import OPCODES
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.support.library import PACKAGE, SUFFIX, library_path

Array = npt.NDArray[Any]
#: An array, or (array, offset in elements of its first element), or None for an absent optional
#: operand.
Operand = Array | tuple[Array, int] | None


class _Instr(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("op", "dst", "a", "b", "c")] + [
        ("imm", ctypes.c_float)
    ]


class _Program(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.POINTER(_Instr)),
        *((n, ctypes.c_int32) for n in ("n_code", "n_in", "n_regs", "out", "type")),
    ]


@cache
def _load(path: Path, stamp: int) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))
    lib.tracea_best_isa.restype = ctypes.c_char_p
    lib.tracea_kernel_tasks.restype = ctypes.c_int64
    return lib


def _loaded(path: Path) -> ctypes.CDLL:
    return _load(path, path.stat().st_mtime_ns)


def best_isa() -> str:
    """Instruction set the provider would choose on this machine."""
    return str(_loaded(library_path()).tracea_best_isa().decode())


def isas(*, int8: bool = False, bf16: bool = False) -> tuple[str, ...]:
    """Instruction sets this library has kernels for and this machine can run, best first; of 8 bits
    and of bfloat16 there are kernels for others.
    """
    lib = _loaded(library_path())
    first: tuple[str, ...] = ("avx512",)
    if int8:
        first = ("avx512amx", "avx512vnni", "avx2vnni")
    elif bf16:
        first = ("avx512amx", "avx512bf16")
    return tuple(i for i in (*first, "avx2", "base") if lib.tracea_has_isa(i.encode()))


def _library_for(family: str, isa: str | None) -> tuple[ctypes.CDLL, str]:
    """The full library, or a newer one-template library of a kernel's author (see
    `ep/build.py`).
    """
    full = PACKAGE / f"libtracea_onnx{SUFFIX}"
    partial = sorted(PACKAGE.glob(f"libtracea_onnx.*{SUFFIX}"), key=lambda p: -p.stat().st_mtime_ns)
    newest = full.stat().st_mtime_ns if full.is_file() else 0
    for path in [
        *(p for p in partial if p.stat().st_mtime_ns > newest),
        library_path() if not partial else full,
    ]:
        if path.is_file():
            lib = _loaded(path)
            chosen = isa or lib.tracea_best_isa().decode()
            if lib.tracea_has_kernel(chosen.encode(), family.encode()):
                return lib, chosen
    raise UsageError(
        f"no kernel '{family}' for instruction set {isa or 'of this machine'}",
        "see python -m tracea_onnx.ep.build --help",
    )


def _program(program: Mapping[str, Any] | None) -> tuple[_Program | None, Any]:
    if program is None:
        return None, None
    rows = [
        [OPCODES.index(op) if isinstance(op, str) else int(op), *rest]
        for op, *rest in program["code"]
    ]
    code = (_Instr * max(len(rows), 1))(
        *(_Instr(*(int(v) for v in r[:5]), float(r[5])) for r in rows)
    )
    return _Program(
        code,
        len(rows),
        int(program["n_in"]),
        int(program["regs"]),
        int(program["out"]),
        int(program.get("type", 0)),
    ), code


def _pointer(name: str, value: Operand, optional: bool) -> int | None:
    if value is None:
        if not optional:
            raise UsageError(f"operand '{name}' is required")
        return None
    array, offset = value if isinstance(value, tuple) else (value, 0)
    if not array.flags.c_contiguous:
        raise UsageError(f"operand '{name}' is not contiguous")
    return int(array.ctypes.data) + offset * array.itemsize


def _launch(
    name: str,
    operands: Mapping[str, Operand],
    ints: Mapping[str, int],
    floats: Mapping[str, float],
    program: Mapping[str, Any] | None,
    variant: int = 0,
) -> tuple[list[Any], Any]:
    family = FAMILIES.get(name)
    if family is None:
        raise UsageError(f"no kernel family '{name}'", f"there are: {', '.join(FAMILIES)}")
    names = [o.rstrip("?") for o in family.operands]
    for given, known, what in (
        (operands, names, "operand"),
        (ints, family.ints, "integer"),
        (floats, family.floats, "float"),
    ):
        unknown = [g for g in given if g not in known]
        if unknown:
            raise UsageError(
                f"{name} has no {what} '{unknown[0]}'", f"there are: {', '.join(known)}"
            )
    if program is not None and not family.program:
        raise UsageError(f"{name} takes no program")
    buf = (ctypes.c_void_p * max(len(names), 1))(
        *(
            _pointer(o.rstrip("?"), operands.get(o.rstrip("?")), o.endswith("?"))
            for o in family.operands
        )
    )
    i = (ctypes.c_int64 * (len(family.ints) + 1))(
        *(int(ints.get(n, 0)) for n in family.ints), variant
    )
    f = (ctypes.c_float * max(len(family.floats), 1))(
        *(float(floats.get(n, 0.0)) for n in family.floats)
    )
    p, code = _program(program)
    return [buf, i, f, ctypes.byref(p) if p is not None else None], (buf, i, f, p, code)


def run_kernel(
    name: str,
    operands: Mapping[str, Operand],
    ints: Mapping[str, int] | None = None,
    floats: Mapping[str, float] | None = None,
    program: Mapping[str, Any] | None = None,
    isa: str | None = None,
    threads: int = 1,
    repeat: int = 1,
    variant: int = 0,
) -> float:
    """Run kernel family `name` `repeat` times on the given arrays, in place.

    Parameters are given by the names in `kernel_families.FAMILIES`; a missing integer or float is
    0, a missing optional operand absent. `program` is a Plan's program: {"type", "n_in", "regs",
    "out", "code": [[opcode or its name, dst, a, b, c, imm], ...]}. variant: of the kernel. Returns
    the median seconds of one run: thread CPU time when `threads` is 1, wall-clock time otherwise.
    Raises UsageError for unknown or missing names, TraceaError when the kernel reports bad data
    (an index out of range).
    """
    arguments, keep = _launch(name, operands, ints or {}, floats or {}, program, variant)
    lib, chosen = _library_for(name, isa)
    seconds = np.zeros(max(repeat, 1))
    message = ctypes.create_string_buffer(256)
    rc = lib.tracea_bench_kernel(
        chosen.encode(), name.encode(), *arguments, ctypes.c_int(threads), ctypes.c_int(repeat),
        seconds.ctypes.data_as(ctypes.c_void_p), message, ctypes.c_size_t(len(message)),
    )  # fmt: skip
    del keep
    if rc == 2:
        raise TraceaError(f"kernel {name} reported bad data")
    if rc:
        raise UsageError(message.value.decode())
    return float(np.median(seconds))


def kernel_tasks(
    name: str,
    operands: Mapping[str, Operand],
    ints: Mapping[str, int] | None = None,
    floats: Mapping[str, float] | None = None,
    program: Mapping[str, Any] | None = None,
    isa: str | None = None,
    threads: int = 1,
    variant: int = 0,
) -> int:
    """Into how many independent tasks the kernel splits this launch."""
    arguments, keep = _launch(name, operands, ints or {}, floats or {}, program, variant)
    lib, chosen = _library_for(name, isa)
    tasks = int(
        lib.tracea_kernel_tasks(chosen.encode(), name.encode(), *arguments, ctypes.c_int(threads))
    )
    del keep
    return tasks


def aligned(
    shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32, slack: int = 64
) -> Array:
    """A zeroed array whose data starts on a 64-byte line with `slack` readable elements behind it,
    like a Plan's buffers.
    """
    dims = (shape,) if isinstance(shape, int) else shape
    item, count = np.dtype(dtype).itemsize, int(np.prod(dims, dtype=np.int64))
    raw = np.zeros(count * item + slack * item + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * item].view(dtype).reshape(dims)
