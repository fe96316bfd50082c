"""`--update-golden` writes the records anew instead of comparing with them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.golden.record import Record


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Iterator[Record | None]:
    """Takes the records that are to be written; None when they are compared."""
    if not request.config.getoption("--update-golden"):
        yield None
        return
    if request.config.getoption("numprocesses", None):
        pytest.exit("--update-golden needs one process: add -n0", 4)
    from tests.golden.test_golden import CASES, known, path_of

    made: Record = {}
    yield made
    for path in {path_of(case) for case in CASES}:
        record = {case: made.get(case) or known(case) for case in CASES if path_of(case) == path}
        lines = [
            json.dumps(case) + ": " + json.dumps(parts, indent=1, sort_keys=True)
            for case, parts in sorted(record.items())
            if parts
        ]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
