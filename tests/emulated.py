"""Kernels for AVX-512, AMX and AVX-VNNI on machines without them: builds the native library with
their intrinsics in C++ (`tests/support/avx512_emulated.h`), and runs tests on it as if the machine
had every instruction set.

    python -m tests.emulated [-- tests/backend/test_conv.py -k wino]

What it cannot show: that compilers make the right instructions of the intrinsics, and how fast they
are. It works on a copy of the working tree in `build/`, so that the package keeps its own library.
Needs GCC.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.sanitize import tree
from tracea_onnx.ep.build import ROOT, build

#: Every kernel, and a few sessions.
TESTS = ("tests/backend", "tests/session/test_models.py")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cxx", default="", help="a GCC")
    parser.add_argument("--isa", default="avx512", help="instruction sets that the build has")
    parser.add_argument("--only", default="", help="templates that it has, comma-separated")
    parser.add_argument("--jobs", type=int, default=2, help="of the build")
    parser.add_argument("tests", nargs="*", default=list(TESTS), help="arguments of pytest")
    args = parser.parse_args()
    header = ROOT / "tests" / "support" / "avx512_emulated.h"
    library = build(
        only=args.only, isa=args.isa, cxx=args.cxx, jobs=args.jobs, werror=False,
        emulate=str(header),
    )  # fmt: skip
    folder = library.parent / "tree"
    tree(library, folder)
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *args.tests]
    return subprocess.run(command, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
