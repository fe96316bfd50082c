"""A slice of `python -m tests.kill`: processes killed at random moments leave nothing corrupt and
nothing that stays.
"""

from __future__ import annotations

import os

import pytest

from tests import kill


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="fork, and files without a name")
def test_killed_processes_leave_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert kill.main(["--count", "16", "--seed", "3"]) == 0, capfd.readouterr().out
    assert "16 kills, 0 with faults" in capfd.readouterr().out
