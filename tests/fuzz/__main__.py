"""Fuzzes everything that reads what others made: models through the command line and the provider, packs, Plans, caches, tuning records, compile requests.

    python -m tests.fuzz [--seconds 600 | --cases 100000] [--seed 0] [--kinds optimize session ...] [--jobs 1] [--keep FOLDER]
    python -m tests.fuzz --replay KIND:SEED:NUMBER [--keep FOLDER]      # one case, with what it said

Each case must end in success or in one line. Findings are kept with their input and the command that repeats them. The same seed gives the same cases.
Exit status 1 when there are findings.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # a thread of the parent would be missing in its children

from tests.fuzz import workers
from tests.fuzz.workers import Limits, Verdict

#: Statuses that are no findings.
FINE = ("ok", "refused", "accepted", "denied")
_INPUTS = ("input.onnx", "other.onnx", "input.pack", "inputs.npz")


def kind_of(seed: str, number: int, kinds: list[str]) -> str:
    from tests.fuzz.kinds import WEIGHTS

    return Random(f"{seed}:{number}").choices(kinds, [WEIGHTS[k] for k in kinds])[0]


def _work(
    seed: str, kinds: list[str], keep: Path, skip: frozenset[int] = frozenset()
) -> workers.Work:
    from tests.fuzz.kinds import KINDS, Case

    def work(number: int, folder: Path) -> Verdict:
        os.environ["XDG_CACHE_HOME"] = str(folder / "home")
        kind = kind_of(seed, number, kinds)
        for name in _INPUTS:
            (folder / name).unlink(missing_ok=True)
        pending = keep / f".{os.getpid()}"
        pending.unlink(missing_ok=True)
        pending.symlink_to(folder)
        case = Case(f"{kind}:{seed}:{number}", folder, skip)
        verdict = KINDS[kind](case)
        pending.unlink(missing_ok=True)
        return (
            verdict
            if verdict.status in FINE
            else Verdict(
                verdict.status,
                verdict.line,
                verdict.signature,
                f"mutations: {' '.join(case.applied)}\n{verdict.detail}",
            )
        )

    return work


def _one(
    kind: str,
    seed: str,
    number: int,
    keep: Path,
    limits: Limits,
    skip: frozenset[int],
    inputs: Path | None = None,
) -> Verdict:
    """One case in a process of its own; its files go to `inputs`."""
    work = _work(seed, [kind], keep, skip)

    def copying(n: int, folder: Path) -> Verdict:
        if inputs is None:
            return work(n, folder)
        inner = inputs  # written in place: a crash leaves them
        inner.mkdir(parents=True, exist_ok=True)
        return work(n, inner)

    return next(iter(workers.run(copying, 1, first=number, limits=limits)))[1]


def _minimise(
    kind: str, seed: str, number: int, keep: Path, limits: Limits, signature: str
) -> frozenset[int]:
    """Mutations that can be left out."""
    skip: frozenset[int] = frozenset()
    for k in range(5):
        tried = skip | {k}
        if _one(kind, seed, number, keep, limits, tried).signature == signature:
            skip = tried
    return skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    from tests.fuzz.kinds import KINDS, node_tests

    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", default="0", help="any text, e.g. a commit's hash")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, help="where findings go (default: a new temporary folder)"
    )
    parser.add_argument("--replay", metavar="KIND:SEED:NUMBER")
    parser.add_argument(
        "--skip", type=int, nargs="*", default=[], help="with --replay: mutations to leave out"
    )
    parser.add_argument(
        "--unlimited",
        action="store_true",
        help="no limit of memory, and ten times the processor time: for sanitizers",
    )
    args = parser.parse_args()
    limits = Limits(100.0, 0) if args.unlimited else Limits()
    keep = args.keep or Path(tempfile.mkdtemp(prefix="fuzz-findings"))
    keep.mkdir(parents=True, exist_ok=True)
    import onnxruntime

    from tracea_onnx import provider

    onnxruntime.set_default_logger_severity(4)
    provider.register()
    if set(args.kinds) - {"pack", "plan", "cache", "tuning"}:
        node_tests()
    if args.replay:
        kind, seed, number = args.replay.split(":")
        v = _one(kind, seed, int(number), keep, limits, frozenset(args.skip), keep / "replay")
        print(f"{v.status} {v.line}\n{v.signature}\n{v.detail}\ninputs in {keep / 'replay'}")
        return 0 if v.status in FINE else 1
    began = time.monotonic()
    counts: dict[str, Counter[str]] = {k: Counter() for k in args.kinds}
    seen: Counter[str] = Counter()
    more = Counter[str]()
    cases = args.cases or (1 << 62 if args.seconds else 2000)
    for number, v in workers.run(
        _work(args.seed, args.kinds, keep),
        cases,
        first=args.first,
        seconds=args.seconds,
        jobs=args.jobs,
        limits=limits,
    ):
        kind = kind_of(args.seed, number, args.kinds)
        counts[kind][v.status] += 1
        if v.status in ("accepted", "denied"):
            more[v.signature] += 1
        if v.status in FINE:
            continue
        seen[v.signature] += 1
        if seen[v.signature] > 1:
            continue
        alone = _one(kind, args.seed, number, keep, limits, frozenset())
        skip = (
            _minimise(kind, args.seed, number, keep, limits, v.signature)
            if alone.signature == v.signature
            else frozenset()
        )
        where = keep / f"{kind}-{args.seed}-{number}"
        _one(kind, args.seed, number, keep, limits, skip, where)
        for junk in where.iterdir():
            if junk.name not in _INPUTS:
                shutil.rmtree(junk) if junk.is_dir() else junk.unlink()
        left = f" --skip {' '.join(map(str, sorted(skip)))}" if skip else ""
        again = f"python -m tests.fuzz --replay {kind}:{args.seed}:{number}{left}" + (
            "" if alone.signature == v.signature else "   # alone it ends otherwise"
        )
        (where / "finding.txt").write_text(
            f"{v.status} {v.line}\n{v.signature}\n{again}\n\n{v.detail}\n"
        )
        print(f"{v.status}: {v.signature}: {v.line[:200]}\n    {again}", flush=True)
    total = Counter[str]()
    for kind, count in counts.items():
        total.update(count)
        print(
            f"{kind:9} {sum(count.values()):7}  "
            + ", ".join(f"{n} {status}" for status, n in count.most_common())
        )
    for signature, n in more.most_common(16):
        print(f"{n:6} x {signature} (no finding)")
    for signature, n in seen.most_common():
        print(f"{n:6} x {signature}")
    bad = sum(n for status, n in total.items() if status not in FINE)
    verdict = "no finding" if not bad else f"{bad} findings of {len(seen)} kinds, kept in {keep}"
    print(
        f"fuzz: {sum(total.values())} inputs in {time.monotonic() - began:.0f} s, seed {args.seed}: {verdict}"
    )
    if not bad and args.keep is None:
        shutil.rmtree(keep, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
