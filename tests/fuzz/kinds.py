"""What is fuzzed, by kind: a case draws its input from its number, runs it, and says how that
ended.

Right are success and one line with the exit code of its kind. Everything else is a finding: a
traceback, an internal error, control characters on the terminal, a wrong result; and what takes the
process down, which only the parent sees (`workers`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.fuzz.cases import REFUSED, Case, failure
from tests.fuzz.commands import (
    check,
    compile_model,
    doctor,
    explain,
    given_inputs,
    inline,
    inspect,
    optimize,
    quantize,
    verify,
)
from tests.fuzz.plans import changed_compiled, changed_plan, damaged_cache, damaged_pack
from tests.fuzz.requests import changed_request, changed_tuning
from tests.fuzz.sessions import changed_model, unfit_inputs
from tests.fuzz.workers import Verdict

#: Kinds whose command runs the model on ONNX Runtime alone, too.
RUNS_STOCK = frozenset(
    {"optimize", "verify", "explain", "session", "sizes", "check", "compile", "inputs", "quantize"}
)


def _of_the_fuzzer(e: BaseException) -> bool:
    """Whether nothing of the product was at work."""
    frames = traceback.extract_tb(e.__traceback__)
    return not any("tracea_onnx" in Path(f.filename).parts for f in frames)


def _nothing(c: Case, run: Callable[[Case], Verdict]) -> Verdict:
    try:
        return run(c)
    except MemoryError as e:  # of the fuzzer's own comparisons: commands turn theirs into a line
        return Verdict(REFUSED, str(e)[:100]) if _of_the_fuzzer(e) else failure("traceback", e)
    except Exception as e:  # in a fuzzer's own code, or what a command let out
        return failure("traceback", e)


_RUN: Mapping[str, Callable[[Case], Verdict]] = {
    "inspect": inspect,
    "inline": inline,
    "explain": explain,
    "doctor": doctor,
    "optimize": optimize,
    "quantize": quantize,
    "verify": verify,
    "session": changed_model,
    "sizes": unfit_inputs,
    "pack": damaged_pack,
    "plan": changed_plan,
    "compiled": changed_compiled,
    "cache": damaged_cache,
    "tuning": changed_tuning,
    "request": changed_request,
    "check": check,
    "inputs": given_inputs,
    "compile": compile_model,
}

KINDS: Mapping[str, Callable[[Case], Verdict]] = {
    name: partial(_nothing, run=run) for name, run in _RUN.items()
}

#: How often a kind is drawn.
WEIGHTS: Mapping[str, int] = {
    "inspect": 2,
    "inline": 3,
    "explain": 4,
    "doctor": 1,
    "optimize": 5,
    "quantize": 2,
    "verify": 2,
    "session": 5,
    "sizes": 5,
    "pack": 3,
    "plan": 3,
    "compiled": 2,
    "cache": 1,
    "tuning": 1,
    "request": 4,
    "check": 1,
    "inputs": 1,
    "compile": 2,
}
