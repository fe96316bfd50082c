"""The source distribution, and wheels for this and other machines, built from it with the compiler
that the build brings.

    python -m tools.wheels [TARGET ...] [-o dist]     # all of them without a TARGET
    python -m tools.wheels --sdist [-o dist]          # the source distribution alone
    python -m tools.wheels --check WHEEL [-o dist]    # a wheel of pip, with its tag, checked

Each wheel is `py3-none-PLATFORM`: the library links nothing of Python. It carries a bill of
materials (`tools/sbom.py`). `twine check` and, for glibc, `auditwheel show` must find nothing
(packages: `requirements-lock.txt` and `requirements-package.txt`). Times of files are those of the
last commit. Wheels for macOS and Windows were never run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Platform tags by zig's names of the targets.
TARGETS = {
    "x86_64-linux-gnu.2.28": "manylinux_2_28_x86_64",
    "aarch64-linux-gnu.2.28": "manylinux_2_28_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-linux-musl": "musllinux_1_2_aarch64",
    "aarch64-macos.13.0-none": "macosx_13_0_arm64",
    "x86_64-windows-gnu": "win_amd64",
}
#: What is in every wheel, and what is in none.
_INSIDE = (
    r"tracea_onnx/libtracea_onnx\.(so|dylib|dll)", r"tracea_onnx/py\.typed",
    r"tracea_onnx/kernels/cuda/.*\.cuh", r".*\.dist-info/licenses/LICENSE",
    r".*\.dist-info/sboms/tracea-onnx\.cdx\.json",
)  # fmt: skip
_OUTSIDE = (r".*\.(cc|o|obj|lib|pyc)", r"(tests|tools|benchmarks)/.*")


def run(*command: str | Path) -> None:
    subprocess.run([str(c) for c in command], check=True)


def sdist(out: Path) -> Path:
    """The source distribution, in `out`."""
    from scikit_build_core.build import build_sdist

    os.chdir(ROOT)  # where a build backend looks for the project
    return out / build_sdist(str(out))


def tagged(wheel: Path, tag: str, out: Path) -> Path:
    """A copy with another platform tag, in `out`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(wheel, folder))
        run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, copy)
        [made] = Path(folder).glob("*.whl")
        return Path(shutil.move(made, out / made.name))


def build(source: Path, target: str, out: Path) -> Path:
    """The wheel for a target, in `out`. Raises CalledProcessError with the tools' words above
    it.
    """
    with tempfile.TemporaryDirectory() as folder:
        # In this environment: zig compiles its C++ library once for each folder that it lies in.
        command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
        settings = ("--config-settings", f"cmake.define.TRACEA_TARGET={target}")
        run(*command, "--no-build-isolation", *settings, "--wheel-dir", folder, source)
        [made] = Path(folder).glob("*.whl")
        return tagged(made, TARGETS[target], out)


def check(wheel: Path) -> None:
    """Raise SystemExit where a wheel has a fault."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for pattern in _INSIDE:
            if not any(re.fullmatch(pattern, n) for n in names):
                raise SystemExit(f"{wheel}: there is no {pattern}")
        if found := [n for n in names if any(re.fullmatch(p, n) for p in _OUTSIDE)]:
            raise SystemExit(f"{wheel}: {found[0]} has no place in a wheel")
        [bill] = (n for n in names if n.endswith(".cdx.json"))
        json.loads(archive.read(bill))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel)
    if "manylinux" not in wheel.name:  # auditwheel finds no musl on a machine without it
        return
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    declared, possible = (
        (int(m[1]), int(m[2])) if (m := re.search(r"manylinux_(\d+)_(\d+)_", text)) else (0, 0)
        for text in (wheel.name, said.partition("platform tag:")[2])
    )
    if not (0, 0) < possible <= declared:
        raise SystemExit(f"{wheel}: {said}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("-o", "--out", type=Path, default=Path("dist"))
    parser.add_argument("--sdist", action="store_true", help="build no wheel")
    parser.add_argument("--check", type=Path, metavar="WHEEL", help="build nothing")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    log = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    when = subprocess.run(log, capture_output=True, text=True).stdout.strip()
    if when:
        os.environ.setdefault("SOURCE_DATE_EPOCH", when)
    if args.check:
        made = tagged(args.check, f"manylinux_2_28_{platform.machine()}", out)
        check(made)
        print(made)
        return 0
    source = sdist(out)
    print(f"{source}  {source.stat().st_size / 2**20:.1f} MiB", flush=True)
    for target in [] if args.sdist else args.targets or TARGETS:
        made = build(source, target, out)
        check(made)
        print(f"{made}  {made.stat().st_size / 2**20:.1f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
