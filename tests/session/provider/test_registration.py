"""The library registered twice, with two names or by two ONNX Runtimes of one process: no crash,
and a line that says what to do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from tracea_onnx import provider

_START = """
import ctypes, sys
import numpy as np
import onnxruntime as ort
from tests.session.provider.test_faults import normal, small
from tracea_onnx import provider

def check(session):
    provider.assert_provider_selected(session)
    return session.run(None, {"x": normal(5, 64)})[0]

def load():
    return provider.create_session(small(), {"claim": "all", "cache_dir": sys.argv[1]})
"""

_TWO_NAMES = """
first = load()
expected = check(first)
ort.register_execution_provider_library("again", provider.library_path())
second = load()
assert np.array_equal(check(second), expected)
ort.unregister_execution_provider_library("again")
assert np.array_equal(check(first), expected) and np.array_equal(check(second),
    expected) and np.array_equal(check(load()), expected)
try:
    ort.register_execution_provider_library("tracea_onnx", provider.library_path())
    print("said: nothing")
except Exception as e:
    print("said:", str(e).strip())
assert np.array_equal(check(load()), expected)
"""

# What ONNX Runtime itself calls when a library is registered, from a second one in the process: the
# C library beside Python's.
_TWO_RUNTIMES = """
first = load()
expected = check(first)

def ask(path):
    other, library = ctypes.CDLL(sys.argv[2]), ctypes.CDLL(path)
    other.OrtGetApiBase.restype = ctypes.c_void_p
    base = other.OrtGetApiBase()
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(ctypes.cast(base,
        ctypes.POINTER(ctypes.c_void_p))[0])
    table = ctypes.cast(get_api(24), ctypes.POINTER(ctypes.c_void_p))
    message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table[2])
    made, n = (ctypes.c_void_p * 1)(), ctypes.c_size_t(9)
    library.CreateEpFactories.restype = ctypes.c_void_p
    status = library.CreateEpFactories(b"x", ctypes.c_void_p(base), None, made, ctypes.c_size_t(1),
        ctypes.byref(n))
    return (message(status).decode() if status else ""), n.value

for _ in range(2):
    said, n = ask(provider.library_path())
    print("said:", said)
    assert n == 0
    assert np.array_equal(check(first), expected) and np.array_equal(check(load()), expected)
import shutil
copy = sys.argv[1] + "/copy.so"
shutil.copyfile(provider.library_path(), copy)
assert ask(copy) == ("", 1)
assert np.array_equal(check(first), expected) and np.array_equal(check(load()), expected)
"""


def _run(code: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _START + code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line[len("said: ") :] for line in done.stdout.splitlines() if line.startswith("said: ")]


def test_the_library_under_two_names(tmp_path: Path) -> None:
    (said,) = _run(_TWO_NAMES, str(tmp_path))
    assert "already registered" in said and "\n" not in said


def test_a_library_that_is_unloaded_leaves_nothing_to_do_at_exit() -> None:
    """Its destructors have run: their addresses may belong to another library then."""
    code = """
import _ctypes, ctypes, sys
for _ in range(3):
    library = ctypes.CDLL(sys.argv[1])
    library.tracea_version.restype = ctypes.c_char_p
    assert library.tracea_version()
    _ctypes.dlclose(library._handle)
"""
    path = provider.library_path()
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_library_in_two_runtimes(tmp_path: Path) -> None:
    found = sorted((Path(str(ort.__file__)).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("this onnxruntime wheel has no C library")
    for said in (lines := _run(_TWO_RUNTIMES, str(tmp_path), str(found[0]))):
        assert said == (
            "TraceaExecutionProvider: this library serves another ONNX Runtime of this process "
            "already; register a copy of the file, under another path, with this one"
        )
    assert len(lines) == 2
