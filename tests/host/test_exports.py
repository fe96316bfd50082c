"""Every file of the export matrix: the chain fuses, each fused spec means what its nodes computed,
and the model's results are unchanged.
"""

from __future__ import annotations

import pytest

from tests.exports import matrix
from tests.exports.chains import CHAINS, GAPS

FILES = [matrix.name(f) for f in matrix.files()]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", FILES)
def test_export(name: str) -> None:
    cell = matrix.evaluate(matrix.file(name))
    assert not cell.faults
    if name in GAPS:
        assert cell.missing, f"{name} fuses now: take it out of GAPS"
    else:
        assert not cell.missing


def test_every_chain_has_files_and_every_file_a_chain() -> None:
    assert {name.split(".")[0] for name in FILES} == CHAINS.keys()


def test_nothing_of_the_exporting_machine_is_inside() -> None:
    for path in matrix.files():
        content = path.read_bytes()
        assert len(content) < 100_000, matrix.name(path)
        assert not any(
            word in content
            for word in (b"/home/", b"/root/", b"/tmp/", b"site-packages", b".py", b"/work/")
        ), matrix.name(path)
