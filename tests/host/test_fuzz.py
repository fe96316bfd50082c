"""The fuzzer's own promises: the same number gives the same input, and a case that dies or hangs
costs one case.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.fuzz import __main__ as fuzzer
from tests.fuzz import commands, judges, mutations, seeds, workers
from tests.fuzz.cases import Case
from tests.fuzz.workers import Limits, Verdict
from tests.host.pipeline_models import parse, run
from tracea_onnx.cli import main

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer forks")


def _mutated(mutation: mutations.Mutation, number: int) -> bytes:
    model = onnx.load(sorted(seeds.EXPORTS.glob("layernorm*/*.onnx"))[0])
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
    assert found == {
        str(k): {1: "ort-died", 3: "crash", 5: "hang", 6: "ort-died"}.get(k, "ok") for k in range(8)
    }


def test_onnx_itself_says_who_is_right() -> None:
    """ONNX Runtime rounds the number of windows up where not one fits."""
    m = parse(
        "g (float[1, 1, 5, 1] x) => (float[1, 1, N, M] y) { "
        "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }"
    )
    x = {"x": np.ones((1, 1, 5, 1), np.float32)}
    theirs = run(m, x)
    assert theirs[0].shape == (1, 1, 2, 1) and not judges.as_onnx_says(m, x, theirs)
    assert judges.as_onnx_says(m, x, [np.zeros((1, 1, 2, 0), np.float32)])
    odd = parse(
        "g (float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu (x) }",
        extra=', "com.microsoft": 1',
    )
    assert not judges.as_onnx_says(odd, {"x": np.ones(2, np.float32)}, [np.ones(2, np.float32)])


def test_means_of_nothing_are_anything() -> None:
    m = parse("g (float[N, 2] x) => (y) { y = ReduceMean <axes = [1]> (x) }")
    some, none = np.ones((1, 2), np.float32), np.ones((0, 2), np.float32)
    assert judges.is_of_nothing(m, [none]) and not judges.is_of_nothing(m, [some, [none]])
    assert not judges.is_of_nothing(parse("g (float[N] x) => (y) { y = Relu (x) }"), [none])


def test_results_that_depend_on_what_memory_held() -> None:
    """ONNX Runtime leaves elements of a Concat unwritten whose parts do not fit."""
    m = parse(
        "g (float[A, B, C] x, float[D, E, F] y) => (float[G, H, I] z) { "
        "z = Concat <axis = 2> (x, y) }"
    )
    y = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert judges.reads_garbage(
        m.SerializeToString(), {"x": np.zeros((2, 0, 2), np.float32), "y": y}
    )
    assert not judges.reads_garbage(m.SerializeToString(), {"x": y, "y": y})


@pytest.mark.parametrize(("columns", "status"), [(0, "ok"), (2, commands.UNLIKE)])
def test_a_model_differs_from_itself_only_by_what_memory_held(
    columns: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same Concat, once with parts that do not fit."""
    m = parse(
        "g (float[A, B, C] x, float[D, E, F] y) => (float[G, H, I] z) { "
        "z = Concat <axis = 2> (x, y) }"
    )
    model, given = tmp_path / "m.onnx", tmp_path / "given.npz"
    model.write_bytes(m.SerializeToString())
    y = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    np.savez(given, x=np.zeros((2, columns, 2), np.float32), y=y, unknown=y)
    said = iter(["", "verification FAILED\n"])
    monkeypatch.setattr(main, "main", lambda _: 4)
    monkeypatch.setattr(commands, "_said", lambda: next(said))
    assert commands.with_itself(model, given).status == status


@pytest.mark.parametrize("claimed", ["y) <float[2, 3] t>", "y, float[2, 3] t)"])
def test_claimed_types_that_hide_an_error(claimed: str) -> None:
    m = parse(
        f"g (float[2, 3] x) => (float[2, 3] {claimed} "
        "{ t = Concat <axis = 1> (x, x) y = Add (x, t) }"
    )
    kept = ModelProto()
    kept.CopyFrom(m)
    assert judges.stock_results(m.SerializeToString(), [], optimize=False) is not None
    assert not ModelProto.FromString(judges.undeclared(m)).graph.value_info and m == kept
    assert judges.stock_results(judges.undeclared(m), [], optimize=False) is None


@pytest.mark.parametrize(("weight", "found"), [(1.0, False), (np.inf, True), (np.nan, True)])
def test_zeros_around_an_image_times_what_is_not_finite(weight: float, found: bool) -> None:
    text = "g (float[1, 1, 4] x) => (y) { y = ConvTranspose <pads = [1, 1]> (x, w) }"
    m = parse(text, w=np.full((1, 1, 3), weight, np.float32))
    assert judges.pads_what_is_not_finite(m) == found
    m.graph.node.add(op_type="Conv")
    assert judges.pads_what_is_not_finite(m) == found


@pytest.mark.parametrize(
    ("scale", "found"), [(0.5, False), (0.0, True), (-0.0, True), (np.inf, True), (np.nan, True)]
)
def test_numbers_that_no_integer_stands_for(scale: float, found: bool) -> None:
    text = "g (float[4] x) => (uint8[4] y) { y = QuantizeLinear (x, s) }"
    assert judges.quantises_nan(parse(text, s=np.float32(scale))) == found


@pytest.mark.parametrize(
    ("declared", "false"), [("2, 3", False), ("n, 3", False), ("2, 4", True), ("3", True)]
)
def test_types_that_a_model_claims_are_held_against_onnx_runtime(
    declared: str, false: bool
) -> None:
    """Not those that it says nothing of."""
    m = parse(f"g (float[2, 3] x) => (y) <float[{declared}] t> {{ t = Relu (x) y = Exp (t) }}")
    assert judges.claims_falsely(m, [{"x": np.zeros((2, 3), np.float32)}]) == false


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("factor", "large"), [(1e30, True), (1.0, False)])
def test_a_large_value_that_is_computed_decides_and_one_that_is_stored_does_not(
    factor: float, large: bool, inside: bool
) -> None:
    nodes = "a = Mul (x, f) b = Where (m, a, low) y = Softmax (b)"
    text = f"g (float[2, 2] x) => (y) {{ {nodes} }}"
    if inside:
        text = (
            'g (float[2, 2] x) => (y) { y = mine.Whole (x, f, m, low) } <domain: "mine", '
            f'opset_import: ["" : 17]> Whole (x, f, m, low) => (y) {{ {nodes} }}'
        )
    mask = np.array([[True, False], [True, True]])
    low = np.asarray(np.finfo(np.float32).min, np.float32)
    m = parse(text, f=np.asarray(factor, np.float32), m=mask, low=low)
    made = judges.computed(m, {"x": np.full((2, 2), 3, np.float32)})
    assert made and judges.overflows(m, made) == large


@pytest.mark.parametrize(("value", "status"), [(0.0, "ort-died"), (1.0, "crash")])
def test_a_crash_is_judged_with_the_inputs_that_were_fed(
    value: float, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies_of_zero(_: bytes, fed: Sequence[Mapping[str, Any]], *, optimize: bool) -> None:
        if optimize and not all(values["x"].all() for values in fed):
            with workers.stock():
                os.abort()

    monkeypatch.setattr(judges, "stock_results", dies_of_zero)
    case = Case("sizes:0:0", tmp_path)
    case.write(parse("g (float[1] x) => (y) { y = Relu (x) }").SerializeToString())
    case.feed([{"x": np.ones(1, np.float32)}, {"x": np.full(1, value, np.float32)}])
    crash = Verdict("crash", "SIGFPE")
    assert fuzzer._judged("sizes", 0, crash, tmp_path, Limits()).status == status
