"""Generated CUDA sources and CPU Plans are what they were: a change that means to alter them says
so with `--update-golden`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden import record
from tracea_onnx.support import discovery

FOLDER = Path(__file__).resolve().parent
CASES = record.cases()


def path_of(case: str) -> Path:
    """One file for each first word of a case's name: `cpu.json`, `requests.json`, `sm_90.json`,
    ...
    """
    return FOLDER / f"{case.split()[0]}.json"


def known(case: str) -> dict[str, str]:
    path = path_of(case)
    return dict(json.loads(path.read_text()).get(case, {})) if path.is_file() else {}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_generated_code_is_unchanged(case: str, golden: record.Record | None) -> None:
    made, before = CASES[case](), known(case)
    if golden is not None:
        golden[case] = made
        return
    changed = sorted(k for k in made.keys() | before.keys() if made.get(k) != before.get(k))
    assert not changed, (
        f"{case}: {', '.join(changed)} changed; if that is meant, run pytest tests/golden "
        "--update-golden"
    )


@pytest.mark.golden
def test_every_record_has_a_case(golden: record.Record | None) -> None:
    if golden is not None:
        return  # they are written when all tests are done
    recorded = {case for path in FOLDER.glob("*.json") for case in json.loads(path.read_text())}
    assert recorded == set(CASES)


def test_a_record_follows_source_and_launch() -> None:
    request = next(r for _, r in record.requests("pointwise"))
    kernel = discovery.module("kernels", "cuda").emit(request)[0]
    others = [
        replace(kernel, source=kernel.source + ";"),
        replace(kernel, smem=kernel.smem + 16),
        replace(kernel, grid=(7, 1, 1)),
    ]
    hashes = {record.digest(record.described(k)) for k in (kernel, *others)}
    assert len(hashes) == 4
    remark = replace(kernel, source=re.sub(r"(?<!\\)\n", "  // a remark\n", kernel.source))
    assert record.described(remark) == record.described(kernel)
