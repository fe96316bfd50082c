"""The doctor's models need the kernels that they are named after, and a wrong one is found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tracea_onnx import provider
from tracea_onnx.compiler import compile_requests
from tracea_onnx.doctor import smallest
from tracea_onnx.plan.builder import read_pack


@pytest.mark.parametrize("family", smallest.CASES)
def test_each_family_is_run_and_right(family: str, tmp_path: Path) -> None:
    with compile_requests.recording() as packs:
        found = smallest.attempt(family, "cpu", str(tmp_path))
    assert found.ok and not found.left and found.difference < 1e-6
    plans = [entry["plan"] for pack in packs for entry in read_pack(pack)[0]["entries"]]
    assert family in {launch["k"] for p in plans for launch in (*p["init"], *p["run"])}


def test_a_wrong_result_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = smallest.exact("softmax")
    monkeypatch.setattr(smallest, "exact", lambda family: honest * 1.001)
    found = smallest.attempt("softmax", "cpu", str(tmp_path))
    assert not found.ok and "is off by" in found.fault
    monkeypatch.setattr(smallest, "exact", lambda family: np.zeros(3))
    assert "shape (3, 7), not (3,)" in smallest.attempt("softmax", "cpu", str(tmp_path)).fault


def test_nodes_that_leave_the_provider_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "assigned_nodes", lambda session: [])
    found = smallest.attempt("softmax", "cpu", str(tmp_path))
    assert not found.ok and found.fault == "the provider runs 0 of 1 nodes"


def test_what_a_backend_has_no_kernel_for_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(smallest.CASES, "softmax", ("x:3,3", "y = RandomNormalLike(x)"))
    found = smallest.attempt("softmax", "cpu", str(tmp_path))
    assert found.ok and found.left


def test_a_kernel_that_ends_its_process_is_at_fault_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\n"
        'for family in "$@"; do case $family in\n'
        "-m|tracea_onnx*|cpu) ;;\n"
        "lrn) kill -4 $$ ;;\n"
        '*) printf \'{"family": "%s"}\\n\' $family ;;\n'
        "esac; done\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    found = {t.family: t for t in smallest.run("cpu")}
    assert found.keys() == smallest.CASES.keys()
    assert found["lrn"].fault == "it ended its process by signal 4"
    assert all(t.ok for family, t in found.items() if family != "lrn")


def test_a_process_that_cannot_begin_says_why_once() -> None:
    (found,) = smallest.run("no such backend")
    assert not found.ok and "no backend 'no such backend'" in found.fault
