"""Wheels for other machines than this one, built with the compiler that the build brings.

    python -m tools.wheels [TARGET ...] [-o dist]

Each wheel is `py3-none-PLATFORM`: the library links nothing of Python. `auditwheel show` checks
those for glibc, `twine check` all of them, where these tools are installed. Wheels for macOS and
Windows are built as far as the code goes there, and were never run. Needs the package `wheel`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Platform tags by zig's names of the targets.
TARGETS = {
    "x86_64-linux-gnu.2.28": "manylinux_2_28_x86_64",
    "aarch64-linux-gnu.2.28": "manylinux_2_28_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-linux-musl": "musllinux_1_2_aarch64",
    "aarch64-macos": "macosx_11_0_arm64",
    "x86_64-windows-gnu": "win_amd64",
}


def run(*command: str | Path) -> None:
    subprocess.run([str(c) for c in command], check=True)


def build(target: str, out: Path) -> Path:
    """The wheel for a target, in `out`. Raises CalledProcessError with the tools' words above
    it.
    """
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
        run(*pip, "--config-settings", f"cmake.define.TRACEA_TARGET={target}", ROOT)
        [made] = Path(folder).glob("*.whl")
        tags = (sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag")
        run(*tags, TARGETS[target], made)
        [made] = Path(folder).glob("*.whl")
        return Path(shutil.move(made, out / made.name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("-o", "--out", type=Path, default=Path("dist"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for target in args.targets or TARGETS:
        made = build(target, args.out)
        print(f"{made}  {made.stat().st_size / 2**20:.1f} MiB")
        # it looks for musl in the folders of this machine's C library
        if "linux-gnu" in target and shutil.which("auditwheel"):
            run("auditwheel", "show", made)
        if shutil.which("twine"):
            run("twine", "check", "--strict", made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
