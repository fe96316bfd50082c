"""Builds the native library in a checkout. For a single kernel template, fast:

    # one template, this machine's instruction set
    python -m tracea_onnx.ep.build --only gemm && python -m pytest tests/backend/test_gemm.py
    # everything, before a commit
    python -m tracea_onnx.ep.build

`--only NAME[,NAME]` writes `tracea_onnx/libtracea_onnx.NAME.so`, which `native_library.run_kernel`
prefers while it is newer than the full library, so that a template under work never breaks the
other ones. Both are ignored by git. Needs cmake, ninja and a C++ compiler (`--cxx`, else cmake's
choice).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _tool(name: str) -> str:
    found = shutil.which(
        name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    if found is None:
        raise SystemExit(f"{name} not found; python -m pip install {name}")
    return found


def build(
    *,
    only: str = "",
    isa: str = "",
    cxx: str = "",
    jobs: int = 2,
    werror: bool = True,
    sanitize: str = "",
    emulate: str = "",
) -> Path:
    """Configure and build into `build/dev` (or `build/only-<only>`); returns the library copied
    into the package. With sanitizers it stays in `build/sanitize-<sanitize>`, where only
    `tests/sanitize.py` loads it; with a header that emulates AVX-512 in `build/emulated`, for
    `tests/emulated.py`. Raises SystemExit with the tools' words when the build fails.
    """
    kind = (
        f"sanitize-{sanitize.replace(',', '-')}"
        if sanitize
        else "emulated"
        if emulate
        else f"only-{only.replace(',', '-')}"
        if only
        else "dev"
    )
    folder = ROOT / "build" / kind / (Path(cxx.split()[0]).name if cxx else "")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds of one folder would corrupt each other
        configure = [
            _tool("cmake"), "-S", str(ROOT / "tracea_onnx" / "ep"), "-B", str(folder), "-G",
            "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}", f"-DTRACEA_ONLY={only}", f"-DTRACEA_ISA={isa}",
            f"-DTRACEA_WERROR={'ON' if werror else 'OFF'}",
            f"-DTRACEA_SANITIZE={sanitize}", f"-DTRACEA_EMULATE={emulate}",
        ]  # fmt: skip
        if cxx:
            configure.append(f"-DCMAKE_CXX_COMPILER={';'.join(cxx.split())}")
        done = subprocess.run(configure, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr)
        if subprocess.run(
            [_tool("ninja"), "-C", str(folder), "-j", str(jobs), "--quiet"]
        ).returncode:
            raise SystemExit(1)
        built = next(folder.glob("libtracea_onnx.*"))
        if sanitize or emulate:
            return built
        target = (
            ROOT
            / "tracea_onnx"
            / (f"libtracea_onnx.{only.replace(',', '-')}{built.suffix}" if only else built.name)
        )
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        # replaced, never overwritten: another process may have it mapped
        shutil.copyfile(built, temporary)
        temporary.replace(target)
    return target


def _native_isa() -> str:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    return "avx512" if " avx512vl" in flags else "avx2" if " avx2" in flags else "base"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="templates to build, comma-separated")
    parser.add_argument(
        "--isa",
        default=None,
        help="instruction sets, comma-separated, or `all`; "
        "default: all, with --only this machine's",
    )
    parser.add_argument(
        "--cxx", default="", help="compiler command, e.g. 'clang++' or 'python -m ziglang c++'"
    )
    parser.add_argument(
        "--sanitize",
        default="",
        help="sanitizers, e.g. address,undefined or thread (run with python -m tests.sanitize)",
    )
    parser.add_argument("-j", "--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = args.isa if args.isa is not None else _native_isa() if args.only else ""
    print(
        build(
            only=args.only,
            isa="" if chosen == "all" else chosen,
            cxx=args.cxx,
            jobs=args.jobs,
            sanitize=args.sanitize,
            werror=not args.sanitize,
        )
    )
