"""Fuzzes everything that reads what others made: models through the command line and the provider,
packs, Plans, compiled models, caches, tuning records, compile requests.

    python -m tests.fuzz [--seconds 600 | --cases 100000] [--seed 0] [--kinds optimize session ...]
                         [--jobs 1] [--keep FOLDER]
    python -m tests.fuzz --replay KIND:SEED:NUMBER [--keep FOLDER]  # one case

Each case must end in success or in one line. Findings are kept with their input and the command
that repeats them. The same seed gives the same cases. Exit status 1 when there are findings.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # a thread of the parent would be missing in its children

import onnxruntime

from tests.fuzz import workers
from tests.fuzz.workers import Limits, Verdict

#: Statuses that are no findings.
FINE = ("ok", "refused", "accepted", "denied", workers.DIED)
_INPUTS = (
    "input.onnx",
    "other.onnx",
    "input.pack",
    "inputs.pickle",
    "baseline.json",
    "records.json",
    "given.npz",
)


def kind_of(seed: str, number: int, kinds: list[str]) -> str:
    from tests.fuzz.kinds import WEIGHTS

    return Random(f"{seed}:{number}").choices(kinds, [WEIGHTS[k] for k in kinds])[0]


def _work(
    seed: str, kinds: list[str], keep: Path, skip: frozenset[int] = frozenset()
) -> workers.Work:
    from tests.fuzz.cases import Case
    from tests.fuzz.kinds import KINDS

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
    inputs: Path,
) -> Verdict:
    """One case in a process of its own; its files go to `inputs`."""
    work = _work(seed, [kind], keep, skip)

    def copying(n: int, folder: Path) -> Verdict:
        inputs.mkdir(parents=True, exist_ok=True)  # written in place: a crash leaves them
        return work(n, inputs)

    verdict = next(iter(workers.run(copying, 1, first=number, limits=limits)))[1]
    return _judged(kind, number, verdict, inputs, limits)


def _judged(kind: str, number: int, verdict: Verdict, inputs: Path, limits: Limits) -> Verdict:
    """A command's crash or hang is none of its own where ONNX Runtime alone does the same with the
    model and the inputs it was given.
    """
    from tests.fuzz.judges import on_stock
    from tests.fuzz.kinds import RUNS_STOCK

    if verdict.status not in ("crash", "hang") or kind not in RUNS_STOCK:
        return verdict

    def alone(n: int, folder: Path) -> Verdict:
        on_stock(inputs)
        return verdict

    return next(iter(workers.run(alone, 1, first=number, limits=limits)))[1]


def _minimise(
    kind: str, seed: str, number: int, keep: Path, limits: Limits, signature: str, inputs: Path
) -> frozenset[int]:
    """Mutations that can be left out."""
    skip: frozenset[int] = frozenset()
    for k in range(4):  # as many as a case has at most
        tried = skip | {k}
        if _one(kind, seed, number, keep, limits, tried, inputs).signature == signature:
            skip = tried
    return skip


def _together(
    seed: str, kinds: list[str], first: int, cases: int, seconds: float, threads: int, keep: Path
) -> int:
    """Runs the cases in this process, on several threads at once: for ThreadSanitizer, which cannot
    follow a fork. What ends the process ends them all. The number of findings.
    """
    from tests.fuzz.cases import Case
    from tests.fuzz.kinds import KINDS

    os.environ["XDG_CACHE_HOME"] = str(keep / "home")
    numbers, counts, ends = itertools.count(first), Counter[str](), time.monotonic() + seconds

    def serve(thread: int) -> None:
        folder = keep / f"thread-{thread}"
        folder.mkdir()
        while (number := next(numbers)) < first + cases and (
            not seconds or time.monotonic() < ends
        ):
            key = f"{kind_of(seed, number, kinds)}:{seed}:{number}"
            verdict = KINDS[key.split(":")[0]](Case(key, folder))
            counts[verdict.status] += 1
            if verdict.status not in FINE:
                print(f"{verdict.status}: {verdict.signature}: {key}\n{verdict.detail}", flush=True)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(serve, range(threads)))
    bad = sum(n for status, n in counts.items() if status not in FINE)
    said = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    print(
        f"fuzz: {counts.total()} inputs on {threads} threads, seed {seed}: {said}; {bad} findings"
    )
    return bad


class _OneThread(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Sessions of many workers share the cores, and threads that wait would use up the time of a
    case.
    """

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    from tests.fuzz import seeds
    from tests.fuzz.kinds import KINDS
    from tracea_onnx.cli import main as cli

    setattr(cli, "parser", cache(cli.parser))  # noqa: B010 - made once, not for each command
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
    parser.add_argument(
        "--threads", type=int, default=0, help="in this process, on so many threads at once"
    )
    args = parser.parse_args()
    limits = Limits(100.0, 0) if args.unlimited else Limits()
    keep = args.keep or Path(tempfile.mkdtemp(prefix="fuzz-findings"))
    keep.mkdir(parents=True, exist_ok=True)
    from tracea_onnx import provider

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.SessionOptions = _OneThread
    provider.register()
    seeds.shared = Path(tempfile.mkdtemp(prefix="fuzz-seeds", dir=workers.PLACE))
    atexit.register(shutil.rmtree, seeds.shared, ignore_errors=True)  # workers end without
    if set(args.kinds) - {"pack", "plan", "compiled", "cache", "tuning"}:
        seeds.node_tests()
    if args.replay:
        kind, seed, number = args.replay.split(":")
        v = _one(kind, seed, int(number), keep, limits, frozenset(args.skip), keep / "replay")
        print(f"{v.status} {v.line}\n{v.signature}\n{v.detail}\ninputs in {keep / 'replay'}")
        return 0 if v.status in FINE else 1
    if args.threads:
        cases = args.cases or 1 << 62
        return int(
            _together(args.seed, args.kinds, args.first, cases, args.seconds, args.threads, keep)
            > 0
        )
    began = time.monotonic()
    counts: dict[str, Counter[str]] = {k: Counter() for k in args.kinds}
    since: Counter[str] = Counter()  # cases of a kind after its last finding
    seen: Counter[str] = Counter()
    more = Counter[str]()
    example: dict[str, str] = {}
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
        key = f"{kind}:{args.seed}:{number}"
        where = keep / key.replace(":", "-")
        alone = None
        if v.status in ("crash", "hang") and not seen[v.signature]:
            alone = _one(kind, args.seed, number, keep, limits, frozenset(), where)
            if alone.status == workers.DIED:
                v = alone
                _tidy(where, remove=True)
        counts[kind][v.status] += 1
        if v.status in ("accepted", "denied", workers.DIED):
            more[v.signature] += 1
            example.setdefault(v.signature, key)
        if v.status in FINE:
            since[kind] += 1
            continue
        since[kind] = 0
        seen[v.signature] += 1
        if seen[v.signature] > 1:
            continue
        alone = alone or _one(kind, args.seed, number, keep, limits, frozenset(), where)
        skip: frozenset[int] = frozenset()
        # What takes long is left as it is, and so is what comes when time is up.
        late = args.seconds and time.monotonic() - began > args.seconds - 30
        if alone.signature == v.signature and v.status != "hang" and not late:
            skip = _minimise(kind, args.seed, number, keep, limits, v.signature, where)
            _one(kind, args.seed, number, keep, limits, skip, where)
        _tidy(where)
        left = f" --skip {' '.join(map(str, sorted(skip)))}" if skip else ""
        again = f"python -m tests.fuzz --replay {key}{left}" + (
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
            + ("" if since[kind] == sum(count.values()) else f"; {since[kind]} since a finding")
        )
    died = [s for s in more if s.startswith(workers.DIED)]
    for signature in [*died, *(s for s, _ in more.most_common(16) if s not in died)]:
        print(f"{more[signature]:6} x {signature} (no finding; {example[signature]})")
    for signature, n in seen.most_common():
        print(f"{n:6} x {signature}")
    bad = sum(n for status, n in total.items() if status not in FINE)
    verdict = "no finding" if not bad else f"{bad} findings of {len(seen)} kinds, kept in {keep}"
    took = time.monotonic() - began
    print(
        f"fuzz: {sum(total.values())} inputs in {took:.0f} s"
        f" ({sum(total.values()) / max(took, 1e-9):.0f}/s), "
        f"{total[workers.DIED]} on which ONNX Runtime itself dies, seed {args.seed}: {verdict}"
    )
    if not bad and args.keep is None:
        shutil.rmtree(keep, ignore_errors=True)
    return 1 if bad else 0


def _tidy(where: Path, *, remove: bool = False) -> None:
    """Only the inputs of a finding stay in its folder."""
    for junk in where.iterdir():
        if remove or junk.name not in _INPUTS:
            shutil.rmtree(junk) if junk.is_dir() else junk.unlink()
    if remove:
        where.rmdir()


if __name__ == "__main__":
    sys.exit(main())
