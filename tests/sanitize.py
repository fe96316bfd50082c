"""The native library under sanitizers: builds it with them, and runs the session tests and a slice
of the fuzzer on it.

    python -m tests.sanitize [--sanitizers address,undefined] [--seconds 120] [--tests FILE ...]
    python -m tests.sanitize --sanitizers thread -- python -m pytest -n0 -q tests/session/test_x.py

Needs g++ (or --cxx) with the sanitizers' runtimes; without them it says so and ends with status 0.
The runtime is preloaded into Python, and works on a copy of the working tree in `build/`, so that
the package keeps its own library. The first finding ends the process it is in, and so does ONNX
Runtime where it asks for more memory than there is, which is none. Exit status 1 when there was a
finding.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tracea_onnx.ep.build import ROOT, build

#: The runtime of each sanitizer; the C++ runtime must be there before it looks for what throws.
_RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so", "undefined": "libubsan.so"}
#: Tests that run sessions, threads, packs and odd Plans on the CPU, in a few minutes.
TESTS = (
    "tests/session/provider/test_provider.py",
    "tests/session/provider/test_provider_refusals.py",
    "tests/session/provider/test_sizes_of_a_run.py",
    "tests/session/operators/test_operator_draws.py",
    "tests/session/test_bodies.py",
    "tests/session/provider/test_compiler.py",
    "tests/host/lowering/test_plan_native.py",
)
FUZZED = ("session", "sizes", "pack", "plan", "compiled", "cache")
#: By several threads of one process: ONNX Runtime does not die of these.
TOGETHER = ("pack", "plan", "compiled")
#: ONNX Runtime and Python are not instrumented: what they synchronise by atomics cannot be seen.
_THREAD_SUPPRESSIONS = """
race:libonnxruntime
race:onnxruntime_pybind11_state
race:libpython
race:_PyEval
race:libstdc++
mutex:onnxruntime_pybind11_state
deadlock:onnxruntime_pybind11_state
signal:*
"""


def runtimes(sanitizers: str, cxx: str) -> list[str] | None:
    """Libraries to preload; None where the compiler or one of them is missing."""
    if shutil.which(cxx) is None:
        return None
    names = [
        _RUNTIMES[s] for s in sanitizers.split(",") if s != "undefined" or sanitizers == "undefined"
    ]
    found = []
    for name in [*names, "libstdc++.so.6"]:
        path = subprocess.run(
            [cxx, f"-print-file-name={name}"], capture_output=True, text=True
        ).stdout.strip()
        if not Path(path).is_absolute():
            return None
        found.append(str(Path(path).resolve()))
    return found


def tree(library: Path, folder: Path) -> None:
    """A copy of the working tree in `folder`, with this library as the package's."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in sorted(wanted):
        source, target = ROOT / name, folder / name
        if not target.is_file() or target.stat().st_mtime_ns != source.stat().st_mtime_ns:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for path in folder.rglob("*.py"):
        if str(path.relative_to(folder)) not in wanted:
            path.unlink()
    fresh = folder / "tracea_onnx" / f".{library.name}.{os.getpid()}"
    shutil.copy2(library, fresh)
    # another process may have the old one mapped
    fresh.replace(folder / "tracea_onnx" / library.name)


def environment(sanitizers: str, preload: list[str], log: Path) -> dict[str, str]:
    rules = log / "thread.supp"
    rules.write_text(_THREAD_SUPPRESSIONS)
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1:"
        f"log_path={log}/address",
        "UBSAN_OPTIONS": f"print_stacktrace=1:abort_on_error=1:log_path={log}/undefined",
        "TSAN_OPTIONS": "halt_on_error=0:ignore_noninstrumented_modules=1:report_signal_unsafe=0:"
        f"die_after_fork=0:suppressions={rules}:log_path={log}/thread",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONMALLOC": "malloc",
    }


def asks_too_much(report: str) -> bool:
    """Whether it says that ONNX Runtime asked for more memory than there is: without a sanitizer
    it gets an exception, and answers with a line.
    """
    return "is out of memory trying to allocate" in report and "libtracea_onnx" not in report


def findings(log: Path) -> list[str]:
    """The summary of each report, or its first line where it ends before that."""
    out = []
    for path in sorted(log.glob("*.[0-9]*")):
        text = path.read_text("utf-8", "replace")
        if asks_too_much(text):
            continue
        for line in (
            re.findall(r"^SUMMARY: .*$|^.*runtime error: .*$", text, re.MULTILINE)
            or text.splitlines()[:1]
        ):
            out.append(f"{line}   ({path})")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sanitizers", default="address,undefined")
    parser.add_argument("--cxx", default="g++")
    parser.add_argument("--isa", default="avx2,base")
    parser.add_argument("--seconds", type=float, default=120, help="of fuzzing after the tests")
    parser.add_argument("--seed", default="0", help="of the fuzzer")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument("--jobs", type=int, default=2, help="of the build")
    parser.add_argument("command", nargs="*", help="this instead, in the copied tree")
    args = parser.parse_args()
    preload = runtimes(args.sanitizers, args.cxx)
    if preload is None:
        print(
            f"sanitize: skipped: {args.cxx} with the runtimes of {args.sanitizers} is not installed"
        )
        return 0
    library = build(
        isa=args.isa, cxx=args.cxx, jobs=args.jobs, werror=False, sanitize=args.sanitizers
    )
    folder = library.parent / "tree"
    tree(library, folder)
    log = Path(tempfile.mkdtemp(prefix="sanitize"))
    commands = [args.command] if args.command else []
    if not args.command:
        commands.append(
            [
                sys.executable,
                "-m",
                "pytest",
                "-n0",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                *args.tests,
            ]
        )
        if args.seconds:
            fuzz = [
                sys.executable,
                "-m",
                "tests.fuzz",
                "--unlimited",
                "--seconds",
                str(args.seconds),
                "--seed",
                args.seed,
                "--keep",
                str(log / "fuzz"),
            ]
            together = args.sanitizers == "thread"
            commands.append([*fuzz, "--kinds", *(TOGETHER if together else FUZZED)])
            commands[-1] += ["--threads", "4"] if together else []
    codes = [
        subprocess.run(c, cwd=folder, env=environment(args.sanitizers, preload, log)).returncode
        for c in commands
    ]
    found = findings(log)
    for line in dict.fromkeys(found):
        print(line)
    bad = bool(found) or any(codes)
    print(
        f"sanitize: {args.sanitizers}: {len(found)} findings, exit codes {codes}"
        + (f", reports in {log}" if bad else "")
    )
    if not bad:
        shutil.rmtree(log)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
