"""Runs one case of a module in this process: `python -m tests.gpu.run_case MODULE NAME`."""

from __future__ import annotations

import importlib
import sys

from tests.gpu import session_cases
from tests.gpu.plan_cases import Skip

SKIPPED = "skipped: "


def main() -> None:
    module = importlib.import_module(f"tests.gpu.{sys.argv[1]}")
    session_cases.setup(with_torch=module is session_cases)
    try:
        module.CASES[sys.argv[2]]()
    except Skip as e:
        print(f"{SKIPPED}{e}")


if __name__ == "__main__":
    main()
