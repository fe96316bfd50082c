"""Kernels that exist in several variants, measured where a Plan runs them: in a process of its own,
so that one that crashes or hangs costs nothing but its trial.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.graph import Array
from tracea_onnx.plan.builder import evaluate
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime import native_library

#: Integers up to which operands are filled: sums of their products are the same in float32 and
#: float64, in whatever order.
_MOST = 3
#: Variants of launches by their index in the Plan's run.
Variants = Mapping[int, int]


class Part(Protocol):
    """A Plan with data of its own (`measure.Part`)."""

    plan: Mapping[str, Any]
    blobs: Sequence[bytes]
    constants: Mapping[str, Array]
    inputs: Sequence[Array]


class Crashed(Exception):
    """The process ended."""


class Hung(Exception):
    """The process did not answer in time."""


class Worker:
    """The process; it is started when it is asked, and again after it was lost. Close it with
    `with`. load: makes a loaded Plan of a part (the harness's `LoadedPlan`).
    """

    def __init__(self, parts: Sequence[Part], load: Any, threads: int) -> None:
        self._arguments = (parts, load, threads)
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop()

    def time(self, part: int, sides: Sequence[Variants], turns: int, patience: float) -> list[Any]:
        """Times of each set of variants, in turn. Raises Crashed, Hung, TraceaError."""
        found: list[Any] = self._ask(patience, "time", part, sides, turns)
        return found

    def run(self, part: int, variants: Variants, patience: float) -> list[Array]:
        """Outputs with these variants. Raises as `time`."""
        found: list[Array] = self._ask(patience, "run", part, variants)
        return found

    def exact(self, part: int, launch: int, variant: int, patience: float) -> bool:
        """Whether a variant of a launch gives, on integers, every bit of what variant 0 gives.
        Raises as `time`.
        """
        return bool(self._ask(patience, "exact", part, launch, variant))

    def _ask(self, patience: float, *question: Any) -> Any:
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(question)
            if not self._pipe.poll(patience):
                self._stop()
                raise Hung
            ok, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._stop()
            raise Crashed from None
        except KeyboardInterrupt:  # an answer that nobody has read would be taken for the next
            self._stop()
            raise
        if not ok:
            raise TraceaError(answer)
        return answer

    def _start(self) -> None:
        # forked, it has the constants without a copy
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._pipe, other = context.Pipe()
        arguments = other, self._pipe, *self._arguments
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()

    def _stop(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
            self._pipe = None


def _serve(
    pipe: Connection, others: Connection, parts: Sequence[Part], load: Any, threads: int
) -> None:
    others.close()  # open here, it would hide that whoever asks was killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    loaded: dict[int, Any] = {}
    checked: dict[int, _Integers] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            what, k, *rest = pipe.recv()
            part = parts[k]
            try:
                if what in ("time", "run"):
                    if k not in loaded:
                        loaded[k] = load(part.plan, part.blobs, part.constants, threads=threads)
                    pipe.send((True, getattr(loaded[k], what)(part.inputs, *rest)))
                else:
                    if k not in checked:
                        checked[k] = _Integers(part, threads)
                    pipe.send((True, checked[k].same(*rest)))
            except TraceaError as e:
                pipe.send((False, str(e)))


class _Integers:
    """Single launches of a part on integers."""

    def __init__(self, part: Part, threads: int) -> None:
        self._plan, self._threads = part.plan, threads
        self._value = evaluate(part.plan, [x.shape for x in part.inputs])
        self._part = part

    def same(self, launch: int, variant: int) -> bool:
        """Whether it writes the same bits as variant 0."""
        usual, other = (self._run(launch, v) for v in (0, variant))
        return all(
            np.array_equal(a.view(np.uint8), b.view(np.uint8))
            for a, b in zip(usual, other, strict=True)
        )

    def _run(self, launch: int, variant: int) -> list[Array]:
        """All operands as the launch leaves them."""
        row = self._plan["run"][launch]
        family = FAMILIES[row["k"]]
        arrays: dict[int, Array] = {}
        operands: dict[str, Any] = {}
        for name, ref in zip(family.operands, row["b"], strict=True):
            if ref is not None and ref[0] not in arrays:
                size = self._size(self._plan["buffers"][ref[0]])
                filled = native_library.aligned(-(-size // 4) + 64)
                random = np.random.default_rng(ref[0])
                filled[:] = random.integers(-_MOST, _MOST + 1, filled.size)
                arrays[ref[0]] = filled
            operands[name.rstrip("?")] = (
                None if ref is None else (arrays[ref[0]].view(np.uint8), self._value[ref[1]])
            )
        native_library.run_kernel(
            row["k"],
            operands,
            {n: self._value[e] for n, e in zip(family.ints, row["i"], strict=False)},
            dict(zip(family.floats, row["f"], strict=True)),
            row["p"],
            threads=self._threads,
            variant=variant,
        )
        return list(arrays.values())

    def _size(self, buffer: Mapping[str, Any]) -> int:
        kind = buffer["kind"]
        if kind == "arena":
            return int(self._value[buffer["bytes"]])
        if kind == "const":
            return int(buffer["bytes"])
        if kind == "input":
            return int(self._part.inputs[buffer["index"]].nbytes)
        if kind == "blob":
            return len(self._part.blobs[buffer["index"]])
        if kind == "initializer":
            return int(self._part.constants[buffer["name"]].nbytes)
        dims = (self._value[d] for d in self._plan["outputs"][buffer["index"]]["dims"])
        return 8 * int(np.prod(list(dims), dtype=np.int64))
