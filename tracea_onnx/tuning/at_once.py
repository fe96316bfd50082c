"""Sessions that run at once, as a server has them: what each takes while the others run, too."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracea_onnx.ir.graph import Array
from tracea_onnx.tuning.in_place import Variants


class Sessions:
    """A Plan in `count` sessions, each with constants and threads of its own; run and timed as one.
    load: the harness's `LoadedPlan`.
    """

    def __init__(
        self,
        load: Any,
        count: int,
        plan: Mapping[str, Any],
        blobs: Sequence[bytes],
        constants: Mapping[str, Array],
        *,
        threads: int,
    ) -> None:
        self._loaded = [load(plan, blobs, constants, threads=threads) for _ in range(count)]

    def run(self, inputs: Sequence[Array], variants: Variants | None = None) -> list[Array]:
        """Outputs of one of them."""
        results: list[Array] = self._loaded[0].run(inputs, variants)
        return results

    def time(self, inputs: Sequence[Array], sides: Sequence[Variants], turns: int) -> list[Any]:
        """Times of each set of variants, as of `cpu_harness.LoadedPlan`: of a run the microseconds
        after which the next one ends, whichever session's it is, of launches what they take.
        """
        found: list[Any] = [None] * len(self._loaded)
        start = threading.Barrier(len(self._loaded))

        def work(k: int) -> None:
            start.wait()
            try:
                found[k] = self._loaded[k].time(inputs, sides, turns)
            except Exception as e:
                found[k] = e

        others = [threading.Thread(target=work, args=(k,)) for k in range(1, len(found))]
        for t in others:
            t.start()
        work(0)
        for t in others:
            t.join()
        for one in found:
            if isinstance(one, Exception):
                raise one
        return [_together(times) for times in zip(*found, strict=True)]


def _together(times: Sequence[Any]) -> Any:
    """Of one set of variants: the sessions' times as one."""
    launches = [
        (which[0][0], statistics.mean(us for _, us in which))
        for which in zip(*(t.launches for t in times), strict=True)
    ]
    return replace(
        times[0], total=1 / sum(1 / max(t.total, 1e-3) for t in times), launches=launches
    )
