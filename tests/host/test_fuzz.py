"""The fuzzer's own promises: the same number gives the same input, and a case that dies or hangs costs one case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import onnx
import pytest

from tests.fuzz import mutations

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer forks")


def _mutated(mutation: mutations.Mutation, number: int) -> bytes:
    model = onnx.load(sorted((ROOT / "tests" / "exports").glob("layernorm*.onnx"))[0])
    mutation(model, Random(number))
    return bytes(model.SerializeToString(deterministic=True))


@pytest.mark.parametrize("mutation", dict.fromkeys(mutations.MUTATIONS))
def test_a_mutation_depends_on_its_number_alone(mutation: mutations.Mutation) -> None:
    made = [_mutated(mutation, number) for number in range(6)]
    assert made == [_mutated(mutation, number) for number in range(6)]


_DYING = """
import os, signal, time
from tests.fuzz import workers
from tests.fuzz.workers import Limits, Verdict

def work(number, folder):
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    with workers.stock():
        if number == 1:
            os.abort()
        while number == 6:
            pass
    while number == 5:
        pass
    return Verdict("ok")

for number, verdict in workers.run(work, 8, limits=Limits(seconds=0.3, batch=4)):
    print(number, verdict.status)
"""


def test_a_case_that_dies_or_hangs_is_one_case() -> None:
    done = subprocess.run([sys.executable, "-c", _DYING], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found == {str(k): {1: "ort-died", 3: "crash", 5: "hang", 6: "ort-died"}.get(k, "ok") for k in range(8)}
