"""PTX of the kernels that the golden records are made of: what a change of the headers should leave
as it was.

    python -m tools.compare_ptx --json before.json [--only REGEX]
    python -m tools.compare_ptx --against before.json [--only REGEX]

The second form compiles again, names the kernels whose PTX differs and exits 1 if there are any.
Kernels go by their case and their place in it; names of entry points do not count. REGEX selects
by case and entry point. No GPU is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from tests.golden import record
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.support import discovery

Found = dict[str, tuple[str, str, int]]  # by name: entry point, source, architecture


def kernels(only: re.Pattern[str]) -> Found:
    found: Found = {}
    cuda = discovery.module("kernels", "cuda")
    emit = cuda.emit
    for case, make in record.cases().items():
        if case.startswith("cpu"):
            continue
        made: list[tuple[Kernel, int]] = []

        def noted(r: Request, made: list[tuple[Kernel, int]] = made) -> list[Kernel]:
            answer: list[Kernel] = emit(r)
            made += [(k, r.arch) for k in answer]
            return answer

        with mock.patch.object(cuda, "emit", noted):
            make()
        for place, (kernel, arch) in enumerate(made):
            if only.search(f"{case} {kernel.symbol}"):
                found[f"{case}: {place}"] = kernel.symbol, kernel.source, arch
    return found


def ptx(symbol: str, source: str, arch: int) -> str:
    """Hash of the PTX without comments, names of its entry point and of shared variables, and
    compile-time constants, which the code has as immediates.
    """
    compiler = discovery.module("kernels", "cuda.compiler")
    target = compiler.target(arch).replace("sm_", "compute_")
    try:
        text = compiler._compile(source, target).decode()
    except Exception as error:
        return f"error: {error}"
    text = re.sub(
        r"^\.global \.align \d+ \.\w+ \w+(\[\d+\])?( = .*)?;$", "", text, flags=re.MULTILINE
    )
    text = re.sub(rf"\b(_ZZ\d+)?{symbol}(?=\b|_param|E\d)", "ENTRY", re.sub(r"//.*", "", text))
    for k, variable in enumerate(dict.fromkeys(re.findall(r"\bENTRYE\d+\w+", text))):
        text = re.sub(rf"\b{variable}\b", f"VARIABLE{k}", text)
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    found = kernels(options.only)
    unique = {
        (symbol, record.code(source), arch): source for symbol, source, arch in found.values()
    }
    with ThreadPoolExecutor(options.jobs) as pool:
        hashes = dict(
            zip(
                unique,
                pool.map(lambda item: ptx(item[0][0], item[1], item[0][2]), unique.items()),
                strict=True,
            )
        )
    now = {
        name: [symbol, hashes[symbol, record.code(source), arch]]
        for name, (symbol, source, arch) in found.items()
    }
    print(f"{len(now)} kernels, {len(unique)} sources")
    if options.json:
        options.json.write_text(json.dumps(now, indent=0))
    for name, (symbol, text) in now.items():
        if text.startswith("error"):
            print(f"{name} {symbol}: {text}")
    if not options.against:
        return 0
    before = {
        name: value
        for name, value in json.loads(options.against.read_text()).items()
        if options.only.search(f"{name.rsplit(':', 1)[0]} {value[0]}")
    }
    changed = sorted(
        k
        for k in now.keys() | before.keys()
        if now.get(k, ("", ""))[1] != before.get(k, ("", ""))[1]
    )
    for name in changed:
        print(f"{name} {(now.get(name) or before[name])[0]}: differs")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
