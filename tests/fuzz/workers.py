"""Runs cases in forked workers: many in each, so that a case costs milliseconds, and a crash or a
hang costs one case.

The parent imports everything once. A worker announces each case before it runs it, so the one that
killed it is known; `ITIMER_PROF` ends a case that takes more processor time than it may, the parent
one that waits for ever, `RLIMIT_AS` one that wants too much memory.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LENGTH = struct.Struct("<q")
#: What is no fault of this project: ONNX Runtime alone, without the provider, ends the process at
#: the case, or does not end.
DIED = "ort-died"


@dataclass(frozen=True)
class Verdict:
    """status: ok, refused (one line), or what is wrong; line: what it said; signature: by which
    findings are told apart.
    """

    status: str
    line: str = ""
    signature: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Limits:
    """seconds: processor time of a case; memory: bytes of address space, 0 for any; batch: cases of
    one worker.
    """

    seconds: float = 10.0
    memory: int = 4 << 30
    batch: int = 200


Work = Callable[[int, Path], Verdict]
#: Where the files of cases lie: in memory, where there is such a folder.
PLACE = next((p for p in ("/dev/shm",) if os.access(p, os.W_OK | os.X_OK)), None)


class _Stage:
    """Where a worker is: the parent reads that after its death."""

    file: Path | None = None
    seconds = 0.0


@contextmanager
def stock() -> Iterator[None]:
    """Inside, only ONNX Runtime itself runs: what becomes of the process there is its doing.

    What follows has its time anew.
    """
    if _Stage.file is None:  # not in a worker
        yield
        return
    _Stage.file.touch()
    try:
        yield
    finally:
        _Stage.file.unlink()
        signal.setitimer(signal.ITIMER_PROF, _Stage.seconds)


class _Worker:
    def __init__(self, work: Work, first: int, last: int, limits: Limits) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz", dir=PLACE))
        self.said, self.stage = self.folder / "said", self.folder / "stock"
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(read)
            _serve(work, first, last, limits, self, write)
        os.close(write)
        self.pipe, self.buffer = read, b""
        self.last, self.next, self.since = last, first, time.monotonic()

    def results(self) -> Iterator[tuple[int, Verdict]] | None:
        """The results that have come; None when the worker has ended."""
        data = os.read(self.pipe, 1 << 20)
        if not data:
            return None
        self.buffer += data
        return self._parse()

    def _parse(self) -> Iterator[tuple[int, Verdict]]:
        while len(self.buffer) >= _LENGTH.size:
            (n,) = _LENGTH.unpack_from(self.buffer)
            if len(self.buffer) < _LENGTH.size + n:
                return
            index, verdict = pickle.loads(self.buffer[_LENGTH.size : _LENGTH.size + n])
            self.buffer = self.buffer[_LENGTH.size + n :]
            self.next, self.since = index + 1, time.monotonic()
            yield index, verdict

    def end(self) -> int:
        """Ends and forgets the worker; its exit status, negative for a signal."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def clean(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _serve(work: Work, first: int, last: int, limits: Limits, worker: _Worker, pipe: int) -> None:
    folder = worker.folder
    _Stage.file, _Stage.seconds = worker.stage, limits.seconds
    try:
        os.setpgid(0, 0)
        os.chdir(folder)  # a relative path that a case makes up
        out = os.open(worker.said, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        for fd in (1, 2):
            os.dup2(out, fd)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limits.memory:
            resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
        faulthandler.enable(2)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        faulthandler.register(signal.SIGPROF, 2, all_threads=True, chain=True)
        faulthandler.register(signal.SIGUSR1, 2, all_threads=True)
        for index in range(first, last):
            os.ftruncate(out, 0)
            signal.setitimer(signal.ITIMER_PROF, limits.seconds)
            verdict = work(index, folder)
            signal.setitimer(signal.ITIMER_PROF, 0)
            data = pickle.dumps((index, verdict))
            os.write(pipe, _LENGTH.pack(len(data)) + data)
        os._exit(0)
    except BaseException as e:
        print(f"worker: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
        os._exit(70)


def _name(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit {status}"


def _lost(worker: _Worker, status: int, waited: bool) -> Verdict:
    """What became of the case that the worker died of."""
    text = worker.said.read_text("utf-8", "replace")[-20000:] if worker.said.is_file() else ""
    at = text.find("Fatal Python error")
    stack = [
        line.strip()
        for line in (text[at:] if at >= 0 else text).splitlines()
        if line.strip().startswith("File ")
    ]
    ours = next(
        (
            line
            for line in stack
            if "tracea_onnx/" in line
            or "fusion_rules/" in line
            or "scheduler/" in line
            or "kernels/" in line
        ),
        stack[0] if stack else "",
    )
    where = ours.replace('File "', "").split("/")[-1].replace('"', "")
    if worker.stage.exists():
        how = "does not end" if waited or status == -signal.SIGPROF else f"dies of {_name(status)}"
        return Verdict(DIED, f"ONNX Runtime itself {how}", f"{DIED}: {how}", text)
    summary = next(
        (
            line
            for line in text.splitlines()
            if line.startswith("SUMMARY:") or "runtime error:" in line
        ),
        "",
    )
    if waited or status == -signal.SIGPROF:
        return Verdict(
            "hang",
            "it waits for ever" if waited else "out of processor time",
            f"hang {where}",
            text,
        )
    name = _name(status)
    return Verdict("crash", summary or name, f"crash {summary or name} {where}", text)


def run(
    work: Work,
    cases: int,
    *,
    first: int = 0,
    seconds: float = 0,
    jobs: int = 1,
    limits: Limits | None = None,
) -> Iterator[tuple[int, Verdict]]:
    """Yields (case, verdict) for the cases from `first` on, `cases` of them or until `seconds` have
    passed.
    """
    limits = limits or Limits()
    gc.collect()
    gc.freeze()  # workers need not look again at what the parent has made
    began, todo, end = time.monotonic(), first, first + cases
    workers: list[_Worker] = []

    def start(a: int, b: int) -> None:
        workers.append(_Worker(work, a, b, limits))

    while True:
        over = bool(seconds) and time.monotonic() - began > seconds
        while not over and len(workers) < jobs and todo < end:
            start(todo, min(todo + limits.batch, end))
            todo = min(todo + limits.batch, end)
        if not workers or over:
            break
        ready, _, _ = select.select([w.pipe for w in workers], [], [], 1.0)
        for worker in list(workers):
            # Results that lie in the pipe count: the caller may have been away for long.
            waited = (
                worker.pipe not in ready and time.monotonic() - worker.since > 12 * limits.seconds
            )
            if waited:
                os.kill(worker.pid, signal.SIGUSR1)  # prints where it is
                time.sleep(0.5)
                os.kill(worker.pid, signal.SIGKILL)
            if worker.pipe not in ready and not waited:
                continue
            found = None if waited else worker.results()
            if found is not None:
                yield from found
                continue
            workers.remove(worker)
            status = worker.end()
            if worker.next < worker.last:
                yield worker.next, _lost(worker, status, waited)
                if worker.next + 1 < worker.last:
                    start(worker.next + 1, worker.last)
            worker.clean()
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
        worker.end()
        worker.clean()
