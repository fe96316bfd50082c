"""Builds the stand-in for NVIDIA's driver and runs cases with it, in a process of their own (a
process loads one driver for good).

A module of cases has functions `case_<name>()`; `python -m tests.fake.driver MODULE` runs them and
prints one JSON object: name -> error or null.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cpp import compiler

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = "skipped: "
SOURCE = Path(__file__).resolve().parent / "libcuda.cc"


def build(folder: Path) -> Path:
    """Compiles the stand-in into `folder`; skips the test where there is no compiler.

    Returns the folder to search.
    """
    if sys.platform != "linux":
        pytest.skip("the stand-in of the CUDA driver is a library of Linux")
    flags = [
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
    ]
    done = subprocess.run(
        [*compiler(), *flags, "-o", str(folder / "libcuda.so.1"), str(SOURCE), "-pthread"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (folder / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")
    return folder


def run(
    folder: Path,
    code: list[str],
    *,
    seconds: float | None = 600,
    preload: str | None = None,
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with the stand-in as its driver; preload: a library before all others; settings:
    its environment, without the prefix FAKE_CUDA_.
    """
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": paths,
        "PYTHONPATH": python_path,
        **{f"FAKE_CUDA_{k.upper()}": v for k, v in settings.items()},
    }
    if preload is not None:
        environment["LD_PRELOAD"] = preload
    return subprocess.run(
        [sys.executable, *code],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def outcomes(folder: Path, module: str, **settings: str) -> dict[str, str | None]:
    """Runs all cases of a module: the error of each, or None."""
    done = run(folder, ["-m", "tests.fake.driver", module], seconds=600, **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return result


def check(outcome: str | None) -> None:
    """Passes, skips or fails as the case did."""
    if outcome is not None and outcome.startswith(_SKIPPED):
        pytest.skip(outcome[len(_SKIPPED) :])
    assert outcome is None, outcome


def cases(path: Path) -> list[str]:
    """Names of the cases a module has, read from its text: importing it here would load the
    provider without the stand-in.
    """
    return [
        line[len("def case_") : line.index("(")]
        for line in path.read_text().splitlines()
        if line.startswith("def case_")
    ]


class Log:
    """What the driver was asked to do."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._lib.fake_cuda_log.restype = ctypes.c_char_p
        self._lib.fake_cuda_used.restype = ctypes.c_size_t

    def take(self) -> list[str]:
        """Lines since the last call."""
        lines = self._lib.fake_cuda_log().decode().splitlines()
        self._lib.fake_cuda_clear()
        return [str(line) for line in lines]

    def fail(self, call: str, result: int, *, after: int = 0, times: int = 1) -> None:
        """Lets calls of a function of the driver fail, after some that work."""
        self._lib.fake_cuda_fail(call.encode(), result, after, times)

    def lose(self, result: int) -> None:
        """Every call in a context gives `result` from now on, until it is 0 again."""
        self._lib.fake_cuda_lose(result)

    @contextmanager
    def stream(self) -> Iterator[int]:
        """A stream of somebody else, which the legacy default stream does not wait for."""
        made = ctypes.c_void_p()
        with self._context():
            assert self._lib.cuStreamCreate(ctypes.byref(made), 1) == 0
        yield made.value or 0
        with self._context():
            assert self._lib.cuStreamDestroy_v2(made) == 0

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        with self._context():
            assert (
                self._lib.cuMemcpyAsync(
                    ctypes.c_uint64(to),
                    ctypes.c_uint64(source),
                    ctypes.c_size_t(size),
                    ctypes.c_void_p(stream),
                )
                == 0
            )

    def synchronise(self, stream: int) -> None:
        with self._context():
            assert self._lib.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0

    @contextmanager
    def _context(self) -> Iterator[None]:
        context = ctypes.c_void_p()
        self._lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self._lib.cuCtxPushCurrent_v2(context)
        yield
        self._lib.cuCtxPopCurrent_v2(ctypes.byref(context))

    def used(self) -> int:
        """Bytes of device memory that are allocated."""
        return int(self._lib.fake_cuda_used())


def _main(module: str) -> None:
    found = importlib.import_module(module)
    result: dict[str, str | None] = {}
    for name, case in vars(found).items():
        if not name.startswith("case_"):
            continue
        try:
            case()
            result[name[len("case_") :]] = None
        except pytest.skip.Exception as e:
            result[name[len("case_") :]] = f"{_SKIPPED}{e}"
        except BaseException:
            result[name[len("case_") :]] = traceback.format_exc()
    print(json.dumps(result))


if __name__ == "__main__":
    _main(sys.argv[1])
