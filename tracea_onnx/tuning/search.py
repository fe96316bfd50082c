"""The search on one kind of device for one graph: a proposer for each kind of launch. The result of
each trial is recorded as it arrives, and no trial is repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracea_onnx.codegen import tuning_records
from tracea_onnx.codegen.tuning_records import Device, Trial, Verdict
from tracea_onnx.tuning import proposers
from tracea_onnx.tuning.proposer import Hint, Proposer

#: A kernel's time over that of the one by price below which it is worth a last measurement, and
#: from which on it was not worth measuring well.
WORTH, PRUNED = 0.98, 1.1
#: Microseconds of a run's launches with the usual kernel and with another one; how a trial ended
#: without a time; None for a kernel that the launch has anyway.
Outcome = tuple[float, float] | Verdict | None


@dataclass(frozen=True)
class Kind:
    """Launches of one kind. key: `kernel_choice.cache_key`. words: what they compute. request: the
    same (`kernel_choice.described`). count: of them in a run. prices: of kernels that they could
    have. memory: where that is what counts, bytes that each of these needs, and "" for the usual
    one. slack: how much longer, relative to that, a kernel may take that needs less.
    """

    key: str
    words: str
    request: Mapping[str, Any]
    count: int
    prices: Mapping[str, float]
    memory: Mapping[str, int] = field(default_factory=dict)
    slack: float = 0.0

    def saves(self, name: str) -> int:
        """Bytes that a kernel needs less than the usual one."""
        return self.memory[""] - self.memory[name] if name in self.memory else 0

    def below(self, name: str) -> float:
        """A kernel's time over that of the usual one below which it is better."""
        saved = self.saves(name)
        return 1 + self.slack if saved > 0 else WORTH if saved == 0 else 0.0

    def best(self, ratios: Mapping[str, float]) -> str | None:
        """Of kernels with these times; None where the usual one is."""
        better = [name for name, ratio in ratios.items() if ratio < self.below(name)]
        return min(better, key=lambda name: (-self.saves(name), ratios[name]), default=None)


class History:
    """Earlier trials: on this device for the same launch, and elsewhere for similar ones."""

    def __init__(self, device: Device, resume: bool = True) -> None:
        """Without `resume` only what could not be timed, which is never tried again."""
        self.own: dict[str, list[Trial]] = {}
        for t in tuning_records.trials(device):
            if resume or t.ratio is None:
                self.own.setdefault(t.launch, []).append(t)
        self._similar: dict[tuple[str, str], list[tuple[Mapping[str, int], Trial]]] = {}
        for what, t in tuning_records.similar(device) if resume else ():
            kind = what["family"], what["dtype"]
            self._similar.setdefault(kind, []).append((what["ints"], t))

    def hints(self, key: str, request: Mapping[str, Any]) -> list[Hint]:
        """Of other launches of the family, by how many doublings their sizes are away: those from
        before the launch's own first trial, so that what is tuned later reopens no search.
        """
        sizes = request["ints"]
        end = min((t.at for t in self.own.get(key, ())), default=math.inf)
        out = []
        for ints, t in self._similar.get((request["family"], request["dtype"]), ()):
            of_one = t.launch == key or ints.keys() != sizes.keys() or t.at >= end
            if not of_one and t.ratio is not None:
                far = [
                    abs(math.log2((abs(n) + 1) / (abs(int(sizes[p])) + 1))) for p, n in ints.items()
                ]
                out.append(Hint(t.kernel, t.ratio, sum(far) / max(len(far), 1)))
        return out


class Search:
    """known: trials of earlier runs, which are not made again. measured: those of this one."""

    def __init__(
        self,
        device: Any,
        kinds: Sequence[Kind],
        proposer: proposers.Make,
        history: Callable[[Device], History] = History,
    ) -> None:
        self.device, self.known, self.measured = device, 0, 0
        self.kinds = {kind.key: kind for kind in kinds if len(kind.prices) > 1}
        self._searches: dict[str, Proposer] = {}
        self._times = Counter[tuple[str, str]]()
        self._taken = 0  # and without an outcome
        past = history(device)
        for key, kind in self.kinds.items():
            hints = past.hints(key, kind.request)
            search = proposer(kind.prices, hints, kind.words, device.name)
            self._searches[key] = search
            for t in past.own.get(key, ()):
                self.known += 1
                if t.ratio is None:
                    search.drop(t.kernel)
                else:
                    search.observe(t.kernel, t.ratio)
                    self._times[key, t.kernel] += 1

    def take(self, most: float = math.inf) -> dict[str, str]:
        """A kernel to try next for each of at most so many kinds of launch; {} for none. What is
        taken is not named again.
        """
        trial: dict[str, str] = {}
        for key, search in self._searches.items():
            if len(trial) < most and (name := search.suggest()) is not None:
                search.begin(name)
                trial[key] = name
        self._taken += len(trial)
        # the next trial begins with other launches
        for key in trial if len(trial) < len(self._searches) else ():
            self._searches[key] = self._searches.pop(key)
        return trial

    @property
    def open(self) -> int:
        """Kernels without an outcome."""
        return self._taken + sum(len(search.left) for search in self._searches.values())

    def given_up(self, trial: Mapping[str, str]) -> None:
        """Notes that the kernel cannot be measured at present."""
        self._taken -= len(trial)
        for key, name in trial.items():
            self._searches[key].drop(name)

    def told(self, trial: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> int:
        """Records the results of a trial. Returns how many kernels were measured."""
        made = []
        self._taken -= len(outcomes)
        for key, found in outcomes.items():
            search, name = self._searches[key], trial[key]
            if found is None:
                search.observe(name, 1.0)
            elif isinstance(found, Verdict):
                search.drop(name)
                made.append(Trial(key, name, found))
            else:
                search.observe(name, found[1] / found[0])
                made.append(self._timed(key, name, found))
                self._times[key, name] += 1
        self._note(made)
        self.measured += len(made)
        return len(made)

    @property
    def chosen(self) -> dict[str, str]:
        """The best kernels of those that are worth a last measurement."""
        found = {key: self.kinds[key].best(s.ratios) for key, s in self._searches.items()}
        return {key: name for key, name in found.items() if name is not None}

    @property
    def unconfirmed(self) -> set[tuple[str, str]]:
        """Kernels of `chosen` that had no last measurement."""
        return {one for one in self.chosen.items() if self._times[one] == 1}

    def confirm(self, found: Mapping[tuple[str, str], tuple[float, float]]) -> None:
        """Records the results of the last measurement for these launches and kernels."""
        self._note([self._timed(*one, times) for one, times in found.items()])
        self._times.update(list(found))

    def _timed(self, key: str, name: str, times: tuple[float, float]) -> Trial:
        usual, us = times
        verdict = Verdict.PRUNED if us > PRUNED * usual else Verdict.OK
        each = self.kinds[key].count
        return Trial(key, name, verdict, us / each, usual / each)

    def _note(self, made: Sequence[Trial]) -> None:
        if made:
            described = {t.launch: self.kinds[t.launch].request for t in made}
            tuning_records.note(self.device, made, described)
