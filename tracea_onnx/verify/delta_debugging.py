"""Which rewrites are at fault when a result leaves its bounds: found by keeping ever smaller sets
of them (delta debugging).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onnx import ModelProto, NodeProto

from tracea_onnx.errors import VerificationError
from tracea_onnx.ir import edit
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.model_io import model_file
from tracea_onnx.rewrite.inline import inline
from tracea_onnx.verify import verification as verification

T = TypeVar("T")
#: Verifications one search may take; past it everything still suspected counts as guilty.
BUDGET = 256


def smallest(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items` that fails and of which no element can be left out (1-minimal).

    `fails(items)` must hold, `fails([])` must not.
    """
    suspects, parts = list(items), 2
    while len(suspects) > 1:
        size = -(-len(suspects) // parts)
        chunks = [suspects[k : k + size] for k in range(0, len(suspects), size)]
        rest = (
            [[s for s in suspects if s not in chunk] for chunk in chunks] if len(chunks) > 2 else []
        )
        found = next((c for c in [*chunks, *rest] if fails(c)), None)
        if found is not None:
            parts = 2 if len(found) <= size else max(parts - 1, 2)
            suspects = found
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(suspects))
    return suspects


def at_fault(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """The elements without which the others pass: smallest failing parts, taken away one after
    another. Empty when even no element at all fails.
    """
    left, spent = list(items), 0

    def counted(part: list[T]) -> bool:
        nonlocal spent
        spent += 1
        return spent <= BUDGET and fails(part)

    if fails([]):
        return []
    guilty: list[T] = []
    while left and fails(left):
        part = smallest(left, counted)
        guilty += part
        left = [x for x in left if x not in part]
    return guilty


# --- fused ops ------------------------------------------------------------------------------------
Call = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Reverted:
    """Fused ops that were turned back, by name and outputs, and what the result was like with
    them.
    """

    calls: tuple[Call, ...]
    reason: str


def call_of(n: NodeProto) -> Call:
    """The fused op that a node calls, and what it makes."""
    return n.name, tuple(n.output)


def calls(model: ModelProto) -> list[Call]:
    """Every fused op of the model and its bodies."""
    return [call_of(n) for g in edit.graphs(model) for n in g.node if n.domain == DOMAIN]


def judge(
    reference: verification.Reference, candidate: model_file.Source, providers: Sequence[str]
) -> tuple[verification.Verification | None, str]:
    """The comparison (None where the candidate does not even run), and what is wrong with it (""
    when nothing is).
    """
    try:
        found = verification.judge(reference, candidate, providers)
    except VerificationError as e:
        return None, e.what
    return found, fault(found)


def fault(found: verification.Verification) -> str:
    """The worst thing a comparison found, in words; "" when everything is within bounds."""
    bad = [o for o in found.outputs if not o.ok]
    if not bad:
        return ""
    worst = max(bad, key=lambda o: o.max_rel)
    return f"output '{worst.name}' differs by {worst.max_abs:.3g} ({worst.note})"


def revert(
    reference: verification.Reference,
    candidate: model_file.Source,
    reason: str,
    providers: Sequence[str],
) -> Reverted | None:
    """Turn back, in place, the smallest set of fused ops without which `candidate` is within
    bounds; None when that does not help.
    """

    def fails(kept: list[Call]) -> bool:
        trial = model_file.Source(ModelProto(), candidate.folder, candidate.path)
        trial.model.CopyFrom(candidate.model)
        _turn_back(trial.model, set(everything) - set(kept))
        return bool(judge(reference, trial, providers)[1])

    everything = calls(candidate.model)
    guilty = at_fault(everything, fails)
    if not guilty:
        return None
    _turn_back(candidate.model, guilty)
    return Reverted(tuple(guilty), reason)


def _turn_back(model: ModelProto, guilty: Collection[Call]) -> None:
    inline(model, lambda n: call_of(n) in guilty)
