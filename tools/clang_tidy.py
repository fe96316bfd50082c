"""clang-tidy over the native sources: the provider, and the CPU kernels as one unit per template.

    python -m tools.clang_tidy                       # all of them
    python -m tools.clang_tidy tracea_onnx/ep/plan/bound.cc kernels/cpu/rows.h
    python -m tools.clang_tidy --commit HEAD         # what CI runs

CI reads the units that the commit changes, and of the others the quarter that its hash draws. The
checks are in `.clang-tidy`. Headers come from zig's C++ library, the one that the build uses
where the machine has no compiler. Exit status 1 when clang-tidy has a finding.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_EP, _TEMPLATES = ROOT / "tracea_onnx" / "ep", ROOT / "kernels" / "cpu"
#: The instruction set whose units are read: the templates differ only in the vector width.
_ISA = "base"
#: Of so many units that a commit does not change one is drawn.
_DRAWN = 4


def _library_flags(folder: Path) -> list[str]:
    """Macros and header folders with which zig compiles C++, without those of its own compiler."""
    source = folder / "empty.cc"
    source.write_text("")
    command = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-linux-gnu.2.17", "-v"]
    done = subprocess.run(
        [*command, "-c", str(source), "-o", str(folder / "empty.o")],
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(x for x in done.stderr.splitlines() if " -cc1 " in x)
    found = re.findall(r"-(isystem|D) (\S+)", line)
    return [
        flag
        for kind, value in found
        if not value.endswith("ziglang/lib/include")
        for flag in ([f"-D{value}"] if kind == "D" else ["-isystem", value])
    ]


def _generate(folder: Path) -> None:
    """Write the headers and units that the build generates."""
    subprocess.run(
        [
            *(sys.executable, str(ROOT / "kernels" / "cpu.py"), "--out", str(folder)),
            *("--machine", "x86_64", "--only=", f"--isa={_ISA}"),
        ],
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )


def _check(tool: str, flags: list[str], source: Path) -> tuple[int, str]:
    """Exit status and findings of one unit. The path analysis takes minutes in unrolled loops of
    kernels, so that only the provider gets it.
    """
    kernels = "" if source.is_relative_to(_EP) else "-clang-analyzer-*"
    options = ["--quiet", f"--config-file={ROOT / '.clang-tidy'}", f"--checks={kernels}"]
    done = subprocess.run(
        [tool, *options, str(source), "--", *flags], capture_output=True, text=True
    )
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _draw(units: list[Path], commit: str) -> list[Path]:
    """The units that a commit changes, and the quarter of the others that its hash draws."""
    text = _git("rev-parse", commit).strip()
    paths = map(Path, _git("diff-tree", "-r", "--name-only", "--no-commit-id", commit).split())
    changed = {name for p in paths for name in (str(p.with_suffix(".cc")), f"{p.stem}_{_ISA}.cc")}
    names = (str(p.relative_to(ROOT)) if p.is_relative_to(ROOT) else p.name for p in units)
    return [
        p
        for p, name in zip(units, names, strict=True)
        if name in changed or not zlib.crc32(f"{text} {name}".encode()) % _DRAWN
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run clang-tidy on the sources that are named, or on all of them; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("sources", nargs="*", type=Path, help="sources; a kernel template's header")
    parser.add_argument("--commit", default="", help="units that it changes, and draws")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args(arguments)
    beside = Path(sys.executable).parent
    tool = shutil.which("clang-tidy", path=str(beside)) or shutil.which("clang-tidy")
    if tool is None:
        raise SystemExit("clang-tidy not found; python -m pip install clang-tidy")
    with tempfile.TemporaryDirectory() as work:
        generated = Path(work) / "generated"
        _generate(generated)
        flags = [
            *("-std=gnu++17", "--target=x86_64-linux-gnu", "-nostdinc++", "-nostdlibinc"),
            *_library_flags(Path(work)),
            "-D_LIBCPP_REMOVE_TRANSITIVE_INCLUDES",  # as the build
            *(f"-I{generated}", f"-I{_EP}", f"-I{_TEMPLATES}", '-DTRACEA_VERSION="0"'),
        ]
        wanted = [p.resolve() for p in args.sources] or sorted(
            [*_EP.glob("*/*.cc"), *generated.glob(f"*_{_ISA}.cc")]
        )
        if args.commit:
            wanted = _draw(wanted, args.commit)
        sources = [generated / f"{p.stem}_{_ISA}.cc" if p.suffix == ".h" else p for p in wanted]
        with ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda p: _check(tool, flags, p), sources))
    for code, text in results:
        if code:
            print(text)
    failed = sum(code != 0 for code, _ in results)
    print(f"clang-tidy: {len(results) - failed} of {len(results)} units are clean")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
